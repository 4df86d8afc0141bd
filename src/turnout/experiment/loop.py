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

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import numpy as np

from turnout.core import require
from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput, MissingColumn, MissingMetric
from turnout.core.plain import below
from turnout.core.selector import Selector
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
    Status,
)
from turnout.experiment.engine import RoundEngine
from turnout.results.run import LOSSES, RoundRow, chance_bound
from turnout.worlds import (
    Answers,
    Environment,
    Fate,
    FixedDeadline,
    History,
    Observed,
    RoundPolicy,
    WorkSchedule,
)

if TYPE_CHECKING:
    from turnout.experiment.overlap import Aggregated
    from turnout.results.callbacks import Callback

# --------------------------------------------------------------------------------------------------
# What clients hold, answer and do in a round: losses of the world, or training of a real model.
# --------------------------------------------------------------------------------------------------

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: How columns that worlds and training may lack are filled.
_FILLED = {
    "context": "The timing LinearContextual() fills it.",
    "label_counts": "Training(label_noise=0.0) fills it for data with classes, and "
    "label_noise=None leaves it out; text and float targets have no labels to count.",
}
_OWN_COLUMN = "Fill it by the property columns of participants of your own."


class Work(Protocol):
    """What the chosen clients did; arrays are aligned with the selection."""

    @property
    def is_broken(self) -> BoolArray | None:
        """(s,) who answered with something that cannot be used: they count as failed."""

    @property
    def metrics(self) -> Mapping[str, FloatArray]:
        """(s,) or (s, d) each: what clients reported, NaN for those who did not."""


