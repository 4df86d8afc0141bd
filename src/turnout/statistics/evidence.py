"""What speaks for a claim and what against it: the tests behind verdicts and marks.

Each test looks at differences between two schemes, one per seed, and gives two one-sided p-values.
A claim *holds* when data like these would be rare if it were untrue, it *fails* when they would be
rare if it were true, and it is *undecided* otherwise. One seed decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from turnout.names import import_extra
from turnout.types import BoolArray, FloatArray

#: Chance of a wrong verdict on a claim: half of it on each side.
LEVEL = 0.05

#: A spread below this share of the mean is none: what is left of it is rounding.
ROUNDING = 1e-9


class Evidence(NamedTuple):
    """Two one-sided p-values of a claim.

    Args:
        speaks_for: Chance of data as favourable as these if the claim were untrue.
        speaks_against: Chance of data as unfavourable as these if the claim were true.
        is_exact: Whether the claim is about identical runs, so that chance plays no part.
    """

    speaks_for: float
    speaks_against: float
    is_exact: bool = False


_NOTHING = Evidence(1.0, 1.0)
_NOBODY = np.zeros(0, dtype=np.bool_)


def above(differences: FloatArray, border: float = 0.0) -> Evidence:
    """Test that the mean difference is above a border, with Student's t.

    Args:
        differences: One number per seed. Fewer than two, or one that is not finite (a run that
            diverged), decide nothing.
        border: 0 for "more", minus the margin for "not less".

    >>> above(np.array([1.0, 2.0, 3.0, 2.0])).speaks_for < 0.025
    True
    """
    if differences.size < 2 or not np.isfinite(differences).all():
        return _NOTHING
    mean, deviation = float(differences.mean()) - border, float(differences.std(ddof=1))
    scale = ROUNDING * max(abs(mean + border), abs(border))
    if deviation <= scale:  # t would be certain; a coin that falls on one side each time is not
        always = 0.5**differences.size
        return Evidence(always if mean > scale else 1.0, always if mean < -scale else 1.0)
    statistic = mean / (deviation / math.sqrt(differences.size))
    degrees = differences.size - 1
    return Evidence(_student_tail(statistic, degrees), _student_tail(-statistic, degrees))


def inside(differences: FloatArray, margin: float) -> Evidence:
    """Test that the mean difference is between ``-margin`` and ``margin``.

    These are the two one-sided tests of equivalence. The claim fails if the difference is
    outside on either side.

    Args:
        differences: One number per seed.
        margin: The largest difference that still counts as none; must be above 0.
    """
    low, high = above(differences, -margin), above(-differences, -margin)
    outside = 2.0 * min(low.speaks_against, high.speaks_against)
    return Evidence(max(low.speaks_for, high.speaks_for), min(1.0, outside))


def same(differences: FloatArray) -> Evidence:
    """Test that runs are identical: every difference is exactly 0.

    Args:
        differences: One number per seed.
    """
    if differences.size < 2 or not np.isfinite(differences).all():
        return _NOTHING
    is_same = not differences.any()
    return Evidence(float(not is_same), float(is_same), is_exact=True)


def later(
    times: FloatArray,
    others: FloatArray,
    bounds: tuple[FloatArray, FloatArray],
    factor: float = 1.0,
    at_first: tuple[BoolArray, BoolArray] = (_NOBODY, _NOBODY),
) -> Evidence:
    """Test that times are longer than others by more than a factor; infinity = never got there.

    A run that never reached its target is censored: its time is at least its length, and counts as
    that long for the side that it speaks for. The other side is closed: nothing says how much
    longer it would have taken. In the same way the time of a run that was there when it was first
    looked at is at most that.

    Args:
        times: One time per seed, in the order of the seeds.
        others: The times of the other scheme for the same seeds.
        bounds: How long the runs of both were, one per seed, in the same unit.
        factor: 1 for "later"; 2 for "takes more than twice as long".
        at_first: Whether the runs of both were there at the first look, one per seed. Default: no.
    """
    if np.isnan(times).any() or np.isnan(others).any():  # a run that diverged
        return _NOTHING
    evidence = above(log_ratio(times, others, bounds), math.log(factor))
    return Evidence(
        1.0 if np.isinf(others).any() or at_first[0].any() else evidence.speaks_for,
        1.0 if np.isinf(times).any() or at_first[1].any() else evidence.speaks_against,
    )


def log_ratio(
    times: FloatArray, others: FloatArray, bounds: tuple[FloatArray, FloatArray]
) -> FloatArray:
    """Return the logarithms of times over others, with lengths for what never got there.

    Args:
        times: One time per seed.
        others: The times of the other scheme.
        bounds: How long the runs of both were.
    """
    ours, theirs = np.minimum(times, bounds[0]), np.minimum(others, bounds[1])
    ratio: FloatArray = np.log(ours) - np.log(theirs)
    return ratio


def all_of(parts: Sequence[Evidence]) -> Evidence:
    """Join the tests of a claim that says several things at once.

    It holds only if every part does, so the weakest part counts. It fails if any part does; with
    several parts one of them looks bad by chance more easily, so that p-value is multiplied.

    Args:
        parts: The tests; at least one.
    """
    tested = [part for part in parts if not part.is_exact]
    smallest = min((part.speaks_against for part in tested), default=1.0)
    against = smallest * max(len(tested), 1)
    exact = min((part.speaks_against for part in parts if part.is_exact), default=1.0)
    speaks_for = max(part.speaks_for for part in parts)
    return Evidence(speaks_for, min(1.0, against, exact), is_exact=not tested)


def any_of(parts: Sequence[Evidence], n_places: int) -> Evidence:
    """Combine the tests of a claim that need be true in one place only ("up to").

    It holds if any part does; with several places one of them looks good by chance more easily, so
    that p-value is multiplied. It fails only if every place does.

    Args:
        parts: The tests; at least one.
        n_places: How many places there are, tested or still to be tested.
    """
    speaks_for = min(1.0, n_places * min(part.speaks_for for part in parts))
    is_complete = len(parts) == n_places
    speaks_against = max(part.speaks_against for part in parts) if is_complete else 1.0
    return Evidence(speaks_for, speaks_against)


def holm(p_values: Iterable[float], planned: int = 0) -> list[float]:
    """Return p-values corrected for how many there are (Holm 1979), in the order given.

    Args:
        p_values: One per claim of a page.
        planned: How many there will be; those to come count as 1. Default: these are all.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    >>> holm([0.01, 0.04], planned=3)
    [0.03, 0.08]
    """
    values = list(p_values)
    n_all = max(planned, len(values))
    corrected = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (n_all - rank) * values[index]))
        corrected[index] = largest
    return corrected


def _student_tail(statistic: float, degrees: int) -> float:
    special = import_extra("scipy.special", "Tests need scipy: pip install 'turnout[cli]'.")
    return float(special.stdtr(degrees, -statistic))
