"""Durations: a fixed time, RBCS-F's linear contextual model, heavy tails, and swapping classes.

Times from device speed and bandwidth are in ``turnout.worlds.devices``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated

import numpy as np

from turnout.core import require
from turnout.core.domains import CheckedFields, Index, NonNegative, Positive, check_fields, number
from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray, IntArray
from turnout.worlds.base import (
    Moment,
    Swap,
    Timing,
    WorldStream,
    Wrapper,
    constant,
    equal_classes,
    frozen,
)


@dataclass(frozen=True, slots=True)
class FixedTime(CheckedFields, Timing):
    """Everyone takes the same time in every round.

    Args:
        seconds: The time, above 0.
    """

    seconds: Positive = 1.0

    def column(self, name: str, moment: Moment) -> Array:
        """Return the fixed time."""
        return self.duration(moment)

    def duration(self, moment: Moment) -> FloatArray:
        """Return the fixed time."""
        return constant(self.seconds, moment.n_clients)


@dataclass(frozen=True, slots=True)
class LinearContextual(Timing):
    """RBCS-F, Sec. 6.1: ``tau = c'theta + noise``, with context ``c = [1/mu, s, M/B]`` (Eq. (14)).

    ``theta = [training_s, cold_start_s, 1 / log(1 + SNR)]`` by class (Table 1). In every round the
    free computing capacity mu and the bandwidth B are drawn uniformly, and the noise uniformly from
    (-c'theta, c'theta). s is 1 for a client that did not take part in the last round (cold start).
    So durations depend on earlier selections, though the draws themselves do not.

    Args:
        training_s: tau_b, seconds of training by class, each above 0.
        cold_start_s: tau_s, extra seconds after a round without the client, >= 0.
        snr: Signal-to-noise ratio by class, as many as ``training_s``, each above 0.
        bandwidth_mhz: Lowest and highest B, in MHz.
        capacity: Lowest and highest mu.
        model_mbit: M, size of the model in megabits, >= 0.
        log_base: Base of the logarithm, above 1. The paper does not state it; 2 is Shannon's.
    """

    columns = frozenset({"context", "expected_duration"})  #: both without the noise

    training_s: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0)
    cold_start_s: NonNegative = 1.0
    snr: tuple[float, ...] = (1000.0, 100.0, 10.0, 1.0)
    bandwidth_mhz: tuple[float, float] = (2.0, 4.0)
    capacity: tuple[float, float] = (0.5, 2.0)
    model_mbit: NonNegative = 20.0
    log_base: Annotated[float, number(above=1.0)] = 2.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("training_s", "snr", "bandwidth_mhz", "capacity"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            for value in values:
                require.number(name, value, above=0.0)
        if len(self.training_s) != len(self.snr) or not self.snr:
            raise InvalidInput(
                "training_s and snr must have one entry per class, got "
                f"{len(self.training_s)} and {len(self.snr)}.",
                field="training_s",
            )
        for name in ("bandwidth_mhz", "capacity"):
            low_high = getattr(self, name)
            if len(low_high) != 2 or low_high[0] > low_high[1]:
                raise InvalidInput(f"{name} must be (lowest, highest), got {low_high}.", field=name)

    @property
    def uses_history(self) -> bool:
        """Whether there is a cold start, which depends on the last selection."""
        return self.cold_start_s > 0.0

    def column(self, name: str, moment: Moment) -> Array:
        """Return ``context`` (n, 3) or ``expected_duration``, c'theta."""
        context = self._context(moment, self._draws(moment))
        return context if name == "context" else self._expected(moment, context)

    def duration(self, moment: Moment) -> FloatArray:
        """Return c'theta with its noise."""
        drawn = self._draws(moment)
        expected = self._expected(moment, self._context(moment, drawn))
        noisy: FloatArray = expected * (2.0 * drawn[2])  # c'theta + U(-c'theta, c'theta)
        return noisy

    def classes(self, n_clients: int) -> IntArray:
        """Return the class of each client, in the order of ``training_s``."""
        return equal_classes(n_clients, len(self.training_s))

    def coefficients(self, n_clients: int) -> FloatArray:
        """Return (n, 3) the true theta of each client."""
        return _coefficients(self, n_clients)

    def _draws(self, moment: Moment) -> FloatArray:
        """Return uniform numbers for mu, B and the noise, (3, n)."""
        return moment.uniforms(WorldStream.TIMING, shape=(3, moment.n_clients))

    def _context(self, moment: Moment, drawn: FloatArray) -> FloatArray:
        (slowest, fastest), (narrowest, widest) = self.capacity, self.bandwidth_mhz
        context = np.empty((moment.n_clients, 3))
        context[:, 0] = 1.0 / (slowest + (fastest - slowest) * drawn[0])  # 1 / mu
        context[:, 1] = ~moment.history.took_part_  # s
        context[:, 2] = self.model_mbit / (narrowest + (widest - narrowest) * drawn[1])  # M / B
        return context

    def _expected(self, moment: Moment, context: FloatArray) -> FloatArray:
        cost = context.copy()
        cost[:, 0] = moment.worked(context[:, 0])  # twice the work takes twice tau_b / mu
        theta = self.coefficients(moment.n_clients)
        expected: FloatArray = np.einsum("nd,nd->n", cost, theta)
        return expected


