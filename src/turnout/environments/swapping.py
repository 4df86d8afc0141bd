"""Classes that change places: from one round on, the first clients fare like the last."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from turnout import require
from turnout.environments.base import Moment, Timing, Volatility
from turnout.environments.timing import LinearContextual
from turnout.environments.volatility import ByClass
from turnout.errors import InvalidInput
from turnout.types import Array, BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Swapping(Volatility):
    """Survival whose classes swap: from a round on, client i fares like client n - 1 - i before.

    Args:
        inner: The model whose classes swap.
        at: The first round after the swap, >= 0.
    """

    inner: Volatility = field(default_factory=ByClass)
    at: int = 250

    def __post_init__(self) -> None:
        require.instance("inner", self.inner, Volatility)
        _check_swap(self.inner, self.at)

    @property
    def level(self) -> int:
        """As the inner model: nothing is drawn."""
        return self.inner.level

    def success_rate(self, moment: Moment) -> FloatArray:
        """Return the inner rates, from the other end after the swap."""
        rate: FloatArray = self.inner.success_rate(moment)[_order(self.at, moment)]
        return rate

    def survived(self, moment: Moment) -> BoolArray:
        """Return who survives in the inner model, from the other end after the swap."""
        survived: BoolArray = self.inner.survived(moment)[_order(self.at, moment)]
        return survived

    def classes(self, n_clients: int) -> IntArray:
        """As the inner model, before the swap."""
        return self.inner.classes(n_clients)


@dataclass(frozen=True, slots=True)
class SwappingTimes(Timing):
    """Times whose classes swap: from a round on, client i is as fast as client n - 1 - i before.

    Args:
        inner: The model whose classes swap. It must not depend on earlier selections: for
            LinearContextual, ``cold_start_s = 0``.
        at: The first round after the swap, >= 0.
    """

    inner: Timing = field(default_factory=lambda: LinearContextual(cold_start_s=0.0))
    at: int = 250

    def __post_init__(self) -> None:
        require.instance("inner", self.inner, Timing)
        _check_swap(self.inner, self.at)

    @property
    def level(self) -> int:
        """As the inner model: nothing is drawn."""
        return self.inner.level

    @property
    def columns(self) -> frozenset[str]:
        """As the inner model."""
        return self.inner.columns

    def column(self, name: str, moment: Moment) -> Array:
        """Return the inner column, from the other end after the swap."""
        return self.inner.column(name, self._inside(moment))[_order(self.at, moment)]

    def duration(self, moment: Moment) -> FloatArray:
        """Return the inner times, from the other end after the swap."""
        seconds: FloatArray = self.inner.duration(self._inside(moment))[_order(self.at, moment)]
        return seconds

    def classes(self, n_clients: int) -> IntArray:
        """As the inner model, before the swap."""
        return self.inner.classes(n_clients)

    def _inside(self, moment: Moment) -> Moment:
        """Return the moment with work in the order of the inner model's clients."""
        if moment.workload is None:
            return moment
        workload = moment.workload[_order(self.at, moment)]
        return dataclasses.replace(moment, workload=workload)


def _order(at: int, moment: Moment) -> slice:
    return slice(None, None, -1) if moment.round >= at else slice(None)


def _check_swap(inner: Volatility | Timing, at: int) -> None:
    require.integer("at", at, minimum=0)
    if inner.uses_history:
        raise InvalidInput(
            f"inner must not depend on earlier selections, and {type(inner).__name__} does; for "
            "LinearContextual set cold_start_s = 0.",
            field="inner",
        )
