"""Run an experiment: all cells of the grid, in parallel processes, resumable."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from turnout import require
from turnout.environments import Environment
from turnout.errors import InvalidInput
from turnout.experiment import folder as files
from turnout.experiment.cell import CellResult, CellTask, cell_folder, run_cell
from turnout.experiment.config import Experiment
from turnout.experiment.folder import FolderError
from turnout.experiment.running import CHECKPOINT_EVERY
from turnout.experiment.variants import Variant
from turnout.selector import Selector
from turnout.simulate import rounds
from turnout.statistics import Estimate, estimate, paired_difference
from turnout.training import Training
from turnout.training.federation import forget_data

__all__ = ["Advance", "Grid", "open_folder", "run_experiment"]

#: Seconds between two looks at how far the cells are.
_LOOK_EVERY_S = 0.2

#: When nothing at all could be run, give up after so many processes died.
_MOST_DEATHS = 3
_DIED = (
    "its process ended abruptly; run again to go on. In a script, call this under "
    "if __name__ == '__main__', or use n_jobs=1."
)

#: One process per cell already uses the processor: no threads inside.
_SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Advance(NamedTuple):
    """How far an experiment is."""

    rounds_done: int
    n_rounds: int
    cells_done: int
    n_cells: int
    #: What training came to in the latest round; empty with several processes.
    measured: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Grid:
    """All cells of an experiment, in the order of selectors and seeds."""

    experiment: Experiment
    folder: Path
    cells: tuple[CellResult, ...]

    @property
    def problems(self) -> tuple[CellResult, ...]:
        """Cells without a result."""
        return tuple(cell for cell in self.cells if cell.summary is None)

    @property
    def remarks(self) -> tuple[CellResult, ...]:
        """Cells with a result about which there is something to say."""
        return tuple(cell for cell in self.cells if cell.summary is not None and cell.message)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the selectors that were run, in order."""
        return tuple(dict.fromkeys(cell.label for cell in self.cells))

    def values(self, label: str, metric: str) -> list[float]:
        """Return a metric of one selector for each seed; NaN where there is none."""
        found = {cell.seed: cell.summary for cell in self.cells if cell.label == label}
        return [_number(found.get(seed), metric) for seed in self.experiment.seed_numbers]

    def estimate(self, label: str, metric: str) -> Estimate:
        """Return the mean over seeds, with its 95 % interval."""
        return estimate(self.values(label, metric))

    def difference(self, label: str, baseline: str, metric: str) -> Estimate:
        """Return the paired difference between two selectors over the same seeds."""
        return paired_difference(self.values(label, metric), self.values(baseline, metric))


def run_experiment(
    experiment: Experiment,
    folder: str | os.PathLike[str],
    *,
    n_jobs: int | None = None,
    progress: Callable[[Advance], None] | None = None,
    labels: Collection[str] | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
) -> Grid:
    """Run every cell that is not complete yet, and return all of them.

    Complete cells are skipped, interrupted ones go on from their last checkpoint and end as if they
    had not been interrupted. ``labels`` runs some of the selectors only. ``n_jobs`` is the number
    of processes (default: one per processor); 1 runs everything in this one.
    """
    variants = _chosen(experiment, labels)
    _check_that_it_runs(experiment, variants)
    every = require.integer("checkpoint_every", checkpoint_every, minimum=1)
    root = open_folder(experiment, folder)
    versions = files.versions(*([] if experiment.training is None else ["torch"]))
    tasks = [
        CellTask(experiment, one, seed, cell_folder(root, one.label, seed), versions, every)
        for seed in experiment.seed_numbers  # cells of one seed share their data
        for one in variants
    ]
    jobs = require.integer("n_jobs", n_jobs or os.cpu_count() or 1, minimum=1)
    run = _inline if min(jobs, len(tasks)) <= 1 else _in_processes
    done = {(cell.label, cell.seed): cell for cell in run(tasks, jobs, progress or _unseen)}
    in_order = [(one.label, seed) for one in variants for seed in experiment.seed_numbers]
    return Grid(experiment, root, tuple(done[key] for key in in_order))


def _chosen(experiment: Experiment, labels: Collection[str] | None) -> list[Variant]:
    known = experiment.labels
    for label in labels or ():
        if label not in known:
            raise InvalidInput(f"labels must be among {', '.join(known)}; got {label!r}.")
    return [one for one in experiment.variants if labels is None or one.label in labels]


def _check_that_it_runs(experiment: Experiment, variants: Sequence[Variant]) -> None:
    """Report a missing column, missing data or a model that does not fit before anything runs."""
    first = experiment.seed_numbers[0]
    world = experiment.environment(first)
    world.context(0, experiment.cohort_size, columns=world.columns)
    world.fate(0)
    federation = experiment.federation(first)
    for variant in variants:
        size = variant.cohort_size or experiment.cohort_size
        given: dict[str, Any] = {"cohort_size": size, "participants": federation}
        rounds(variant.make(), world, **given, n_rounds=0)
        if federation is not None:
            _check_weights(variant.make(), world, size, federation.training)


