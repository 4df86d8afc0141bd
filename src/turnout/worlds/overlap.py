"""Schedules of work: when clients get work, when a round ends, and what late work is worth.

In a synchronous round the server waits, and what comes too late is dropped. The other schedules let
rounds overlap: a client works on while the server goes on, and its answer counts when it comes. In
the meantime the model has changed. The staleness of an answer is the number of aggregations
between the model that its client got and the one that the answer changes.

=========================== ============================ =================================
schedule                    clients get work             a round ends
=========================== ============================ =================================
Synchronous()               at its start                 as the policy says
Synchronous(late="use")     at its start                 as the policy says
SemiSynchronous(period_s)   at its start, in free places after ``period_s``
Buffered(size, concurrency) as soon as a place is free   with the ``size``-th answer
=========================== ============================ =================================

References: Buffered is FedBuff (Nguyen et al., Federated Learning with Buffered Asynchronous
Aggregation, 2022). The weights are those of FedAsync (Xie et al., Asynchronous Federated
Optimization, 2019). Late work in synchronous rounds follows REFL (Abdelmoniem et al., 2023), whose
weights are ``DeviationWeight``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.domains import (
    CheckedFields,
    Count,
    Flag,
    Fraction,
    NonNegative,
    Positive,
    check_fields,
    number,
)
from turnout.core.errors import InvalidInput
from turnout.core.plain import LATER
from turnout.core.types import FloatArray, IntArray
from turnout.worlds.policies import FixedDeadline, RoundPolicy

# What stale work is worth.


class StalenessWeight(ABC):
    """The factor on the coefficient of an answer, by its staleness."""

    @abstractmethod
    def of(self, staleness: IntArray) -> FloatArray:
        """Return (s,) the factors.

        Args:
            staleness: (s,) aggregations since the clients got their models, >= 0.
        """

    def of_updates(self, staleness: IntArray, deviation: Callable[[], FloatArray]) -> FloatArray:
        """Return (s,) the factors where the updates are at hand; by default those of ``of``.

        Args:
            staleness: (s,) as in ``of``.
            deviation: Returns (s,) the squared distance of each update from the mean of the fresh
                ones; NaN if none is fresh.
        """
        return self.of(staleness)


@dataclass(frozen=True, slots=True)
class ConstantWeight(StalenessWeight):
    """All answers count alike."""

    def of(self, staleness: IntArray) -> FloatArray:
        """Return 1."""
        return np.ones(np.shape(staleness))


@dataclass(frozen=True, slots=True)
class PolynomialWeight(CheckedFields, StalenessWeight):
    """``(1 + staleness) ** -a``. With a = 0.5 it is the weight of FedBuff.

    Args:
        a: The exponent, >= 0.

    >>> PolynomialWeight(1.0).of([0, 1, 3]).tolist()
    [1.0, 0.5, 0.25]
    """

    a: NonNegative = 0.5

    def of(self, staleness: IntArray) -> FloatArray:
        """Return the power."""
        return np.power(1.0 + np.asarray(staleness, dtype=np.float64), -self.a)


@dataclass(frozen=True, slots=True)
class HingeWeight(CheckedFields, StalenessWeight):
    """1 up to a staleness of b, and ``1 / (a (staleness - b) + 1)`` above it.

    Args:
        a: How fast the weight falls, >= 0.
        b: The staleness up to which nothing is lost, >= 0.

    >>> HingeWeight(a=1.0, b=2.0).of([0, 2, 3, 5]).tolist()
    [1.0, 1.0, 0.5, 0.25]
    """

    a: NonNegative = 10.0
    b: NonNegative = 4.0

    def of(self, staleness: IntArray) -> FloatArray:
        """Return the hinge."""
        beyond = np.maximum(np.asarray(staleness, dtype=np.float64) - self.b, 0.0)
        return 1.0 / (self.a * beyond + 1.0)


@dataclass(frozen=True, slots=True)
class DeviationWeight(CheckedFields, StalenessWeight):
    """The weight of REFL: less for old answers, more for those that differ from the fresh ones.

    A fresh answer has weight 1. A stale one has (1 - beta) / (staleness + 1) + beta (1 - exp(-d) /
    scale), where d is the squared distance of its update from the mean of the fresh updates,
    divided by the largest such distance in the round. All weights are divided by their mean, so
    that with ``MeanReturned("equal")`` the coefficients sum to 1, as in REFL. Where nothing is
    fresh or no model is trained, the second term is 0.

    Args:
        beta: How much the difference counts beside the age, from 0 to 1. REFL has 0.35.
        scale: Divides the exponential, at least 1. REFL's experiments have 1; its program has 10
            where nothing else is said, which makes the second term nearly the same for all.

    >>> DeviationWeight(0.5).of([0, 1]).tolist()
    [1.6, 0.4]
    """

    beta: Fraction = 0.35
    scale: Annotated[float, number(minimum=1.0)] = 1.0

    def of(self, staleness: IntArray) -> FloatArray:
        """Return the weights by age alone."""
        return self.of_updates(staleness, lambda: np.full(np.shape(staleness), np.nan))

    def of_updates(self, staleness: IntArray, deviation: Callable[[], FloatArray]) -> FloatArray:
        """Return the weights by age and difference."""
        age = np.asarray(staleness, dtype=np.float64)
        is_stale = age > 0.0
        if not is_stale.any():
            return np.ones(age.shape)
        distance = np.where(is_stale, deviation(), 0.0)
        is_known = ~np.isnan(distance)
        distance = np.where(is_known, np.minimum(distance, np.finfo(np.float64).max), 0.0)
        largest = max(float(distance.max()), np.finfo(np.float64).tiny)
        boost = np.where(is_known, 1.0 - np.exp(-distance / largest) / self.scale, 0.0)
        weight = np.where(is_stale, (1.0 - self.beta) / (age + 1.0) + self.beta * boost, 1.0)
        mean = float(weight.mean())
        return weight / mean if mean > 0.0 else weight


# When work is given out, and when a round ends.


class WorkSchedule(ABC):
    """When clients get work, and when the server aggregates."""

    #: Whether a free place is filled at once; otherwise at the start of a round.
    refills: ClassVar[bool] = False
    staleness: StalenessWeight
    #: Whether answers count as whole models; otherwise as steps from the models of their clients.
    mixes: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether clients may work on when a round ends."""
        return True

    @property
    def has_whole_cohorts(self) -> bool:
        """Whether every choice is of a whole cohort."""
        return False

    @property
    def enough(self) -> float:
        """How many answers end a round; infinity = it does not end by answers."""
        return math.inf

    @property
    def period(self) -> float:
        """Seconds after which a round ends; NaN = as the policy says."""
        return math.inf

    def answers(self, cohort_size: int | None) -> int | None:
        """Return how many answers a round should get.

        Args:
            cohort_size: How many the caller asks for; None = as usual.
        """
        return cohort_size

    @abstractmethod
    def places(self, cohort_size: int, n_busy: int) -> int:
        """Return how many clients may get work now.

        Args:
            cohort_size: Clients that a round may choose.
            n_busy: Clients that are at work.
        """

    def check(self, policy: RoundPolicy, n_clients: int) -> None:
        """Refuse a policy or sizes that do not go with the schedule.

        Args:
            policy: When a round ends.
            n_clients: Size of the federation.

        Raises:
            InvalidInput: They do not fit.
        """
        if self.overlaps and not math.isnan(self.period) and not isinstance(policy, FixedDeadline):
            raise InvalidInput(
                f"policy must be FixedDeadline() with the schedule {type(self).__name__}, which "
                f"ends rounds itself; got {type(policy).__name__}. Its seconds are then the time "
                "after which the server gives a client up.",
                field="policy",
            )


