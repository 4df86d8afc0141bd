"""The loop of rounds that overlap: one virtual clock, driven by the ends of clients' work.

Every choice is an event with a number t, which is ``ctx.round``. ``environment.context(t)`` and
``environment.fate(t)`` are functions of the seed and t, as in synchronous rounds. So the client
that is chosen in choice t fares the same whoever was chosen before. What is paired between
selectors:

- Synchronous and semi-synchronous rounds choose once in a round, and t is the number of the round.
  With ``SemiSynchronous`` choice t also comes at the same time under every selector.
- ``Buffered`` chooses whenever a place is free. Choice t meets the same availability and fates, but
  it comes at a time that depends on the selector, as does the model that it works on.

Answers that come at the same instant are taken in by the number of their choice, then by client.
A full buffer is aggregated before the free places are filled. Work that has begun when its client
becomes unavailable goes on: availability says who can be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput
from turnout.core.selector import Selector
from turnout.core.types import Array, BoolArray, IntArray, Outcome, RoundContext, Status
from turnout.experiment.loop import (
    Chooser,
    Overlapping,
    Participants,
    Playing,
    Progress,
    prepared,
)
from turnout.results.run import Overlap, RoundRow
from turnout.worlds import Answers, Closed, Environment, RoundPolicy, WorkSchedule

#: A buffered round ends as it is after so many outcomes and empty choices without an answer.
PATIENCE = 1000
#: How the work of a client will end; rows are aligned with ``InFlight.flights``.
_DUE = np.dtype(
    [("ends_s", np.float64), ("status", np.int8), ("duration", np.float64), ("spent", np.float64)]
)
_CLOCK = "clock_s"
_COMPLETED, _FAILED = np.int8(Status.COMPLETED), np.int8(Status.FAILED)


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One round of a schedule that overlaps, from one aggregation to the next.

    Attributes:
        round: The round, from 0.
        row: What is kept of it: everyone whose work ended in it.
        answers: Those that made the new model.
        measured: What was measured after the round, such as accuracy; empty without training.
    """

    round: int
    row: RoundRow
    answers: Answers
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def length_s(self) -> float:
        """Seconds since the last aggregation."""
        return self.row.length_s

    @property
    def in_time(self) -> BoolArray | None:
        """None: each choice of the round met fates of its own, so regret is not defined."""
        return None


class _Begun(NamedTuple):
    """What a timed round knows when its clients got work."""

    closed: Closed | None
    deadline: float


def overlapping(
    selector: Selector,
    environment: Environment,
    *,
    schedule: WorkSchedule,
    cohort_size: int | None = None,
    n_rounds: int,
    seed: int | None = None,
    policy: RoundPolicy | None = None,
    start: int = 0,
    progress: Progress | None = None,
    participants: Participants | None = None,
    bounds: Bounds | None = None,
) -> Iterator[Aggregated]:
    """Run rounds that overlap and yield each when it is aggregated.

    As ``rounds``, with a schedule. To resume, pass the progress, selector, participants and bounds
    that were saved together.

    Args:
        selector: Who chooses.
        environment: Who is available, how long clients take and whether they fail.
        schedule: When clients get work and when a round ends.
        cohort_size: How many clients a round may choose; ``Buffered`` does not need it.
        n_rounds: The number of aggregations, with those before ``start``.
        seed: The seed of the selector; None takes that of the environment.
        policy: When clients are given up; None = never.
        start: The first round; above 0 it needs the progress.
        progress: What the loop remembers of the rounds before ``start``.
        participants: Who does the clients' work; None reports synthetic losses.
        bounds: Limits on what clients claim; None passes on everything.

    Yields:
        The rounds ``start`` .. ``n_rounds - 1``.

    Raises:
        InvalidInput: Schedule, policy, selector, world and participants do not go together.
    """
    require.instance("schedule", schedule, WorkSchedule)
    if not schedule.overlaps:
        raise InvalidInput("schedule must overlap; use rounds(...) without one.", field="schedule")
    size = schedule.answers(cohort_size)
    if size is None:
        raise InvalidInput("cohort_size is missing: only Buffered needs none.", field="cohort_size")
    playing = prepared(
        selector,
        environment,
        cohort_size=size,
        n_rounds=n_rounds,
        seed=seed,
        policy=policy,
        start=start,
        progress=progress,
        participants=participants,
        bounds=bounds,
        schedule=schedule,
    )
    clients = check_overlap(playing, schedule)
    playing.begin(start)
    loop = OverlappingRounds(playing, clients)
    loop.load_state(playing.progress.overlap())
    playing.progress.overlap = loop.state
    return loop.rounds(range(start, n_rounds))


