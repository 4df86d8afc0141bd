"""One cell: a selector with a seed, run from its start or from its last checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from turnout.bounds import Bounds
from turnout.environments import Always
from turnout.experiment.facts import facts_of
from turnout.experiment.task import CellResult, CellTask, cell_config, check_config
from turnout.persist import load, save
from turnout.runs import files
from turnout.runs.at_end import backlog_rate, curves_at_end
from turnout.runs.catalogue import summarize
from turnout.runs.files import DamagedFile, FolderError
from turnout.runs.generations import drop_previous, keep_previous
from turnout.runs.reader import read_cell
from turnout.runs.run import Run
from turnout.runs.writer import CellWriter
from turnout.simulation import Progress, RoundRecord, rounds
from turnout.simulation.training import told
from turnout.storage import write_npz
from turnout.training.callbacks import Callback
from turnout.types import Array, FloatArray

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


def run_cell(
    task: CellTask, on_rounds: OnRounds | None = None, callbacks: Sequence[Callback] = ()
) -> CellResult:
    """Run a cell as far as it is not done; errors become part of the result.

    Args:
        task: What to run.
        on_rounds: Called now and then with the number of rounds done.
        callbacks: Called with the numbers of every round.
    """
    label, seed = task.variant.label, task.seed
    try:
        return _run(task, on_rounds, callbacks)
    except FolderError as error:
        return CellResult(label, seed, "damaged", message=str(error))
    except Exception as error:  # one cell must not take the others down
        _keep_traceback(task.path, error)
        return CellResult(label, seed, "failed", message=f"{type(error).__name__}: {error}")


def _keep_traceback(folder: Path, error: Exception) -> None:
    """Write an error; where that is not possible, its message must do."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        files.write_traceback(folder, error)


def _run(task: CellTask, on_rounds: OnRounds | None, callbacks: Sequence[Callback]) -> CellResult:
    config = cell_config(task)
    label, seed, path = task.variant.label, task.seed, task.path
    if (path / files.CONFIG).exists():
        check_config(task)
        if (path / files.SUMMARY).exists():
            summary = dict(read_cell(path).summary)
            return CellResult(label, seed, "skipped", summary, _broken(summary))
    path.mkdir(parents=True, exist_ok=True)
    files.write_json(path / files.CONFIG, config)
    files.write_json(path / files.VERSIONS, task.versions)
    (path / files.ERROR).unlink(missing_ok=True)
    running = _Running(task)
    try:
        start, note = running.resume()
    except KeyError as error:
        raise DamagedFile(path / files.PROGRESS, f" lacks {error}") from error
    records = running.records(start)
    clock_s = float(running.writer.rounds.columns()["length_s"].sum())
    with contextlib.closing(told(records, callbacks, config, clock_s)) as all_records:
        running.write(all_records, on_rounds)
    summary = running.finish()
    status: Literal["complete", "resumed"] = "resumed" if start else "complete"
    return CellResult(label, seed, status, summary, f"{note} {_broken(summary)}".strip())