@dataclass(frozen=True, slots=True)
class Synchronous(CheckedFields, WorkSchedule):
    """Choose a cohort, wait as the policy says, aggregate.

    Args:
        late: What becomes of work that is late: ``drop``, or ``use`` it in the round in which it
            comes. Clients are then not stopped, and those still at work cannot be chosen.
        staleness: The weight of late work.
    """

    late: Literal["drop", "use"] = "drop"
    staleness: StalenessWeight = field(default_factory=ConstantWeight)

    def __post_init__(self) -> None:
        check_fields(self)
        require.instance("staleness", self.staleness, StalenessWeight)

    @property
    def overlaps(self) -> bool:
        """Only if late work is used."""
        return self.late == "use"

    @property
    def has_whole_cohorts(self) -> bool:
        """Always."""
        return True

    @property
    def period(self) -> float:
        """As the policy says."""
        return math.nan

    def places(self, cohort_size: int, n_busy: int) -> int:
        """Return the whole cohort."""
        return cohort_size


@dataclass(frozen=True, slots=True)
class SemiSynchronous(CheckedFields, WorkSchedule):
    """Aggregate every so many seconds. Whoever is not done goes on, and counts when it comes.

    Free places are filled at the start of a period, so that the cohort size is the number of
    clients that are at work.

    Args:
        period_s: Seconds of a round, above 0.
        staleness: The weight of late work.
    """

    period_s: Positive = 60.0
    staleness: StalenessWeight = field(default_factory=PolynomialWeight)

    def __post_init__(self) -> None:
        check_fields(self)
        require.instance("staleness", self.staleness, StalenessWeight)

    @property
    def period(self) -> float:
        """The fixed number of seconds."""
        return self.period_s

    def places(self, cohort_size: int, n_busy: int) -> int:
        """Return what is left of the cohort."""
        return max(0, cohort_size - n_busy)


