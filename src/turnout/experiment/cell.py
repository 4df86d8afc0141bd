"""One cell: a selector with a seed, run from its start or from its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnout.experiment.cell_runner import CHECKPOINT_EVERY, OnRounds, Running
from turnout.experiment.codec import encode
from turnout.experiment.config import Experiment
from turnout.experiment.folder import read_cell
from turnout.experiment.variants import Variant, slug
from turnout.experiment.worlds import class_names
from turnout.runs import files
from turnout.runs.files import FolderError
from turnout.runs.settings import first_difference
from turnout.training.callbacks import Callback

__all__ = ["CellResult", "CellTask", "cell_config", "cell_folder", "run_cell"]


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
    training = {} if experiment.training is None else {"training": experiment.training}
    return {
        "format": files.FORMAT,
        "kind": "training" if training else "simulation",
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
        **training,
    }


def run_cell(
    task: CellTask, on_rounds: OnRounds | None = None, callbacks: Sequence[Callback] = ()
) -> CellResult:
    """Run a cell as far as it is not done; errors become part of the result."""
    label, seed = task.variant.label, task.seed
    try:
        return _run(task, on_rounds, callbacks)
    except FolderError as error:
        return CellResult(label, seed, "damaged", message=str(error))
    except Exception as error:  # one cell must not take the others down
        return CellResult(label, seed, "failed", message=f"{type(error).__name__}: {error}")


def _run(task: CellTask, on_rounds: OnRounds | None, callbacks: Sequence[Callback]) -> CellResult:
    config = cell_config(task)
    if (task.path / files.CONFIG).exists():
        there = files.read_json(task.path / files.CONFIG)
        difference = first_difference(there, config)
        if difference is not None:
            raise FolderError(f"{task.path} holds another run: {difference}.")
        if (task.path / files.SUMMARY).exists():
            summary = read_cell(task.path).summary
            return CellResult(task.variant.label, task.seed, "skipped", summary, _broken(summary))
    task.path.mkdir(parents=True, exist_ok=True)
    files.write_json(task.path / files.CONFIG, config)
    files.write_json(task.path / files.VERSIONS, task.versions)
    running = Running(
        task.experiment, task.variant, task.seed, task.path, task.cohort_size, task.checkpoint_every
    )
    start, note = running.restore()
    running.go(start, on_rounds, callbacks, config)
    summary = running.finish()
    note = f"{note} {_broken(summary)}".strip()
    status: Literal["complete", "resumed"] = "resumed" if start else "complete"
    return CellResult(task.variant.label, task.seed, status, summary, note)


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
