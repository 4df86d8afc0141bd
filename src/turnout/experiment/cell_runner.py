"""A cell at work: rounds, log, checkpoints, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from turnout.experiment.config import Experiment
from turnout.experiment.recorder import Recorder
from turnout.experiment.summary import curves, regret_bound, summarize, summarize_training
from turnout.experiment.variants import Variant
from turnout.persist import load, save
from turnout.runs import files
from turnout.runs.files import FolderError
from turnout.simulate import Progress, RoundRecord, rounds
from turnout.simulate.training import told
from turnout.storage import write_npz
from turnout.training import Federation
from turnout.training.callbacks import Callback

__all__ = ["CHECKPOINT_EVERY", "OnRounds", "Running"]

#: Called with the number of rounds done and what was measured in the last of them.
OnRounds = Callable[[int, Mapping[str, float]], None]

#: Rounds between two checkpoints, unless that would make more than ``_MOST_CHECKPOINTS``.
CHECKPOINT_EVERY = 200
_MOST_CHECKPOINTS = 20
#: Training is saved at least this often, in seconds.
_CHECKPOINT_SECONDS = 15.0

#: Lines are written every so many rounds, or sooner after so many seconds.
_FLUSH_ROUNDS, _FLUSH_SECONDS = 50, 0.5
#: A batch holds the fates of at most so many clients x rounds.
_BATCH_ENTRIES = 2_000_000


class Running:
    """A cell at work."""

    def __init__(
        self,
        experiment: Experiment,
        variant: Variant,
        seed: int,
        path: Path,
        cohort_size: int,
        checkpoint_every: int,
    ) -> None:
        self.experiment = experiment
        self.seed = seed
        self.path = path
        self.cohort_size = cohort_size
        self.selector = variant.make()
        self.world = experiment.environment(seed)
        self.federation = experiment.federation(seed)
        self.recorder = Recorder(self.selector, self.world.n_clients, cohort_size)
        self.progress = Progress(self.world.n_clients)
        self.log = path / files.ROUNDS
        self.seconds_before = 0.0
        self.started = time.perf_counter()
        self._every = max(checkpoint_every, experiment.n_rounds // _MOST_CHECKPOINTS)

    def restore(self) -> tuple[int, str]:
        """Go back to the last checkpoint; return its round and what there is to say about it."""
        path = self.path / files.PROGRESS
        if not path.exists():
            self.log.write_bytes(b"")
            return 0, ""
        saved = files.read_arrays(path)
        try:
            if not self._is_whole(saved):
                self.log.write_bytes(b"")
                return 0, "its checkpoint was torn, so it was started again."
            self._load(saved)
        except KeyError as error:
            raise FolderError(f"{path} lacks {error}; delete {self.path}.") from error
        return int(saved["cell.round"]), ""

    def go(
        self,
        start: int,
        on_rounds: OnRounds | None,
        callbacks: Sequence[Callback] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Run the remaining rounds, writing on the way; callbacks are told of each."""
        most = max(1, min(_FLUSH_ROUNDS, _BATCH_ENTRIES // self.world.n_clients))
        clock = self._clock() if start else 0.0
        records = told(self._records(start), callbacks, settings, clock)
        recorder, saved = self.recorder, time.perf_counter()
        flushed = saved
        with self.log.open("ab") as log, closing(records):
            for record in records:
                recorder.add(record)
                done, now = record.round + 1, time.perf_counter()
                is_checkpoint = self._is_checkpoint(done, now - saved)
                is_due = recorder.n_pending >= most or is_checkpoint
                if not is_due and now - flushed < _FLUSH_SECONDS:
                    continue
                self._flush(log)
                flushed = time.perf_counter()
                if is_checkpoint:
                    self._checkpoint(done)
                    saved = time.perf_counter()
                if on_rounds is not None:
                    on_rounds(done, record.measured)
            self._flush(log)

    def _records(self, start: int) -> Iterator[RoundRecord]:
        return rounds(
            self.selector,
            self.world,
            cohort_size=self.cohort_size,
            n_rounds=self.experiment.n_rounds,
            policy=self.experiment.round_policy(),
            start=start,
            progress=self.progress,
            participants=self.federation,
        )

    def finish(self) -> dict[str, Any]:
        """Write the end: all columns, the last state, and the summary last."""
        run, columns = self.recorder.run(), self.recorder.columns()
        made = curves(run, columns["regret"], regret_bound(self.selector, run, self.world))
        classes = self.world.classes
        if classes.any():
            made["class_of"] = classes
        self._checkpoint(run.n_rounds, made)
        summary = summarize(run, made, self._seconds())
        if self.federation is not None:
            self._write_scores(self.federation)
            summary = summarize_training(run, self.federation, self.experiment.n_rounds) | summary
        files.write_json(self.path / files.SUMMARY, summary)
        return files.read_json(self.path / files.SUMMARY)

    def _clock(self) -> float:
        """Return the virtual time of the rounds that are done."""
        return float(self.recorder.columns()["length_s"].sum())

    def _is_checkpoint(self, done: int, seconds: float) -> bool:
        """Return whether to save here: every so many rounds, in training also by the clock."""
        is_due = done % self._every == 0
        is_late = self.federation is not None and seconds >= _CHECKPOINT_SECONDS
        return (is_due or is_late) and done < self.experiment.n_rounds

    def _write_scores(self, federation: Federation) -> None:
        scores, counts = federation.client_scores(), federation.data.num_samples
        columns = {"loss": scores.loss, "accuracy": scores.accuracy, "num_samples": counts}
        write_npz(self.path / files.CLIENT_SCORES, columns)

    def _flush(self, log: Any) -> None:
        lines = self.recorder.take_batch()
        if lines:
            log.write(("\n".join(lines) + "\n").encode())
            log.flush()

    def _checkpoint(self, done: int, more: dict[str, Any] | None = None) -> None:
        path = self.path
        columns = self.recorder.columns() | (more or {})
        digests = [write_npz(path / files.SELECTIONS, columns)]
        save(self.selector, path / files.STATE)
        digests.append(files.digest_of(path / files.STATE))
        if self.federation is not None:
            digests.append(write_npz(path / files.MODEL, self.federation.state()))
        extra = {
            "cell.round": np.array(done),
            "cell.seconds": np.array(self._seconds()),
            "cell.log_bytes": np.array(self.log.stat().st_size),
            "cell.digests": np.array(digests),
        }
        regret = {f"regret.{name}": value for name, value in self.recorder.state().items()}
        write_npz(path / files.PROGRESS, self.progress.state() | extra | regret)

    def _is_whole(self, saved: dict[str, Any]) -> bool:
        names = [files.SELECTIONS, files.STATE]
        names += [] if self.federation is None else [files.MODEL]
        digests = [files.digest_of(self.path / name) for name in names]
        written = self.log.stat().st_size if self.log.exists() else -1
        is_logged = written >= int(saved["cell.log_bytes"])
        return is_logged and list(saved["cell.digests"]) == digests

    def _load(self, saved: dict[str, Any]) -> None:
        regret = {
            name.removeprefix("regret."): value
            for name, value in saved.items()
            if name.startswith("regret.")
        }
        columns = files.read_arrays(self.path / files.SELECTIONS)
        self.recorder.restore(columns, regret)
        self.progress = Progress.from_state(self.world.n_clients, saved)
        self.selector.prepare(self.world.n_clients, self.seed)
        load(self.path / files.STATE, into=self.selector)
        if self.federation is not None:
            self.federation.load_state(files.read_arrays(self.path / files.MODEL))
        self.seconds_before = float(saved["cell.seconds"])
        with self.log.open("rb+") as log:
            log.truncate(int(saved["cell.log_bytes"]))

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started
