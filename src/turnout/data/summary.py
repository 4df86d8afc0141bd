"""How a dataset is divided, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.data.base import FederatedData
from turnout.types import FloatArray, IntArray

#: Numbers that are processed at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Division:
    """How much each client has to train on, and of which labels.

    Args:
        sizes: (n,) number of examples of each client.
        label_counts: (n, classes) how many labels of each kind a client has; words for texts.
        skew: (n,) total variation distance between a client's labels and those of all clients:
            0 if they are the same, 1 if they have none in common.
        is_text: Whether labels are words.

    """

    sizes: IntArray
    label_counts: IntArray
    skew: FloatArray
    is_text: bool

    @property
    def n_labels(self) -> IntArray:
        """(n,) number of labels of each client; at least 1, to divide by."""
        n_labels: IntArray = np.maximum(self.label_counts.sum(axis=1), 1)
        return n_labels

    def shares(self, clients: IntArray) -> FloatArray:
        """Return (clients, classes) the share of each label among a client's labels."""
        shares: FloatArray = self.label_counts[clients] / self.n_labels[clients, None]
        return shares

    @property
    def order(self) -> IntArray:
        """(n,) all clients, similar ones side by side: by main label, or by size for texts."""
        if self.is_text:
            return np.argsort(-self.sizes, kind="stable")
        largest = self.label_counts.max(axis=1) / self.n_labels
        return np.lexsort((-largest, self.label_counts.argmax(axis=1)))

    @property
    def ordered_by(self) -> str:
        """The quantity by which ``order`` sorts."""
        return "size" if self.is_text else "main label"

    def sample(self, n_shown: int) -> IntArray:
        """Return at most ``n_shown`` clients, taken evenly from ``order``."""
        n = self.sizes.size
        if n <= n_shown:
            return np.arange(n)
        return self.order[np.arange(n_shown) * n // n_shown]


def division(data: FederatedData) -> Division:
    """Return how the examples are divided.

    Args:
        data: The divided dataset.

    """
    counts = data.label_counts
    summary = Division(data.num_samples, counts, np.zeros(data.n_clients), data.is_text)
    overall = counts.sum(axis=0) / max(counts.sum(), 1)
    n_at_once = max(1, _CHUNK // data.n_classes)
    for start in range(0, data.n_clients, n_at_once):
        some = np.arange(start, min(start + n_at_once, data.n_clients))
        summary.skew[some] = 0.5 * np.abs(summary.shares(some) - overall).sum(axis=1)
    return summary
