"""A whole run in columns, with the metrics a notebook asks for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from turnout.core.errors import InvalidInput
from turnout.core.participation import CHANCE_BOUND
from turnout.core.plain import below, finite
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, Selection, Status
from turnout.results import metrics

# --------------------------------------------------------------------------------------------------
# The columns of a run: their names and types, and how they are collected round by round.
# --------------------------------------------------------------------------------------------------

#: Columns with one entry per chosen client, the rounds one after the other.
PER_CHOICE: Mapping[str, type] = {
    "clients": np.int64,
    "status": np.int8,
    "duration": np.float64,
    "spent": np.float64,
    "probability": np.float64,
}
#: Columns with one entry per round.
PER_ROUND: Mapping[str, type] = {"length_s": np.float64, "n_available": np.int64}
#: The available clients: the bits of all rounds one after the other, and (T + 1,) where each round
#: starts. A round without bits had the first ``n_available`` clients. Older folders have neither.
AVAILABLE_BITS, AVAILABLE_AT = "available_bits", "available_at"
#: How the names of measured columns begin in a file; one entry per round, NaN = not measured.
MEASURED = "measured."
#: How those of reported columns begin; one entry per choice, NaN = not reported. Runs whose clients
#: reported nothing have none.
REPORTED = "reported."

#: The losses among them; the others are ``num_samples``.
LOSSES = ("loss", "loss_rms")

#: More columns with one entry per choice, and per round, where rounds overlap.
OVERLAP_PER_CHOICE: Mapping[str, type] = {
    "choice": np.int64,
    "staleness": np.int64,
    "began_s": np.float64,
}
OVERLAP_PER_ROUND: Mapping[str, type] = {"busy_s": np.float64}
_OVERLAP: Mapping[str, type] = {**OVERLAP_PER_CHOICE, **OVERLAP_PER_ROUND}

#: All columns that are collected, in the order of ``selections.npz``.
_COLLECTED: Mapping[str, type] = {
    **PER_CHOICE,
    **PER_ROUND,
    "offsets": np.int64,
    AVAILABLE_BITS: np.uint8,
    AVAILABLE_AT: np.int64,
}

#: Names of the statuses, by their number.
STATUSES = tuple(status.name.lower() for status in Status)
_NOTHING: Mapping[str, float] = MappingProxyType({})
_NO_REPORTS: Mapping[str, FloatArray] = MappingProxyType({})


class Overlap(NamedTuple):
    """What is recorded of a round in addition, where rounds overlap.

    Attributes:
        choice: (s,) the number of the choice that gave each client its work.
        staleness: (s,) aggregations between the model that it got and this round's.
        began_s: (s,) when it got its work, on the virtual clock.
        busy_s: Seconds that places were busy in this round, all places together.
    """

    choice: IntArray
    staleness: IntArray
    began_s: FloatArray
    busy_s: float


class RoundRow(NamedTuple):
    """One round as it is recorded.

    Attributes:
        clients: (s,) the chosen.
        status: (s,) int8 of ``Status``.
        duration: (s,) seconds, NaN = unknown to the server.
        spent: (s,) seconds that the device worked.
        probability: (s,) inclusion probability as reported.
        length_s: Seconds that the round took.
        available: (n,) who could be chosen.
        measured: accuracy, loss, ... after the round; empty without training.
        reported: (s,) each: losses and num_samples of the chosen, NaN = not reported; or (s, d)
            where vectors are kept.
        overlap: More about those whose work ended in the round; None if rounds do not overlap.
    """

    clients: IntArray
    status: Array
    duration: FloatArray
    spent: FloatArray
    probability: FloatArray | None
    length_s: float
    available: BoolArray
    measured: Mapping[str, float] = _NOTHING
    reported: Mapping[str, FloatArray] = _NO_REPORTS
    overlap: Overlap | None = None


def chance_bound(selection: Selection) -> dict[str, float]:
    """Return what is recorded of a selection under limits; nothing if chances are unknown.

    Args:
        selection: The selection.
    """
    memo = selection.memo
    return {CHANCE_BOUND: float(memo[CHANCE_BOUND])} if CHANCE_BOUND in memo else {}


class Collector:
    """The rounds of a run in columns that grow; simulations, experiments and Flower all use it."""

    def __init__(self) -> None:
        self._columns = {name: _Growing(kind) for name, kind in _COLLECTED.items()}
        for starts in ("offsets", AVAILABLE_AT):
            self._columns[starts].append(0)
        #: By round, what was measured in it; an entry may be replaced when more is known.
        self.measured: list[Mapping[str, float]] = []
        self._reported: dict[str, _Growing] = {}

    @property
    def n_rounds(self) -> int:
        """Rounds collected so far."""
        return len(self.measured)

    def add(self, row: RoundRow) -> None:
        """Add a round.

        Args:
            row: What is recorded of it.

        """
        columns = self._columns
        unknown = np.full(row.clients.size, np.nan)
        n_chosen = row.clients.size
        for name in PER_CHOICE:
            values = getattr(row, name)
            columns[name].extend(unknown if values is None else values)
        n_choices = columns["clients"].size
        for name in row.reported.keys() - self._reported.keys():
            shape = row.reported[name].shape[1:]
            self._reported[name] = _Growing(np.float64, shape)
            self._reported[name].extend(np.full((n_choices - n_chosen, *shape), np.nan))
        for name, column in self._reported.items():
            values = row.reported.get(name)
            column.extend(np.full((n_chosen, *column.shape), np.nan) if values is None else values)
        n_available = int(np.count_nonzero(row.available))
        if row.overlap is not None:
            for name, kind in _OVERLAP.items():
                column = columns.setdefault(name, _Growing(kind))
                column.extend(np.atleast_1d(getattr(row.overlap, name)))
        columns["length_s"].append(row.length_s)
        columns["n_available"].append(n_available)
        columns["offsets"].append(columns["clients"].size)
        if AVAILABLE_BITS in columns:
            if not row.available[:n_available].all():
                columns[AVAILABLE_BITS].extend(np.packbits(row.available))
            columns[AVAILABLE_AT].append(columns[AVAILABLE_BITS].size)
        self.measured.append(row.measured)

    def columns(self) -> dict[str, Array]:
        """Return all columns under their names in ``selections.npz``."""
        columns = {name: column.values for name, column in self._columns.items()}
        for name in dict.fromkeys(name for by_name in self.measured for name in by_name):
            values = [by_name.get(name, np.nan) for by_name in self.measured]
            columns[f"{MEASURED}{name}"] = np.array(values)
        reported = {name: self._reported[name].values for name in sorted(self._reported)}
        return columns | {f"{REPORTED}{name}": values for name, values in reported.items()}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> Self:
        """Return a collector that continues after saved rounds.

        Args:
            columns: What ``columns()`` returned, or ``selections.npz`` holds.

        Raises:
            KeyError: If a column is missing.

        """
        collector = cls()
        if AVAILABLE_BITS not in columns:  # an older turnout wrote them
            del collector._columns[AVAILABLE_BITS], collector._columns[AVAILABLE_AT]
        collector._columns |= {
            name: _Growing(kind) for name, kind in _OVERLAP.items() if name in columns
        }
        for name, column in collector._columns.items():
            column.extend(columns[name][column.size :])
        for name, values in below(REPORTED, columns).items():
            collector._reported[name] = _Growing(np.float64, values.shape[1:])
            collector._reported[name].extend(values)
        measured = measured_of(columns)
        collector.measured = [
            {name: float(values[t]) for name, values in measured.items() if values[t] == values[t]}
            for t in range(columns["offsets"].size - 1)
        ]
        return collector

    def clients_of(self, round: int) -> IntArray:
        """Return who was chosen in a round.

        Args:
            round: The round, counted from 0.

        """
        return self.part("clients", round)

    def n_last_below(self, n_completed: int) -> int:
        """Return how many consecutive rounds, up to the last, had fewer answers in time.

        Args:
            n_completed: Fewer than these.

        """
        for t in reversed(range(self.n_rounds)):
            if np.count_nonzero(self.part("status", t) == Status.COMPLETED) >= n_completed:
                return self.n_rounds - 1 - t
        return self.n_rounds

    def part(self, name: str, round: int) -> Array:
        """Return a column of the choices of one round.

        Args:
            name: The column, such as ``status``.
            round: The round, counted from 0.

        """
        start, stop = self._columns["offsets"].values[round : round + 2]
        return self._columns[name].values[start:stop]

    def lines(
        self, start: int, stop: int, more: Mapping[str, Array] = MappingProxyType({})
    ) -> list[str]:
        """Return the rounds ``start`` .. ``stop - 1`` as JSON lines of ``rounds.jsonl``.

        Args:
            start: The first round.
            stop: The round behind the last one.
            more: Further columns of these rounds, one entry each.

        """
        n_rounds = stop - start
        offsets = self._columns["offsets"].values[start : stop + 1]
        sizes = np.diff(offsets)
        chosen = slice(offsets[0], offsets[-1])
        status, spent = (self._columns[name].values[chosen] for name in ("status", "spent"))
        rows = np.repeat(np.arange(n_rounds), sizes)  # the round of each choice
        counts = np.bincount(rows * len(STATUSES) + status, minlength=n_rounds * len(STATUSES))
        lost = np.where(status == Status.COMPLETED, 0.0, spent)
        columns = {
            "round": np.arange(start, stop),
            "available": self._columns["n_available"].values[start:stop],
            "chosen": sizes,
            **dict(zip(STATUSES, counts.reshape(n_rounds, len(STATUSES)).T, strict=True)),
            "length_s": self._columns["length_s"].values[start:stop],
            "wasted_s": np.bincount(rows, lost, minlength=n_rounds),
            **more,
        }
        if "staleness" in self._columns:
            stale = self._columns["staleness"].values[chosen] * (status == Status.COMPLETED)
            answers = np.maximum(columns["completed"], 1)
            columns["staleness"] = np.bincount(rows, stale, minlength=n_rounds) / answers
            length_s = columns["length_s"]
            busy_s = self._columns["busy_s"].values[start:stop]
            columns["at_work"] = np.divide(
                busy_s, length_s, out=np.zeros(n_rounds), where=length_s > 0.0
            )
        rounds = [
            dict(zip(columns, values, strict=True))
            for values in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
        return [
            json.dumps(fixed | finite(measured) | fixed, allow_nan=False)
            for fixed, measured in zip(rounds, self.measured[start:stop], strict=True)
        ]


def measured_of(columns: Mapping[str, Array]) -> dict[str, FloatArray]:
    """Return the measured columns under their own names.

    Args:
        columns: Columns as they stand in ``selections.npz``.

    """
    return below(MEASURED, columns)


class _Growing:
    """A column that grows at its end; what it returned earlier does not change."""

    def __init__(self, kind: type, shape: tuple[int, ...] = ()) -> None:
        self.size = 0
        self.shape = shape  # of an entry
        self._room: Array = np.zeros((64, *shape), kind)

    @property
    def values(self) -> Array:
        return self._room[: self.size]

    def append(self, value: float) -> None:
        self._reserve(self.size + 1)
        self._room[self.size] = value
        self.size += 1

    def extend(self, values: Array) -> None:
        size = self.size + len(values)
        self._reserve(size)
        self._room[self.size : size] = values
        self.size = size

    def _reserve(self, size: int) -> None:
        if size > len(self._room):
            room = np.zeros((max(size, 2 * len(self._room)), *self.shape), self._room.dtype)
            room[: self.size] = self.values
            self._room = room


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
        available_bits: The available clients, by rounds, for ``available_in``; None = not recorded.
        available_at: (T + 1,) where the bits of each round start.
        choice: (choices,) where rounds overlap: the number of the choice that gave the work; None
            in synchronous rounds, as the others.
        staleness: (choices,) aggregations between the model that a client got and the round's.
        began_s: (choices,) when it got its work, on the virtual clock.
        busy_s: (T,) seconds that places were busy in each round, all places together.
        reported: (choices,) each: losses and num_samples of the chosen, NaN = not reported; and
            (choices, d) where vectors are kept.
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
    choice: IntArray | None = None
    staleness: IntArray | None = None
    began_s: FloatArray | None = None
    busy_s: FloatArray | None = None
    reported: Mapping[str, FloatArray] = field(default_factory=dict)

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
        own["reported"] = below(REPORTED, columns)
        own |= {name: columns.get(name) for name in (AVAILABLE_BITS, AVAILABLE_AT, *_OVERLAP)}
        return cls(n_clients, cohort_size, **own, in_time=in_time)

    @property
    def n_rounds(self) -> int:
        """T."""
        return self.offsets.size - 1

    @property
    def overlaps(self) -> bool:
        """Whether rounds overlap: a client may work on when a round ends."""
        return self.staleness is not None

    @property
    def stale(self) -> IntArray:
        """The staleness of every answer that counted; empty if rounds do not overlap."""
        if self.staleness is None:
            return np.zeros(0, dtype=np.int64)
        return self.staleness[self.completed]

    @property
    def concurrency(self) -> float:
        """Mean number of clients at work where rounds overlap; NaN otherwise."""
        length_s = float(self.length_s.sum())
        if self.busy_s is None or length_s <= 0.0:
            return np.nan
        return float(self.busy_s.sum()) / length_s

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
                f"round {round}, and an older turnout did not record which. Run it again."
            )
        return np.arange(self.n_clients) < n_available

    def first(self, n_rounds: int) -> Self:
        """Return the first rounds of this run.

        Args:
            n_rounds: Rounds to keep.
        """
        offsets = self.offsets[: n_rounds + 1]
        per_choice, per_round = [*PER_CHOICE], [*PER_ROUND]
        if self.overlaps:
            per_choice, per_round = (
                [*per_choice, *OVERLAP_PER_CHOICE],
                [*per_round, *OVERLAP_PER_ROUND],
            )
        choices: dict[str, Any] = {name: getattr(self, name)[: offsets[-1]] for name in per_choice}
        rounds: dict[str, Any] = {name: getattr(self, name)[:n_rounds] for name in per_round}
        return dataclasses.replace(
            self,
            offsets=offsets,
            **choices,
            **rounds,
            in_time=None if self.in_time is None else self.in_time[:n_rounds],
            available_at=None if self.available_at is None else self.available_at[: n_rounds + 1],
            measured={name: values[:n_rounds] for name, values in self.measured.items()},
            reported={name: values[: offsets[-1]] for name, values in self.reported.items()},
        )

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
