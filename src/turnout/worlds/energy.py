"""Energy of clients: batteries that work drains and a charger fills, and the carbon of a grid.

The level of a battery depends on earlier selections, so a world with batteries differs between
selectors. What happens to a level in one round is a pure function of the seed, the round, the level
before it and the seconds of work. As in ``turnout.worlds.availability``, a round counts for
``round_s`` seconds of the day.
"""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np

from turnout.core.domains import (
    Fraction,
    NonNegative,
    Positive,
    check_fields,
    number,
)
from turnout.core.errors import InvalidInput
from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.worlds.base import Moment, WorldStream, constant, fixed_rng, frozen
from turnout.worlds.trace_files import OwnPath, edition_of

_HOUR_S = 3600.0
_DAY_H = 24.0
#: Joules of a kilowatt-hour.
_KWH = 3.6e6

Hour = Annotated[float, number(minimum=0.0, maximum=_DAY_H)]


class Energy(ABC):
    """What work costs a client's device, and how much it has."""

    uses_history = True  #: whether it depends on earlier selections

    @abstractmethod
    def level(self, moment: Moment) -> FloatArray:
        """Return (n,) the joules in each battery before a round."""

    @abstractmethod
    def fraction(self, moment: Moment) -> FloatArray:
        """Return (n,) how full each battery is before a round, from 0 to 1."""

    @abstractmethod
    def is_ready(self, moment: Moment) -> BoolArray:
        """Return (n,) who lets itself be chosen."""

    @abstractmethod
    def watts(self, moment: Moment) -> FloatArray:
        """Return (n,) the joules that each device needs per second of work."""

    @abstractmethod
    def lasts(self, moment: Moment) -> FloatArray:
        """Return (n,) the seconds of work in this round after which a battery is empty."""

    @abstractmethod
    def after(self, moment: Moment, worked_j: FloatArray) -> FloatArray:
        """Return (n,) the joules in each battery after a round.

        Args:
            moment: The round, with the levels before it.
            worked_j: (n,) joules that work took; 0 for those who did none.
        """

    def carbon(self, moment: Moment) -> FloatArray:
        """Return (n,) the grams of CO2 per joule; NaN = unknown."""
        return constant(math.nan, moment.n_clients)


@dataclass(frozen=True, slots=True)
class Plugged(Energy):
    """Devices on the mains: nobody counts energy."""

    uses_history = False

    def level(self, moment: Moment) -> FloatArray:
        """Return infinity."""
        return constant(math.inf, moment.n_clients)

    def fraction(self, moment: Moment) -> FloatArray:
        """Return 1."""
        return constant(1.0, moment.n_clients)

    def is_ready(self, moment: Moment) -> BoolArray:
        """Return all True."""
        return constant(True, moment.n_clients)

    def watts(self, moment: Moment) -> FloatArray:
        """Return 0."""
        return constant(0.0, moment.n_clients)

    def lasts(self, moment: Moment) -> FloatArray:
        """Return infinity."""
        return constant(math.inf, moment.n_clients)

    def after(self, moment: Moment, worked_j: FloatArray) -> FloatArray:
        """Return nothing: there is no level to keep."""
        return np.zeros(0)


