"""Data of the user's own: arrays in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout import require
from turnout.data.base import Dataset, Source
from turnout.types import Array

__all__ = ["Arrays"]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays(Source):
    """The user's own arrays; the seed plays no part.

    Images are (N, channels, height, width) or (N, height, width), vectors (N, d), texts (N, length)
    of word numbers with ``y`` of the same shape. ``group`` says whose example each is, for
    ``Natural()``. In a configuration file name a ``Source`` of your own by its path instead.

    >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    >>> Arrays(x, y, x, y).load(seed=0).n_classes
    2
    """

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    n_classes: int | None = None  #: default: the largest label plus one
    scale: float = 1.0  #: a model sees x * scale + shift
    shift: float = 0.0
    group: Array | None = None
    name: str = "arrays"

    def __post_init__(self) -> None:
        require.number("scale", self.scale)
        require.number("shift", self.shift)
        self.load(0)

    def load(self, seed: int) -> Dataset:
        """Return the arrays as a dataset, checked."""
        y, y_test = np.asarray(self.y), np.asarray(self.y_test)
        largest = max(np.max(y, initial=0), np.max(y_test, initial=0))
        n_classes = int(largest) + 1 if self.n_classes is None else self.n_classes
        return Dataset(
            self.name,
            _with_channel(np.asarray(self.x)),
            y,
            _with_channel(np.asarray(self.x_test)),
            y_test,
            n_classes,
            self.scale,
            self.shift,
            group=self.group,
        )


def _with_channel(x: Array) -> Array:
    return x[:, None] if x.ndim == 3 else x
