"""``turnout fit``: a world fitted to the records of a federation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli.app import documented
from turnout.cli.output import AsJson, console, note, print_json, table
from turnout.twin import FittedWorld
from turnout.twin import fit as fit_runs

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...")]


@documented
def fit(
    runs: RunFolders,
    *,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("my-federation.toml"),
    as_json: AsJson = False,
) -> None:
    """Fit a world to the records of a federation: its clients' availability, failures and times.

    The world is a TOML file and an .npz beside it. compare, train, recommend and all other
    commands with --world run in it. The table says what was learned from how many observations,
    and what is a guess.

    Example: [bold]turnout fit runs/hospitals --out hospitals.toml[/]

    Args:
        runs: Run folders of one federation.
        out: The TOML file to write.
        as_json: For programs.
    """
    world = fit_runs(runs).save(out)
    if as_json:
        print_json(_row(world))
        return
    for text in world.notes:
        note(text)
    _print(world)
    console.print(f"\nWritten: {escape(str(out))} and {escape(out.with_suffix('.npz').name)}")
    console.print("Next:", f"turnout compare random pace e3cs --world {out}", soft_wrap=True)


def _print(world: FittedWorld) -> None:
    title = f"{world.n_clients:,} clients, {world.n_rounds:,} recorded rounds"
    shown = table(title, "quantity", "value", "learned from")
    for each in world.quantities:
        value = escape(each.value)
        if each.is_guess:
            value = f"[yellow]guess:[/] {value}"
        learned_from = escape(each.learned_from)
        if each.remark:
            learned_from += f"\n[dim]{escape(each.remark)}[/]"
        shown.add_row(each.name, value, learned_from)
    console.print(shown)


def _row(world: FittedWorld) -> dict[str, Any]:
    return {
        "world": str(world.path),
        "n_clients": world.n_clients,
        "n_rounds": world.n_rounds,
        "quantities": [asdict(each) for each in world.quantities],
        "notes": list(world.notes),
    }
