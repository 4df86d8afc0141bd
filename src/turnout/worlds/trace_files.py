"""The user's own traces of availability, computing speed and bandwidth.

Files are CSV tables, or FedScale's ``client_behave_trace`` and ``client_device_capacity``. Those
are pickles; they are read without running code from them.
"""

from __future__ import annotations

import csv
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from turnout.core.domains import CheckedFields, Flag, Positive, own_path
from turnout.core.errors import InvalidInput
from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.worlds.base import Availability, Moment, WorldStream, fixed_rng, frozen
from turnout.worlds.devices import Devices

#: FedScale has kilobits per second.
_KBIT_PER_MBIT = 1000.0


#: The path of a file of the user's own.
OwnPath = Annotated[str, own_path("mine.csv")]


@dataclass(frozen=True, slots=True)
class AvailabilityFile(CheckedFields, Availability):
    """Your own record of who was there: path=sessions.csv with client, start, end.

    A line says that a client was there from one second to another; it may have many lines. The
    record repeats when its last session ends. A file of another name than .csv is FedScale's
    ``client_behave_trace``.

    Args:
        path: The file. It must be set.
        round_s: Seconds of the record that pass per round.
        shuffle: Whether the seed draws which record a client replays. Otherwise client i replays
            the i-th in the file, and they repeat if there are more clients.
    """

    path: OwnPath = ""
    round_s: Positive = 600.0
    shuffle: Flag = False

    def available(self, moment: Moment) -> BoolArray:
        """Look up which clients have a session at the time of the round."""
        start, end, period, span = _sessions(Path(self.path), edition_of(self.path))
        record = _records(period.size, self.shuffle, moment.n_clients, moment.seed)
        at = record * span + moment.round * self.round_s % period[record]
        latest = np.searchsorted(start, at, side="right") - 1
        return (latest >= 0) & (at < np.take(end, latest))


@dataclass(frozen=True, slots=True)
class DeviceFile(CheckedFields, Devices):
    """Your own devices: path=devices.csv with speed and bandwidth in Mbit/s, one in each line.

    Speeds may have any unit: they count relative to the median device. A file of another name than
    .csv is FedScale's ``client_device_capacity``.

    Args:
        path: The file. It must be set.
        shuffle: Whether the seed draws which device a client has. Otherwise client i has the i-th
            in the file, and they repeat if there are more clients.
    """

    path: OwnPath = ""
    shuffle: Flag = False

    def speed(self, n_clients: int, seed: int) -> FloatArray:
        """Return the speed of each client's device."""
        return self._devices(n_clients, seed)[:, 0]

    def expected_s_per_mbit(self, n_clients: int, seed: int) -> FloatArray:
        """Return the transfer time, which is the same in every round."""
        return 1.0 / self._devices(n_clients, seed)[:, 1]

    def s_per_mbit(self, moment: Moment) -> FloatArray:
        """Return the transfer time, which is the same in every round."""
        return self.expected_s_per_mbit(moment.n_clients, moment.seed)

    def _devices(self, n_clients: int, seed: int) -> FloatArray:
        devices = _devices(Path(self.path), edition_of(self.path))
        records = _records(len(devices), self.shuffle, n_clients, seed)
        return np.take(devices, records, axis=0)


@lru_cache(maxsize=4)
def _records(n_records: int, shuffle: bool, n_clients: int, seed: int) -> IntArray:
    """Return the record of each client."""
    order = np.arange(n_records)
    if shuffle:
        order = fixed_rng(seed, WorldStream.AVAILABILITY).permutation(n_records)
    return frozen(np.resize(order, n_clients))


