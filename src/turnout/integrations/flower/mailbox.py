"""Messages out, answers in: own polling, attribution by message, and what is still open.

Answers are attributed by the message they reply to. An error made up by the SuperLink carries the
SuperLink's own node id, so the sender of a reply is never looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import Error as ProtobufError  # type: ignore[import-untyped]

from turnout.integrations.flower import clock

__all__ = ["Answer", "Letter", "Mailbox", "log"]

log = logging.getLogger("flwr.turnout")

#: What a damaged reply can raise while it is unpacked; broken connections are not among them.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ProtobufError)

#: Seconds after its time-to-live until a message counts as expired without being asked for.
_GRACE_S = 1.0


#: Shortest sleep: rounding must not keep a round from its end.
_SHORTEST_S = 1e-3


class Answer(NamedTuple):
    """What came back for a message."""

    node: int
    reply: Message | None  #: None: nothing that can be read
    at: float  #: seconds after sending, as the server saw it
    is_refused: bool = False  #: the grid did not take the message


@dataclass(frozen=True, slots=True)
class Letter:
    """A message without an answer."""

    node: int
    kind: str  #: message type
    expires: float  #: on ``clock.now()``


class Mailbox:
    """Sends and collects over a grid; ``open`` holds what is unanswered, by message id."""

    def __init__(self, grid: Grid, poll_s: float) -> None:
        self.grid = grid
        self.poll_s = poll_s
        self.open: dict[str, Letter] = {}

    @property
    def busy(self) -> set[int]:
        """Nodes that have not answered everything yet."""
        return {letter.node for letter in self.open.values()}

    def exchange(
        self,
        messages: Sequence[Message],
        seconds: float,
        *,
        ttl: float,
        until: Callable[[Sequence[Answer]], float] | None = None,
    ) -> tuple[list[Answer], float]:
        """Send, and wait for the answers; return them and how long it took.

        It ends when everybody has answered, after ``seconds``, or at the time that ``until`` gives
        for the answers so far. The last look is at the end, so nothing in time is missed.
        """
        started = clock.now()
        letters, refused = self._push(messages, ttl)
        answers = [Answer(node, None, 0.0, is_refused=True) for node in refused]
        self.open |= letters
        end, at = seconds, 0.0
        while letters:
            at = min(clock.now() - started, end)
            for message_id, reply in self._pull(letters):
                answers.append(Answer(letters.pop(message_id).node, reply, at))
                del self.open[message_id]
            end = min(seconds, until(answers) if until else seconds)
            if at >= end or not letters:
                break
            clock.sleep(min(self.poll_s, max(end - at, _SHORTEST_S)))
        return answers, at

    def post(self, messages: Sequence[Message], *, ttl: float) -> None:
        """Send without waiting; ``reap`` brings the answers."""
        self.open |= self._push(messages, ttl)[0]

    def reap(self) -> list[tuple[Letter, Message]]:
        """Return the answers that came too late for an exchange, and forget what expired."""
        late = clock.now() - _GRACE_S
        for message_id in [one for one, letter in self.open.items() if letter.expires < late]:
            del self.open[message_id]
        found = self._pull(self.open) if self.open else []
        letters = [(self.open.pop(message_id), reply) for message_id, reply in found]
        return [(letter, reply) for letter, reply in letters if reply is not None]

    def _push(self, messages: Sequence[Message], ttl: float) -> tuple[dict[str, Letter], list[int]]:
        """Send; return the accepted messages by id, and the nodes of the refused."""
        if not messages:
            return {}, []
        for message in messages:
            message.metadata.ttl = ttl
        ids = self._ids(messages)
        expires = clock.now() + ttl
        letters: dict[str, Letter] = {}
        refused = []
        for message, message_id in zip(messages, ids, strict=True):
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if message_id:
                letters[message_id] = Letter(node, kind, expires)
            else:
                refused.append(node)
        if refused:
            log.warning("%d of %d messages were refused by the grid", len(refused), len(messages))
        return letters, refused

    def _ids(self, messages: Sequence[Message]) -> list[str | None]:
        """Push; return one id per message, None if it was refused."""
        ids = list(self.grid.push_messages(messages))
        if not ids and len(messages) > 1:  # too much for one request: one at a time
            return [next(iter(self.grid.push_messages([one])), None) for one in messages]
        if len(ids) == len(messages):
            return list(ids)
        accepted = set(ids)  # the in-memory grid leaves refused ones out
        own = (message.metadata.message_id for message in messages)
        return [one if one in accepted else None for one in own]

    def _pull(self, ids: Collection[str]) -> list[tuple[str, Message | None]]:
        try:
            return _by_message(ids, self.grid.pull_messages(set(ids)))
        except _UNREADABLE:
            return [pair for message_id in list(ids) for pair in self._pull_one(message_id)]

    def _pull_one(self, message_id: str) -> list[tuple[str, Message | None]]:
        try:
            return list(_by_message([message_id], self.grid.pull_messages({message_id})))
        except _UNREADABLE as error:
            log.warning("a reply cannot be read and is dropped: %s", error)
            return [(message_id, None)]


def _by_message(
    ids: Collection[str], replies: Iterable[Message]
) -> list[tuple[str, Message | None]]:
    found: dict[str, Message | None] = {}
    for reply in replies:
        message_id = reply.metadata.reply_to_message_id
        if message_id in ids:
            found.setdefault(message_id, reply)
    return list(found.items())
