"""One cell: a selector with a seed, run from its start or from its last checkpoint."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from turnout.core.bounds import Bounds
from turnout.core.files import write_npz
from turnout.core.persist import load, save
from turnout.core.plain import finite
from turnout.core.types import Array
from turnout.data import FederatedData
from turnout.experiment.codec import encode
from turnout.experiment.config import Experiment, class_names
from turnout.experiment.loop import Played, Progress, RoundRecord, played, with_callbacks
from turnout.experiment.variants import Variant
from turnout.results import files
from turnout.results.callbacks import Callback
from turnout.results.catalogue import summarize
from turnout.results.files import DamagedFile, FolderError, drop_previous, keep_previous
from turnout.results.metric import Facts, Need
from turnout.results.reader import read_cell
from turnout.results.results import CellResult
from turnout.results.run import RoundRow, Run
from turnout.results.settings import first_difference
from turnout.results.writer import CellWriter, backlog_rate, curves_at_end
from turnout.worlds import Always

#: Rounds between two checkpoints, unless that would make too many.
CHECKPOINT_EVERY = 200


@dataclass(frozen=True)
class CellTask:
    """What a process needs to run a cell.

    Attributes:
        experiment: The experiment of the cell.
        variant: The selector.
        seed: The seed of the world, the data and the draws.
        path: The folder of the cell.
        versions: The versions that run it, for ``versions.json``.
        checkpoint_every: Rounds between two checkpoints.
        data: The divided data of the seed; None = the process loads it.
    """

    experiment: Experiment
    variant: Variant
    seed: int
    path: Path
    versions: dict[str, Any]
    checkpoint_every: int = CHECKPOINT_EVERY
    data: FederatedData | None = None

    @property
    def cohort_size(self) -> int:
        """Answers wanted per round: the selector's own cohort size, or the experiment's."""
        size = self.variant.cohort_size or self.experiment.cohort_size
        schedule = self.experiment.schedule
        return size if schedule is None else schedule.answers(size) or size


def cell_config(task: CellTask) -> dict[str, Any]:
    """Return everything that makes a cell, as plain data.

    Args:
        task: The cell.
    """
    experiment, variant = task.experiment, task.variant
    table = experiment.table()
    parts = ("training", "bounds", "schedule", "keep")
    optional = {name: table[name] for name in table if name in parts}
    return {
        "format": files.FORMAT,
        "kind": "training" if "training" in optional else "simulation",
        "experiment": experiment.name,
        "label": variant.label,
        "selector": variant.name,
        "parameters": encode(variant.make().parameters),
        "seed": task.seed,
        "n_clients": experiment.n_clients,
        "cohort_size": task.cohort_size,
        "n_rounds": experiment.n_rounds,
        "world": table["world"],
        "world_id": experiment.world_id,
        "policy": table["policy"],
        "classes": class_names(experiment.environment(task.seed)),
        **optional,
    }


def check_config(task: CellTask) -> None:
    """Refuse the folder of a cell that holds another run.

    Args:
        task: The cell that is wanted; its folder holds a ``config.json``.

    Raises:
        FolderError: The settings of the run differ from those that are wanted.
    """
    difference = config_difference(files.read_json(task.path / files.CONFIG), task)
    if difference is not None:
        advice = "use another folder (--out), or run all again (--fresh)"
        raise FolderError(f"{task.path} holds another run: {difference}; {advice}.")


def config_difference(saved: Mapping[str, Any], task: CellTask) -> str | None:
    """Return where the settings of a saved cell differ from those that are wanted, or None.

    A parameter that the saved cell lacks is younger than the cell, which so ran with its default.

    Args:
        saved: The ``config.json`` of the cell.
        task: The cell that is wanted.
    """
    then = saved.get("parameters")
    if isinstance(then, Mapping):
        then = {**encode(task.variant.make().default_parameters()), **then}
    return first_difference({**saved, "parameters": then}, cell_config(task))


#: Called with the number of rounds done and what was measured in the last of them.
OnRounds = Callable[[int, Mapping[str, float]], None]

#: No cell has more checkpoints.
_MOST_CHECKPOINTS = 20
#: Training is saved at least this often, in seconds.
_CHECKPOINT_SECONDS = 15.0

#: How the names of the bounds' state begin in a checkpoint.
_BOUNDS = "bounds."

#: Lines are written every so many rounds, or sooner after so many seconds.
_FLUSH_ROUNDS, _FLUSH_SECONDS = 50, 0.5
#: The fates of at most so many clients x rounds wait to be written.
_PENDING_ENTRIES = 2_000_000


#: Whether every cell of this process is to stop after its round.
_stop = threading.Event()


def stop_after_round() -> None:
    """Let the cells of this process save a checkpoint after their round, and stop."""
    _stop.set()


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived. It ends runs as Ctrl-C does, which lets them save a checkpoint."""


def _terminate(*_: Any) -> None:
    raise Terminated


