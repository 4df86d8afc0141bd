"""What the models of a world have in common: when, how many, whose randomness, what went before.

A model is a small frozen dataclass and a pure function of a ``Moment``. It draws from a stream of
its own, named by its ``WorldStream`` and, for a wrapper around another model, by its level.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np

from turnout.rng import Purpose, stream
from turnout.stateful import Stateful
from turnout.types import Array, BoolArray, FloatArray, IntArray

__all__ = [
    "Availability",
    "Fate",
    "History",
    "Moment",
    "Timing",
    "Volatility",
    "WorldStream",
    "equal_classes",
    "fixed_rng",
    "frozen",
]


class WorldStream(IntEnum):
    """Which model a stream belongs to. Numbers are part of the result: only append."""

    AVAILABILITY = 0
    VOLATILITY = 1
    TIMING = 2
    LOSS = 3
    MINI_BATCH = 4
    POPULATION = 5


#: Room for models inside a stream's key: a wrapper at level 1 uses part + 16, and so on.
_PARTS_PER_LEVEL = 16
#: What a stream of a model is for: the second half of its key.
_BY_ROUND, _FIXED, _BY_BLOCK, _N_USES = range(4)
#: Uniform numbers that are drawn at once, in whole rounds, at least one.
_BLOCK = 8192


class History(Stateful):
    """What was selected before, for the few models that depend on it; ``state()`` saves it."""

    @classmethod
    def fresh(cls, n_clients: int) -> Self:
        """Return the history before the first round."""
        history = cls()
        history.reset(n_clients)
        return history

    def reset(self, n_clients: int) -> None:
        """Forget everything."""
        super().reset(n_clients)
        self.n_chosen_ = np.zeros(n_clients, dtype=np.int64)
        self.took_part_ = np.zeros(n_clients, dtype=np.bool_)

    def record(self, clients: IntArray) -> None:
        """Add the chosen clients of the next round."""
        self.n_chosen_[clients] += 1
        self.took_part_.fill(False)
        self.took_part_[clients] = True


@dataclass(frozen=True, slots=True)
class Moment:
    """One round as a model sees it."""

    round: int
    n_clients: int
    seed: int
    history: History
    workload: FloatArray | None = None  #: (n,) local work, 1 = the mean; None = the same for all

    def worked(self, seconds: FloatArray) -> FloatArray:
        """Return (n,) times of computing, given those of the mean work: in proportion to it."""
        return seconds if self.workload is None else seconds * self.workload

    def rng(self, part: WorldStream, level: int = 0) -> np.random.Generator:
        """Return the model's generator of this round."""
        return stream(self.seed, Purpose.ENV, self.round, _key(part, level, _BY_ROUND))

    def uniforms(self, part: WorldStream, level: int = 0, *, shape: tuple[int, ...]) -> FloatArray:
        """Return the model's uniform numbers of this round, read-only.

        To make a stream costs more than to draw a hundred numbers. So small shapes are drawn for
        many rounds at once, which depends on the shape only, and not on what was asked before.
        """
        n_rounds = max(1, _BLOCK // math.prod(shape))
        draw = _draw_block if n_rounds == 1 else _kept_block
        block, row = divmod(self.round, n_rounds)
        key = _key(part, level, _BY_BLOCK)
        drawn: FloatArray = draw(self.seed, block, key, (n_rounds, *shape))[row]
        return drawn


def fixed_rng(seed: int, part: WorldStream, level: int = 0) -> np.random.Generator:
    """Return the model's generator for what holds throughout a run, such as traits of clients."""
    return stream(seed, Purpose.ENV, 0, _key(part, level, _FIXED))


def _key(part: WorldStream, level: int, use: int) -> int:
    return _N_USES * (part + _PARTS_PER_LEVEL * level) + use


def _draw_block(seed: int, block: int, key: int, shape: tuple[int, ...]) -> FloatArray:
    return frozen(stream(seed, Purpose.ENV, block, key).random(shape))


_kept_block = lru_cache(maxsize=64)(_draw_block)


def frozen(array: Array) -> Array:
    """Return the array, from now on read-only: safe to keep and to hand out."""
    array.setflags(write=False)
    return array


class Fate(NamedTuple):
    """What would happen to every client in a round, whoever is chosen."""

    survived: BoolArray  #: (n,) does not crash
    duration: FloatArray  #: (n,) seconds until the client answers or crashes
    reports_failure: bool  #: whether a crashed client sends an error or nothing


class Availability(ABC):
    """Who can be chosen in a round."""

    @abstractmethod
    def available(self, moment: Moment) -> BoolArray:
        """Return (n,) who is there."""


class _Wrappable:
    """A model that may wrap another of its kind, and may look back."""

    @property
    def uses_history(self) -> bool:
        """Whether it depends on earlier selections; then it differs between selectors."""
        return False

    @property
    def level(self) -> int:
        """0 for a model of its own; one more than the inner model's for a wrapper."""
        return 0


class Volatility(_Wrappable, ABC):
    """Who survives a round."""

    @abstractmethod
    def success_rate(self, moment: Moment) -> FloatArray:
        """Return (n,) the true chance of survival in this round, as a prophet would know it."""

    @abstractmethod
    def survived(self, moment: Moment) -> BoolArray:
        """Return (n,) who does not crash."""

    def classes(self, n_clients: int) -> IntArray:
        """Return (n,) the class of each client, all 0 if there are none."""
        return np.zeros(n_clients, dtype=np.int64)


class Timing(_Wrappable, ABC):
    """How long clients take."""

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

    def classes(self, n_clients: int) -> IntArray:
        """Return (n,) the class of each client, all 0 if there are none."""
        return np.zeros(n_clients, dtype=np.int64)


def equal_classes(n_clients: int, n_classes: int) -> IntArray:
    """Divide clients into consecutive classes of equal size (they differ by at most one).

    >>> equal_classes(6, 4).tolist()
    [0, 0, 1, 2, 2, 3]
    """
    return np.arange(n_clients, dtype=np.int64) * n_classes // n_clients
