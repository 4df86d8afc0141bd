"""Draw a set of fixed size from inclusion probabilities.

Three draws are exact: position i is drawn with probability p_i. ``dependent_rounding`` is DepRound
as E3CS prints it (arXiv Alg. 3), and the reference for the other two. ``systematic_draw`` is
systematic sampling over a random order. ``exact_draw`` is the same with small probabilities drawn
in groups, which is fast for a million clients. ``multinomial_without_replacement`` is the draw of
the journal form of E3CS. It is **not** exact.
"""

from __future__ import annotations

import math

import numpy as np

from turnout.core import require
from turnout.core.arrays import check_vector, vector
from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray, IntArray, RoundContext
from turnout.sampling.ranking import top_m

#: Probabilities closer than this to 0 or 1 count as 0 or 1; sums may be off by n times it.
SETTLED = 1e-12

#: Relative tolerance of the test that probabilities sum to an integer.
SUM_TOLERANCE = 1e-6

#: Number of groups of ``exact_draw``, a power of 2 below 65,536. Up to four times as many positions
#: are drawn without groups.
N_GROUPS = 4096

#: Positions that are added up at a time.
BLOCK = 65_536


def uniform_draw(n: int, size: int, rng: np.random.Generator) -> IntArray:
    """Return positions in ascending order; every set is equally likely.

    Args:
        n: Number of positions.
        size: How many to draw, from 0 to n.
        rng: Generator of the draw.
    """
    n = require.integer("n", n, minimum=0, maximum=np.iinfo(np.int64).max)
    size = require.integer("size", size, minimum=0, maximum=n)
    require.instance("rng", rng, np.random.Generator)
    return np.sort(rng.choice(n, size, replace=False, shuffle=False))


