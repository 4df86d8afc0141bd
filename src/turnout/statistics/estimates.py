"""Means over seeds with their 95 % confidence intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from turnout.arrays import numbers
from turnout.errors import InvalidInput
from turnout.types import FloatArray

#: Confidence of all intervals.
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % confidence interval.

    Attributes:
        mean: Mean over the seeds, NaN without any.
        deviation: Standard deviation between seeds, NaN with fewer than two.
        half_width: Half the width of the interval of the mean, NaN with fewer than two seeds.
        n: Number of seeds.
    """

    mean: float
    deviation: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean itself with a single seed."""
        return self.mean if math.isnan(self.half_width) else self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean itself with a single seed."""
        return self.mean if math.isnan(self.half_width) else self.mean + self.half_width

    def over(self, size: float) -> Estimate:
        """Return the same in a unit that is ``size`` times as large."""
        return Estimate(self.mean / size, self.deviation / size, self.half_width / size, self.n)

    def written(self, form: str) -> str:
        """Return the mean with half its 95 % interval.

        >>> estimate([1.0, 2.0, 3.0]).written(".2f")
        '2.00 ± 2.48'
        """
        if self.n == 0:
            return "-"
        mean = format(self.mean, form)
        return mean if self.n < 2 else f"{mean} ± {format(self.half_width, form.lstrip('+'))}"


@lru_cache(maxsize=256)
def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return t with P(abs(T) <= t) = confidence, for Student's T.

    With T = sqrt(f) tan(angle), the density of the angle is proportional to cos(angle)**(f - 1).

    Args:
        degrees: f, degrees of freedom, at least 1.
        confidence: Probability, between 0 and 1.

    >>> round(student_quantile(9), 3)
    2.262
    """
    widest = min(math.pi / 2, 12.0 / math.sqrt(degrees))  # the rest of the density is negligible
    angle = np.linspace(0.0, widest, 20_001)
    density = np.cos(angle) ** (degrees - 1)
    below = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(degrees) * math.tan(float(np.interp(confidence * below[-1], below, angle)))


def estimate(values: Sequence[float] | FloatArray) -> Estimate:
    """Return mean, standard deviation and 95 % interval.

    Args:
        values: One number per seed; NaN and infinite ones are left out.

    >>> mean, deviation, half_width, n = estimate([1.0, 2.0, 3.0])
    >>> mean, round(half_width, 3), n
    (2.0, 2.484, 3)
    """
    finite = numbers("values", values)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(finite.mean())
    if finite.size == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    deviation = float(finite.std(ddof=1))
    half = student_quantile(finite.size - 1) * deviation / math.sqrt(finite.size)
    return Estimate(mean, deviation, half, int(finite.size))


def paired_difference(
    values: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray
) -> Estimate:
    """Return the mean difference to a baseline, seed by seed.

    Args:
        values: One number per seed.
        baseline: Its numbers, for the same seeds in the same order.
    """
    ours, theirs = numbers("values", values), numbers("baseline", baseline)
    if ours.shape != theirs.shape:
        raise InvalidInput(
            f"paired values must have the same seeds, got {ours.size} and {theirs.size}."
        )
    return estimate(ours - theirs)
