"""When a round ends, and who was in time: deadline, first k, over-selection, adaptive deadline.

A policy is a frozen dataclass and a pure function of two things: the durations and survivals of the
cohort, and an ``Observed``, the latest outcomes of earlier rounds. Only ``Observed`` has a state.
The caller that runs the rounds keeps it, updates it and saves it. Simulation, training and
integrations use the same policies.

Statuses: a client that survives and answers before the round ends is COMPLETED; if it answers
later, LATE. A client that crashes is FAILED if its error reaches the server before the round ends,
otherwise SILENT.

Length: a round ends when no answer is missing, at the latest at its deadline. Without a deadline
it ends after the longest duration known. A round with nobody chosen takes no time.
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
