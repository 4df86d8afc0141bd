"""Round policies decide when a round ends and which answers are in time.

A policy is a frozen dataclass and a pure function of two things: the durations and survivals of the
cohort, and an ``Observed``, the latest outcomes of earlier rounds. Only ``Observed`` has a state.
The caller that runs the rounds keeps it, updates it and saves it. Simulation, training and
integrations use the same policies.

Statuses: a client that survives and answers before the round ends is COMPLETED; if it answers
later, LATE. A client that crashes is FAILED if its error reaches the server before the round ends,
otherwise SILENT.

Length: a round ends when no answer is missing, at the latest at its deadline. Without a deadline
it ends after the longest duration known. A round without a chosen client takes no time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, NamedTuple, Self

import numpy as np

from turnout.core import require
from turnout.core.arrays import numbers
from turnout.core.domains import CheckedFields, Count, PositiveOrInfinite, check_fields, number
from turnout.core.errors import InvalidInput
from turnout.core.stateful import NOT_NEGATIVE, Range, Stateful
from turnout.core.types import Array, BoolArray, FloatArray, Status

_COMPLETED, _LATE, _FAILED, _SILENT = (np.int8(status) for status in Status)


class Closed(NamedTuple):
    """How a round ended; arrays have one entry per chosen client.

    Attributes:
        status: (s,) int8 of ``Status``.
        duration: (s,) seconds as the server saw them, NaN = it never learned them.
        length_s: Seconds from the selection to the end of the round.
        spent: (s,) seconds that each device worked for this round.
        ended_early: Whether the round ended because enough clients had answered. Then a late
            client may still have met the deadline.
    """

    status: Array
    duration: FloatArray
    length_s: float
    spent: FloatArray
    ended_early: bool


class Observed(Stateful):
    """The latest outcomes that policies learn from.

    It keeps the durations of clients that completed, with infinity for those that missed the
    deadline, and whether each client was in time. Clients that were cut off because enough others
    had answered are left out of both.

    Args:
        capacity: Number of outcomes to remember, at least 1.
    """

    state_ranges = MappingProxyType(
        {
            "seconds_": Range(0.0, math.inf),
            "n_timed_": NOT_NEGATIVE,
            "n_known_": NOT_NEGATIVE,
            "deadline_": Range(0.0, math.inf),
        }
    )

    def __init__(self, *, capacity: Count = 1000) -> None:
        self.capacity = capacity

    @classmethod
    def fresh(cls, capacity: int = 1000) -> Self:
        """Return one without outcomes, ready for use.

        Args:
            capacity: Number of outcomes to remember, at least 1.
        """
        observed = cls(capacity=capacity)
        observed.reset(1)
        return observed

    def reset(self, n_clients: int) -> None:
        """Forget everything; the number of clients does not matter here."""
        super().reset(n_clients)
        self.seconds_ = np.zeros(self.capacity)
        self.n_timed_ = 0
        self.in_time_ = np.zeros(self.capacity, dtype=np.bool_)
        self.n_known_ = 0
        self.deadline_ = math.inf

    def record(self, closed: Closed, deadline: float = math.inf) -> None:
        """Add the outcome of a round.

        Args:
            closed: How the round ended.
            deadline: Seconds that its clients had.
        """
        completed, late = closed.status == _COMPLETED, closed.status == _LATE
        self.deadline_ = deadline
        if closed.ended_early:
            is_judged, is_timed = ~late, completed
            seconds = closed.duration[is_timed]
        else:
            is_judged, is_timed = slice(None), completed | late
            seconds = np.where(late, math.inf, closed.duration)[is_timed]
        self.n_timed_ = _push(self.seconds_, self.n_timed_, seconds)
        self.n_known_ = _push(self.in_time_, self.n_known_, completed[is_judged])

    def seconds(self, window: int) -> FloatArray:
        """Return the latest durations; infinity = longer than the deadline.

        Args:
            window: Number of durations to return at most.
        """
        return _latest(self.seconds_, self.n_timed_, window)

    def success(self, window: int) -> float:
        """Return the share of the latest outcomes that were in time; 1 if there are none.

        Args:
            window: Number of outcomes to look at, at most.
        """
        latest = _latest(self.in_time_, self.n_known_, window)
        return float(latest.mean()) if latest.size else 1.0


class End(NamedTuple):
    """When the server stops waiting.

    Attributes:
        at: Seconds after the selection; infinity = when everyone has answered.
        is_enough: Whether it stops because enough clients have answered.
    """

    at: float
    is_enough: bool = False


class RoundPolicy(ABC):
    """Decides how many clients to select, how long to wait and which answers count."""

    @property
    def uses_observed(self) -> bool:
        """Whether the policy learns from earlier rounds."""
        return False

    @property
    @abstractmethod
    def force_stop(self) -> bool:
        """Whether clients are stopped when the round ends; their durations then stay unknown."""

    def select_size(self, cohort_size: int, observed: Observed | None = None) -> int:
        """Return how many clients to select.

        Args:
            cohort_size: Number of answers wanted.
            observed: Outcomes of earlier rounds; None = none.
        """
        return cohort_size

    @abstractmethod
    def deadline(self, observed: Observed | None = None) -> float:
        """Return the seconds that clients of the next round have, infinity = no limit.

        Args:
            observed: Outcomes of earlier rounds; None = none.
        """

    def end(
        self,
        duration: FloatArray,
        survived: BoolArray,
        cohort_size: int,
        observed: Observed | None = None,
    ) -> End:
        """Return when the server stops waiting for this cohort.

        Args:
            duration: (s,) seconds until each client answers or crashes.
            survived: (s,) whether each client finishes without a crash.
            cohort_size: Number of answers wanted.
            observed: Outcomes of earlier rounds; None = none.
        """
        return End(self.deadline(observed))

    def close(
        self,
        duration: FloatArray,
        survived: BoolArray,
        observed: Observed | None = None,
        *,
        cohort_size: int | None = None,
        reports_failure: BoolArray | bool = False,
    ) -> Closed:
        """Turn durations and survivals of the chosen into statuses and the length of the round.

        Args:
            duration: (s,) seconds until each client answers or crashes, NaN = it did neither.
            survived: (s,) whether each client finishes without a crash.
            observed: Outcomes of earlier rounds; None = none.
            cohort_size: Number of answers wanted; None = everyone's.
            reports_failure: Whether a crash sends an error, for all clients or (s,) for each.
        """
        duration = numbers("duration", duration)
        survived = np.asarray(survived, dtype=np.bool_)
        if duration.shape != survived.shape or duration.ndim != 1:
            raise InvalidInput(
                f"duration and survived must be one-dimensional and of equal length, got "
                f"{duration.shape} and {survived.shape}."
            )
        wanted = duration.size if cohort_size is None else cohort_size
        end = self.end(duration, survived, wanted, observed)
        by_then = duration <= end.at
        heard = by_then & (survived | reports_failure)
        status = np.where(
            heard, np.where(survived, _COMPLETED, _FAILED), np.where(survived, _LATE, _SILENT)
        )
        # Without a missing answer or without a deadline, the round ends with the last event known.
        # NaN is a client that neither answers nor crashes, and fmax ignores it.
        nobody_missing = end.at == math.inf or heard.all()
        length = float(np.fmax.reduce(duration, initial=0.0)) if nobody_missing else end.at
        if self.force_stop:
            seen, spent = np.where(heard, duration, np.nan), np.fmin(duration, length)
        else:
            seen = np.where(heard | survived, duration, np.nan)
            spent = np.where(np.isnan(duration), length, duration)
        return Closed(status, seen, length, spent, end.is_enough)


def _push(ring: Array, count: int, values: Array) -> int:
    """Append values to a ring that has seen ``count``, over the oldest; return the new count."""
    kept = values[-ring.size :]
    first = count + values.size - kept.size
    ring[(first + np.arange(kept.size)) % ring.size] = kept
    return count + int(values.size)


def _latest(ring: Array, count: int, window: int) -> Array:
    """Return the newest values, at most ``window``."""
    size = min(window, count, ring.size)
    return ring[(count - 1 - np.arange(size)) % ring.size]


# The policies: fixed and adaptive deadline, first k, over-selection.

#: Products of factor and cohort size may exceed an integer by this much without being rounded up.
_CEIL_TOLERANCE = 1e-9

_Part = Annotated[float, number(above=0.0, maximum=1.0)]
_Factor = Annotated[float, number(minimum=1.0)]


@dataclass(frozen=True, slots=True)
class FixedDeadline(CheckedFields, RoundPolicy):
    """Wait for all clients, at most until the deadline. Late answers are dropped.

    Args:
        seconds: The deadline, above 0; infinity = none.
        force_stop: Whether late clients are stopped at the end of the round, so that their
            durations stay unknown. Otherwise they finish and the server learns how long they took.
    """

    seconds: PositiveOrInfinite = math.inf
    force_stop: bool = True

    def deadline(self, observed: Observed | None = None) -> float:
        """Return the fixed number of seconds."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class FirstK(RoundPolicy):
    """End the round when enough clients have answered. Any later answer is late.

    Answers at the same instant as the last needed one are in time. If too few survive, the round
    ends at the deadline.

    Args:
        count: Number of answers that is enough, at least 1. Without ``count`` and ``share`` it is
            the number of answers wanted.
        share: Share of the selected clients that is enough, above 0 and up to 1; not together with
            ``count``.
        seconds: The deadline, above 0; infinity = none.
        force_stop: Whether late clients are stopped at the end of the round, so that their
            durations stay unknown.
    """

    count: Count | None = None
    share: _Part | None = None
    seconds: PositiveOrInfinite = math.inf
    force_stop: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.count is not None and self.share is not None:
            raise InvalidInput(
                "count and share exclude each other: give one of them or neither.", field="count"
            )

    def deadline(self, observed: Observed | None = None) -> float:
        """Return the fixed number of seconds."""
        return self.seconds

    def end(
        self,
        duration: FloatArray,
        survived: BoolArray,
        cohort_size: int,
        observed: Observed | None = None,
    ) -> End:
        """Stop with the answer that makes it enough."""
        enough = cohort_size if self.count is None else self.count
        if self.share is not None:
            enough = _ceil(self.share * duration.size)
        if not 0 < enough <= duration.size:
            return End(self.seconds)
        answer = np.where(survived, duration, math.inf)
        last = float(np.partition(answer, enough - 1)[enough - 1])
        if last <= self.seconds and last < math.inf:
            return End(last, is_enough=True)
        return End(self.seconds)  # too few survive, or not in time


