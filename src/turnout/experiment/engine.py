"""One round of selection: simulation, Flower, NVFlare and HTTP all use this engine.

The host says who is available and what happened to whom. The engine applies the round policy, the
bounds and the selector in the same order for every host, with the same random streams. The same
history therefore gives the same cohorts on every stack.

With a schedule whose rounds overlap, ``in_flight`` says who is at work; its module shows the calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.experiment.in_flight import InFlight
from turnout.worlds import Answers, Closed, Observed, RoundPolicy, WorkSchedule


class RoundEngine:
    """Selects clients, closes rounds and learns from them.

    Args:
        selector: Chooses the clients.
        policy: Says how many to choose and when a round ends.
        cohort_size: How many answers a round should get.
        seed: The seed of the selection.
        bounds: Limits on what clients claim; None passes on everything.
        observed: What the policy has seen of earlier rounds; None starts afresh.
        schedule: When clients get work; None waits for every round to end.
    """

    def __init__(
        self,
        selector: Selector,
        policy: RoundPolicy,
        *,
        cohort_size: int,
        seed: int,
        bounds: Bounds | None = None,
        observed: Observed | None = None,
        schedule: WorkSchedule | None = None,
    ) -> None:
        self.selector, self.policy, self.bounds = selector, policy, bounds
        overlaps = schedule is not None and schedule.overlaps
        #: Who is at work, if rounds overlap; None otherwise.
        self.in_flight = InFlight(schedule) if schedule is not None and overlaps else None
        self.cohort_size, self.seed = cohort_size, seed
        self.observed = Observed.fresh() if observed is None else observed
        #: The columns that the selector needs or may use.
        self.wanted = selector.needs_columns | selector.uses_columns
        self.n_clients = 0  #: clients that selector and bounds have room for

    def resize(self, n_clients: int) -> None:
        """Prepare for the first clients, or make room for more.

        Args:
            n_clients: How many clients there are now.
        """
        if n_clients and not self.n_clients:
            self.selector.prepare(n_clients, self.seed)
            if self.bounds is not None:
                self.bounds.reset(n_clients)
        elif n_clients > self.n_clients:
            self.selector.grow(n_clients)
            if self.bounds is not None:
                self.bounds.grow(n_clients)
        self.n_clients = n_clients

    def check_fits(self, n_rounds: int | None = None, n_clients: int | None = None) -> None:
        """Refuse to start if the clients cannot fill the cohorts under the selector's limits.

        Args:
            n_rounds: The rounds of the run; None = unknown.
            n_clients: The clients there will be; None = those there are.
        """
        size = max(self.cohort_size, self.terms()[0])
        n_clients = self.n_clients if n_clients is None else n_clients
        self.selector.check_fits(n_clients, size, n_rounds)

    def terms(self) -> tuple[int, float]:
        """Return how many clients to choose in the next round, and its deadline in seconds."""
        size = self.policy.select_size(self.cohort_size, self.observed)
        return size, self.policy.deadline(self.observed)

    def bounded(self, ctx: RoundContext) -> RoundContext:
        """Return a context with the columns that the bounds allow.

        Args:
            ctx: The context with the columns as clients claim them.
        """
        return ctx if self.bounds is None else self.bounds.columns(ctx)

    def poll(self, ctx: RoundContext) -> IntArray | None:
        """Return the clients whose loss the selector wants to know first; None if it needs none.

        Args:
            ctx: What the selector knows.
        """
        if not self.selector.polls:
            return None
        return self.selector.poll(ctx, stream(self.seed, Purpose.POLL, ctx.round))

    def with_losses(
        self, ctx: RoundContext, polled: IntArray, losses: FloatArray, *, is_claimed: bool = True
    ) -> RoundContext:
        """Return the context with the losses of the polled clients.

        Args:
            ctx: What the selector knows.
            polled: (d,) the clients that ``poll`` returned.
            losses: (d,) their losses; NaN for no answer.
            is_claimed: Whether clients reported the losses, so that the bounds apply.
        """
        ctx = dataclasses.replace(ctx, polled=polled, polled_loss=losses)
        return self.bounds.answers(ctx) if is_claimed and self.bounds is not None else ctx

    def select(self, ctx: RoundContext) -> Selection:
        """Return the selector's choice.

        Args:
            ctx: What the selector knows.

        Raises:
            InvalidInput: It chose too many clients, or clients that are not available.
        """
        selection = self.selector.select(ctx, stream(self.seed, Purpose.SELECT, ctx.round))
        chosen = selection.clients
        if chosen.size > ctx.size or not ctx.available[chosen].all():
            n_available = int(ctx.available[chosen].sum())
            raise InvalidInput(
                f"{type(self.selector).__name__} must choose at most {ctx.size} available clients "
                f"in round {ctx.round}, got {chosen.size}, {n_available} of them available."
            )
        return selection

    def close(
        self, duration: FloatArray, survived: BoolArray, reports_failure: BoolArray | bool
    ) -> Closed:
        """Return how a round ends for the chosen clients.

        Args:
            duration: (s,) seconds that each one takes; NaN if it is not known.
            survived: (s,) who does not fail.
            reports_failure: (s,) or all: who reports its failure to the server.
        """
        return self.policy.close(
            duration,
            survived,
            self.observed,
            cohort_size=self.cohort_size,
            reports_failure=reports_failure,
        )

    def learn(
        self,
        selection: Selection,
        closed: Closed,
        outcome: Outcome,
        deadline: float,
        *,
        is_claimed: bool = True,
    ) -> Outcome:
        """Let selector and policy learn from a round; return the outcome as the selector sees it.

        Args:
            selection: Who was chosen.
            closed: How the round ended.
            outcome: What the server knows of the chosen clients.
            deadline: The deadline of the round, in seconds.
            is_claimed: Whether clients reported the metrics, so that the bounds apply.
        """
        if is_claimed and self.bounds is not None:
            outcome = self.bounds.outcome(selection, outcome)
        self.selector.observe(selection, outcome)
        if self.policy.uses_observed:
            self.observed.record(closed, deadline)
        return outcome

    # Rounds that overlap.

    @property
    def flights(self) -> InFlight:
        """Who is at work.

        Raises:
            InvalidInput: Rounds do not overlap.
        """
        if self.in_flight is None:
            raise InvalidInput("schedule must overlap: give one, such as Buffered(10, 30).")
        return self.in_flight

    def places(self) -> int:
        """Return how many clients may get work now."""
        size = self.policy.select_size(self.cohort_size, self.observed)
        return self.flights.schedule.places(size, self.flights.n_busy)

    def without_busy(self, ctx: RoundContext) -> RoundContext:
        """Return a context in which the clients that are at work cannot be chosen.

        Args:
            ctx: What the selector knows, with everyone who can be reached.
        """
        busy = self.flights.busy(ctx.n_clients)
        return dataclasses.replace(ctx, available=ctx.available & ~busy, busy=busy)

    def begin(self, selection: Selection, now_s: float) -> None:
        """Note that the chosen clients are at work from now on.

        Args:
            selection: Who was chosen.
            now_s: The time on the clock of the host.
        """
        self._observe(self.flights.begin(selection, now_s))

    def end(
        self,
        rows: IntArray,
        outcome: Outcome,
        spent: FloatArray | None = None,
        *,
        is_claimed: bool = True,
    ) -> None:
        """Let the selector learn of every choice whose last outcome is among these.

        Args:
            rows: (s,) the clients, by their rows in ``flights.flights``.
            outcome: What became of them. COMPLETED means that their work is used.
            spent: (s,) seconds that their devices worked; None = their durations.
            is_claimed: Whether clients reported the metrics, so that the bounds apply.
        """
        self._observe(self.flights.end(rows, outcome, spent), is_claimed=is_claimed)

    def aggregate(self) -> tuple[Answers, Array]:
        """End the round; return the answers that make the next model, and all that has ended."""
        return self.flights.take_in()

    def _observe(
        self, complete: list[tuple[Selection, Outcome]], *, is_claimed: bool = True
    ) -> None:
        for selection, outcome in complete:
            if is_claimed and self.bounds is not None:
                outcome = self.bounds.outcome(selection, outcome)
            self.selector.observe(selection, outcome)

    def state(self) -> dict[str, Mapping[str, Array]]:
        """Return what selector, policy and bounds have learned, by owner, and who is at work."""
        state: dict[str, Mapping[str, Array]] = {
            "selector": self.selector.state() if self.n_clients else {},
            "observed": self.observed.state(),
            "bounds": self.bounds.state() if self.bounds is not None and self.n_clients else {},
        }
        return state if self.in_flight is None else state | {"in_flight": self.in_flight.state()}

    def load_state(
        self, state: Mapping[str, Mapping[str, Array]], n_clients: int, round: int
    ) -> None:
        """Continue from what ``state`` returned.

        Args:
            state: The arrays by owner.
            n_clients: How many clients there were.
            round: The round that comes next.
        """
        self.n_clients = 0
        self.resize(n_clients)
        if n_clients:
            self.selector.load_state(state["selector"])
            self.selector.continue_at(round)
            if self.bounds is not None and "bounds" in state:  # they were on
                self.bounds.load_state(state["bounds"])
        self.observed.load_state(state["observed"])
        if self.in_flight is not None and "in_flight" in state:
            self.in_flight.load_state(state["in_flight"])
            self.selector.resume(self.in_flight.waiting)
