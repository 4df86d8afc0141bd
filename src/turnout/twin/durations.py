"""How long clients take, from answers that came and answers that were cut off.

The logarithm of a duration is the client's effect, plus what the round, the drift and the round
before add, plus noise of the client's own scale. The distribution of the noise is not assumed: it
is the Kaplan-Meier estimate of the standardised residuals, where an answer that was cut off counts
as longer than that. Its mean beyond a point stands in for what was not seen (Buckley and James).

Where most answers take about as long and some are far faster, the mean of logarithms is a poor
measure of a client: the fast ones hide it. So residuals enter through a score, whose power is the
one that tells most about the clients by the noise that was found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from turnout.core.types import BoolArray, FloatArray, IntArray

#: Levels of the quantiles of the noise.
LEVELS = np.r_[1e-4, 5e-4, 2e-3, (np.arange(200) + 0.5) / 200, 0.998, 0.9995, 0.9999]
_NORMAL = np.array([NormalDist().inv_cdf(float(level)) for level in LEVELS])
#: An effect of the round before, or a drift, is kept if it is so many standard errors from zero.
_CLEAR = 3.0
#: Standard deviation of the logarithm of durations where nothing else is known.
USUAL_SCALE = 0.5
_LEAST_SCALE = 1e-4
#: So many answers in two rounds in a row must be seen for what they change.
_LEAST_WARM = 50
#: The powers that scores may have, and how much less than that of 0 the variance must be.
_POWERS, _WORTHWHILE = (-1.5, -1.0, -0.5, 0.5, 1.0, 1.5), 0.85


@dataclass(frozen=True)
class DurationNoise:
    """The distribution of standardised residuals, with what its tail means.

    Args:
        quantile: Its quantiles at ``LEVELS``.
    """

    quantile: FloatArray = field(default_factory=lambda: _NORMAL)

    @cached_property
    def _values(self) -> FloatArray:
        """(4000,) equally likely residuals, rising."""
        return np.asarray(np.interp((np.arange(4000) + 0.5) / 4000, LEVELS, self.quantile))

    @cached_property
    def _chosen(self) -> tuple[float, float]:
        """The power of the score, and its variance."""
        variance = {power: self._variance(power) for power in _POWERS}
        best = min(_POWERS, key=variance.__getitem__)
        usual = self._variance(0.0)
        return (best, variance[best]) if variance[best] < _WORTHWHILE * usual else (0.0, usual)

    @property
    def variance(self) -> float:
        """The variance of the score: 1 / variance is what one residual says about its client."""
        return self._chosen[1]

    def score(self, residual: FloatArray, power: float | None = None) -> FloatArray:
        """Return what residuals say: their mean is 0, and grows as much as the residuals do.

        Args:
            residual: Standardised residuals.
            power: Of the score; None = the one that says most.
        """
        power = self._chosen[0] if power is None else power
        if not power:
            return residual
        mean = float(np.exp(power * self._values).mean())
        known = np.clip(residual, self.quantile[0] - 1.0, self.quantile[-1] + 1.0)
        return np.asarray((np.exp(power * known) / mean - 1.0) / power)

    def _variance(self, power: float) -> float:
        return max(float(np.var(self.score(self._values, power))), _LEAST_SCALE**2)

    @cached_property
    def _beyond(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """(400,) points, with mean score, mean square and slope of the mean score beyond each."""
        values = self._values
        grid = np.linspace(self.quantile[0] - 0.5, self.quantile[-1], 400)
        left = np.searchsorted(values, grid, side="right")
        n_left = np.maximum(values.size - left, 1)
        least = self.score(grid)
        is_seen = left < values.size
        mean = np.where(is_seen, _sums_from(self.score(values))[left] / n_left, least)
        mean = np.maximum(mean, least)
        square = np.where(is_seen, _sums_from(np.square(values))[left] / n_left, np.square(grid))
        slope = np.clip(np.gradient(mean, grid), 0.0, None)
        return grid, mean, square, slope

    def tail(self, point: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the mean score and the mean square beyond points, and the slope of the mean score.

        Args:
            point: Any number of points.
        """
        grid, mean, square, slope = self._beyond
        far = np.maximum(point, grid[0])
        over = point > grid[-1]  # behind everything that was seen: it took a little longer
        return (
            np.where(over, self.score(point), np.interp(far, grid, mean)),
            np.where(over, np.square(point), np.interp(far, grid, square)),
            np.interp(far, grid, slope),
        )


