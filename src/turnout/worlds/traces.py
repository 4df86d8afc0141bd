"""Read recorded traces into arrays. Readers keep no position, so any time can be looked up.

The data directory is an argument or the environment variable ``TURNOUT_DATA``. Files, all under
``traces/``:

``ai_benchmark_devices.csv``        column ``cpu_float_score``, one device per line
``extrasensory_phone_state.npz``    ``user``, ``timestamp`` (s), ``network`` (1 = Wi-Fi),
                                    ``charging`` (1 = yes); rows by user and time
``bandwidth_3g_and_fixed.npz``      ``trace``, ``sec``, ``mbps``
``bandwidth_5g_ucc.npz``            ``trace``, ``sec``, ``dl_kbps``, ``trace_names``
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.files import DATA_VARIABLE, UNREADABLE, DataMissing, data_directory, read_npz
from turnout.core.types import Array, BoolArray, FloatArray, IntArray
from turnout.worlds.base import frozen

MINUTES_PER_DAY = 1440
#: A phone keeps its last state over a pause in its record of up to this many minutes.
LONGEST_HELD_MINUTES = 60
#: Throughput is averaged over windows of this length, about the time of a transfer.
WINDOW_S = 60.0
#: Smallest throughput of a window; slower ones are raised to it.
LEAST_MBPS = 0.01

_DEVICES = "ai_benchmark_devices.csv"
_PHONES = "extrasensory_phone_state.npz"

_Rows = tuple[Array, FloatArray, FloatArray]  # trace, second, Mbit/s


class PhoneStates(NamedTuple):
    """Eligibility of all phones on a grid of minutes, one phone after the other.

    Attributes:
        eligible: (minutes of all phones,) whether the phone is charging and on Wi-Fi.
        offset: (phones + 1,) where each phone starts in ``eligible``.
    """

    eligible: BoolArray
    offset: IntArray


class Bandwidth(NamedTuple):
    """Throughput of all traces in windows of a minute, one trace after the other.

    Attributes:
        mbps: (windows of all traces,) megabits per second.
        offset: (traces + 1,) where each trace starts in ``mbps``.
        mean_s_per_mbit: (traces,) seconds per megabit, mean over the windows of a trace.
    """

    mbps: FloatArray
    offset: IntArray
    mean_s_per_mbit: FloatArray


def has_traces(directory: str | Path | None = None) -> bool:
    """Return whether the data directory has all device and bandwidth traces.

    Args:
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
    """
    with suppress(DataMissing):
        for name in (_DEVICES, *(file for file, _ in _NETWORKS.values())):
            _file(name, directory)
        return True
    return False


def device_speeds(directory: str | Path | None = None) -> FloatArray:
    """Return (devices,) floating-point speed relative to the median device.

    Args:
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
    """
    return _device_speeds(_file(_DEVICES, directory))


def phone_states(directory: str | Path | None = None) -> PhoneStates:
    """Return when each recorded phone was charging and on Wi-Fi.

    Pauses of whole days are cut out, which keeps the time of day. In a shorter pause a phone keeps
    its last state for an hour and is not eligible after it. Missing states count as no.

    Args:
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
    """
    return _phone_states(_file(_PHONES, directory))


def bandwidth(network: str = "3g-and-fixed", directory: str | Path | None = None) -> Bandwidth:
    """Return the throughput traces of a network.

    Args:
        network: ``3g-and-fixed``, or ``5g`` (downloads only).
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
    """
    require.choice("network", network, _NETWORKS)
    return _bandwidth(network, _file(_NETWORKS[network][0], directory))


def _file(name: str, directory: str | Path | None) -> Path:
    folder = data_directory(directory)
    fill = (
        f"Point {DATA_VARIABLE} or directory= at a data directory filled with "
        "'python prepare.py DIRECTORY traces' (see the README of the data). Without it run "
        "Always, Bernoulli or Diurnal availability and DeviceTimes(devices=FittedDevices())."
    )
    if not folder:
        raise DataMissing(f"traces/{name} is needed and {DATA_VARIABLE} is not set. {fill}")
    path = Path(folder) / "traces" / name
    if not path.is_file():
        raise DataMissing(f"{path} does not exist. {fill}")
    return path


@lru_cache(maxsize=4)
def _device_speeds(path: Path) -> FloatArray:
    with path.open(encoding="utf-8", newline="") as file:
        texts = [row.get("cpu_float_score") for row in csv.DictReader(file)]
    try:
        score = np.array([float(text) for text in texts if text])
    except ValueError as error:
        raise InvalidInput(f"{path}: cpu_float_score must be numbers: {error}.") from error
    if score.size == 0 or not (score > 0.0).all():
        raise InvalidInput(f"{path}: column cpu_float_score must hold positive scores.")
    return frozen(score / np.median(score))


@lru_cache(maxsize=4)
def _phone_states(path: Path) -> PhoneStates:
    columns = _columns(path, "user", "timestamp", "network", "charging")
    is_eligible = (columns["network"] == 1) & (columns["charging"] == 1)
    start, n_rows = _segments(columns["user"])
    minute = _minutes(columns["timestamp"].astype(np.int64), start, n_rows)
    length = minute[start + n_rows - 1] + 1
    offset = np.concatenate(([0], np.cumsum(length)))
    cell = np.repeat(offset[:-1], n_rows) + minute  # where each row lies on the grid, ascending
    newest = np.searchsorted(cell, np.arange(offset[-1]), side="right") - 1
    first_cell = np.repeat(offset[:-1], length)
    age = np.arange(offset[-1]) - cell[newest]
    is_own = (newest >= 0) & (cell[newest] >= first_cell)  # of this phone, not of the one before
    eligible = is_eligible[newest] & is_own & (age <= LONGEST_HELD_MINUTES)
    return PhoneStates(frozen(eligible), frozen(offset))


def _minutes(second: IntArray, start: IntArray, n_rows: IntArray) -> IntArray:
    """Return minutes since midnight before a phone's first row, without pauses of whole days."""
    day_s = 60 * MINUTES_PER_DAY
    pause = np.diff(second, prepend=second[:1])
    pause[start] = 0
    days = np.cumsum(pause // day_s)
    days -= np.repeat(days[start], n_rows)
    midnight = second[start] // day_s * day_s
    minute: IntArray = (second - np.repeat(midnight, n_rows)) // 60 - days * MINUTES_PER_DAY
    return minute


@lru_cache(maxsize=4)
def _bandwidth(network: str, path: Path) -> Bandwidth:
    _, rows = _NETWORKS[network]
    trace, second, mbps = rows(path)
    start, n_rows = _segments(trace)
    window = (second - np.repeat(second[start], n_rows)) // WINDOW_S
    is_first = np.diff(window, prepend=-1.0) != 0.0
    is_first[start] = True
    begin = np.flatnonzero(is_first)
    mean = np.add.reduceat(mbps, begin) / np.diff(begin, append=trace.size)
    mean = np.maximum(mean, LEAST_MBPS)
    offset = np.append(np.searchsorted(begin, start), begin.size)
    s_per_mbit = np.add.reduceat(1.0 / mean, offset[:-1]) / np.diff(offset)
    return Bandwidth(frozen(mean), frozen(offset), frozen(s_per_mbit))


def _slow_rows(path: Path) -> _Rows:
    columns = _columns(path, "trace", "sec", "mbps")
    return columns["trace"], columns["sec"].astype(np.float64), columns["mbps"].astype(np.float64)


def _fast_rows(path: Path) -> _Rows:
    """Keep the downloads, which use the whole link; other traces show what a video player asked."""
    columns = _columns(path, "trace", "sec", "dl_kbps", "trace_names")
    kept = np.char.startswith(columns["trace_names"], "Download")[columns["trace"]]
    mbps = columns["dl_kbps"][kept] / 1000.0
    return columns["trace"][kept], columns["sec"][kept].astype(np.float64), mbps


#: The file of each network, and what reads its rows.
_NETWORKS: Mapping[str, tuple[str, Callable[[Path], _Rows]]] = {
    "3g-and-fixed": ("bandwidth_3g_and_fixed.npz", _slow_rows),
    "5g": ("bandwidth_5g_ucc.npz", _fast_rows),
}


def _segments(owner: Array) -> tuple[IntArray, IntArray]:
    """Return where each owner's rows start and how many there are."""
    start = np.flatnonzero(np.diff(owner.astype(np.int64), prepend=-1))
    return start, np.diff(start, append=owner.size)


def _columns(path: Path, *names: str) -> dict[str, Array]:
    try:
        return read_npz(path, names)
    except UNREADABLE as error:
        raise InvalidInput(
            f"{path} must hold the arrays {', '.join(names)} ({type(error).__name__}: {error}); "
            "fill the data directory again."
        ) from error
