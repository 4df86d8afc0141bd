"""The round loop: a generator of records, without I/O.

One round::

    environment.context(t)      -> who is available, and the columns the selector asked for
    selector.poll(ctx, rng)     -> None, or clients whose loss it wants to see first
    selector.select(ctx, rng)   -> who takes part
    environment.fate(t)         -> durations and survivals of all clients, indexed by the chosen
    policy.close(...)           -> statuses and the length of the round
    participants.work(...)      -> those who completed report losses, or train a model for them
    selector.observe(...)       -> learn
    participants.measure(t)     -> how good the model is, if there is one
    yield RoundRecord           -> the caller writes, plots, stops
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import numpy as np

from turnout import require
from turnout.bounds import Bounds
from turnout.environments import Environment, Fate, History
from turnout.errors import InvalidInput, MissingColumn
from turnout.policies import Closed, FixedDeadline, Observed, RoundPolicy
from turnout.rng import Purpose, stream
from turnout.runs.columns import RoundRow
from turnout.selector import Selector
from turnout.simulation.participants import Participants, Simulated
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

_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round as a simulation sees it: what the server knew, what it did, what happened.

    Attributes:
        context: What the selector knew.
        selection: Whom it chose.
        outcome: What happened to them.
        length_s: Seconds that the round took.
        spent: (s,) seconds that each chosen device worked.
        fate: (n,) what would have happened to everyone.
        measured: What was measured after the round, such as accuracy; empty without training.
    """

    context: RoundContext
    selection: Selection
    outcome: Outcome
    length_s: float
    spent: FloatArray
    fate: Fate
    measured: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    @property
    def round(self) -> int:
        """The round, from 0."""
        return self.context.round

    @property
    def in_time(self) -> BoolArray:
        """(n,) who was available and would have answered before the deadline."""
        ready = self.fate.survived & self.context.available
        return ready & (self.fate.duration <= self.context.deadline)

    @property
    def row(self) -> RoundRow:
        """What is kept of the round."""
        return RoundRow(
            self.selection.clients,
            self.outcome.status,
            self.outcome.duration,
            self.spent,
            self.selection.probability,
            self.length_s,
            self.context.available,
            self.measured,
        )


class Progress:
    """What the loop itself remembers between rounds; save it beside the selector to resume.

    Args:
        n_clients: The number of clients of the environment.
    """

    def __init__(self, n_clients: int) -> None:
        self.history = History.fresh(n_clients)
        self.observed = Observed()
        self.observed.reset(n_clients)

    def state(self) -> dict[str, Array]:
        """Return a copy of everything, as arrays."""
        return {
            f"{name}.{key}": value
            for name in ("history", "observed")
            for key, value in getattr(self, name).state().items()
        }

    @classmethod
    def from_state(cls, n_clients: int, state: Mapping[str, Array]) -> Self:
        """Return the progress that ``state()`` saved.

        Args:
            n_clients: The number of clients of the environment.
            state: What ``state()`` returned.
        """
        progress = cls(n_clients)
        for name in ("history", "observed"):
            part = {
                key.removeprefix(f"{name}."): value
                for key, value in state.items()
                if key.startswith(f"{name}.")
            }
            getattr(progress, name).load_state(part)
        return progress


