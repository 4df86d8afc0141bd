"""Run an experiment: all cells of the grid, in parallel processes, resumable."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from turnout import require
from turnout.errors import TurnoutError
from turnout.experiment import folder as files
from turnout.experiment.cell import (
    CHECKPOINT_EVERY,
    CellResult,
    CellTask,
    cell_folder,
    run_cell,
)
from turnout.experiment.config import Experiment
from turnout.experiment.folder import FolderError
from turnout.experiment.statistics import Estimate, estimate, paired_difference
from turnout.simulate import rounds

__all__ = ["Advance", "Grid", "open_folder", "run_experiment"]

#: Seconds between two looks at how far the cells are.
_LOOK_EVERY_S = 0.2

#: One process per cell already uses the processor: no threads inside.
_SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Advance(NamedTuple):
    """How far an experiment is."""

    rounds_done: int
    n_rounds: int
    cells_done: int
    n_cells: int


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
    wanted = None if labels is None else set(labels)
    variants = [v for v in experiment.variants if wanted is None or v.label in wanted]
    for variant in variants:  # a selector that cannot run here is reported before anything runs
        size = variant.cohort_size or experiment.cohort_size
        rounds(variant.make(), experiment.environment(0), cohort_size=size, n_rounds=0)
    root = open_folder(experiment, folder)
    versions = files.versions()
    tasks = [
        CellTask(
            experiment,
            variant,
            seed,
            cell_folder(root, variant.label, seed),
            versions,
            require.integer("checkpoint_every", checkpoint_every, minimum=1),
        )
        for variant in variants
        for seed in experiment.seed_numbers
    ]
    jobs = require.integer("n_jobs", n_jobs or os.cpu_count() or 1, minimum=1)
    run = _inline if min(jobs, len(tasks)) <= 1 else _in_processes
    return Grid(experiment, root, tuple(run(tasks, jobs, progress or _unseen)))


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

        def advance(done: int, before: int = before) -> None:
            total = before * n_rounds + done
            progress(Advance(total, len(tasks) * n_rounds, before, len(tasks)))

        results.append(run_cell(task, advance))
        advance(0, len(results))
    return results


def _in_processes(
    tasks: Sequence[CellTask], jobs: int, progress: Callable[[Advance], None]
) -> list[CellResult]:
    n_rounds = tasks[0].experiment.n_rounds
    watch = _Watch(n_rounds)
    with _single_threaded_children():
        pool = ProcessPoolExecutor(
            min(jobs, len(tasks)), mp_context=get_context("spawn"), initializer=_quiet_interrupts
        )
        try:
            futures = {pool.submit(run_cell, task): task for task in tasks}
            open_cells: set[Future[CellResult]] = set(futures)
            while open_cells:
                open_cells = wait(open_cells, _LOOK_EVERY_S, FIRST_COMPLETED).not_done
                n_done = len(tasks) - len(open_cells)
                running = sum(watch.rounds(futures[cell].path) for cell in open_cells)
                total = n_done * n_rounds + running
                progress(Advance(total, len(tasks) * n_rounds, n_done, len(tasks)))
            return [_result(future, task) for future, task in futures.items()]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _result(future: Future[CellResult], task: CellTask) -> CellResult:
    try:
        return future.result()
    except BrokenProcessPool:
        message = (
            "its process ended abruptly; run again to go on. In a script, call this under "
            "if __name__ == '__main__', or use n_jobs=1."
        )
    except TurnoutError as error:
        message = str(error)
    return CellResult(task.variant.label, task.seed, "failed", message=message)


class _Watch:
    """Counts the rounds that running cells have logged, reading only what is new."""

    def __init__(self, n_rounds: int) -> None:
        self._n_rounds = n_rounds
        self._seen: dict[Path, tuple[int, int]] = {}

    def rounds(self, cell: Path) -> int:
        """Return the number of rounds in a cell's log."""
        offset, count = self._seen.get(cell, (0, 0))
        with contextlib.suppress(OSError), (cell / files.ROUNDS).open("rb") as log:
            log.seek(offset)
            new = log.read()
            offset, count = offset + len(new), count + new.count(b"\n")
            self._seen[cell] = (offset, count)
        return min(count, self._n_rounds)


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
