"""The columns of a run: their names and types, and how they are collected round by round."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from turnout.types import Array, BoolArray, FloatArray, IntArray, Status

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
#: Who was available: the bits of all rounds one after the other, and (T + 1,) where each starts. A
#: round without bits had the first ``n_available`` clients. Older folders have neither.
AVAILABLE_BITS, AVAILABLE_AT = "available_bits", "available_at"
#: How the names of measured columns begin in a file; one entry per round, NaN = not measured.
MEASURED = "measured."

_STATUSES = tuple(status.name.lower() for status in Status)
_NOTHING: Mapping[str, float] = MappingProxyType({})


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
    """

    clients: IntArray
    status: Array
    duration: FloatArray
    spent: FloatArray
    probability: FloatArray | None
    length_s: float
    available: BoolArray
    measured: Mapping[str, float] = _NOTHING


class Collector:
    """The rounds of a run in columns that grow; simulations, experiments and Flower all use it."""

    def __init__(self) -> None:
        self._columns = {name: _Growing(kind) for name, kind in {**PER_CHOICE, **PER_ROUND}.items()}
        self._offsets = _Growing(np.int64)
        self._offsets.extend(np.zeros(1))
        self._available, self._available_at = _Growing(np.uint8), _Growing(np.int64)
        self._available_at.extend(np.zeros(1))
        self._knows_available = True
        #: By round, what was measured in it; an entry may be replaced when more is known.
        self.measured: list[Mapping[str, float]] = []

    @property
    def n_rounds(self) -> int:
        """Rounds collected so far."""
        return len(self.measured)

    def add(self, row: RoundRow) -> None:
        """Add a round.

        Args:
            row: What is recorded of it.

        """
        chance = row.probability
        columns = self._columns
        for name in ("clients", "status", "duration", "spent"):
            columns[name].extend(getattr(row, name))
        unknown = np.full(row.clients.size, np.nan)
        columns["probability"].extend(unknown if chance is None else chance)
        columns["length_s"].append(row.length_s)
        n_available = int(np.count_nonzero(row.available))
        columns["n_available"].append(n_available)
        if not row.available[:n_available].all():
            self._available.extend(np.packbits(row.available))
        self._available_at.append(self._available.size)
        self._offsets.append(columns["clients"].size)
        self.measured.append(row.measured)

    def columns(self) -> dict[str, Array]:
        """Return all columns under their names in ``selections.npz``."""
        columns = {name: column.values for name, column in self._columns.items()}
        measured = _measured_columns(self.measured)
        columns["offsets"] = self._offsets.values
        if self._knows_available:
            columns[AVAILABLE_BITS] = self._available.values
            columns[AVAILABLE_AT] = self._available_at.values
        return columns | {f"{MEASURED}{name}": values for name, values in measured.items()}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> Self:
        """Return a collector that goes on behind saved rounds.

        Args:
            columns: What ``columns()`` returned, or ``selections.npz`` holds.

        Raises:
            KeyError: If a column is missing.

        """
        collector = cls()
        for name, column in collector._columns.items():
            column.extend(columns[name])
        collector._offsets.extend(columns["offsets"][1:])
        collector._knows_available = AVAILABLE_BITS in columns
        if collector._knows_available:
            collector._available.extend(columns[AVAILABLE_BITS])
            collector._available_at.extend(columns[AVAILABLE_AT][1:])
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
        offsets = self._offsets.values
        return self._columns["clients"].values[offsets[round] : offsets[round + 1]]

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
        offsets = self._offsets.values[start : stop + 1]
        sizes = np.diff(offsets)
        chosen = slice(offsets[0], offsets[-1])
        status, spent = (self._columns[name].values[chosen] for name in ("status", "spent"))
        rows = np.repeat(np.arange(n_rounds), sizes)  # the round of each choice
        counts = np.bincount(rows * len(_STATUSES) + status, minlength=n_rounds * len(_STATUSES))
        lost = np.where(status == Status.COMPLETED, 0.0, spent)
        columns = {
            "round": np.arange(start, stop),
            "available": self._columns["n_available"].values[start:stop],
            "chosen": sizes,
            **dict(zip(_STATUSES, counts.reshape(n_rounds, len(_STATUSES)).T, strict=True)),
            "length_s": self._columns["length_s"].values[start:stop],
            "wasted_s": np.bincount(rows, lost, minlength=n_rounds),
            **more,
        }
        rounds = [
            dict(zip(columns, values, strict=True))
            for values in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
        return [
            json.dumps(fixed | _without_nan(measured) | fixed, allow_nan=False)
            for fixed, measured in zip(rounds, self.measured[start:stop], strict=True)
        ]


def measured_of(columns: Mapping[str, Array]) -> dict[str, FloatArray]:
    """Return the measured columns under their own names.

    Args:
        columns: Columns as they stand in ``selections.npz``.

    """
    return {
        name.removeprefix(MEASURED): values
        for name, values in columns.items()
        if name.startswith(MEASURED)
    }


class _Growing:
    """A column that grows at its end; what it returned earlier does not change."""

    def __init__(self, kind: type) -> None:
        self.size = 0
        self._room: Array = np.zeros(64, kind)

    @property
    def values(self) -> Array:
        return self._room[: self.size]

    def append(self, value: float) -> None:
        self._reserve(self.size + 1)
        self._room[self.size] = value
        self.size += 1

    def extend(self, values: Array) -> None:
        size = self.size + values.size
        self._reserve(size)
        self._room[self.size : size] = values
        self.size = size

    def _reserve(self, size: int) -> None:
        if size > self._room.size:
            room = np.zeros(max(size, 2 * self._room.size), self._room.dtype)
            room[: self.size] = self.values
            self._room = room


def _measured_columns(measured: Sequence[Mapping[str, float]]) -> dict[str, FloatArray]:
    names = dict.fromkeys(name for by_name in measured for name in by_name)
    return {name: np.array([by_name.get(name, np.nan) for by_name in measured]) for name in names}


def _without_nan(measured: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in measured.items()}
