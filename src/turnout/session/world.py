"""What a virtual world must offer to replace the wall clock in a simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from turnout.environments import Fate
from turnout.types import Array, FloatArray, IntArray, RoundContext


class World(ABC):
    """Availability, durations and failures of all clients, in virtual time.

    Clients are matched by stable id. Work goes only to the chosen that answer in virtual time, so
    nobody sleeps and nobody trains in vain.
    """

    @property
    @abstractmethod
    def ids(self) -> Sequence[str | int]:
        """The stable ids in the order of the world's clients; they become the roster."""

    @property
    def world_id(self) -> str:
        """A name that is equal for runs in the same world, for the report."""
        return "virtual"

    @property
    def classes(self) -> IntArray | None:
        """(n,) the class of each client for the report, None if there are no classes."""
        return None

    @property
    def class_names(self) -> dict[str, Any] | None:
        """How the classes are called in the report."""
        return None

    @abstractmethod
    def context(
        self, round: int, cohort_size: int, columns: Collection[str], deadline: float
    ) -> RoundContext:
        """Return what the server knows before it chooses, over all clients."""

    @abstractmethod
    def fate(self, round: int) -> Fate:
        """Return what would happen to every client."""

    def metrics(self, round: int) -> Mapping[str, FloatArray] | None:
        """Return (n,) what clients report, or None for what they really report."""
        return None

    def polled_loss(self, round: int, poll_data: Literal["all", "mini-batch"]) -> FloatArray | None:
        """Return (n,) the answers to a poll, or None to ask the clients."""
        return None

    @abstractmethod
    def record(self, chosen: IntArray) -> None:
        """Take note of who was chosen, after each round."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return what the world remembers, for the checkpoint."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what ``state()`` returned."""

    def describe(self) -> dict[str, Any]:
        """Return the world as plain data, for the run's record."""
        return {}
