"""Times from devices: work divided by the device's speed, plus model size divided by bandwidth.

Devices are recorded ones (``TracedDevices``, needs the data directory) or drawn from log-normal
distributions fitted to the same records (``FittedDevices``, needs nothing).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from turnout.core.domains import CheckedFields, NonNegative, Positive
from turnout.core.files import data_directory
from turnout.core.types import Array, FloatArray, IntArray
from turnout.worlds.base import Moment, Timing, WorldStream, fixed_rng, frozen
from turnout.worlds.traces import bandwidth, device_speeds, has_traces

Network = Literal["3g-and-fixed", "5g"]


class _Fit(NamedTuple):
    """Normal fit to the natural logarithm of a minute's mean throughput in Mbit/s."""

    mean: float
    between: float  # standard deviation between traces
    within: float  # standard deviation inside a trace


#: Logarithm of 333 smartphones' floating-point score over its median: mean, standard deviation.
SPEED_FIT = (-0.296, 0.929)
#: 269 3G and fixed-line traces of 3,272 minutes; 21 5G/LTE downloads of 773 minutes.
BANDWIDTH_FITS: Mapping[str, _Fit] = {
    "3g-and-fixed": _Fit(0.131, 0.524, 0.427),
    "5g": _Fit(2.795, 1.089, 1.060),
}


class Devices(ABC):
    """Speed and bandwidth of clients."""

    @abstractmethod
    def speed(self, n_clients: int, seed: int) -> FloatArray:
        """Return (n,) computing speed relative to the median device."""

    @abstractmethod
    def expected_s_per_mbit(self, n_clients: int, seed: int) -> FloatArray:
        """Return (n,) the client's mean transfer time."""

    @abstractmethod
    def s_per_mbit(self, moment: Moment) -> FloatArray:
        """Return (n,) the transfer time in a round."""


@dataclass(frozen=True, slots=True)
class FittedDevices(CheckedFields, Devices):
    """Devices drawn from log-normal fits to recorded ones; needs no files.

    The logarithm of the speed has mean -0.296 and standard deviation 0.929. The logarithm of a
    client's usual bandwidth has mean 0.131 and deviation 0.524, and a round deviates from it by
    0.427 (5g: 2.795, 1.089 and 1.060). Rounds are independent of each other.

    Args:
        network: Recordings that the bandwidth was fitted to: ``3g-and-fixed`` or ``5g``.
    """

    network: Network = "3g-and-fixed"

    def speed(self, n_clients: int, seed: int) -> FloatArray:
        """Draw a device for each client."""
        return _fitted_clients(self.network, n_clients, seed)[0]

    def expected_s_per_mbit(self, n_clients: int, seed: int) -> FloatArray:
        """Return the mean of the log-normal around the client's usual value."""
        usual = _fitted_clients(self.network, n_clients, seed)[1]
        return math.exp(0.5 * BANDWIDTH_FITS[self.network].within ** 2) / usual

    def s_per_mbit(self, moment: Moment) -> FloatArray:
        """Draw how the round deviates from the client's usual bandwidth."""
        usual = _fitted_clients(self.network, moment.n_clients, moment.seed)[1]
        spread = BANDWIDTH_FITS[self.network].within
        return moment.rng(WorldStream.TIMING).lognormal(0.0, spread, moment.n_clients) / usual


@dataclass(frozen=True, slots=True)
class TracedDevices(CheckedFields, Devices):
    """Recorded devices and bandwidths, assigned to clients by the seed.

    A client replays its bandwidth trace from a minute drawn from the seed. The trace repeats when
    it ends.

    Args:
        network: Recordings of the bandwidth: ``3g-and-fixed`` or ``5g``.
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
        round_s: Seconds of the trace that pass per round.
    """

    network: Network = "3g-and-fixed"
    directory: str | Path | None = None
    round_s: Positive = 60.0

    def speed(self, n_clients: int, seed: int) -> FloatArray:
        """Return the speed of each client's device."""
        return self._clients(n_clients, seed)[0]

    def expected_s_per_mbit(self, n_clients: int, seed: int) -> FloatArray:
        """Return the mean over each client's trace."""
        trace = self._clients(n_clients, seed)[1]
        return np.take(bandwidth(self.network, self.directory).mean_s_per_mbit, trace)

    def s_per_mbit(self, moment: Moment) -> FloatArray:
        """Look up everyone's bandwidth at the time of the round."""
        traces = bandwidth(self.network, self.directory)
        _, trace, start = self._clients(moment.n_clients, moment.seed)
        length = np.diff(traces.offset)[trace]
        minute = (start + int(moment.round * self.round_s // 60)) % length
        return 1.0 / np.take(traces.mbps, traces.offset[trace] + minute)

    def _clients(self, n_clients: int, seed: int) -> tuple[FloatArray, IntArray, IntArray]:
        return _traced_clients(self.network, data_directory(self.directory), n_clients, seed)


def best_devices(network: Network = "3g-and-fixed", directory: str | Path | None = None) -> Devices:
    """Return recorded devices if the data directory has them, otherwise the fitted ones.

    Args:
        network: ``3g-and-fixed`` or ``5g``.
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
    """
    return TracedDevices(network, directory) if has_traces(directory) else FittedDevices(network)


@dataclass(frozen=True, slots=True)
class DeviceTimes(CheckedFields, Timing):
    """``work_s / speed + model_mbit / bandwidth``: training on the device, then transfer.

    Args:
        devices: Speed and bandwidth of the clients.
        work_s: Seconds that the mean local work takes on the median device, >= 0.
        model_mbit: Megabits that a client transfers per round, >= 0.
    """

    devices: Devices = field(default_factory=FittedDevices)
    work_s: NonNegative = 10.0
    model_mbit: NonNegative = 20.0

    def column(self, name: str, moment: Moment) -> Array:
        """Return the mean duration of each client."""
        mean = self.devices.expected_s_per_mbit(moment.n_clients, moment.seed)
        return self._seconds(moment, mean)

    def duration(self, moment: Moment) -> FloatArray:
        """Return the duration at the round's bandwidth."""
        return self._seconds(moment, self.devices.s_per_mbit(moment))

    def _seconds(self, moment: Moment, s_per_mbit: FloatArray) -> FloatArray:
        speed = self.devices.speed(moment.n_clients, moment.seed)
        return moment.worked(self.work_s / speed) + self.model_mbit * s_per_mbit


@lru_cache(maxsize=4)
def _fitted_clients(network: str, n_clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
    rng = fixed_rng(seed, WorldStream.TIMING)
    fit = BANDWIDTH_FITS[network]
    speed = rng.lognormal(*SPEED_FIT, n_clients)
    return frozen(speed), frozen(rng.lognormal(fit.mean, fit.between, n_clients))


@lru_cache(maxsize=4)
def _traced_clients(
    network: str, directory: str | Path | None, n_clients: int, seed: int
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return the speed of each client, its bandwidth trace and the minute it starts from."""
    speeds = device_speeds(directory)
    length = np.diff(bandwidth(network, directory).offset)
    rng = fixed_rng(seed, WorldStream.TIMING)
    speed = speeds[rng.integers(speeds.size, size=n_clients)]
    trace = rng.integers(length.size, size=n_clients)
    start = np.floor(rng.random(n_clients) * length[trace]).astype(np.int64)
    return frozen(speed), frozen(trace), frozen(start)
