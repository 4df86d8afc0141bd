"""The clients of a live run: who they are, what they report about themselves, who is free.

Clients connect under changing addresses, but keep their stable id and index. New clients join the
roster in the order of their stable ids, so that cohorts do not depend on addresses. If two
connected addresses claim the same stable id, it belongs to the one that had it first, also after a
restart. The other one is excluded until the first has left.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from turnout.core.arrays import COLUMN_LIMITS
from turnout.core.roster import Roster
from turnout.core.types import LARGEST_REPORT, Array, BoolArray, FloatArray, IntArray
from turnout.live.checkpoint import Checkpoint
from turnout.live.transport import Address, Identity, Kind, Question, Reply, Ticket, clock, log

#: Seconds after its time-to-live until a request counts as expired.
_GRACE_S = 1.0
#: Longest code or context that is kept.
MOST_NUMBERS = 100_000
#: The same of a column that nothing in the run uses: all clients get room for it.
MOST_UNASKED = 16
#: Columns that are kept in addition to those that the selector uses.
MOST_COLUMNS = 64
#: Longest stable id that is accepted.
_LONGEST_ID = 256
#: Seconds for which an id may have two addresses: a client that reconnects under a new address may
#: still count as connected under the old one.
_RETURN_S = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request without a reply."""

    address: Address
    question: Question | None  #: None: work
    expires: float  #: on ``clock.now()``
    sent: float = 0.0  #: on ``clock.now()``
    work: tuple[Hashable, int] | None = None  #: stable id and choice, where rounds overlap


@dataclass
class PendingRequests:
    """All requests without a reply, by ticket."""

    open: dict[Ticket, Request] = field(default_factory=dict)

    @property
    def busy(self) -> set[Address]:
        """The clients that have not answered everything yet."""
        return {request.address for request in self.open.values()}

    def expire(self) -> list[Ticket]:
        """Forget the requests that have expired, and return their tickets."""
        late = clock.now() - _GRACE_S
        expired = [ticket for ticket, request in self.open.items() if request.expires < late]
        for ticket in expired:
            del self.open[ticket]
        return expired


