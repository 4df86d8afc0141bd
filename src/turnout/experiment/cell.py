"""One cell: a selector with a seed, run from its start or from its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turnout.experiment import folder as files
from turnout.experiment.config import Experiment
from turnout.experiment.folder import FolderError
from turnout.experiment.recorder import Recorder
from turnout.experiment.summary import curves, regret_bound, summarize
from turnout.experiment.tables import encode
from turnout.experiment.variants import Variant, slug
from turnout.experiment.worlds import class_names
from turnout.persist import load, save
from turnout.simulate import Progress, rounds

__all__ = ["CellResult", "CellTask", "cell_config", "cell_folder", "run_cell"]

#: Rounds between two checkpoints, unless that would make more than ``_MOST_CHECKPOINTS``.
CHECKPOINT_EVERY = 200
_MOST_CHECKPOINTS = 20

#: Lines are written every so many rounds, or sooner after so many seconds.
_FLUSH_ROUNDS, _FLUSH_SECONDS = 50, 0.5
#: A batch holds the fates of at most so many clients x rounds.
_BATCH_ENTRIES = 2_000_000


@dataclass(frozen=True)
class CellTask:
    """What a process needs to run a cell."""

    experiment: Experiment
    variant: Variant
    seed: int
    path: Path
    versions: dict[str, Any]
    checkpoint_every: int = CHECKPOINT_EVERY

    @property
    def cohort_size(self) -> int:
        """The selector's own cohort size, or the experiment's."""
        return self.variant.cohort_size or self.experiment.cohort_size


@dataclass(frozen=True)
class CellResult:
    """How a cell ended."""

    label: str
    seed: int
    #: "complete" from the start, "resumed" from a checkpoint, "skipped" because it was complete,
    #: "damaged" if its folder cannot be used, "failed" if the run itself raised an error
    status: Literal["complete", "resumed", "skipped", "damaged", "failed"]
    summary: dict[str, Any] | None = None
    message: str = ""


def cell_folder(root: Path, label: str, seed: int) -> Path:
    """Return the folder of a cell."""
    return root / slug(label) / f"seed-{seed}"


def cell_config(task: CellTask) -> dict[str, Any]:
    """Return everything that makes a cell, as plain data."""
    experiment, variant = task.experiment, task.variant
    return {
        "format": files.FORMAT,
        "kind": "simulation",
        "experiment": experiment.name,
        "label": variant.label,
        "selector": variant.name,
        "parameters": encode(variant.make().parameters),
        "seed": task.seed,
        "n_clients": experiment.n_clients,
        "cohort_size": task.cohort_size,
        "n_rounds": experiment.n_rounds,
        "world": experiment.world,
        "world_id": experiment.world_id,
        "policy": experiment.policy,
        "classes": class_names(experiment.environment(task.seed)),
    }


def run_cell(task: CellTask, on_rounds: Callable[[int], None] | None = None) -> CellResult:
    """Run a cell as far as it is not done; errors become part of the result."""
    label, seed = task.variant.label, task.seed
    try:
        return _run(task, on_rounds)
    except FolderError as error:
        return CellResult(label, seed, "damaged", message=str(error))
    except Exception as error:  # one cell must not take the others down
        return CellResult(label, seed, "failed", message=f"{type(error).__name__}: {error}")


def _run(task: CellTask, on_rounds: Callable[[int], None] | None) -> CellResult:
    config = cell_config(task)
    if (task.path / files.CONFIG).exists():
        there = files.read_json(task.path / files.CONFIG)
        difference = files.first_difference(there, config)
        if difference is not None:
            raise FolderError(f"{task.path} holds another run: {difference}.")
        if (task.path / files.SUMMARY).exists():
            summary = files.read_cell(task.path).summary
            return CellResult(task.variant.label, task.seed, "skipped", summary)
    task.path.mkdir(parents=True, exist_ok=True)
    files.write_json(task.path / files.CONFIG, config)
    files.write_json(task.path / files.VERSIONS, task.versions)
    running = _Running(task)
    start, note = running.restore()
    running.go(start, on_rounds)
    summary = running.finish()
    status: Literal["complete", "resumed"] = "resumed" if start else "complete"
    return CellResult(task.variant.label, task.seed, status, summary, note)


class _Running:
    """A cell at work."""

    def __init__(self, task: CellTask) -> None:
        self.task = task
        self.selector = task.variant.make()
        self.world = task.experiment.environment(task.seed)
        self.recorder = Recorder(self.selector, self.world.n_clients, task.cohort_size)
        self.progress = Progress(self.world.n_clients)
        self.log = task.path / files.ROUNDS
        self.seconds_before = 0.0
        self.started = time.perf_counter()

    def restore(self) -> tuple[int, str]:
        """Go back to the last checkpoint; return its round and what there is to say about it."""
        path = self.task.path / files.PROGRESS
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
            raise FolderError(f"{path} lacks {error}; delete {self.task.path}.") from error
        return int(saved["cell.round"]), ""

    def go(self, start: int, on_rounds: Callable[[int], None] | None) -> None:
        """Run the remaining rounds, writing on the way."""
        experiment = self.task.experiment
        every = max(self.task.checkpoint_every, experiment.n_rounds // _MOST_CHECKPOINTS)
        most = max(1, min(_FLUSH_ROUNDS, _BATCH_ENTRIES // self.world.n_clients))
        records = rounds(
            self.selector,
            self.world,
            cohort_size=self.task.cohort_size,
            n_rounds=experiment.n_rounds,
            policy=experiment.round_policy(),
            start=start,
            progress=self.progress,
        )
        recorder, flushed = self.recorder, time.perf_counter()
        with self.log.open("ab") as log:
            for record in records:
                recorder.add(record)
                done = record.round + 1
                is_checkpoint = done % every == 0 and done < experiment.n_rounds
                is_due = recorder.n_pending >= most or is_checkpoint
                if not is_due and time.perf_counter() - flushed < _FLUSH_SECONDS:
                    continue
                self._flush(log)
                flushed = time.perf_counter()
                if is_checkpoint:
                    self._checkpoint(done)
                if on_rounds is not None:
                    on_rounds(done)
            self._flush(log)

    def finish(self) -> dict[str, Any]:
        """Write the end: all columns, the last state, and the summary last."""
        run, columns = self.recorder.run(), self.recorder.columns()
        made = curves(run, columns["regret"], regret_bound(self.selector, run, self.world))
        classes = self.world.classes
        if classes.any():
            made["class_of"] = classes
        self._checkpoint(run.n_rounds, made)
        summary = summarize(run, made, self._seconds())
        files.write_json(self.task.path / files.SUMMARY, summary)
        return files.read_json(self.task.path / files.SUMMARY)

    def _flush(self, log: Any) -> None:
        lines = self.recorder.take_batch()
        if lines:
            log.write(("\n".join(lines) + "\n").encode())
            log.flush()

    def _checkpoint(self, done: int, more: dict[str, Any] | None = None) -> None:
        path = self.task.path
        columns = self.recorder.columns() | (more or {})
        selections = files.write_arrays(path / files.SELECTIONS, columns)
        save(self.selector, path / files.STATE)
        extra = {
            "cell.round": np.array(done),
            "cell.seconds": np.array(self._seconds()),
            "cell.log_bytes": np.array(self.log.stat().st_size),
            "cell.digests": np.array([selections, files.digest_of(path / files.STATE)]),
        }
        regret = {f"regret.{name}": value for name, value in self.recorder.state().items()}
        files.write_arrays(path / files.PROGRESS, self.progress.state() | extra | regret)

    def _is_whole(self, saved: dict[str, Any]) -> bool:
        path = self.task.path
        digests = [files.digest_of(path / name) for name in (files.SELECTIONS, files.STATE)]
        written = self.log.stat().st_size if self.log.exists() else -1
        is_logged = written >= int(saved["cell.log_bytes"])
        return is_logged and list(saved["cell.digests"]) == digests

    def _load(self, saved: dict[str, Any]) -> None:
        regret = {
            name.removeprefix("regret."): value
            for name, value in saved.items()
            if name.startswith("regret.")
        }
        columns = files.read_arrays(self.task.path / files.SELECTIONS)
        self.recorder.restore(columns, regret)
        self.progress = Progress.from_state(self.world.n_clients, saved)
        self.selector.prepare(self.world.n_clients, self.task.seed)
        load(self.task.path / files.STATE, into=self.selector)
        self.seconds_before = float(saved["cell.seconds"])
        with self.log.open("rb+") as log:
            log.truncate(int(saved["cell.log_bytes"]))

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started
