"""Means over seeds with their 95 % confidence intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from turnout.errors import InvalidInput
from turnout.types import FloatArray

__all__ = ["Estimate", "estimate", "paired_difference", "student_quantile"]

#: Of all intervals.
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over seeds; spread and interval are NaN with a single seed."""

    mean: float
    deviation: float  #: standard deviation between seeds
    half_width: float  #: of the 95 % confidence interval of the mean
    n: int

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean itself with a single seed."""
        return self.mean if math.isnan(self.half_width) else self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean itself with a single seed."""
        return self.mean if math.isnan(self.half_width) else self.mean + self.half_width


@lru_cache(maxsize=256)
def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return t with P(abs(T) <= t) = confidence.

    With T = sqrt(f) tan(angle), the density of the angle is proportional to cos(angle)**(f - 1).

    >>> round(student_quantile(9), 3)
    2.262
    """
    widest = min(math.pi / 2, 12.0 / math.sqrt(degrees))  # the rest has no weight to speak of
    angle = np.linspace(0.0, widest, 20_001)
    density = np.cos(angle) ** (degrees - 1)
    below = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(degrees) * math.tan(float(np.interp(confidence * below[-1], below, angle)))


def estimate(values: Sequence[float] | FloatArray) -> Estimate:
    """Return mean, standard deviation and 95 % interval; values that are missing are left out.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, round(found.half_width, 3), found.n
    (2.0, 2.484, 3)
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if known.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(known.mean())
    if known.size == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    deviation = float(known.std(ddof=1))
    half = student_quantile(known.size - 1) * deviation / math.sqrt(known.size)
    return Estimate(mean, deviation, half, int(known.size))


def paired_difference(
    values: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray
) -> Estimate:
    """Return the difference to a baseline that saw the same seeds in the same order."""
    ours = np.asarray(values, dtype=np.float64)
    theirs = np.asarray(baseline, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise InvalidInput(
            f"paired values must have the same seeds, got {ours.size} and {theirs.size}."
        )
    return estimate(ours - theirs)