class Columns:
    """What clients report about themselves: numbers by column and client index, NaN = unknown.

    Impossible numbers count as unknown.
    """

    def __init__(self, n_clients: int = 0) -> None:
        self.n_clients = n_clients
        self.wanted: frozenset[str] = frozenset()  #: columns for which there is always room
        self._values: dict[str, FloatArray] = {}

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        if n_clients != self.n_clients:
            for name, old in self._values.items():
                more = np.full((n_clients - len(old), *old.shape[1:]), np.nan)
                self._values[name] = np.concatenate([old, more])
            self.n_clients = n_clients

    def put(self, client: int, record: Mapping[str, Any]) -> None:
        """Add what a client reports; what does not fit is left out and logged."""
        new = [name for name in record if name not in self._values and name not in self.wanted]
        left_out = set(new[max(0, MOST_COLUMNS - len(self._values)) :])
        if left_out:
            log.warning("client %d: %d of its columns are left out", client, len(left_out))
        for name, claim in record.items():
            if name in left_out:
                continue
            try:
                value = np.asarray(claim, dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                log.warning("client %d: column %r is not numbers, left out", client, name)
                continue
            most = MOST_NUMBERS if name in self.wanted else MOST_UNASKED
            is_wrong = value.ndim > (name not in COLUMN_LIMITS) or value.size > most
            shape = value.shape
            if is_wrong or self.shape_of(name) not in (None, shape):
                log.warning("client %d: column %r has shape %s, left out", client, name, shape)
                continue
            self.fill(np.array([client]), {name: value[np.newaxis]})

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of what each client has in a column; None if there is no such column."""
        column = self._values.get(name)
        return None if column is None else column.shape[1:]

    def fill(self, clients: IntArray, record: Mapping[str, FloatArray]) -> None:
        """Add what many clients report at once; the caller has checked the shapes.

        Args:
            clients: (k,) their indices.
            record: (k,) or (k, d) for each column.
        """
        for name, values in record.items():
            if name not in self._values:
                self._values[name] = np.full((self.n_clients, *values.shape[1:]), np.nan)
            self._values[name][clients] = _possible(name, values)

    def number(self, name: str, client: int) -> float:
        """Return the number of a client in a column of single numbers; NaN if it is not known."""
        values = self._values.get(name)
        return float("nan") if values is None or values.ndim > 1 else float(values[client])

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the columns that no client has filled, in order."""
        return sorted(set(names) - self._filled(names).keys())

    def take(self, names: Collection[str]) -> dict[str, Array]:
        """Return those of the columns that a client has filled, for a context."""
        return {name: values.copy() for name, values in self._filled(names).items()}

    def state(self) -> dict[str, Array]:
        """Return all columns."""
        return dict(self._values)

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Continue from the saved columns of this many clients."""
        self._values = {name: np.array(values, dtype=np.float64) for name, values in state.items()}
        self.n_clients = n_clients

    def _filled(self, names: Collection[str]) -> dict[str, FloatArray]:
        there = {name: values for name, values in self._values.items() if name in names}
        return {name: values for name, values in there.items() if not np.isnan(values).all()}


class Members:
    """The clients of a federation, behind the addresses that are connected at the moment.

    Args:
        roster: Clients that are known in advance.
        unidentified: How anonymous clients are treated.
        is_closed: Whether only clients of the roster may join.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        unidentified: Literal["node-id", "exclude"],
        is_closed: bool = False,
    ) -> None:
        self.roster = roster
        self.columns = Columns(len(roster))
        self.connected: set[Address] = set()
        #: Late, or busy since before a restart, and until when in wall time.
        self.reserved: dict[Hashable, float] = {}
        self.pending = PendingRequests()  #: requests that clients have not answered
        self._unidentified = unidentified
        self._is_closed = is_closed
        self._claims: dict[Address, Hashable | None] = {}  #: None = excluded
        self._every_round: dict[Address, frozenset[str]] = {}
        self._reported: dict[Address, Mapping[str, Any]] = {}
        self._addresses: dict[Hashable, Address] = {}  #: where each connected client is
        self._disputed: dict[Address, float] = {}  #: since when; minus infinity = it was logged
        self._is_bound = False  # whether addresses and clients match since the last change
        self._index: dict[Address, int] = {}  #: client index by address that is connected
        self._bound = np.zeros(0, dtype=np.int64)  #: client indices that are connected

    @property
    def n_connected(self) -> int:
        """Number of connected clients with a known identity, busy or not."""
        if self._is_bound:
            return len(self._addresses)
        return len({self._claims.get(address) for address in self.connected} - {None})

    @property
    def connected_clients(self) -> IntArray:
        """Indices of the clients that are connected, busy or not."""
        return self._bound

    @property
    def unknown(self) -> list[Address]:
        """Connected addresses without a known identity, in order."""
        return sorted(self.connected - self._claims.keys(), key=_order)

    @property
    def bindings(self) -> list[list[Any]]:
        """Stable id and address of each connected client, for the checkpoint."""
        return [[client, address] for client, address in self._addresses.items()]

    def restore(self, roster: Roster, saved: Checkpoint) -> None:
        """Continue with the clients of a checkpoint; busy clients stay busy as long as before.

        If the clock was set back since, they are not busy for longer than when it was written.

        Args:
            roster: Its clients.
            saved: The checkpoint.
        """
        self.roster = roster
        wall = clock.wall()
        self.reserved = {
            client: min([float(until), *(wall + float(seconds) for seconds in left)])
            for client, until, *left in saved.busy  # earlier versions wrote no seconds
        }
        self._addresses = {client: at for client, at in saved.bindings if client in roster}
        self.columns.load_state(saved.arrays.get("columns", {}), len(roster))

    def update(self, connected: Iterable[Address]) -> None:
        """Set which addresses are connected."""
        there = set(connected)
        self._is_bound = self._is_bound and there == self.connected
        self.connected = there

    def identify(self, address: Address, reply: Reply) -> None:
        """Store the identity behind an address, or decide how to treat an anonymous client.

        If the question or its answer was lost, the question is asked again.
        """
        if reply.kind in (Kind.GARBLED, Kind.LOST, Kind.REFUSED):
            return
        self._is_bound = False
        identity = reply.content if isinstance(reply.content, Identity) else Identity(None)
        client = identity.id
        if isinstance(client, Hashable):
            client = self.roster.known_as(client)
        is_sound = (isinstance(client, str) and 0 < len(client) <= _LONGEST_ID) or (
            isinstance(client, int) and not isinstance(client, bool)
        )
        if is_sound and self._is_closed and client not in self.roster:
            log.warning("node %s is excluded: the world has no client %r", address, client)
            self._claims[address] = None
        elif is_sound:
            self._claims[address] = client
            self._every_round[address] = identity.every_round
            self._reported[address] = reply.metrics
        else:
            is_excluded = self._unidentified == "exclude" or self._is_closed
            known_as = "identified by its node id, which changes with every start"
            what = "excluded" if is_excluded else known_as
            why = reply.reason or "its stable id is not usable"
            log.warning("node %s did not identify itself and is %s: %s", address, what, why)
            self._claims[address] = None if is_excluded else f"node:{address}"

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
            if address in self._reported:
                self.columns.put(self.roster.index_of(client), self._reported.pop(address))
        for client in self.roster.ids:
            if self.roster.known_as(client) not in self._addresses:
                self.roster.leave(client)
        self._bound = self.roster.indices(self._addresses)
        self._index = dict(zip(self._addresses.values(), self._bound.tolist(), strict=True))
        self._is_bound = True

    def selectable(self) -> BoolArray:
        """Return (n,) which clients are connected and have answered everything."""
        free = np.zeros(len(self.roster), dtype=np.bool_)
        free[self.connected_clients] = True
        free[self.roster.indices(self.busy_clients())] = False
        return free

    def addresses_of(self, clients: IntArray) -> list[Address]:
        """Return the addresses of connected clients, in their order."""
        return [self._addresses[self.roster.id_of(int(client))] for client in clients]

    def present_of(self, clients: Iterable[int]) -> IntArray:
        """Return which of some clients are connected."""
        return np.intersect1d(np.fromiter(clients, np.int64), self._bound)

    def index_at(self, address: Address) -> int:
        """Return the index of the client that is connected at an address."""
        return self._index[address]

    def busy_clients(self) -> dict[Hashable, float]:
        """Return the busy clients, and until when at the latest, in wall time."""
        now, wall = clock.now(), clock.wall()
        busy = {
            self.roster.id_of(self._index[request.address]): wall + (request.expires - now)
            for request in self.pending.open.values()
            if request.address in self._index
        }
        return self._still_reserved() | busy

    def busy_ids(self) -> list[Hashable]:
        """Return the clients that are connected but busy, in the order of the indices."""
        busy = np.setdiff1d(self.connected_clients, np.flatnonzero(self.selectable()))
        return [self.roster.id_of(client) for client in busy.tolist()]

    def hold(self, client: Hashable, seconds: float) -> None:
        """Do not choose a late client for a while, unless it is known to be busy already."""
        if self._addresses.get(client) not in self.pending.busy:
            self.reserved = self._still_reserved() | {client: clock.wall() + seconds}

    def release(self, client: Hashable) -> None:
        """Allow a client that was late to be chosen again."""
        self.reserved.pop(client, None)

    def changing(self, wanted: frozenset[str]) -> list[Address]:
        """Return the addresses of free clients whose changing columns are wanted."""
        free = self.addresses_of(np.flatnonzero(self.selectable()))
        return [at for at in free if wanted.intersection(self._every_round.get(at, ()))]

    def _still_reserved(self) -> dict[Hashable, float]:
        wall = clock.wall()
        return {client: until for client, until in self.reserved.items() if until > wall}

    def _dispute(self, client: Hashable, address: Address) -> float:
        """Exclude an address whose client is connected at another address; return since when."""
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
                "node %s is excluded: its stable id %r is that of node %s; every client needs a "
                "stable_id of its own",
                *(address, client, holder),
            )
        return -np.inf


