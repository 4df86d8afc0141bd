"""Loss and accuracy of a model on groups of examples, for all clients at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.arrays import LARGEST_REPORT
from turnout.data.base import PADDING, FederatedData
from turnout.training.base import ClientScores
from turnout.training.modules import input_tensor, label_tensor
from turnout.types import Array, FloatArray, IntArray

#: Most examples, and most scores, that are computed at a time.
ROWS, SCORES = 256, 1 << 21

#: Returns for some rows, (3, rows): sum of losses, number of right labels, number of labels.
ScoreRows = Callable[[IntArray], FloatArray]


def one_by_one(part: ScoreRows, items: list[IntArray]) -> list[FloatArray]:
    """Compute one part after the other.

    Args:
        part: Computes a part.
        items: The rows of each part.

    """
    return [part(item) for item in items]


def client_rows(offsets: IntArray, clients: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of some clients, and for each row the position of its client.

    Args:
        offsets: (n + 1,) where the rows of each client begin.
        clients: Which clients.

    """
    sizes = np.diff(offsets)[clients]
    group = np.repeat(np.arange(clients.size), sizes)
    shift = offsets[clients] - (np.cumsum(sizes) - sizes)
    return np.arange(group.size) + shift[group], group


@dataclass(frozen=True)
class Scorer:
    """Scores examples, a few at a time.

    Args:
        data: Says how examples become tensors.
        device: Where they are scored.
        answer: Returns the scores of examples by the current model.
        each: Computes all parts; it may compute several at once.

    """

    data: FederatedData
    device: torch.device
    answer: Callable[[Tensor], Tensor]
    each: Callable[[ScoreRows, list[IntArray]], list[FloatArray]] = one_by_one

    def of_groups(
        self, x: Array, y: IntArray, rows: IntArray, group: IntArray, n_groups: int
    ) -> ClientScores:
        """Return loss and accuracy over the rows of each group; NaN for a group without labels."""

        def part(some: IntArray) -> FloatArray:
            with torch.inference_mode():
                scores = self.answer(input_tensor(self.data, x[some], self.device))
                sums = _sums(scores, label_tensor(y[some], self.device))
            array: FloatArray = sums.cpu().numpy()
            return array

        per_row = int(np.prod(y.shape[1:])) * self.data.n_classes
        at_a_time = max(1, min(ROWS, SCORES // per_row))
        parts = [rows[start : start + at_a_time] for start in range(0, rows.size, at_a_time)]
        nothing = np.zeros((3, 0))
        loss, correct, counted = np.concatenate([nothing, *self.each(part, parts)], axis=1)
        labels = np.bincount(group, counted, n_groups).astype(float)  # integers without any row
        labels[labels == 0] = np.nan
        return ClientScores(
            np.bincount(group, loss, n_groups) / labels,
            np.bincount(group, correct, n_groups) / labels,
        )


def at_worst(scores: ClientScores) -> ClientScores:
    """Return scores in which a model that diverged has the worst scores instead of none.

    A loss that is not finite, or above ``LARGEST_REPORT``, becomes ``LARGEST_REPORT`` with
    accuracy 0. Clients without labels have no accuracy. They stay NaN.

    Args:
        scores: The scores of each client.

    """
    is_lost = ~np.isnan(scores.accuracy) & ~(scores.loss <= LARGEST_REPORT)
    return ClientScores(
        np.where(is_lost, LARGEST_REPORT, scores.loss), np.where(is_lost, 0.0, scores.accuracy)
    )


def _sums(scores: Tensor, labels: Tensor) -> Tensor:
    """Return for each row the sum of its losses, how many labels are right and how many count."""
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
