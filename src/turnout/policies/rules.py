"""The round policies: fixed and adaptive deadline, first k, over-selection."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from turnout import require
from turnout.domains import CheckedFields, Count, PositiveOrInfinite, check_fields, number
from turnout.errors import InvalidInput
from turnout.policies.base import End, Observed, RoundPolicy
from turnout.types import BoolArray, FloatArray

#: Products of factor and cohort size may exceed an integer by this much without being rounded up.
_CEIL_TOLERANCE = 1e-9

_Part = Annotated[float, number(above=0.0, maximum=1.0)]
_Factor = Annotated[float, number(minimum=1.0)]


@dataclass(frozen=True, slots=True)
class FixedDeadline(CheckedFields, RoundPolicy):
    """Wait for everyone, at most until the deadline; late answers are dropped.

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
    """End the round when enough clients have answered; whoever answers later is late.

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
