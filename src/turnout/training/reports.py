"""What clients report about their training, and what is done with numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from turnout.training.base import Updates
from turnout.types import BoolArray, FloatArray, IntArray


class ClientLosses:
    """Collects the losses of one client while it trains."""

    def __init__(self) -> None:
        self.batch_losses: list[float] = []
        self.squares = 0.0  # sum of squared losses of single labels
        self.n_labels = 0

    def add(self, loss: float, losses: Tensor) -> None:
        """Add a mini-batch: its mean loss and the losses of its labels."""
        self.batch_losses.append(loss)
        self.squares += float(losses.double().square().sum())
        self.n_labels += losses.numel()


def collect(
    weights: Tensor, local: Tensor, num_examples: IntArray, reports: Sequence[ClientLosses]
) -> Updates:
    """Return the updates of a cohort.

    Args:
        weights: (P,) the global model.
        local: (s, P) the local models.
        num_examples: (s,) training examples of each client.
        reports: The losses of each client.

    """
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # losses that are not finite are marked below
        mean = np.array([np.mean(report.batch_losses) for report in reports])
        std = np.array([np.std(report.batch_losses) for report in reports])
    rms = np.array([(report.squares / max(1, report.n_labels)) ** 0.5 for report in reports])
    steps = np.array([len(report.batch_losses) for report in reports], dtype=np.int64)
    return finished(weights, local, num_examples, mean, std, rms, steps)


def finished(
    weights: Tensor,
    local: Tensor,
    num_examples: IntArray,
    loss: FloatArray,
    loss_std: FloatArray,
    loss_rms: FloatArray,
    steps: IntArray,
) -> Updates:
    """Return the updates of a cohort; make those that are not finite harmless.

    A client with a loss or a weight that is not finite gets NaN in its reports and the global model
    as its weights, so it cannot spoil an average.

    Args:
        weights: (P,) the global model.
        local: (s, P) the local models. Rows that are not finite are overwritten.
        num_examples: (s,) training examples of each client.
        loss: (s,) mean loss of each client's mini-batches.
        loss_std: (s,) their standard deviation.
        loss_rms: (s,) root mean square of the losses of single labels.
        steps: (s,) SGD steps of each client.

    """
    is_sound = _are_finite(local) & np.isfinite(loss)
    for row in np.flatnonzero(~is_sound):
        local[row] = weights
    mean, std, rms = (np.where(is_sound, values, np.nan) for values in (loss, loss_std, loss_rms))
    return Updates(local, num_examples, mean, std, rms, steps)


def _are_finite(rows: Tensor) -> BoolArray:
    """Return which rows are finite. The sum of a finite row may overflow, so look twice."""
    is_finite: BoolArray = torch.isfinite(rows.sum(dim=1)).cpu().numpy()
    for row in np.flatnonzero(~is_finite):
        is_finite[row] = bool(torch.isfinite(rows[row]).all())
    return is_finite
