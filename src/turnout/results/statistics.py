"""Statistics over seeds: means with intervals, tests of differences, aggregates over tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from turnout.core.arrays import numbers
from turnout.core.errors import InvalidInput
from turnout.core.names import import_extra
from turnout.core.types import BoolArray, FloatArray

#: Confidence of all intervals.
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % confidence interval.

    Attributes:
        mean: Mean over the seeds, NaN without any.
        deviation: Standard deviation between seeds, NaN with fewer than two.
        half_width: Half the width of the interval of the mean, NaN with fewer than two seeds.
        n: Number of seeds.
    """

    mean: float
    deviation: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean itself with a single seed."""
        return self.mean if math.isnan(self.half_width) else self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean itself with a single seed."""
        return self.mean if math.isnan(self.half_width) else self.mean + self.half_width

    def over(self, size: float) -> Estimate:
        """Return the same in a unit that is ``size`` times as large."""
        return Estimate(self.mean / size, self.deviation / size, self.half_width / size, self.n)

    def written(self, form: str) -> str:
        """Return the mean with half its 95 % interval.

        >>> estimate([1.0, 2.0, 3.0]).written(".2f")
        '2.00 ± 2.48'
        """
        if self.n == 0:
            return "-"
        mean = format(self.mean, form)
        return mean if self.n < 2 else f"{mean} ± {format(self.half_width, form.lstrip('+'))}"


@lru_cache(maxsize=256)
def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return t with P(abs(T) <= t) = confidence, for Student's T.

    With T = sqrt(f) tan(angle), the density of the angle is proportional to cos(angle)**(f - 1).

    Args:
        degrees: f, degrees of freedom, at least 1.
        confidence: Probability, between 0 and 1.

    >>> round(student_quantile(9), 3)
    2.262
    """
    widest = min(math.pi / 2, 12.0 / math.sqrt(degrees))  # the rest of the density is negligible
    angle = np.linspace(0.0, widest, 20_001)
    density = np.cos(angle) ** (degrees - 1)
    below = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(degrees) * math.tan(float(np.interp(confidence * below[-1], below, angle)))


def estimate(values: Sequence[float] | FloatArray) -> Estimate:
    """Return mean, standard deviation and 95 % interval.

    Args:
        values: One number per seed; NaN and infinite ones are left out.

    >>> mean, deviation, half_width, n = estimate([1.0, 2.0, 3.0])
    >>> mean, round(half_width, 3), n
    (2.0, 2.484, 3)
    """
    finite = numbers("values", values)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(finite.mean())
    if finite.size == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    deviation = float(finite.std(ddof=1))
    half = student_quantile(finite.size - 1) * deviation / math.sqrt(finite.size)
    return Estimate(mean, deviation, half, int(finite.size))


def paired_difference(
    values: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray
) -> Estimate:
    """Return the mean difference to a baseline, seed by seed.

    Args:
        values: One number per seed.
        baseline: Its numbers, for the same seeds in the same order.
    """
    ours, theirs = numbers("values", values), numbers("baseline", baseline)
    if ours.shape != theirs.shape:
        raise InvalidInput(
            f"paired values must have the same seeds, got {ours.size} and {theirs.size}."
        )
    return estimate(ours - theirs)


# --------------------------------------------------------------------------------------------------
# Numbers over several tasks, as Agarwal et al. (2021) propose for few runs: rliable's measures.
#
# Each takes the scores of a method by task, one number per run, and comes with a bootstrap
# interval in which runs are drawn again inside each task. rliable itself is not used: its measures
# are single calls of scipy, and it would bring arch, statsmodels and seaborn.
# --------------------------------------------------------------------------------------------------

#: Share of the runs that the inter-quartile mean leaves out at each end.
_CUT = 0.25
_N_RESAMPLES = 2_000
#: The same runs give the same interval.
_SEED = 0


class Interval(NamedTuple):
    """A number with its 95 % bootstrap interval.

    Attributes:
        value: The number.
        low: Lower end; NaN if a task has fewer than two runs.
        high: Upper end; NaN if a task has fewer than two runs.
    """

    value: float
    low: float
    high: float


def bootstrap_mean(tasks: Sequence[FloatArray]) -> Interval:
    """Return the mean over all runs.

    Args:
        tasks: The scores, one array of runs per task.
    """
    return _bootstrapped(lambda *drawn: np.concatenate(drawn, axis=-1).mean(axis=-1), tasks)


def interquartile_mean(tasks: Sequence[FloatArray]) -> Interval:
    """Return the mean over the middle half of all runs: robust to outliers, unlike the mean.

    Args:
        tasks: The scores, one array of runs per task. Tasks must have a common scale.

    >>> interquartile_mean([np.array([0.0, 1.0, 2.0, 90.0])]).value
    1.5
    """
    stats = _scipy_stats()

    def middle(*drawn: FloatArray) -> Any:
        return stats.trim_mean(np.concatenate(drawn, axis=-1), _CUT, axis=-1)

    return _bootstrapped(middle, tasks)


def probability_of_improvement(
    ours: Sequence[FloatArray], theirs: Sequence[FloatArray]
) -> Interval:
    """Return how likely a run of ours scores higher than one of theirs, on a task drawn at random.

    It is the statistic of Mann and Whitney over the number of pairs; a draw counts half.

    Args:
        ours: The scores of a method by task.
        theirs: The scores of the other one, for the same tasks in the same order.

    >>> probability_of_improvement([np.array([2.0, 3.0])], [np.array([1.0, 2.0])]).value
    0.875
    """

    def share(*drawn: FloatArray) -> Any:
        pairs = zip(drawn[: len(ours)], drawn[len(ours) :], strict=True)
        won = [np.sign(x[..., :, None] - y[..., None, :]).mean(axis=(-2, -1)) for x, y in pairs]
        return (1.0 + np.mean(won, axis=0)) / 2.0

    return _bootstrapped(share, [*ours, *theirs])


def performance_profile(tasks: Sequence[FloatArray], levels: FloatArray) -> FloatArray:
    """Return the share of runs that score higher than each level, mean over tasks.

    Args:
        tasks: The scores, one array of runs per task.
        levels: (k,) the levels.

    >>> performance_profile([np.array([0.1, 0.5])], np.array([0.0, 0.3, 0.5])).tolist()
    [1.0, 0.5, 0.0]
    """
    ecdf = _scipy_stats().ecdf
    shares: FloatArray = np.mean([ecdf(scores).sf.evaluate(levels) for scores in tasks], axis=0)
    return shares


def profile_band(tasks: Sequence[FloatArray], levels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the interval around a performance profile, level by level.

    Args:
        tasks: The scores, one array of runs per task.
        levels: (k,) the levels.

    >>> low, high = profile_band([np.array([0.1, 0.5])], np.array([0.0, 0.3, 0.5]))
    >>> low.tolist(), high.tolist()
    ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0])
    """
    rng, total = np.random.default_rng(_SEED), np.zeros((_N_RESAMPLES, levels.size))
    for scores in tasks:
        drawn = rng.choice(scores, (_N_RESAMPLES, scores.size))
        total += (drawn[:, :, None] > levels).mean(axis=1)
    edge = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(total / len(tasks), [edge, 1.0 - edge], axis=0)
    return low, high


