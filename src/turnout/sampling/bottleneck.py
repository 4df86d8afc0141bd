"""The best set when only its highest cost counts: ``min V max(cost) - sum(gain)``.

Problem P4 of RBCS-F, Eq. (21). The optimum has a simple form: for some limit on the cost, the
``size`` largest gains among those within the limit. Alg. 1 of the paper tries every limit in
O(n^2). Here clients that cannot be in the best set are left out, the others are put into bins by
cost, and only bins that can hold the optimum are searched.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.arrays import check_vector
from turnout.core.errors import InvalidInput
from turnout.core.types import BoolArray, FloatArray, IntArray

#: Largest number of bins of the first pass, and clients per bin before there is another one.
MOST_BINS = 512
CLIENTS_PER_BIN = 256

#: From this many clients on, those that cannot be in the best set are left out first. The border
#: comes from a sample of this many costs.
PRUNED_FROM = 1 << 14
SAMPLE = 1 << 12

#: Edges are widened by this share of the range, far more than the error of rounding.
EDGE_SLACK = 1e-9


def bottleneck_limit(cost: FloatArray, gain: FloatArray, size: int, price: float) -> float:
    """Return the cost limit under which the ``size`` largest gains solve P4 exactly.

    Args:
        cost: (n,) cost of each client, such as its time, finite; only the highest in the set
            counts.
        gain: (n,) gain of each client, finite; gains in the set are added up.
        size: Number of clients in the set, from 1 to n.
        price: V >= 0, the weight of the highest cost against the gains.

    >>> bottleneck_limit(np.array([1.0, 2.0, 9.0]), np.array([0.0, 3.0, 4.0]), 1, price=1.0)
    2.0
    """
    check_vector("cost", cost)
    n = cost.size
    check_vector("gain", gain, n)
    size = require.integer("size", size, minimum=1, maximum=n)
    price = require.number("price", price, minimum=0.0)
    _check_finite("cost", cost)
    _check_finite("gain", gain)
    if size == n:
        return float(cost.max())
    if n >= PRUNED_FROM:
        rivals = _rivals(cost, gain, size)
        cost, gain = cost[rivals], gain[rivals]
    return _search(cost, gain, np.zeros(0), size, price).limit


def _rivals(cost: FloatArray, gain: FloatArray, size: int) -> BoolArray:
    """Return (n,) which clients can be in the best set: not those that ``size`` cheaper ones equal.

    Any border between cheap and dear gives a right answer. That of a sample leaves about twice
    ``sqrt(n size)`` clients.
    """
    sample = cost[:: cost.size // SAMPLE]
    place = int(math.sqrt(size / cost.size) * (sample.size - 1))
    is_cheap = cost <= np.partition(sample, place)[place]
    cheap = gain[is_cheap]
    if cheap.size < size:
        return np.ones(cost.size, dtype=np.bool_)
    rivals: BoolArray = is_cheap | (gain > _largest(cheap, size).min())
    return rivals


def _check_finite(name: str, values: FloatArray) -> None:
    if not np.isfinite(values).all():
        raise InvalidInput(f"{name} must be finite.", field=name)


class _Optimum(NamedTuple):
    value: float  #: of the objective; ties go to the smaller limit
    limit: float


_NONE = _Optimum(math.inf, math.inf)


def _search(
    cost: FloatArray, gain: FloatArray, before: FloatArray, size: int, price: float
) -> _Optimum:
    """Return the best limit among these costs; ``before`` are the best gains at lower cost."""
    spread = float(cost.max() - cost.min())
    if spread > 0.0 and (cost.size <= CLIENTS_PER_BIN or spread / MOST_BINS == 0.0):
        return _sweep(cost, gain, before, size, price)
    if spread == 0.0:
        best = _largest(np.concatenate((before, gain)), size)
        limit = float(cost[0])
        return _Optimum(price * limit - float(best.sum()), limit) if best.size == size else _NONE
    order, ends, edges = _bins_by_cost(cost)
    by_bin = gain[order]
    # Pass 1: the best gains up to the end of each bin bound the objective inside it from below.
    best = before
    promising: list[tuple[float, int, int, FloatArray]] = []
    attained = math.inf  # an objective that some set certainly reaches
    start = 0
    for end, lower, upper in zip(ends, edges[:-1], edges[1:], strict=True):
        earlier, entering = best, by_bin[start:end]
        if best.size == size:
            entering = entering[entering > best.min()]
        if entering.size:  # else a higher limit gains nothing
            best = _largest(np.concatenate((best, entering)), size)
            if best.size == size:
                total = float(best.sum())
                promising.append((price * lower - total, start, end, earlier))
                attained = min(attained, price * upper - total)
        start = end
    # Pass 2: search the bins that may hold the optimum, the most promising first.
    optimum = _NONE
    for bound, start, end, earlier in sorted(promising, key=lambda item: item[0]):
        if bound > min(attained, optimum.value):
            break
        inside = cost[order[start:end]]
        optimum = min(optimum, _search(inside, by_bin[start:end], earlier, size, price))
    return optimum


def _bins_by_cost(cost: FloatArray) -> tuple[IntArray, list[int], list[float]]:
    """Return an order by bins of rising cost, where each bin ends, and the edges around them."""
    n_bins = min(MOST_BINS, 2 + cost.size // CLIENTS_PER_BIN)
    lowest, highest = float(cost.min()), float(cost.max())
    width = (highest - lowest) / n_bins
    bins = np.minimum((cost - lowest) / width, n_bins - 1).astype(np.uint16)
    ends = np.cumsum(np.bincount(bins, minlength=n_bins))
    edges = lowest + width * np.arange(n_bins + 1)
    edges[:-1] -= EDGE_SLACK * (highest - lowest)
    edges[-1] = highest
    return np.argsort(bins, kind="stable"), ends.tolist(), edges.tolist()


def _largest(values: FloatArray, size: int) -> FloatArray:
    if values.size <= size:
        return values
    return np.partition(values, values.size - size)[values.size - size :]


def _sweep(
    cost: FloatArray, gain: FloatArray, before: FloatArray, size: int, price: float
) -> _Optimum:
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
    return _Optimum(best_value, best_limit)
