"""A live run, round by round, as a machine that waits for nobody and sends nothing.

Whoever drives it says who is present (``sync``), lets it choose (``open``), passes on what was
heard (``heard``, from any thread), and ends the round (``close``) when ``closes_at`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any

import numpy as np

from turnout.errors import InvalidInput
from turnout.roster import Roster
from turnout.selector import Selector
from turnout.session import clock, closing, saving
from turnout.session.checkpoint import Checkpoint
from turnout.session.chooser import Chooser
from turnout.session.hints import Hints
from turnout.session.journal import Journal
from turnout.session.members import Members
from turnout.session.oversight import Oversight
from turnout.session.parts import Parts
from turnout.session.port import Address, Heard
from turnout.session.post import Errands
from turnout.session.reports import Reports
from turnout.session.round import Chosen, Ended, Misfits, OpenRound
from turnout.session.settings import Settings
from turnout.session.spans import Spans
from turnout.session.world import World
from turnout.types import FloatArray, RoundContext

#: Seconds of a round if neither the policy nor the framework sets a limit.
LONGEST_S = 3600.0


class Session:
    """Knows who is who, chooses, judges and learns, round after round; thread-safe.

    Args:
        settings: How it chooses, waits and saves.
        selector: Who chooses.
        roster: Clients of an earlier run; None starts with none.
        world: Simulates time, availability and failures; None takes them as they are.
        limit_s: Seconds after which a round ends at the latest.
        weight_key: The number that every answer must report to be aggregated; None: there is none.
        counts_once: Whether the answer of a client that was drawn twice counts once.
        hints: How clients provide what is missing, for error messages.
    """

    def __init__(
        self,
        settings: Settings,
        selector: Selector,
        *,
        roster: Roster | None = None,
        world: World | None = None,
        limit_s: float = LONGEST_S,
        weight_key: str | None = None,
        counts_once: bool = False,
        hints: Hints | None = None,
    ) -> None:
        self.settings, self.world, self.limit_s = settings, world, limit_s
        self.errands = Errands()
        ids = world.ids if world is not None else () if roster is None else roster.ids
        self.members = Members(
            Roster(ids),  # the caller's stays as it is
            self.errands,
            unidentified=settings.unidentified,
            is_closed=world is not None,
        )
        self.reports = Reports(settings, selector, world, weight_key, hints or Hints())
        self.chooser = Chooser(settings, selector, self.reports, world, limit_s)
        self.spans = Spans(settings.label)
        self.oversight = Oversight(settings, selector, is_virtual=world is not None)
        self.journal = Journal(settings.cohort_size, self.oversight.followers.measured)
        self._counts_once = counts_once
        self._lock = RLock()
        self._context: RoundContext | None = None  # of a round that is not open yet
        self._open: OpenRound | None = None
        self._begun_at: float | None = None

    @property
    def round(self) -> int:
        """The round that is open or comes next, counted from 0."""
        return self.journal.n_rounds

    @property
    def is_open(self) -> bool:
        """Whether a round is open in which somebody was chosen."""
        return self._open is not None and bool(self._open.addresses)

    @property
    def is_waiting(self) -> bool:
        """Whether a round is open and somebody in it has not been heard."""
        return self._open is not None and self._open.cohort.is_waiting

    def begin(self) -> None:
        """Count the time of the next round from now on; else it counts from ``open`` on."""
        self._begun_at = clock.wall()
        self.spans.begin(self.round)

    def introduce(self, address: Address, heard: Heard) -> None:
        """Take in who is behind an address; it can be chosen from the next ``sync`` on.

        Args:
            address: Where the client is connected.
            heard: Its answer to the question who it is, with an ``Identity``.
        """
        with self._lock:
            self.members.learn(address, heard)

    def sync(self, present: Iterable[Address]) -> None:
        """Take note of who is there.

        Args:
            present: Where clients are connected.
        """
        with self._lock:
            self.members.look(present)
            self.members.bind()
            self.chooser.make_room(len(self.members.roster))

    def tell(self, address: Address, heard: Heard) -> None:
        """Take in columns of a client that is present.

        Args:
            address: Where it is connected.
            heard: Its answer to the question for them.
        """
        with self._lock:
            self.members.columns.put(self.members.index_at(address), heard.metrics)

    def polled(self) -> list[Address]:
        """Return whose losses the selector wants to know before it chooses."""
        with self._lock:
            ctx, clients = self._next_context(), None
            if ctx is not None:
                ctx, clients = self.chooser.poll(ctx)
            self._context = ctx
            return [] if clients is None else self.members.addresses_of(clients)

    def answered(self, polled: Sequence[Address], losses: FloatArray, n_failed: int) -> None:
        """Take in the losses that were polled.

        Args:
            polled: Whose, as ``polled`` returned it.
            losses: (d,) their losses, NaN = no answer.
            n_failed: How many failed or are lost, of those without an answer.
        """
        with self._lock:
            if self._context is None:
                raise InvalidInput("nobody was polled: call polled() before answered().")
            self.reports.check_poll(losses, n_failed)
            clients = np.array(
                [self.members.index_at(address) for address in polled], dtype=np.int64
            )
            self._context = self.chooser.with_losses(self._context, clients, losses)

    def open(self, round: int | None = None) -> Chosen:
        """Choose the cohort of the next round; it is empty if nobody can be chosen.

        Args:
            round: The round that the caller means, counted from 0; None: whichever comes next.
                Asking for the open round again by its number returns the same choice.

        Raises:
            InvalidInput: Another round is due, or one is open.
        """
        with self._lock:
            if round is not None and round != self.round:
                state = "comes next" if self._open is None else "is open"
                raise InvalidInput(
                    f"round must be {self.round}, which {state}, got {round}.", field="round"
                )
            if self._open is not None:
                if round is not None:
                    return self._open.chosen
                raise InvalidInput(f"round {self.round} is open: close it before the next one.")
            ctx = self._next_context() if self._context is None else self._context
            self._context = None
            if self._begun_at is None:
                self.begin()
            self.journal.n_clients = max(1, self.chooser.n_clients)
            if ctx is None:
                return Chosen(self.round, (), (), (), math.inf, None, 0)
            with self.spans.part("choose"):
                self._open = OpenRound.of(ctx, self.chooser, self.members)
            self.oversight.opened(self.round, self.members)
            return self._open.chosen

    def heard(self, client: Hashable, heard: Heard, round: int | None = None) -> bool:
        """Take in what was heard of a client; return whether it counts in the open round.

        The first word counts. Who was late is free again, whatever it says.

        Args:
            client: Its stable id.
            heard: What came of its work.
            round: The round of that work, counted from 0; None: the one that is open.

        Raises:
            InvalidInput: Nobody has this id.
        """
        with self._lock:
            client, index = self.members.known(client)
            opened = self._open if round in (None, self.round) else None
            if opened is not None and client in opened.position:
                return opened.cohort.hear(opened.position[client], heard)
            self.members.release(index)
            return False

    def closes_at(self) -> float:
        """Return when the open round is over, in seconds after sending, as far as is known."""
        with self._lock:
            return 0.0 if self._open is None else self._closes_at(self._open)

    def close(
        self,
        present: Iterable[Address] | None = None,
        length_s: float | None = None,
        misfits: Misfits | None = None,
    ) -> Ended:
        """End the round, and learn from it.

        Args:
            present: Who is still connected; None: everybody who was.
            length_s: How long it took; None: until the last answer, or the end if somebody is late.
            misfits: Says which answers do not fit the others; they count as failed.
        """
        with self._lock:
            opened, self._open = self._open, None
            closed_at = clock.wall()
            times = (closed_at if self._begun_at is None else self._begun_at, closed_at)
            self._begun_at = None
            if opened is None:
                ended = closing.close_empty(self._parts, times)
            else:
                there = self.members.connected if present is None else set(present)
                closed = opened.judge(there, length_s, self._closes_at(opened))
                closed = opened.settle(closed, self.reports, misfits)
                once = self._counts_once
                with self.spans.part("learn"):
                    ended = closing.close(self._parts, opened, closed, times, counts_once=once)
            self.spans.close(ended)
            numbers = self.oversight.numbers(ended, self.members)
        if numbers is not None:
            self.oversight.followers.ended(ended, numbers)
        return ended

    def state(self, settings: Mapping[str, Any]) -> Checkpoint:
        """Return everything that the next round depends on, at the end of one.

        Args:
            settings: What the checkpoint belongs to, see ``Settings.identity``.
        """
        with self._lock:
            return saving.checkpoint_of(settings, self._parts)

    def load(self, saved: Checkpoint) -> None:
        """Go back to what ``state`` returned.

        Args:
            saved: The checkpoint, of a session with the same selector.

        Raises:
            StateFileError: Its clients are in another order than those of this session.
        """
        with self._lock:
            saving.restore(saved, self._parts)

    def start(self, about: Mapping[str, Any]) -> None:
        """Let followers begin; what they raise is an error in how they were set up.

        Args:
            about: What they are told of the run.
        """
        self.oversight.followers.start(about)

    def end(self) -> None:
        """Let followers and traces end, also after an error; a second call does nothing."""
        self.spans.finish()
        self.oversight.followers.end()

    @property
    def _parts(self) -> Parts:
        know = self.settings, self.members, self.chooser, self.journal, self.reports
        return Parts(*know, self.oversight)

    def _next_context(self) -> RoundContext | None:
        return self.chooser.context(self.round, self.members.selectable(), self.members.columns)

    def _closes_at(self, opened: OpenRound) -> float:
        if self.world is not None:
            return self.limit_s
        return min(opened.context.deadline, opened.cohort.closes_at())
