"""The policy ``reported``: the caller knows who was in time, and says so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turnout.policies import Closed, Observed, RoundPolicy
from turnout.policies.base import End
from turnout.serve.schemas import ClientOutcome
from turnout.types import BoolArray, FloatArray, Status

_STATUSES = {status.name.lower(): status for status in Status}


class Told(RoundPolicy):
    """Ends a round as it was told: sizes, deadlines and statuses are the caller's."""

    def __init__(self) -> None:
        self.cohort_size: int | None = None
        self.deadline_s = math.inf
        self._outcomes: Sequence[ClientOutcome | None] = ()

    @property
    def force_stop(self) -> bool:
        """Nobody is stopped by us."""
        return False

    def tell(self, outcomes: Sequence[ClientOutcome | None]) -> None:
        """Take in what became of the chosen, in their order; None = nothing was reported."""
        self._outcomes = outcomes

    def select_size(self, cohort_size: int, observed: Observed | None = None) -> int:
        """Return what the caller asked for."""
        return cohort_size if self.cohort_size is None else self.cohort_size

    def deadline(self, observed: Observed | None = None) -> float:
        """Return what the caller said."""
        return self.deadline_s

    def close(
        self,
        duration: FloatArray,
        survived: BoolArray,
        observed: Observed | None = None,
        *,
        cohort_size: int | None = None,
        reports_failure: BoolArray | bool = False,
    ) -> Closed:
        """Return what the caller said; who was not reported is late."""
        status = [Status.LATE if o is None else _STATUSES[o.status] for o in self._outcomes]
        seconds = np.array(
            [math.nan if o is None or o.seconds is None else o.seconds for o in self._outcomes],
            dtype=np.float64,
        )
        length = float(np.fmax.reduce(seconds, initial=0.0))
        spent = np.where(np.isnan(seconds), length, seconds)
        return Closed(np.array(status, dtype=np.int8), seconds, length, spent, False)

    def end(
        self,
        duration: FloatArray,
        survived: BoolArray,
        cohort_size: int,
        observed: Observed | None = None,
    ) -> End:
        """Wait until everyone was reported."""
        return End(math.inf)
