"""Parameters that change with the round: small frozen dataclasses, called with the round number.

Any frozen dataclass with ``__call__(round) -> float`` is a schedule. These are the common ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Protocol, runtime_checkable

from turnout.core.domains import CheckedFields, Domain, Finite, NonNegative, integer, several
from turnout.core.require import at_round

__all__ = [
    "Constant",
    "ExponentialDecay",
    "Lemma1",
    "Linear",
    "Schedule",
    "ScheduledFraction",
    "ScheduledNonNegative",
    "StepAfter",
    "StepDecay",
    "at_round",
]


@runtime_checkable
class Schedule(Protocol):
    """A number that depends on the round; hashable, as frozen dataclasses are."""

    def __call__(self, round: int) -> float:
        """Return the value in a round, counted from 0."""

    def __hash__(self) -> int:
        """Return a hash of the parameters."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every round.

    Args:
        value: The value.
    """

    value: float

    def __call__(self, round: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class StepAfter:
    """One value for the first rounds, then another.

    E3CS-inc over 2,500 rounds is ``StepAfter(625, before=0.0, after=1.0)``.

    Args:
        rounds: How many rounds have the first value.
        before: The value in rounds 0 .. rounds - 1.
        after: The value from then on.
    """

    rounds: int
    before: float = 0.0
    after: float = 1.0

    def __call__(self, round: int) -> float:
        """Return ``before`` or ``after``."""
        return self.before if round < self.rounds else self.after


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line, then flat.

    Args:
        start: The value in round 0.
        end: The value in round ``rounds`` and later.
        rounds: Where the line ends.
    """

    start: float
    end: float
    rounds: int

    def __call__(self, round: int) -> float:
        """Return the value on the line."""
        share = min(1.0, round / self.rounds) if self.rounds > 0 else 1.0
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class StepDecay(CheckedFields):
    """A value that is multiplied by a factor at some rounds.

    The step size of UCB-CS on Synthetic(1,1) is ``StepDecay(0.05, at=(300, 600))``.

    Args:
        start: The value in round 0.
        at: The rounds from which on one more factor counts.
        factor: The factor.
    """

    start: Finite
    at: Annotated[tuple[int, ...], several("rounds", integer(0))]
    factor: Finite = 0.5

    def __call__(self, round: int) -> float:
        """Return the value, changed as often as rounds of ``at`` have come."""
        return self.start * self.factor ** sum(round >= change for change in self.at)


@dataclass(frozen=True, slots=True)
class ExponentialDecay(CheckedFields):
    """``start * factor ** round``; the step size of NCCB is ``ExponentialDecay(0.002, 0.9993)``.

    Args:
        start: The value in round 0.
        factor: The factor per round, at least 0.
    """

    start: Finite
    factor: NonNegative

    def __call__(self, round: int) -> float:
        """Return the value after ``round`` rounds."""
        return self.start * self.factor**round


@dataclass(frozen=True, slots=True)
class Lemma1:
    """RBCS-F, Lemma 1: ``alpha_t = R sqrt(3 log((1 + t L^2 / lambda) / delta)) + sqrt(lambda) S``.

    Args:
        noise: R, the scale of the noise of durations.
        context_bound: L, the greatest length of a context.
        coefficient_bound: S, the greatest length of the coefficients.
        ridge: lambda, the ``ridge`` of RBCS-F.
        delta: The chance that the bound fails.
    """

    noise: float
    context_bound: float
    coefficient_bound: float
    ridge: float = 1.0
    delta: float = 0.05

    def __call__(self, round: int) -> float:
        """Return alpha_t with t = round + 1."""
        growth = (1.0 + (round + 1) * self.context_bound**2 / self.ridge) / self.delta
        width = self.noise * math.sqrt(3.0 * math.log(growth))
        return width + math.sqrt(self.ridge) * self.coefficient_bound


#: Parameters that may be schedules. Their value in round 0 is checked before a run starts.
ScheduledNonNegative = Annotated[
    float | Schedule, Domain(partial(at_round, round=0), "number >= 0 or schedule")
]
ScheduledFraction = Annotated[
    float | Schedule,
    Domain(partial(at_round, round=0, maximum=1.0), "number in [0, 1] or schedule"),
]
