"""How much each client said first that its answers weigh; a later claim is held against it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import numpy as np

from turnout.bounds import JUMP
from turnout.errors import StateFileError
from turnout.session.post import log
from turnout.types import Array

_FIRST = "examples"


class FirstWords:
    """Weights by client, as they were first said: numbers of examples, or of steps.

    A model is averaged by them, so who says 140 and later 10^9 would take it over. Three times the
    first word is believed, since data may grow.
    """

    def __init__(self) -> None:
        self._first = np.zeros(0)
        self._told: set[int] = set()

    def believed(
        self, client: int, claim: float, known: float = math.nan, name: Hashable = None
    ) -> float:
        """Return how much an answer of a client weighs.

        Args:
            client: Its index.
            claim: What it says now.
            known: What it has said of itself before, NaN if nothing.
            name: Its stable id, for the log.
        """
        self.grow(client + 1)
        if math.isnan(self._first[client]):
            self._first[client] = known if known > 0.0 else claim
        most = JUMP * float(self._first[client])
        if not claim > most or most <= 0.0:
            return claim
        if client not in self._told:
            self._told.add(client)
            log.warning(
                "client %r wants to weigh %g in the average and said %g before: it weighs %g",
                *(client if name is None else name, claim, self._first[client], most),
            )
        return most

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        more = max(0, n_clients - self._first.size)
        self._first = np.pad(self._first, (0, more), constant_values=np.nan)

    def state(self) -> dict[str, Array]:
        """Return the first words."""
        return {_FIRST: self._first}

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Go back to saved first words; earlier versions kept none."""
        first = state.get(_FIRST, np.zeros(0))
        if first.dtype != np.float64 or first.ndim != 1 or first.size > n_clients:
            raise StateFileError(f"claims must be numbers of {n_clients} clients.")
        self._first = np.array(first)
        self.grow(n_clients)
