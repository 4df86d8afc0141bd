"""A whole run in columns, with the metrics a notebook asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from turnout import metrics
from turnout.errors import InvalidInput
from turnout.notebook import lines_with_curves
from turnout.runs.columns import AVAILABLE_AT, AVAILABLE_BITS, PER_CHOICE, PER_ROUND, measured_of
from turnout.types import Array, BoolArray, FloatArray, IntArray, Status


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run in columns: round t holds entries ``offsets[t] .. offsets[t + 1] - 1``.

    Attributes:
        n_clients: Size of the federation.
        cohort_size: Answers wanted per round.
        offsets: (T + 1,) where each round starts.
        clients: (choices,) the chosen of all rounds, one after the other.
        status: (choices,) int8 of ``Status``.
        duration: (choices,) seconds, NaN = unknown to the server.
        spent: (choices,) seconds that the device worked.
        probability: (choices,) inclusion probability as reported, NaN = none.
        length_s: (T,) seconds per round.
        n_available: (T,) available clients per round.
        in_time: (T, n) who would have succeeded, if it was kept.
        measured: (T,) each: accuracy, loss, ... after the round, NaN = not measured; empty without
            training.
        available_bits: Who was available, by rounds, for ``available_in``; None = not recorded.
        available_at: (T + 1,) where the bits of each round start.
    """

    n_clients: int
    cohort_size: int
    offsets: IntArray
    clients: IntArray
    status: Array
    duration: FloatArray
    spent: FloatArray
    probability: FloatArray
    length_s: FloatArray
    n_available: IntArray
    in_time: BoolArray | None = None
    measured: Mapping[str, FloatArray] = field(default_factory=dict)
    available_bits: Array | None = None
    available_at: IntArray | None = None

    @classmethod
    def from_columns(
        cls,
        n_clients: int,
        cohort_size: int,
        columns: Mapping[str, Array],
        in_time: BoolArray | None = None,
    ) -> Self:
        """Return the run that columns of ``selections.npz`` hold; further columns are left out.

        Args:
            n_clients: Size of the federation.
            cohort_size: Answers wanted per round.
            columns: The columns by name.
            in_time: (T, n) who would have succeeded in each round, if it was kept.

        Raises:
            KeyError: If a column is missing.

        """
        own: dict[str, Any] = {name: columns[name] for name in (*PER_CHOICE, *PER_ROUND)}
        own |= {"offsets": columns["offsets"], "measured": measured_of(columns)}
        own |= {name: columns.get(name) for name in (AVAILABLE_BITS, AVAILABLE_AT)}
        return cls(n_clients, cohort_size, **own, in_time=in_time)

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

    @property
    def knows_available(self) -> bool:
        """Whether ``available_in`` has an answer for every round."""
        return self.available_bits is not None or bool((self.n_available == self.n_clients).all())

    def available_in(self, round: int) -> BoolArray:
        """Return (n,) who was available in a round of this run, counted from its first.

        Raises:
            InvalidInput: Not everyone was, and the record does not say who.
        """
        n_available = int(self.n_available[round])
        if self.available_bits is not None and self.available_at is not None:
            begin, end = self.available_at[round : round + 2]
            if end > begin:
                bits = np.unpackbits(self.available_bits[begin:end])[: self.n_clients]
                return np.pad(bits, (0, self.n_clients - bits.size)).astype(np.bool_)
        elif n_available != self.n_clients:
            raise InvalidInput(
                f"available clients were not recorded: {n_available} of {self.n_clients} were in "
                f"round {round}, and an older turnout did not keep who. Run it again."
            )
        return np.arange(self.n_clients) < n_available

    def first(self, n_rounds: int) -> Self:
        """Return the first rounds of this run.

        Args:
            n_rounds: Rounds to keep.
        """
        offsets = self.offsets[: n_rounds + 1]
        choices: dict[str, Any] = {name: getattr(self, name)[: offsets[-1]] for name in PER_CHOICE}
        rounds: dict[str, Any] = {name: getattr(self, name)[:n_rounds] for name in PER_ROUND}
        return dataclasses.replace(
            self,
            offsets=offsets,
            **choices,
            **rounds,
            in_time=None if self.in_time is None else self.in_time[:n_rounds],
            available_at=None if self.available_at is None else self.available_at[: n_rounds + 1],
            measured={name: values[:n_rounds] for name, values in self.measured.items()},
        )

    @property
    def curve(self) -> tuple[str, FloatArray]:
        """What a small picture of it shows: the accuracy if it trained, else the success so far."""
        if "accuracy" in self.measured:
            return "accuracy", self.accuracy
        return "success so far", self.cep / np.maximum(self.offsets[1:], 1)

    def __repr__(self) -> str:
        """Return the run in a few lines."""
        lines = [
            f"Run: {self.n_rounds:,} rounds, {self.cohort_size:,} of {self.n_clients:,} clients",
            f"  success ratio {self.success_ratio:.4f}, {self.length_s.sum():,.0f} s virtual time",
        ]
        for name, values in self.measured.items():
            known = values[np.isfinite(values)]
            if known.size:
                lines.append(f"  {name} {known[-1]:.4f}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return lines_with_curves(repr(self), dict([self.curve]))

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
            raise InvalidInput(f"{name} was not measured: train with turnout.train(...).")
        return self.measured[name]