def _sums_from(values: FloatArray) -> FloatArray:
    """Return (k + 1,) the sums from each place to the end."""
    return np.asarray(np.r_[np.cumsum(values[::-1])[::-1], 0.0])


@dataclass(frozen=True)
class Durations:
    """Durations of a log, and what is common to all clients in them.

    Attributes:
        clients: (d,) whose duration.
        rounds: (d,) in which round.
        warm: (d,) whether the client took part in the round before.
        log_s: (d,) logarithm of the seconds; of an answer that was cut off, until then.
        cut_off: (d,) whether the answer was cut off.
        middle: The round at which the drift is zero.
        scale: (n,) how much the logarithm of a client's durations varies.
        noise: The distribution of the standardised residuals.
        round_scale: How much it varies from round to round.
        drift: Change per round, and its standard error.
        gain: What the round before adds: at the mean client, and per unit of a client's effect.
    """

    clients: IntArray
    rounds: IntArray
    warm: BoolArray
    log_s: FloatArray
    cut_off: BoolArray
    middle: float
    scale: FloatArray
    noise: DurationNoise = field(default_factory=DurationNoise)
    round_scale: float = 0.0
    drift: tuple[float, float] = (0.0, 0.0)
    gain: tuple[float, float] = (0.0, 0.0)

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return self.scale.size

    def start(self, otherwise: float) -> FloatArray:
        """Return (n,) a first guess of the clients' effects.

        Args:
            otherwise: The guess if there is no duration at all.
        """
        count = np.bincount(self.clients, minlength=self.n_clients)
        total = np.bincount(self.clients, self.log_s, minlength=self.n_clients)
        usual = float(np.median(self.log_s)) if self.log_s.size else otherwise
        return np.asarray((total + usual) / (count + 1.0))

    def likelihood(self, own: FloatArray, center: float) -> tuple[FloatArray, FloatArray]:
        """Return slope and curvature of each client's likelihood.

        Args:
            own: (n,) effects of the clients.
            center: Their mean.
        """
        residual, information, _ = self._residuals(own, center)
        scale = np.sqrt(np.square(self.scale) + self.round_scale**2)[self.clients]
        weight = 1.0 / (self.noise.variance * scale)
        return self._sums(weight * residual), self._sums(weight * information / scale)

    def updated(self, own: FloatArray, center: float) -> Durations:
        """Return the same with what is common to all clients learned anew.

        Args:
            own: (n,) effects of the clients.
            center: Their mean.
        """
        if not self.log_s.size:
            return self
        residual, information, square = self._residuals(own, center)
        scale = np.sqrt(np.square(self.scale) + self.round_scale**2)
        unit = scale[self.clients]
        by_round = np.bincount(self.rounds, residual * unit)
        n_pairs = float((np.square(np.bincount(self.rounds)) - np.bincount(self.rounds)).sum())
        shared = (np.square(by_round).sum() - np.square(residual * unit).sum()) / max(n_pairs, 1.0)
        total = float(np.average(np.square(scale), weights=self._counts() + 1e-9))
        total *= self.noise.variance
        is_clear = shared > _CLEAR * total * math.sqrt(2.0 / max(n_pairs, 1.0))
        round_scale = math.sqrt(shared) if is_clear else 0.0
        new = self._rescaled(square * np.square(unit), own)
        spread = np.sqrt(np.maximum(np.square(new) - round_scale**2, _LEAST_SCALE**2))
        return replace(
            self,
            scale=spread,
            round_scale=round_scale,
            noise=self._noise(own, center, np.sqrt(np.square(spread) + round_scale**2)),
            drift=self._drift(residual * unit, information, unit, round_scale),
            gain=self._gain(residual * unit, information, own - center, unit),
        )

    def _offset(self, own: FloatArray, center: float) -> FloatArray:
        """Return (d,) what is not the client's effect and not noise."""
        offset = self.drift[0] * (self.rounds - self.middle)
        gain, per_effect = self.gain
        if gain or per_effect:
            offset = offset + self.warm * (gain + per_effect * (own - center)[self.clients])
        return np.asarray(offset)

    def _residuals(
        self, own: FloatArray, center: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return scores of the residuals, what each says (1 = all), and the residuals' squares."""
        scale = np.sqrt(np.square(self.scale) + self.round_scale**2)[self.clients]
        seen = (self.log_s - self._offset(own, center) - own[self.clients]) / scale
        mean, square, slope = self.noise.tail(seen[self.cut_off])
        residual, information = self.noise.score(seen).copy(), np.ones(seen.size)
        residual[self.cut_off], information[self.cut_off] = mean, slope
        squares = np.square(seen)
        squares[self.cut_off] = square
        return residual, information, squares

    def _counts(self) -> FloatArray:
        return self._sums(np.ones(self.clients.size))

    def _sums(self, values: FloatArray) -> FloatArray:
        sums = np.bincount(self.clients, values, minlength=self.n_clients)
        return sums.astype(np.float64)

    def _rescaled(self, squares: FloatArray, own: FloatArray) -> FloatArray:
        """Return (n,) the scale of each client, shrunk to that of all."""
        count = self._counts()
        free = np.maximum(count - 1.0, 0.0)
        total = self._sums(squares)
        usual = max(float(total.sum() / max(count.sum() - (count > 0).sum(), 1.0)), _LEAST_SCALE**2)
        enough = free >= 4.0
        if enough.sum() < 5:
            return np.full(self.n_clients, math.sqrt(usual))
        variance = np.maximum(total / np.maximum(free, 1.0), _LEAST_SCALE**2)
        heavy = float(np.mean(self.noise.quantile[3:-3] ** 4)) - 1.0
        sampling = max(heavy, 1.0) / free[enough]
        between = float(np.var(np.log(variance[enough])) - sampling.mean())
        imagined = 2.0 / between if between > 0.02 else math.inf
        if math.isinf(imagined):
            return np.full(self.n_clients, math.sqrt(usual))
        typical = float(np.exp(np.mean(np.log(variance[enough]) + 0.5 * sampling)))
        shrunk = (imagined * typical + free * variance) / (imagined + free)
        return np.asarray(np.sqrt(np.maximum(shrunk, _LEAST_SCALE**2)))

    def _noise(self, own: FloatArray, center: float, scale: FloatArray) -> DurationNoise:
        """Return the Kaplan-Meier estimate of the standardised residuals."""
        seen = (self.log_s - self._offset(own, center) - own[self.clients]) / scale[self.clients]
        order = np.lexsort((self.cut_off, seen))
        value, happened = seen[order], ~self.cut_off[order]
        at_risk = np.arange(value.size, 0, -1)
        left = np.cumprod(1.0 - happened / at_risk)
        value, level = value[happened], 1.0 - left[happened]
        if value.size < 20:
            return DurationNoise()
        middle = level - 0.5 * np.diff(level, prepend=0.0)
        quantile: FloatArray = np.asarray(np.interp(LEVELS, middle, value))
        if self.cut_off.any():
            waited = seen[self.cut_off & (seen > value[-1])]
            known_to = float(np.median(waited)) if waited.size else float(value[-1])
            quantile = _with_tail(quantile, float(level[-1]), known_to)
        fine = np.interp((np.arange(2000) + 0.5) / 2000, LEVELS, quantile)
        spread = max(float(fine.std()), 1e-6)
        return DurationNoise(np.asarray((quantile - float(fine.mean())) / spread))

    def _drift(
        self, residual: FloatArray, information: FloatArray, unit: FloatArray, round_scale: float
    ) -> tuple[float, float]:
        """Return the change per round, shrunk, and its standard error."""
        when = self._within(np.asarray(self.rounds - self.middle, dtype=np.float64))
        weight = information / (self.noise.variance * np.square(unit))
        total = float((weight * np.square(when)).sum())
        if total <= 0.0 or self.rounds.max() == self.rounds.min():
            return 0.0, 0.0
        slope = self.drift[0] + float((weight * when * (residual)).sum()) / total
        rounds = np.unique(self.rounds) - self.middle
        swing = round_scale**2 / max(float(np.square(rounds).sum()), 1e-9)
        error = math.sqrt(1.0 / total + swing)
        kept = max(0.0, 1.0 - (error / slope) ** 2) if slope else 0.0
        return kept * slope, error

    def _gain(
        self, residual: FloatArray, information: FloatArray, own: FloatArray, unit: FloatArray
    ) -> tuple[float, float]:
        """Return what the round before adds, if it is clear."""
        if self.warm.sum() < _LEAST_WARM or (~self.warm).sum() < _LEAST_WARM:
            return 0.0, 0.0
        warm = self.warm.astype(np.float64)
        columns = np.stack((self._within(warm), self._within(warm * own[self.clients])))
        weight = information / (self.noise.variance * np.square(unit))
        normal = (columns * weight) @ columns.T
        if not np.isfinite(normal).all() or np.linalg.cond(normal) > 1e10:
            return 0.0, 0.0
        inverse = np.linalg.inv(normal)
        found = np.array(self.gain) + inverse @ ((columns * weight) @ residual)
        if abs(found[1]) < _CLEAR * math.sqrt(inverse[1, 1]):
            found = np.array([found[0], 0.0])
        if abs(found[0]) < _CLEAR * math.sqrt(inverse[0, 0]) and not found[1]:
            found = np.zeros(2)
        return float(found[0]), float(found[1])

    def _within(self, values: FloatArray) -> FloatArray:
        """Return how values differ from their client's mean."""
        mean = self._sums(values) / np.maximum(self._counts(), 1.0)
        return np.asarray(values - mean[self.clients])


def durations_of(
    clients: IntArray,
    rounds: IntArray,
    warm: BoolArray,
    seconds: FloatArray,
    limit: FloatArray,
    n_clients: int,
    n_rounds: int,
) -> Durations:
    """Return the durations of a log, before anything was learned.

    Args:
        clients: (choices,) the chosen clients.
        rounds: (choices,) in which round.
        warm: (choices,) whether the client took part in the round before.
        seconds: (choices,) until the answer; NaN = not known.
        limit: (choices,) seconds after which the client had not answered yet; NaN = not known.
        n_clients: Number of clients.
        n_rounds: Rounds of the log.
    """
    cut_off = np.isnan(seconds) & np.isfinite(limit)
    used = np.isfinite(seconds) | cut_off
    value = np.where(cut_off, limit, seconds)[used]
    return Durations(
        clients[used],
        rounds[used],
        warm[used],
        np.log(value),
        cut_off[used],
        0.5 * n_rounds,
        np.full(n_clients, USUAL_SCALE),
    )


def _with_tail(quantile: FloatArray, reached: float, known_to: float) -> FloatArray:
    """Return quantiles whose end, which nobody showed, goes on like a normal distribution's.

    Args:
        quantile: The quantiles at ``LEVELS``.
        reached: The level of the last answer.
        known_to: The residual until which those that were cut off had not answered.
    """
    is_seen = reached - 1e-3 > LEVELS
    if is_seen.all() or is_seen.sum() < 10:
        return quantile
    last = int(np.flatnonzero(is_seen)[-1])
    back = int(np.searchsorted(LEVELS, LEVELS[last] * 0.5))
    slope = (quantile[last] - quantile[back]) / max(_NORMAL[last] - _NORMAL[back], 1e-6)
    start = max(float(quantile[last]), known_to)
    return np.where(is_seen, quantile, start + slope * (_NORMAL - _NORMAL[last]))
