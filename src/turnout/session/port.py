"""What a session needs of a framework: who is present, questions and work out, answers in."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

#: Where a client can be reached at the moment: a text or an integer that JSON can hold.
Address: TypeAlias = Hashable
#: What a port calls something that it has sent.
Ticket: TypeAlias = str


class Kind(Enum):
    """What came of something that was sent.

    | kind | what happened | status of a chosen client |
    |---|---|---|
    | ANSWERED | an answer that can be used | completed, or late |
    | FAILED | the client says that it failed, or its answer cannot be used | failed |
    | GARBLED | an answer that cannot be read | failed |
    | LOST | the framework says that no answer will come | silent |
    | REFUSED | the framework did not send it | silent |

    A client of which nothing was heard is late if it is still connected, else silent.
    """

    ANSWERED = "answered"
    FAILED = "failed"
    GARBLED = "garbled"
    LOST = "lost"
    REFUSED = "refused"


class Heard(NamedTuple):
    """What was heard of a client.

    Attributes:
        kind: What came of it.
        seconds: After sending, as the server saw it.
        metrics: Numbers that came with it, as the client sent them.
        reason: Why it is no answer, in one line; None if it is one.
        content: The answer itself. A session does not look into it, but for an ``Identity``.
        weight: How much it says it weighs when answers are averaged; NaN = it does not say.
    """

    kind: Kind = Kind.ANSWERED
    seconds: float = math.nan
    metrics: Mapping[str, Any] = MappingProxyType({})
    reason: str | None = None
    content: Any = None
    weight: float = math.nan


class Identity(NamedTuple):
    """Who a client says it is.

    Attributes:
        id: The stable id, as the client sent it.
        every_round: Columns that change from round to round, and must be asked for.
    """

    id: Any
    every_round: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AskIdentity:
    """Who are you? The answer's content is an ``Identity``, its metrics are the fixed columns."""


@dataclass(frozen=True, slots=True)
class AskColumns:
    """Which columns have changed? The answer's metrics are the columns."""

    round: int  #: from 0
    took_part: frozenset[Address]  #: who was chosen in the round before


@dataclass(frozen=True, slots=True)
class AskLoss:
    """What is your loss on this model? It is the metric ``loss`` of the answer."""

    round: int
    data: Literal["all", "mini-batch"]
    model: Any


Question: TypeAlias = AskIdentity | AskColumns | AskLoss


class Port(Protocol):
    """The way to the clients. Nothing waits: answers are fetched by ``poll``."""

    def present(self) -> Iterable[Address]:
        """Return who is connected."""

    def ask(
        self, addresses: Sequence[Address], question: Question, ttl: float
    ) -> Sequence[Ticket | None]:
        """Send a question that expires after ``ttl`` seconds; None = refused."""

    def send(
        self, addresses: Sequence[Address], payloads: Sequence[Any], ttl: float
    ) -> Sequence[Ticket | None]:
        """Send each its work, which expires after ``ttl`` seconds; None = refused."""

    def poll(self, tickets: Collection[Ticket]) -> Sequence[tuple[Ticket, Heard]]:
        """Return what has come for these since the last look, at most one for each."""

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Forget these: nobody waits for them any more."""
