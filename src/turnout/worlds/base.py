"""Shared parts of the models of a world: the round as they see it, their streams and contracts.

A model is a small frozen dataclass and a pure function of a ``Moment``. It draws from a stream of
its own. The stream is named by a ``WorldStream`` and a level: 0, or 1 and more for a model that
wraps another one.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from turnout.core import require
from turnout.core.domains import check_fields
from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.stateful import NOT_NEGATIVE, Stateful
from turnout.core.types import Array, BoolArray, FloatArray, IntArray


class WorldStream(IntEnum):
    """Which model a stream belongs to. The numbers fix the results: only append."""

    AVAILABILITY = 0
    VOLATILITY = 1
    TIMING = 2
    LOSS = 3
    MINI_BATCH = 4
    POPULATION = 5
    CLAIMS = 6
    ENERGY = 7
    FITTED = 7


#: Distance between the keys of two levels: a wrapper at level 1 uses part + 16, and so on.
_PARTS_PER_LEVEL = 16
#: Uses of a model's stream: the second half of its key.
_BY_ROUND, _FIXED, _BY_BLOCK, _N_USES = range(4)
#: About how many uniform numbers are drawn at once: as many whole rounds as fit, at least one.
_BLOCK = 8192


class History(Stateful):
    """Earlier selections, for the few models that depend on them; ``state()`` saves them."""

    state_ranges = MappingProxyType({"n_chosen_": NOT_NEGATIVE, "level_": NOT_NEGATIVE})
    later_state = frozenset({"level_"})

    @classmethod
    def fresh(cls, n_clients: int) -> Self:
        """Return the history before the first round.

        Args:
            n_clients: Number of clients of the world.
        """
        history = cls()
        history.reset(n_clients)
        return history

    def reset(self, n_clients: int) -> None:
        """Forget everything."""
        super().reset(n_clients)
        self.n_chosen_ = np.zeros(n_clients, dtype=np.int64)
        self.took_part_ = np.zeros(n_clients, dtype=np.bool_)
        self.level_ = np.zeros(0)  # joules in each battery; empty in worlds without batteries

    def record(self, clients: IntArray, level: FloatArray | None = None) -> None:
        """Add the clients that were chosen in the next round.

        Args:
            clients: (s,) their indices.
            level: (n,) joules in each battery after it; None in worlds without batteries.
        """
        if level is not None:
            self.level_ = level
        self.n_chosen_[clients] += 1
        self.took_part_.fill(False)
        self.took_part_[clients] = True


@dataclass(frozen=True, slots=True)
class Moment:
    """One round as a model sees it.

    Args:
        round: Number of the round, from 0.
        n_clients: Number of clients of the world.
        seed: Seed of the world.
        history: What was selected in earlier rounds.
        workload: (n,) local work of each client relative to the mean client; None = equal for all.
    """

    round: int
    n_clients: int
    seed: int
    history: History
    workload: FloatArray | None = None

    def worked(self, seconds: FloatArray) -> FloatArray:
        """Return (n,) how long clients compute: the seconds of the mean work times their own work.

        Args:
            seconds: (n,) what the mean work would take each client.
        """
        return seconds if self.workload is None else seconds * self.workload

    def rng(self, part: WorldStream, level: int = 0) -> np.random.Generator:
        """Return the model's generator of this round.

        Args:
            part: The model's stream.
            level: The model's level, 0 if it wraps no other.
        """
        return stream(self.seed, Purpose.ENV, self.round, _key(part, level, _BY_ROUND))

    def uniforms(self, part: WorldStream, level: int = 0, *, shape: tuple[int, ...]) -> FloatArray:
        """Return the model's uniform numbers of this round, read-only.

        Creating a stream costs more than drawing a hundred numbers, so small shapes are drawn for
        many rounds at once. The numbers depend on the shape, never on earlier calls.

        Args:
            part: The model's stream.
            level: The model's level, 0 if it wraps no other.
            shape: Shape of the array.
        """
        # A block holds whole rounds. Its number and shape fix the numbers, so rounds may be asked
        # for in any order.
        n_rounds = max(1, _BLOCK // math.prod(shape))
        draw = _draw_block if n_rounds == 1 else _kept_block
        block, row = divmod(self.round, n_rounds)
        key = _key(part, level, _BY_BLOCK)
        drawn: FloatArray = draw(self.seed, block, key, (n_rounds, *shape))[row]
        return drawn


def fixed_rng(seed: int, part: WorldStream, level: int = 0) -> np.random.Generator:
    """Return the model's generator for what never changes during a run, such as traits of clients.

    Args:
        seed: Seed of the world.
        part: The model's stream.
        level: The model's level, 0 if it wraps no other.
    """
    return stream(seed, Purpose.ENV, 0, _key(part, level, _FIXED))


def _key(part: WorldStream, level: int, use: int) -> int:
    return _N_USES * (part + _PARTS_PER_LEVEL * level) + use


def _draw_block(seed: int, block: int, key: int, shape: tuple[int, ...]) -> FloatArray:
    return frozen(stream(seed, Purpose.ENV, block, key).random(shape))


_kept_block = lru_cache(maxsize=64)(_draw_block)


def sticky_uniforms(
    moment: Moment,
    stickiness: FloatArray | float,
    size: int,
    part: WorldStream,
    level: int,
    owner: object,
) -> FloatArray:
    """Return uniform numbers that last: each keeps its value for a while, then is drawn anew.

    A number is what was drawn when it was last drawn. So look back from the round until every one
    was drawn, or until the round that was asked for last. That answer is only kept for speed: the
    numbers are a function of seed and round, whatever was requested before.

    Args:
        moment: The round.
        stickiness: Chance that a number is kept for another round, one for all or (size,).
        size: How many numbers.
        part: The stream.
        level: The level of the model, 0 if it wraps no other.
        owner: What the numbers belong to; it must be hashable.
    """
    last = _last_answer(owner, part, moment.n_clients, moment.seed)
    last_round, last_value = last[0]
    value = np.zeros(size)
    is_open = np.ones(size, dtype=np.bool_)
    for round in range(moment.round, -1, -1):
        if round == last_round:
            value[is_open] = last_value[is_open]
            break
        at = Moment(round, moment.n_clients, moment.seed, moment.history)
        keep, drawn = at.uniforms(part, level, shape=(2, size))
        draws = is_open & (keep >= stickiness) if round else is_open
        value[draws] = drawn[draws]
        is_open &= ~draws
        if not is_open.any():
            break
    last[0] = (moment.round, frozen(value))
    return value


@lru_cache(maxsize=32)
def _last_answer(
    owner: object, part: WorldStream, n_clients: int, seed: int
) -> list[tuple[int, FloatArray]]:
    """Return a list of one pair, the last round asked for and its numbers; -1 = none yet."""
    return [(-1, np.zeros(0))]


def frozen(array: Array) -> Array:
    """Make an array read-only, so that it can be kept and shared, and return it."""
    array.setflags(write=False)
    return array


@lru_cache(maxsize=8, typed=True)
def constant(value: float | bool, n_clients: int) -> Array:
    """Return (n,) the same value for every client, read-only.

    Args:
        value: A number or a truth value, which sets the type of the array.
        n_clients: Number of clients.
    """
    return frozen(np.full(n_clients, value))


class Fate(NamedTuple):
    """What would happen to every client in a round, if it were chosen.

    Attributes:
        survived: (n,) whether the client finishes without a crash.
        duration: (n,) seconds until the client answers or crashes.
        reports_failure: Whether a crashed client sends an error; otherwise it sends nothing.
    """

    survived: BoolArray
    duration: FloatArray
    reports_failure: bool


class Availability(ABC):
    """Decides which clients can be chosen in a round."""

    @abstractmethod
    def available(self, moment: Moment) -> BoolArray:
        """Return (n,) which clients are available."""

    def forecast(self, moment: Moment) -> FloatArray:
        """Return (n,) what clients say of the next round: their chance to be available in it.

        The default is that of recorded clients, who know their habits: they are right.
        """
        return self.available(dataclasses.replace(moment, round=moment.round + 1)).astype(
            np.float64
        )


class _Wrappable:
    """A model that may wrap another of its kind, and may depend on earlier selections."""

    @property
    def uses_history(self) -> bool:
        """Whether it depends on earlier selections, and so differs between selectors."""
        return False

    @property
    def level(self) -> int:
        """0 for a model that wraps no other, else one more than the inner model's."""
        return 0

    def classes(self, n_clients: int) -> IntArray:
        """Return (n,) the class of each client, all 0 if there are none."""
        return np.zeros(n_clients, dtype=np.int64)


