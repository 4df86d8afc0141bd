"""Steps of Oort that differ between its paper and its authors' code.

The code is FedScale's ``thirdparty/oort``. None of it is copied. Durations below 0 are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.sampling import (
    known_weights,
    kth_largest,
    multinomial_without_replacement,
    uniform_draw,
)

#: Percentile of the durations that T starts at, and what a pacer step adds (authors' code).
FIRST_PERCENTILE, PERCENTILE_STEP = 0.30, 0.05

#: Share of utilities that is not clipped: that of the paper (Sec. 4.4), and of the authors' code,
#: where it is the default of ``clip_bound``.
CLIP_QUANTILE, CLIP_BOUND = 0.95, 0.9

#: Pacer steps from the first percentile to 100 %, and down to one step above 0 (authors' code).
MOST_STEPS = round((1.0 - FIRST_PERCENTILE) / PERCENTILE_STEP)
FEWEST_STEPS = 1 - round(FIRST_PERCENTILE / PERCENTILE_STEP)

#: Fewest clients per place that are admitted, and that are explored from (authors' code).
ADMITTED_PER_PLACE, EXPLORED_PER_PLACE = 10, 5

#: The least utility counts by this factor, and the range of utilities is at least this wide.
LEAST_FACTOR, LEAST_RANGE = 0.999, 1e-4

TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class PaperRules:
    """Alg. 1, with T from the durations seen.

    Args:
        normalize (True or False): Whether clipped utilities are scaled to [0, 1].

    """

    normalize: bool = True

    @property
    def rounds_before(self) -> int:
        """Rounds that the pacer counts before the first."""
        return 0

    def n_exploit(self, size: int, explore: float, decay: float, least: float, t: int) -> int:
        """Return how many places of a cohort go to tried clients in round ``t``."""
        return round((1.0 - max(least, explore * decay**t)) * size)

    def durations(self, seen: FloatArray, expected: FloatArray | None) -> FloatArray:
        """Return (n,) the durations that count."""
        return seen

    def preferred(self, duration: FloatArray, pace: int) -> float:
        """Return T, a percentile of the known durations; 0 without any."""
        durations = duration if duration.min() >= 0.0 else duration[duration >= 0.0]
        share = min(1.0, FIRST_PERCENTILE + PERCENTILE_STEP * pace)
        return _lower_quantile(durations, share) if durations.size else 0.0

    def scaled(self, utility: FloatArray, sizes: Callable[[], FloatArray]) -> FloatArray:
        """Return utilities of tried clients, clipped; ``sizes`` are those of the untried."""
        clip = _lower_quantile(utility, CLIP_QUANTILE) if utility.size > 2 else np.inf
        score = np.minimum(utility, clip)
        if self.normalize:
            lowest, highest = float(score.min()), float(score.max())
            score -= lowest
            score /= max(highest - lowest, TINY)
        return score

    def admitted(self, score: FloatArray, size: int, cutoff: float) -> IntArray:
        """Return the positions that ``size`` places are drawn from: the best, and those near."""
        return np.flatnonzero(score >= cutoff * kth_largest(score, size))

    def explore(
        self,
        n_untried: int,
        size: int,
        expected: FloatArray | None,
        reward: Callable[[], FloatArray],
        rng: np.random.Generator,
    ) -> IntArray:
        """Draw among untried clients, the fast more often where expected durations are known.

        ``reward`` is their size, scaled down for those slower than T.
        """
        if expected is None:
            return uniform_draw(n_untried, size, rng)
        speed = 1.0 / np.maximum(known_weights(expected), TINY)
        return multinomial_without_replacement(speed / speed.max(initial=0.0), size, rng)

    def collected(self, utility: FloatArray, is_exploited: BoolArray) -> float:
        """Return what a round adds to the window of the pacer; NaN is no report."""
        return float(utility[~np.isnan(utility)].sum())

    def pacer_step(self, before: float, latest: float, pace: int) -> int:
        """Return the new pace from the utility of the last two windows."""
        return pace + (before > latest)


class FedScaleRules(PaperRules):
    """The authors' code."""

    @property
    def rounds_before(self) -> int:
        """The code looks back before it chooses, so its first round is empty."""
        return 1

    def n_exploit(self, size: int, explore: float, decay: float, least: float, t: int) -> int:
        """Return the places that exploration leaves; its share decays before the first round."""
        return size - int(size * max(least, explore * decay ** (t + 1)))

    def durations(self, seen: FloatArray, expected: FloatArray | None) -> FloatArray:
        """Return the durations of all registered clients: expected ones for the untried."""
        if expected is None:
            return seen
        return np.where(seen >= 0.0, seen, np.nan_to_num(expected, nan=-1.0))

    def preferred(self, duration: FloatArray, pace: int) -> float:
        """Return T, a percentile over all registered clients; infinite from 100 % on."""
        if pace >= MOST_STEPS:
            return math.inf
        durations = duration[duration >= 0.0]
        percent = round(100 * (FIRST_PERCENTILE + PERCENTILE_STEP * pace))
        return _at(durations, durations.size * percent // 100) if durations.size else 0.0

    def scaled(self, utility: FloatArray, sizes: Callable[[], FloatArray]) -> FloatArray:
        """Scale by 0.999 x the least and by the largest before clipping, over all clients.

        A client that was not tried counts with its number of examples. Only values above 0 count.
        """
        everyone = np.concatenate((utility, sizes()))
        positive = everyone[everyone > 0.0]
        if positive.size == 0:
            return np.zeros_like(utility)
        lowest = LEAST_FACTOR * float(positive.min())
        clip = _at(positive, int(positive.size * CLIP_BOUND))
        width = max(float(positive.max()) - lowest, LEAST_RANGE)
        score: FloatArray = (np.minimum(utility, clip) - lowest) / width
        return score

    def admitted(self, score: FloatArray, size: int, cutoff: float) -> IntArray:
        """Admit clients to the cut-off of the first that misses a place, at least 10 per place."""
        border = cutoff * kth_largest(score, min(size + 1, score.size))
        enough = kth_largest(score, min(ADMITTED_PER_PLACE * size + 1, score.size))
        return np.flatnonzero(score >= min(border, enough))

    def explore(
        self,
        n_untried: int,
        size: int,
        expected: FloatArray | None,
        reward: Callable[[], FloatArray],
        rng: np.random.Generator,
    ) -> IntArray:
        """Draw in proportion to the reward, among the largest."""
        values = reward()
        border = kth_largest(values, min(EXPLORED_PER_PLACE * size, n_untried))
        near = np.flatnonzero(values >= border)
        return near[multinomial_without_replacement(values[near], size, rng)]

    def collected(self, utility: FloatArray, is_exploited: BoolArray) -> float:
        """Return the mean utility of the exploited clients that reported."""
        reported = utility[is_exploited & ~np.isnan(utility)]
        return float(reported.mean()) if reported.size else 0.0

    def pacer_step(self, before: float, latest: float, pace: int) -> int:
        """Relax where two windows differ by 10 % or less, tighten where by 5 times or more."""
        change = abs(latest - before)
        if change <= 0.1 * before:
            return min(pace + 1, MOST_STEPS)
        return max(pace - 1, FEWEST_STEPS) if change >= 5.0 * before else pace


def _lower_quantile(values: FloatArray, share: float) -> float:
    """Return the quantile from below, so that one liar among few clients is clipped too."""
    return _at(values, math.floor(share * (values.size - 1)))


def _at(values: FloatArray, position: int) -> float:
    """Return the value at a position in ascending order, the last behind the end."""
    return kth_largest(values, values.size - min(position, values.size - 1))