class _Running:
    """A cell at work: the selector, its world and its federation, and who writes their rounds."""

    def __init__(self, task: CellTask) -> None:
        self._task = task
        self._selector = task.variant.make()
        self._world = task.experiment.environment(task.seed)
        self._federation = task.experiment.federation(task.seed, task.data)
        self._progress = Progress(self._world.n_clients)
        switches = task.experiment.bounds
        self._bounds = None if switches is None else Bounds(**switches)
        self._started = time.perf_counter()
        parts = [files.STATE] if self._federation is None else [files.STATE, files.MODEL]
        n_clients, quota_at = self._world.n_clients, self._selector.quota_at
        self.writer = CellWriter(task.path, n_clients, task.cohort_size, quota_at, parts)

    def resume(self) -> tuple[int, str]:
        """Go back to the last checkpoint; return its round and what there is to say about it."""
        saved, note = self.writer.resume()
        if saved is None:
            return 0, note
        path, n_clients = self._task.path, self._world.n_clients
        self._progress = Progress.from_state(n_clients, saved)
        self._selector.prepare(n_clients, self._task.seed)
        load(path / files.STATE, into=self._selector)
        if self._bounds is not None:
            self._bounds.reset(n_clients)
            state = {name: saved[f"{_BOUNDS}{name}"] for name in self._bounds.state()}
            self._bounds.load_state(state)
        if self._federation is not None:
            self._federation.load_state(files.read_arrays(path / files.MODEL))
        self._started -= float(saved["cell.seconds"])
        return self.writer.rounds.n_rounds, note

    def records(self, start: int) -> Iterator[RoundRecord]:
        """Return the rounds that are left."""
        return rounds(
            self._selector,
            self._world,
            cohort_size=self._task.cohort_size,
            n_rounds=self._task.experiment.n_rounds,
            policy=self._task.experiment.policy,
            start=start,
            progress=self._progress,
            participants=self._federation,
            bounds=self._bounds,
        )

    def write(self, records: Iterator[RoundRecord], on_rounds: OnRounds | None) -> None:
        """Run the rounds and write them on the way."""
        most = max(1, min(_FLUSH_ROUNDS, _PENDING_ENTRIES // self._world.n_clients))
        flushed = saved = time.perf_counter()
        for record in records:
            self.writer.add(record.row, record.in_time)
            now = time.perf_counter()
            is_checkpoint = self._is_checkpoint(record.round + 1, now - saved)
            is_full = self.writer.n_pending >= most
            if not (is_checkpoint or is_full) and now - flushed < _FLUSH_SECONDS:
                continue
            self.writer.flush()
            flushed = time.perf_counter()
            if is_checkpoint:
                self._checkpoint()
                saved = time.perf_counter()
            if on_rounds is not None:
                on_rounds(record.round + 1, record.measured)
        self.writer.flush()

    def finish(self) -> dict[str, Any]:
        """Write the end: all columns, the last state, and the summary last."""
        experiment, path = self._task.experiment, self._task.path
        columns = self.writer.rounds.columns()
        run = Run.from_columns(self._world.n_clients, self._task.cohort_size, columns)
        rate = backlog_rate(self._selector.guaranteed_rate())
        at_end = curves_at_end(run, rate, self.writer.regret, self._bound(run))
        classes = self._world.classes
        self._checkpoint(at_end | ({"class_of": classes} if classes.any() else {}))
        numbers = {"seconds": self._seconds(), "backlog_rate": rate}
        if self._federation is not None:
            scores = self._federation.client_scores()
            counts = self._federation.data.num_samples
            by_client = {"loss": scores.loss, "accuracy": scores.accuracy, "num_samples": counts}
            write_npz(path / files.CLIENT_SCORES, by_client)
            has_stopped = self._federation.is_done and run.n_rounds < experiment.n_rounds
            numbers["stopped_at_target"] = has_stopped
        summary = summarize(facts_of(run, at_end, numbers, self._federation))
        drop_previous(path)
        files.write_json(path / files.SUMMARY, summary)
        return files.read_json(path / files.SUMMARY)

    def _bound(self, run: Run) -> FloatArray | None:
        """Return the selector's bound on regret; bounds assume that everyone is available."""
        if not isinstance(self._world.availability, Always):
            return None
        return self._selector.regret_bound(run.n_rounds, run.cohort_size, run.n_clients)

    def _is_checkpoint(self, n_done: int, seconds: float) -> bool:
        """Return whether to save here: every so many rounds, in training also by the clock."""
        n_rounds = self._task.experiment.n_rounds
        every = max(self._task.checkpoint_every, n_rounds // _MOST_CHECKPOINTS)
        is_late = self._federation is not None and seconds >= _CHECKPOINT_SECONDS
        return (n_done % every == 0 or is_late) and n_done < n_rounds

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
    """Return what there is to say about answers that could not be used."""
    n_broken = summary.get("broken_answers", 0)
    if not n_broken:
        return ""
    answers = "1 answer was" if n_broken == 1 else f"{n_broken} answers were"
    return (
        f"{answers} not finite (loss or weights); those clients counted as failed. A smaller lr "
        "helps."
    )
