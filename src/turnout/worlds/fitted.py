"""Models of a federation that ``turnout fit`` has learned from its records.

All of them read one file of arrays, which ``turnout fit`` writes beside the TOML file of the world.
Every client has five effects: its availability, success, duration, loss and number of examples. The
records leave each of them more or less open, so a seed of the world draws them from what is
plausible: runs with several seeds differ by as much as the records leave open.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, NamedTuple, Self

import numpy as np

from turnout.core import require
from turnout.core.domains import CheckedFields, Flag
from turnout.core.errors import InvalidInput
from turnout.core.files import UNREADABLE, read_npz
from turnout.core.types import Array, BoolArray, FloatArray, IntArray
from turnout.worlds.base import (
    Availability,
    Moment,
    Timing,
    Volatility,
    WorldStream,
    fixed_rng,
    frozen,
    sticky_uniforms,
)
from turnout.worlds.environment import Population
from turnout.worlds.trace_files import edition_of

#: The effects of a client, in the order of their columns: the logit of the chance to be available,
#: the logit of the chance to succeed, and the logarithms of seconds, loss level and examples.
EFFECTS = ("availability", "success", "seconds", "loss", "examples")
_AVAILABILITY, _SUCCESS, _SECONDS, _LOSS, _EXAMPLES = range(len(EFFECTS))
#: A drift goes on for this share of the recorded rounds behind their end, and then stops.
DRIFT_GOES_ON = 0.5
#: Log-odds beyond these, and seconds beyond exp of these, are not told apart.
_LIMIT = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class FittedArrays:
    """What was learned, as arrays.

    Attributes:
        mean: (n, 5) the best estimate of each client's effects.
        factor: (n, 5, 5) lower triangular: how uncertain they are.
        population: (5,) mean of the effects over all clients.
        population_error: (5,) its standard errors.
        spread: (5, 5) lower triangular: how the effects differ and belong together.
        stay: (n,) chance that availability is not drawn anew from one round to the next.
        rhythm: (n, 2) what a day adds to the chance to be available: cosine and sine.
        period: () rounds of a day; infinity = no rhythm.
        success_stay: () the same as ``stay``, for success.
        scale: (n,) how much the logarithm of a client's durations varies.
        noise_at: (q,) levels between 0 and 1, rising.
        noise: (q,) the quantiles of the standardised logarithm of durations at these levels.
        round_scale: () how much the logarithm of durations varies from round to round.
        drift: (2,) change of the logarithm of durations per round, and its standard error.
        warm: (2,) what having taken part in the round before adds to it, at the mean client and
            per unit of the client's effect.
        n_rounds: () recorded rounds.
        together: (2,) how much everyone's log-odds to be available swing together, as a standard
            deviation, and the rounds that a swing lasts. Worlds of earlier versions have none.
    """

    mean: FloatArray
    factor: FloatArray
    population: FloatArray
    population_error: FloatArray
    spread: FloatArray
    stay: FloatArray
    rhythm: FloatArray
    period: FloatArray
    success_stay: FloatArray
    scale: FloatArray
    noise_at: FloatArray
    noise: FloatArray
    round_scale: FloatArray
    drift: FloatArray
    warm: FloatArray
    n_rounds: FloatArray
    together: FloatArray

    @property
    def n_clients(self) -> int:
        """Number of clients in the records."""
        return len(self.mean)

    def arrays(self) -> dict[str, Array]:
        """Return all arrays by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return what ``arrays`` returned, checked.

        Args:
            arrays: The arrays by name.

        Raises:
            ValueError: An array is missing, has another shape or holds what is no number.
        """
        arrays = {"together": np.zeros(2), **arrays}
        wanted = [name for name in cls.__slots__ if name not in arrays]
        if wanted:
            raise ValueError(f"it has no array {wanted[0]}")
        found = {name: np.asarray(arrays[name], dtype=np.float64) for name in cls.__slots__}
        n, q, k = len(np.atleast_1d(found["mean"])), np.size(found["noise"]), len(EFFECTS)
        shapes: dict[str, tuple[int, ...]] = {
            "mean": (n, k),
            "factor": (n, k, k),
            "population": (k,),
            "population_error": (k,),
            "spread": (k, k),
            "stay": (n,),
            "rhythm": (n, 2),
            "scale": (n,),
            "noise_at": (q,),
            "noise": (q,),
            "drift": (2,),
            "warm": (2,),
            "together": (2,),
        }
        for name, array in found.items():
            shape = shapes.get(name, ())
            if array.shape != shape:
                raise ValueError(f"{name} must have the shape {shape}, has {array.shape}")
            if not np.isfinite(array).all() and not (name == "period" and array == math.inf):
                raise ValueError(f"{name} holds numbers that are not finite")
        if not n or (np.diff(found["noise_at"]) <= 0.0).any():
            raise ValueError("it holds no clients, or levels that do not rise")
        return cls(**{name: frozen(array) for name, array in found.items()})


def read_arrays(path: str | os.PathLike[str]) -> FittedArrays:
    """Return what ``turnout fit`` wrote.

    Args:
        path: The ``.npz`` beside the TOML file of the world.

    Raises:
        InvalidInput: The file is missing or damaged.
    """
    return _read(Path(path), edition_of(os.fspath(path)))


@lru_cache(maxsize=8)
def _read(path: Path, edition: tuple[int, int]) -> FittedArrays:
    try:
        return FittedArrays.from_arrays(read_npz(path))
    except UNREADABLE as error:
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else error
        raise InvalidInput(
            f"path {path} must be the arrays of a world that turnout fit has written: {reason}. "
            "Fit the world again, or move both files together.",
            field="path",
        ) from error


def _check_source(field: str, source: object) -> None:
    if isinstance(source, FittedArrays) or (isinstance(source, str) and source):
        return
    wanted = f"be set to a file that turnout fit has written, for example {field}=mine.npz"
    raise require.wrong(field, wanted, got=repr(source))


#: What ``turnout fit`` wrote: a path or, in Python, the arrays themselves.
_Source = Annotated[str, _check_source]


def _learned(source: object) -> FittedArrays:
    return source if isinstance(source, FittedArrays) else read_arrays(str(source))


@dataclass(frozen=True, slots=True)
class _Fitted(CheckedFields):
    """A model that reads what was learned.

    Args:
        path: The ``.npz`` that ``turnout fit`` wrote. It must be set.
        draw: Whether the seed draws the clients' effects from what the records leave open.
            Otherwise everyone has the best estimate.
    """

    path: _Source = ""
    draw: Flag = True

    @property
    def learned(self) -> FittedArrays:
        """The arrays."""
        return _learned(self.path)

    def effects(self, n_clients: int, seed: int) -> FloatArray:
        """Return (n, 5) the effects of all clients in the world of a seed.

        Args:
            n_clients: Number of clients of the world. Those that the records lack are drawn from
                the population.
            seed: Seed of the world.
        """
        return _drawn(self.learned, self.draw, n_clients, seed).effects

    def _at(self, moment: Moment) -> _Drawn:
        return _drawn(self.learned, self.draw, moment.n_clients, moment.seed)


class _Drawn(NamedTuple):
    effects: FloatArray
    drift: float
    there: FloatArray  #: (n,) the chance to be available
    survives: FloatArray  #: (n,) the chance to succeed


@lru_cache(maxsize=16)
def _drawn(learned: FittedArrays, draw: bool, n_clients: int, seed: int) -> _Drawn:
    """Return the effects of all clients, and the drift, in the world of a seed."""
    n_known, k = min(n_clients, learned.n_clients), len(EFFECTS)
    rng = fixed_rng(seed, WorldStream.FITTED)
    shift = learned.population_error * rng.standard_normal(k)
    slope = learned.drift[0] + learned.drift[1] * rng.standard_normal()
    own = rng.standard_normal((n_clients, k))
    if not draw:
        shift, slope = np.zeros(k), learned.drift[0]
    factor = learned.factor[:n_known]
    covariance = factor @ factor.transpose(0, 2, 1)
    precision = np.linalg.inv(learned.spread @ learned.spread.T)
    # Where a client's records say little, an error in the population's mean is its error, too.
    effects = np.empty((n_clients, k))
    effects[:n_known] = learned.mean[:n_known] + covariance @ (precision @ shift)
    effects[n_known:] = learned.population + shift
    if draw:
        weight = covariance @ (precision * learned.population_error)
        variance = np.einsum("nii->ni", covariance) + np.square(weight).sum(axis=2)
        effects[:n_known] += np.einsum("nij,nj->ni", factor, own[:n_known])
        effects[:n_known] += _widened(learned.mean[:n_known], variance)
    effects[n_known:] += own[n_known:] @ learned.spread.T
    effects = frozen(np.clip(effects, -_LIMIT, _LIMIT))
    chances = [frozen(_chance(effects[:, column])) for column in (_AVAILABILITY, _SUCCESS)]
    return _Drawn(effects, float(slope), *chances)


def _widened(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Return what is added to log-odds that are drawn, so that the mean chance stays as it was.

    The mean of a logistic function of a normal number is that of its mean, divided by the root of
    1 + pi / 8 times the variance, to a good approximation. Other effects stay as they are.
    """
    added = np.zeros_like(mean)
    chances = [_AVAILABILITY, _SUCCESS]
    root = np.sqrt(1.0 + math.pi / 8.0 * variance[:, chances])
    added[:, chances] = mean[:, chances] * (root - 1.0)
    return added


