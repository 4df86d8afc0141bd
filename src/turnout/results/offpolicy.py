"""What another selector would have brought, estimated from a log alone.

A log holds, round by round, who was chosen and with what chance p, and what came of it: a value y,
such as 1 for an answer in time. A candidate would have chosen client i with chance q. Two facts
make estimates possible:

- **Values add up over clients.** The value of a round is the sum of the values of its places. Its
  mean under the candidate is the sum of q y over all clients, and (q / p) y, summed over the
  *chosen* clients, has the same mean. This is the estimator of Horvitz and Thompson. So each
  client needs the weight q / p of its own chance, not the far larger weight of its whole cohort.
- **Chances come before values.** q and p depend on earlier rounds only. So the errors of the rounds
  have mean 0 whatever happened before, also if logger or candidate learn.

It is assumed that a client's value depends neither on who else is chosen nor on earlier choices.
Round lengths do depend on the others, so they are not estimated here.

Names of the estimators as in Dudik et al., "Doubly Robust Policy Evaluation and Learning" (2011),
and Swaminathan and Joachims, "The Self-Normalized Estimator" (2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from turnout.core.arrays import offsets as checked_offsets
from turnout.core.arrays import vector
from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, IntArray
from turnout.results.statistics import CONFIDENCE, student_quantile

__all__ = ["LEAST_EFFECTIVE", "LEAST_SUPPORT", "Judgement", "Weighted"]

#: Rounds are joined into this many blocks for intervals: values of neighbouring rounds go together.
BLOCKS = 24
#: With fewer effective places than this, a log says nothing about a candidate.
LEAST_EFFECTIVE = 30.0
#: A log in which less of the candidate's choices can occur than this says nothing either.
LEAST_SUPPORT = 0.9
#: It is missing for certain if 1 is so many half intervals above the estimate.
SURE = 2.0
#: If all of n values are equal, no more than 3 / n of the others differ, with 95 % confidence.
RULE_OF_THREE = 3.0
#: With fewer zeros or fewer ones than this, their spread says too little about how many to expect.
ENOUGH = 40.0
#: The variance of a share is at most this many times that of as many even places.
UNEVEN = 2.0


@dataclass(frozen=True)
class Judgement:
    """A value per place with its 95 % interval.

    Attributes:
        mean: The value per place.
        residual: (T,) what each round adds to the error; their sum is 0.
        n_effective: As many places with equal weights would say as much.
        below: What is added to the lower half of the interval.
        above: What is added to the upper half of it.
        is_share: Whether all values are 0 or 1. Then the interval is Wilson's.
        miss: The chance that the interval misses the truth.
    """

    mean: float
    residual: FloatArray
    n_effective: float
    below: float = 0.0
    above: float = 0.0
    is_share: bool = False
    miss: float = 1.0 - CONFIDENCE

    @cached_property
    def _spread(self) -> tuple[float, float]:
        """The standard error, from blocks of rounds, and Student's quantile; NaN with one round."""
        n = min(BLOCKS, self.residual.size)
        if n < 2:
            return math.nan, math.nan
        starts = np.linspace(0, self.residual.size, n, endpoint=False).astype(np.int64)
        blocks = np.add.reduceat(self.residual, starts)
        variance = float(np.sum((blocks - blocks.mean()) ** 2)) * n / (n - 1)
        return math.sqrt(variance), student_quantile(n - 1, 1.0 - self.miss)

    @cached_property
    def _interval(self) -> tuple[float, float]:
        error, quantile = self._spread
        half = quantile * error
        low, high = self.mean - half, self.mean + half
        if self.is_share and not math.isnan(half):
            from_share, to_share = self._of_share(error, quantile)
            # Weights that are not normalised vary more than shares do: then the longer halves hold.
            share = min(max(self.mean, 0.0), 1.0)
            is_share = error**2 <= UNEVEN * share * (1.0 - share) / max(self.n_effective, 1.0)
            low = from_share if is_share else min(low, from_share)
            high = to_share if is_share else max(high, to_share)
        return low - self.below, high + self.above

    def _of_share(self, error: float, quantile: float) -> tuple[float, float]:
        """Return Wilson's interval for as many places as have this standard error.

        Few zeros or few ones may lie in few blocks by chance; then it is for no more places than
        the weights leave.
        """
        share = min(max(self.mean, 0.0), 1.0)
        variance, rare = share * (1.0 - share), min(share, 1.0 - share) * self.n_effective
        n = variance / error**2 if error > 0.0 and variance > 0.0 else math.inf
        if rare < ENOUGH:
            n = max(min(n, self.n_effective), 1.0)
        wider = quantile**2 / n
        center = (share + 0.5 * wider) / (1.0 + wider)
        half = math.sqrt(wider * (variance + 0.25 * wider)) / (1.0 + wider)
        return min(center - half, self.mean), max(center + half, self.mean)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self._interval[1]

    @property
    def half_width(self) -> float:
        """The longer half of the interval; NaN with a single round."""
        return max(self.high - self.mean, self.mean - self.low)

    def minus(self, other: Judgement, n_compared: int = 1) -> Judgement:
        """Return the difference to another judgement of the same rounds.

        Its interval has the spread of the differences. To this it adds what the interval of either
        judgement has beyond its own spread, less if they go up and down together.

        Args:
            other: What is taken away.
            n_compared: How many such differences are looked at. With a chance of 95 %, the
                intervals of all of them hold at once (Bonferroni).
        """
        if other.residual.size != self.residual.size:
            raise InvalidInput("other must be a judgement of the same rounds.", field="other")
        miss = self.miss / n_compared
        ours, theirs = replace(self, miss=miss), replace(other, miss=miss)
        found = Judgement(
            self.mean - other.mean,
            self.residual - other.residual,
            min(self.n_effective, other.n_effective),
            miss=miss,
        )
        apart = math.hypot(ours._spread[0], theirs._spread[0])
        part = min(found._spread[0] / apart, 1.0) if apart > 0.0 else 1.0
        return replace(
            found,
            below=part * max(ours._beyond[0], theirs._beyond[1]),
            above=part * max(ours._beyond[1], theirs._beyond[0]),
        )

    @property
    def _beyond(self) -> tuple[float, float]:
        """What the halves of the interval have beyond the spread, at least 0."""
        half = math.prod(self._spread)
        if math.isnan(half):
            return 0.0, 0.0
        return max(self.mean - self.low - half, 0.0), max(self.high - self.mean - half, 0.0)

    def moved(self, by: float, residual: FloatArray) -> Judgement:
        """Return the judgement with a correction that was estimated from the same rounds.

        Args:
            by: What is added to the mean.
            residual: (T,) what each round adds to the error of the correction.
        """
        return replace(self, mean=self.mean + by, residual=self.residual + residual)


