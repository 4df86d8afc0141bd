"""Availability of clients: always, by chance, by time of day, or as phones were recorded.

Models that depend on the time count ``round_s`` seconds per round, not the run's own clock. So
availability is the same for every selector.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from turnout.core.domains import CheckedFields, Fraction, Positive, check_fields
from turnout.core.errors import InvalidInput
from turnout.core.files import data_directory
from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.worlds.base import Availability, Moment, WorldStream, constant, fixed_rng, frozen
from turnout.worlds.traces import MINUTES_PER_DAY, phone_states

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Always(Availability):
    """Everyone is available in every round."""

    def available(self, moment: Moment) -> BoolArray:
        """Return all True."""
        return constant(True, moment.n_clients)


@dataclass(frozen=True, slots=True)
class Bernoulli(CheckedFields, Availability):
    """Each client is available with the same chance, independently in every round.

    Args:
        rate: Chance to be available, from 0 to 1. 0.8 is the value of RBCS-F.
    """

    rate: Fraction = 0.8

    def available(self, moment: Moment) -> BoolArray:
        """Draw everyone once."""
        return moment.uniforms(WorldStream.AVAILABILITY, shape=(moment.n_clients,)) < self.rate

    def forecast(self, moment: Moment) -> FloatArray:
        """Return the rate: nobody knows more."""
        return np.full(moment.n_clients, self.rate)


@dataclass(frozen=True, slots=True)
class Diurnal(Availability):
    """The chance to be available rises and falls over the day: ``rate + amplitude * sin(time)``.

    Each client has its own time zone, drawn from the seed.

    Args:
        rate: Chance to be available, mean over the day, from 0 to 1.
        amplitude: How far the chance moves from ``rate``, at most min(rate, 1 - rate).
        period_s: Length of a day in seconds. To count in rounds, set ``round_s=1`` and this to the
            number of rounds in a day.
        round_s: Seconds of the day that pass per round.
        zones: Part of the day that the time zones spread over, from 0 (everyone has the same time)
            to 1 (the whole day).
    """

    rate: Fraction = 0.5
    amplitude: Fraction = 0.4
    period_s: Positive = _DAY_S
    round_s: Positive = 600.0
    zones: Fraction = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.amplitude <= min(self.rate, 1.0 - self.rate):
            raise InvalidInput(
                f"amplitude must be at most min(rate, 1 - rate), so that chances stay inside "
                f"[0, 1]; got amplitude = {self.amplitude} with rate = {self.rate}.",
                field="amplitude",
            )

    def chance(self, moment: Moment) -> FloatArray:
        """Return (n,) the chance to be available in this round."""
        days = moment.round * self.round_s / self.period_s
        phase = _phases(moment.n_clients, moment.seed)
        angle = 2.0 * math.pi * (math.fmod(days, 1.0) + self.zones * phase)
        return self.rate + self.amplitude * np.sin(angle)

    def available(self, moment: Moment) -> BoolArray:
        """Draw everyone once."""
        drawn = moment.uniforms(WorldStream.AVAILABILITY, shape=(moment.n_clients,))
        return drawn < self.chance(moment)

    def forecast(self, moment: Moment) -> FloatArray:
        """Return the chance in the next round."""
        return self.chance(dataclasses.replace(moment, round=moment.round + 1))


@dataclass(frozen=True, slots=True)
class PhoneTrace(CheckedFields, Availability):
    """Phones as recorded minute by minute: available while they charge and are on Wi-Fi.

    Each client replays the record of one phone. Phone and first day are drawn from the seed. The
    record repeats when it ends. Reads ``traces/extrasensory_phone_state.npz``.

    Args:
        directory: The data directory; None takes the one that ``TURNOUT_DATA`` names.
        round_s: Seconds of the record that pass per round.
        same_clock: Whether all clients share one time zone. False also shifts each client's time
            of day at random.
    """

    directory: str | Path | None = None
    round_s: Positive = 600.0
    same_clock: bool = True

    def available(self, moment: Moment) -> BoolArray:
        """Look up everyone's state at the time of the round."""
        directory = data_directory(self.directory)
        states = phone_states(directory)
        phone, start = _assigned(directory, self.same_clock, moment.n_clients, moment.seed)
        length = np.diff(states.offset)[phone]
        minute = (start + int(moment.round * self.round_s // 60)) % length
        return np.take(states.eligible, states.offset[phone] + minute)


@lru_cache(maxsize=4)
def _phases(n_clients: int, seed: int) -> FloatArray:
    return frozen(fixed_rng(seed, WorldStream.AVAILABILITY).random(n_clients))


@lru_cache(maxsize=4)
def _assigned(
    directory: str | Path | None, same_clock: bool, n_clients: int, seed: int
) -> tuple[IntArray, IntArray]:
    """Return the phone of each client, and the minute of its record at which round 0 begins."""
    length = np.diff(phone_states(directory).offset)
    rng = fixed_rng(seed, WorldStream.AVAILABILITY)
    phone = rng.integers(length.size, size=n_clients)
    start = np.floor(rng.random(n_clients) * length[phone]).astype(np.int64)
    if same_clock:
        start -= start % MINUTES_PER_DAY
    return frozen(phone), frozen(start)
