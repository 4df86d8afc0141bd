"""What all round policies share: the contract, what a closed round holds, what was observed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import numpy as np

from turnout import require
from turnout.errors import InvalidInput
from turnout.stateful import Stateful
from turnout.types import Array, BoolArray, FloatArray, Status

__all__ = ["Closed", "End", "Observed", "RoundPolicy"]


_COMPLETED, _LATE, _FAILED, _SILENT = (np.int8(status) for status in Status)


class Closed(NamedTuple):
    """How a round ended; arrays are aligned with the chosen clients."""

    status: Array  #: (s,) int8 of Status
    duration: FloatArray  #: (s,) seconds as the server saw them, NaN = it never learned
    length_s: float  #: seconds from selection to the end of the round
    spent: FloatArray  #: (s,) seconds that each device worked for this round
    ended_early: bool  #: enough had answered, so the late ones say nothing about the deadline


class Observed(Stateful):
    """The latest outcomes, as far as policies learn from them.

    Durations of those who completed, infinity for those who missed the deadline, and whether each
    client whose fate is known was in time. Clients cut off because enough others had answered
    count as neither.
    """

    def __init__(self, *, capacity: int = 1000) -> None:
        self.capacity = capacity  # outcomes that are remembered

    @classmethod
    def fresh(cls, capacity: int = 1000) -> Self:
        """Return an empty one, ready for use."""
        observed = cls(capacity=capacity)
        observed.reset(1)
        return observed

    def check_parameters(self) -> None:
        """Room for at least one outcome."""
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
        """Add the outcome of a round that had the given deadline."""
        completed, late = closed.status == _COMPLETED, closed.status == _LATE
        self.deadline_ = deadline
        if closed.ended_early:
            is_known, is_timed = ~late, completed
            seconds = closed.duration[is_timed]
        else:
            is_known, is_timed = slice(None), completed | late
            seconds = np.where(late, math.inf, closed.duration)[is_timed]
        self.n_timed_ = _push(self.seconds_, self.n_timed_, seconds)
        self.n_known_ = _push(self.in_time_, self.n_known_, completed[is_known])

    def seconds(self, window: int) -> FloatArray:
        """Return the latest durations, at most ``window``; infinity = longer than the deadline."""
        return _latest(self.seconds_, self.n_timed_, window)

    def success(self, window: int) -> float:
        """Return the share that was in time among the latest, at most ``window``; 1 if none."""
        latest = _latest(self.in_time_, self.n_known_, window)
        return float(latest.mean()) if latest.size else 1.0


class End(NamedTuple):
    """When the server stops waiting."""

    at: float  #: seconds after the selection, infinity = when everyone has answered
    is_enough: bool = False  #: because enough have answered


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
        """Return how many clients to select when ``cohort_size`` answers are wanted."""
        return cohort_size

    @abstractmethod
    def deadline(self, observed: Observed | None = None) -> float:
        """Return the seconds that clients of the next round have, infinity = no limit."""

    def end(
        self,
        duration: FloatArray,
        survived: BoolArray,
        cohort_size: int,
        observed: Observed | None = None,
    ) -> End:
        """Return when the server stops waiting for this cohort."""
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

        ``duration`` is the time until a client answers or crashes, NaN if that never came.
        ``cohort_size`` is the number of answers wanted (everyone's by default), and
        ``reports_failure`` tells whether a crash sends an error.
        """
        duration = np.asarray(duration, dtype=np.float64)
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
    """Write values behind the ``count`` already written, over the oldest; return the new count."""
    kept = values[-ring.size :]
    first = count + values.size - kept.size
    ring[(first + np.arange(kept.size)) % ring.size] = kept
    return count + int(values.size)


def _latest(ring: Array, count: int, window: int) -> Array:
    """Return the newest values, at most ``window``."""
    size = min(window, count, ring.size)
    return ring[(count - 1 - np.arange(size)) % ring.size]