@dataclass(frozen=True, slots=True)
class Battery(Energy):
    """Batteries that work and idling drain, and a charger fills at some hours of the day.

    A client whose battery is below ``reserve`` and not charging is not available. A client whose
    battery is empty before its work is done fails at that moment. Each client has its own time
    zone, first level and power, drawn from the seed.

    Args:
        capacity_wh: Energy of a full battery in watt-hours, above 0. A phone has 10 to 20.
        work_w: Watts of work, the median over clients, above 0.
        spread: Standard deviation of the logarithm of those watts over clients, >= 0.
        idle_w: Watts while it does not work, also while it charges; >= 0.
        charge_w: Watts of the charger, >= 0; it also feeds work.
        charge_from: Local hour at which clients plug in, from 0 to 24.
        charge_to: Local hour at which they unplug; before ``charge_from`` means the next day.
        zones: Part of the day that the time zones spread over, from 0 to 1.
        full: Lowest and highest fraction of the battery before round 0.
        reserve: Fraction below which a client that does not charge is not available.
        round_s: Seconds of the day that pass per round.
    """

    capacity_wh: Positive = 12.0
    work_w: Positive = 4.0
    spread: NonNegative = 0.3
    idle_w: NonNegative = 0.3
    charge_w: NonNegative = 8.0
    charge_from: Hour = 22.0
    charge_to: Hour = 6.0
    zones: Fraction = 0.25
    full: tuple[float, float] = (0.3, 1.0)
    reserve: Fraction = 0.15
    round_s: Positive = 600.0

    def __post_init__(self) -> None:
        """Check the range of first levels."""
        check_fields(self)
        low_high = tuple(self.full)
        object.__setattr__(self, "full", low_high)
        if len(low_high) != 2 or not 0.0 <= low_high[0] <= low_high[1] <= 1.0:
            raise InvalidInput(
                f"full must be (lowest, highest) inside [0, 1], got {low_high}.", field="full"
            )

    @property
    def capacity_j(self) -> float:
        """Joules of a full battery."""
        return self.capacity_wh * _HOUR_S

    def level(self, moment: Moment) -> FloatArray:
        """Return what the history has, or the first levels."""
        level = moment.history.level_
        if level.size:
            return level
        low, high = self.full
        drawn = _drawn(moment.n_clients, moment.seed, 0)
        return self.capacity_j * (low + (high - low) * drawn)

    def fraction(self, moment: Moment) -> FloatArray:
        """Return the level over the capacity."""
        return self.level(moment) / self.capacity_j

    def is_ready(self, moment: Moment) -> BoolArray:
        """Return who is above the reserve, or charges."""
        return (self.fraction(moment) >= self.reserve) | self.is_charging(moment)

    def is_charging(self, moment: Moment) -> BoolArray:
        """Return (n,) who is plugged in at the beginning of a round."""
        zone = _DAY_H * self.zones * _drawn(moment.n_clients, moment.seed, 1)
        hour = (moment.round * self.round_s / _HOUR_S + zone) % _DAY_H
        if self.charge_from <= self.charge_to:
            return np.asarray((self.charge_from <= hour) & (hour < self.charge_to))
        return np.asarray((self.charge_from <= hour) | (hour < self.charge_to))

    def watts(self, moment: Moment) -> FloatArray:
        """Return each client's watts of work, which never change."""
        return self.work_w * np.exp(self.spread * _normal(moment.n_clients, moment.seed))

    def lasts(self, moment: Moment) -> FloatArray:
        """Return the seconds until an empty battery; infinity if the charger gives enough."""
        drain = self.watts(moment) - self.charge_w * self.is_charging(moment)
        lasts = np.full(moment.n_clients, math.inf)
        np.divide(self.level(moment), drain, out=lasts, where=drain > 0.0)
        return lasts

    def after(self, moment: Moment, worked_j: FloatArray) -> FloatArray:
        """Return the level after work, idling and charging, between empty and full."""
        idle_s = np.maximum(self.round_s - worked_j / self.watts(moment), 0.0)
        gained = self.round_s * self.charge_w * self.is_charging(moment) - self.idle_w * idle_s
        return np.clip(self.level(moment) - worked_j + gained, 0.0, self.capacity_j)


@dataclass(frozen=True, slots=True)
class BatteryOnGrid(Battery):
    """Batteries, and the carbon of the grid by the hour: path=grid.csv with a column per region.

    The table has a heading, a line for each hour, and a column of grams of CO2 per kilowatt-hour
    for each region; a first column ``hour`` is left out. It repeats. Clients are divided among the
    regions in their order. Work counts at the hour in which it is done.

    Args:
        capacity_wh: Energy of a full battery in watt-hours, above 0. A phone has 10 to 20.
        work_w: Watts of work, the median over clients, above 0.
        spread: Standard deviation of the logarithm of those watts over clients, >= 0.
        idle_w: Watts while it does not work, also while it charges; >= 0.
        charge_w: Watts of the charger, >= 0; it also feeds work.
        charge_from: Local hour at which clients plug in, from 0 to 24.
        charge_to: Local hour at which they unplug; before ``charge_from`` means the next day.
        zones: Part of the day that the time zones spread over, from 0 to 1.
        full: Lowest and highest fraction of the battery before round 0.
        reserve: Fraction below which a client that does not charge is not available.
        round_s: Seconds of the day that pass per round.
        path: The file. It must be set.
    """

    path: OwnPath = ""

    def carbon(self, moment: Moment) -> FloatArray:
        """Return the grid's carbon intensity at the hour of the round."""
        table = _grid(Path(self.path), edition_of(self.path))
        now = table[int(moment.round * self.round_s // _HOUR_S) % len(table)]
        regions: IntArray = np.arange(moment.n_clients) * now.size // moment.n_clients
        return np.asarray(np.take(now, regions) / _KWH)


@lru_cache(maxsize=8)
def _drawn(n_clients: int, seed: int, trait: int) -> FloatArray:
    return frozen(fixed_rng(seed, WorldStream.ENERGY, level=trait).random(n_clients))


@lru_cache(maxsize=4)
def _normal(n_clients: int, seed: int) -> FloatArray:
    return frozen(fixed_rng(seed, WorldStream.ENERGY, level=2).standard_normal(n_clients))


@lru_cache(maxsize=4)
def _grid(path: Path, edition: tuple[int, int]) -> FloatArray:
    """Return (hours, regions): grams of CO2 per kilowatt-hour."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            heading, *rows = list(csv.reader(file))
        first = 1 if heading[0].strip().lower() == "hour" else 0
        table = np.array([[float(text) for text in row[first:]] for row in rows if row])
        if table.ndim != 2 or not table.size or not (table >= 0.0).all():
            raise ValueError("every hour needs a number >= 0 for each region")
    except (OSError, ValueError, IndexError) as error:
        raise InvalidInput(
            f"path {path} must be a table with a heading, a line for each hour and a column "
            f"of grams of CO2 per kilowatt-hour for each region: {error}.",
            field="path",
        ) from error
    return frozen(table)