class Enrolled(Members):
    """Clients that the caller reaches: they are enrolled by id, in bulk, and have no addresses.

    A client is present until it is withdrawn. A late client is not chosen until its outcome is
    reported or its time is over. A million clients take seconds.
    """

    def __init__(self) -> None:
        super().__init__(Roster(), unidentified="exclude")
        self._present = np.zeros(0, dtype=np.bool_)
        #: (n,) who is available for the next round, as the caller says; None: every free client.
        self.available: BoolArray | None = None

    @property
    def n_connected(self) -> int:
        """Number of clients that are present, busy or not."""
        return int(np.count_nonzero(self._present))

    @property
    def connected_clients(self) -> IntArray:
        """Indices of the clients that are present, busy or not."""
        return np.flatnonzero(self._present)

    def enrol(self, clients: Sequence[Hashable], columns: Mapping[str, FloatArray]) -> int:
        """Add clients in their order, or bring them back; return how many are new.

        Args:
            clients: (k,) stable ids, each once.
            columns: (k,) or (k, d) their values in each column.
        """
        before = len(self.roster)
        indices = np.fromiter(map(self.roster.join, clients), np.int64, len(clients))
        self._present = np.pad(self._present, (0, len(self.roster) - before))
        self._present[indices] = True
        self.columns.grow(len(self.roster))
        self.columns.fill(indices, columns)
        return len(self.roster) - before

    def withdraw(self, clients: Iterable[Hashable]) -> None:
        """Remove clients; they keep their index, and the selector keeps what it learned.

        Args:
            clients: Their ids.
        """
        for client in clients:
            self.roster.leave(client)
            self._present[self.roster.index_of(client)] = False

    def is_there(self, client: Hashable) -> bool:
        """Return whether a client is enrolled and has not been withdrawn."""
        return client in self.roster and bool(self._present[self.roster.index_of(client)])

    def restore(self, roster: Roster, saved: Checkpoint) -> None:
        """Continue with the clients of a checkpoint; busy clients stay busy as long as before."""
        super().restore(roster, saved)
        self._present = roster.present

    def update(self, connected: Iterable[Address]) -> None:
        """Do nothing: enrolled clients are present."""

    def bind(self) -> None:
        """Do nothing: there are no addresses."""

    def selectable(self) -> BoolArray:
        """Return (n,) which clients are present and free, or available as the caller said."""
        if self.available is not None:
            return self.available & self._present
        free = self._present.copy()
        free[self.roster.indices(self.busy_clients())] = False
        return free

    def addresses_of(self, clients: IntArray) -> list[Address]:
        """Return the ids."""
        return [self.roster.id_of(int(client)) for client in clients]

    def index_at(self, address: Address) -> int:
        """Return the index of a client."""
        return self.roster.index_of(address)


def _order(value: Hashable) -> tuple[str, Any]:
    return type(value).__name__, value


def possible_range(name: str) -> tuple[float, float]:
    """Return the least and the largest number that a column may have.

    Args:
        name: The column.
    """
    limit = COLUMN_LIMITS.get(name)
    return (-LARGEST_REPORT, LARGEST_REPORT) if limit is None else (0.0, limit)


def _possible(name: str, values: FloatArray) -> FloatArray:
    """Return the numbers, with NaN for impossible ones."""
    least, most = possible_range(name)
    return np.where((values >= least) & (values <= most), values, np.nan)
