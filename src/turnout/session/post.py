"""Questions and work out, answers in: own polling, and what is still open.

An answer belongs to the ticket it came for, never to whoever claims to have sent it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnout.session import clock
from turnout.session.port import Address, Heard, Kind, Port, Question, Ticket

log = logging.getLogger("turnout.session")

#: Seconds after its time-to-live until something counts as expired without being asked for.
_GRACE_S = 1.0
#: Shortest sleep: rounding must not keep a round from its end.
_SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Errand:
    """Something without an answer."""

    address: Address
    question: Question | None  #: None: work
    expires: float  #: on ``clock.now()``


@dataclass
class Errands:
    """Everything that is unanswered, by ticket."""

    open: dict[Ticket, Errand] = field(default_factory=dict)

    @property
    def busy(self) -> set[Address]:
        """Who has not answered everything yet."""
        return {errand.address for errand in self.open.values()}

    def expire(self) -> list[Ticket]:
        """Forget what has expired, and return it."""
        late = clock.now() - _GRACE_S
        expired = [ticket for ticket, errand in self.open.items() if errand.expires < late]
        for ticket in expired:
            del self.open[ticket]
        return expired


class Sent(NamedTuple):
    """What is on its way."""

    waiting: dict[Ticket, Address]
    refused: list[Address]
    at: float  #: on ``clock.now()``


class Post:
    """Sends and collects over a port."""

    def __init__(self, port: Port, errands: Errands, poll_s: float) -> None:
        self.port, self.errands, self.poll_s = port, errands, poll_s

    def ask(self, addresses: Sequence[Address], question: Question, *, ttl: float) -> Sent:
        """Send a question; ``collect`` or ``reap`` brings the answers."""
        at = clock.now()
        tickets = self.port.ask(addresses, question, ttl) if addresses else []
        return self._sent(addresses, tickets, question, at, ttl)

    def send(self, addresses: Sequence[Address], payloads: Sequence[Any], *, ttl: float) -> Sent:
        """Send work; ``collect`` or ``reap`` brings the answers."""
        at = clock.now()
        tickets = self.port.send(addresses, payloads, ttl) if addresses else []
        return self._sent(addresses, tickets, None, at, ttl)

    def collect(
        self,
        sent: Sent,
        seconds: float,
        hear: Callable[[Address, Heard], object],
        until: Callable[[], float] | None = None,
    ) -> float:
        """Wait for the answers, and return how long it took.

        It ends when everybody has answered, after ``seconds``, or at the time that ``until`` gives
        for the answers so far. The last look is at the end, so nothing in time is missed.
        """
        for address in sent.refused:
            hear(address, Heard(Kind.REFUSED, 0.0, reason="the message was refused"))
        waiting = dict(sent.waiting)
        end, at = seconds, 0.0
        while waiting:
            at = min(clock.now() - sent.at, end)
            for ticket, heard in self.port.poll(waiting):
                hear(waiting.pop(ticket), heard._replace(seconds=at))
                del self.errands.open[ticket]
            end = min(seconds, until() if until else seconds)
            if at >= end or not waiting:
                break
            clock.sleep(min(self.poll_s, max(end - at, _SHORTEST_S)))
        return at

    def reap(self) -> list[tuple[Errand, Heard]]:
        """Return the answers that came too late to be collected, and forget what expired."""
        expired = self.errands.expire()
        if expired:
            self.port.cancel(expired)
        answers = self.port.poll(self.errands.open) if self.errands.open else []
        return [(self.errands.open.pop(ticket), heard) for ticket, heard in answers]

    def _sent(
        self,
        addresses: Sequence[Address],
        tickets: Sequence[Ticket | None],
        question: Question | None,
        at: float,
        ttl: float,
    ) -> Sent:
        expires = clock.now() + ttl
        sent = Sent({}, [], at)
        for address, ticket in zip(addresses, tickets, strict=True):
            if ticket is None:
                sent.refused.append(address)
            else:
                sent.waiting[ticket] = address
                self.errands.open[ticket] = Errand(address, question, expires)
        if sent.refused:
            log.warning("%d of %d messages were refused", len(sent.refused), len(addresses))
        return sent