@dataclass(frozen=True, slots=True)
class AdaptiveDeadline(CheckedFields, RoundPolicy):
    """A deadline at a quantile of the latest durations.

    Clients that missed a deadline count as slower than everyone else. Otherwise dropping the slow
    ones would shorten the deadline round after round.

    Args:
        quantile: Share of the latest durations that the deadline admits, above 0 and up to 1.
        window: Number of durations to look at, at least 1; ``Observed.capacity`` is the limit.
        start: Deadline in seconds until a duration was observed.
        growth: Factor on the last deadline when the quantile falls among clients that missed it;
            above 1.
        longest: Seconds that the deadline never exceeds.
        force_stop: Whether late clients are stopped at the end of the round, so that their
            durations stay unknown.
    """

    quantile: _Part = 0.9
    window: Count = 200
    start: PositiveOrInfinite = math.inf
    growth: Annotated[float, number(above=1.0)] = 1.5
    longest: PositiveOrInfinite = math.inf
    force_stop: bool = True

    @property
    def uses_observed(self) -> bool:
        """Always: it learns from durations."""
        return True

    def deadline(self, observed: Observed | None = None) -> float:
        """Return the smallest deadline that admits the wanted share of the latest durations."""
        seconds = np.zeros(0) if observed is None else observed.seconds(self.window)
        if observed is None or seconds.size == 0:
            return min(self.start, self.longest)
        rank = _ceil(self.quantile * seconds.size) - 1
        deadline = float(np.partition(seconds, rank)[rank])
        if deadline == math.inf:
            deadline = self.growth * observed.deadline_
        return min(max(deadline, np.finfo(np.float64).tiny), self.longest)