@dataclass(frozen=True, slots=True)
class Buffered(CheckedFields, WorkSchedule):
    """Aggregate when the buffer is full. Whoever is done is replaced at once.

    It has sizes of its own, so the cohort size of a run does not count.

    ``Buffered(size=1, concurrency=..., mixes=True)`` is FedAsync: with x the present model, y the
    one that a client returns and s its weight, the next model is (1 - alpha s) x + alpha s y.
    alpha is ``server_lr`` of the training, and the learning rate of the server in Flower.

    Args:
        size: Answers that fill the buffer, at least 1.
        concurrency: Clients at work at the same time, at least ``size``.
        staleness: The weight of stale work.
        mixes: Whether an answer counts as a whole model, as in FedAsync: its difference from the
            present model is added. False adds the client's step from the model that it got, as in
            FedBuff.
    """

    size: Count = 10
    concurrency: Count = 30
    staleness: StalenessWeight = field(default_factory=PolynomialWeight)
    mixes: Flag = field(default=False, metadata=LATER)
    refills: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)
        require.instance("staleness", self.staleness, StalenessWeight)
        if self.concurrency < self.size:
            raise InvalidInput(
                f"concurrency must be at least size = {self.size}, got {self.concurrency}: fewer "
                "clients at work than answers in the buffer would only wait.",
                field="concurrency",
            )
        if self.mixes and isinstance(self.staleness, DeviationWeight):
            raise InvalidInput(
                "mixes does not go with DeviationWeight, which compares the steps of clients. Use "
                "ConstantWeight, PolynomialWeight or HingeWeight.",
                field="mixes",
            )

    @property
    def enough(self) -> float:
        """The size of the buffer."""
        return self.size

    def answers(self, cohort_size: int | None) -> int:
        """Return the size of the buffer, whatever the cohort size."""
        return self.size

    def places(self, cohort_size: int, n_busy: int) -> int:
        """Return the free places."""
        return max(0, self.concurrency - n_busy)

    def check(self, policy: RoundPolicy, n_clients: int) -> None:
        """Refuse more places than clients, too."""
        super(Buffered, self).check(policy, n_clients)
        if self.concurrency > n_clients:
            raise InvalidInput(
                f"concurrency must be at most n_clients = {n_clients}, got {self.concurrency}.",
                field="concurrency",
            )


class Answers(NamedTuple):
    """The answers that make the next model, in the order in which they came.

    Attributes:
        clients: (s,) who answered; a client may be there twice.
        choices: (s,) the choice that gave it this work.
        versions: (s,) the model that it worked on, by the number of aggregations before it.
        staleness: (s,) aggregations since then.
        weight: (s,) the factor on its coefficient, by its staleness.
        rule: Gives the weights; ``rule.of_updates`` where the updates are at hand.
        probability: (s,) its chance to be chosen; NaN if the selector reports none.
        times: (s,) how often it was drawn in its choice.
        mixes: Whether the answers count as whole models, and not as steps.
    """

    clients: IntArray
    choices: IntArray
    versions: IntArray
    staleness: IntArray
    weight: FloatArray
    rule: StalenessWeight
    probability: FloatArray
    times: IntArray
    mixes: bool = False
