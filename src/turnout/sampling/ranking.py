"""The best by score, with ties broken at random so that no index is favoured."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.arrays import check_vector
from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, IntArray

#: Size of the sample that ``kth_largest`` takes its pivot from.
SAMPLE_SIZE = 4096
#: So few values are sorted faster than they are partitioned.
FEW = 1000


class Ranking(NamedTuple):
    """Positions of the best scores, and the chance that each had to be among them.

    Attributes:
        chosen: (m,) positions, ascending.
        probability: (m,) 1 above the border; below 1 where a tie at the border was drawn.
    """

    chosen: IntArray
    probability: FloatArray


def kth_largest(values: FloatArray, k: int) -> float:
    """Return the k-th largest value in O(n), also when most values are equal.

    Two pivots from a sample enclose the value first. ``np.partition`` alone is ten times slower
    when a few values are above a million equal ones, the usual state of a learner.

    Args:
        values: (n,) numbers without NaN.
        k: Rank, from 1 (the largest) to n.
    """
    check_vector("values", values)
    k = require.integer("k", k, minimum=1, maximum=values.size)
    if np.isnan(values @ values):  # faster than the maximum
        raise InvalidInput("values must not be NaN.")
    return border_of(values, k)


def border_of(values: FloatArray, k: int) -> float:
    """Return the k-th largest value; nothing is checked.

    Args:
        values: (n,) numbers without NaN.
        k: Rank, from 1 (the largest) to n.
    """
    return _between(values, k, k)[0]


def median(values: FloatArray) -> float:
    """Return the median, as ``np.median`` does; three times as fast for a million values.

    Args:
        values: (n,) numbers without NaN, at least one.

    >>> median(np.array([3.0, 1.0, 2.0, 7.0]))
    2.5
    """
    check_vector("values", values)
    upper, lower = _between(values, (values.size + 1) // 2, values.size // 2 + 1)
    return (lower + upper) / 2.0


def _between(values: FloatArray, first: int, last: int) -> tuple[float, float]:
    """Return the values of two close ranks, 1 = the largest; ``first`` is at most ``last``."""
    step = values.size // SAMPLE_SIZE
    if step > 1:
        sample = np.sort(values[::step])[::-1]
        expected = last / step  # how many of the largest the sample holds
        slack = 4.0 * math.sqrt(expected) + 4.0
        # The values wanted lie between ``low`` and ``high`` unless the sample is off by more than
        # four standard deviations. In that case the search falls back on all values.
        low = sample[min(sample.size - 1, math.ceil(expected + slack))]
        between = values > low
        n_above = 0
        if expected > slack:
            high = sample[int(expected - slack)]
            n_above = int(np.count_nonzero(values > high))
            between &= values <= high
        inside = values[between]
        if n_above < first and last - n_above <= inside.size:
            values, first, last = inside, first - n_above, last - n_above
        elif first - n_above > inside.size:
            n_left = last - n_above - inside.size
            if n_left <= np.count_nonzero(values == low):
                return float(low), float(low)
    places = values.size - last, values.size - first
    if values.size <= FEW:
        ordered = np.sort(values)
        return float(ordered[places[1]]), float(ordered[places[0]])
    lower, upper = np.partition(values, places)[list(places)]
    return float(upper), float(lower)


def top_m(score: FloatArray, m: int, rng: np.random.Generator) -> Ranking:
    """Return the positions of the largest scores; equal scores at the border are drawn at random.

    Args:
        score: (n,) scores without NaN; -inf ranks a client last.
        m: Number of positions, from 0 to n.
        rng: Generator for ties.

    >>> top_m(np.array([0.3, 0.9, 0.1]), 2, np.random.default_rng(0)).chosen
    array([0, 1])
    """
    check_vector("score", score)
    n = score.size
    m = require.integer("m", m, minimum=0, maximum=n)
    require.instance("rng", rng, np.random.Generator)
    if m == n:
        return Ranking(np.arange(n), np.ones(n))
    if m == 0:
        return Ranking(np.zeros(0, dtype=np.int64), np.zeros(0))
    border = float(score.max())
    if math.isnan(border):
        raise InvalidInput("score must not be NaN; give -inf to rank a client last.")
    if m == 1:
        tied = np.flatnonzero(score == border)
        if tied.size > 1:
            drawn = tied[rng.choice(tied.size, 1, replace=False, shuffle=False)]
            return Ranking(drawn, np.array([1.0 / tied.size]))
        return Ranking(tied, np.ones(1))
    border = border_of(score, m)
    above = np.flatnonzero(score > border)
    tied = np.flatnonzero(score == border)
    n_open = m - above.size
    drawn = tied
    if n_open < tied.size:
        drawn = tied[rng.choice(tied.size, n_open, replace=False, shuffle=False)]
    chosen = np.concatenate((above, drawn))
    probability = np.ones(m)
    probability[above.size :] = n_open / tied.size
    order = np.argsort(chosen)
    return Ranking(chosen[order], probability[order])


def top_m_chances(score: FloatArray, m: int) -> FloatArray:
    """Return (n,) the chance of each position to be among those of ``top_m``.

    Args:
        score: (n,) scores without NaN.
        m: Number of positions, from 0 to n.

    >>> top_m_chances(np.array([0.3, 0.9, 0.3]), 2)
    array([0.5, 1. , 0.5])
    """
    check_vector("score", score)
    m = require.integer("m", m, minimum=0, maximum=score.size)
    if m in (0, score.size):
        return np.full(score.size, float(m > 0))
    if np.isnan(score.max()):
        raise InvalidInput("score must not be NaN; give -inf to rank a client last.")
    border = border_of(score, m)
    chance = (score > border).astype(np.float64)
    is_tied = score == border
    chance[is_tied] = (m - chance.sum()) / np.count_nonzero(is_tied)
    return chance