def check_overlap(playing: Playing, schedule: WorkSchedule) -> Overlapping:
    """Refuse what cannot run with rounds that overlap; return the participants.

    Args:
        playing: Who takes part.
        schedule: When clients get work and when a round ends.

    Raises:
        InvalidInput: Something does not fit.
    """
    engine, environment, participants, _ = playing
    schedule.check(engine.policy, environment.n_clients)
    check_selector(engine.selector, schedule)
    name = type(schedule).__name__
    if environment.energy.uses_history:
        raise InvalidInput(
            f"energy must be Plugged() with {name}: {type(environment.energy).__name__} charges "
            "and drains by rounds.",
            field="energy",
        )
    seconds = environment.fate(0).duration
    if not np.any((seconds > 0.0) & (seconds < math.inf)):
        raise InvalidInput(
            f"timing must say how long clients take: {name} orders answers by time, and no client "
            "of this world takes any. Use FixedTime() or LinearContextual().",
            field="timing",
        )
    if not isinstance(participants, Overlapping):
        raise InvalidInput(
            f"{type(participants).__name__} cannot work with {name}: participants need the methods "
            "start, finish and take_in.",
            field="participants",
        )
    if hasattr(participants, "check_overlap"):
        participants.check_overlap()
    return participants


def check_selector(selector: Selector, schedule: WorkSchedule) -> None:
    """Refuse a selector that cannot choose for rounds that overlap.

    Args:
        selector: Who chooses.
        schedule: When clients get work and when a round ends.

    Raises:
        InvalidInput: It needs whole cohorts, or counts rounds.
    """
    name = type(schedule).__name__
    if selector.whole_cohorts and not schedule.has_whole_cohorts:
        raise InvalidInput(
            f"{type(selector).__name__} cannot fill single places, as {name} asks for: "
            f"{selector.whole_cohorts}. Use another selector or Synchronous().",
            field="schedule",
        )
    if selector.participation.is_limited:
        raise InvalidInput(
            f"{type(selector).__name__} limits participation, min_gap or max_times, by rounds, and "
            f"late work of {name} would break such limits. Use Synchronous().",
            field="schedule",
        )