def edition_of(path: str) -> tuple[int, int]:
    """Return what changes with a file, so that an edited one is read again.

    Args:
        path: The file; it need not exist.
    """
    try:
        state = os.stat(path)
    except OSError:
        return 0, 0  # the reader reports what is wrong
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=4)
def _sessions(
    path: Path, edition: tuple[int, int]
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return when each record is there, the period after which it repeats, and a span.

    Starts and ends are in seconds, the sessions of one record after those of the other. They are
    moved by the span, which is longer than any record, from record to record, and so ascend.
    """
    record, start, end, period = _session_rows(path)
    if (end < start).any() or (start < 0.0).any() or (period <= 0.0).any():
        raise InvalidInput(f"{path}: every session must have 0 <= start <= end, in seconds.")
    span = float(max(period.max(), end.max())) + 1.0
    order = np.lexsort((start, record))
    shift = record[order] * span
    ends = np.maximum.accumulate(end[order] + shift)  # sessions of a client may overlap
    return frozen(start[order] + shift), frozen(ends), frozen(period), span


def _session_rows(path: Path) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return record, start and end of each session, and the period of each record."""
    if path.suffix == ".csv":
        table = _columns(path, "client", "start", "end")
        number = {name: place for place, name in enumerate(dict.fromkeys(table["client"]))}
        record = np.array([number[name] for name in table["client"]])
        start, end = _numbers(path, table, "start"), _numbers(path, table, "end")
        return record, start, end, np.full(len(number), end.max())
    traces = _pickled(path, "client_behave_trace", "active", "inactive", "finish_time")
    pairs = [list(zip(trace["active"], trace["inactive"], strict=False)) for trace in traces]
    record = np.repeat(np.arange(len(traces)), [len(sessions) for sessions in pairs])
    rows = np.array(list(chain(*pairs)), dtype=np.float64).reshape(-1, 2)
    is_whole = rows[:, 1] >= rows[:, 0]
    period = np.array([trace["finish_time"] for trace in traces], dtype=np.float64)
    return record[is_whole], rows[is_whole, 0], rows[is_whole, 1], period


@lru_cache(maxsize=4)
def _devices(path: Path, edition: tuple[int, int]) -> FloatArray:
    """Return (devices, 2): speed relative to the median, bandwidth in Mbit/s."""
    if path.suffix == ".csv":
        table = _columns(path, "speed", "bandwidth")
        speed, mbps = (_numbers(path, table, name) for name in table)
    else:
        rows = _pickled(path, "client_device_capacity", "computation", "communication")
        speed = 1.0 / np.array([row["computation"] for row in rows], dtype=np.float64)
        mbps = np.array([row["communication"] for row in rows], dtype=np.float64) / _KBIT_PER_MBIT
    if not ((speed > 0.0) & (mbps > 0.0) & np.isfinite(speed)).all():
        raise InvalidInput(f"{path}: speed and bandwidth must be above 0.")
    return frozen(np.stack((speed / np.median(speed), mbps), axis=1))


def _columns(path: Path, *names: str) -> dict[str, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"path {path} cannot be read: {error}.", field="path") from error
    if not rows or any(row.get(name) is None for row in rows for name in names):
        raise InvalidInput(
            f"path {path} must be a table with the headings {', '.join(names)} and a value of each "
            "in every line.",
            field="path",
        )
    return {name: [row[name] for row in rows] for name in names}


def _numbers(path: Path, table: Mapping[str, list[str]], name: str) -> FloatArray:
    try:
        return np.array([float(text) for text in table[name]])
    except ValueError as error:
        raise InvalidInput(f"{path}: column {name} must hold numbers: {error}.") from error


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and tables; refuses everything that would run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _pickled(path: Path, what: str, *keys: str) -> list[Mapping[str, Any]]:
    try:
        with path.open("rb") as file:
            table = _PlainUnpickler(file).load()
        rows = list(table.values())
        if not rows or any(key not in row for row in rows for key in keys):
            raise ValueError(f"an entry lacks {' or '.join(keys)}")
    except Exception as error:  # a damaged pickle raises almost anything
        raise InvalidInput(
            f"path {path} must be a .csv table or FedScale's {what}: {error}.", field="path"
        ) from error
    return rows
