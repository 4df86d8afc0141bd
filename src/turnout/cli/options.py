"""What the commands that run experiments share: options, progress, problems, numbers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from click import get_current_context
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnout.cli.output import console
from turnout.cli.tracking import callbacks_of
from turnout.environments import WORLDS
from turnout.errors import InvalidInput
from turnout.experiment import Advance, Estimate, Experiment, Grid, Shard, run_experiment
from turnout.experiment.grid import BACKENDS
from turnout.runs.files import ERROR, cell_folder

#: How often a line tells the progress where there is no terminal.
SECONDS_PER_LINE = 10.0

#: Exit code of a command that was stopped from the keyboard.
_INTERRUPTED = 130

_WORLDS = "; ".join(f"[bold]{name}[/]: {world.what}" for name, world in WORLDS.items())

Param = Annotated[
    list[str] | None, typer.Option("--param", help="key=value; may be given several times.")
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", min=0, help="Number that fixes all random draws: the same seed, the same run."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Runs at the same time; default: one per processor."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Run all again, also what the folder holds already.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder; default: runs/ and a name made of the settings."),
]


@dataclass(frozen=True)
class WorldOptions:
    """Which federation is simulated, and how large."""

    world: Annotated[
        list[str] | None,
        typer.Option(
            "--world",
            help="A name or a TOML file with a world's table; default: volatile. Several are a "
            f"sweep of compare. {_WORLDS}.",
        ),
    ] = None
    n_rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds per run; default: as the world.")
    ] = None
    n_clients: Annotated[
        int | None,
        typer.Option("--clients", min=1, help="Number of clients; default: as the world."),
    ] = None
    cohort_size: Annotated[
        int | None,
        typer.Option("--cohort", min=1, help="Clients per round; default: as the world."),
    ] = None
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", help="Seconds until a round closes; default: no deadline."),
    ] = None
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds", help="Compare what clients claim with what others do, as Flower runs do."
        ),
    ] = False


@dataclass(frozen=True)
class GridOptions:
    """How the runs of a grid are computed."""

    jobs: Jobs = None
    backend: Annotated[
        str, typer.Option("--backend", help=f"Where runs are computed: {' or '.join(BACKENDS)}.")
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="Ray cluster, auto or HOST:PORT; default: Ray started here."
        ),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="i/n: only the runs whose number is i modulo n; see merge."),
    ] = None
    fresh: Fresh = False

    def for_run(self, track: Sequence[str] | None = None) -> dict[str, Any]:
        """Return how runs are computed, as ``run_experiment`` takes it.

        Args:
            track: Trackers that follow the runs.

        Raises:
            InvalidInput: Trackers were asked for, and several runs at the same time.
        """
        if track and self.jobs not in (None, 1):
            raise InvalidInput("--track follows one run at a time: give --jobs 1, or leave it out.")
        return {
            "n_jobs": 1 if track else self.jobs,
            "backend": self.backend,
            "address": self.address,
            "shard": None if self.shard is None else Shard.parse(self.shard),
            "fresh": self.fresh,
        }


def row_of(grid: Grid) -> dict[str, Any]:
    """Return the only run of a grid as one row: what was run, and its summary."""
    experiment, cell = grid.experiment, grid.cells[0]
    sizes = {name: getattr(experiment, name) for name in ("n_clients", "cohort_size", "n_rounds")}
    return {"label": cell.label, **sizes, "seed": cell.seed, **(cell.summary or {})}


def print_shard(shard: Shard, folder: Path, grids: Sequence[Grid], as_json: bool) -> None:
    """Tell what was run of a grid, and how it becomes whole.

    Args:
        shard: The part.
        folder: Where its runs are.
        grids: What was run.
        as_json: For programs.
    """
    cells = [cell for grid in grids for cell in grid.cells]
    n_complete = sum(cell.summary is not None for cell in cells)
    if as_json:
        counts = {"n_runs": len(cells), "n_complete": n_complete}
        print_json({"shard": str(shard), "folder": str(folder), **counts})
        return
    text = (
        f"Shard {shard}: {n_complete} of {len(cells)} runs are complete in {folder}. When all "
        "shards are, turnout merge joins their folders; without --shard this command shows the "
        "results."
    )
    console.print(text, highlight=False)


def run_shown(
    experiment: Experiment,
    folder: Path,
    *,
    quiet: bool,
    track: Sequence[str] = (),
    **options: Any,
) -> Grid:
    """Run an experiment with one progress display for all its cells.

    Args:
        experiment: What to run.
        folder: Where the results go.
        quiet: Whether to show nothing.
        track: Names of trackers that follow each run, checked.
        **options: For ``run_experiment``.
    """
    options["callbacks"] = callbacks_of(track, folder)
    try:
        with _progress(experiment.name, quiet) as advance:
            grid = run_experiment(experiment, folder, progress=advance, **options)
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the same command goes on from here.")
        raise typer.Exit(_INTERRUPTED) from None
    for note in grid.notes:
        Console(stderr=True).print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    return grid


def end_badly_on_problems(*grids: Grid) -> None:
    """Name every cell that has no result, and end with exit code 1 if there is one.

    Cells with a result about which there is something to say are named too. The traceback of an
    error is in a file, which is named; with ``--debug`` it is shown.
    """
    errors = Console(stderr=True)
    for grid in grids:
        for cell in (*grid.remarks, *grid.problems):
            text = escape(f"{cell.label}, seed {cell.seed}: {cell.message}")
            kind = "[yellow]note:[/]" if cell.summary else f"[bold red]{cell.status}:[/]"
            errors.print(f"{kind} {text}", highlight=False)
            traceback = cell_folder(grid.folder, cell.label, cell.seed) / ERROR
            if not cell.summary and traceback.exists():
                typer.echo(f"traceback: {traceback}", err=True)
                if get_current_context().find_root().params["debug"]:
                    typer.echo(traceback.read_text(encoding="utf-8"), err=True)
    if any(grid.problems for grid in grids):
        raise typer.Exit(1)


def _lines(name: str) -> Callable[[Advance], None]:
    """Return what writes a line now and then, for logs."""
    latest = time.monotonic()

    def advance(state: Advance) -> None:
        nonlocal latest
        if time.monotonic() - latest < SECONDS_PER_LINE:
            return
        latest = time.monotonic()
        accuracy = state.measured.get("accuracy")
        learned = "" if accuracy is None else f", accuracy {accuracy:.3f}"
        done = f"{state.rounds_done:,} of {state.n_rounds:,} rounds"
        runs = f"{state.cells_done} of {state.n_cells} runs"
        typer.echo(f"{name}: {done}, {runs}{learned}", err=True)

    return advance


def numbers(estimate: Estimate) -> dict[str, float | int | None]:
    """Return an estimate for JSON; what is not defined is null."""
    parts = {"mean": estimate.mean, "sd": estimate.deviation, "ci95": estimate.half_width}
    finite = {name: value if value == value else None for name, value in parts.items()}
    return {**finite, "n": estimate.n}


def print_json(content: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


@contextlib.contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Callable[[Advance], None]]:
    columns = (
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds, {task.fields[cells]}{task.fields[learned]}"),
        TimeRemainingColumn(),
    )
    if not (quiet or console.is_terminal):
        yield _lines(name)
        return
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task(name, total=None, cells="", learned="")

        def advance(state: Advance) -> None:
            cells = f"{state.cells_done} of {state.n_cells} runs"
            done, total = state.rounds_done, state.n_rounds
            progress.update(task, completed=done, total=total, cells=cells)
            if "accuracy" in state.measured:
                progress.update(task, learned=f", accuracy {state.measured['accuracy']:.3f}")

        yield advance
