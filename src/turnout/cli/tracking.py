"""Trackers that may follow the runs of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from turnout.experiment.pool import Callbacks
from turnout.require import choice
from turnout.runs.files import cell_folder
from turnout.training.callbacks import Callback, MLflow, TensorBoard, WandB

#: By name: made of the name of a run and the folder for its files.
_TRACKERS: Mapping[str, Callable[[str, Path], Callback]] = {
    "tensorboard": lambda name, folder: TensorBoard(folder),
    "mlflow": lambda name, folder: MLflow("turnout", run_name=name),
    "wandb": lambda name, folder: WandB("turnout", name=name),
}
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help=f"Also log every round to {', '.join(_TRACKERS)}."),
]


def checked_trackers(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of ``--track``.

    Args:
        names: What was given.

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
    if not names:
        return None

    def of_run(label: str, seed: int) -> list[Callback]:
        name = f"{label}, seed {seed} in {folder.name}"
        events = cell_folder(folder / "tensorboard", label, seed)
        return [_TRACKERS[tracker](name, events) for tracker in names]

    return of_run