def _chance(logit: FloatArray) -> FloatArray:
    chance: FloatArray = 1.0 / (1.0 + np.exp(-logit))
    return chance


#: So many waves make up a swing.
_N_WAVES = 32


@lru_cache(maxsize=16)
def _waves(learned: FittedArrays, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return (k,) the angular frequencies of a world's swings, and (k,) their phases."""
    rng = fixed_rng(seed, WorldStream.FITTED, level=1)
    # Waves of these frequencies resemble each other less by a factor of e in so many rounds.
    angular = rng.standard_cauchy(_N_WAVES) / float(learned.together[1])
    return frozen(angular), frozen(rng.uniform(0.0, 2.0 * math.pi, _N_WAVES))


def _swing(learned: FittedArrays, seed: int, round: int) -> float:
    """Return what is added to everyone's log-odds in a round."""
    angular, phase = _waves(learned, seed)
    total = float(np.cos(angular * round + phase).sum())
    return float(learned.together[0]) * math.sqrt(2.0 / _N_WAVES) * total


def _of_clients(values: FloatArray, n_clients: int) -> FloatArray:
    """Return a value for each client of a world; the records' clients repeat if there are more."""
    if n_clients == len(values):
        return values
    return values[np.arange(n_clients) % len(values)]


@dataclass(frozen=True, slots=True)
class FittedAvailability(_Fitted, Availability):
    """Availability as recorded: each client's own chance, its rhythm, and how long it stays.

    Args:
        path: The ``.npz`` that ``turnout fit`` wrote. It must be set.
        draw: Whether the seed draws the clients' effects from what the records leave open.
            Otherwise everyone has the best estimate.
    """

    def chance(self, moment: Moment) -> FloatArray:
        """Return (n,) the chance to be available in this round."""
        learned, n = self.learned, moment.n_clients
        drawn = self._at(moment)
        mean = drawn.there
        if learned.together[0]:
            swing = _swing(learned, moment.seed, moment.round)
            # The mean chance over all swings stays as it is; see _widened.
            wide = math.sqrt(1.0 + math.pi / 8.0 * float(learned.together[0]) ** 2)
            mean = _chance(wide * drawn.effects[:, _AVAILABILITY] + swing)
        if not learned.rhythm.any():
            return mean
        angle = 2.0 * math.pi * (moment.round / float(learned.period))
        day = _of_clients(learned.rhythm, n) @ np.array([math.cos(angle), math.sin(angle)])
        chance: FloatArray = np.clip(mean + day, 0.0, 1.0)
        return chance

    def available(self, moment: Moment) -> BoolArray:
        """Return who is there; a client keeps its state for a while."""
        n = moment.n_clients
        stay = _of_clients(self.learned.stay, n)
        part = WorldStream.AVAILABILITY
        return sticky_uniforms(moment, stay, n, part, 0, self.learned) < self.chance(moment)

    def forecast(self, moment: Moment) -> FloatArray:
        """Return the chance in the next round."""
        return self.chance(dataclasses.replace(moment, round=moment.round + 1))


@dataclass(frozen=True, slots=True)
class FittedSuccess(_Fitted, Volatility):
    """Success as recorded: each client's own chance, and how long failures last.

    Args:
        path: The ``.npz`` that ``turnout fit`` wrote. It must be set.
        draw: Whether the seed draws the clients' effects from what the records leave open.
            Otherwise everyone has the best estimate.
    """

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return each client's chance."""
        return self._at(moment).survives

    def survived(self, moment: Moment) -> BoolArray:
        """Return who does not fail; a client keeps its state for a while."""
        n, stay = moment.n_clients, float(self.learned.success_stay)
        part = WorldStream.VOLATILITY
        return sticky_uniforms(moment, stay, n, part, 0, self.learned) < self.success_rate(moment)


@dataclass(frozen=True, slots=True)
class FittedTimes(_Fitted, Timing):
    """Durations as recorded: a client's and a round's effect, drift, and the recorded tail.

    Args:
        path: The ``.npz`` that ``turnout fit`` wrote. It must be set.
        draw: Whether the seed draws the clients' effects from what the records leave open.
            Otherwise everyone has the best estimate.
    """

    @property
    def uses_history(self) -> bool:
        """Whether a client is faster or slower after a round in which it took part."""
        return bool(self.learned.warm.any())

    def column(self, name: str, moment: Moment) -> Array:
        """Return the mean duration of each client in this round, without the round's effect."""
        learned = self.learned
        swing = 0.5 * float(learned.round_scale) ** 2
        factor = _of_clients(_mean_factor(learned), moment.n_clients)
        return moment.worked(np.exp(self._center(moment) + swing) * factor)

    def duration(self, moment: Moment) -> FloatArray:
        """Return how long everyone takes in this round."""
        learned, n = self.learned, moment.n_clients
        drawn = moment.uniforms(WorldStream.TIMING, shape=(n + 1,))
        level = min(max(float(drawn[n]), 1e-9), 1.0 - 1e-9)
        whole = float(learned.round_scale) * NormalDist().inv_cdf(level)
        noise = np.interp(drawn[:n], learned.noise_at, learned.noise)
        seconds = self._center(moment) + whole + _of_clients(learned.scale, n) * noise
        return moment.worked(np.exp(np.clip(seconds, -_LIMIT, _LIMIT)))

    def spread(self, moment: Moment, levels: FloatArray) -> FloatArray:
        """Return (n, q) the quantiles of each client's duration in a round.

        Args:
            moment: The round.
            levels: (q,) of the quantiles.
        """
        learned, n = self.learned, moment.n_clients
        whole = float(learned.round_scale)
        scale = np.hypot(_of_clients(learned.scale, n), whole)
        noise = np.interp(levels, learned.noise_at, learned.noise)
        seconds = self._center(moment)[:, None] + scale[:, None] * noise
        return np.asarray(np.exp(np.clip(seconds, -_LIMIT, _LIMIT)))

    def _center(self, moment: Moment) -> FloatArray:
        """Return the logarithm of each client's seconds, without noise."""
        learned = self.learned
        drawn = self._at(moment)
        own = drawn.effects[:, _SECONDS]
        n_rounds = float(learned.n_rounds)
        when = min(moment.round, (1.0 + DRIFT_GOES_ON) * n_rounds) - 0.5 * n_rounds
        center: FloatArray = own + drawn.drift * when
        gain, per_effect = learned.warm
        if gain or per_effect:
            warm = gain + per_effect * (own - learned.population[_SECONDS])
            center = center + np.where(moment.history.took_part_, warm, 0.0)
        return center


@lru_cache(maxsize=8)
def _mean_factor(learned: FittedArrays) -> FloatArray:
    """Return (n,) the mean of each client's noise as a factor."""
    levels = (np.arange(200) + 0.5) / 200
    noise = np.interp(levels, learned.noise_at, learned.noise)
    return frozen(np.exp(learned.scale[:, None] * noise).mean(axis=1))


@dataclass(frozen=True, slots=True)
class FittedPopulation(Population):
    """Examples and loss levels of clients as recorded; features are made up from the loss levels.

    Args:
        samples: As in Population; not used.
        tail: As in Population; not used.
        level_spread: As in Population; not used.
        n_features: Number of feature bits, at least 1.
        feature_strength: How strongly bits depend on the loss level, >= 0; 0 = not at all.
        path: The ``.npz`` that ``turnout fit`` wrote. It must be set.
        draw: Whether the seed draws the clients' effects from what the records leave open.
            Otherwise everyone has the best estimate.
    """

    path: _Source = ""
    draw: Flag = True

    def num_samples(self, n_clients: int, seed: int) -> IntArray:
        """Return the number of examples of each client, at least one."""
        examples = np.exp(self._effects(n_clients, seed)[:, _EXAMPLES])
        return np.maximum(np.rint(np.minimum(examples, 1e15)), 1.0).astype(np.int64)

    def loss_level(self, n_clients: int, seed: int) -> FloatArray:
        """Return how high each client's loss is."""
        return np.exp(self._effects(n_clients, seed)[:, _LOSS])

    def _effects(self, n_clients: int, seed: int) -> FloatArray:
        return _drawn(_learned(self.path), self.draw, n_clients, seed).effects
