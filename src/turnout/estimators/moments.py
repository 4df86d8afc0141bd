"""Running mean and deviation of a stream of numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turnout.types import FloatArray


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations (Chan's parallel form of Welford's method).

    Args:
        n: Number of values so far.
        mean: Their mean.
        squares: Sum of their squared deviations from the mean.
    """

    n: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def scale(self) -> float:
        """The standard deviation, 1 while it is 0 or unknown."""
        deviation = math.sqrt(self.squares / self.n) if self.n else 0.0
        return deviation if deviation > 0.0 else 1.0

    def updated(self, values: FloatArray) -> Moments:
        """Return the moments after more numbers.

        Args:
            values: (k,) the numbers.
        """
        if values.size == 0:
            return self
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        n = self.n + values.size
        gap = mean - self.mean
        return Moments(
            n,
            self.mean + gap * values.size / n,
            self.squares + squares + gap * gap * self.n * values.size / n,
        )
