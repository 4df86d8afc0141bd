"""Who is who: nodes come and go under random ids, clients keep their stable id and their index.

Nodes that are new are asked for their stable id once. New clients join the roster in the order of
their stable ids, so that cohorts do not depend on node ids. A stable id that two connected nodes
claim belongs to the one that had it first; the other stays out until the first has left.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from turnout.integrations.flower import clock, keys
from turnout.integrations.flower.cohort import NO_ANSWER, reason_of
from turnout.integrations.flower.columns import Columns
from turnout.integrations.flower.mailbox import Letter, Mailbox, log
from turnout.roster import Roster
from turnout.types import Array, BoolArray, FloatArray, IntArray

__all__ = ["Members"]

#: Longest stable id that is accepted.
_LONGEST_ID = 256

#: An unanswered question stays open for so many times its deadline.
_OPEN_FOR = 10.0


class Members:
    """The clients of a federation, behind the nodes that are connected at the moment."""

    def __init__(
        self,
        roster: Roster,
        mailbox: Mailbox,
        *,
        ask_s: float,
        unidentified: Literal["node-id", "exclude"],
        is_closed: bool = False,
    ) -> None:
        self.roster = roster
        self.columns = Columns(len(roster))
        self.connected: set[int] = set()
        self.reserved: dict[Hashable, float] = {}  #: busy since before a restart, until wall time
        self._mailbox = mailbox
        self._ask_s = ask_s
        self._unidentified = unidentified
        self._is_closed = is_closed  # nobody joins who is not on the roster
        self._claims: dict[int, Hashable | None] = {}  #: by node; None = stays out
        self._every_round: dict[int, frozenset[str]] = {}
        self._asked: set[int] = set()
        self._nodes: dict[Hashable, int] = {}  #: the node behind each client that is connected
        self._said: dict[int, Mapping[str, Any]] = {}
        self._disputed: set[int] = set()
        self._is_bound = False  # whether nodes and clients match since the last change
        self._index: dict[int, int] = {}  #: client index by node that is connected
        self._bound = np.zeros(0, dtype=np.int64)  #: client indices that are connected

    @property
    def n_connected(self) -> int:
        """Number of clients that are connected and have said who they are, busy or not."""
        if self._is_bound:
            return len(self._nodes)
        claims = (self._claims.get(node) for node in self.connected)
        return len({client for client in claims if client is not None})

    @property
    def n_heard(self) -> int:
        """Number of connected nodes that have answered who they are, usable or not."""
        return len(self.connected & self._claims.keys())

    def restore(
        self, roster: Roster, busy: Iterable[Sequence[Any]], columns: Mapping[str, Array]
    ) -> None:
        """Go back to the clients of a checkpoint; the busy ones stay busy as long as they were."""
        self.roster = roster
        self.reserved = {client: float(until) for client, until in busy}
        self.columns.load_state(columns, len(roster))

    def refresh(self, late: Iterable[tuple[Letter, Message]] = ()) -> bool:
        """Look who is connected and ask newcomers; return whether all have been heard."""
        for letter, reply in late:
            if letter.kind == keys.query_type(keys.DESCRIBE):
                self._learn(letter.node, reply)
        connected = set(self._mailbox.grid.get_node_ids())
        self._is_bound = self._is_bound and connected == self.connected
        self.connected = connected
        if not connected <= self._claims.keys():
            self._ask_newcomers()
        return connected <= self._claims.keys()

    def bind(self) -> None:
        """Match clients to connected nodes; new clients join in the order of their ids."""
        if self._is_bound:
            return
        self._nodes = {c: node for c, node in self._nodes.items() if node in self.connected}
        held = set(self._nodes.values())
        claims = [
            (client, node)
            for node in self.connected - held
            if (client := self._claims.get(node)) is not None
        ]
        disputed = set()
        for client, node in sorted(claims, key=lambda one: (*_order(one[0]), one[1])):
            if client in self._nodes:
                disputed.add(node)
                self._tell_disputed(client, node)
            else:
                self._nodes[client] = node
                self.roster.join(client)
        self._disputed = disputed
        self.columns.grow(len(self.roster))
        for client, node in self._nodes.items():
            if node not in held:
                self.columns.put(self.roster.index_of(client), self._said.get(node, {}))
        for client in self.roster.ids:
            if client not in self._nodes:
                self.roster.leave(client)
        self._bound = self.roster.indices(self._nodes)
        self._index = dict(zip(self._nodes.values(), self._bound.tolist(), strict=True))
        self._is_bound = True

    def selectable(self) -> BoolArray:
        """Return (n,) who is connected and has nothing unanswered."""
        free = np.zeros(len(self.roster), dtype=np.bool_)
        free[self._bound] = True
        busy = [self._index[node] for node in self._mailbox.busy if node in self._index]
        wall = clock.wall()
        reserved = [client for client, until in self.reserved.items() if until > wall]
        free[busy] = False
        free[self.roster.indices(reserved)] = False
        return free

    def nodes_of(self, clients: IntArray) -> list[int]:
        """Return the nodes behind clients that are connected, in their order."""
        return [self._nodes[self.roster.id_of(int(client))] for client in clients]

    def busy_clients(self) -> dict[Hashable, float]:
        """Return who is busy, and until when at the latest, in wall time."""
        left = {letter.node: letter.expires - clock.now() for letter in self._mailbox.open.values()}
        wall = clock.wall()
        by_node = {node: client for client, node in self._nodes.items()}
        found = {by_node[node]: wall + s for node, s in left.items() if node in by_node}
        return {c: until for c, until in self.reserved.items() if until > wall} | found

    def ask_columns(
        self, clients: IntArray, wanted: Collection[str], server_round: int, last: Collection[int]
    ) -> None:
        """Ask for the columns that change from round to round; ``last`` took part in the last."""
        nodes = self.nodes_of(clients)
        asked = {
            node: int(client)
            for node, client in zip(nodes, clients, strict=True)
            if self._every_round.get(node, frozenset()).intersection(wanted)
        }
        messages = []
        for node, client in asked.items():
            config = ConfigRecord({keys.SERVER_ROUND: server_round, keys.TOOK_PART: client in last})
            content = RecordDict({keys.CONFIG: config})
            messages.append(Message(content, node, keys.query_type(keys.COLUMNS)))
        for node, reply in self._ask(messages):
            self.columns.put(asked[node], _values(reply))

    def ask_loss(
        self, clients: IntArray, arrays: ArrayRecord, server_round: int, poll_data: str
    ) -> tuple[FloatArray, bool]:
        """Return (d,) the losses of the model, NaN = no answer, and whether anybody could answer.

        Nobody could if every node answered with an error: the handler is missing.
        """
        nodes = self.nodes_of(clients)
        config = ConfigRecord({keys.SERVER_ROUND: server_round, keys.POLL_DATA: poll_data})
        content = RecordDict({keys.ARRAYS: arrays, keys.CONFIG: config})
        messages = [Message(content, node, keys.query_type(keys.LOSS)) for node in nodes]
        answers, _ = self._mailbox.exchange(messages, self._ask_s, ttl=self._ask_s)
        errors = [one for one in answers if one.reply is not None and one.reply.has_error()]
        sound = {
            one.node: _values(one.reply).get("loss", np.nan)
            for one in answers
            if one.reply is not None and one.reply.has_content()
        }
        losses = [sound.get(node, np.nan) for node in nodes]
        numbers = [loss if isinstance(loss, int | float) else np.nan for loss in losses]
        is_possible = not nodes or len(errors) < len(nodes)
        return np.array(numbers, dtype=np.float64), is_possible

    def _ask_newcomers(self) -> None:
        busy = self._mailbox.busy
        unknown = sorted(self.connected - self._claims.keys() - busy)
        first = [self._question(node) for node in unknown if node not in self._asked]
        again = [self._question(node) for node in unknown if node in self._asked]
        self._asked.update(unknown)
        self._mailbox.post(again, ttl=_OPEN_FOR * self._ask_s)
        if first:
            log.info("asking %d new nodes who they are", len(first))
            answers, _ = self._mailbox.exchange(first, self._ask_s, ttl=_OPEN_FOR * self._ask_s)
            for answer in answers:
                if answer.reply is not None:
                    self._learn(answer.node, answer.reply)

    def _question(self, node: int) -> Message:
        return Message(RecordDict(), node, keys.query_type(keys.DESCRIBE))

    def _ask(self, messages: Sequence[Message]) -> list[tuple[int, Message]]:
        answers, _ = self._mailbox.exchange(messages, self._ask_s, ttl=self._ask_s)
        found = [(one.node, one.reply) for one in answers if one.reply is not None]
        return [(node, reply) for node, reply in found if reply.has_content()]

    def _learn(self, node: int, reply: Message) -> None:
        """Take in a node's identity, or decide what to do without.

        An error of the SuperLink is no answer: the question expired, and the node is asked again.
        """
        if reply.has_error() and reply.error.code in NO_ANSWER:
            return
        self._is_bound = False
        records = reply.content.config_records if reply.has_content() else {}
        identity: Mapping[str, Any] = records.get(keys.IDENTITY, {})
        client = identity.get(keys.STABLE_ID)
        is_sound = (isinstance(client, str) and 0 < len(client) <= _LONGEST_ID) or (
            isinstance(client, int) and not isinstance(client, bool)
        )
        if is_sound and self._is_closed and client not in self.roster:
            log.warning("node %d stays out: there is no client %r in the world", node, client)
            self._claims[node] = None
        elif is_sound:
            self._claims[node] = client
            named = identity.get(keys.EVERY_ROUND, [])
            self._every_round[node] = frozenset(named if isinstance(named, list) else [])
            self._said[node] = _values(reply)
        else:
            self._do_without(node, reply)

    def _do_without(self, node: int, reply: Message) -> None:
        why = reason_of(reply) if reply.has_error() else "its stable id is not usable"
        keeps_out = self._unidentified == "exclude" or self._is_closed
        what = "stays out" if keeps_out else "goes by its node id, which changes with every start"
        log.warning("node %d did not say who it is and %s: %s", node, what, why)
        self._claims[node] = None if keeps_out else f"node:{node}"

    def _tell_disputed(self, client: Hashable, node: int) -> None:
        if node not in self._disputed:
            log.error(
                "node %d stays out: its stable id %r is that of node %d; every client needs a "
                "stable_id of its own",
                *(node, client, self._nodes[client]),
            )


def _order(client: Hashable) -> tuple[str, Any]:
    return type(client).__name__, client


def _values(reply: Message | None) -> Mapping[str, Any]:
    if reply is None or not reply.has_content():
        return {}
    return reply.content.metric_records.get(keys.VALUES, {})
