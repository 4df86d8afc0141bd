"""When a round ends, and who was in time: deadline, first k, over-selection, adaptive deadline.

A policy is a frozen dataclass and a pure function of the cohort's durations and survivals and of
what was observed before. The latter is an ``Observed``, the only thing here with a state; whoever
runs the rounds keeps it, feeds it and saves it. Simulator, trainer and integrations share them.

Statuses: who survives and answers before the round ends is COMPLETED, who answers later LATE. Who
crashes is FAILED if the error reaches the server before the round ends, SILENT otherwise.
Length: a round ends when nobody is missing any more, at the latest at its deadline. Without a
deadline it ends with the longest duration known. A round with nobody chosen takes no time.
"""

from turnout.policies.base import Closed, End, Observed, RoundPolicy
from turnout.policies.rules import (
    AdaptiveDeadline,
    FirstK,
    FixedDeadline,
    OverSelect,
    OverSelectBySuccess,
)

__all__ = [
    "AdaptiveDeadline",
    "Closed",
    "End",
    "FirstK",
    "FixedDeadline",
    "Observed",
    "OverSelect",
    "OverSelectBySuccess",
    "RoundPolicy",
]
