"""How good a model is, on all clients at once: loss and accuracy of groups of examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from turnout.data.base import PADDING, FederatedData
from turnout.training.base import ClientScores
from turnout.training.modules import input_tensor, label_tensor
from turnout.types import Array, FloatArray, IntArray

__all__ = ["client_rows", "scores_of_groups"]

#: Examples that are scored at a time, and the largest number of scores they may have together.
ROWS, SCORES = 256, 1 << 22


def client_rows(offsets: IntArray, clients: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of some clients, and for each row the position of its client."""
    sizes = np.diff(offsets)[clients]
    group = np.repeat(np.arange(clients.size), sizes)
    shift = offsets[clients] - (np.cumsum(sizes) - sizes)
    return np.arange(group.size) + shift[group], group


def scores_of_groups(
    module: nn.Module,
    data: FederatedData,
    x: Array,
    y: IntArray,
    rows: IntArray,
    group: IntArray,
    n_groups: int,
) -> ClientScores:
    """Return loss and accuracy over the rows of each group; NaN for a group without labels."""
    loss, correct, counted = _row_sums(module, data, x, y, rows)
    labels = np.bincount(group, counted, n_groups).astype(float)  # integers without any row
    labels[labels == 0] = np.nan
    return ClientScores(
        np.bincount(group, loss, n_groups) / labels,
        np.bincount(group, correct, n_groups) / labels,
    )


def _row_sums(
    module: nn.Module, data: FederatedData, x: Array, y: IntArray, rows: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return for each row the sum of its losses, how many labels are right and how many count."""
    per_row = int(np.prod(y.shape[1:])) * data.n_classes
    at_a_time = max(1, min(ROWS, SCORES // per_row))
    device = next(module.parameters()).device
    sums = np.empty((3, rows.size))
    module.eval()
    with torch.inference_mode():
        for start in range(0, rows.size, at_a_time):
            part = rows[start : start + at_a_time]
            scores = module(input_tensor(data, x[part], device))
            found = _sums(scores, label_tensor(y[part], device))
            sums[:, start : start + part.size] = found.cpu().numpy()
    return sums[0], sums[1], sums[2]


def _sums(scores: Tensor, labels: Tensor) -> Tensor:
    n = labels.shape[0]
    losses = torch.nn.functional.cross_entropy(
        scores.reshape(labels.numel(), -1),
        labels.reshape(-1),
        ignore_index=PADDING,
        reduction="none",
    ).reshape(n, -1)
    labels = labels.reshape(n, -1)
    right = scores.reshape(*labels.shape, -1).argmax(dim=-1) == labels  # padding is never right
    return torch.stack(
        [losses.double().sum(1), right.sum(1).double(), (labels != PADDING).sum(1).double()]
    )
