"""Everything that chooses and learns: selector, policy, bounds, reports and a virtual world."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from turnout.errors import InvalidInput
from turnout.policies import Closed, Observed
from turnout.rng import Purpose, stream
from turnout.selector import Selector
from turnout.session import keys
from turnout.session.columns import Columns
from turnout.session.first_words import FirstWords
from turnout.session.members import Members
from turnout.session.port import Heard
from turnout.session.reports import Reports, number
from turnout.session.settings import Settings
from turnout.session.world import World
from turnout.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
    Status,
)


class Chooser:
    """Chooses for a round, and learns from it when it is over."""

    def __init__(
        self,
        settings: Settings,
        selector: Selector,
        reports: Reports,
        world: World | None,
        limit_s: float,
    ) -> None:
        self.selector, self.reports, self.world = selector, reports, world
        self.policy = settings.round_policy(limit_s, world)
        self.observed = Observed.fresh()
        self.bounds = None if settings.bounds is None else settings.bounds.clone()
        self.claims = FirstWords()
        self.n_clients = 0  #: that selector and bounds have room for
        self.cohort_size, self._seed, self._limit_s = settings.cohort_size, settings.seed, limit_s

    def make_room(self, n: int) -> None:
        """Give selector and bounds as many clients as there are."""
        if n and not self.n_clients:
            self.selector.prepare(n, self._seed)
            if self.bounds is not None:
                self.bounds.reset(n)
        elif n > self.n_clients:
            self.selector.grow(n)
            if self.bounds is not None:
                self.bounds.grow(n)
        self.claims.grow(n)
        self.n_clients = n

    def context(self, t: int, free: BoolArray, columns: Columns) -> RoundContext | None:
        """Return what the selector knows before it chooses; None if nobody has said anything."""
        if not self.n_clients:
            return None
        size = self.policy.select_size(self.cohort_size, self.observed)
        needs, uses = self.selector.needs_columns, self.selector.uses_columns
        deadline = self.policy.deadline(self.observed)
        if self.world is not None:
            world = self.world.context(t, size, needs | uses, deadline)
            return RoundContext(t, size, world.available & free, deadline, world.columns)
        if free.any():
            self.reports.check_columns(columns)
        filled = self.reports.columns(columns)
        if needs - filled.keys():
            return None
        ctx = RoundContext(t, size, free, min(deadline, self._limit_s), filled)
        return ctx if self.bounds is None else self.bounds.columns(ctx)

    def poll(self, ctx: RoundContext) -> tuple[RoundContext, IntArray | None]:
        """Return whose losses are wanted, or the context with those that the world makes up."""
        if not self.selector.polls:
            return ctx, None
        clients = self.selector.poll(ctx, stream(self._seed, Purpose.POLL, ctx.round))
        if clients is None or self.world is None:
            return ctx, clients
        made_up = self.world.polled_loss(ctx.round, self.selector.poll_data)
        if made_up is None:
            return ctx, clients
        return ctx.with_answers(clients, made_up[clients]), None

    def with_losses(self, ctx: RoundContext, clients: IntArray, losses: FloatArray) -> RoundContext:
        """Return the context with the losses that clients answered."""
        ctx = ctx.with_answers(clients, losses)
        return ctx if self.bounds is None else self.bounds.answers(ctx)

    def select(self, ctx: RoundContext) -> Selection:
        """Return the choice of a round."""
        selection = self.selector.select(ctx, stream(self._seed, Purpose.SELECT, ctx.round))
        if selection.clients.size > ctx.size or not ctx.available[selection.clients].all():
            raise InvalidInput(
                f"{type(self.selector).__name__} must choose at most {ctx.size} available clients "
                f"in round {ctx.round}, got {selection.clients.size}."
            )
        return selection

    def foresee(self, selection: Selection) -> Closed | None:
        """Return how a round of a virtual world will end; None without a world."""
        if self.world is None:
            return None
        fate = self.world.fate(selection.round)
        return self.policy.close(
            fate.duration[selection.clients],
            fate.survived[selection.clients],
            self.observed,
            cohort_size=self.cohort_size,
            reports_failure=fate.reports_failure,
        )

    def seconds(self) -> float:
        """Return how long clients have for anything but a round: as long as for the next one."""
        if self.world is not None:  # its deadlines are not on the wall clock
            return self._limit_s
        return min(self.policy.deadline(self.observed), self._limit_s)

    def learn(
        self,
        selection: Selection,
        closed: Closed,
        answers: Mapping[int, Heard],
        columns: Columns,
        deadline: float,
    ) -> FloatArray:
        """Learn from a round that is over; return (s,) durations as the selector sees them."""
        clients = selection.clients
        duration, metrics = self.reports.read(selection.round, clients, closed, answers)
        outcome = Outcome.from_reports(closed.status, duration, metrics)
        if self.bounds is not None and not self.reports.is_virtual:
            outcome = self.bounds.outcome(selection, outcome)
        self.selector.observe(selection, outcome)
        if self.policy.uses_observed:
            self.observed.record(closed, deadline)
        if self.world is not None:
            self.world.record(clients)
        for i in np.flatnonzero(closed.status == Status.COMPLETED).tolist():
            size = number(answers[i].metrics, keys.NUM_EXAMPLES)
            if not math.isnan(size) and not columns.knows("num_samples", int(clients[i])):
                columns.put(int(clients[i]), {"num_samples": size})
        return duration

    def believed_weight(self, client: int, heard: Heard, members: Members) -> float:
        """Return how much an answer weighs when answers are averaged; NaN = not said.

        Args:
            client: The index of whose it is.
            heard: The answer.
            members: What clients have said of themselves.
        """
        claim = heard.weight
        if math.isnan(claim) or self.bounds is None or not self.bounds.fixed_samples:
            return claim
        counts_examples = self.reports.weight_key == keys.NUM_EXAMPLES
        known = members.columns.number("num_samples", client) if counts_examples else math.nan
        return self.claims.believed(client, claim, known, members.roster.id_of(client))

    def state(self) -> dict[str, Mapping[str, Array]]:
        """Return what selector, policy, world and bounds have learned, by owner."""
        has_bounds = self.bounds is not None and self.n_clients
        return {
            "selector": self.selector.state() if self.n_clients else {},
            "observed": self.observed.state(),
            "world": {} if self.world is None else self.world.state(),
            "bounds": self.bounds.state() if has_bounds and self.bounds is not None else {},
            "claims": self.claims.state(),
        }

    def load_state(self, state: Mapping[str, Mapping[str, Array]], n_clients: int) -> None:
        """Go back to what ``state`` returned, with so many clients."""
        self.n_clients = 0
        self.make_room(n_clients)
        if n_clients:
            self.selector.load_state(state["selector"])
            if self.bounds is not None and "bounds" in state:  # they were on
                self.bounds.load_state(state["bounds"])
        self.observed.load_state(state["observed"])
        self.claims.load_state(state.get("claims", {}), n_clients)
        if self.world is not None:
            self.world.load_state(state.get("world", {}))
