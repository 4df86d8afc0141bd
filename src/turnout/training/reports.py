"""What clients report about their training, and what happens to those whose numbers broke."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from turnout.training.base import Updates
from turnout.types import BoolArray, FloatArray, IntArray

__all__ = ["LossReport", "collect", "finished"]


class LossReport:
    """Collects the losses that one client sees while it trains."""

    def __init__(self) -> None:
        self.batch_losses: list[float] = []
        self.squares = 0.0  # sum of squared losses of single labels
        self.n_labels = 0

    def add(self, loss: float, losses: Tensor) -> None:
        """Note a mini-batch: its mean loss and the losses of its labels."""
        self.batch_losses.append(loss)
        self.squares += float(losses.double().square().sum())
        self.n_labels += losses.numel()


def collect(
    weights: Tensor, local: Tensor, num_examples: IntArray, reports: Sequence[LossReport]
) -> Updates:
    """Return the updates of a cohort from the reports of its clients."""
    with np.errstate(invalid="ignore", over="ignore"):  # clients that broke are marked below
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
    """Return the updates, with every client that broke marked and made harmless.

    Whoever has a loss or a weight that is not finite gets NaN in its reports and the global model
    as its weights, so that it cannot poison an average.
    """
    is_sound = _are_finite(local) & np.isfinite(loss)
    for row in np.flatnonzero(~is_sound):
        local[row] = weights
    mean, std, rms = (np.where(is_sound, values, np.nan) for values in (loss, loss_std, loss_rms))
    return Updates(local, num_examples, mean, std, rms, steps)


def _are_finite(rows: Tensor) -> BoolArray:
    """Return which rows are finite: those with a finite sum, and those whose sum overflowed."""
    found: BoolArray = torch.isfinite(rows.sum(dim=1)).cpu().numpy()
    for row in np.flatnonzero(~found):
        found[row] = bool(torch.isfinite(rows[row]).all())
    return found