class Participants(Protocol):
    """The clients' side of the round loop.

    In each round the loop asks ``polled_loss`` if the selector polls, then ``work`` for the chosen,
    then ``measure``. What ``state`` returns is all that is needed to continue behind a round. A
    class below this one has clients without data and without a model, unless it says otherwise.

    Four members are optional. ``hides`` names columns of the world that say nothing about these
    clients. ``reportable`` has the names of all metrics that they can report; None or no such
    member is any. ``report(metrics)`` is called once before the first round with what
    the selector needs: the metrics by name, each with the length of its vectors or None for single
    numbers. It raises ``MissingMetric`` for what the clients cannot report. ``evaluated`` is a
    mapping with the scores of the last evaluation of the model, which the selector sees in its
    context.
    """

    @property
    def columns(self) -> Mapping[str, Array]:
        """(n,) or (n, d) each: what the server knows of their data; replaces the world's."""
        return _NOTHING

    @property
    def workload(self) -> FloatArray | None:
        """(n,) local work in a round relative to the mean client's; None = the same for all."""
        return None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to do: the run ends here."""
        return False

    def reset(self) -> None:
        """Start afresh; called before the first round."""
        return

    def polled_loss(
        self, round: int, clients: IntArray, data: Literal["all", "mini-batch"]
    ) -> FloatArray:
        """Return the loss of some clients, without any work; NaN for no answer.

        Args:
            round: The round.
            clients: Who is asked.
            data: What they evaluate the model on.
        """

    def work(self, selection: Selection, is_completed: BoolArray) -> Work:
        """Let those who completed do the work of a round; the others do nothing at all.

        Args:
            selection: Who was chosen.
            is_completed: (s,) who completes in time.
        """

    def measure(self, round: int, is_last: bool) -> Mapping[str, float]:
        """Return what was measured at the end of a round, by name; empty if nothing was.

        Args:
            round: The round.
            is_last: Whether the run ends with it.
        """
        return _NOTHING

    def state(self) -> dict[str, Array]:
        """Return what has changed since ``reset``, as arrays."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a saved state.

        Args:
            state: What ``state`` returned.
        """
        return


@runtime_checkable
class Overlapping(Participants, Protocol):
    """Clients of rounds that overlap: three methods in place of ``work``.

    The model that a client works on is the one at the time of its ``start``. A method
    ``check_overlap()`` is optional; it raises ``InvalidInput`` for what must not overlap.
    """

    def start(self, round: int, clients: IntArray) -> None:
        """Let clients begin to work on the present model; only those that will answer are named.

        Args:
            round: The number of the choice.
            clients: Who begins.
        """

    def finish(self, rounds: IntArray, clients: IntArray) -> Work:
        """Let clients answer; return what they did, in their order.

        Args:
            rounds: (s,) the number of the choice that each answers.
            clients: (s,) who answers.
        """

    def take_in(self, answers: Answers) -> None:
        """Make the next model.

        Args:
            answers: Those that count, all finished before.
        """


class WorkReported(NamedTuple):
    """What clients reported, as ``Work``."""

    metrics: Mapping[str, FloatArray]
    is_broken: BoolArray | None = None


class Simulated(Participants):
    """Clients that train nothing: they report the synthetic losses of their environment.

    Args:
        environment: The environment.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._wanted: Mapping[str, int | None] = {}

    @property
    def reportable(self) -> frozenset[str]:
        """The names of the metrics that the world makes up."""
        return self._environment.reportable

    def report(self, metrics: Mapping[str, int | None]) -> None:
        """Remember the metrics to report; the world's are synthetic, unknown ones are missing."""
        self._wanted = metrics

    def polled_loss(
        self, round: int, clients: IntArray, data: Literal["all", "mini-batch"]
    ) -> FloatArray:
        """Return the world's synthetic loss."""
        return np.asarray(self._environment.polled_loss(round, data)[clients])

    def work(self, selection: Selection, is_completed: BoolArray) -> WorkReported:
        """Return the world's metrics; only those who completed report them."""
        own = self._environment.reports(selection.round, selection.clients, self._wanted)
        # The last axis is the clients', also of vectors.
        return WorkReported(
            {name: np.where(is_completed, x.T, np.nan).T for name, x in own.items()}
        )

    def start(self, round: int, clients: IntArray) -> None:
        """Do nothing before they answer."""
        return

    def finish(self, rounds: IntArray, clients: IntArray) -> WorkReported:
        """Return the world's metrics of the choices that clients answer."""
        found: dict[str, FloatArray] = {}
        for number in sorted(set(rounds.tolist())) or [0]:  # also of nobody: the names of all
            mine = np.flatnonzero(rounds == number)
            own = self._environment.reports(number, clients[mine], self._wanted)
            for name, values in own.items():
                found.setdefault(name, np.empty((clients.size, *values.shape[1:])))[mine] = values
        return WorkReported(found)

    def take_in(self, answers: Answers) -> None:
        """Train nothing."""
        return


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
        joules: (s,) energy that each chosen device spent; None in worlds without batteries.
    """

    context: RoundContext
    selection: Selection
    outcome: Outcome
    length_s: float
    spent: FloatArray
    fate: Fate
    measured: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    joules: FloatArray | None = None

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
            self._reported,
        )

    @property
    def _reported(self) -> dict[str, FloatArray]:
        """What the server knows of losses and data of the chosen; empty if it asked for neither."""
        found = {name: x for name, x in self.outcome.metrics.items() if name in LOSSES}
        sizes = self.context.columns.get("num_samples")
        if sizes is not None:
            found["num_samples"] = sizes[self.selection.clients].astype(np.float64)
        if self.joules is not None:
            found["energy_j"] = self.joules
        return found


#: How the names of the work in flight begin in the state of a progress.
_OVERLAP = "overlap"


class Progress:
    """What the loop itself remembers between rounds; save it beside the selector to resume.

    Args:
        n_clients: The number of clients of the environment.
    """

    def __init__(self, n_clients: int) -> None:
        self.history = History.fresh(n_clients)
        self.observed = Observed()
        self.observed.reset(n_clients)
        #: Returns the clock and the work in flight, where rounds overlap; empty otherwise.
        self.overlap: Callable[[], Mapping[str, Array]] = dict

    def state(self) -> dict[str, Array]:
        """Return a copy of everything, as arrays."""
        parts = {
            "history": self.history.state(),
            "observed": self.observed.state(),
            _OVERLAP: self.overlap(),
        }
        return {
            f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()
        }

    @classmethod
    def from_state(cls, n_clients: int, state: Mapping[str, Array]) -> Self:
        """Return the progress that ``state()`` saved.

        Args:
            n_clients: The number of clients of the environment.
            state: What ``state()`` returned.
        """
        progress = cls(n_clients)
        progress.history.load_state(below("history.", state))
        progress.observed.load_state(below("observed.", state))
        overlap = below(f"{_OVERLAP}.", state)
        progress.overlap = lambda: overlap
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
        bounds: Limits on what clients claim, for worlds with liars; None passes on everything.

    Yields:
        The records of rounds ``start`` .. ``n_rounds - 1``.
    """
    playing = prepared(
        selector,
        environment,
        cohort_size=cohort_size,
        n_rounds=n_rounds,
        seed=seed,
        policy=policy,
        start=start,
        progress=progress,
        participants=participants,
        bounds=bounds,
    )
    playing.begin(start)
    return _go(playing, range(start, n_rounds))