def random_part(values: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    """Return at most some of the values, drawn at random, in their order.

    Without a draw it returns all of them, if there are no more.

    Args:
        values: (n,) what is drawn from.
        most: How many to return at most.
        rng: Generator of the draw.
    """
    check_vector("values", values)
    if values.size <= require.integer("most", most, minimum=0):
        return values
    return values[uniform_draw(values.size, most, rng)]


def systematic_draw(probability: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw by systematic sampling over a random order; exact.

    The probabilities are laid end to end in random order. A comb with teeth one apart falls on
    them, and the positions that it hits are drawn.

    Args:
        probability: (n,) inclusion probabilities, from 0 to 1, with an integer sum.
        rng: Generator of the draw.

    Returns:
        ``sum(probability)`` positions, ascending.
    """
    _check_draw(probability, rng)
    return _systematic(probability, rng)


def exact_draw(probability: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw with exact inclusion probabilities in O(n).

    Each position joins one of many groups at random. A group is drawn with the sum P of its
    probabilities, and then one member in proportion, so p_i = P * p_i / P. Members of groups whose
    sum exceeds 1 are drawn individually.

    Args:
        probability: (n,) inclusion probabilities, from 0 to 1, with an integer sum.
        rng: Generator of the draw.

    Returns:
        ``sum(probability)`` positions, ascending.
    """
    _check_draw(probability, rng)
    n = probability.size
    if n <= 4 * N_GROUPS:
        return _systematic(probability, rng)
    # Two random bytes per position, masked, are much faster to draw than bounded integers.
    group = np.frombuffer(rng.bytes(2 * n), dtype="<u2") & (N_GROUPS - 1)
    total = _group_sums(group, probability)
    is_whole = total <= 1.0  # members of the other groups are units of their own
    single = np.zeros(0, dtype=np.int64) if is_whole.all() else np.flatnonzero(~is_whole[group])
    if single.size > n // 2:
        return _systematic(probability, rng)
    whole = np.flatnonzero(is_whole)
    unit: FloatArray = np.concatenate((total[whole], probability[single]))
    order = rng.permutation(unit.size)
    drawn = order[_comb(unit[order], rng)]
    members = _one_per_group(whole[drawn[drawn < whole.size]], group, probability, rng)
    return np.sort(np.concatenate((members, single[drawn[drawn >= whole.size] - whole.size])))


def dependent_rounding(probability: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw by DepRound (Gandhi et al.; E3CS arXiv Alg. 3), two undecided positions at a time.

    A Python loop of n steps: the published draw and a reference, not for large federations.

    Args:
        probability: (n,) inclusion probabilities, from 0 to 1, with an integer sum.
        rng: Generator of the draw.

    Returns:
        ``sum(probability)`` positions, ascending.
    """
    _check_draw(probability, rng)
    p = probability.tolist()
    is_undecided = (probability > SETTLED) & (probability < 1.0 - SETTLED)
    undecided = rng.permutation(np.flatnonzero(is_undecided)).tolist()
    coins = iter(rng.random(len(undecided)))
    while len(undecided) > 1:
        i, j = undecided.pop(), undecided.pop()
        a, b = min(1.0 - p[i], p[j]), min(p[i], 1.0 - p[j])  # line 3
        if next(coins) < b / (a + b):  # line 4
            p[i], p[j] = p[i] + a, p[j] - a
        else:
            p[i], p[j] = p[i] - b, p[j] + b
        undecided += [x for x in (i, j) if SETTLED < p[x] < 1.0 - SETTLED]
    return np.flatnonzero(np.array(p) > 0.5)  # rounding may leave the last one near 0 or 1


def multinomial_without_replacement(
    weight: FloatArray, size: int, rng: np.random.Generator
) -> IntArray:
    """Draw one after the other in proportion to the weights left: journal E3CS Alg. 1, line 4.

    The same distribution as ``torch.multinomial(weight, size, replacement=False)``, by the ``size``
    smallest of ``Exp(1) / weight``. Inclusion probabilities are **not** proportional to the
    weights: even when ``sum(weight) = size``, a weight of 1 is sometimes left out.

    Args:
        weight: (n,) finite weights >= 0. Zeros are drawn, uniformly, only when the positive weights
            run out.
        size: How many to draw, from 0 to n.
        rng: Generator of the draw.

    Returns:
        ``size`` positions, ascending.
    """
    check_vector("weight", weight)
    require.instance("rng", rng, np.random.Generator)
    n = weight.size
    size = require.integer("size", size, minimum=0, maximum=n)
    if n and not (np.isfinite(weight.max()) and weight.min() >= 0.0):
        raise InvalidInput("weight must be finite and >= 0.")
    if size == n or size == 0:
        return np.arange(size)
    is_zero = weight == 0.0
    n_positive = n - int(np.count_nonzero(is_zero))
    if n_positive < size:
        zero = np.flatnonzero(is_zero)
        extra = zero[uniform_draw(zero.size, size - n_positive, rng)]
        return np.sort(np.concatenate((np.flatnonzero(~is_zero), extra)))
    # Exponential clocks: the first to ring is i with probability weight_i / sum, and so on among
    # the rest. So the ``size`` smallest times are the successive draw.
    clock = rng.standard_exponential(n)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        clock /= weight
    # A tiny weight overflows to infinity. It must still come before the weights of 0.
    np.minimum(clock, np.finfo(np.float64).max, out=clock)
    if n_positive < n:
        clock[is_zero] = np.inf
    return top_m(-clock, size, rng).chosen


def _check_draw(probability: FloatArray, rng: np.random.Generator) -> None:
    check_vector("probability", probability)
    require.instance("rng", rng, np.random.Generator)
    total = float(probability.sum())
    size = round(total) if math.isfinite(total) else math.inf
    if not abs(total - size) <= SUM_TOLERANCE * max(1.0, total):
        raise InvalidInput(f"probability must sum to an integer, got {total!r}.")
    if probability.size and (probability.min() < 0.0 or probability.max() > 1.0 + SETTLED):
        raise InvalidInput("probability must be inside [0, 1].")


def _systematic(probability: FloatArray, rng: np.random.Generator) -> IntArray:
    order = rng.permutation(probability.size)
    return np.sort(order[_comb(probability[order], rng)])


def _comb(length: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return the units that teeth at u, u+1, ... hit, for units of length <= 1 laid end to end."""
    if length.size == 0 or length.max() < 1.0 - SETTLED:
        return _teeth(length, rng)
    is_sure = length >= 1.0 - SETTLED
    undecided = np.flatnonzero(~is_sure)
    return np.concatenate((np.flatnonzero(is_sure), undecided[_teeth(length[undecided], rng)]))


def _teeth(length: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return the units that are hit, for units shorter than the distance between teeth."""
    end = np.cumsum(length)
    n_teeth = round(float(end[-1])) if end.size else 0
    if n_teeth == 0:
        return np.zeros(0, dtype=np.int64)
    end *= n_teeth / end[-1]  # rounding errors of the sum must not lose a tooth
    last = math.nextafter(float(end[-1]), 0.0)
    while True:
        teeth = np.minimum(rng.random() + np.arange(n_teeth), last)
        hit: IntArray = np.searchsorted(end, teeth, side="right")
        if (hit[1:] > hit[:-1]).all():  # else rounding put two teeth on a unit of almost 1
            return hit


def _group_sums(group: Array, probability: FloatArray) -> FloatArray:
    """Return the sum of each group, by blocks: bincount copies its input as 64-bit integers."""
    total = np.zeros(N_GROUPS)
    for start in range(0, group.size, BLOCK):
        block = slice(start, start + BLOCK)
        total += np.bincount(group[block], weights=probability[block], minlength=N_GROUPS)
    return total


def _one_per_group(
    drawn: IntArray, group: Array, probability: FloatArray, rng: np.random.Generator
) -> IntArray:
    """Return one member of each drawn group, in proportion to the members' probabilities."""
    is_drawn = np.zeros(N_GROUPS, dtype=np.bool_)
    is_drawn[drawn] = True
    members = np.flatnonzero(is_drawn[group])
    slot = np.zeros(N_GROUPS, dtype=np.int16)
    slot[drawn] = np.arange(drawn.size)
    slot_of = slot[group[members]]
    by_group = np.argsort(slot_of, kind="stable")
    members, slot_of = members[by_group], slot_of[by_group]
    end = np.cumsum(probability[members])
    first = np.searchsorted(slot_of, np.arange(drawn.size), side="left")
    last = np.searchsorted(slot_of, np.arange(drawn.size), side="right") - 1
    start = end[first] - probability[members[first]]
    target = start + rng.random(drawn.size) * (end[last] - start)
    return members[np.clip(np.searchsorted(end, target, side="right"), first, last)]


# Candidates are drawn in proportion to their data, also where its size is unknown.


def known_weights(weight: FloatArray) -> FloatArray:
    """Return the weights as floats, with the mean of the known ones in place of NaN.

    Args:
        weight: (n,) weights, NaN = unknown. If all are unknown, all become 1.
    """
    weight = vector("weight", weight, np.float64)
    unknown = np.isnan(weight)
    if not unknown.any():
        return weight
    reported = weight[~unknown]
    return np.where(unknown, reported.mean() if reported.size else 1.0, weight)


def draw_candidates(
    ctx: RoundContext, candidates: int | None, rng: np.random.Generator
) -> IntArray:
    """Draw d available clients without replacement in proportion to ``num_samples``.

    Args:
        ctx: The round; it must have the column ``num_samples``.
        candidates: d, at least the cohort size; None = twice the cohort. At most everyone available
            is drawn.
        rng: Generator of the draw.

    Returns:
        (d,) client indices, ascending.
    """
    require.instance("ctx", ctx, RoundContext)
    if candidates is None:
        candidates = 2 * ctx.size
    elif require.integer("candidates", candidates, minimum=1) < ctx.cohort_size:
        raise InvalidInput(
            f"candidates must be at least cohort_size = {ctx.cohort_size}, got {candidates}.",
            field="candidates",
        )
    d = min(candidates, ctx.pool.size)
    weight = ctx.of_pool(known_weights(ctx.column("num_samples")))
    return ctx.pool[multinomial_without_replacement(weight, d, rng)]
