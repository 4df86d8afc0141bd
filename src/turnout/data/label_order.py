"""Labels in the order of clients, so that they go together with the classes of a world."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.data.assign import equal_offsets
from turnout.data.base import Dataset, Partition
from turnout.data.partitions import labels_of
from turnout.domains import CheckedFields, Fraction
from turnout.types import IntArray


@dataclass(frozen=True, slots=True)
class LabelOrder(CheckedFields, Partition):
    """Neighbouring clients hold the same labels: the first clients the first labels.

    The classes of a world are neighbours too. So the slow or unreliable clients hold labels that
    the others lack, which is where selection hurts. Every example goes to one client. Sizes of
    clients differ by at most two.

    Args:
        share: Share of the examples that are given out in the order of their labels, inside
            [0, 1]. The others are given out at random. Try 0.8; 0 makes all clients alike.

    """

    share: Fraction = 0.8

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Give out a part by label and the rest at random."""
        labels = labels_of(dataset, self)
        order = rng.permutation(labels.size)
        ordered, others = np.split(order, [round(self.share * labels.size)])
        ordered = ordered[np.argsort(labels[ordered], kind="stable")]
        owner = np.concatenate([_owners(part.size, n_clients) for part in (ordered, others)])
        rows = np.concatenate((ordered, others))[np.argsort(owner, kind="stable")]
        return rows, np.searchsorted(np.sort(owner), np.arange(n_clients + 1))


def _owners(n_rows: int, n_clients: int) -> IntArray:
    return np.repeat(np.arange(n_clients), np.diff(equal_offsets(n_rows, n_clients)))
