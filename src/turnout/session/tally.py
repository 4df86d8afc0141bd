"""How often each client could be chosen, was chosen and failed, counted while it was there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from turnout.errors import StateFileError
from turnout.metrics import jain_of_counts
from turnout.runs.run import Run
from turnout.selector import Selector
from turnout.stateful import NOT_NEGATIVE
from turnout.types import Array, BoolArray, FloatArray, IntArray, Status

#: Rounding of chances that are equal.
_EQUAL = 1e-9
#: Statuses by which a client is failing. Who is late may only be slow, and does not count.
FAILING = (Status.FAILED, Status.SILENT)


class Tallied(NamedTuple):
    """What a tally needs to know of a round.

    Attributes:
        clients: (s,) the chosen.
        status: (s,) how it ended for them.
        available: (n,) who could be chosen; shorter if clients have joined since.
        promise: The chance that everyone who could be chosen was promised; 0 without a promise.
    """

    clients: IntArray
    status: Array
    available: BoolArray
    promise: float


class Tally:
    """Counts by client, over all rounds so far.

    Attributes:
        free: (n,) rounds in which it could be chosen.
        chosen: (n,) times that it was chosen.
        waited: (n,) rounds since then in which it could have been.
        failures: (n,) times in a row that it failed or fell silent, up to the last.
        promised: (n,) times that it should have been chosen at least, in expectation.
        n_completed: Answers in time, of all clients.
    """

    def __init__(self) -> None:
        self.free, self.chosen, self.waited, self.failures = (
            np.zeros(0, dtype=np.int32) for _ in range(4)
        )
        self.promised = np.zeros(0)
        self.n_completed = 0

    @property
    def success_ratio(self) -> float:
        """Share of the chosen that answered in time; NaN before anybody was chosen."""
        n_chosen = int(self.chosen.sum())
        return self.n_completed / n_chosen if n_chosen else float("nan")

    @property
    def fairness(self) -> float:
        """Jain's index of how often clients were chosen while they could be; NaN without any."""
        there = self.free > 0
        if not self.chosen.any():
            return float("nan")
        return jain_of_counts(self.chosen[there] / self.free[there])

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        for name in _PER_CLIENT:
            more = n_clients - getattr(self, name).size
            if more > 0:
                setattr(self, name, np.pad(getattr(self, name), (0, more)))

    def add(self, row: Tallied) -> None:
        """Count a round."""
        self.grow(row.available.size)
        there = slice(0, row.available.size)
        self.free[there] += row.available
        self.waited[there] += row.available
        self.promised[there] += row.promise * row.available
        np.add.at(self.chosen, row.clients, 1)  # a merged client may be there twice
        self.waited[row.clients] = 0
        failed = np.isin(row.status, FAILING)
        np.add.at(self.failures, row.clients[failed], 1)
        completed = row.status == Status.COMPLETED
        self.failures[row.clients[completed]] = 0
        self.n_completed += int(np.count_nonzero(completed))

    def ages(self, clients: IntArray, shares: tuple[float, ...]) -> FloatArray:
        """Return quantiles of the rounds that some clients have waited; 0 if there are none."""
        if not clients.size:
            return np.zeros(len(shares))
        return np.quantile(self.waited[clients], shares, method="higher").astype(np.float64)

    def state(self) -> dict[str, Array]:
        """Return the counts."""
        return {name: getattr(self, name) for name in _PER_CLIENT} | {
            "n_completed": np.array(self.n_completed)
        }

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Go back to saved counts of so many clients, or raise ``StateFileError``."""
        for name in _PER_CLIENT:
            saved, kind = state[name], getattr(self, name).dtype
            if saved.dtype != kind or saved.ndim != 1 or saved.size > n_clients:
                raise StateFileError(f"{name} must be {kind} of {n_clients} clients.")
            NOT_NEGATIVE.check(name, saved)
            setattr(self, name, np.array(saved))
        self.n_completed = int(state["n_completed"])
        self.grow(n_clients)

    @classmethod
    def of_run(cls, run: Run, selector: Selector) -> Tally:
        """Return the tally of recorded rounds, for a checkpoint that has none."""
        tally = cls()
        tally.grow(run.n_clients)
        if not run.knows_available:  # an older file does not say who could be chosen
            return tally
        for t in range(run.n_rounds):
            clients = run.chosen_in(t)
            at = slice(run.offsets[t], run.offsets[t + 1])
            chance, available = run.probability[at], run.available_in(t)
            known = None if np.isnan(chance).any() else chance
            promise = promised_chance(selector, t, available, clients, known)
            tally.add(Tallied(clients, run.status[at], available, promise))
        return tally


_PER_CLIENT = ("free", "chosen", "waited", "failures", "promised")


def promised_chance(
    selector: Selector,
    round: int,
    available: BoolArray,
    clients: IntArray,
    probability: FloatArray | None,
) -> float:
    """Return the chance that a selector promised to everyone who could be chosen in a round.

    It is the larger one of ``guaranteed_rate`` and ``promised_share`` of the fair share. A round
    whose chosen all had the fair share as their chance was a draw by equal chances, and promised
    just that.

    Args:
        selector: Who chose.
        round: The round, counted from 0.
        available: (n,) who could be chosen.
        clients: (s,) who was.
        probability: (s,) their chances; None if they are not known.
    """
    n_free = int(np.count_nonzero(available))
    if not n_free:
        return 0.0
    share = min(1.0, clients.size / n_free)
    is_equal = (
        probability is not None
        and clients.size > 0
        and bool(np.all(np.abs(probability - share) <= _EQUAL))
    )
    promised = 1.0 if is_equal else selector.promised_share(round)
    rate = selector.guaranteed_rate() or 0.0
    return min(1.0, max(promised * share, rate))
