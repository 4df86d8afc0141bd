"""What a session needs from outside: who is connected, requests out, replies in, and the time.

A framework implements ``Port``, and ``Transport`` in ``turnout.live.driver`` sends and collects
over it. A reply belongs to the request it answers, never to its claimed sender.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

log = logging.getLogger("turnout.live")


def one_line(record: logging.LogRecord) -> bool:
    """Escape line breaks and control characters in a record: clients choose parts of its text."""
    text = record.getMessage()
    if not text.isprintable():
        record.msg = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        record.args = None
    return True


log.addFilter(one_line)

#: Characters of a reason that are kept: clients choose parts of its text.
_LONGEST_REASON = 500


def no_answer(client: Hashable, reason: str) -> str:
    """Log why a client has no usable answer, and return it as records keep it.

    Args:
        client: The stable id.
        reason: The reason, in one line.
    """
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[:_LONGEST_REASON]}..."
    log.warning("%s: %s", client, reason)
    return reason


#: Where a client can be reached at the moment: a text or an integer that JSON can hold.
Address: TypeAlias = Hashable
#: A port's name for a request that it has sent.
Ticket: TypeAlias = str


class Kind(Enum):
    """The result of a request.

    | kind | what happened | status of a chosen client |
    |---|---|---|
    | ANSWERED | a usable answer | completed, or late |
    | FAILED | the client says that it failed, or its answer cannot be used | failed |
    | GARBLED | an answer that cannot be read | failed |
    | LOST | the framework says that no answer will come | silent |
    | REFUSED | the framework did not send the request | silent |

    A client without any reply is late if it is still connected, and silent otherwise.
    """

    ANSWERED = "answered"
    FAILED = "failed"
    GARBLED = "garbled"
    LOST = "lost"
    REFUSED = "refused"


class Reply(NamedTuple):
    """A client's reply to a request, or the reason why there is none.

    Attributes:
        kind: The result of the request.
        seconds: Seconds after sending, as the server measured them.
        metrics: Numbers that came with it, as the client sent them.
        reason: Why it is no answer, in one line; None if it is one.
        content: The answer itself. A session does not open it, except for an ``Identity``.
        weight: The weight that it claims in the average; NaN if it claims none.
        form: What must be equal for answers to be aggregated, as the framework describes it.
        size: The Euclidean norm of its update, as the server measured it; NaN if it did not.
    """

    kind: Kind = Kind.ANSWERED
    seconds: float = math.nan
    metrics: Mapping[str, Any] = MappingProxyType({})
    reason: str | None = None
    content: Any = None
    weight: float = math.nan
    form: Any = None
    size: float = math.nan


class Identity(NamedTuple):
    """The identity that a client claims.

    Attributes:
        id: The stable id, as the client sent it.
        every_round: Columns that change from round to round and must be asked for.
    """

    id: Any
    every_round: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AskIdentity:
    """Asks for an ``Identity`` as the content of the reply, and fixed columns as its metrics."""


@dataclass(frozen=True, slots=True)
class AskColumns:
    """Asks for the columns that change; they are the metrics of the reply."""

    round: int  #: from 0
    took_part: frozenset[Address]  #: who was chosen in the round before


@dataclass(frozen=True, slots=True)
class AskLoss:
    """Asks for the loss of a model; it is the metric ``loss`` of the reply."""

    round: int
    data: Literal["all", "mini-batch"]
    model: Any


Question: TypeAlias = AskIdentity | AskColumns | AskLoss


class Port(Protocol):
    """The connection to the clients. No method blocks: replies are fetched by ``poll``."""

    def present(self) -> Iterable[Address]:
        """Return who is connected."""

    def ask(
        self, addresses: Sequence[Address], question: Question, ttl: float
    ) -> Sequence[Ticket | None]:
        """Send a question that expires after ``ttl`` seconds; None = refused."""

    def send(
        self, addresses: Sequence[Address], payloads: Sequence[Any], ttl: float
    ) -> Sequence[Ticket | None]:
        """Send each client its work, which expires after ``ttl`` seconds; None = refused."""

    def poll(self, tickets: Collection[Ticket]) -> Sequence[tuple[Ticket, Reply]]:
        """Return the replies that have come for these since the last call, at most one each."""

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Forget these requests."""


#: Difference between seconds since 1970 and a clock that never goes back.
_OFFSET = time.time() - time.monotonic()
_held: ContextVar[float | None] = ContextVar("held", default=None)


class Clock:
    """The only place where a live run looks at a clock or sleeps."""

    def now(self) -> float:
        """Return seconds on a clock that never goes back."""
        at = _held.get()
        return time.monotonic() if at is None else at

    def wall(self) -> float:
        """Return seconds since 1970, for what outlives the process.

        The computer's clock is read once, at the start. If it is set back or forward later, no
        client is locked out or freed by it, and no round has a negative length.
        """
        at = _held.get()
        return _OFFSET + time.monotonic() if at is None else at

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)

    @contextmanager
    def held(self, at: float) -> Iterator[None]:
        """Stop both clocks of this thread, so that a replay sees the same time.

        Args:
            at: Seconds since 1970.
        """
        token = _held.set(at)
        try:
            yield
        finally:
            _held.reset(token)


clock = Clock()
