"""The rounds of a run: who can be chosen, who is chosen, how it ended, what is learned from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message

from turnout.bounds import Bounds
from turnout.errors import InvalidInput
from turnout.integrations.flower import clock, keys
from turnout.integrations.flower.base import World
from turnout.integrations.flower.cohort import Cohort
from turnout.integrations.flower.errors import MissingMetric
from turnout.integrations.flower.mailbox import Mailbox, log
from turnout.integrations.flower.members import Members
from turnout.integrations.flower.replies import ReplyRules
from turnout.integrations.flower.reports import Reports
from turnout.policies import Closed, Observed, RoundPolicy
from turnout.rng import Purpose, stream
from turnout.selector import Selector
from turnout.types import FloatArray, Outcome, RoundContext, Selection, Status

__all__ = ["OpenRound", "Rounds"]

#: Name, among the metrics that were seen, of the answers to a poll.
_POLLED = "polled-loss"


@dataclass(slots=True)
class OpenRound:
    """A round from the choice to its end."""

    context: RoundContext
    selection: Selection
    nodes: list[int]
    arrays: ArrayRecord
    closed: Closed | None = None
    duration: FloatArray = field(default_factory=lambda: np.zeros(0))  #: as the selector sees it
    metrics: Mapping[str, FloatArray] = field(default_factory=dict)

    def close_empty(self, policy: RoundPolicy) -> None:
        """End a round in which nobody was chosen."""
        self.closed = policy.close(np.zeros(0), np.zeros(0, dtype=np.bool_))


@dataclass
class Rounds:
    """Everything that chooses, waits and learns; Flower's hooks call it in their order."""

    selector: Selector
    members: Members
    mailbox: Mailbox
    rules: ReplyRules
    reports: Reports
    policy: RoundPolicy
    cohort_size: int
    seed: int
    limit_s: float  #: no round is longer
    late_s: float | None
    start_s: float
    wait_for_nodes_s: float
    world: World | None
    bounds: Bounds | None  #: on what clients claim; what a world makes up is no claim
    observed: Observed = field(default_factory=Observed.fresh)
    _has_gathered: bool = False
    _has_waited: bool = False  # in vain
    _n_known: int = 0  #: clients that the selector has room for

    def ttl(self, seconds: float) -> float:
        """Return how long messages stay open that have so many seconds."""
        return seconds + (seconds if self.late_s is None else self.late_s)

    def gather(self, n_wanted: int) -> None:
        """Look who is there; wait for enough clients, but not for ever and not twice in vain.

        Before the first round it also waits until all connected nodes have said who they are and
        no more come, so that the order of the roster does not depend on who was faster. Nodes that
        do not answer are waited for until ``wait_for_nodes_s`` after the last news of any node.
        """
        is_first, self._has_gathered = not self._has_gathered, True
        patience = self.start_s if is_first else self.wait_for_nodes_s
        started = news_at = clock.now()
        before = None
        while True:
            looked_at = clock.now()
            all_heard = self.members.refresh(self.mailbox.reap())
            heard = (self.members.connected, self.members.n_heard)
            is_news, before = heard != before, heard
            news_at = looked_at if is_news else news_at
            waited, quiet = clock.now() - started, clock.now() - news_at
            is_complete = (all_heard and not is_news) or quiet >= self.wait_for_nodes_s
            is_settled = not is_first or is_complete
            n_there = self.members.n_connected
            if is_settled and (n_there >= n_wanted or (self._has_waited and n_there > 0)):
                self.members.bind()
                if self.members.selectable().any():
                    break
            if waited >= patience:
                log.warning(
                    "%d of %d clients are connected after %g s: going on with those that are free",
                    *(n_there, n_wanted, patience),
                )
                break
            clock.sleep(self.mailbox.poll_s)
        self.members.bind()
        self._has_waited = n_there < n_wanted
        self._make_room()

    def continue_with(self, n_clients: int) -> None:
        """Take the selector as it is, with a state for so many clients."""
        self._n_known = n_clients

    def choose(self, t: int, arrays: ArrayRecord, last: frozenset[int]) -> OpenRound | None:
        """Return the choice of round ``t``; None if there is nobody to know anything about."""
        if not self._n_known:
            return None
        ctx = self._context(t, last)
        if ctx is None:
            return None
        if self.selector.polls:
            ctx = self._with_answers(ctx, arrays)
        selection = self.selector.select(ctx, stream(self.seed, Purpose.SELECT, t))
        if selection.clients.size > ctx.size or not ctx.available[selection.clients].all():
            raise InvalidInput(
                f"{type(self.selector).__name__} must choose at most {ctx.size} available clients "
                f"in round {t}, got {selection.clients.size}."
            )
        return OpenRound(ctx, selection, self.members.nodes_of(selection.clients), arrays)

    def train(self, opened: OpenRound, messages: Sequence[Message]) -> list[Message]:
        """Send, wait as long as the policy says, and return the replies that count."""
        names = [self.members.roster.id_of(int(client)) for client in opened.selection.clients]
        cohort = Cohort(
            names, opened.nodes, self.rules, self.policy, self.observed, self.cohort_size
        )
        if self.world is None:
            seconds = opened.context.deadline
            _, length = self.mailbox.exchange(
                messages, seconds, ttl=self.ttl(seconds), until=cohort.until
            )
            there = self.mailbox.grid.get_node_ids() if cohort.is_open else ()
            closed = cohort.close(set(there), length)
        else:
            closed = self._train_virtually(opened, messages, cohort, self.world)
        return self._take(opened, cohort, closed)

    def observe(self, opened: OpenRound) -> None:
        """Let selector, policy and world learn from a round that is over."""
        assert opened.closed is not None
        outcome = Outcome.from_reports(opened.closed.status, opened.duration, opened.metrics)
        if self.bounds is not None and not self.reports.is_virtual:
            outcome = self.bounds.outcome(opened.selection, outcome)
        self.selector.observe(opened.selection, outcome)
        if self.policy.uses_observed:
            self.observed.record(opened.closed, opened.context.deadline)
        if self.world is not None:
            self.world.record(opened.selection.clients)

    def _make_room(self) -> None:
        """Give the selector as many clients as the roster has."""
        n = len(self.members.roster)
        if n and not self._n_known:
            self.selector.prepare(n, self.seed)
            if self.bounds is not None:
                self.bounds.reset(n)
        elif n > self._n_known:
            self.selector.grow(n)
            if self.bounds is not None:
                self.bounds.grow(n)
        self._n_known = n

    def _context(self, t: int, last: frozenset[int]) -> RoundContext | None:
        size = self.policy.select_size(self.cohort_size, self.observed)
        needs, uses = self.selector.needs_columns, self.selector.uses_columns
        free = self.members.selectable()
        deadline = self.policy.deadline(self.observed)
        if self.world is not None:
            made = self.world.context(t, size, needs | uses, deadline)
            return RoundContext(t, size, made.available & free, deadline, made.columns)
        if (needs or uses) and free.any():
            self.members.ask_columns(np.flatnonzero(free), needs | uses, t + 1, last)
        columns = self.members.columns.take(needs if free.any() else (), needs | uses)
        if needs - columns.keys():  # nobody is here, and nobody has said anything yet
            return None
        ctx = RoundContext(t, size, free, min(deadline, self.limit_s), columns)
        return ctx if self.bounds is None else self.bounds.columns(ctx)

    def _with_answers(self, ctx: RoundContext, arrays: ArrayRecord) -> RoundContext:
        polled = self.selector.poll(ctx, stream(self.seed, Purpose.POLL, ctx.round))
        if polled is None:
            return ctx
        data = self.selector.poll_data
        known = None if self.world is None else self.world.polled_loss(ctx.round, data)
        if known is not None:
            return ctx.with_answers(polled, known[polled])
        losses, is_possible = self.members.ask_loss(polled, arrays, ctx.round + 1, data)
        if not is_possible and _POLLED not in self.reports.seen:
            raise MissingMetric(
                f"{type(self.selector).__name__} polls clients for their loss, and none has an "
                "answer: add describe(app, stable_id=..., loss=evaluate) on the client, with "
                "evaluate(message, context) -> float."
            )
        if not np.isnan(losses).all():
            self.reports.seen.add(_POLLED)
        ctx = ctx.with_answers(polled, losses)
        return ctx if self.bounds is None else self.bounds.answers(ctx)

    def _train_virtually(
        self, opened: OpenRound, messages: Sequence[Message], cohort: Cohort, world: World
    ) -> Closed:
        """Let those train who answer in virtual time, as fast as they can."""
        chosen, fate = opened.selection.clients, world.fate(opened.context.round)
        closed = self.policy.close(
            fate.duration[chosen],
            fate.survived[chosen],
            self.observed,
            cohort_size=self.cohort_size,
            reports_failure=fate.reports_failure,
        )
        in_time = closed.status == Status.COMPLETED
        asked = [one for one, is_asked in zip(messages, in_time, strict=True) if is_asked]
        answers, _ = self.mailbox.exchange(asked, self.limit_s, ttl=self.limit_s)
        cohort.until(answers)
        lost = set(np.flatnonzero(in_time).tolist()) - cohort.replies.keys()
        status = closed.status.copy()
        status[sorted(lost)] = Status.FAILED
        return closed._replace(status=status)

    def _take(self, opened: OpenRound, cohort: Cohort, closed: Closed) -> list[Message]:
        """Keep what the round gave; return the replies of those who completed, in their order.

        The reply of a node that was drawn twice is there twice.
        """
        in_time = np.flatnonzero(closed.status == Status.COMPLETED).tolist()
        sound = [cohort.replies[i] for i in in_time]
        self.reports.check(sound)
        needed = tuple(self.reports.needed.values())
        misfits = self.rules.misfits(sound, sent=opened.arrays, needed=needed)
        closed = cohort.drop(closed, {in_time[i]: fault for i, fault in misfits.items()})
        clients, t = opened.selection.clients, opened.context.round
        opened.closed = closed
        opened.duration, opened.metrics = self.reports.read(t, clients, closed, cohort.replies)
        kept = [i for i in in_time if i in cohort.replies]
        for i in kept:
            self._learn_size(int(clients[i]), cohort.replies[i].number(keys.NUM_EXAMPLES))
        times = np.ones(clients.size) if self.rules.counts_once else opened.selection.times
        return [cohort.replies[i].reply for i in kept for _ in range(int(times[i]))]

    def _learn_size(self, client: int, n_examples: float) -> None:
        """Take the number of examples from a reply, if the client did not say it before."""
        if not math.isnan(n_examples) and not self.members.columns.knows("num_samples", client):
            self.members.columns.put(client, {"num_samples": n_examples})
