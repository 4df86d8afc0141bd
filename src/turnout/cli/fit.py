"""``turnout fit``: a world fitted to the records of a federation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli.app import documented
from turnout.cli.output import AsJson, RunFolders, console, note, print_json, table, text_table
from turnout.twin import FittedWorld, HeldOut
from turnout.twin import check as check_runs
from turnout.twin import fit as fit_runs


@documented
def fit(
    runs: RunFolders,
    *,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("my-federation.toml"),
    check: bool = False,
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
        check: Also fit the first 70 % of the rounds, and compare what this predicts of the others
            with what was recorded.
        as_json: For programs.
    """
    world = fit_runs(runs).save(out)
    checked = check_runs(runs) if check else None
    if as_json:
        print_json(_row(world) | ({} if checked is None else {"check": _checked(checked)}))
        return
    for text in world.notes:
        note(text)
    _print(world)
    if checked is not None:
        _print_check(checked)
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


def _print_check(checked: HeldOut) -> None:
    """Print how well the first rounds predicted the others, and what follows from it."""
    title = (
        f"Fitted to {checked.n_fitted:,} rounds, compared with {checked.n_predicted:,} later ones"
    )
    rows = [
        (
            each.name,
            f"{each.recorded:.4g}",
            f"{each.predicted:.4g}",
            f"{each.share:.0%} of {each.n_cases:,}",
            each.verdict,
        )
        for each in checked.coverages
    ]
    headings = ("prediction", "recorded", "predicted", "in 90 % interval", "verdict")
    console.print(text_table(title, headings, rows))
    if not checked.is_judged:
        console.print("There are too few later rounds to judge by: record more.")
        return
    if checked.is_calibrated:
        console.print("The later rounds are as the earlier ones lead to expect.")
        return
    wrong = ", ".join(each.name for each in checked.coverages if each.is_wrong)
    console.print(
        f"[yellow]Do not trust the twin in:[/] {escape(wrong)}. The federation may have changed "
        "during the record, or do what the twin has no part for."
    )


def _checked(checked: HeldOut) -> dict[str, Any]:
    return {
        "rounds_fitted": checked.n_fitted,
        "rounds_predicted": checked.n_predicted,
        "coverages": [each._asdict() | {"verdict": each.verdict} for each in checked.coverages],
        "is_calibrated": checked.is_calibrated,
    }


def _row(world: FittedWorld) -> dict[str, Any]:
    return {
        "world": str(world.path),
        "n_clients": world.n_clients,
        "n_rounds": world.n_rounds,
        "quantities": [asdict(each) for each in world.quantities],
        "notes": list(world.notes),
    }
