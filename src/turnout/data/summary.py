"""How a dataset is divided, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.data.base import FederatedData
from turnout.types import FloatArray, IntArray

__all__ = ["Division", "division"]

#: Numbers that are compared at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Division:
    """What each client has to train on."""

    sizes: IntArray  #: (n,) examples
    label_counts: IntArray  #: (n, classes) labels; words for texts
    skew: FloatArray  #: (n,) how far a client's labels are from everyone's: 0 = the same, 1 = apart
    is_text: bool

    @property
    def n_labels(self) -> IntArray:
        """(n,) labels of each client; at least 1, to divide by."""
        n_labels: IntArray = np.maximum(self.label_counts.sum(axis=1), 1)
        return n_labels

    def shares(self, clients: IntArray) -> FloatArray:
        """Return (clients, classes) the share of each label among a client's."""
        shares: FloatArray = self.label_counts[clients] / self.n_labels[clients, None]
        return shares

    @property
    def order(self) -> IntArray:
        """(n,) the clients, those alike side by side: by main label, or by size for texts."""
        if self.is_text:
            return np.argsort(-self.sizes, kind="stable")
        largest = self.label_counts.max(axis=1) / self.n_labels
        return np.lexsort((-largest, self.label_counts.argmax(axis=1)))

    @property
    def ordered_by(self) -> str:
        """What ``order`` goes by."""
        return "size" if self.is_text else "main label"

    def sample(self, n_shown: int) -> IntArray:
        """Return the clients to show where all are too many: evenly from ``order``."""
        n = self.sizes.size
        if n <= n_shown:
            return np.arange(n)
        return self.order[np.arange(n_shown) * n // n_shown]


def division(data: FederatedData) -> Division:
    """Return how the examples are divided; skew is the total variation distance."""
    counts = data.label_counts
    found = Division(data.num_samples, counts, np.zeros(data.n_clients), data.is_text)
    everyone = counts.sum(axis=0) / max(counts.sum(), 1)
    n_at_once = max(1, _CHUNK // data.n_classes)
    for start in range(0, data.n_clients, n_at_once):
        some = np.arange(start, min(start + n_at_once, data.n_clients))
        found.skew[some] = 0.5 * np.abs(found.shares(some) - everyone).sum(axis=1)
    return found
