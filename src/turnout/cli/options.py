"""What the commands that run experiments share: options, progress, problems, numbers."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnout.cli.output import console
from turnout.errors import InvalidInput
from turnout.experiment import WORLDS, Advance, Estimate, Experiment, Grid, run_experiment

__all__ = [
    "Clients",
    "Cohort",
    "Deadline",
    "Jobs",
    "Param",
    "Rounds",
    "World",
    "end_badly_on_problems",
    "experiment_of",
    "numbers",
    "plus_minus",
    "print_json",
    "run_shown",
]

#: Exit code of a command that was stopped from the keyboard.
_INTERRUPTED = 130

_WORLDS = "; ".join(f"[bold]{name}[/]: {world.what}" for name, world in WORLDS.items())

OptionalWorld = Annotated[
    str | None,
    typer.Option(
        "--world", help=f"A name or a TOML file with a world's table; default: volatile. {_WORLDS}."
    ),
]
World = Annotated[
    str, typer.Option("--world", help=f"A name or a TOML file with a world's table. {_WORLDS}.")
]
Param = Annotated[
    list[str] | None, typer.Option("--param", help="key=value; may be given several times.")
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", min=1, help="Rounds per run; default: as the world.")
]
Clients = Annotated[
    int | None, typer.Option("--clients", min=1, help="Number of clients; default: as the world.")
]
Cohort = Annotated[
    int | None, typer.Option("--cohort", min=1, help="Clients per round; default: as the world.")
]
Deadline = Annotated[
    float | None, typer.Option("--deadline", help="Seconds that clients have; default: no limit.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes; default: one per processor.")
]


def experiment_of(
    selectors: list[Any],
    name: str,
    world: str,
    sizes: Mapping[str, int | None],
    seeds: list[int] | int,
    deadline: float | None,
    training: Mapping[str, Any] | None = None,
) -> Experiment:
    """Return the experiment that the options of a command describe."""
    policy = {"kind": "fixed-deadline"} | ({} if deadline is None else {"seconds": deadline})
    given: dict[str, Any] = {key: value for key, value in sizes.items() if value is not None}
    return Experiment(
        selectors,
        name=name,
        world=_world(world),
        seeds=seeds,
        policy=policy,
        training=training,
        **given,
    )


def run_shown(experiment: Experiment, folder: Path, *, quiet: bool, **options: Any) -> Grid:
    """Run an experiment with one progress display for all its cells."""
    try:
        with _progress(experiment.name, quiet) as advance:
            return run_experiment(experiment, folder, progress=advance, **options)
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the same command goes on from here.")
        raise typer.Exit(_INTERRUPTED) from None


def end_badly_on_problems(*grids: Grid) -> None:
    """Name every cell that has no result, and end with exit code 1 if there is one.

    Cells with a result about which there is something to say are named too.
    """
    problems = [cell for grid in grids for cell in grid.problems]
    remarks = [cell for grid in grids for cell in grid.remarks]
    errors = Console(stderr=True)
    for cell in (*remarks, *problems):
        text = escape(f"{cell.label}, seed {cell.seed}: {cell.message}")
        kind = "[yellow]note:[/]" if cell.summary else f"[bold red]{cell.status}:[/]"
        errors.print(f"{kind} {text}", highlight=False)
    if problems:
        raise typer.Exit(1)


def plus_minus(found: Estimate, form: str) -> str:
    """Return a mean with half its 95 % interval."""
    if found.n == 0:
        return "-"
    mean = format(found.mean, form)
    return mean if found.n < 2 else f"{mean} ± {format(found.half_width, form)}"


def numbers(found: Estimate) -> dict[str, float | int | None]:
    """Return an estimate for JSON; what is not defined is null."""
    parts = {"mean": found.mean, "sd": found.deviation, "ci95": found.half_width}
    finite = {name: value if value == value else None for name, value in parts.items()}
    return {**finite, "n": found.n}


def print_json(content: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


def _world(text: str) -> Any:
    """Return a world's name, or the table in a file."""
    path = Path(text)
    if path.suffix != ".toml":
        return text
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"--world {text} cannot be read: {error}.") from error
    return table.get("world", table)


@contextlib.contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Callable[[Advance], None]]:
    columns = (
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds, {task.fields[cells]}{task.fields[learned]}"),
        TimeRemainingColumn(),
    )
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(name, total=None, cells="", learned="")

        def advance(state: Advance) -> None:
            cells = f"{state.cells_done} of {state.n_cells} runs"
            done, total = state.rounds_done, state.n_rounds
            progress.update(task, completed=done, total=total, cells=cells)
            if "accuracy" in state.measured:
                progress.update(task, learned=f", accuracy {state.measured['accuracy']:.3f}")

        yield advance