class Wrapper(_Wrappable):
    """A model that changes another of its kind."""

    inner: _Wrappable

    @property
    def uses_history(self) -> bool:
        """As the inner model."""
        return self.inner.uses_history

    @property
    def level(self) -> int:
        """One more than the inner model's."""
        return self.inner.level + 1

    def classes(self, n_clients: int) -> IntArray:
        """As the inner model."""
        return self.inner.classes(n_clients)


class Swap(Wrapper):
    """A model whose classes swap: from a round on, the last client comes first."""

    at: int

    def __post_init__(self) -> None:
        """Check that the classes can swap: the inner model does not depend on selections."""
        check_fields(self)
        kind = Volatility if isinstance(self, Volatility) else Timing
        require.instance("inner", self.inner, kind)
        if self.inner.uses_history:
            raise InvalidInput(
                f"inner must not depend on earlier selections, and {type(self.inner).__name__} "
                "does; for LinearContextual set cold_start_s = 0.",
                field="inner",
            )

    @property
    def level(self) -> int:
        """As the inner model: nothing is drawn."""
        return self.inner.level

    def swapped(self, values: Array, moment: Moment) -> Array:
        """Return values of all clients, from the other end after the swap.

        Args:
            values: (n, ...) in the order of clients.
            moment: The round.
        """
        return values[::-1] if moment.round >= self.at else values


class Volatility(_Wrappable, ABC):
    """Decides which clients survive a round."""

    @abstractmethod
    def success_rate(self, moment: Moment) -> FloatArray:
        """Return (n,) the true chance of survival in this round, which no server can know."""

    @abstractmethod
    def survived(self, moment: Moment) -> BoolArray:
        """Return (n,) which clients do not crash."""


class Timing(_Wrappable, ABC):
    """Computes how long clients take."""

    @property
    def columns(self) -> frozenset[str]:
        """Columns that the model can fill; ``expected_duration`` is always among them."""
        return frozenset({"expected_duration"})

    @abstractmethod
    def column(self, name: str, moment: Moment) -> Array:
        """Return one of ``columns``."""

    @abstractmethod
    def duration(self, moment: Moment) -> FloatArray:
        """Return (n,) seconds from selection to answer."""


def equal_classes(n_clients: int, n_classes: int) -> IntArray:
    """Divide clients into consecutive classes of equal size (they differ by at most one client).

    Args:
        n_clients: Number of clients.
        n_classes: Number of classes.

    >>> equal_classes(6, 4).tolist()
    [0, 0, 1, 2, 2, 3]
    """
    return np.arange(n_clients, dtype=np.int64) * n_classes // n_clients