#: What ends a run by itself, unless the program has a handler of its own.
_ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise ``Terminated``, unless the program has a handler of its own."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM stop a cell after its round, with a checkpoint.

    The second is at once. An interrupt inside of a round would leave a selector that has observed
    half of it.
    """
    if _stop.is_set():
        raise KeyboardInterrupt
    is_main = threading.current_thread() is threading.main_thread()
    plain = (signal.default_int_handler, _terminate)
    before = {number: signal.getsignal(number) for number in _ENDS if is_main}
    handled = [number for number in before if before[number] in plain]
    received: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        received.append(number)
        if _stop.is_set():
            raise _ENDS[signal.Signals(number)]
        _stop.set()

    for number in handled:
        signal.signal(number, on_signal)
    try:
        yield
    except KeyboardInterrupt:
        if not received:
            raise
    finally:
        for number in handled:
            signal.signal(number, before[number])
        if handled:
            _stop.clear()
    if received:  # also if it came in the last round, or later: the cell is complete
        raise _ENDS[signal.Signals(received[0])]


def run_cell(
    task: CellTask, on_rounds: OnRounds | None = None, callbacks: Sequence[Callback] = ()
) -> CellResult:
    """Run what is left of a cell; errors become part of the result.

    Args:
        task: The cell.
        on_rounds: Called now and then with the number of rounds done.
        callbacks: Called with the numbers of every round.
    """
    ended = functools.partial(CellResult, task.path, task.variant.label, task.seed)
    try:
        return _run(task, on_rounds, callbacks, ended)
    except FolderError as error:
        return ended("damaged", message=str(error))
    except Exception as error:  # one cell must not take the others down
        with contextlib.suppress(OSError):  # where nothing can be written, the message must do
            task.path.mkdir(parents=True, exist_ok=True)
            files.write_traceback(task.path, error)
        return ended("failed", message=f"{type(error).__name__}: {error}")


def _run(
    task: CellTask,
    on_rounds: OnRounds | None,
    callbacks: Sequence[Callback],
    ended: Callable[..., CellResult],
) -> CellResult:
    config, path = cell_config(task), task.path
    if (path / files.CONFIG).exists():
        check_config(task)
        if (path / files.SUMMARY).exists():
            summary = dict(read_cell(path).summary)
            return ended("skipped", summary, _broken(summary))
    path.mkdir(parents=True, exist_ok=True)
    files.write_json(path / files.CONFIG, config)
    files.write_json(path / files.VERSIONS, task.versions)
    (path / files.ERROR).unlink(missing_ok=True)
    running = _Running(task)
    try:
        start, note = running.resume()
    except KeyError as error:
        raise DamagedFile(path / files.PROGRESS, f" lacks {error}") from error
    clock_s = float(running.writer.rounds.columns()["length_s"].sum())
    followed = with_callbacks(running.records(start), callbacks, config, clock_s)
    with _stoppable():
        with contextlib.closing(followed) as records:
            running.write(records, on_rounds)
        summary = running.finish()
    status = "resumed" if start else "complete"
    return ended(status, summary, f"{note} {_broken(summary)}".strip())


class _Running:
    """A running cell: the selector, its world, its federation and the writer of its rounds."""

    def __init__(self, task: CellTask) -> None:
        self._task = task
        self._selector = task.variant.make()
        self._world = task.experiment.environment(task.seed)
        self._federation = task.experiment.federation(task.seed, task.data)
        self._n_clients = task.experiment.n_clients
        self._progress = Progress(self._n_clients)
        switches = task.experiment.bounds
        self._bounds = None if switches is None else Bounds(**switches)
        self._started = time.perf_counter()
        parts = [files.STATE] if self._federation is None else [files.STATE, files.MODEL]
        sizes = (self._n_clients, task.cohort_size)
        self.writer = CellWriter(task.path, *sizes, self._selector.quota_at, parts)

    def resume(self) -> tuple[int, str]:
        """Go back to the last checkpoint; return its round and a note about it."""
        saved, note = self.writer.resume()
        if saved is None:
            return 0, note
        path = self._task.path
        self._progress = Progress.from_state(self._n_clients, saved)
        self._selector.prepare(self._n_clients, self._task.seed)
        load(path / files.STATE, into=self._selector)
        if self._bounds is not None:
            self._bounds.reset(self._n_clients)
            names = self._bounds.state()
            self._bounds.load_state({name: saved[f"{_BOUNDS}{name}"] for name in names})
        if self._federation is not None:
            self._federation.load_state(files.read_arrays(path / files.MODEL))
        self._started -= float(saved["cell.seconds"])
        return self.writer.rounds.n_rounds, note

    def records(self, start: int) -> Iterator[Played]:
        """Return the rounds that are left."""
        return played(
            self._selector,
            self._world,
            schedule=self._task.experiment.schedule,
            cohort_size=self._task.cohort_size,
            n_rounds=self._task.experiment.n_rounds,
            policy=self._task.experiment.policy,
            start=start,
            progress=self._progress,
            participants=self._federation,
            bounds=self._bounds,
        )

    def write(self, records: Iterator[Played], on_rounds: OnRounds | None) -> None:
        """Run the rounds and write them on the way."""
        n_rounds = self._task.experiment.n_rounds
        every = max(self._task.checkpoint_every, n_rounds // _MOST_CHECKPOINTS)
        most = max(1, min(_FLUSH_ROUNDS, _PENDING_ENTRIES // self._n_clients))
        flushed = saved = time.perf_counter()
        for record in records:
            self.writer.add(self._row(record), record.in_time)
            now, n_done = time.perf_counter(), record.round + 1
            has_to_stop = _stop.is_set() and n_done < n_rounds
            # Every so many rounds; in training also by the clock.
            is_late = self._federation is not None and now - saved >= _CHECKPOINT_SECONDS
            is_due = (n_done % every == 0 or is_late) and n_done < n_rounds
            is_checkpoint = has_to_stop or is_due
            is_full = self.writer.n_pending >= most
            if not (is_checkpoint or is_full) and now - flushed < _FLUSH_SECONDS:
                continue
            self.writer.flush()
            flushed = time.perf_counter()
            if is_checkpoint:
                self._checkpoint()
                saved = time.perf_counter()
            if on_rounds is not None:
                on_rounds(n_done, record.measured)
            if has_to_stop:
                raise KeyboardInterrupt
        self.writer.flush()

    def _row(self, record: Played) -> RoundRow:
        """Return what is kept of a round, with the reports that the experiment keeps."""
        row, sizes = record.row, self._selector.metric_sizes
        if not isinstance(record, RoundRecord):  # rounds overlap
            return row
        wanted = self._selector.needs_metrics.intersection(self._task.experiment.keep or ())
        kept = {name: record.outcome.metric(name, sizes.get(name)) for name in wanted}
        return row._replace(reported={**row.reported, **kept}) if kept else row

    def finish(self) -> dict[str, Any]:
        """Write the end: all columns, the last state, and the summary last."""
        path, federation = self._task.path, self._federation
        columns = self.writer.rounds.columns()
        run = Run.from_columns(self._n_clients, self._task.cohort_size, columns)
        rate, bound = backlog_rate(self._selector.guaranteed_rate()), None
        is_alike = isinstance(self._world.availability, Always) and not run.overlaps
        if is_alike:  # which the bound on regret assumes
            bound = self._selector.regret_bound(run.n_rounds, run.cohort_size, run.n_clients)
        at_end = curves_at_end(run, rate, self.writer.regret, bound)
        classes = self._world.classes
        self._checkpoint(at_end | ({"class_of": classes} if classes.any() else {}))
        numbers = {"seconds": self._seconds(), "backlog_rate": rate}
        schedule, has = self._task.experiment.schedule, set[Need]()
        if schedule is not None:
            has.add("overlap")
            bounded = not math.isnan(schedule.period)
            numbers["places"] = schedule.places(run.cohort_size, 0) if bounded else math.nan
        trained: dict[str, Any] = {}
        if federation is not None:
            scores, counts = federation.client_scores(), federation.data.num_samples
            by_client = {"loss": scores.loss, "accuracy": scores.accuracy, "num_samples": counts}
            write_npz(path / files.CLIENT_SCORES, by_client)
            is_short = run.n_rounds < self._task.experiment.n_rounds
            numbers["stopped_at_target"] = federation.is_done and is_short
            numbers |= {"rounds_run": run.n_rounds, "broken_answers": federation.n_broken}
            has.add("training")
            if federation.data.has_holdout:
                has.add("hold-out")
            trained = {"targets": federation.training.target_accuracy}
        facts = Facts.of_run(run, at_end, numbers, **trained, has=frozenset(has))
        summary = finite(summarize(facts))
        drop_previous(path)
        files.write_json(path / files.SUMMARY, summary)
        return dict(summary)

    def _checkpoint(self, more: Mapping[str, Array] = MappingProxyType({})) -> None:
        keep_previous(self._task.path)
        save(self._selector, self._task.path / files.STATE)
        if self._federation is not None:
            write_npz(self._task.path / files.MODEL, self._federation.state())
        state = self._progress.state() | {"cell.seconds": np.array(self._seconds())}
        if self._bounds is not None:
            state |= {f"{_BOUNDS}{name}": part for name, part in self._bounds.state().items()}
        self.writer.checkpoint(state, more)

    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def _broken(summary: Mapping[str, Any]) -> str:
    """Return a note about answers that could not be used; empty without any."""
    n_broken = summary.get("broken_answers", 0)
    answers = "1 answer was" if n_broken == 1 else f"{n_broken} answers were"
    advice = "those clients counted as failed. A smaller lr helps."
    return f"{answers} not finite (loss or weights); {advice}" if n_broken else ""
