"""What commands share: options, the experiment that they describe, progress and problems."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from click import get_current_context
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnout.cli.output import console, errors, note, print_json
from turnout.core.errors import InvalidInput
from turnout.core.require import choice
from turnout.data import Partition, Source
from turnout.experiment import Advance, Experiment, Shard, run_experiment, sweep
from turnout.experiment.cell import Terminated
from turnout.experiment.codec import FAMILIES, ConfigError, decode
from turnout.experiment.pool import Callbacks
from turnout.experiment.sweep import joined
from turnout.experiment.variants import parse_parameters, parse_spec
from turnout.results import Results, files
from turnout.results.callbacks import Callback, MLflow, TensorBoard, WandB
from turnout.results.files import ERROR, cell_folder
from turnout.training import Aggregation, LocalWork, Model, ServerOptimizer, Training
from turnout.worlds import WORLDS, WorkSchedule

#: Options that several commands have.
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Number of concurrent runs; default: one per processor."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Run folder; default: a folder in runs/ that is named after the settings."),
]

_WORLDS = "; ".join(f"[bold]{name}[/]: {world.what}" for name, world in WORLDS.items())
_WORLD_HELP = (
    "A name, or a TOML file with the table of a world; default: volatile. compare takes several, "
    f"as a sweep. {_WORLDS}."
)

_SCHEDULE_HELP = (
    "When clients get work: buffered:size=10,concurrency=30; semi-synchronous:period_s=60; or "
    "synchronous:late=use. With staleness=constant-weight, polynomial-weight, hinge-weight or "
    "deviation-weight. Default: rounds do not overlap."
)


@dataclass(frozen=True)
class WorldOptions:
    """Which federation is simulated, and how large.

    Args:
        world: A name or a TOML file; several are a sweep.
        n_rounds: Rounds per run; default: that of the world.
        n_clients: Number of clients; default: that of the world.
        cohort_size: Clients per round; default: that of the world.
        deadline: Seconds until a round closes; default: no deadline.
        bounds: Bound what clients report, as live runs do by default.
        schedule: When clients get work, if rounds overlap.
    """

    world: Annotated[list[str] | None, typer.Option(help=_WORLD_HELP)] = None
    n_rounds: Annotated[int | None, typer.Option("--rounds", min=1)] = None
    n_clients: Annotated[int | None, typer.Option("--clients", min=1)] = None
    cohort_size: Annotated[int | None, typer.Option("--cohort", min=1)] = None
    deadline: float | None = None
    bounds: bool = False
    schedule: Annotated[str | None, typer.Option(help=_SCHEDULE_HELP)] = None


@dataclass(frozen=True)
class GridOptions:
    """How the runs of a grid are computed.

    Args:
        n_jobs: Number of concurrent runs; default: one per processor.
        backend: Where runs are computed: local or ray.
        address: Ray cluster: auto or HOST:PORT; default: start Ray on this machine.
        shard: i/n: only the runs whose number is i modulo n; turnout merge joins the shards.
        fresh: Repeat all runs, even complete ones.
    """

    n_jobs: Jobs = None
    backend: str = "local"
    address: str | None = None
    shard: str | None = None
    fresh: bool = False

    def for_run(self, track: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the arguments of ``run_experiment`` for these options.

        Args:
            track: Trackers that follow the runs.

        Raises:
            InvalidInput: Trackers were asked for, and several runs at the same time.
        """
        if track and self.n_jobs not in (None, 1):
            raise InvalidInput("--track follows one run at a time: give --jobs 1, or leave it out.")
        shard = None if self.shard is None else Shard.parse(self.shard)
        return {**vars(self), "n_jobs": 1 if track else self.n_jobs, "shard": shard}


def print_shard(shard: Shard, folder: Path, grids: Sequence[Results], as_json: bool) -> None:
    """Print what was run of a grid, and how to complete it.

    Args:
        shard: The part.
        folder: Where its runs are.
        grids: The results.
        as_json: For programs.
    """
    results = joined(grids, folder)
    n_runs, n_complete = len(results.runs), len(results.runs) - len(results.failed)
    if as_json:
        counts = {"n_runs": n_runs, "n_complete": n_complete}
        print_json({"shard": str(shard), "folder": str(folder), **counts})
        return
    console.print(
        f"Shard {shard}: {n_complete} of {n_runs} runs are complete in {folder}. When all "
        "shards are, turnout merge joins their folders; without --shard this command shows the "
        "results.",
    )


