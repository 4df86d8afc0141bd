"""A federation in memory. Events alone move it, so playing them again gives the same one.

Nothing here asks whether an event may happen: requests were checked before they became events.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from turnout.serve.events import Event, RoundClosed, RoundOpened, RoundReported, StateImported
from turnout.serve.plan import session_of
from turnout.serve.schemas import Bits, ClientOutcome, Definition, Enrolment, Terms, Withdrawal
from turnout.serve.told import Told
from turnout.session import Chosen, Ended, Heard, Kind, clock
from turnout.session.checkpoint import Checkpoint, check_settings, checkpoint_bytes, read_checkpoint
from turnout.session.enrolled import Enrolled
from turnout.session.follower import Follower
from turnout.types import BoolArray, FloatArray

#: What checkpoints of a server are called.
CHECKPOINT_KIND = "serve"

_KINDS = {
    "completed": Kind.ANSWERED,
    "late": Kind.ANSWERED,
    "failed": Kind.FAILED,
    "silent": Kind.LOST,
}


class Machine:
    """The session of a federation, the open round, and how far the log was played.

    Args:
        definition: What the federation was created with.
        followers: Who is told of its rounds.
    """

    def __init__(self, definition: Definition, followers: Sequence[Follower] = ()) -> None:
        self.definition = definition
        self.session = session_of(definition, followers)
        self.members = cast(Enrolled, self.session.members)
        self.created_at = 0.0  #: when the federation was, which tells it from another of its number
        self.seq = 0  #: of the last event
        self.at = 0.0  #: when it happened
        self.chosen: Chosen | None = None  #: of the open round
        self.opened_at = 0.0
        self.said: dict[Hashable, ClientOutcome] = {}  #: of the open round
        self.length_s: float | None = None  #: as it was reported
        self.ended: Ended | None = None  #: the last round that was closed
        self.spent_s = 0.0  #: since the last snapshot
        self.snapshot_s = 0.0  #: what that took

    @property
    def told(self) -> Told | None:
        """The policy, if the caller says who was in time."""
        policy = self.session.chooser.policy
        return policy if isinstance(policy, Told) else None

    @property
    def identity(self) -> Mapping[str, object]:
        """What a checkpoint belongs to."""
        kept = ("selector", "parameters", "seed", "guard", "cohort_size", "policy", "bounds")
        return self.definition.model_dump(mode="json", include=set(kept))

    def apply(self, event: Event) -> None:
        """Let something happen.

        Args:
            event: The next one of the log.
        """
        started = time.perf_counter()
        content = event.content
        with clock.held(event.at):
            if isinstance(content, Enrolment):
                self._enrol(content)
            elif isinstance(content, Withdrawal):
                self.members.withdraw(content.clients)
            elif isinstance(content, RoundOpened):
                self._open(content.terms, event.at)
            elif isinstance(content, RoundReported):
                self._hear(content, event.at)
            elif isinstance(content, RoundClosed):
                self._close(event.at)
            else:
                assert isinstance(content, StateImported)
        self.seq, self.at = event.seq, event.at
        self.spent_s += time.perf_counter() - started

    def is_over(self, at: float) -> bool:
        """Return whether nobody has to wait for the open round any more."""
        assert self.chosen is not None
        if len(self.said) == len(self.chosen.ids):
            return True
        return self.told is None and self._passed(at) >= self.session.closes_at()

    def free(self, terms: Terms, at: float) -> BoolArray:
        """Return (n,) who could be chosen under these terms."""
        self.members.told = self._available(terms)
        with clock.held(at):
            free = self.members.selectable()
        self.members.told = None
        return free

    def polled(self, terms: Terms, at: float) -> list[Hashable]:
        """Return whose losses the selector wants to see before it chooses."""
        self._set(terms)
        with clock.held(at):
            return self.session.polled()

    def checkpoint(self) -> Checkpoint:
        """Return a copy of the state, which stays as it is when more happens; no round is open."""
        with clock.held(self.at):
            saved = self.session.state(self.identity)
        arrays = {
            owner: {name: np.array(values) for name, values in table.items()}
            for owner, table in saved.arrays.items()
        }
        return replace(saved, arrays=arrays)

    def state(self) -> bytes:
        """Return the state as a file; no round is open."""
        return content_of(self.checkpoint())

    def load(self, content: bytes, seq: int, at: float) -> None:
        """Go back to a checkpoint, before anything else has happened here.

        Args:
            content: What ``state`` returned, of a federation with the same definition.
            seq: The last event in it.
            at: When that happened.

        Raises:
            StateFileError: It is damaged, or of another federation.
        """
        saved: Checkpoint = read_checkpoint(content, CHECKPOINT_KIND)
        check_settings("the checkpoint", saved.settings, self.identity)
        with clock.held(at):
            self.session.load(saved)
        self.seq, self.at, self.spent_s = seq, at, 0.0

    def _enrol(self, enrolment: Enrolment) -> None:
        columns = {name: as_array(values) for name, values in enrolment.columns.items()}
        self.members.enrol(enrolment.clients, columns)
        self.session.sync(())

    def _set(self, terms: Terms) -> None:
        self.members.told = self._available(terms)
        if self.told is not None:
            self.told.cohort_size = terms.cohort_size
            self.told.deadline_s = math.inf if terms.deadline_s is None else terms.deadline_s

    def _open(self, terms: Terms, at: float) -> None:
        self._set(terms)
        self.session.begin()
        polled = self.session.polled()
        if polled and terms.losses is not None:
            by_client: dict[Hashable, float | None] = dict(
                zip(terms.losses.clients, terms.losses.losses, strict=True)
            )
            losses = as_array([by_client.get(client) for client in polled])
            self.session.answered(polled, losses, 0)
        self.chosen = self.session.open()
        self.opened_at, self.said, self.length_s = at, {}, None

    def _hear(self, reported: RoundReported, at: float) -> None:
        t, is_open = reported.round, self.chosen is not None and reported.round == self.chosen.round
        for outcome in reported.report.outcomes:
            if is_open:
                self.said[outcome.client] = outcome
            elapsed = at - self.opened_at if is_open else math.nan
            seconds = elapsed if outcome.seconds is None else outcome.seconds
            metrics = {name.replace("_", "-"): value for name, value in outcome.metrics.items()}
            heard = Heard(_KINDS[outcome.status], seconds, metrics, outcome.reason)
            self.session.heard(outcome.client, heard, round=t)
        if is_open and reported.report.length_s is not None:
            self.length_s = reported.report.length_s

    def _close(self, at: float) -> None:
        assert self.chosen is not None
        ids = self.chosen.ids
        length: float | None = None
        if self.told is not None:
            self.told.tell([self.said.get(client) for client in ids])
            known = [o.seconds for o in self.said.values() if o.seconds is not None]
            length = max(known, default=0.0) if self.length_s is None else self.length_s
        elif len(self.said) < len(ids):
            length = min(self._passed(at), self.session.closes_at())
        there = [client for client in ids if self.members.is_there(client)]
        self.ended = self.session.close(there, length)
        self.session.spans.finish()
        if self.told is not None:  # who is free is the caller's to say
            self.members.reserved = {}
        self.chosen, self.said, self.members.told = None, {}, None

    def _passed(self, at: float) -> float:
        """Return how long the open round has taken so far.

        Whoever reports that a client took a minute has a clock on which a minute has passed.
        """
        reported = [outcome.seconds or 0.0 for outcome in self.said.values()]
        return max(at - self.opened_at, *reported, 0.0)

    def _available(self, terms: Terms) -> BoolArray | None:
        if terms.available is None:
            return None
        n = len(self.members.roster)
        if isinstance(terms.available, Bits):
            return unpacked_bits(terms.available.bits, n)
        mask = np.zeros(n, dtype=np.bool_)
        mask[self.members.roster.indices(terms.available)] = True
        return mask


def content_of(saved: Checkpoint) -> bytes:
    """Return a checkpoint as a file."""
    return checkpoint_bytes(saved, CHECKPOINT_KIND)


def as_array(values: object) -> FloatArray:
    """Return numbers as an array, with NaN for what is unknown."""
    return np.array(values, dtype=np.float64)


def unpacked_bits(bits: str, n: int) -> BoolArray:
    """Return (n,) a set of clients that was sent as base64."""
    packed = np.frombuffer(base64.b64decode(bits, validate=True), dtype=np.uint8)
    return np.unpackbits(packed, count=n).astype(np.bool_)
