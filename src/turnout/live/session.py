"""A live run, round by round, as a state machine that never waits and sends nothing.

Its driver reports who is connected (``sync``), lets it select (``open``), passes on replies
(``receive``, from any thread) and ends the round (``close``) when ``closes_at`` says so. ``Live``
in ``turnout.live.driver`` is such a driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any

import numpy as np

from turnout.core import require
from turnout.core.arrays import contained
from turnout.core.errors import InvalidInput, StateFileError
from turnout.core.roster import Roster
from turnout.core.selector import Selector
from turnout.core.types import Array, FloatArray, IntArray, RoundContext, Selection, Status
from turnout.experiment.engine import RoundEngine
from turnout.live.checkpoint import Checkpoint
from turnout.live.client import NUM_EXAMPLES
from turnout.live.members import Members
from turnout.live.monitor import Monitor, Spans
from turnout.live.reports import FirstClaims, Hints, Reports, UpdateSizes
from turnout.live.round import ClosedRound, Cohort, Journal, OpenRound, Reject
from turnout.live.settings import LiveSettings, TooFewAnswers
from turnout.live.shadows import Shadows
from turnout.live.transport import Address, Reply, clock
from turnout.live.world import VirtualWorld
from turnout.results.run import RoundRow, chance_bound
from turnout.worlds import Closed


class Session:
    """Identifies clients, selects, closes rounds and learns from them; thread-safe.

    Rounds follow one another; ``OverlappingSession`` in ``turnout.live.overlap`` is for those that
    overlap.

    Args:
        settings: How it selects, waits and saves.
        selector: Chooses the clients.
        roster: Clients of an earlier run; None starts with none.
        world: Simulates time, availability and failures; None uses the real ones.
        members: Who takes part; None finds clients by their addresses.
        weight_key: The metric that every answer must report to be aggregated; None needs none.
        counts_once: Whether the answer of a client that was drawn twice counts once.
        hints: How clients provide what is missing, for error messages.
    """

    def __init__(
        self,
        settings: LiveSettings,
        selector: Selector,
        *,
        roster: Roster | None = None,
        world: VirtualWorld | None = None,
        members: Members | None = None,
        weight_key: str | None = None,
        counts_once: bool = False,
        hints: Hints | None = None,
    ) -> None:
        settings.quorum.check(settings.answers)
        self._check_schedule(settings, selector)
        label = settings.label or "session"
        self.settings = settings = replace(settings, label=label)
        self.selector, self.world = selector, world
        ids = world.ids if world is not None else () if roster is None else roster.ids
        self.members = members or Members(
            Roster(ids),  # the caller's roster stays as it is
            unidentified=settings.unidentified,
            is_closed=world is not None,
        )
        self.reports = Reports(settings, selector, world, weight_key, hints or Hints())
        self.engine = RoundEngine(
            selector,
            settings.round_policy(world),
            cohort_size=settings.answers,
            seed=settings.seed,
            schedule=settings.schedule,
            bounds=None if settings.bounds is None else settings.bounds.clone(),
        )
        self.spans = Spans(label)
        self.monitor = Monitor(settings, selector, warns=world is None)
        self.journal = Journal(settings.answers, self.monitor.measured)
        self.shadows = Shadows(settings.shadow, settings.seed) if settings.shadow else None
        if self.shadows is not None:
            self.journal.more_columns = self.shadows.columns
        shadowed = frozenset() if self.shadows is None else self.shadows.wanted
        self.members.columns.wanted = self.engine.wanted | shadowed | {"num_samples"}
        self._claims, self._sizes = FirstClaims(), UpdateSizes()
        self._counts_once = counts_once
        self._lock = RLock()
        self._context: RoundContext | None = None  # of a round that is not open yet
        self._open: OpenRound | None = None
        self._begun_at: float | None = None
        self.n_rounds: int | None = None  #: rounds that are planned, if a driver knows

    def _check_schedule(self, settings: LiveSettings, selector: Selector) -> None:
        """Refuse rounds that overlap."""
        if settings.overlaps:
            raise InvalidInput(
                f"schedule {type(settings.schedule).__name__} lets rounds overlap, and this host "
                "plays one round after the other: leave it out, or use Flower or HTTP.",
                field="schedule",
            )

    @property
    def round(self) -> int:
        """The round that is open or comes next, counted from 0."""
        return self.journal.n_rounds

    @property
    def roster(self) -> Roster:
        """The clients, by stable id."""
        return self.members.roster

    @property
    def is_open(self) -> bool:
        """Whether a round with chosen clients is open."""
        return self._open is not None and bool(self._open.ids)

    @property
    def is_waiting(self) -> bool:
        """Whether a round is open and a client in it has not replied."""
        return self._open is not None and self._open.is_waiting

    def busy_s(self, seconds: float) -> float:
        """Return for how long a client with this many seconds of work may stay busy."""
        late_s = self.settings.late_s
        return seconds + (seconds if late_s is None else late_s)

    def begin(self) -> None:
        """Count the time of the next round from now on; otherwise it counts from ``open`` on."""
        self._begun_at = clock.wall()
        self.spans.begin(self.round)

    def identify(self, address: Address, reply: Reply) -> None:
        """Store the identity behind an address; the client can be chosen after the next ``sync``.

        Args:
            address: Where the client is connected.
            reply: Its answer to ``AskIdentity``.
        """
        with self._lock:
            self.members.identify(address, reply)

    def sync(self, present: Iterable[Address]) -> None:
        """Update which clients are connected.

        Args:
            present: The addresses at which clients are connected.
        """
        with self._lock:
            self.members.update(present)
            self.members.bind()
            self.engine.resize(len(self.roster))
            if self.shadows is not None:
                self.shadows.resize(len(self.roster))
            self._claims.grow(len(self.roster))
            self._sizes.grow(len(self.roster))

    def update_columns(self, address: Address, reply: Reply) -> None:
        """Store columns of a connected client.

        Args:
            address: Where it is connected.
            reply: Its answer to ``AskColumns``.
        """
        with self._lock:
            self.members.columns.put(self.members.index_at(address), reply.metrics)

    def to_poll(self) -> list[Address]:
        """Return the clients whose losses the selector wants to know before it chooses."""
        with self._lock:
            self._context = ctx = self._next_context()
            clients = None if ctx is None else self.engine.poll(ctx)
            if ctx is None or clients is None:
                return []
            world, data = self.world, self.selector.poll_data
            losses = None if world is None else world.polled_loss(ctx.round, data)
            if losses is None:
                return self.members.addresses_of(clients)
            self._context = self.engine.with_losses(ctx, clients, losses[clients], is_claimed=False)
            return []

    def receive_losses(self, polled: Sequence[Address], losses: FloatArray, n_failed: int) -> None:
        """Store the losses of polled clients.

        Args:
            polled: The clients, as ``to_poll`` returned them.
            losses: (d,) their losses, NaN = no answer.
            n_failed: How many of those without an answer failed or are lost.
        """
        with self._lock:
            if self._context is None:
                raise InvalidInput("call to_poll() before receive_losses().")
            self.reports.check_poll(losses, n_failed)
            indices = [self.members.index_at(address) for address in polled]
            clients = np.array(indices, dtype=np.int64)
            # What cannot be a loss counts as no answer.
            sound = contained("polled_loss", losses, clients.size, non_negative=True)
            self._context = self.engine.with_losses(self._context, clients, sound)

    def check_fits(self) -> None:
        """Refuse the first round if the clients cannot fill it under the selector's limits.

        Raises:
            InvalidInput: They cannot; the message says what would do.
        """
        if self.round == 0 and self.engine.n_clients:
            self.engine.check_fits(self.n_rounds)

    def open(self, round: int | None = None) -> Cohort:
        """Select the cohort of the next round; it is empty if no client can be chosen.

        Args:
            round: The round that the caller means, counted from 0; None: the next one. Asking for
                the open round again by its number returns the same cohort.

        Raises:
            InvalidInput: Another round is due, one is open, or the clients are too few for limits.
        """
        with self._lock:
            if round is not None and round != self.round:
                state = "comes next" if self._open is None else "is open"
                raise require.wrong("round", f"be {self.round}, which {state}", got=f"{round}")
            if self._open is not None:
                if round is not None:
                    return self._open.cohort
                raise InvalidInput(f"round {self.round} is open: close it before the next one.")
            self.check_fits()
            ctx = self._next_context() if self._context is None else self._context
            self._context = None
            if self._begun_at is None:
                self.begin()
            self.journal.n_clients = max(1, self.engine.n_clients)
            if ctx is None:
                return Cohort(self.round)
            with self.spans.part("choose"):
                self._open = self._select(ctx)
            self.monitor.opened(self.round, self.members)
            return self._open.cohort

    def receive(self, client: Hashable, reply: Reply, round: int | None = None) -> bool:
        """Process the reply of a client; return whether it counts in the open round.

        The first reply counts. A late client is free again after any reply.

        Args:
            client: Its stable id.
            reply: The result of its work.
            round: The round of that work, counted from 0; None: the open one.

        Raises:
            InvalidInput: There is no client of this id.
        """
        with self._lock:
            client = self.roster.id_of(self.roster.index_of(client))
            opened = self._open if round in (None, self.round) else None
            if opened is not None and client in opened.position:
                return opened.receive(client, reply)
            self.members.release(client)
            return False

    def closes_at(self) -> float:
        """Return when the open round is over, in seconds after sending, as far as is known."""
        with self._lock:
            if self._open is None:
                return 0.0
            return self.settings.limit_s if self.world is not None else self._open.closes_at()

    def close(
        self,
        present: Iterable[Address] | None = None,
        length_s: float | None = None,
        reject: Reject | None = None,
    ) -> ClosedRound:
        """End the round, and learn from it.

        Args:
            present: Who is still connected; None: everyone who was.
            length_s: How long it took; None: until the last answer, or until its end if a client
                is late.
            reject: Returns which answers cannot be used together with the others; they count as
                failed.
        """
        return self._finish(lambda times: self._close(times, present, length_s, reject))

    def check_quorum(self) -> None:
        """Raise ``TooFewAnswers`` if too many consecutive rounds had too few answers."""
        quorum = self.settings.quorum
        n_empty = self.journal.n_last_below(quorum.min_answers)
        if quorum.max_empty_rounds is not None and n_empty >= quorum.max_empty_rounds:
            raise TooFewAnswers(
                f"{n_empty} rounds in a row had fewer than {quorum.min_answers} answers "
                f"(max_empty_rounds = {quorum.max_empty_rounds}): the log has the reasons; fix the "
                "clients and restart; the run resumes from its checkpoint."
            )

    def check_columns(self) -> None:
        """Raise ``MissingColumn`` if no client has sent a column that the selector needs."""
        self.reports.check_columns(self.members.columns)

    def sizes(self) -> FloatArray:
        """Return (n,) the weights of clients that described themselves; NaN = not known."""
        n, name = self.engine.n_clients, "num_samples"
        known = self.members.columns.take([name])
        if self.reports.weight_key != NUM_EXAMPLES or name not in known:
            return np.full(n, np.nan)
        claims = RoundContext(self.round, 1, np.ones(n, dtype=np.bool_), columns=known)
        return self.engine.bounded(claims).column(name)

    def state(self, settings: Mapping[str, Any]) -> Checkpoint:
        """Return everything that the next round depends on, at the end of one.

        Args:
            settings: What the checkpoint belongs to, see ``LiveSettings.identity``.
        """
        with self._lock:
            members, journal, wall = self.members, self.journal, clock.wall()
            return Checkpoint(
                settings=settings,
                rounds_done=journal.n_rounds,
                roster=members.roster.to_json(),
                busy=[[c, until, until - wall] for c, until in members.busy_clients().items()],
                bindings=members.bindings,
                seen=sorted(self.reports.seen),
                metrics=journal.metrics,
                void=sorted(journal.void),
                arrays={
                    **self.engine.state(),
                    "world": {} if self.world is None else self.world.state(),
                    "claims": self._claims.state() | self._sizes.state(),
                    **self.monitor.state(),
                    **({} if self.shadows is None else {"shadows": self.shadows.state()}),
                    "columns": members.columns.state(),
                    "run": journal.columns(),
                },
            )

    def load(self, saved: Checkpoint) -> None:
        """Continue from what ``state`` returned.

        Args:
            saved: The checkpoint, of a session with the same selector.

        Raises:
            StateFileError: Its clients are in another order than those of this session.
        """
        with self._lock:
            roster, arrays = Roster.from_json(saved.roster), saved.arrays
            first, n = self.roster.ids, len(roster)
            if roster.ids[: len(first)] != first:
                raise StateFileError("its clients are in another order than roster or world.")
            self.members.restore(roster, saved)
            self.engine.load_state(arrays, n, saved.rounds_done)
            for claims in (self._claims, self._sizes):
                claims.load_state(arrays.get("claims", {}), n)
            if self.world is not None:
                self.world.load_state(arrays.get("world", {}))
            self.journal.restore(arrays["run"], saved.metrics, set(saved.void))
            n_choices = arrays["run"]["clients"].size
            if self.shadows is not None:
                past = arrays.get("shadows", {})
                self.shadows.load_state(past, n, self.journal.n_rounds, n_choices)
            self.journal.n_clients = max(1, n)
            self.reports.seen.update(saved.seen)
            n_void = self.journal.n_last_below(self.settings.quorum.min_answers)
            self.monitor.load_state(arrays, self.journal.run, n_void)

    def start(self, config: Mapping[str, Any]) -> None:
        """Start the followers; their errors are errors of their setup.

        Args:
            config: The run's ``config.json``.
        """
        self.monitor.start(config)

    def end(self) -> None:
        """End followers and traces, also after an error; a second call does nothing."""
        self.spans.finish()
        self.monitor.end()

    def _next_context(self) -> RoundContext | None:
        """Return what the selector knows before it chooses; None while it cannot choose."""
        if not self.engine.n_clients:
            return None
        t, free = self.round, self.members.selectable()
        size, deadline = self.engine.terms()
        if self.world is not None:
            world = self.world.context(t, size, self.engine.wanted, deadline)
            return RoundContext(t, size, world.available & free, deadline, world.columns)
        if free.any():
            self.check_columns()
        filled = self.reports.columns(self.members.columns, self.engine.wanted)
        if self.selector.needs_columns - filled.keys():
            return None
        limit = min(deadline, self.settings.limit_s)
        return self.engine.bounded(RoundContext(t, size, free, limit, filled))

    def _select(self, ctx: RoundContext) -> OpenRound:
        selection = self.engine.select(ctx)
        if self.shadows is not None:
            self.shadows.choose(self._for_shadows(ctx, self.shadows.wanted))
        clients, foreseen = selection.clients, None
        if self.world is not None:  # it knows how the round will end
            fate = self.world.fate(ctx.round)
            duration, survived = fate.duration[clients], fate.survived[clients]
            foreseen = self.engine.close(duration, survived, fate.reports_failure)
        ids = tuple(self.roster.id_of(int(client)) for client in clients)
        addresses = tuple(self.members.addresses_of(clients))
        return OpenRound(self.engine, ctx, selection, ids, addresses, foreseen)

    def _for_shadows(self, ctx: RoundContext, wanted: Collection[str]) -> RoundContext:
        """Return a context with the columns that shadows use, and without answers to a poll."""
        if self.world is None:
            columns: Mapping[str, Array] = self.members.columns.take(wanted)
        else:
            columns = self.world.context(ctx.round, ctx.cohort_size, wanted, ctx.deadline).columns
        return replace(ctx, columns=columns, polled=None, polled_loss=None)

    def _finish(self, end: Callable[[tuple[float, float]], ClosedRound]) -> ClosedRound:
        """End a round, and notify followers.

        Args:
            end: Ends it; it is called with the times at which the round began and was closed.
        """
        with self._lock:
            closed_at = clock.wall()
            times = (closed_at if self._begun_at is None else self._begun_at, closed_at)
            self._begun_at = None
            result = end(times)
            self.spans.close(result)
            numbers = self.monitor.numbers(result, self.members)
        self.monitor.ended(result, numbers)
        return result

    def _close(
        self,
        times: tuple[float, float],
        present: Iterable[Address] | None,
        length_s: float | None,
        reject: Reject | None,
    ) -> ClosedRound:
        ends = self.closes_at()
        opened, self._open = self._open, None
        if opened is None:
            return self._close_empty(times)
        there = self.members.connected if present is None else set(present)
        closed = opened.close(there, length_s, ends)
        in_time = opened.completed(closed)
        self.reports.check(in_time.values())
        faults = {} if reject is None else reject(list(in_time.values()))
        positions = list(in_time)
        closed = opened.drop(closed, {positions[i]: why for i, why in faults.items()})
        left = opened.completed(closed)
        clients = opened.selection.clients[list(left)]
        judged = dict(zip(left, self._judged(clients, left.values()), strict=True))
        closed = opened.drop(closed, {i: why for i, (_, why) in judged.items() if why is not None})
        sizes = {i: x for i, (x, _) in judged.items() if not math.isnan(x)}
        with self.spans.part("learn"):
            return self._learn(opened, closed, times, sizes)

    def _judged(
        self, clients: IntArray, replies: Collection[Reply]
    ) -> list[tuple[float, str | None]]:
        """Return how many times as large as usual updates are, and why they are refused."""
        bounds = self.engine.bounds
        refuses = bounds is not None and bounds.losses
        return self._sizes.judge(clients, replies, refuses=refuses)

    def _learn(
        self,
        opened: OpenRound,
        closed: Closed,
        times: tuple[float, float],
        sizes: Mapping[int, float],
    ) -> ClosedRound:
        """Learn from a round, reserve late clients, and record it."""
        selection, ctx, members = opened.selection, opened.context, self.members
        wanted = min(ctx.cohort_size, self.engine.cohort_size)
        if ctx.pool.size >= wanted:  # a selector may choose fewer of them
            wanted = min(wanted, selection.clients.size)
        result = self._result(opened, closed, times)._replace(sizes=sizes, n_wanted=wanted)
        replies = [(int(selection.clients[i]), x) for i, x in opened.completed(closed).items()]
        t, clients = ctx.round, selection.clients
        answers = opened.answers
        outcome = self.reports.outcome(t, clients, closed.status, closed.duration, answers)
        is_claimed = not self.reports.is_virtual
        self.engine.learn(selection, closed, outcome, ctx.deadline, is_claimed=is_claimed)
        joules = None
        if self.world is not None:
            joules = self.world.record(clients, t, closed.spent)
        self.reports.fill_sizes(members.columns, replies)
        if self.world is None:
            left = self.busy_s(ctx.deadline) - closed.length_s
            for i in np.flatnonzero(closed.status == Status.LATE).tolist():
                members.hold(opened.ids[i], left)
        reported = self.reports.recorded(
            clients, outcome, opened.completed(closed), members.columns
        )
        if joules is not None:
            reported = {**reported, "energy_j": joules}
        if self.shadows is not None:
            names = self.shadows.metrics
            more = self.reports.outcome(t, clients, closed.status, outcome.duration, answers, names)
            metrics = {**more.metrics, **outcome.metrics}
            self.shadows.learn(selection, replace(outcome, metrics=metrics))
        return self._recorded(
            RoundRow(
                clients,
                closed.status,
                outcome.duration,
                closed.spent,
                selection.probability,
                closed.length_s,
                ctx.available,
                chance_bound(selection),
                reported,
            ),
            result,
        )

    def _recorded(self, row: RoundRow, result: ClosedRound) -> ClosedRound:
        """Add a round to the journal and the counts; return its result with alerts."""
        self.journal.add(row, is_void=result.is_void)
        return self.monitor.count(row, result, self.roster)

    def _result(self, opened: OpenRound, closed: Closed, times: tuple[float, float]) -> ClosedRound:
        """Return how a round ended, with the answers that count and their believed weights."""
        replies, selection = opened.completed(closed), opened.selection
        is_void = len(replies) < self.settings.quorum.min_answers
        weights = {i: self._weight(int(selection.clients[i]), x) for i, x in replies.items()}
        counts = np.ones(len(opened.ids)) if self._counts_once else selection.times
        used = [i for i in (() if is_void else replies) for _ in range(int(counts[i]))]
        return ClosedRound(
            opened.context.round,
            opened.ids,
            closed,
            opened.reasons,
            tuple(replies[i].content for i in used),
            is_void,
            *times,
            weights=tuple(weights[i] for i in used),
        )

    def _weight(self, client: int, reply: Reply) -> float:
        """Return the believed weight of a reply; NaN if it claims none."""
        bounds = self.engine.bounds
        if math.isnan(reply.weight) or bounds is None or not bounds.fixed_samples:
            return reply.weight
        counts_examples = self.reports.weight_key == NUM_EXAMPLES
        known = self.members.columns.number("num_samples", client) if counts_examples else math.nan
        name = self.roster.id_of(client)
        return self._claims.believed(client, reply.weight, known, name)

    def _close_empty(self, times: tuple[float, float]) -> ClosedRound:
        """Record a round in which no client could be chosen."""
        nothing = np.zeros(0, dtype=np.bool_)
        closed = self.engine.policy.close(np.zeros(0), nothing)
        result = ClosedRound(self.round, (), closed, {}, (), True, *times)
        selection = Selection(self.round, np.zeros(0, dtype=np.int64))
        if self.shadows is not None:
            self.shadows.learn(selection)
        return self._recorded(
            RoundRow(
                selection.clients,
                closed.status,
                closed.duration,
                closed.spent,
                None,
                closed.length_s,
                nothing,
            ),
            result,
        )