@lru_cache(maxsize=4)
def _coefficients(model: LinearContextual, n_clients: int) -> FloatArray:
    eta = np.log1p(np.array(model.snr)) / math.log(model.log_base)
    cold = np.full(eta.size, model.cold_start_s)
    theta = np.stack((np.array(model.training_s), cold, 1.0 / eta), axis=1)  # Table 1
    return frozen(theta[model.classes(n_clients)])


class Noise(ABC):
    """A positive random factor with mean 1."""

    @abstractmethod
    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return (size,) factors."""


@dataclass(frozen=True, slots=True)
class Pareto(CheckedFields, Noise):
    """A factor with a power-law tail: P(factor > x) falls like ``x**-shape``.

    Args:
        shape: Exponent of the tail, above 1. Up to 2 the variance is infinite.
    """

    shape: Annotated[float, number(above=1.0)] = 2.5

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return factors of at least (shape - 1) / shape."""
        return (rng.pareto(self.shape, size) + 1.0) * ((self.shape - 1.0) / self.shape)


@dataclass(frozen=True, slots=True)
class LogNormal(CheckedFields, Noise):
    """A log-normal factor.

    Args:
        sigma: Standard deviation of its logarithm, >= 0.
    """

    sigma: NonNegative = 0.5

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return factors around 1."""
        return rng.lognormal(-0.5 * self.sigma**2, self.sigma, size)


@dataclass(frozen=True, slots=True)
class HalfNormal(Noise):
    """The size of a normal number: most work is short, and there is no power-law tail."""

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return factors from 0 upwards."""
        return np.abs(rng.standard_normal(size)) * math.sqrt(0.5 * math.pi)


@dataclass(frozen=True, slots=True)
class _TimingWrapper(Wrapper, Timing):
    """Changes the times of another model."""

    inner: Timing = field(default_factory=FixedTime)

    @property
    def columns(self) -> frozenset[str]:
        """As the inner model."""
        return self.inner.columns

    def column(self, name: str, moment: Moment) -> Array:
        """As the inner model."""
        return self.inner.column(name, moment)


@dataclass(frozen=True, slots=True)
class HeavyTail(_TimingWrapper):
    """Another model's times, each multiplied by a random factor.

    The mean of the factors is 1, so expected durations stay as they are.

    Args:
        inner: The model whose times are multiplied.
        noise: Where the factors come from: ``Pareto`` or ``LogNormal``.
    """

    noise: Noise = field(default_factory=Pareto)

    def duration(self, moment: Moment) -> FloatArray:
        """Multiply the inner model's times."""
        factor = self.noise.draw(moment.n_clients, moment.rng(WorldStream.TIMING, self.level))
        return self.inner.duration(moment) * factor


@dataclass(frozen=True, slots=True)
class SwappingTimes(Swap, _TimingWrapper):
    """Times whose classes swap: from a round on, client i is as fast as client n - 1 - i before.

    The classes are those before the swap.

    Args:
        inner: The model whose classes swap. It must not depend on earlier selections: for
            LinearContextual, ``cold_start_s = 0``.
        at: The first round after the swap, >= 0.
    """

    inner: Timing = field(default_factory=lambda: LinearContextual(cold_start_s=0.0))
    at: Index = 250

    def column(self, name: str, moment: Moment) -> Array:
        """Return the inner column, from the other end after the swap."""
        return self.swapped(self.inner.column(name, self._inside(moment)), moment)

    def duration(self, moment: Moment) -> FloatArray:
        """Return the inner times, from the other end after the swap."""
        return self.swapped(self.inner.duration(self._inside(moment)), moment)

    def _inside(self, moment: Moment) -> Moment:
        """Return the moment with work in the order of the inner model's clients."""
        if moment.workload is None:
            return moment
        return replace(moment, workload=self.swapped(moment.workload, moment))
