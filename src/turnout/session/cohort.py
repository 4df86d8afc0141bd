"""One round in progress: answers come in, the policy says when it is over, everybody gets a status.

What becomes which status is the table of ``turnout.session.port.Kind``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from turnout.policies import Closed, Observed, RoundPolicy
from turnout.session.port import Heard, Kind
from turnout.session.post import log
from turnout.types import BoolArray, Status

#: Kinds that tell the server at once that a client has failed.
_REPORTED = frozenset({Kind.FAILED, Kind.GARBLED})


class Cohort:
    """The chosen of a round, in the order of the selection."""

    def __init__(
        self, ids: Sequence[Hashable], policy: RoundPolicy, observed: Observed, cohort_size: int
    ) -> None:
        self.ids = list(ids)
        self.answers: dict[int, Heard] = {}  #: usable ones by position
        self.reasons: dict[int, str] = {}  #: why there is none, by position
        self._policy, self._observed, self._cohort_size = policy, observed, cohort_size
        self._duration = np.full(len(ids), np.nan)
        self._is_heard = np.zeros(len(ids), dtype=np.bool_)
        self._survived = np.ones(len(ids), dtype=np.bool_)
        self._reported = np.zeros(len(ids), dtype=np.bool_)  # said itself that it failed

    @property
    def is_waiting(self) -> bool:
        """Whether anybody has not answered yet."""
        return not self._is_heard.all()

    def hear(self, i: int, heard: Heard) -> bool:
        """Take in what came of the client at a position; return whether it is the first word."""
        if self._is_heard[i]:
            return False
        self._duration[i], self._is_heard[i] = heard.seconds, True
        if heard.kind is Kind.ANSWERED:
            self.answers[i] = heard
        else:
            self._survived[i], self._reported[i] = False, heard.kind in _REPORTED
            self.reasons[i] = heard.reason or heard.kind.value
            log.warning("%s: %s", self.ids[i], self.reasons[i])
        return True

    def closes_at(self) -> float:
        """Return when the round is over, in seconds after sending, as far as is known."""
        # Whoever is still working answers later than everyone so far.
        duration = np.where(self._is_heard, self._duration, np.inf)
        return self._policy.end(duration, self._survived, self._cohort_size, self._observed).at

    def last_heard(self) -> float:
        """Return when the last answer came, 0 if none did."""
        return float(np.fmax.reduce(self._duration, initial=0.0))

    def close(self, gone: BoolArray, length_s: float) -> Closed:
        """Return how the round ended; ``gone`` says who is no longer connected."""
        survived = self._survived & (self._is_heard | ~gone)
        duration = np.where(self._is_heard & (survived | self._reported), self._duration, np.nan)
        closed = self._policy.close(
            duration,
            survived,
            self._observed,
            cohort_size=self._cohort_size,
            reports_failure=self._reported,
        )
        spent = np.where(np.isnan(duration), length_s, np.fmin(duration, length_s))
        return closed._replace(length_s=length_s, spent=spent)

    def lose(self, foreseen: Closed) -> Closed:
        """Return how a round of a virtual world ended: who gave no answer after all has failed."""
        status = foreseen.status.copy()
        in_time = np.flatnonzero(status == Status.COMPLETED).tolist()
        status[[i for i in in_time if i not in self.answers]] = Status.FAILED
        return foreseen._replace(status=status)

    def drop(self, closed: Closed, faults: Mapping[int, str]) -> Closed:
        """Mark those whose answers do not fit the others as failed."""
        status = closed.status.copy()
        for i, fault in faults.items():
            status[i] = Status.FAILED
            del self.answers[i]
            self.reasons[i] = f"reply dropped, {fault}"
            log.warning("%s: %s", self.ids[i], self.reasons[i])
        return closed._replace(status=status)
