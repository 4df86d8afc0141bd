"""Failures of clients: by class, in spells, after a shift, in groups, by an adversary.

``Reliable``, ``ByClass`` and ``Markov`` stand alone. ``Shifting``, ``Outages`` and ``Adversary``
wrap another model and only add failures: a client that fails in the inner model still fails.
``Swapping`` wraps a model whose classes change places.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

import numpy as np

from turnout.core.domains import (
    CheckedFields,
    Count,
    Fraction,
    Index,
    integer,
    number,
    several,
)
from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.worlds.base import (
    Moment,
    Swap,
    Volatility,
    WorldStream,
    Wrapper,
    constant,
    equal_classes,
    fixed_rng,
    frozen,
    sticky_uniforms,
)

# Sticky two-state chains model spells of failure. Rounds can be requested in any order.


def chain_state(
    moment: Moment, rate: FloatArray, stickiness: float, model: Volatility
) -> BoolArray:
    """Return the state of each chain in a round.

    Args:
        moment: The round.
        rate: (c,) long-run share of rounds in which each chain is True.
        stickiness: Chance that a chain keeps its state for another round instead of drawing anew.
        model: The model that the chains belong to.
    """
    part = WorldStream.VOLATILITY
    return sticky_uniforms(moment, stickiness, rate.size, part, model.level, model) < rate


#: Success rates of the four classes of E3CS, Sec. VI-A.
E3CS_RATES = (0.1, 0.3, 0.6, 0.9)

_Rates = Annotated[
    tuple[float, ...], several("success rates", number(minimum=0.0, maximum=1.0), at_least=1)
]


@dataclass(frozen=True, slots=True)
class Reliable(Volatility):
    """Nobody ever fails."""

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return all ones."""
        return constant(1.0, moment.n_clients)

    def survived(self, moment: Moment) -> BoolArray:
        """Return all True."""
        return constant(True, moment.n_clients)


@dataclass(frozen=True, slots=True)
class ByClass(CheckedFields, Volatility):
    """Independent failures at the rate of the client's class.

    Args:
        rates: Chance of success by class, each from 0 to 1. Classes are consecutive clients,
            equally many in each. The default is that of E3CS, Sec. VI-A.
    """

    rates: _Rates = E3CS_RATES

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return the rate of each client's class."""
        return _rates(self.rates, moment.n_clients)

    def survived(self, moment: Moment) -> BoolArray:
        """Draw everyone once."""
        drawn = moment.uniforms(WorldStream.VOLATILITY, shape=(moment.n_clients,))
        return drawn < _rates(self.rates, moment.n_clients)

    def classes(self, n_clients: int) -> IntArray:
        """Return the class of each client, in the order of ``rates``."""
        return equal_classes(n_clients, len(self.rates))


@dataclass(frozen=True, slots=True)
class Markov(ByClass):
    """Failures that last: each client is a two-state chain with its class's rate in the long run.

    The correlation over d rounds is ``stickiness**d``, and a failure lasts
    ``1 / ((1 - stickiness) * rate)`` rounds on average.

    Args:
        rates: Share of rounds that clients survive, by class, each from 0 to 1. Classes are
            consecutive clients, equally many in each.
        stickiness: Chance that a client keeps its state for another round instead of drawing it
            anew, from 0 (independent rounds) to 1.
    """

    stickiness: Fraction = 0.9

    def survived(self, moment: Moment) -> BoolArray:
        """Return the state of each chain."""
        rate = _rates(self.rates, moment.n_clients)
        return chain_state(moment, rate, self.stickiness, self)


@dataclass(frozen=True, slots=True)
class _FailureWrapper(Wrapper, Volatility):
    """Adds failures to another model."""

    inner: Volatility = field(default_factory=ByClass)


