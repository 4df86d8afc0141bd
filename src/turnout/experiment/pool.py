"""Cells in this process or in a pool of processes, and how far they are."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from turnout.core.errors import in_words
from turnout.experiment.cell import CellTask, run_cell, stop_after_round
from turnout.results import files
from turnout.results.callbacks import Callback
from turnout.results.results import CellResult
from turnout.training.federation import forget_data

#: Seconds between two looks at how far the cells are.
LOOK_EVERY_S = 0.2

#: So many processes may die in a row before nothing more is tried.
MOST_DEATHS = 3
_DIED = (
    "its process ended abruptly; run again to resume. In a script, call this under "
    "if __name__ == '__main__', or use n_jobs=1."
)

#: Seconds that a worker has to end its round and save a checkpoint.
_GRACE_S = 10.0
#: Exit code of a worker that did not end by itself.
_INTERRUPTED = 130

#: Whether this worker runs a cell.
_working = threading.Event()

#: One process per cell already uses the processor: no threads inside.
SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Advance(NamedTuple):
    """The progress of an experiment.

    Attributes:
        rounds_done: Rounds played, of all cells together.
        n_rounds: Rounds to play, of all cells together.
        cells_done: Cells that are complete.
        n_cells: Cells of the experiment.
        measured: The measurements of the latest round of training; empty with several processes.
    """

    rounds_done: int
    n_rounds: int
    cells_done: int
    n_cells: int
    measured: Mapping[str, float] = MappingProxyType({})


#: Called with the progress of an experiment.
Show = Callable[[Advance], None]
#: Returns, for a label and a seed, the callbacks of its rounds.
Callbacks = Callable[[str, int], Sequence[Callback]]


def run_local(
    tasks: Sequence[CellTask], progress: Show, *, n_jobs: int, callbacks: Callbacks | None
) -> list[CellResult]:
    """Run all cells on this machine.

    Args:
        tasks: The cells.
        progress: Called with their progress.
        n_jobs: Number of processes; 1 = this one.
        callbacks: Called after every round; only with one process.
    """
    n_processes = min(n_jobs, len(tasks))
    if n_processes <= 1:
        return _run_here(tasks, progress, callbacks)
    forget_data()  # each process loads its own
    watch = Watch(tasks, progress)
    with _single_threaded_children():
        _run_pool(watch, tasks, n_processes)
        # If a process died, find out which cell killed it, one by one.
        for n_died, task in enumerate(watch.missing()):
            if n_died < MOST_DEATHS or watch.has_finished:
                _run_pool(watch, [task], 1)
            if task.path not in watch.done:
                watch.fail(task, _DIED)
    return watch.results


def _run_here(
    tasks: Sequence[CellTask], progress: Show, callbacks: Callbacks | None
) -> list[CellResult]:
    """Run all cells in this process, one after the other."""
    n_rounds = tasks[0].experiment.n_rounds if tasks else 0
    results: list[CellResult] = []

    def advance(done: int, measured: Mapping[str, float]) -> None:
        total = len(results) * n_rounds + done
        progress(Advance(total, len(tasks) * n_rounds, len(results), len(tasks), measured))

    for task in tasks:
        own = () if callbacks is None else callbacks(task.variant.label, task.seed)
        results.append(run_cell(task, advance, own))
        advance(0, {})
    return results


class Watch:
    """Collects the results of cells, and reports the progress of the others from their logs.

    Args:
        tasks: All cells.
        progress: Called with their progress.

    Attributes:
        done: The results so far, by the folder of the cell.
    """

    def __init__(self, tasks: Sequence[CellTask], progress: Show) -> None:
        self.done: dict[Path, CellResult] = {}
        self._tasks = tasks
        self._progress = progress
        self._logged: dict[Path, tuple[int, int]] = {}  # bytes and lines seen of each log

    @property
    def has_finished(self) -> bool:
        """Whether any cell has come to its end."""
        return any(result.summary is not None for result in self.done.values())

    @property
    def results(self) -> list[CellResult]:
        """The results of all cells, in order."""
        return [self.done[task.path] for task in self._tasks]

    def missing(self) -> list[CellTask]:
        """Return the cells without a result."""
        return [task for task in self._tasks if task.path not in self.done]

    def fail(self, task: CellTask, message: str) -> None:
        """Give up a cell.

        Args:
            task: The cell.
            message: Why, and what to do about it.
        """
        result = CellResult(task.path, task.variant.label, task.seed, "failed", message=message)
        self.done[task.path] = result

    def show(self) -> None:
        """Report the progress of the cells."""
        n_rounds, n_cells = self._tasks[0].experiment.n_rounds, len(self._tasks)
        running = sum(min(self._rounds(task.path), n_rounds) for task in self.missing())
        total = len(self.done) * n_rounds + running
        self._progress(Advance(total, n_cells * n_rounds, len(self.done), n_cells))

    def _rounds(self, cell: Path) -> int:
        """Return the number of rounds in a cell's log, reading only what is new."""
        offset, count = self._logged.get(cell, (0, 0))
        with contextlib.suppress(OSError), (cell / files.ROUNDS).open("rb") as log:
            log.seek(offset)
            new = log.read()
            self._logged[cell] = (offset + len(new), count + new.count(b"\n"))
        return self._logged.get(cell, (0, 0))[1]


