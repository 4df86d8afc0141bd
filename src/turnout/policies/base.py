"""What all round policies share: the contract, the result of a round, the outcomes observed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from turnout import require
from turnout.arrays import numbers
from turnout.errors import InvalidInput
from turnout.stateful import NOT_NEGATIVE, Range, Stateful
from turnout.types import Array, BoolArray, FloatArray, Status

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
    """The latest outcomes, as far as policies learn from them.

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

    def __init__(self, *, capacity: int = 1000) -> None:
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

    def check_parameters(self) -> None:
        """Refuse a capacity below 1."""
        require.integer("capacity", self.capacity, minimum=1)

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
    """Decides how many to select, how long to wait and who counts."""

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
