"""Means over seeds with their 95 % confidence intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnout.errors import InvalidInput
from turnout.types import FloatArray

__all__ = ["Estimate", "estimate", "paired_difference", "student_quantile"]

#: 97.5 % quantile of Student's t for 1 .. 30 degrees of freedom.
_STUDENT = (
    *(12.70620, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157),
    *(2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922),
    *(2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831),
    *(2.048407, 2.045230, 2.042272),
)
_NORMAL = 1.959964


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


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t; above 30 degrees by a series in 1 / degrees.

    >>> round(student_quantile(9), 3)
    2.262
    """
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z, d = _NORMAL, degrees
    first = (z**3 + z) / (4 * d)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2)
    return z + first + second


def estimate(values: Sequence[float] | FloatArray) -> Estimate:
    """Return mean, standard deviation and 95 % interval; values that are missing are left out."""
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
