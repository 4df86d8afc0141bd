"""Inclusion probabilities from weights: a floor for everyone, a cap at one, a fixed sum.

ProbAlloc of E3CS (arXiv Alg. 2, journal Alg. 2) in closed form: the unique tau with
``sum(min(1, floor + tau * weight)) = size``. The alpha of the papers is ``1 / tau``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turnout import require
from turnout.errors import InvalidInput
from turnout.types import FloatArray, IntArray

__all__ = ["Allocation", "capped_allocation"]

#: Slack of the test ``floor <= size / n``, for floors computed as ``share * size / n``.
FLOOR_TOLERANCE = 1e-12


class Allocation(NamedTuple):
    """Inclusion probabilities that sum to the size."""

    probability: FloatArray  #: (n,) inside [floor, 1]
    overflow: IntArray  #: positions held at 1 because their share would exceed it (S_t)


def capped_allocation(log_weight: FloatArray, size: int, floor: float = 0.0) -> Allocation:
    """Return p with sum ``size``, ``floor <= p <= 1`` and ``p = floor + tau * weight`` below 1.

    Weights are given as logarithms, so that a spread of 1e5 and more is exact. At most ``size``
    positions can be held at 1, so only the ``size`` largest weights are sorted.

    >>> capped_allocation(np.log([1.0, 1.0, 8.0]), 2).probability
    array([0.5, 0.5, 1. ])
    """
    n = log_weight.size
    require.integer("size", size, minimum=0)
    if size > n:
        raise InvalidInput(f"size must be at most the number of weights, {n}, got {size}.")
    require.number("floor", floor, minimum=0.0)
    if floor * n > size * (1.0 + FLOOR_TOLERANCE):
        raise InvalidInput(f"floor must be at most size / n = {size / n:g}, got {floor:g}.")
    if n == 0:
        return Allocation(np.zeros(0), np.zeros(0, dtype=np.int64))
    largest = float(log_weight.max())
    if not np.isfinite(largest) or not np.isfinite(log_weight.min()):
        raise InvalidInput("log_weight must be finite; give weights > 0 and below infinity.")
    nobody = np.zeros(0, dtype=np.int64)
    residual = size - n * floor  # what is left to give by weight
    if residual <= size * FLOOR_TOLERANCE or size == n:
        return Allocation(np.full(n, size / n), nobody)

    weight = np.exp(log_weight - largest)
    tau = residual / weight.sum()
    if floor + tau <= 1.0:  # nobody overflows
        weight *= tau
        weight += floor
        return Allocation(weight, nobody)
    return _capped(log_weight, size, floor)


def _capped(log_weight: FloatArray, size: int, floor: float) -> Allocation:
    n = log_weight.size
    parted = np.partition(log_weight, n - size)
    rest, top = parted[: n - size], np.sort(parted[n - size :])[::-1]
    # log of the total weight without the c largest, for c = 0 .. size, summed from the small end
    rest_total = rest.max() + np.log(np.exp(rest - rest.max()).sum())
    totals = np.logaddexp.accumulate(np.concatenate(([rest_total], top[::-1])))[::-1]
    c = np.arange(size)
    # With the c largest at 1, the next one takes floor + residual_c * w / total_c (Eq. (18)).
    residual = size - c - (n - c) * floor
    with np.errstate(divide="ignore", invalid="ignore"):
        overflows = np.log(residual) + top - totals[:-1] > np.log1p(-floor)
    overflows &= residual > 0.0
    n_capped = size if overflows.all() else int(np.argmin(overflows))
    left = size - n_capped - (n - n_capped) * floor
    is_capped = np.zeros(n, dtype=np.bool_) if n_capped == 0 else log_weight >= top[n_capped - 1]
    if left <= 0.0:
        probability = np.full(n, floor)
    else:
        exponent = log_weight + (np.log(left) - totals[n_capped])
        probability = np.exp(np.minimum(exponent, 0.0, out=exponent), out=exponent)
        probability += floor
        np.minimum(probability, 1.0, out=probability)
    probability[is_capped] = 1.0
    return Allocation(probability, np.flatnonzero(is_capped))