class OverlappingRounds:
    """The loop: its clock, and how the work in flight will end.

    Args:
        playing: Who takes part, checked by ``check_overlap``.
        participants: Those of them that work.
    """

    def __init__(self, playing: Playing, participants: Overlapping) -> None:
        self._engine, self._environment, _, progress = playing
        self._participants = participants
        self._history = progress.history
        self._chooser = Chooser(playing)
        self._flights = self._engine.flights
        self._clock_s = 0.0
        self._busy_s = 0.0
        self._due: Array = np.zeros(0, _DUE)
        self._last: RoundContext | None = None  # what the last choice knew
        self._reached: BoolArray | None = None  # (n,) who could be reached by the last choice

    def state(self) -> dict[str, Array]:
        """Return everything between two rounds, as arrays."""
        due = {f"due.{name}": self._due[name] for name in _DUE.names or ()}
        if self._last is not None or self._reached is not None:
            due["reached"] = self._available()
        return {_CLOCK: np.array(self._clock_s), **due, **self._flights.state()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state`` returned; an empty one is the start."""
        if not state:
            return
        self._clock_s = float(state[_CLOCK])
        self._flights.load_state(state)
        self._due = np.zeros(self._flights.n_busy, _DUE)
        for name in _DUE.names or ():
            self._due[name] = state[f"due.{name}"]
        self._reached = state.get("reached")
        self._engine.selector.resume(self._flights.waiting)

    def rounds(self, numbers: range) -> Iterator[Aggregated]:
        """Yield the rounds with these numbers."""
        play = self._until_full if self._flights.schedule.refills else self._until_time
        for t in numbers:
            if self._participants.is_done:
                return
            began_s, self._busy_s = self._clock_s, 0.0
            play()
            version = self._flights.version
            answers, ended = self._engine.aggregate()
            self._participants.take_in(answers)
            measured = self._participants.measure(t, t == numbers[-1])
            chance = ended["probability"]
            row = RoundRow(
                ended["client"],
                ended["status"],
                ended["duration"],
                ended["spent"],
                chance if np.isfinite(chance).any() else None,
                self._clock_s - began_s,
                self._available(),
                measured,
                overlap=Overlap(
                    ended["choice"], version - ended["version"], ended["began_s"], self._busy_s
                ),
            )
            yield Aggregated(t, row, answers, measured)

    def _until_full(self) -> None:
        """Fill free places at once, until the buffer is full."""
        flights, n_barren = self._flights, 0
        enough = flights.schedule.enough
        n_answers = flights.n_answers
        while n_answers < enough and n_barren < PATIENCE:
            if not (self._due["ends_s"] <= self._clock_s).any():
                n_places = self._engine.places()
                if n_places:
                    self._choose(flights.next_choice, n_places)
                if not flights.n_busy:
                    n_barren += 1
                    continue
            n_before = n_answers
            ends_s = self._due["ends_s"]
            self._advance(float(ends_s.min()))
            rows = np.flatnonzero(ends_s <= self._clock_s)
            if rows.size > 1:
                so_far = np.cumsum(self._due["status"][rows] == _COMPLETED)
                rows = rows[: int(np.searchsorted(so_far, enough - n_before)) + 1]
            self._end(rows)
            n_answers = flights.n_answers
            n_barren = 0 if n_answers > n_before else n_barren + rows.size

    def _until_time(self) -> None:
        """Give out work once, and wait as long as schedule or policy say."""
        engine, schedule = self._engine, self._flights.schedule
        n_places = engine.places()
        begun = _Begun(None, math.inf)
        if n_places:
            begun = self._choose(self._flights.next_choice, n_places)
        length_s = schedule.period
        if math.isnan(length_s) and begun.closed is not None:
            length_s = begun.closed.length_s
        is_idle = begun.closed is None or not begun.closed.status.size
        if math.isnan(schedule.period) and is_idle and self._due.size:
            # Nobody could be chosen: the server waits for the next one of those at work.
            length_s = float(self._due["ends_s"].min()) - self._clock_s
        closes_s = self._clock_s + length_s
        rows = np.flatnonzero(self._due["ends_s"] <= closes_s)
        rows = rows[np.argsort(self._due["ends_s"][rows], kind="stable")]
        self._advance(closes_s)
        self._end(rows)
        if engine.policy.uses_observed and begun.closed is not None and not is_idle:
            engine.observed.record(begun.closed, begun.deadline)

    def _choose(self, t: int, n_places: int) -> _Begun:
        """Fill free places; everyone chosen is at work from now on."""
        engine, late_counts = self._engine, math.isnan(self._flights.schedule.period)
        deadline = engine.policy.deadline(engine.observed)
        ctx, selection = self._chooser.choose(t, n_places, deadline)
        self._last = ctx
        chosen = selection.clients
        fate = self._chooser.fate(t)
        seconds = fate.duration[chosen]
        closed = engine.close(seconds, fate.survived[chosen], fate.reports_failure)
        due = np.zeros(chosen.size, _DUE)
        due["status"], due["duration"], due["spent"] = closed.status, closed.duration, closed.spent
        if late_counts:
            is_kept = (closed.status == Status.LATE) & np.isfinite(seconds)
            due["status"][is_kept] = _COMPLETED
            due["duration"][is_kept] = due["spent"][is_kept] = seconds[is_kept]
        # The server hears of an answer or an error when it comes, and waits for anyone else.
        is_heard = (due["status"] == _COMPLETED) | (due["status"] == _FAILED)
        waits = closed.length_s if late_counts else deadline
        given_up = closed.spent if waits == math.inf else np.full(chosen.size, waits)
        due["ends_s"] = self._clock_s + np.where(is_heard, seconds, given_up)
        engine.begin(selection, self._clock_s)
        self._due = np.concatenate((self._due, due), dtype=_DUE)
        self._history.record(chosen)
        self._participants.start(t, chosen[due["status"] == _COMPLETED])
        return _Begun(closed, deadline)

    def _advance(self, to_s: float) -> None:
        """Move the clock."""
        worked = np.minimum(self._due["ends_s"], to_s) - self._clock_s
        self._busy_s += float(worked.sum())
        self._clock_s = to_s

    def _end(self, rows: IntArray) -> None:
        """Take in what became of some clients."""
        flights, due = self._flights.flights[rows], self._due[rows]
        clients, status = flights["client"], due["status"].copy()
        answered = np.flatnonzero(status == _COMPLETED)
        work = self._participants.finish(flights["choice"][answered], clients[answered])
        if work.is_broken is not None:
            status[answered[work.is_broken]] = Status.FAILED
        claims = {}
        for name, values in work.metrics.items():
            reported = np.full((rows.size, *values.shape[1:]), np.nan)
            reported[answered] = values
            claims[name] = self._environment.claimed(reported.T, clients).T
        is_left = np.ones(self._due.size, dtype=np.bool_)
        is_left[rows] = False
        self._due = self._due[is_left]
        seconds = self._environment.claimed_s(due["duration"], clients)
        self._engine.end(rows, Outcome(status, seconds, claims), due["spent"])

    def _available(self) -> BoolArray:
        """Return (n,) who could be reached by the last choice, at work or not."""
        last, self._last = self._last, None
        if last is not None:
            self._reached = last.available if last.busy is None else last.available | last.busy
        if self._reached is None:  # it was before the checkpoint
            t = max(0, self._flights.n_choices - 1)
            self._reached = self._environment.context(t, 1, self._history).available
        return self._reached
