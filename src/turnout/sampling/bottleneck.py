"""The best set when one shared price is the worst member's: ``min V max(cost) - sum(gain)``.

Problem P4 of RBCS-F, Eq. (21). The optimum has a simple form: for some limit on the cost, the
``size`` largest gains among those within the limit. Alg. 1 of the paper tries every limit in
O(n^2); here the clients are put into bins by cost and swept once with the best gains so far.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from turnout.errors import InvalidInput
from turnout.types import FloatArray

__all__ = ["bottleneck_limit"]

#: Bins of the first pass, and how many clients it takes to open another one.
MOST_BINS = 1024
CLIENTS_PER_BIN = 256


def bottleneck_limit(cost: FloatArray, gain: FloatArray, size: int, price: float) -> float:
    """Return the cost limit under which the ``size`` largest gains solve P4 exactly.

    >>> bottleneck_limit(np.array([1.0, 2.0, 9.0]), np.array([0.0, 3.0, 4.0]), 1, price=1.0)
    2.0
    """
    n = cost.size
    if not 1 <= size <= n:
        raise InvalidInput(f"size must be inside [1, {n}], got {size}.")
    if size == n:
        return float(cost.max())
    # Pass 1: the best gains up to the end of each bin bound the objective inside it from below.
    order, ends = _bins_by_cost(cost)
    best = np.zeros(0)
    best_value, best_limit = math.inf, math.inf
    promising: list[tuple[float, int, int, FloatArray]] = []
    start = 0
    for end in ends:
        members = order[start:end]
        before, best = best, _largest(np.concatenate((best, gain[members])), size)
        if best.size == size:
            total, costs = float(best.sum()), cost[members]
            highest, lowest = float(costs.max()), float(costs.min())
            if (value := price * highest - total) < best_value:
                best_value, best_limit = value, highest
            if lowest < highest:
                promising.append((price * lowest - total, start, end, before))
        start = end
    # Pass 2: look inside the bins that may hide something better.
    for bound, start, end, before in sorted(promising, key=lambda item: item[0]):
        if bound >= best_value:
            break
        members = order[start:end]
        value, limit = _sweep(cost[members], gain[members], before, size, price)
        if value < best_value:
            best_value, best_limit = value, limit
    return best_limit


def _bins_by_cost(cost: FloatArray) -> tuple[np.ndarray, list[int]]:
    """Return an order that puts bins of rising cost one after the other, and where each ends."""
    n_bins = min(MOST_BINS, 1 + cost.size // CLIENTS_PER_BIN)
    lowest, highest = float(cost.min()), float(cost.max())
    if n_bins == 1 or not lowest < highest:
        return np.arange(cost.size), [cost.size]
    scaled = (cost - lowest) * ((n_bins - 1) / (highest - lowest))
    bins = scaled.astype(np.uint16)
    ends = np.cumsum(np.bincount(bins, minlength=n_bins))
    return np.argsort(bins, kind="stable"), np.unique(ends[ends > 0]).tolist()


def _largest(values: FloatArray, size: int) -> FloatArray:
    if values.size <= size:
        return values
    return np.partition(values, values.size - size)[values.size - size :]


def _sweep(
    cost: FloatArray, gain: FloatArray, before: FloatArray, size: int, price: float
) -> tuple[float, float]:
    """Admit clients by rising cost to a heap of the best gains; return the best value and limit."""
    heap = before.tolist()
    heapq.heapify(heap)
    total = float(before.sum())
    worth = np.flatnonzero(gain > heap[0]) if len(heap) == size else np.arange(gain.size)
    worth = worth[np.argsort(cost[worth], kind="stable")]
    best_value, best_limit = math.inf, math.inf
    for price_paid, limit, value in zip(
        (price * cost[worth]).tolist(), cost[worth].tolist(), gain[worth].tolist(), strict=True
    ):
        if len(heap) < size:
            heapq.heappush(heap, value)
            total += value
        elif value > heap[0]:
            total += value - heapq.heapreplace(heap, value)
        if len(heap) == size and price_paid - total < best_value:
            best_value, best_limit = price_paid - total, limit
    return best_value, best_limit
