"""How often clients took part in a recorded run: what an accountant of differential privacy needs.

A client takes part in a round when it is chosen, whether it answers or not. That is the safe count:
a client that has the model may send its update, and whether the server used one can be known only
afterwards. Fewer participations, further apart, never need more noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.core import require
from turnout.core.participation import CHANCE_BOUND, Participation
from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.results.guarantee import Recorded
from turnout.results.run import Run

__all__ = ["EligibleOnly", "Participations", "participations"]

#: The gap of a client that took part once, or never.
NO_GAP = -1


@dataclass(frozen=True, slots=True)
class Participations:
    """How often each client of a run took part, and how far apart.

    Attributes:
        limits: What should hold.
        n_rounds: Rounds of the run.
        n_updates: Rounds in which at least one answer was used: the steps of a mechanism that
            releases nothing in the others.
        largest_cohort: Most clients of a round.
        times: (n,) rounds in which each client was chosen.
        answered: (n,) rounds in which it answered in time.
        gap: (n,) smallest distance of two such rounds, -1 = fewer than two.
        gap_at: (n,) the later one of these two rounds, -1 = fewer than two.
        update_gap: (n,) the same, counted in rounds with an update; others do not count at all.
        chance: (T,) largest chance that was reported for a chosen client, NaN = none.
        bound: (T,) largest chance of any client, chosen or not; NaN = unknown.
    """

    limits: Participation
    n_rounds: int
    n_updates: int
    largest_cohort: int
    times: IntArray
    answered: IntArray
    gap: IntArray
    gap_at: IntArray
    update_gap: IntArray
    chance: FloatArray
    bound: FloatArray

    @property
    def is_close(self) -> BoolArray:
        """(n,) who took part twice within the gap, counted in rounds."""
        return np.asarray((self.gap != NO_GAP) & (self.gap < self.limits.min_gap))

    @property
    def is_frequent(self) -> BoolArray:
        """(n,) who took part too often."""
        most = self.limits.max_times
        return np.zeros_like(self.is_close) if most is None else np.asarray(self.times > most)

    @property
    def holds(self) -> bool:
        """Whether no client took part too early again or too often."""
        return not (self.is_close.any() or self.is_frequent.any())

    @property
    def min_gap(self) -> int:
        """The smallest gap of any client in rounds; the length of the run if none came twice."""
        return _smallest(self.gap, self.n_rounds)

    @property
    def min_update_gap(self) -> int:
        """The smallest gap of any client, in rounds with an update."""
        return _smallest(self.update_gap, self.n_updates)

    @property
    def max_times(self) -> int:
        """The most rounds of any client."""
        return int(self.times.max(initial=0))

    def numbers(self) -> dict[str, Any]:
        """Return the numbers for an accountant, as plain data; None = unknown."""
        known = np.isfinite(self.bound)
        return {
            "n_rounds": self.n_rounds,
            "n_updates": self.n_updates,
            "n_clients": self.times.size,
            "largest_cohort": self.largest_cohort,
            "min_gap": self.min_gap,
            "min_update_gap": self.min_update_gap,
            "max_times": self.max_times,
            "promised": {"min_gap": self.limits.min_gap, "max_times": self.limits.max_times},
            "holds": self.holds,
            "chance": _most(self.chance),
            "chance_bound": _most(self.bound) if known.all() else None,
            "chance_bounds": [_most(one) for one in self.bound[:, np.newaxis]],
        }


def participations(
    run: Run, min_gap: int = 1, max_times: int | None = None, *, min_answers: int = 1
) -> Participations:
    """Return how often the clients of a run took part, and whether that is within limits.

    Args:
        run: The run.
        min_gap: Rounds from one participation of a client to its next one, at least.
        max_times: Rounds in which a client takes part, at most; None for no limit.
        min_answers: Answers that a round needs for an update.

    >>> import turnout
    >>> from turnout.worlds import e3cs_world
    >>> run = turnout.simulate("round-robin", e3cs_world(), cohort_size=20, n_rounds=20)
    >>> participations(run, max_times=20).holds
    True
    """
    require.instance("run", run, Run)
    n, n_rounds = run.n_clients, run.n_rounds
    times, answered = np.zeros((2, n), dtype=np.int64)
    last, last_update = np.full((2, n), NO_GAP)
    gap, gap_at, update_gap = np.full((3, n), NO_GAP)
    n_updates = most = 0
    for t in range(n_rounds):
        chosen = run.chosen_in(t)
        clients = np.unique(chosen)  # two ids that were merged later may both have been chosen
        done = chosen[run.completed[run.offsets[t] : run.offsets[t + 1]]]
        _narrow(gap, gap_at, clients, t - last[clients], last[clients], t)
        twice = _repeated(chosen)
        gap[twice], gap_at[twice] = 0, t
        last[clients] = t
        most = max(most, chosen.size)
        np.add.at(times, chosen, 1)
        answered[np.unique(done)] += 1
        if done.size >= max(1, min_answers):
            at = last_update[clients]
            _narrow(update_gap, None, clients, n_updates - at, at, t)
            update_gap[twice] = 0
            last_update[clients] = n_updates
            n_updates += 1
    chance = np.array([_largest(run, t) for t in range(n_rounds)])
    bound = run.measured.get(CHANCE_BOUND, np.full(n_rounds, np.nan))
    limits = Participation(min_gap, max_times)
    return Participations(
        limits, n_rounds, n_updates, most, times, answered, gap, gap_at, update_gap, chance, bound
    )


class EligibleOnly:
    """A run in which clients are available only while limits allow them to be chosen.

    The fair shares of ``guarantee`` then count as in ``guarded``.

    Args:
        run: The run.
        limits: The limits.
    """

    _at: int
    _times: IntArray
    _last: IntArray

    def __init__(self, run: Recorded, limits: Participation) -> None:
        self._run, self._limits = run, limits
        self.n_clients, self.n_rounds = run.n_clients, run.n_rounds
        self.cohort_size = run.cohort_size
        self._restart()

    def chosen_in(self, round: int) -> IntArray:
        """Return the clients chosen in a round."""
        return self._run.chosen_in(round)

    def available_in(self, round: int) -> BoolArray:
        """Return (n,) whether each client was available, and allowed by the limits."""
        if round < self._at:
            self._restart()
        for t in range(self._at, round):
            clients = self._run.chosen_in(t)
            self._times[clients] += 1
            self._last[clients] = t
        self._at = round
        may = (self._last < 0) | (round - self._last >= self._limits.min_gap)
        if self._limits.max_times is not None:
            may &= self._times < self._limits.max_times
        return np.asarray(self._run.available_in(round) & may)

    def _restart(self) -> None:
        self._at = 0
        self._times = np.zeros(self.n_clients, dtype=np.int64)
        self._last = np.full(self.n_clients, -1)


def _narrow(
    gap: IntArray, gap_at: IntArray | None, clients: IntArray, new: IntArray, last: IntArray, t: int
) -> None:
    """Store the gaps that are smaller than those so far, in place."""
    is_less = (last >= 0) & ((gap[clients] == NO_GAP) | (new < gap[clients]))
    gap[clients[is_less]] = new[is_less]
    if gap_at is not None:
        gap_at[clients[is_less]] = t


def _repeated(clients: IntArray) -> IntArray:
    found, counts = np.unique(clients, return_counts=True)
    return np.asarray(found[counts > 1])


def _largest(run: Run, round: int) -> float:
    """Return the largest reported chance of a round; NaN if there is none."""
    reported = run.probability[run.offsets[round] : run.offsets[round + 1]]
    known = reported[np.isfinite(reported)]
    return float(known.max()) if known.size else np.nan


def _smallest(gap: IntArray, otherwise: int) -> int:
    return int(gap[gap != NO_GAP].min(initial=max(1, otherwise)))


def _most(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.max()) if known.size else None