#: Exit codes of a command that was stopped by Ctrl-C or by SIGTERM, as shells have them.
_INTERRUPTED, _TERMINATED = 130, 143


def run_shown(
    experiment: Experiment,
    folder: Path,
    *,
    quiet: bool,
    track: Sequence[str] = (),
    is_kept: bool = True,
    **options: Any,
) -> Results:
    """Run an experiment with one progress display for all its cells.

    Args:
        experiment: The experiment.
        folder: Where the results go.
        quiet: Whether to show nothing.
        track: Names of trackers that follow each run, checked.
        is_kept: Whether the folder stays, so that an interrupted run can resume.
        **options: For ``run_experiment``.
    """
    options["callbacks"] = callbacks_of(track, folder)
    try:
        with _progress(experiment.name, quiet) as advance:
            results = run_experiment(experiment, folder, progress=advance, **options)
    except KeyboardInterrupt as stop:
        is_term = isinstance(stop, Terminated)
        left = "before the end. Nothing is kept without --out."
        if is_kept:
            left = _left_behind(experiment, folder, is_fresh=options.get("fresh", False))
        errors.print(f"Stopped by {'SIGTERM' if is_term else 'Ctrl-C'} {left}", soft_wrap=True)
        raise typer.Exit(_TERMINATED if is_term else _INTERRUPTED) from None
    for text in results.notes:
        note(text)
    return results


def _left_behind(experiment: Experiment, folder: Path, *, is_fresh: bool) -> str:
    """Return what a stopped command has completed and saved, and how it goes on.

    Args:
        experiment: The experiment.
        folder: Its run folder.
        is_fresh: Whether the command would run everything again.
    """
    cells = [
        cell_folder(folder, label, seed) for label in experiment.labels for seed in experiment.seeds
    ]
    n_complete = sum((cell / files.SUMMARY).exists() for cell in cells)
    saved = [
        int(files.read_arrays(cell / files.PROGRESS)["cell.round"])
        for cell in cells
        if (cell / files.PROGRESS).exists() and not (cell / files.SUMMARY).exists()
    ]
    rounds = " and ".join(f"{number:,}" for number in sorted(saved))
    n_saved = {0: "none", 1: "one"}.get(len(saved), len(saved))
    where = f" after round{'s' * (len(saved) > 1)} {rounds}" if saved else ""
    command = "The same command" + " without --fresh" * is_fresh
    goes_on = f"{command} goes on from there" if n_complete or saved else f"{command} starts again"
    return f"with {n_complete} of {len(cells)} runs complete and {n_saved} saved{where}. {goes_on}."


def exit_on_problems(*results: Results) -> None:
    """Name every run without a result, and end with exit code 1 if there is one.

    Runs with a result that needs a remark are named too. The traceback of an error is in a file,
    which is named; with ``--debug`` it is shown.
    """
    for run in (run for each in results for run in (*each.remarks, *each.failed)):
        kind = "[yellow]note:[/]" if run.summary else f"[bold red]{run.status}:[/]"
        text = escape(f"{run.label}, seed {run.seed}: {run.message}")
        errors.print(f"{kind} {text}")
        traceback = run.path / ERROR
        if not run.summary and traceback.exists():
            typer.echo(f"traceback: {traceback}", err=True)
            if get_current_context().find_root().params["debug"]:
                typer.echo(traceback.read_text(encoding="utf-8"), err=True)
    if any(each.failed for each in results):
        raise typer.Exit(1)


#: Seconds between two lines of progress where there is no terminal.
SECONDS_PER_LINE = 10.0