def _check_weights(
    selector: Selector, world: Environment, cohort_size: int, training: Training
) -> None:
    """Raise if the aggregation wants probabilities that the selector does not report."""
    record = next(rounds(selector, world, cohort_size=cohort_size, n_rounds=1))
    if record.selection.probability is None:
        training.aggregation.coefficients(np.ones(1, dtype=np.int64), None, 1)


def open_folder(experiment: Experiment, folder: str | os.PathLike[str]) -> Path:
    """Create the folder of an experiment, or check that it belongs to this one."""
    root = Path(folder)
    resolved = experiment.table()
    file = root / files.EXPERIMENT
    if file.exists():
        difference = files.first_difference(files.read_json(file), resolved)
        if difference is not None:
            raise FolderError(
                f"{root} belongs to another experiment: {difference}. Choose another folder."
            )
        return root
    try:
        root.mkdir(parents=True, exist_ok=True)
        files.write_json(file, resolved)
    except OSError as error:
        raise FolderError(f"{root} cannot be written: {error}.") from error
    return root


def _inline(
    tasks: Sequence[CellTask], jobs: int, progress: Callable[[Advance], None]
) -> list[CellResult]:
    n_rounds = tasks[0].experiment.n_rounds if tasks else 0
    results: list[CellResult] = []
    for task in tasks:
        before = len(results)

        def advance(done: int, measured: Mapping[str, float], before: int = before) -> None:
            total = before * n_rounds + done
            progress(Advance(total, len(tasks) * n_rounds, before, len(tasks), measured))

        results.append(run_cell(task, advance))
        advance(0, {}, len(results))
    return results


def _in_processes(
    tasks: Sequence[CellTask], jobs: int, progress: Callable[[Advance], None]
) -> list[CellResult]:
    """Run all cells in a pool; if a process dies, find out which cell killed it, one by one."""
    forget_data()  # each process loads its own
    watch = _Watch(tasks, progress)
    with _single_threaded_children():
        watch.run(tasks, min(jobs, len(tasks)))
        for n_died, task in enumerate(watch.missing()):
            if n_died < _MOST_DEATHS or watch.has_finished:
                watch.run([task], 1)
            if task.path not in watch.done:
                label, seed = task.variant.label, task.seed
                watch.done[task.path] = CellResult(label, seed, "failed", message=_DIED)
    return [watch.done[task.path] for task in tasks]


class _Watch:
    """Runs cells in pools of processes and tells how far they are, by the rounds they log."""

    def __init__(self, tasks: Sequence[CellTask], progress: Callable[[Advance], None]) -> None:
        self.done: dict[Path, CellResult] = {}
        self._tasks = tasks
        self._progress = progress
        self._logged: dict[Path, tuple[int, int]] = {}  # bytes and lines seen of each log

    def run(self, tasks: Sequence[CellTask], n_processes: int) -> None:
        """Run some cells; those whose process dies stay missing."""
        pool = ProcessPoolExecutor(
            n_processes, mp_context=get_context("spawn"), initializer=_quiet_interrupts
        )
        try:
            futures = {pool.submit(run_cell, task): task for task in tasks}
            waiting: set[Future[CellResult]] = set(futures)
            while waiting:
                finished, waiting = wait(waiting, _LOOK_EVERY_S, FIRST_COMPLETED)
                for future in finished:
                    with contextlib.suppress(BrokenProcessPool):
                        self.done[futures[future].path] = future.result()
                self._show()
        except BrokenProcessPool:  # raised by submit when a process died at once
            pass
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    @property
    def has_finished(self) -> bool:
        """Whether any cell has come to its end."""
        return any(result.summary is not None for result in self.done.values())

    def missing(self) -> list[CellTask]:
        """Return the cells without a result."""
        return [task for task in self._tasks if task.path not in self.done]

    def _show(self) -> None:
        n_rounds = self._tasks[0].experiment.n_rounds
        running = sum(min(self._rounds(task.path), n_rounds) for task in self.missing())
        total = len(self.done) * n_rounds + running
        n_cells = len(self._tasks)
        self._progress(Advance(total, n_cells * n_rounds, len(self.done), n_cells))

    def _rounds(self, cell: Path) -> int:
        """Return the number of rounds in a cell's log, reading only what is new."""
        offset, count = self._logged.get(cell, (0, 0))
        with contextlib.suppress(OSError), (cell / files.ROUNDS).open("rb") as log:
            log.seek(offset)
            new = log.read()
            self._logged[cell] = (offset + len(new), count + new.count(b"\n"))
        return self._logged.get(cell, (0, 0))[1]


@contextlib.contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Set what numerical libraries read when a child process starts; leave it as it was after."""
    before = {name: os.environ.get(name) for name in _SINGLE_THREADED}
    os.environ.update(dict.fromkeys(_SINGLE_THREADED, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _quiet_interrupts() -> None:
    """Let an interrupted worker end at once: its cell goes on from the last checkpoint."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def _unseen(advance: Advance) -> None:
    """Show nothing."""


def _number(summary: dict[str, Any] | None, metric: str) -> float:
    value = None if summary is None else summary.get(metric)
    return float("nan") if value is None else float(value)