class Playing(NamedTuple):
    """Who takes part in the loop, checked.

    Attributes:
        engine: Selector and policy.
        environment: The world.
        participants: Who does the clients' work.
        progress: What the loop remembers.
    """

    engine: RoundEngine
    environment: Environment
    participants: Participants
    progress: Progress

    def begin(self, start: int) -> None:
        """Prepare selector and participants afresh, unless the run goes on.

        Args:
            start: The first round.
        """
        if start == 0:
            self.engine.resize(self.environment.n_clients)
            self.participants.reset()
        else:
            self.engine.selector.continue_at(start)


def prepared(
    selector: Selector,
    environment: Environment,
    *,
    cohort_size: int,
    n_rounds: int,
    seed: int | None,
    policy: RoundPolicy | None,
    start: int,
    progress: Progress | None,
    participants: Participants | None,
    bounds: Bounds | None,
    schedule: WorkSchedule | None = None,
) -> Playing:
    """Check the arguments of ``rounds`` and return what they make.

    Args:
        selector: Who chooses.
        environment: The world.
        cohort_size: How many clients to choose.
        n_rounds: The number of rounds.
        seed: The seed of the selector, or None.
        policy: When a round ends, or None.
        start: The first round.
        progress: What the loop remembers, or None.
        participants: Who does the clients' work, or None.
        bounds: Limits on what clients claim, or None.
        schedule: When clients get work; None waits for every round to end.
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
    overlaps = schedule is not None and schedule.overlaps
    looks_back = environment.uses_history or policy.uses_observed or overlaps
    if start > 0 and progress is None and looks_back:
        raise InvalidInput(
            f"start = {start} needs progress=: this world, policy or schedule depends on earlier "
            "rounds. Save progress.state() beside the selector and pass Progress.from_state(n, "
            "state)."
        )
    progress = Progress(environment.n_clients) if progress is None else progress
    if participants is None:
        participants = Simulated(environment)
    hidden: frozenset[str] = getattr(participants, "hides", frozenset())
    provided = (environment.columns - hidden).union(participants.columns)
    name, missing = type(selector).__name__, sorted(selector.needs_columns - provided)
    if missing:
        raise MissingColumn(
            f"{name} needs the column {missing[0]!r}, and this environment has: "
            f"{', '.join(sorted(provided))}. {_FILLED.get(missing[0], _OWN_COLUMN)}"
        )
    reportable: frozenset[str] | None = getattr(participants, "reportable", None)
    if reportable is not None:
        lacking = sorted(selector.needs_metrics - reportable - selector.optional_metrics.keys())
        if lacking:
            raise MissingMetric(
                f"{name} needs clients to report {lacking[0]!r}, and here they report "
                f"{', '.join(sorted(reportable))}. Take participants of your own whose work "
                "reports it (docs/howto/updates.md), or say in optional_metrics what the selector "
                "does without it."
            )
    engine = RoundEngine(
        selector,
        policy,
        cohort_size=cohort_size,
        seed=seed,
        bounds=bounds,
        observed=progress.observed,
        schedule=schedule,
    )
    if hasattr(participants, "report"):
        sizes = selector.metric_sizes
        participants.report({name: sizes.get(name) for name in sorted(selector.needs_metrics)})
    if not overlaps:  # which does not go with such limits at all
        engine.check_fits(n_rounds, environment.n_clients)
    return Playing(engine, environment, participants, progress)


class Chooser:
    """Asks the selector: the part of a round that all schedules share.

    Args:
        playing: Who takes part.
    """

    def __init__(self, playing: Playing) -> None:
        self._playing = playing
        engine, participants = playing.engine, playing.participants
        self._own = {name: x for name, x in participants.columns.items() if name in engine.wanted}
        hidden: frozenset[str] = getattr(participants, "hides", frozenset())
        self._columns = engine.wanted.difference(self._own, hidden)
        self._workload = participants.workload

    def choose(self, t: int, size: int, deadline: float) -> tuple[RoundContext, Selection]:
        """Return what the selector knew, and whom it chose.

        Args:
            t: The number of the choice.
            size: How many it may choose.
            deadline: Seconds that the clients have.
        """
        engine, environment, participants, progress = self._playing
        at_work: dict[str, BoolArray] = {}
        if engine.in_flight is not None:
            at_work["busy"] = engine.in_flight.busy(environment.n_clients)
        ctx = environment.context(
            t,
            size,
            progress.history,
            columns=self._columns,
            deadline=deadline,
            workload=self._workload,
            **at_work,
        )
        evaluated = getattr(participants, "evaluated", _NOTHING)
        if self._own or evaluated:
            columns = {**ctx.columns, **self._own}
            ctx = dataclasses.replace(ctx, columns=columns, evaluated=evaluated)
        ctx = engine.bounded(ctx)
        polled = engine.poll(ctx)
        if polled is not None:
            loss = participants.polled_loss(t, polled, engine.selector.poll_data)
            ctx = engine.with_losses(ctx, polled, environment.claimed(loss, polled))
        return ctx, engine.select(ctx)

    def fate(self, t: int) -> Fate:
        """Return what happens to everyone who is chosen in a choice.

        Args:
            t: The number of the choice.
        """
        history = self._playing.progress.history
        return self._playing.environment.fate(t, history, workload=self._workload)


def _go(playing: Playing, numbers: range) -> Iterator[RoundRecord]:
    """Yield the records of the rounds with these numbers."""
    engine, environment, participants, progress = playing
    chooser = Chooser(playing)
    for t in numbers:
        if participants.is_done:
            return
        size, deadline = engine.terms()
        ctx, selection = chooser.choose(t, size, deadline)
        chosen, fate = selection.clients, chooser.fate(t)
        closed = engine.close(fate.duration[chosen], fate.survived[chosen], fate.reports_failure)
        work = participants.work(selection, np.equal(closed.status, Status.COMPLETED))
        if work.is_broken is not None and work.is_broken.any():
            failed = np.where(work.is_broken, np.int8(Status.FAILED), closed.status)
            closed = closed._replace(status=failed)
        claims = {name: environment.claimed(x.T, chosen).T for name, x in work.metrics.items()}
        seconds = environment.claimed_s(closed.duration, chosen)
        outcome = Outcome(closed.status, seconds, claims, closed.length_s)
        outcome = engine.learn(selection, closed, outcome, deadline)
        joules = environment.record(t, progress.history, chosen, closed.spent)
        measured = {**chance_bound(selection), **participants.measure(t, t == numbers[-1])}
        if joules is not None:
            measured["energy_j"] = float(joules.sum())
            grams = environment.carbon(t, chosen, joules)
            measured |= {} if np.isnan(grams) else {"co2_g": grams}
        yield RoundRecord(
            ctx, selection, outcome, closed.length_s, closed.spent, fate, measured, joules
        )


class AnyRound(Protocol):
    """A round of either loop."""

    @property
    def round(self) -> int:
        """The round, from 0."""

    @property
    def row(self) -> RoundRow:
        """What is kept of it."""


_Record = TypeVar("_Record", bound=AnyRound)


#: A round of this loop, or of the one whose rounds overlap.
Played: TypeAlias = "RoundRecord | Aggregated"


def played(
    selector: Selector,
    environment: Environment,
    *,
    schedule: WorkSchedule | None,
    **settings: Any,
) -> Iterator[Played]:
    """Return the rounds of ``rounds``, or of ``overlapping`` if the schedule overlaps.

    Args:
        selector: Who chooses.
        environment: The world.
        schedule: When clients get work and when a round ends; None = rounds do not overlap.
        **settings: The other arguments of either.
    """
    if schedule is None or not schedule.overlaps:
        return rounds(selector, environment, **settings)
    from turnout.experiment.overlap import overlapping  # which builds on this module

    return overlapping(selector, environment, schedule=schedule, **settings)


def with_callbacks(
    records: Iterator[_Record],
    callbacks: Sequence[Callback],
    settings: Mapping[str, Any],
    clock_s: float = 0.0,
) -> Generator[_Record, None, None]:
    """Pass every record on and report it to callbacks; end each callback that was started.

    ``clock_s`` is the virtual time before the first of these records.
    """
    if not callbacks:
        yield from records
        return
    with contextlib.ExitStack() as ended:
        for callback in callbacks:
            callback.start(settings)
            ended.callback(callback.end)
        for record in records:
            row = record.row
            clock_s += row.length_s
            values = {
                **row.measured,
                "available": float(np.count_nonzero(row.available)),
                "chosen": float(row.clients.size),
                "completed": float((row.status == Status.COMPLETED).sum()),
                "length_s": row.length_s,
                "clock_s": clock_s,
            }
            for callback in callbacks:
                callback.round(record.round, values)
            yield record
