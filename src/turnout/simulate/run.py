"""A whole run in columns, with the metrics a notebook asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from turnout import metrics
from turnout.environments import Environment
from turnout.errors import InvalidInput
from turnout.policies import RoundPolicy
from turnout.registry import make
from turnout.selector import Selector
from turnout.simulate.loop import RoundRecord, rounds
from turnout.types import Array, BoolArray, FloatArray, IntArray, Status

__all__ = ["Run", "simulate"]


@dataclass(frozen=True, slots=True)
class Run:
    """A run in columns: round t holds entries ``offsets[t] .. offsets[t + 1] - 1``."""

    n_clients: int
    cohort_size: int  #: answers wanted per round
    offsets: IntArray  #: (T + 1,)
    clients: IntArray  #: (choices,) the chosen of all rounds, one after the other
    status: Array  #: (choices,) int8 of Status
    duration: FloatArray  #: (choices,) seconds, NaN = unknown to the server
    spent: FloatArray  #: (choices,) seconds that the device worked
    probability: FloatArray  #: (choices,) inclusion probability as reported, NaN = none
    length_s: FloatArray  #: (T,) seconds per round
    n_available: IntArray  #: (T,)
    in_time: BoolArray | None = None  #: (T, n) who would have succeeded, if kept
    #: (T,) each: what training came to, NaN where it was not measured; empty without training
    measured: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def from_records(
        cls,
        records: Iterable[RoundRecord],
        n_clients: int,
        cohort_size: int,
        *,
        keep_fates: bool = False,
    ) -> Self:
        """Collect records; ``keep_fates`` also keeps everyone's fate, n bytes a round."""
        columns: dict[str, list[Any]] = {name: [] for name in (*_PER_CHOICE, *_PER_ROUND)}
        fates: list[BoolArray] = []
        measured: list[Mapping[str, float]] = []
        for record in records:
            measured.append(record.measured)
            chosen, chance = record.selection.clients, record.selection.probability
            chance = np.full(chosen.size, np.nan) if chance is None else chance
            columns["clients"].append(chosen)
            columns["status"].append(record.outcome.status)
            columns["duration"].append(record.outcome.duration)
            columns["spent"].append(record.spent)
            columns["probability"].append(chance)
            columns["length_s"].append(record.length_s)
            columns["n_available"].append(record.context.pool.size)
            if keep_fates:
                fates.append(record.in_time)
        sizes = [clients.size for clients in columns["clients"]]
        return cls(
            n_clients,
            cohort_size,
            np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))),
            in_time=np.array(fates).reshape(-1, n_clients) if keep_fates else None,
            measured=measured_columns(measured),
            **{name: _joined(columns[name], kind) for name, kind in _PER_CHOICE.items()},
            **{name: np.array(columns[name], kind) for name, kind in _PER_ROUND.items()},
        )

    @property
    def n_rounds(self) -> int:
        """T."""
        return self.offsets.size - 1

    @property
    def completed(self) -> BoolArray:
        """(choices,) who answered in time."""
        return np.equal(self.status, Status.COMPLETED)

    @property
    def success_ratio(self) -> float:
        """Share of the chosen that answered in time."""
        return metrics.success_ratio(self.completed)

    @property
    def cep(self) -> IntArray:
        """(T,) cumulative effective participation."""
        return metrics.cumulative_participation(self.completed, self.offsets)

    @property
    def counts(self) -> IntArray:
        """(n,) how often each client was chosen."""
        return metrics.selection_counts(self.clients, self.n_clients)

    @property
    def clock_s(self) -> FloatArray:
        """(T,) virtual time at the end of each round."""
        return np.cumsum(self.length_s)

    @property
    def accuracy(self) -> FloatArray:
        """(T,) accuracy on the test set after each round, NaN where it was not measured."""
        return self._learned("accuracy")

    @property
    def loss(self) -> FloatArray:
        """(T,) loss on the test set after each round, NaN where it was not measured."""
        return self._learned("loss")

    def rounds_to(self, accuracy: float) -> float:
        """Return after how many rounds an accuracy was first reached; NaN if it never was."""
        return metrics.rounds_to(self.accuracy, accuracy)

    def time_to(self, accuracy: float) -> float:
        """Return the virtual time at which an accuracy was first reached; NaN if it never was."""
        rounds = self.rounds_to(accuracy)
        return rounds if np.isnan(rounds) else float(self.clock_s[int(rounds) - 1])

    @property
    def wasted_s(self) -> float:
        """Device seconds spent by chosen clients that were not in time."""
        return metrics.wasted_time(self.status, self.spent)

    def chosen_in(self, round: int) -> IntArray:
        """Return who was chosen in a round of this run, counted from its first."""
        return self.clients[self.offsets[round] : self.offsets[round + 1]]

    def backlog(self, rate: float = 0.15) -> metrics.Backlog:
        """Return the fairness queues of RBCS-F for this record of selections."""
        return metrics.queue_backlog(self.clients, self.offsets, self.n_clients, rate)

    def regret(self, quota: npt.ArrayLike = 0.0) -> FloatArray:
        """Return (T,) the regret of the choices made; needs ``keep_fates=True``."""
        if self.in_time is None:
            raise InvalidInput("in_time was not kept: simulate with keep_fates=True.")
        played = metrics.selection_matrix(self.clients, self.offsets, self.n_clients)
        return metrics.regret(self.in_time, played, self.cohort_size, quota)

    def _learned(self, name: str) -> FloatArray:
        if name not in self.measured:
            raise InvalidInput(f"{name} was not measured: train with turnout.simulate.train(...).")
        return self.measured[name]


_PER_CHOICE: dict[str, type] = {
    "clients": np.int64,
    "status": np.int8,
    "duration": np.float64,
    "spent": np.float64,
    "probability": np.float64,
}
_PER_ROUND: dict[str, type] = {"length_s": np.float64, "n_available": np.int64}


def simulate(
    selector: Selector | str,
    environment: Environment,
    *,
    cohort_size: int,
    n_rounds: int,
    seed: int | None = None,
    policy: RoundPolicy | None = None,
    keep_fates: bool = False,
) -> Run:
    """Run a selector, or the selector of that name, from its first round and collect everything.

    >>> from turnout.environments import e3cs_world
    >>> run = simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=5)
    >>> run.n_rounds, run.clients.size
    (5, 100)
    """
    chooser = make(selector) if isinstance(selector, str) else selector
    records = rounds(
        chooser, environment, cohort_size=cohort_size, n_rounds=n_rounds, seed=seed, policy=policy
    )
    return Run.from_records(records, environment.n_clients, cohort_size, keep_fates=keep_fates)


def measured_columns(measured: Sequence[Mapping[str, float]]) -> dict[str, FloatArray]:
    """Return what was measured as (T,) columns, NaN where it was not."""
    names = dict.fromkeys(name for found in measured for name in found)
    return {name: np.array([found.get(name, np.nan) for found in measured]) for name in names}


def _joined(parts: list[Array], kind: type) -> Array:
    return np.concatenate(parts).astype(kind, copy=False) if parts else np.zeros(0, kind)