def _bootstrapped(statistic: Callable[..., Any], samples: Sequence[FloatArray]) -> Interval:
    value = float(statistic(*samples))
    if min(sample.size for sample in samples) < 2:
        return Interval(value, math.nan, math.nan)
    resampled = _scipy_stats().bootstrap(
        samples,
        lambda *drawn, axis: statistic(*drawn),
        n_resamples=_N_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(_SEED),
    )
    return Interval(value, *map(float, resampled.confidence_interval))


def _scipy_stats() -> Any:
    return import_extra("scipy.stats", "Intervals need scipy: pip install 'turnout[cli]'.")


# --------------------------------------------------------------------------------------------------
# What speaks for a claim and what against it: the tests behind verdicts and marks.
#
# Each test looks at differences between two schemes, one per seed, and gives two one-sided
# p-values. A claim *holds* when data like these would be rare if it were untrue, it *fails* when
# they would be rare if it were true, and it is *undecided* otherwise. One seed decides nothing.
# --------------------------------------------------------------------------------------------------

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
        times: One time per seed, in the order of the seeds, or (settings, seeds).
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
        times: One time per seed, or (settings, seeds): each seed then counts with its mean.
        others: The times of the other scheme.
        bounds: How long the runs of both were.
    """
    ours, theirs = np.minimum(times, bounds[0]), np.minimum(others, bounds[1])
    ratio: FloatArray = np.atleast_2d(np.log(ours) - np.log(theirs)).mean(axis=0)
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
    values = np.array(list(p_values))
    order = np.argsort(values, kind="stable")
    factors = max(planned, values.size) - np.arange(values.size)
    corrected = np.empty(values.size)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, factors * values[order]))
    return corrected.tolist()


def _student_tail(statistic: float, degrees: int) -> float:
    special = import_extra("scipy.special", "Tests need scipy: pip install 'turnout[cli]'.")
    return float(special.stdtr(degrees, -statistic))


__all__ = [
    "Estimate",
    "estimate",
    "paired_difference",
    "student_quantile",
]