@dataclass(frozen=True, slots=True)
class OverSelect(RoundPolicy):
    """Select more clients than answers are wanted, and close the round like another policy.

    Args:
        inner: The policy that closes the round.
        factor: Number of selected clients divided by the number of answers wanted, at least 1.
    """

    inner: RoundPolicy = field(default_factory=FirstK)
    factor: _Factor = 1.3

    def __post_init__(self) -> None:
        check_fields(self)
        require.instance("inner", self.inner, RoundPolicy)

    @property
    def uses_observed(self) -> bool:
        """As the inner policy."""
        return self.inner.uses_observed

    @property
    def force_stop(self) -> bool:
        """As the inner policy."""
        return self.inner.force_stop

    def select_size(self, cohort_size: int, observed: Observed | None = None) -> int:
        """Return the product, rounded up."""
        return _ceil(self.factor * self.inner.select_size(cohort_size, observed))

    def deadline(self, observed: Observed | None = None) -> float:
        """As the inner policy."""
        return self.inner.deadline(observed)

    def end(
        self,
        duration: FloatArray,
        survived: BoolArray,
        cohort_size: int,
        observed: Observed | None = None,
    ) -> End:
        """As the inner policy."""
        return self.inner.end(duration, survived, cohort_size, observed)


@dataclass(frozen=True, slots=True)
class OverSelectBySuccess(OverSelect):
    """Select as many clients as it takes for the wanted number to succeed.

    That is the number of answers wanted divided by the share of the latest clients in time.

    Args:
        inner: The policy that closes the round.
        factor: Limit on the selected clients divided by the number of answers wanted, at least 1.
        window: Number of outcomes to look at, at least 1; ``Observed.capacity`` is the limit.
    """

    factor: _Factor = 3.0
    window: Count = 200

    @property
    def uses_observed(self) -> bool:
        """Always: it learns from success and failure."""
        return True

    def select_size(self, cohort_size: int, observed: Observed | None = None) -> int:
        """Return the size at which ``cohort_size`` successes are expected."""
        wanted = self.inner.select_size(cohort_size, observed)
        success = 1.0 if observed is None else observed.success(self.window)
        needed = math.inf if success == 0.0 else wanted / success
        return _ceil(min(needed, self.factor * wanted))


def _ceil(value: float) -> int:
    return math.ceil(value - _CEIL_TOLERANCE)
