"""The round loop: a generator of records, without training and without I/O.

One round::

    environment.context(t)      -> who is available, and the columns the selector asked for
    selector.poll(ctx, rng)     -> None, or clients whose loss it wants to see first
    selector.select(ctx, rng)   -> who takes part
    environment.fate(t)         -> durations and survivals of all clients, indexed by the chosen
    policy.close(...)           -> statuses and the length of the round
    selector.observe(...)       -> learn
    yield RoundRecord           -> the caller writes, plots, stops
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from turnout import require
from turnout.environments import Environment, Fate, History
from turnout.errors import InvalidInput, MissingColumn
from turnout.policies import Closed, FixedDeadline, Observed, RoundPolicy
from turnout.rng import Purpose, stream
from turnout.selector import Selector
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

__all__ = ["Progress", "RoundRecord", "rounds"]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round, seen from above: what the server knew, what it did, what happened."""

    context: RoundContext
    selection: Selection
    outcome: Outcome
    length_s: float  #: seconds that the round took
    spent: FloatArray  #: (s,) seconds that each chosen device worked
    fate: Fate  #: (n,) what would have happened to everyone

    @property
    def round(self) -> int:
        """The round, from 0."""
        return self.context.round

    @property
    def in_time(self) -> BoolArray:
        """(n,) who was available and would have answered before the deadline."""
        ready = self.fate.survived & self.context.available
        return ready & (self.fate.duration <= self.context.deadline)


class Progress:
    """What the loop itself remembers between rounds; save it beside the selector to resume."""

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
        """Return the progress that ``state()`` saved."""
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
) -> Iterator[RoundRecord]:
    """Yield the records of rounds ``start`` .. ``n_rounds - 1``.

    ``seed`` is the selector's (default: the environment's). With ``start=0`` the selector is
    prepared afresh. A later start continues with the selector's state as it is; worlds and policies
    that look back then need the ``progress`` of the earlier rounds. Selector and progress are up to
    date whenever a record is yielded: saved together, they resume to the same run, bit for bit.
    """
    require.integer("cohort_size", cohort_size, minimum=1)
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
    _check_columns(selector, environment)
    if start == 0:
        selector.prepare(environment.n_clients, seed)
    when = range(start, n_rounds)
    return _rounds(selector, environment, cohort_size, when, seed, policy, progress)


def _rounds(
    selector: Selector,
    environment: Environment,
    cohort_size: int,
    when: Iterable[int],
    seed: int,
    policy: RoundPolicy,
    progress: Progress,
) -> Iterator[RoundRecord]:
    columns = selector.needs_columns | selector.uses_columns
    polls = type(selector).poll is not Selector.poll
    history, observed = progress.history, progress.observed
    for t in when:
        deadline = policy.deadline(observed)
        size = policy.select_size(cohort_size, observed)
        ctx = environment.context(t, size, history, columns=columns, deadline=deadline)
        if polls:
            ctx = _with_answers(selector, environment, ctx, seed)
        selection = selector.select(ctx, stream(seed, Purpose.SELECT, t))
        chosen = selection.clients
        _check_choice(selector, ctx, chosen)
        fate = environment.fate(t, history)
        closed = policy.close(
            fate.duration[chosen],
            fate.survived[chosen],
            observed,
            cohort_size=cohort_size,
            reports_failure=fate.reports_failure,
        )
        outcome = _outcome(selector, environment, t, chosen, closed)
        selector.observe(selection, outcome)
        history.record(chosen)
        if policy.uses_observed:
            observed.record(closed, deadline)
        yield RoundRecord(ctx, selection, outcome, closed.length_s, closed.spent, fate)


def _with_answers(
    selector: Selector, environment: Environment, ctx: RoundContext, seed: int
) -> RoundContext:
    polled = selector.poll(ctx, stream(seed, Purpose.POLL, ctx.round))
    if polled is None:
        return ctx
    loss = environment.polled_loss(ctx.round, selector.poll_data)[polled]
    return dataclasses.replace(ctx, polled=polled, polled_loss=loss)


def _outcome(
    selector: Selector, environment: Environment, t: int, chosen: IntArray, closed: Closed
) -> Outcome:
    """Return what the server learns; only those who completed report metrics."""
    if not selector.needs_metrics:
        return Outcome(closed.status, closed.duration)
    is_missing = closed.status != Status.COMPLETED
    reported = {}
    for name, values in environment.metrics(t).items():
        if name in selector.needs_metrics:
            reported[name] = np.where(is_missing, np.nan, values[chosen])
    return Outcome(closed.status, closed.duration, reported)


def _check_columns(selector: Selector, environment: Environment) -> None:
    missing = sorted(selector.needs_columns - environment.columns)
    if missing:
        raise MissingColumn(
            f"{type(selector).__name__} needs the column {missing[0]!r}, and this environment has: "
            f"{', '.join(sorted(environment.columns))}. Timing LinearContextual() fills 'context'."
        )


def _check_choice(selector: Selector, ctx: RoundContext, chosen: IntArray) -> None:
    if chosen.size > ctx.size or not ctx.available[chosen].all():
        raise InvalidInput(
            f"{type(selector).__name__} must choose at most {ctx.size} available clients in round "
            f"{ctx.round}, got {chosen.size}, {int(ctx.available[chosen].sum())} of them available."
        )
