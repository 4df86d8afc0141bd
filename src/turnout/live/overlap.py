"""A live run whose rounds overlap: a choice fills free places, an aggregation ends a round.

Like ``Session``, an ``OverlappingSession`` never waits and sends nothing. Its driver does the rest:

1. ``sync`` reports which clients are connected.
2. ``open`` chooses clients for the free places.
3. ``receive`` passes on replies, and ``give_up`` ends work that takes too long.
4. When ``is_over`` returns true, ``close`` ends the round. Its result has the answers that make the
   next model, and their weights.

The driver owns the models. It keeps those whose numbers are in ``engine.flights.versions``.

Times are seconds on the clock of the run. This clock stands still while no process runs. If the
computer's clock is set back, the clock of the run does not move, and the jump is counted. Work in
flight survives a restart: the driver sends it again (``restart``), or its answers still arrive.

Each round is recorded with all clients whose work ended in it, in the same columns as a simulation.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.plain import below
from turnout.core.selector import Selector
from turnout.core.types import Array, BoolArray, FloatArray, RoundContext, Status
from turnout.experiment.in_flight import InFlight
from turnout.experiment.overlap import Aggregated, check_selector
from turnout.live.checkpoint import Checkpoint
from turnout.live.round import (
    CLOCK_JUMPS,
    MODELS_KEPT,
    REFUSED_REPLIES,
    REPORTED_FAILURES,
    ClosedRound,
    Cohort,
)
from turnout.live.session import Session
from turnout.live.settings import LiveSettings
from turnout.live.transport import Address, Kind, Reply, clock, log, no_answer
from turnout.results.run import Overlap, RoundRow
from turnout.worlds import Answers, Closed, WorkSchedule

#: The owner of these arrays in a checkpoint.
_OWNER = "overlap"
#: Seconds between two moments that are the same but for rounding.
_SAME_S = 1e-5
_LOOP = "loop."
#: Returns which replies cannot be used together, by position, and why; also from the versions of
#: the models that their clients got.
RejectStale = Callable[[Sequence[Reply], Sequence[int]], Mapping[int, str]]
#: What each kind of reply makes of a client at work.
_STATUS = {
    Kind.ANSWERED: Status.COMPLETED,
    Kind.FAILED: Status.FAILED,
    Kind.GARBLED: Status.FAILED,
    Kind.LOST: Status.SILENT,
    Kind.REFUSED: Status.SILENT,
}


class Flight(NamedTuple):
    """A client at work.

    Attributes:
        client: The stable id.
        choice: The number of the choice that gave it the work.
        version: The model that it got, by the number of aggregations before it.
        began_s: When it got it.
    """

    client: Hashable
    choice: int
    version: int
    began_s: float


class _Ended(NamedTuple):
    """More about a client whose work ended in this round."""

    at_s: float
    reason: str | None
    weight: float
    multiple: float  #: of the usual size of an update; NaN = not known
    reported: Mapping[str, float]


class OverlappingSession(Session):
    """Chooses clients for free places, and says when a round ends and which answers count.

    Args:
        settings: As for ``Session``, with a schedule whose rounds overlap.
        selector: Chooses the clients.
        **given: As for ``Session``. With a world, ``turnout.live.virtual`` plays the rounds and
            ``record`` records them.
    """

    def __init__(self, settings: LiveSettings, selector: Selector, **given: Any) -> None:
        super().__init__(settings, selector, **given)
        self.n_jumps = 0  #: how often the clock of the computer was set back
        self._zero, self._clock_s = clock.wall(), 0.0
        self._began_s = 0.0  # when the round began
        self._ended: list[_Ended] = []  # rows are those of ``flights.ended``
        self._replies: dict[int, Reply] = {}  # the answers among them, by row
        self._reached: BoolArray = np.zeros(0, dtype=np.bool_)
        #: Returns the state of the loop that plays a virtual world; empty without one.
        self.virtual_state: Callable[[], Mapping[str, Array]] = dict
        self._choice: int | None = None  # the last one of this round
        self._recorded_before: dict[str, int] = {}  # accidents of the rounds before
        self._is_filled = False  # whether this round has no more choices

    def _check_schedule(self, settings: LiveSettings, selector: Selector) -> None:
        """Refuse a schedule or a selector that cannot play rounds that overlap."""
        schedule = settings.schedule
        if schedule is None or not schedule.overlaps:
            raise InvalidInput("schedule must overlap, as Buffered(10, 30) does.", field="schedule")
        # Clients may join later, so their number limits nothing here.
        schedule.check(settings.round_policy(None), sys.maxsize)
        check_selector(selector, schedule)

    @property
    def flights(self) -> InFlight:
        """Who is at work."""
        return self.engine.flights

    @property
    def schedule(self) -> WorkSchedule:
        """When clients get work and when a round ends."""
        return self.flights.schedule

    @property
    def version(self) -> int:
        """The number of the model that clients get now: aggregations so far."""
        return self.flights.version

    @property
    def now_s(self) -> float:
        """Seconds on the clock of the run, which never goes back."""
        at = clock.wall() - self._zero
        if at < self._clock_s:
            self.n_jumps += 1
            log.warning(
                "the computer's clock was set back by %.3g s; the clock of the run continues",
                self._clock_s - at,
            )
            self._zero -= self._clock_s - at
        self._clock_s = max(at, self._clock_s)
        return self._clock_s

    @property
    def began_at(self) -> float:
        """When the clock of the run showed 0 if it never stood still; seconds since 1970."""
        return self._zero

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Leave the clock of the run unchanged, whatever is asked in this context."""
        before = self._zero, self._clock_s, self.n_jumps
        try:
            yield
        finally:
            self._zero, self._clock_s, self.n_jumps = before

    @property
    def work_s(self) -> float:
        """Seconds that a client has for its work before it is given up."""
        seconds = min(self.engine.terms()[1], self.settings.limit_s)
        return self.busy_s(seconds) if self._late_counts else seconds

    @property
    def at_work(self) -> list[Flight]:
        """The clients at work, in the order of their choices."""
        return [
            Flight(
                self.roster.id_of(int(row["client"])),
                int(row["choice"]),
                int(row["version"]),
                float(row["began_s"]),
            )
            for row in self.flights.flights
        ]

    def start_clock(self) -> None:
        """Let the clock of the run continue now, or begin if no client got work before.

        The time since it was last read does not count.
        """
        if not self.flights.n_choices:
            self._clock_s = self._began_s = 0.0
        self._zero = clock.wall() - self._clock_s

    def places(self) -> int:
        """Return how many clients may get work now."""
        with self._lock:
            return 0 if self._is_filled else self.engine.places()

    def open(self, round: int | None = None) -> Cohort:
        """Choose clients for the free places; they are at work from now on.

        The cohort is empty, and nothing has happened, if no place or no client is free.

        Args:
            round: The number of the choice that the caller means; None: the next one.

        Raises:
            InvalidInput: Another choice comes next.
        """
        with self._lock:
            flights, t = self.flights, self.flights.next_choice
            if round not in (None, t):
                raise InvalidInput(
                    f"round must be {t}, the number of the next choice, got {round}.", field="round"
                )
            ctx = self._next_context() if self._context is None else self._context
            self._context = None
            self.journal.n_clients = max(1, self.engine.n_clients)
            if ctx is None or not self.places() or not ctx.pool.size:
                return Cohort(t)
            if self._begun_at is None:
                self.begin()
            if not flights.n_choices:  # the clock of the run begins with its first choice
                self.start_clock()
            with self.spans.part("choose"):
                selection = self.engine.select(ctx)
                self.engine.begin(selection, self.now_s)
            self._reached = ctx.available if ctx.busy is None else ctx.available | ctx.busy
            if self._choice is None:
                self.monitor.opened(self.round, self.members)
            self._choice, self._is_filled = t, not self.schedule.refills
            ids = tuple(self.roster.id_of(int(client)) for client in selection.clients)
            return Cohort(
                t,
                ids,
                tuple(self.members.addresses_of(selection.clients)),
                (True,) * len(ids),
                self.work_s,
                selection.probability,
                ctx.pool.size,
                tuple(selection.times.tolist()),
                flights.version,
            )

    def restart(self, client: Hashable) -> None:
        """Note that a client gets its work again: its time counts from now on.

        Args:
            client: The stable id of a client at work.
        """
        with self._lock:
            row = self.flights.where(np.array([self.roster.index_of(client)]))
            self.flights.flights["began_s"][row] = self.now_s

    def receive(self, client: Hashable, reply: Reply, round: int | None = None) -> bool:
        """Process the reply of a client; return whether it ends the client's work.

        A reply to work that is no longer in flight is rejected and counted in
        ``flights.n_refused``. So is a second reply.

        Args:
            client: Its stable id.
            reply: The result of its work; without seconds, the time since it got the work counts.
            round: The number of the choice that gave it the work; None: its present work.

        Raises:
            InvalidInput: There is no client of this id.
        """
        with self._lock:
            index = self.roster.index_of(client)
            name = self.roster.id_of(index)
            self.members.release(name)
            why = self.flights.refusal(index, round)
            if why is not None:
                log.warning("%s: reply rejected: it belongs to %s", name, why)
                return False
            self._end(index, reply)
            return True

    @property
    def has_overdue(self) -> bool:
        """Whether the time of a client at work is over."""
        with self._lock:
            began = self.flights.flights["began_s"]
            return bool(began.min(initial=math.inf) + self.work_s <= self.now_s)

    def give_up(self, present: Collection[Address] | None = None) -> list[Hashable]:
        """End the work of clients whose time is over; return their ids.

        Args:
            present: Connected addresses. Their clients are late, all others are silent; None:
                every client is connected.
        """
        with self._lock:
            flights = self.flights.flights
            is_over = flights["began_s"] + self.work_s <= self.now_s
            ids = []
            for index in flights["client"][is_over].tolist():
                ids.append(self.roster.id_of(index))
                is_there = present is None or self._is_present(index, present)
                self._end(index, None if is_there else Reply(Kind.LOST, reason="no answer"))
            return ids

    def is_over(self) -> bool:
        """Return whether the round is to be closed."""
        with self._lock:
            elapsed = self.now_s - self._began_s
            return self.flights.is_full or elapsed >= self._ends_at(elapsed)

    def left_s(self) -> float:
        """Return the seconds until the round ends or work is given up if no reply arrives."""
        with self._lock:
            now, flights = self.now_s, self.flights.flights
            ends = self._began_s + self._ends_at(now - self._began_s)
            given_up = float(flights["began_s"].min(initial=math.inf)) + self.work_s
            return max(0.0, min(ends, given_up) - now)

    def close(  # type: ignore[override]  # whether answers fit depends on their models, too
        self,
        present: Iterable[Address] | None = None,
        length_s: float | None = None,
        reject: RejectStale | None = None,
    ) -> ClosedRound:
        """End the round: its answers make the next model.

        Args:
            present: Who is still connected, for rounds with one choice; None: everyone who was.
            length_s: How long it took; None: as the clock of the run says.
            reject: Returns which answers cannot be used together with the others, by the replies
                and the versions of their models; they are recorded as failed.
        """

        def end(times: tuple[float, float]) -> ClosedRound:
            now = self.now_s
            if self._late_counts and self._choice is not None:
                self._close_cohort(self._choice, present)
            rows = list(self._replies)
            versions = self.flights.ended["version"][rows].tolist() if rows else []
            replies = list(self._replies.values())
            self.reports.check(replies)
            faults = {} if reject is None else reject(replies, versions)
            for i, why in faults.items():
                self._drop(rows[i], f"reply dropped, {why}")
            with self.spans.part("learn"):
                length = now - self._began_s if length_s is None else length_s
                return self._aggregate(times, length, now)

        return self._finish(end)

    def state(self, settings: Mapping[str, Any]) -> Checkpoint:
        """Return everything that the next event depends on, except the contents of answers."""
        with self._lock:
            saved = super().state(settings)
            text = json.dumps(
                {
                    "ended": self._ended,
                    "choice": self._choice,
                    "is_filled": self._is_filled,
                    "accidents": self._recorded_before,
                }
            )
            own = {
                "clock_s": np.array(self.now_s),
                "zero": np.array(self._zero),
                "began_s": np.array(self._began_s),
                "jumps": np.array(self.n_jumps),
                "reached": self._reached,
                "text": np.frombuffer(text.encode(), dtype=np.uint8),
            }
            loop = {f"{_LOOP}{name}": x for name, x in self.virtual_state().items()}
            return replace(saved, arrays={**saved.arrays, _OWNER: own | loop})

    def load(self, saved: Checkpoint) -> None:
        """Continue from what ``state`` returned; the clock of the run continues from there."""
        with self._lock:
            super().load(saved)
            own = saved.arrays[_OWNER]
            self._clock_s, self._began_s = float(own["clock_s"]), float(own["began_s"])
            self._zero = clock.wall() - self._clock_s
            zero = float(own.get("zero", math.nan))
            if abs(zero - self._zero) < _SAME_S:  # a replay: not a bit may differ
                self._zero = zero
            for flight in self.at_work:  # the driver may give them their work again
                self.members.release(flight.client)
            self.n_jumps, self._reached = int(own["jumps"]), np.array(own["reached"])
            loop = below(_LOOP, own)
            self.virtual_state = lambda: loop
            text = json.loads(own["text"].tobytes())
            self._ended = [_Ended(*each) for each in text["ended"]]
            answered = np.flatnonzero(self.flights.ended["status"] == Status.COMPLETED)
            self._replies = {row: Reply() for row in answered.tolist()}
            self._choice, self._is_filled = text["choice"], text["is_filled"]
            self._recorded_before = text.get("accidents", self._accidents())

    @property
    def _late_counts(self) -> bool:
        """Whether rounds end as the policy says, and late work counts when it comes."""
        return math.isnan(self.schedule.period)

    def _next_context(self) -> RoundContext | None:
        ctx = super()._next_context()
        if ctx is None:
            return None
        size = max(1, self.places())
        ctx = replace(ctx, round=self.flights.next_choice, cohort_size=size)
        return self.engine.without_busy(ctx)

    def _is_present(self, index: int, present: Collection[Address]) -> bool:
        return index in self.members.connected_clients and (
            self.members.addresses_of(np.array([index]))[0] in present
        )

    def _ends_at(self, elapsed: float) -> float:
        """Return when the round ends by the clock, in seconds after its beginning."""
        schedule, limit = self.schedule, self.settings.limit_s
        if not self._late_counts:
            return min(schedule.period, limit)
        if self._choice is None:  # no client could be chosen: wait for one that is at work
            return min(elapsed, limit) if self.flights.ended.size else limit
        duration, survived, began_s = self._cohort(self._choice)
        if not duration.size or np.isfinite(duration).all():
            return min(elapsed, limit)
        engine = self.engine
        end = engine.policy.end(duration, survived, engine.cohort_size, engine.observed).at
        return min(limit, began_s - self._began_s + min(end, engine.terms()[1]))

    def _cohort(self, choice: int) -> tuple[FloatArray, BoolArray, float]:
        """Return (s,) durations of the clients of a choice, which did not fail, and its time.

        The duration of a client that is still at work is infinite.
        """
        ended = self.flights.ended[self.flights.ended["choice"] == choice]
        works = self.flights.flights[self.flights.flights["choice"] == choice]
        duration = np.concatenate((ended["spent"], np.full(works.size, math.inf)))
        is_sound = np.isin(ended["status"], (Status.COMPLETED, Status.LATE))
        survived = np.concatenate((is_sound, np.ones(works.size, dtype=np.bool_)))
        began = np.concatenate((ended["began_s"], works["began_s"]))
        return duration, survived, float(began.min(initial=math.inf))

    def _close_cohort(self, choice: int, present: Iterable[Address] | None) -> None:
        """Record disconnected clients of the round as silent, and let the policy learn."""
        there = None if present is None else set(present)
        mine = self.flights.flights["choice"] == choice
        for index in self.flights.flights["client"][mine].tolist():
            if there is not None and not self._is_present(index, there):
                self._end(index, Reply(Kind.LOST, reason="no answer"))
        policy = self.engine.policy
        if policy.uses_observed:
            duration, survived, _ = self._cohort(choice)
            if duration.size:
                known = np.where(np.isfinite(duration), duration, math.nan)
                closed = self.engine.close(known, survived, True)
                self.engine.observed.record(closed, self.engine.terms()[1])

    def _end(self, index: int, reply: Reply | None) -> None:
        """Record how the work of a client ended; without a reply, the client is late."""
        rows = self.flights.where(np.array([index]))
        flight, now = self.flights.flights[rows][0], self.now_s
        passed = now - float(flight["began_s"])
        seconds, status, reason = math.nan, Status.LATE, None
        if reply is not None:
            status = _STATUS[reply.kind]
            passed = passed if math.isnan(reply.seconds) else max(0.0, reply.seconds)
            if reply.kind is Kind.ANSWERED or reply.kind in REPORTED_FAILURES:
                seconds = passed
            if status is Status.COMPLETED and passed > self.work_s:
                status = Status.LATE
            reason = None if reply.kind is Kind.ANSWERED else reply.reason or reply.kind.value
        multiple = math.nan
        if reply is not None and status is Status.COMPLETED:
            self.reports.note([reply])
            multiple, fault = self.judge(index, reply)
            if fault is not None:
                status, reason = Status.FAILED, f"reply dropped, {fault}"
        if reason is not None:
            reason = no_answer(self.roster.id_of(index), reason)
        clients, statuses = np.array([index]), np.array([status], dtype=np.int8)
        answers = {0: reply} if reply is not None and status is Status.COMPLETED else {}
        self.reports.fill_sizes(self.members.columns, [(index, x) for x in answers.values()])
        choice, took = int(flight["choice"]), np.array([seconds])
        outcome = self.reports.outcome(choice, clients, statuses, took, answers)
        columns = self.reports.recorded(clients, outcome, answers, self.members.columns)
        self.engine.end(rows, outcome, np.array([passed]))
        if answers:
            self._replies[len(self._ended)] = answers[0]
        weight = self._weight(index, answers[0]) if answers else math.nan
        reported = {name: float(values[0]) for name, values in columns.items()}
        self._ended.append(_Ended(now, reason, weight, multiple, reported))

    def judge(self, index: int, reply: Reply) -> tuple[float, str | None]:
        """Return how many times as large as usual an update is, and why it is refused.

        Args:
            index: The client.
            reply: What it answered.
        """
        return self._judged(np.array([index]), [reply])[0]

    def _drop(self, row: int, reason: str) -> None:
        """Record an answer as a failure; the selector has learned from it already."""
        self.flights.drop(np.array([row]))
        del self._replies[row]
        client = self.roster.id_of(int(self.flights.ended["client"][row]))
        self._ended[row] = self._ended[row]._replace(reason=no_answer(client, reason))

    def _aggregate(self, times: tuple[float, float], length_s: float, now: float) -> ClosedRound:
        """Aggregate, and record the round."""
        notes, self._ended = self._ended, []
        replies, self._replies = self._replies, {}
        busy_s = self._busy_s([each.at_s for each in notes], now)
        self._began_s, self._choice = now, None
        version = self.version
        answers, ended = self.engine.aggregate()
        self._is_filled = not self.schedule.refills and not self.engine.places()
        chance, staleness = ended["probability"], version - ended["version"]
        names = sorted({name for each in notes for name in each.reported})
        available = np.zeros(len(self.roster), dtype=np.bool_)
        available[: self._reached.size] = self._reached
        row = RoundRow(
            ended["client"],
            ended["status"],
            ended["duration"],
            ended["spent"],
            chance if np.isfinite(chance).any() else None,
            length_s,
            available,
            {},
            {name: np.array([x.reported.get(name, math.nan) for x in notes]) for name in names},
            Overlap(ended["choice"], staleness, ended["began_s"], busy_s),
        )
        weights = [notes[row].weight for row in replies]
        reasons = {i: each.reason for i, each in enumerate(notes) if each.reason is not None}
        sizes = {i: x.multiple for i, x in enumerate(notes) if not math.isnan(x.multiple)}
        result = self._result_of(times, row, answers, list(replies.values()), weights, reasons)
        return self._recorded(row, result._replace(sizes=sizes))

    def record(
        self, done: Aggregated, replies: Sequence[Reply], reject: RejectStale | None = None
    ) -> ClosedRound:
        """Record a round of a virtual world, which the loop of simulations has played.

        Args:
            done: The round.
            replies: The replies behind its answers, in their order.
            reject: Returns which of them cannot be used together with the others; they are left out
                of the model.
        """

        def end(times: tuple[float, float]) -> ClosedRound:
            self.journal.n_clients = max(1, self.engine.n_clients)
            answers = done.answers
            self.reports.check(replies)
            faults = {} if reject is None else reject(replies, answers.versions.tolist())
            for i, why in faults.items():
                client = self.roster.id_of(int(answers.clients[i]))
                no_answer(client, f"reply dropped, {why}")
            kept = [i for i in range(len(replies)) if i not in faults]
            fields = answers._asdict().items()
            parts: Any = {name: x[kept] for name, x in fields if isinstance(x, np.ndarray)}
            used, clients = [replies[i] for i in kept], answers.clients[kept].tolist()
            weights = [self._weight(c, reply) for c, reply in zip(clients, used, strict=True)]
            answers = answers._replace(**parts)
            result = self._result_of(times, done.row, answers, used, weights, {})
            return self._recorded(done.row, result)

        return self._finish(end)

    def _result_of(
        self,
        times: tuple[float, float],
        row: RoundRow,
        answers: Answers,
        replies: Sequence[Reply],
        weights: Sequence[float],
        reasons: Mapping[int, str],
    ) -> ClosedRound:
        """Return how a round ended."""
        is_void = len(replies) < self.settings.quorum.min_answers
        stale = [] if row.overlap is None else row.overlap.staleness.tolist()
        return ClosedRound(
            self.round,
            tuple(self.roster.id_of(client) for client in row.clients.tolist()),
            Closed(row.status, row.duration, row.length_s, row.spent, False),
            reasons,
            () if is_void else tuple(reply.content for reply in replies),
            is_void,
            *times,
            weights=() if is_void else tuple(weights),
            taken=answers,
            staleness=tuple(stale),
        )

    def _recorded(self, row: RoundRow, result: ClosedRound) -> ClosedRound:
        known = {MODELS_KEPT: len(self.flights.versions)}
        accidents = self._accidents()
        for name, total in accidents.items():
            if total > self._recorded_before.get(name, 0):
                known[name] = total - self._recorded_before.get(name, 0)
        self._recorded_before = accidents
        measured = {**row.measured, **{name: float(n) for name, n in known.items()}}
        return super()._recorded(row._replace(measured=measured), result)

    def _accidents(self) -> dict[str, int]:
        """Return how many replies were refused so far, and how often the clock was set back."""
        refused = sum(self.flights.n_refused.values())
        return {REFUSED_REPLIES: refused, CLOCK_JUMPS: self.n_jumps}

    def _busy_s(self, ended_at: list[float], now: float) -> float:
        """Return the seconds for which places were busy in this round, summed over places."""
        flights, began = self.flights, self._began_s
        until = np.concatenate((np.array(ended_at), np.full(flights.n_busy, now)))
        since = np.concatenate((flights.ended["began_s"], flights.flights["began_s"]))
        return float(np.maximum(until - np.maximum(since, began), 0.0).sum())
