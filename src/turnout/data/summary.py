"""How a dataset is divided, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.data.base import FederatedData
from turnout.types import FloatArray, IntArray

__all__ = ["Division", "division"]


@dataclass(frozen=True, eq=False)
class Division:
    """What each client has to train on."""

    sizes: IntArray  #: (n,) examples
    label_counts: IntArray  #: (n, classes) labels; words for texts
    skew: FloatArray  #: (n,) how far a client's labels are from everyone's: 0 = the same, 1 = apart
    is_text: bool

    @property
    def shares(self) -> FloatArray:
        """(n, classes) share of each label among the client's."""
        total = np.maximum(self.label_counts.sum(axis=1, keepdims=True), 1)
        shares: FloatArray = self.label_counts / total
        return shares

    @property
    def order(self) -> IntArray:
        """(n,) the clients, those alike side by side: by main label, or by size for texts."""
        if self.is_text:
            return np.argsort(-self.sizes, kind="stable")
        return np.lexsort((-self.shares.max(axis=1), self.label_counts.argmax(axis=1)))

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
    n_labels = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    everyone = counts.sum(axis=0) / max(counts.sum(), 1)
    skew = 0.5 * np.abs(counts / n_labels - everyone).sum(axis=1)
    return Division(data.num_samples, counts, skew, data.is_text)
