"""What data is here: a dataset, a way to divide it, and the examples of every client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from turnout.types import Array, FloatArray, IntArray

__all__ = ["PADDING", "Dataset", "FederatedData", "Partition", "Source"]

#: Label of a position that does not count: behind the end of a text.
PADDING = -1


@dataclass(frozen=True)
class Dataset:
    """Examples before they are divided among clients.

    Images are (N, channels, height, width) of uint8, vectors (N, d) of float32, texts (N, length)
    of word numbers. A model sees ``x * scale + shift`` (texts as they are). Labels are (N,), or
    (N, length) for texts: the next word at each position, ``PADDING`` where there is none.
    """

    name: str
    x: Array
    y: IntArray
    x_test: Array
    y_test: IntArray
    n_classes: int  #: labels are 0 .. n_classes - 1; the size of the vocabulary for texts
    scale: float = 1.0
    shift: float = 0.0
    group: IntArray | None = None  #: (N,) whose example it is: writer, author, role
    group_names: tuple[str, ...] = ()


class Source(ABC):
    """Where a dataset comes from; a frozen dataclass of plain settings."""

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Return the dataset; the seed matters only for generated ones."""


class Partition(ABC):
    """How examples are divided among clients; a frozen dataclass of plain settings."""

    @abstractmethod
    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Return ``rows, offsets``: client i gets examples ``rows[offsets[i]:offsets[i + 1]]``."""


@dataclass(frozen=True)
class FederatedData:
    """The examples of every client, one client after the other.

    Client i trains on rows ``offsets[i] .. offsets[i + 1] - 1`` of ``x`` and ``y``. Its hold-out
    rows, if any, are ``holdout_offsets[i] ..`` of ``x_holdout``: never trained on, used for
    per-client evaluation.
    """

    name: str
    x: Array
    y: IntArray
    offsets: IntArray  #: (n + 1,)
    x_holdout: Array
    y_holdout: IntArray
    holdout_offsets: IntArray  #: (n + 1,)
    x_test: Array
    y_test: IntArray
    n_classes: int
    scale: float = 1.0
    shift: float = 0.0
    features: Array | None = field(default=None)  #: (n, bits) code of each client's data

    @property
    def n_clients(self) -> int:
        """How many clients."""
        return self.offsets.size - 1

    @property
    def num_samples(self) -> IntArray:
        """(n,) training examples of each client."""
        return np.diff(self.offsets)

    @property
    def share(self) -> FloatArray:
        """(n,) share of all training examples, p_k of the papers."""
        counts = self.num_samples
        share: FloatArray = counts / counts.sum()
        return share

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example as a model sees it."""
        return tuple(self.x.shape[1:])

    @property
    def is_text(self) -> bool:
        """Whether examples are word numbers with a label at each position."""
        return self.y.ndim == 2