@dataclass(frozen=True)
class Weighted:
    """The choices of a log as a candidate weighs them; round t has ``offsets[t]`` and on.

    Args:
        offsets: (T + 1,) where each round starts.
        logged: (choices,) p, the chance of each choice; NaN is not allowed.
        wanted: (choices,) q, the candidate's chance of the same client.
        places: (T,) how many places the candidate fills: the sum of q over all clients.

    >>> two = Weighted([0, 2, 4], logged=[0.5] * 4, wanted=[1.0, 0.0, 1.0, 0.0], places=[1.0, 1.0])
    >>> two.self_normalised([1.0, 0.0, 0.0, 0.0]).mean
    0.5
    """

    offsets: IntArray
    logged: FloatArray
    wanted: FloatArray
    places: FloatArray

    def __post_init__(self) -> None:
        """Refuse what is no chance."""
        wanted = vector("wanted", self.wanted, np.float64)
        logged = vector("logged", self.logged, np.float64, wanted.size)
        offsets = checked_offsets(self.offsets, wanted.size)
        places = vector("places", self.places, np.float64, offsets.size - 1)
        if not ((logged > 0.0) & (logged <= 1.0)).all():
            raise InvalidInput("logged must be chances above 0 and up to 1.", field="logged")
        if not ((wanted >= 0.0) & (wanted <= 1.0)).all():
            raise InvalidInput("wanted must be chances from 0 to 1.", field="wanted")
        if not (np.isfinite(places).all() and (places >= 0.0).all() and places.sum() > 0.0):
            raise InvalidInput("places must be numbers from 0, some above it.", field="places")
        for name, values in zip(
            ("offsets", "logged", "wanted", "places"),
            (offsets, logged, wanted, places),
            strict=True,
        ):
            object.__setattr__(self, name, values)

    @cached_property
    def weight(self) -> FloatArray:
        """(choices,) q / p."""
        return self.wanted / self.logged

    @property
    def n_effective(self) -> float:
        """As many places with equal weights would say as much (Kish); 0 without any overlap."""
        squares = float(np.sum(self.weight**2))
        return float(np.sum(self.weight)) ** 2 / squares if squares else 0.0

    @cached_property
    def support(self) -> Judgement:
        """The part of the candidate's choices that could occur in the log, 1 if all could.

        It is the mean weight of a place. Its interval says how well the part is known.
        """
        return self._of_totals(self._per_round(self.weight))

    @property
    def problem(self) -> str:
        """Why the log says too little about the candidate; empty if it says enough."""
        if self.n_effective < LEAST_EFFECTIVE:
            return (
                f"the log is too thin for it: {self.n_effective:.0f} effective places of at least "
                f"{LEAST_EFFECTIVE:.0f}"
            )
        is_certain = self.support.mean + SURE * self.support.half_width < 1.0
        if is_certain and self.support.mean < LEAST_SUPPORT:
            return f"the log seems to cover only {self.support.mean:.0%} of its choices".replace(
                "%", " %"
            )
        return ""

    def inverse_propensity(self, value: FloatArray, moving: FloatArray | None = None) -> Judgement:
        """Return the estimate of Horvitz and Thompson: unbiased, and the least precise.

        Args:
            value: (choices,) what came of each choice.
            moving: (T,) what the candidate should bring in each round, by any model. It changes
                the interval only: a candidate that moves to other clients is no noise.
        """
        value = self._values(value)
        return self._of_totals(self._per_round(self.weight * value), value, moving)

    def self_normalised(self, value: FloatArray, moving: FloatArray | None = None) -> Judgement:
        """Return the weighted mean: a little biased in short logs, and more precise.

        Args:
            value: (choices,) what came of each choice.
            moving: As for ``inverse_propensity``.
        """
        value, total = self._values(value), float(self.weight.sum())
        if total <= 0.0:
            return Judgement(math.nan, np.full(self.places.size, math.nan), 0.0)
        mean = float(np.sum(self.weight * value)) / total
        residual = self._per_round(self.weight * (value - mean)) / total
        if moving is not None:
            residual = residual - self._moves(moving)
        return self._judgement(mean, residual, value)

    def doubly_robust(
        self,
        value: FloatArray,
        predicted: FloatArray,
        expected: FloatArray,
        moving: FloatArray | None = None,
    ) -> Judgement:
        """Return what a model of the outcomes expects, corrected by what happened.

        It is unbiased, whatever the model, if the model has seen earlier rounds only.

        Args:
            value: (choices,) what came of each choice.
            predicted: (choices,) what the model expected of it.
            expected: (T,) what it expected of the candidate: the sum of q times the prediction over
                all clients.
            moving: As for ``inverse_propensity``.
        """
        value = self._values(value)
        predicted = vector("predicted", predicted, np.float64, value.size)
        expected = vector("expected", expected, np.float64, self.places.size)
        corrected = expected + self._per_round(self.weight * (value - predicted))
        return self._of_totals(corrected, value, moving)

    def as_logged(self, value: FloatArray) -> Judgement:
        """Return the value per place that the log has.

        Args:
            value: (choices,) what came of each choice.
        """
        same = np.diff(self.offsets).astype(np.float64)
        logger = Weighted(self.offsets, self.logged, self.logged, same)
        return logger.self_normalised(value)

    def _of_totals(
        self, total: FloatArray, value: FloatArray | None = None, moving: FloatArray | None = None
    ) -> Judgement:
        """Return the judgement of (T,) totals of the rounds, made from (choices,) values."""
        places = float(self.places.sum())
        mean = float(total.sum()) / places
        residual = (total - mean * self.places) / places
        if moving is not None:
            residual = residual - self._moves(moving)
        return self._judgement(mean, residual, value)

    def _judgement(self, mean: float, residual: FloatArray, value: FloatArray | None) -> Judgement:
        if value is None:
            return Judgement(mean, residual, self.n_effective)
        seen = value[self.wanted > 0.0]
        if np.isin(seen, (0.0, 1.0)).all():
            return Judgement(mean, residual, self.n_effective, is_share=True)
        slack = 0.0
        if np.ptp(seen) == 0.0:  # the width that no spread shows
            slack = RULE_OF_THREE / max(self.n_effective, 1.0) * max(1.0, abs(float(seen[0])))
        return Judgement(mean, residual, self.n_effective, slack, slack)

    def _moves(self, moving: FloatArray) -> FloatArray:
        """Return (T,) what a round of the candidate differs from its mean by, as a residual."""
        moving = vector("moving", moving, np.float64, self.places.size)
        places = float(self.places.sum())
        return (moving - float(moving.sum()) / places * self.places) / places

    def _values(self, value: FloatArray) -> FloatArray:
        value = vector("value", value, np.float64, self.weight.size)
        if not np.isfinite(value).all():
            raise InvalidInput("value must be finite for every choice.", field="value")
        return value

    def _per_round(self, values: FloatArray) -> FloatArray:
        """Return (T,) sums of the choices of each round."""
        sums = np.concatenate(([0.0], np.cumsum(values)))
        return np.diff(sums[self.offsets])
