"""Who is who: clients come and go under changing addresses, but keep their stable id and index.

New clients join the roster in the order of their stable ids, so that cohorts do not depend on
addresses. A stable id that two connected addresses claim belongs to the one that had it first, also
after a restart; the other stays out until the first has left.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from turnout.roster import Roster
from turnout.session import clock
from turnout.session.columns import Columns
from turnout.session.port import Address, Heard, Identity, Kind
from turnout.session.post import Errand, Errands, log
from turnout.types import Array, BoolArray, IntArray

#: Longest stable id that is accepted.
_LONGEST_ID = 256
#: Seconds that an id may have two addresses: so long a client that has come back under a new one
#: may still be counted as connected under the old one.
_RETURN_S = 120.0


class Members:
    """The clients of a federation, behind the addresses that are connected at the moment."""

    def __init__(
        self,
        roster: Roster,
        errands: Errands,
        *,
        unidentified: Literal["node-id", "exclude"],
        is_closed: bool = False,
    ) -> None:
        self.roster = roster
        self.columns = Columns(len(roster))
        self.connected: set[Address] = set()
        self.reserved: dict[Hashable, float] = {}  #: busy since before a restart, until wall time
        self._errands = errands
        self._unidentified = unidentified
        self._is_closed = is_closed  # nobody joins who is not on the roster
        self._claims: dict[Address, Hashable | None] = {}  #: None = stays out
        self._every_round: dict[Address, frozenset[str]] = {}
        self._said: dict[Address, Mapping[str, Any]] = {}
        self._addresses: dict[Hashable, Address] = {}  #: where each connected client is
        self._disputed: dict[Address, float] = {}  #: since when; minus infinity = it was told
        self._is_bound = False  # whether addresses and clients match since the last change
        self._index: dict[Address, int] = {}  #: client index by address that is connected
        self._bound = np.zeros(0, dtype=np.int64)  #: client indices that are connected

    @property
    def n_connected(self) -> int:
        """Number of clients that are connected and have said who they are, busy or not."""
        if self._is_bound:
            return len(self._addresses)
        claims = (self._claims.get(address) for address in self.connected)
        return len({client for client in claims if client is not None})

    @property
    def connected_clients(self) -> IntArray:
        """Indices of the clients that are connected, busy or not."""
        return self._bound

    @property
    def unknown(self) -> list[Address]:
        """Who is connected and has not said who it is, in order."""
        return sorted(self.connected - self._claims.keys(), key=_order)

    @property
    def bindings(self) -> list[list[Any]]:
        """Stable id and address of each connected client, for the checkpoint."""
        return [[client, address] for client, address in self._addresses.items()]

    def restore(
        self,
        roster: Roster,
        busy: Iterable[Sequence[Any]],
        bindings: Iterable[Sequence[Any]],
        columns: Mapping[str, Array],
    ) -> None:
        """Go back to the clients of a checkpoint; the busy ones stay busy as long as they were.

        If the clock was set back since, they are not busy for longer than when it was written.
        """
        self.roster = roster
        wall = clock.wall()
        self.reserved = {
            client: min([float(until), *(wall + float(seconds) for seconds in left)])
            for client, until, *left in busy  # earlier versions wrote no seconds
        }
        self._addresses = {client: address for client, address in bindings if client in roster}
        self.columns.load_state(columns, len(roster))

    def look(self, connected: Iterable[Address]) -> None:
        """Take note of who is connected."""
        there = set(connected)
        self._is_bound = self._is_bound and there == self.connected
        self.connected = there

    def learn(self, address: Address, heard: Heard) -> None:
        """Take in who is behind an address, or decide what to do without.

        A question that got lost on the way, or whose answer did, is asked again.
        """
        if heard.kind in (Kind.GARBLED, Kind.LOST, Kind.REFUSED):
            return
        self._is_bound = False
        identity = heard.content if isinstance(heard.content, Identity) else Identity(None)
        client = identity.id
        if isinstance(client, Hashable):
            client = self.roster.known_as(client)
        is_sound = (isinstance(client, str) and 0 < len(client) <= _LONGEST_ID) or (
            isinstance(client, int) and not isinstance(client, bool)
        )
        if is_sound and self._is_closed and client not in self.roster:
            log.warning("node %s stays out: there is no client %r in the world", address, client)
            self._claims[address] = None
        elif is_sound:
            self._claims[address] = client
            self._every_round[address] = identity.every_round
            self._said[address] = heard.metrics
        else:
            self._do_without(address, heard.reason or "its stable id is not usable")

    def bind(self) -> None:
        """Match clients to addresses; new clients join in the order of their ids."""
        if self._is_bound and not self._disputed:
            return
        self._addresses = {
            client: address
            for client, address in self._addresses.items()
            if address in self.connected and self._claims.get(address, client) == client
        }
        held = set(self._addresses.values())
        claims = [
            (client, address)
            for address in self.connected - held
            if (client := self._claims.get(address)) is not None
        ]
        disputed = {}
        for client, address in sorted(claims, key=lambda claim: tuple(map(_order, claim))):
            if client in self._addresses:
                disputed[address] = self._dispute(client, address)
            else:
                self._addresses[client] = address
        self._disputed = disputed
        for client in self._addresses:
            self.roster.join(client)
        self.columns.grow(len(self.roster))
        for client, address in self._addresses.items():
            if address in self._said:
                self.columns.put(self.roster.index_of(client), self._said.pop(address))
        for client in self.roster.ids:
            if self.roster.known_as(client) not in self._addresses:
                self.roster.leave(client)
        self._bound = self.roster.indices(self._addresses)
        self._index = dict(zip(self._addresses.values(), self._bound.tolist(), strict=True))
        self._is_bound = True

    def selectable(self) -> BoolArray:
        """Return (n,) who is connected and has nothing unanswered."""
        free = np.zeros(len(self.roster), dtype=np.bool_)
        free[self._bound] = True
        busy = [self._index[address] for address in self._errands.busy if address in self._index]
        wall = clock.wall()
        reserved = [client for client, until in self.reserved.items() if until > wall]
        free[busy] = False
        free[self.roster.indices(reserved)] = False
        return free

    def addresses_of(self, clients: IntArray) -> list[Address]:
        """Return where connected clients are, in their order."""
        return [self._addresses[self.roster.id_of(int(client))] for client in clients]

    def present_of(self, clients: Iterable[int]) -> IntArray:
        """Return those of some clients that are connected."""
        return np.intersect1d(np.fromiter(clients, np.int64), self._bound)

    def known(self, client: Hashable) -> tuple[Hashable, int]:
        """Return the id that a client goes by, and its index; raise if there is no such client."""
        return self.roster.known_as(client), self.roster.index_of(client)

    def index_at(self, address: Address) -> int:
        """Return the index of the client that is connected at an address."""
        return self._index[address]

    def busy_clients(self) -> dict[Hashable, float]:
        """Return who is busy, and until when at the latest, in wall time."""
        now, wall = clock.now(), clock.wall()
        left = {errand.address: errand.expires - now for errand in self._errands.open.values()}
        by_address = {address: client for client, address in self._addresses.items()}
        busy = {by_address[at]: wall + s for at, s in left.items() if at in by_address}
        return {c: until for c, until in self.reserved.items() if until > wall} | busy

    def busy_ids(self) -> list[Hashable]:
        """Return who is connected, but has something unanswered, in the order of the indices."""
        busy = np.setdiff1d(self._bound, np.flatnonzero(self.selectable()))
        return [self.roster.id_of(client) for client in busy.tolist()]

    def hold(self, address: Address, seconds: float) -> None:
        """Keep a client that is late from being chosen, unless it is known to be busy already."""
        if address not in self._errands.busy:
            self._errands.open[f"late:{address}"] = Errand(address, None, clock.now() + seconds)

    def release(self, client: int) -> None:
        """Let a client that was late be chosen again."""
        address = self._addresses.get(self.roster.id_of(client))
        self._errands.open.pop(f"late:{address}", None)

    def changing(self, wanted: Collection[str]) -> list[Address]:
        """Return where free clients are whose columns change and are wanted."""
        free = self.addresses_of(np.flatnonzero(self.selectable()))
        nothing: frozenset[str] = frozenset()
        return [at for at in free if self._every_round.get(at, nothing).intersection(wanted)]

    def _do_without(self, address: Address, why: str) -> None:
        keeps_out = self._unidentified == "exclude" or self._is_closed
        what = "stays out" if keeps_out else "goes by its node id, which changes with every start"
        log.warning("node %s did not say who it is and %s: %s", address, what, why)
        self._claims[address] = None if keeps_out else f"node:{address}"

    def _dispute(self, client: Hashable, address: Address) -> float:
        """Leave out an address whose client is at another; return since when it is so."""
        since = self._disputed.get(address)
        holder = self._addresses[client]
        if since is None:
            log.info(
                "node %s waits: client %r is still connected as node %s", address, client, holder
            )
            return clock.now()
        if clock.now() - since < _RETURN_S:
            return since
        if since > -np.inf:
            log.error(
                "node %s stays out: its stable id %r is that of node %s; every client needs a "
                "stable_id of its own",
                *(address, client, holder),
            )
        return -np.inf


def _order(value: Hashable) -> tuple[str, Any]:
    return type(value).__name__, value
