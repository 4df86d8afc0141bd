"""One cell as it is wanted, how it ended, and whether a folder holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnout.data import FederatedData
from turnout.experiment.codec import encode
from turnout.experiment.config import Experiment
from turnout.experiment.variants import Variant
from turnout.experiment.worlds import class_names
from turnout.runs import files
from turnout.runs.settings import first_difference

#: Rounds between two checkpoints, unless that would make too many.
CHECKPOINT_EVERY = 200


@dataclass(frozen=True)
class CellTask:
    """What a process needs to run a cell.

    Attributes:
        experiment: What the cell is part of.
        variant: The selector.
        seed: Of the world, the data and the draws.
        path: The folder of the cell.
        versions: What runs it, for ``versions.json``.
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
        """The selector's own cohort size, or the experiment's."""
        return self.variant.cohort_size or self.experiment.cohort_size


@dataclass(frozen=True)
class CellResult:
    """How a cell ended.

    Attributes:
        label: The selector's label.
        seed: The seed.
        status: "complete" from the start, "resumed" from a checkpoint, "skipped" because it was
            complete, "damaged" if its folder cannot be used, "failed" if the run raised an error.
        summary: The numbers of ``summary.json``; None without a result.
        message: What went wrong, or what there is to know about the result.
    """

    label: str
    seed: int
    status: Literal["complete", "resumed", "skipped", "damaged", "failed"]
    summary: dict[str, Any] | None = None
    message: str = ""


def cell_config(task: CellTask) -> dict[str, Any]:
    """Return everything that makes a cell, as plain data.

    Args:
        task: The cell.
    """
    experiment, variant = task.experiment, task.variant
    table = experiment.table()
    optional = {name: table[name] for name in table if name in ("training", "bounds")}
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
        raise files.FolderError(
            f"{task.path} holds another run: {difference}; use another folder (--out), or run all "
            "again (--fresh)."
        )


def config_difference(saved: Mapping[str, Any], task: CellTask) -> str | None:
    """Return where the settings of a saved cell differ from those that are wanted, or None.

    A parameter that the saved cell lacks is younger than the cell, which so ran with its default.

    Args:
        saved: The ``config.json`` of the cell.
        task: The cell that is wanted.
    """
    wanted = cell_config(task)
    defaults = encode(task.variant.make().default_parameters())
    then = saved.get("parameters")
    parameters = {**defaults, **then} if isinstance(then, Mapping) else then
    return first_difference({**saved, "parameters": parameters}, wanted)
