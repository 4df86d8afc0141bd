"""What clients hold, answer and do in a round: losses of the world, or training of a real model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np

from turnout.environments import Environment
from turnout.types import Array, BoolArray, FloatArray, IntArray, Selection

_NONE: Mapping[str, FloatArray] = MappingProxyType({})


class Work(Protocol):
    """What the chosen clients did; arrays are aligned with the selection."""

    @property
    def is_broken(self) -> BoolArray | None:
        """(s,) who answered with something that cannot be used: they count as failed."""

    @property
    def metrics(self) -> Mapping[str, FloatArray]:
        """(s,) each: what clients reported, NaN for those who did not."""


class Participants(Protocol):
    """The clients' side of the round loop.

    In each round the loop asks ``polled_loss`` if the selector polls, then ``work`` for the chosen,
    then ``measure``. What ``state`` returns is all that is needed to continue behind a round.
    """

    @property
    def columns(self) -> Mapping[str, Array]:
        """(n,) or (n, d) each: what the server knows of their data; replaces the world's."""

    @property
    def workload(self) -> FloatArray | None:
        """(n,) local work in a round relative to the mean client's; None = the same for all."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to do: the run ends here."""

    def reset(self) -> None:
        """Start afresh; called before the first round."""

    def polled_loss(
        self, round: int, clients: IntArray, data: Literal["all", "mini-batch"]
    ) -> FloatArray:
        """Return the loss of some clients, without any work; NaN for no answer.

        Args:
            round: The round.
            clients: Who is asked.
            data: What they evaluate the model on.
        """

    def work(self, selection: Selection, is_completed: BoolArray) -> Work:
        """Let those who completed do the work of a round; the others do nothing at all.

        Args:
            selection: Who was chosen.
            is_completed: (s,) who completes in time.
        """

    def measure(self, round: int, is_last: bool) -> Mapping[str, float]:
        """Return what was measured at the end of a round, by name; empty if nothing was.

        Args:
            round: The round.
            is_last: Whether the run ends with it.
        """

    def state(self) -> dict[str, Array]:
        """Return what has changed since ``reset``, as arrays."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a saved state.

        Args:
            state: What ``state`` returned.
        """


class _Reports(NamedTuple):
    metrics: Mapping[str, FloatArray]
    is_broken: BoolArray | None = None


class Simulated:
    """Clients that train nothing: they report the synthetic losses of their environment.

    Args:
        environment: The environment.
        wanted: The metrics to report.
    """

    columns: Mapping[str, Array] = MappingProxyType({})
    workload: FloatArray | None = None
    is_done = False

    def __init__(self, environment: Environment, wanted: frozenset[str]) -> None:
        self._environment = environment
        self._wanted = wanted

    def reset(self) -> None:
        """Nothing to forget."""

    def polled_loss(
        self, round: int, clients: IntArray, data: Literal["all", "mini-batch"]
    ) -> FloatArray:
        """Return the world's synthetic loss."""
        loss: FloatArray = self._environment.polled_loss(round, data)[clients]
        return loss

    def work(self, selection: Selection, is_completed: BoolArray) -> _Reports:
        """Return the world's metrics; only those who completed report them."""
        if not self._wanted:
            return _Reports(_NONE)
        everyone = self._environment.metrics(selection.round)
        return _Reports(
            {
                name: np.where(is_completed, values[selection.clients], np.nan)
                for name, values in everyone.items()
                if name in self._wanted
            }
        )

    def measure(self, round: int, is_last: bool) -> Mapping[str, float]:
        """Nothing is measured."""
        return _NOTHING

    def state(self) -> dict[str, Array]:
        """Nothing changes."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Nothing to restore."""


_NOTHING: Mapping[str, float] = MappingProxyType({})