@dataclass(frozen=True, slots=True)
class Shifting(CheckedFields, _FailureWrapper):
    """In some rounds, a share of the clients moves to a worse network and stays there.

    The clients that move are drawn from the seed. Moving a second time changes nothing.

    Args:
        inner: The model that failures are added to.
        at: Rounds in which clients move.
        share: Share of all clients that moves each time, from 0 to 1.
        factor: Success rate after the move divided by the rate before, from 0 to 1.
    """

    at: Annotated[tuple[int, ...], several("rounds", integer(0))] = (500,)
    share: Fraction = 0.25
    factor: Fraction = 0.2

    def moved(self, moment: Moment) -> BoolArray:
        """Return (n,) which clients have moved by this round."""
        n_moves = sum(when <= moment.round for when in self.at)
        n = moment.n_clients
        return _movers(n, moment.seed, self.level, n_moves, round(self.share * n))

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return the inner rate, times ``factor`` for clients that have moved."""
        rate = self.inner.success_rate(moment)
        return np.where(self.moved(moment), self.factor * rate, rate)

    def survived(self, moment: Moment) -> BoolArray:
        """Add failures of clients that have moved."""
        survived = self.inner.survived(moment)
        drawn = moment.uniforms(WorldStream.VOLATILITY, self.level, shape=(moment.n_clients,))
        return survived & ((drawn < self.factor) | ~self.moved(moment))


@dataclass(frozen=True, slots=True)
class Outages(CheckedFields, _FailureWrapper):
    """Groups of clients fail together, as when a region loses its network.

    Args:
        inner: The model that failures are added to.
        n_groups: Number of groups, at least 1; client i is in group ``i % n_groups``.
        rate: Share of rounds in which a group has an outage, from 0 to 1.
        stickiness: Chance that a group keeps its state for another round instead of drawing it
            anew, from 0 to 1, as in ``Markov``.
    """

    n_groups: Count = 10
    rate: Fraction = 0.05
    stickiness: Fraction = 0.0

    def groups(self, n_clients: int) -> IntArray:
        """Return (n,) the group of each client."""
        return np.arange(n_clients, dtype=np.int64) % self.n_groups

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return the inner rate times the share of rounds without an outage."""
        return self.inner.success_rate(moment) * (1.0 - self.rate)

    def survived(self, moment: Moment) -> BoolArray:
        """Fail whole groups."""
        up_rate = _rates((1.0 - self.rate,), self.n_groups)
        is_up = chain_state(moment, up_rate, self.stickiness, self)
        return self.inner.survived(moment) & np.resize(is_up, moment.n_clients)


@dataclass(frozen=True, slots=True)
class Adversary(CheckedFields, _FailureWrapper):
    """Fails the clients that the selector favours: the more often chosen, the likelier to fail.

    A client chosen (1 + e) times as often as the mean so far fails with chance
    ``strength * min(1, e)``, on top of the inner model. Clients chosen less often than the mean
    are left alone. Fates depend on earlier selections, so they differ between selectors. Regret
    against a fixed allocation uses the fates of this run.

    Args:
        inner: The model that failures are added to.
        strength: Chance to fail for a client chosen twice as often as the mean or more, 0 to 1.
    """

    uses_history = True  #: the adversary counts earlier selections

    strength: Fraction = 0.8

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return the inner rate times the chance that the adversary spares the client."""
        return self.inner.success_rate(moment) * self._escape(moment)

    def survived(self, moment: Moment) -> BoolArray:
        """Add failures of the clients chosen more often than the mean."""
        drawn = moment.uniforms(WorldStream.VOLATILITY, self.level, shape=(moment.n_clients,))
        return self.inner.survived(moment) & (drawn < self._escape(moment))

    def _escape(self, moment: Moment) -> FloatArray:
        counts = moment.history.n_chosen_
        mean = max(float(counts.mean()), np.finfo(np.float64).tiny)
        excess = np.clip(counts / mean - 1.0, 0.0, 1.0)
        return 1.0 - self.strength * excess


@dataclass(frozen=True, slots=True)
class Swapping(Swap, _FailureWrapper):
    """Survival whose classes swap: from a round on, client i fares like client n - 1 - i before.

    Args:
        inner: The model whose classes swap.
        at: The first round after the swap, >= 0.
    """

    at: Index = 250

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return the inner rates, from the other end after the swap."""
        return self.swapped(self.inner.success_rate(moment), moment)

    def survived(self, moment: Moment) -> BoolArray:
        """Return the survivors of the inner model, from the other end after the swap."""
        return self.swapped(self.inner.survived(moment), moment)


@lru_cache(maxsize=16)
def _rates(rates: tuple[float, ...], n_clients: int) -> FloatArray:
    return frozen(np.array(rates)[equal_classes(n_clients, len(rates))])


@lru_cache(maxsize=16)
def _movers(n_clients: int, seed: int, level: int, n_moves: int, size: int) -> BoolArray:
    rng = fixed_rng(seed, WorldStream.VOLATILITY, level)
    moved = np.zeros(n_clients, dtype=np.bool_)
    for _ in range(n_moves):
        moved[rng.permutation(n_clients)[:size]] = True
    return frozen(moved)