@contextlib.contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Callable[[Advance], None]]:
    """Yield what shows the progress: a bar, or a line now and then where there is no terminal."""
    columns = (
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds, {task.fields[runs]}"),
        TimeRemainingColumn(),
    )
    is_bar = quiet or console.is_terminal
    latest = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=quiet or not is_bar) as bar:
        task = bar.add_task(name, total=None, runs="")

        def advance(state: Advance) -> None:
            nonlocal latest
            accuracy = state.measured.get("accuracy")
            learned = "" if accuracy is None else f", accuracy {accuracy:.3f}"
            runs = f"{state.cells_done} of {state.n_cells} runs{learned}"
            if is_bar:
                bar.update(task, completed=state.rounds_done, total=state.n_rounds, runs=runs)
            elif time.monotonic() - latest >= SECONDS_PER_LINE:
                latest = time.monotonic()
                done = f"{state.rounds_done:,} of {state.n_rounds:,} rounds"
                typer.echo(f"{name}: {done}, {runs}", err=True)

        yield advance


#: The user is asked before more runs than this.
_MOST_CELLS = 1000


def settings_of(
    name: str,
    seeds: Sequence[int] | int,
    options: WorldOptions,
    training: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments of ``Experiment`` except the selectors.

    Args:
        name: The name of the experiment.
        seeds: The seeds, or how many.
        options: Which world, and how large.
        training: Fields of the recipe that were given; None = no training.
    """
    worlds = options.world or ["volatile"]
    if len(worlds) > 1:
        raise InvalidInput(
            f"--world was given {len(worlds)} times, and this command runs one world: turnout "
            "compare takes several.",
            field="world",
        )
    own: dict[str, Any] = {"name": name, "seeds": seeds, "bounds": options.bounds}
    own["schedule"] = schedule_of(options.schedule)
    return sweep.settings_of(worlds[0], training, options.deadline, **own, **sizes_of(options))


def schedule_of(text: str | None) -> WorkSchedule | None:
    """Return the schedule that ``--schedule`` names.

    Args:
        text: A name, or name:key=value,...; None = rounds do not overlap.

    Raises:
        InvalidInput: The text is wrong.
    """
    if text is None:
        return None
    try:
        name, parameters = parse_spec(text)
        found: WorkSchedule = decode({"kind": name, **parameters}, WorkSchedule)
    except ConfigError as error:
        raise InvalidInput(f"--schedule {text}: {error.problem}", field="schedule") from error
    return found


def agreed(n_cells: int, yes: bool) -> None:
    """Ask the user before a large number of runs.

    Args:
        n_cells: The number of runs.
        yes: Whether the user has already agreed.

    Raises:
        InvalidInput: There are too many, and there is no terminal to ask.
    """
    if yes or n_cells <= _MOST_CELLS:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"these are {n_cells:,} runs, more than {_MOST_CELLS:,}: give --yes if you want them "
            "all, or fewer values, selectors or seeds."
        )
    typer.confirm(f"These are {n_cells:,} runs. Continue?", abort=True)


def sizes_of(options: WorldOptions) -> dict[str, int]:
    """Return the sizes that were given, by field of ``Experiment``."""
    sizes = {name: getattr(options, name) for name in ("n_clients", "cohort_size", "n_rounds")}
    return {name: size for name, size in sizes.items() if size is not None}


StopAtTarget = Annotated[
    bool,
    typer.Option(
        "--stop-at-target",
        help="End a run when it reaches the highest target.",
        rich_help_panel="Training",
    ),
]

#: Fields of a recipe that are given as text: the option, and what the text names.
_TEXTS: Mapping[str, tuple[str, type]] = {
    "source": ("--data", Source),
    "partition": ("--partition", Partition),
    "model": ("--model", Model),
    "aggregation": ("--aggregation", Aggregation),
    "server": ("--server", ServerOptimizer),
    "local": ("--local", LocalWork),
}


def _named(field: str, default: str, more: str = "") -> Any:
    """Return the option of a field that names one of a family of models."""
    name, base = _TEXTS[field]
    names = ", ".join(FAMILIES[base])
    text = f"name or name:key=value,...; default: {default}. Names: {names}{more}."
    return typer.Option(name, help=text)


_MORE_MODELS = "; or module:factory of your own"


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained; named as the fields of ``Training``.

    Args:
        source: The data.
        partition: How the data are divided among the clients.
        model: The model.
        local: Local work: key=value,... of epochs or steps, batch_size, lr, momentum, proximal,
            weight_decay. Default: epochs=5, batch_size=10, lr=0.05.
        aggregation: How the returned models become the next model.
        server: What the server does with the aggregated model.
        buffers: Running moments of batch normalisation: average them (default), or local: each
            client keeps its own.
        server_lr: Factor on the step of the global model; default: 1.
        hold_out: Share of its examples that a client keeps for evaluation; default: 0.
        target_accuracy: Report rounds and time to this accuracy; may be given several times.
        evaluate_every: Rounds between two evaluations on the test set; default: 1.
        participants: module:Name of your own subclass of turnout.training.Federation.
        device: cpu (default), cuda, cuda:1, mps and so on.
        trainer: batched (clients side by side), reference (one after the other), or fast (default):
            the faster of the two.
    """

    help_panel: ClassVar = "Training"

    source: Annotated[str | None, _named("source", "digits")] = None
    partition: Annotated[str | None, _named("partition", "dirichlet:alpha=0.5")] = None
    model: Annotated[str | None, _named("model", "mlp", _MORE_MODELS)] = None
    local: str | None = None
    aggregation: Annotated[str | None, _named("aggregation", "mean-returned")] = None
    server: Annotated[str | None, _named("server", "take-mean")] = None
    buffers: str | None = None
    server_lr: float | None = None
    hold_out: float | None = None
    target_accuracy: Annotated[list[float] | None, typer.Option("--target")] = None
    evaluate_every: Annotated[int | None, typer.Option(min=1)] = None
    participants: str | None = None
    device: str | None = None
    trainer: str | None = None


def recipe_options(options: TrainingOptions, stop_at_target: bool = False) -> dict[str, Any]:
    """Return the fields of a recipe that were given, with what their texts stand for.

    Args:
        options: The options of the command.
        stop_at_target: Whether a run ends when it reaches the highest target.

    Returns:
        Values by field; what was not given is left out.

    Raises:
        InvalidInput: A text is wrong; the message names its option.

    """
    values = {**vars(options), "stop_at_target": stop_at_target or None}
    recipe = {name: value for name, value in values.items() if value not in (None, ())}
    for field, text in [(field, recipe[field]) for field in _TEXTS if field in recipe]:
        option, base = _TEXTS[field]
        try:
            if base is LocalWork:  # which has no name
                recipe[field] = decode({"local": parse_parameters(text)}, Training).local
            else:
                name, parameters = parse_spec(text)
                recipe[field] = decode({"kind": name, **parameters}, base)
        except ConfigError as error:
            raise InvalidInput(f"{option} {text}: {error.problem}") from error
    return recipe


#: By name: made of the name of a run and the folder for its files.
_TRACKERS: Mapping[str, Callable[[str, Path], Callback]] = {
    "tensorboard": lambda name, folder: TensorBoard(folder),
    "mlflow": lambda name, folder: MLflow("turnout", run_name=name),
    "wandb": lambda name, folder: WandB("turnout", name=name),
}
Track = Annotated[
    list[str] | None, typer.Option(help=f"Also log every round to {', '.join(_TRACKERS)}.")
]


def checked_trackers(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of ``--track``.

    Args:
        names: The names as given.

    Raises:
        InvalidInput: There is no such tracker.
        MissingExtra: Its package is not installed.
    """
    for name in names or ():
        _TRACKERS[choice("--track", name, tuple(_TRACKERS))]("", Path())
    return tuple(names or ())


def callbacks_of(names: Sequence[str], folder: Path) -> Callbacks | None:
    """Return the trackers of each run of an experiment; None without any.

    Args:
        names: Names of trackers, checked.
        folder: The run folder; TensorBoard writes into it.
    """

    def of_run(label: str, seed: int) -> list[Callback]:
        name = f"{label}, seed {seed} in {folder.name}"
        events = cell_folder(folder / "tensorboard", label, seed)
        return [_TRACKERS[tracker](name, events) for tracker in names]

    return of_run if names else None
