"""The round policies: fixed and adaptive deadline, first k, over-selection."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from turnout import require
from turnout.errors import InvalidInput
from turnout.policies.base import End, Observed, RoundPolicy
from turnout.types import BoolArray, FloatArray

__all__ = ["AdaptiveDeadline", "FirstK", "FixedDeadline", "OverSelect", "OverSelectBySuccess"]

#: Slack before a product of factor and cohort size is rounded up.
_CEIL_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class FixedDeadline(RoundPolicy):
    """Wait for everyone, at most until the deadline; late answers are dropped.

    With ``force_stop`` late clients are stopped at the deadline and their durations stay unknown;
    without, they work on to their end and the server learns how long they took.
    """

    seconds: float = math.inf
    force_stop: bool = True

    def __post_init__(self) -> None:
        _check_seconds("seconds", self.seconds)

    def deadline(self, observed: Observed | None = None) -> float:
        """Return the fixed number of seconds."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class FirstK(RoundPolicy):
    """End the round when enough clients have answered; whoever answers later is late.

    Enough is ``count``, or ``share`` of the selected, or the number of answers wanted if neither is
    given. Answers at the same instant as the last needed one are in time. If too few survive, the
    round ends like one with a fixed deadline.
    """

    count: int | None = None
    share: float | None = None
    seconds: float = math.inf  #: deadline
    force_stop: bool = True

    def __post_init__(self) -> None:
        if self.count is not None and self.share is not None:
            raise InvalidInput(
                "count and share exclude each other: give one of them or neither.", field="count"
            )
        if self.count is not None:
            require.integer("count", self.count, minimum=1)
        if self.share is not None:
            require.number("share", self.share, above=0.0, maximum=1.0)
        _check_seconds("seconds", self.seconds)

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
class AdaptiveDeadline(RoundPolicy):
    """A deadline at a quantile of the durations observed lately.

    Clients that missed a deadline count as slower than every duration, so that dropping the slow
    does not tighten the deadline round after round. When the quantile falls among them, the last
    deadline is prolonged by ``growth``.
    """

    quantile: float = 0.9
    window: int = 200  #: durations that are looked at, at most Observed.capacity
    start: float = math.inf  #: seconds, until something was observed
    growth: float = 1.5
    longest: float = math.inf  #: seconds that the deadline never exceeds
    force_stop: bool = True

    def __post_init__(self) -> None:
        require.number("quantile", self.quantile, above=0.0, maximum=1.0)
        require.integer("window", self.window, minimum=1)
        require.number("growth", self.growth, above=1.0)
        _check_seconds("start", self.start)
        _check_seconds("longest", self.longest)

    @property
    def uses_observed(self) -> bool:
        """Learns from durations."""
        return True

    def deadline(self, observed: Observed | None = None) -> float:
        """Return the smallest duration that at least the quantile of the latest stayed within."""
        seconds = np.zeros(0) if observed is None else observed.seconds(self.window)
        if observed is None or seconds.size == 0:
            return min(self.start, self.longest)
        rank = _ceil(self.quantile * seconds.size) - 1
        found = float(np.partition(seconds, rank)[rank])
        if found == math.inf:
            found = self.growth * observed.deadline_
        return min(max(found, np.finfo(np.float64).tiny), self.longest)


@dataclass(frozen=True, slots=True)
class OverSelect(RoundPolicy):
    """Select ``factor`` times as many as wanted, and close the round like another policy."""

    inner: RoundPolicy = field(default_factory=FirstK)
    factor: float = 1.3

    def __post_init__(self) -> None:
        require.number("factor", self.factor, minimum=1.0)

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
    """Select as many as it takes for the wanted number to succeed, by the success observed lately.

    That is cohort size / success rate, at most ``factor`` times the cohort size.
    """

    factor: float = 3.0
    window: int = 200  #: outcomes that are looked at, at most Observed.capacity

    def __post_init__(self) -> None:
        require.number("factor", self.factor, minimum=1.0)
        require.integer("window", self.window, minimum=1)

    @property
    def uses_observed(self) -> bool:
        """Learns from success and failure."""
        return True

    def select_size(self, cohort_size: int, observed: Observed | None = None) -> int:
        """Return the size at which ``cohort_size`` successes are expected."""
        wanted = self.inner.select_size(cohort_size, observed)
        success = 1.0 if observed is None else observed.success(self.window)
        needed = math.inf if success == 0.0 else wanted / success
        return _ceil(min(needed, self.factor * wanted))


def _check_seconds(field: str, value: float) -> None:
    if value != math.inf:
        require.number(field, value, above=0.0)


def _ceil(value: float) -> int:
    return math.ceil(value - _CEIL_TOLERANCE)
