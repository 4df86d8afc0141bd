"""Numbers over several tasks, as Agarwal et al. (2021) propose for few runs: rliable's measures.

Each takes the scores of a method by task, one number per run, and comes with a bootstrap interval
in which runs are drawn again inside each task. rliable itself is not used: its measures are single
calls of scipy, and it would bring arch, statsmodels and seaborn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnout.names import import_extra
from turnout.statistics.estimates import CONFIDENCE
from turnout.types import FloatArray

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
    interval = (
        _scipy_stats()
        .bootstrap(
            samples,
            lambda *drawn, axis: statistic(*drawn),
            n_resamples=_N_RESAMPLES,
            confidence_level=CONFIDENCE,
            method="percentile",
            random_state=np.random.default_rng(_SEED),
        )
        .confidence_interval
    )
    return Interval(value, float(interval.low), float(interval.high))


def _scipy_stats() -> Any:
    return import_extra("scipy.stats", "Intervals need scipy: pip install 'turnout[cli]'.")
