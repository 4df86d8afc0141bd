"""Clients that somebody else reaches: they are enrolled by id, in bulk, and have no addresses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from turnout.roster import Roster
from turnout.session import clock
from turnout.session.columns import Columns
from turnout.session.members import Members
from turnout.session.port import Address
from turnout.session.post import Errands
from turnout.types import Array, BoolArray, FloatArray, IntArray


class Enrolled(Members):
    """The clients of a federation whose ids are their addresses; a million are a matter of seconds.

    A client is there until it is withdrawn. Who is late is not chosen until it is heard of, or its
    time is over.
    """

    def __init__(self, errands: Errands) -> None:
        super().__init__(Roster(), errands, unidentified="exclude")
        self.columns = Columns()
        self._present = np.zeros(0, dtype=np.bool_)
        #: (n,) who can be chosen in the next round, as the caller knows it; None: everyone there.
        self.told: BoolArray | None = None

    @property
    def n_connected(self) -> int:
        """Number of clients that are there, busy or not."""
        return int(np.count_nonzero(self._present))

    @property
    def connected_clients(self) -> IntArray:
        """Indices of the clients that are there, busy or not."""
        return np.flatnonzero(self._present)

    @property
    def bindings(self) -> list[list[Any]]:
        """None: there are no addresses."""
        return []

    def enrol(self, clients: Sequence[Hashable], columns: Mapping[str, FloatArray]) -> int:
        """Add clients in their order, or bring them back; return how many are new.

        Args:
            clients: (k,) stable ids, each once.
            columns: (k,) or (k, d) what each column says about them.
        """
        before = len(self.roster)
        indices = np.fromiter(map(self.roster.join, clients), np.int64, len(clients))
        grown = np.zeros(len(self.roster), dtype=np.bool_)
        grown[:before] = self._present
        grown[indices] = True
        self._present = grown
        self.columns.grow(len(self.roster))
        self.columns.fill(indices, columns)
        return len(self.roster) - before

    def withdraw(self, clients: Iterable[Hashable]) -> None:
        """Take clients out; they keep their index and what was learned about them.

        Args:
            clients: Their ids.
        """
        for client in clients:
            self.roster.leave(client)
            self._present[self.roster.index_of(client)] = False

    def is_there(self, client: Hashable) -> bool:
        """Return whether a client is enrolled and has not been withdrawn."""
        return client in self.roster and bool(self._present[self.roster.index_of(client)])

    def restore(
        self,
        roster: Roster,
        busy: Iterable[Sequence[Any]],
        bindings: Iterable[Sequence[Any]],
        columns: Mapping[str, Array],
    ) -> None:
        """Go back to the clients of a checkpoint; the busy ones stay busy as long as they were."""
        super().restore(roster, busy, bindings, columns)
        self._present = roster.present

    def look(self, connected: Iterable[Address]) -> None:
        """Nothing: who is enrolled is there."""

    def bind(self) -> None:
        """Nothing: there are no addresses."""

    def selectable(self) -> BoolArray:
        """Return (n,) who is there and not busy, or who the caller said."""
        if self.told is not None:
            return self.told & self._present
        free = self._present.copy()
        free[self.roster.indices(self.busy_clients())] = False
        return free

    def addresses_of(self, clients: IntArray) -> list[Address]:
        """Return the ids."""
        return [self.roster.id_of(int(client)) for client in clients]

    def index_at(self, address: Address) -> int:
        """Return the index of a client."""
        return self.roster.index_of(address)

    def busy_clients(self) -> dict[Hashable, float]:
        """Return who is late, and until when at most, in wall time."""
        wall = clock.wall()
        return {client: until for client, until in self.reserved.items() if until > wall}

    def hold(self, address: Address, seconds: float) -> None:
        """Keep a client that is late from being chosen."""
        self.reserved = self.busy_clients() | {address: clock.wall() + seconds}

    def release(self, client: int) -> None:
        """Let a client that was late be chosen again."""
        self.reserved.pop(self.roster.id_of(client), None)
