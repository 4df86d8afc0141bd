"""Inclusion probabilities from weights: a floor for everyone, a cap at one, a fixed sum.

ProbAlloc of E3CS (arXiv Alg. 2, journal Alg. 2) in closed form: the unique tau with
``sum(min(1, floor + tau * weight)) = size``. The alpha of the papers is ``1 / tau``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.arrays import check_vector
from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, IntArray
from turnout.sampling.ranking import border_of

#: Tolerance of the test ``floor <= size / n``, for floors computed as ``share * size / n``.
FLOOR_TOLERANCE = 1e-12

#: Up to this many clients, the allocation without a cap is tried first.
FEW = 10_000


class Allocation(NamedTuple):
    """Inclusion probabilities that sum to the size.

    Attributes:
        probability: (n,) inside [floor, 1].
        overflow: Positions held at 1 because their share would exceed it (S_t of E3CS).
    """

    probability: FloatArray
    overflow: IntArray


def capped_allocation(log_weight: FloatArray, size: int, floor: float = 0.0) -> Allocation:
    """Return p with sum ``size``, ``floor <= p <= 1`` and ``p = floor + tau * weight`` below 1.

    At most ``size`` positions can be held at 1, so only the ``size`` largest weights are sorted.

    Args:
        log_weight: (n,) natural logarithms of the weights, finite. Logarithms keep weights exact
            that differ by a factor of exp(1e5) and more.
        size: Sum of the probabilities: how many positions will be drawn, from 0 to n.
        floor: Smallest probability of each position, from 0 to ``size / n``.

    >>> capped_allocation(np.log([1.0, 1.0, 8.0]), 2).probability
    array([0.5, 0.5, 1. ])
    """
    check_vector("log_weight", log_weight)
    n = log_weight.size
    size = require.integer("size", size, minimum=0, maximum=n)
    floor = require.number("floor", floor, minimum=0.0)
    if floor * n > size * (1.0 + FLOOR_TOLERANCE):
        raise InvalidInput(f"floor must be at most size / n = {size / n:g}, got {floor:g}.")
    nobody = np.zeros(0, dtype=np.int64)
    if n == 0:
        return Allocation(np.zeros(0), nobody)
    largest, smallest = float(log_weight.max()), float(log_weight.min())
    if not (math.isfinite(largest) and math.isfinite(smallest)):
        raise InvalidInput("log_weight must be finite; give weights > 0 and below infinity.")
    residual = size - n * floor
    if residual <= size * FLOOR_TOLERANCE:  # the floors use up everything
        return Allocation(np.full(n, size / n), nobody)
    if size == n:  # everyone is drawn; all but the smallest weights would overflow
        return Allocation(np.ones(n), np.flatnonzero(log_weight > smallest))
    if n <= FEW:  # try without a cap first; for many clients that would double the work
        weight = np.exp(log_weight - largest)
        tau = residual / float(weight.sum())
        if floor + tau <= 1.0:
            return Allocation(floor + tau * weight, nobody)
    return _capped(log_weight, size, floor)


def _capped(log_weight: FloatArray, size: int, floor: float) -> Allocation:
    n = log_weight.size
    # Weights relative to the size-th largest. Only strictly larger ones can overflow: the others
    # share what is left with at least as many equals as there are places left.
    border = border_of(log_weight, size)
    large = np.flatnonzero(log_weight > border)
    weight = log_weight - border
    top = weight[large]
    weight[large] = -np.inf
    np.exp(weight, out=weight)
    rest = float(weight.sum())
    by_size = np.argsort(-top)
    large, top = large[by_size], top[by_size]
    # Hold positions that would exceed 1 at 1, and share the rest again, until none exceeds it.
    n_capped = 0
    while True:
        shared = top[n_capped:]
        scale = float(shared[0]) if shared.size else 0.0  # weights relative to the largest sharing
        relative = np.exp(shared - scale)
        left = size - n_capped - (n - n_capped) * floor
        tau = max(0.0, left) / (float(relative.sum()) + rest * math.exp(-scale))  # arXiv Eq. (18)
        n_over = int(np.count_nonzero(tau * relative > 1.0 - floor))
        if n_over == 0:
            break
        n_capped += n_over
    weight *= tau * math.exp(-scale)
    weight += floor
    weight[large[n_capped:]] = np.minimum(floor + tau * relative, 1.0)
    weight[large[:n_capped]] = 1.0
    return Allocation(weight, np.sort(large[:n_capped]))