def _run_pool(watch: Watch, tasks: Sequence[CellTask], n_processes: int) -> None:
    """Run some cells; those whose process dies stay missing."""
    context = get_context("spawn")
    stopping = context.Event()
    begin = stopping, warnings.formatwarning is in_words
    pool = ProcessPoolExecutor(n_processes, context, _begin, begin)
    try:
        futures = {pool.submit(_run_or_end, task): task for task in tasks}
        waiting: set[Future[CellResult]] = set(futures)
        while waiting:
            finished, waiting = wait(waiting, LOOK_EVERY_S, FIRST_COMPLETED)
            for future in finished:
                with contextlib.suppress(BrokenProcessPool):
                    watch.done[futures[future].path] = future.result()
            watch.show()
    except BrokenProcessPool:  # raised by submit when a process died at once
        pass
    except BaseException:
        stopping.set()  # the workers save a checkpoint and end
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_or_end(task: CellTask) -> CellResult:
    """Run a cell, and end the process of a worker that was stopped, once its checkpoint is saved.

    Args:
        task: The cell.
    """
    _working.set()
    try:
        return run_cell(task)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    finally:
        _working.clear()


@contextlib.contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Set what numerical libraries read when a child process starts; leave it as it was after."""
    before = {name: os.environ[name] for name in SINGLE_THREADED if name in os.environ}
    os.environ.update(dict.fromkeys(SINGLE_THREADED, "1"))
    try:
        yield
    finally:
        for name in SINGLE_THREADED:
            os.environ.pop(name, None)
        os.environ.update(before)


def _begin(stopping: Event, is_in_words: bool) -> None:
    """Let a worker end with its parent, and show warnings as the parent does."""
    if is_in_words:
        warnings.formatwarning = in_words
    _end_with_parent(stopping)


def _end_with_parent(stopping: Event) -> None:
    """Stop the cell of a worker when the parent says so; end at once when the parent has died.

    Another process may have taken over the folder of a dead parent, so the worker must not write.
    Ctrl-C reaches the workers too, but the parent decides. A worker that gets SIGTERM saves a
    checkpoint and ends; if the parent has got none, it starts the cell again.

    Args:
        stopping: Set by the parent when cells are to save a checkpoint and stop.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(_INTERRUPTED)

    def stop() -> None:
        stopping.wait()
        save()

    def save() -> None:
        stop_after_round()
        time.sleep(_GRACE_S)  # by then the pool has ended this process, unless a round is long
        os._exit(_INTERRUPTED)

    def on_term(*_: object) -> None:
        if not _working.is_set():
            os._exit(_INTERRUPTED)
        start(save)

    def start(work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="turnout-lifeline", daemon=True).start()

    signal.signal(signal.SIGTERM, on_term)
    start(follow)
    start(stop)
