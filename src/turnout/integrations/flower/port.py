"""A grid as the port of a session: messages out, replies in, each for the message it answers.

An error made up by the SuperLink carries the SuperLink's own node id, so the sender of a reply is
never looked at.

| what came | kind |
|---|---|
| a usable reply | ANSWERED |
| error 0 unknown, 1 app not loaded, 2 raised, 6 mod refused, 7 bad bundle, 8 crashed | FAILED |
| a reply that the inner strategy cannot use | FAILED |
| a reply that cannot be read | GARBLED |
| error 3 message expired, 4 reply lost, 5 node gone | LOST |
| the grid did not take the message | REFUSED |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import Error as ProtobufError  # type: ignore[import-untyped]

from turnout.integrations.flower import keys
from turnout.integrations.flower.replies import ReplyRules
from turnout.session.hints import Hints, report_losses
from turnout.session.port import (
    Address,
    AskColumns,
    AskIdentity,
    Heard,
    Identity,
    Kind,
    Question,
    Ticket,
)
from turnout.session.post import log

#: Error codes that the SuperLink makes up for a node that did not answer.
NO_ANSWER = frozenset({3, 4, 5})

#: What a damaged reply can raise while it is unpacked; broken connections are not among them.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ProtobufError)

#: Errors are logged up to so many characters; a simulated client sends its whole traceback.
_LONGEST_REASON = 200

#: The argument of ``describe`` that fills each column.
_HOW = {
    "num_samples": "num_examples=len(train_set)",
    "features": "features=SimHash().of_text(text)",
    "context": "context=lambda message, context: [1 / speed, 1.0 - took_part, size / bandwidth]",
}

_CLIENT = "turnout.integrations.flower.client"

#: The attribute of a message that marks the work of a round; it stays on the server.
_MARK = "_turnout_training"


def mark_training(messages: Iterable[Message]) -> None:
    """Mark messages as the work of a round."""
    for message in messages:
        message.__dict__[_MARK] = True


def is_training(message: Message) -> bool:
    """Return whether a message is the work of a round."""
    return _MARK in message.__dict__


class FlowerPort:
    """Sends and fetches over a grid. Payloads are messages, contents of answers are replies."""

    def __init__(self, grid: Grid, rules: ReplyRules) -> None:
        self.grid = grid
        self._rules = rules
        self._sent: dict[Ticket, Question | bool] = {}  #: a question, or whether it is training

    def present(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def ask(
        self, addresses: Sequence[Address], question: Question, ttl: float
    ) -> list[Ticket | None]:
        """Send a question to nodes."""
        messages = [_written(cast(int, node), question) for node in addresses]
        return self._push(messages, [question] * len(messages), ttl)

    def send(
        self, addresses: Sequence[Address], payloads: Sequence[Message], ttl: float
    ) -> list[Ticket | None]:
        """Send messages, which know their nodes themselves."""
        return self._push(payloads, [is_training(message) for message in payloads], ttl)

    def poll(self, tickets: Collection[Ticket]) -> list[tuple[Ticket, Heard]]:
        """Fetch the replies that have come."""
        try:
            replies = _by_message(tickets, self.grid.pull_messages(set(tickets)))
        except _UNREADABLE:
            replies = [pair for ticket in list(tickets) for pair in self._pull_one(ticket)]
        return [(ticket, self._heard(self._sent.pop(ticket), reply)) for ticket, reply in replies]

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Forget messages; Flower lets nobody take back what was sent."""
        for ticket in tickets:
            self._sent.pop(ticket, None)

    def _push(
        self, messages: Sequence[Message], whats: Sequence[Question | bool], ttl: float
    ) -> list[Ticket | None]:
        for message in messages:
            message.metadata.ttl = ttl
        tickets = self._ids(messages)
        self._sent |= {ticket: what for ticket, what in zip(tickets, whats, strict=True) if ticket}
        return tickets

    def _ids(self, messages: Sequence[Message]) -> list[Ticket | None]:
        """Push; return one id per message, None if it was refused."""
        ids = list(self.grid.push_messages(messages))
        if not ids and len(messages) > 1:  # too much for one request: one at a time
            alone = (self.grid.push_messages([message]) for message in messages)
            return [next(iter(pushed), None) or None for pushed in alone]
        if len(ids) == len(messages):
            return [message_id or None for message_id in ids]
        accepted = set(ids)  # the in-memory grid leaves refused ones out
        own = (message.metadata.message_id for message in messages)
        return [message_id if message_id in accepted else None for message_id in own]

    def _pull_one(self, ticket: Ticket) -> list[tuple[Ticket, Message | None]]:
        try:
            return _by_message([ticket], self.grid.pull_messages({ticket}))
        except _UNREADABLE as error:
            log.warning("a reply cannot be read and is dropped: %s", error)
            return [(ticket, None)]

    def _heard(self, what: Question | bool, reply: Message | None) -> Heard:
        if reply is None:
            return Heard(Kind.GARBLED, reason="reply not readable")
        if reply.has_error():
            kind = Kind.LOST if reply.error.code in NO_ANSWER else Kind.FAILED
            return Heard(kind, reason=_reason_of(reply), content=reply)
        if isinstance(what, AskIdentity):
            return Heard(metrics=_values(reply), content=_identity(reply))
        if not isinstance(what, bool):
            return Heard(metrics=_values(reply), content=reply)
        if not what:
            return Heard(content=reply)
        checked = self._rules.check(reply, train=True)
        if checked.fault is not None:
            return Heard(Kind.FAILED, reason=f"reply dropped, {checked.fault}")
        key = self._rules.weight_key
        weight = math.nan if key is None else checked.number(key)
        return Heard(metrics=checked.metrics, content=checked, weight=weight)


