"""Inclusion probabilities from weights: a floor for everyone, a cap at one, a fixed sum.

ProbAlloc of E3CS (arXiv Alg. 2, journal Alg. 2) in closed form: the unique tau with
``sum(min(1, floor + tau * weight)) = size``. The alpha of the papers is ``1 / tau``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turnout import require
from turnout.errors import InvalidInput
from turnout.sampling.ranking import kth_largest
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
    nobody = np.zeros(0, dtype=np.int64)
    if n == 0:
        return Allocation(np.zeros(0), nobody)
    if not (np.isfinite(log_weight.max()) and np.isfinite(log_weight.min())):
        raise InvalidInput("log_weight must be finite; give weights > 0 and below infinity.")
    if size == n or size - n * floor <= size * FLOOR_TOLERANCE:  # nothing to give by weight
        return Allocation(np.full(n, size / n), nobody)
    return _allocate(log_weight, size, floor)


def _allocate(log_weight: FloatArray, size: int, floor: float) -> Allocation:
    n = log_weight.size
    # Weights relative to the size-th largest. Only strictly larger ones can overflow: the others
    # share what is left with at least as many equals as there are places left.
    border = kth_largest(log_weight, size)
    large = np.flatnonzero(log_weight > border)
    weight = log_weight - border
    top = weight[large]
    weight[large] = -np.inf
    np.exp(weight, out=weight)
    by_size = np.argsort(-top)
    large, top = large[by_size], top[by_size]
    # With the c largest at 1, the next one takes floor + residual * w / total (arXiv Eq. (18)).
    # Totals without the c largest, c = 0, 1, ..., as logarithms, summed from the small end.
    rest = float(weight.sum())
    totals = np.logaddexp.accumulate(np.append(np.log(rest), top[::-1]))[::-1]
    c = np.arange(large.size)
    residual = np.maximum(size - c - (n - c) * floor, np.finfo(np.float64).tiny)
    overflows = np.log(residual) + top - totals[:-1] > np.log1p(-floor)
    n_capped = large.size if overflows.all() else int(np.argmin(overflows))

    capped, shared, top = large[:n_capped], large[n_capped:], top[n_capped:]
    scale = top[0] if top.size else 0.0  # weights relative to the largest that is not capped
    relative = np.exp(top - scale)
    left = max(0.0, size - n_capped - (n - n_capped) * floor)
    tau = left / (float(relative.sum()) + rest * math.exp(-scale))
    weight *= tau * math.exp(-scale)
    weight += floor
    weight[shared] = np.minimum(floor + tau * relative, 1.0)
    weight[capped] = 1.0
    return Allocation(weight, np.sort(capped))