def rounds(
    selector: Selector,
    environment: Environment,
    *,
    cohort_size: int,
    n_rounds: int,
    seed: int | None = None,
    policy: RoundPolicy | None = None,
    start: int = 0,
    progress: Progress | None = None,
    participants: Participants | None = None,
    bounds: Bounds | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds and yield the record of each.

    Selector, participants, progress and bounds are up to date whenever a record is yielded. Saved
    together, they resume to the same run, bit for bit.

    Args:
        selector: Who chooses.
        environment: Who is available, how long clients take and whether they fail.
        cohort_size: How many clients to choose, at most the number of clients.
        n_rounds: The number of rounds, with those before ``start``.
        seed: The seed of the selector; None takes that of the environment.
        policy: When a round ends; None waits for everyone.
        start: The first round. 0 prepares selector and participants afresh; a later one continues
            with their state as it is.
        progress: What the loop remembers of the rounds before ``start``. Environments and policies
            that look back need it.
        participants: Who does the clients' work: a ``turnout.training.Federation`` trains a model.
            None reports the synthetic losses of the environment. The run ends early when they are
            done.
        bounds: What the selector is told of what clients claim, for worlds with liars; None tells
            it everything.

    Yields:
        The records of rounds ``start`` .. ``n_rounds - 1``.
    """
    require.integer("cohort_size", cohort_size, minimum=1)
    if cohort_size > environment.n_clients:
        raise InvalidInput(
            f"cohort_size must be at most n_clients = {environment.n_clients}, got {cohort_size}."
        )
    require.integer("n_rounds", n_rounds, minimum=0)
    require.integer("start", start, minimum=0)
    seed = environment.seed if seed is None else require.integer("seed", seed, minimum=0)
    policy = FixedDeadline() if policy is None else policy
    if start > 0 and progress is None and (environment.uses_history or policy.uses_observed):
        raise InvalidInput(
            f"start = {start} needs progress=: this world or policy depends on earlier rounds. "
            "Save progress.state() beside the selector and pass Progress.from_state(n, state)."
        )
    progress = Progress(environment.n_clients) if progress is None else progress
    if participants is None:
        participants = Simulated(environment, selector.needs_metrics)
    _check_columns(selector, environment, participants)
    if start == 0:
        selector.prepare(environment.n_clients, seed)
        participants.reset()
        if bounds is not None:
            bounds.reset(environment.n_clients)
    loop = _Loop(selector, environment, participants, policy, progress, cohort_size, seed, bounds)
    return loop.go(start, n_rounds)


@dataclass(frozen=True, slots=True)
class _Loop:
    """Who takes part in the loop."""

    selector: Selector
    environment: Environment
    participants: Participants
    policy: RoundPolicy
    progress: Progress
    cohort_size: int
    seed: int
    bounds: Bounds | None

    def go(self, start: int, n_rounds: int) -> Iterator[RoundRecord]:
        """Yield the records of the rounds."""
        selector, environment, participants = self.selector, self.environment, self.participants
        policy, history, observed = self.policy, self.progress.history, self.progress.observed
        wanted = selector.needs_columns | selector.uses_columns
        own = {name: column for name, column in participants.columns.items() if name in wanted}
        polls, workload = selector.polls, participants.workload
        for t in range(start, n_rounds):
            if participants.is_done:
                return
            deadline = policy.deadline(observed)
            size = policy.select_size(self.cohort_size, observed)
            columns = wanted.difference(own)
            ctx = environment.context(
                t, size, history, columns=columns, deadline=deadline, workload=workload
            )
            if own:
                ctx = dataclasses.replace(ctx, columns={**ctx.columns, **own})
            if self.bounds is not None:
                ctx = self.bounds.columns(ctx)
            if polls:
                ctx = self._with_answers(ctx)
            selection = selector.select(ctx, stream(self.seed, Purpose.SELECT, t))
            chosen = selection.clients
            _check_choice(selector, ctx, chosen)
            fate = environment.fate(t, history, workload=workload)
            closed = policy.close(
                fate.duration[chosen],
                fate.survived[chosen],
                observed,
                cohort_size=self.cohort_size,
                reports_failure=fate.reports_failure,
            )
            closed, outcome = self._worked(selection, closed)
            selector.observe(selection, outcome)
            history.record(chosen)
            if policy.uses_observed:
                observed.record(closed, deadline)
            measured = participants.measure(t, t == n_rounds - 1)
            length, spent = closed.length_s, closed.spent
            yield RoundRecord(ctx, selection, outcome, length, spent, fate, measured)

    def _with_answers(self, ctx: RoundContext) -> RoundContext:
        polled = self.selector.poll(ctx, stream(self.seed, Purpose.POLL, ctx.round))
        if polled is None:
            return ctx
        loss = self.participants.polled_loss(ctx.round, polled, self.selector.poll_data)
        loss = self.environment.claimed(loss, polled)
        ctx = dataclasses.replace(ctx, polled=polled, polled_loss=loss)
        return ctx if self.bounds is None else self.bounds.answers(ctx)

    def _worked(self, selection: Selection, closed: Closed) -> tuple[Closed, Outcome]:
        """Let the clients work, and return how the round ended and what the server learns."""
        work = self.participants.work(selection, np.equal(closed.status, Status.COMPLETED))
        if work.is_broken is not None and work.is_broken.any():
            failed = np.where(work.is_broken, np.int8(Status.FAILED), closed.status)
            closed = closed._replace(status=failed)
        claimed = {
            name: self.environment.claimed(values, selection.clients)
            for name, values in work.metrics.items()
        }
        outcome = Outcome(closed.status, closed.duration, claimed)
        if self.bounds is not None:
            outcome = self.bounds.outcome(selection, outcome)
        return closed, outcome


def _check_columns(
    selector: Selector, environment: Environment, participants: Participants
) -> None:
    provided = environment.columns.union(participants.columns)
    missing = sorted(selector.needs_columns - provided)
    if missing:
        raise MissingColumn(
            f"{type(selector).__name__} needs the column {missing[0]!r}, and this environment has: "
            f"{', '.join(sorted(provided))}. Timing LinearContextual() fills 'context'."
        )


def _check_choice(selector: Selector, ctx: RoundContext, chosen: IntArray) -> None:
    if chosen.size > ctx.size or not ctx.available[chosen].all():
        raise InvalidInput(
            f"{type(selector).__name__} must choose at most {ctx.size} available clients in round "
            f"{ctx.round}, got {chosen.size}, {int(ctx.available[chosen].sum())} of them available."
        )