class FlowerHints(Hints):
    """The lines to add to a ``ClientApp``."""

    def columns(self, names: Sequence[str]) -> str:
        """Return the arguments of ``describe``."""
        how = [_HOW.get(name, f"columns={{{name!r}: ...}}") for name in names]
        return f"add describe(app, stable_id=..., {', '.join(how)}) on the client, from {_CLIENT}"

    def metrics(self, keys: Mapping[str, str]) -> str:
        """Return how to use a ``LossReport``."""
        reply = 'reply with MetricRecord({"num-examples": ..., **report.metrics()})'
        return report_losses(keys, reply, _CLIENT, "SelectingStrategy")

    def weight(self, key: str) -> str:
        """Return how to reply with a weight."""
        return f'reply with MetricRecord({{"{key}": len(train_set), ...}}) on the client'

    def loss(self) -> str:
        """Return how to answer a poll."""
        return (
            "add describe(app, stable_id=..., loss=evaluate) on the client, with "
            "evaluate(message, context) -> float"
        )


def _written(node: int, question: Question) -> Message:
    """Return a question as a message."""
    if isinstance(question, AskIdentity):
        return Message(RecordDict(), node, keys.query_type(keys.DESCRIBE))
    config: dict[str, Any] = {keys.SERVER_ROUND: question.round + 1}
    if isinstance(question, AskColumns):
        config[keys.TOOK_PART] = node in question.took_part
        content = RecordDict({keys.CONFIG: ConfigRecord(config)})
        return Message(content, node, keys.query_type(keys.COLUMNS))
    config[keys.POLL_DATA] = question.data
    content = RecordDict({keys.ARRAYS: question.model, keys.CONFIG: ConfigRecord(config)})
    return Message(content, node, keys.query_type(keys.LOSS))


def _identity(reply: Message) -> Identity:
    records = reply.content.config_records if reply.has_content() else {}
    record: Mapping[str, Any] = records.get(keys.IDENTITY, {})
    named = record.get(keys.EVERY_ROUND, [])
    return Identity(record.get(keys.STABLE_ID), frozenset(named if isinstance(named, list) else []))


def _values(reply: Message) -> Mapping[str, Any]:
    records = reply.content.metric_records if reply.has_content() else {}
    return records.get(keys.VALUES, {})


def _reason_of(reply: Message) -> str:
    """Return code and end of an error's text, in one line: there the exception stands."""
    text = " ".join((reply.error.reason or "no reason given").split())
    if len(text) > _LONGEST_REASON:
        text = f"... {text[-_LONGEST_REASON:]}"
    return f"error {reply.error.code}, {text}"


def _by_message(
    tickets: Collection[Ticket], replies: Iterable[Message]
) -> list[tuple[Ticket, Message | None]]:
    first: dict[Ticket, Message | None] = {}
    for reply in replies:
        ticket = reply.metadata.reply_to_message_id
        if ticket in tickets:
            first.setdefault(ticket, reply)
    return list(first.items())
