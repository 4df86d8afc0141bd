"""Send the numbers of every round to TensorBoard, MLflow, Weights & Biases or your own code.

>>> class Print(Callback):
...     def round(self, round, values):
...         print(round, values["accuracy"])
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from turnout.core.names import import_extra


class Callback:
    """Receives the numbers of a run. It does nothing: override the methods that you need."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """Begin a run; ``settings`` describe it."""

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """Receive the numbers of a round: accuracy, loss, completed, clock_s and so on."""

    def end(self) -> None:
        """End the run. It is also called when the run fails."""


class TensorBoard(Callback):
    """Writes every number as a scalar; needs ``pip install tensorboard``.

    Args:
        folder: Where the event file goes.

    """

    def __init__(self, folder: str | os.PathLike[str] = "runs/tensorboard") -> None:
        self.folder = os.fspath(folder)  # plain, as the file of a job can hold it
        self._library = import_extra(
            "torch.utils.tensorboard", "TensorBoard needs another package: pip install tensorboard."
        )

    def start(self, settings: Mapping[str, Any]) -> None:
        """Open the event file."""
        self._writer = self._library.SummaryWriter(self.folder)
        for name, value in settings.items():
            self._writer.add_text(name, str(value))

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """Write the scalars of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def end(self) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow(Callback):
    """Logs to MLflow; needs ``pip install mlflow``.

    Args:
        experiment: Name of the MLflow experiment. Default: MLflow's own.
        run_name: Name of the run. Default: MLflow invents one.
        tracking_uri: A server, or a database such as ``sqlite:///mlflow.db``; MLflow 3 no longer
            writes to folders. Default: MLflow's own.

    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self._library = import_extra("mlflow", "MLflow needs another package: pip install mlflow.")

    def start(self, settings: Mapping[str, Any]) -> None:
        """Start a run with the settings as parameters."""
        if self.tracking_uri is not None:
            self._library.set_tracking_uri(self.tracking_uri)
        if self.experiment is not None:
            self._library.set_experiment(self.experiment)
        self._library.start_run(run_name=self.run_name)
        self._library.log_params(dict(settings))

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a round."""
        self._library.log_metrics(dict(values), step=round)

    def end(self) -> None:
        """End the run."""
        self._library.end_run()


class WandB(Callback):
    """Logs to Weights & Biases; needs ``pip install wandb``.

    Args:
        project: Name of the project.
        options: Further arguments of ``wandb.init``, as a table.
        **more: The same, one by one.

    """

    def __init__(
        self,
        project: str = "turnout",
        *,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.project = project
        self.options = {**(options or {}), **more}
        self._library = import_extra("wandb", "WandB needs another package: pip install wandb.")

    def start(self, settings: Mapping[str, Any]) -> None:
        """Start a run with the settings as its configuration."""
        self._run = self._library.init(project=self.project, config=dict(settings), **self.options)

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        self._run.log(dict(values), step=round)

    def end(self) -> None:
        """Finish the run."""
        self._run.finish()
