"""Whether every client got a fair share of the places, over every window of a recorded run.

The fair share of a round is its places over its available clients. Over a window of rounds a client
falls short by ``floor * share - chosen`` places, and is ahead by ``chosen - cap * share``, counted
over the rounds in which it was available. The largest over all windows is one pass of a queue that
is cut at 0, for all clients at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.types import BoolArray, FloatArray, IntArray

__all__ = ["Guarantee", "Recorded", "fair_places", "fair_share", "guarantee", "least_share"]

#: Rounding of sums over a run, in places.
_ROUNDING = 1e-6


@runtime_checkable
class Recorded(Protocol):
    """What is read of a run; ``turnout.experiment.Run`` has it."""

    @property
    def n_clients(self) -> int:
        """Size of the federation."""

    @property
    def n_rounds(self) -> int:
        """Rounds of the run."""

    @property
    def cohort_size(self) -> int:
        """Answers wanted per round."""

    def chosen_in(self, round: int) -> IntArray:
        """Return the clients chosen in a round."""

    def available_in(self, round: int) -> BoolArray:
        """Return (n,) whether each client was available in a round."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """How far each client was from its floor and its cap, in places, in its worst window.

    Attributes:
        floor: Share of its fair share that each client should get at least.
        cap: Multiple of its fair share that each client should get at most.
        slack: Places that a client may be short or ahead.
        share: (n,) fair share of the whole run, in places.
        chosen: (n,) places that each client got.
        shortfall: (n,) largest ``floor * share - chosen`` over all windows.
        excess: (n,) largest ``chosen - cap * share`` over all windows.
        short_in: (n, 2) first and last round of the window of the shortfall.
        ahead_in: (n, 2) first and last round of the window of the excess.
    """

    floor: float
    cap: float
    slack: float
    share: FloatArray
    chosen: IntArray
    shortfall: FloatArray
    excess: FloatArray
    short_in: IntArray
    ahead_in: IntArray

    @property
    def is_short(self) -> BoolArray:
        """(n,) who fell short by more than the slack."""
        return np.greater(self.shortfall, self.slack + _ROUNDING)

    @property
    def is_ahead(self) -> BoolArray:
        """(n,) who got more than the cap and the slack."""
        return np.greater(self.excess, self.slack + _ROUNDING)

    @property
    def holds(self) -> bool:
        """Whether no client fell short and none was ahead."""
        return not (self.is_short.any() or self.is_ahead.any())


def guarantee(run: Recorded, floor: float = 0.5, cap: float = 2.0, slack: float = 2.0) -> Guarantee:
    """Return how far each client of a run was from its floor and its cap, over every window.

    The places of a round are the cohort size, more if more were chosen, and at most the available
    clients. A cohort that was smaller than asked counts as asked.

    Args:
        run: The run. It must have a record of the available clients, unless all always were.
        floor: Share of its fair share that each client should get at least, from 0 to 1.
        cap: Multiple of its fair share that each client should get at most; infinity for no cap.
        slack: Places that a client may be short or ahead in any window. ``guarded`` stays within
            2 while all clients are available.

    Returns:
        The worst windows, by client.

    Raises:
        InvalidInput: The run has no record of the available clients, or its rounds overlap.

    >>> import turnout
    >>> from turnout.worlds import e3cs_world
    >>> run = turnout.simulate("round-robin", e3cs_world(), cohort_size=20, n_rounds=20)
    >>> guarantee(run, floor=1.0, cap=1.0).holds
    True
    """
    require.instance("run", run, Recorded)
    if getattr(run, "overlaps", False):
        raise InvalidInput(
            "run must not have rounds that overlap: its rounds are aggregations, and the floor and "
            "the cap hold choice by choice, which run folders do not keep.",
            field="run",
        )
    require.fraction("floor", floor)
    if not (isinstance(cap, float) and cap == math.inf):
        require.number("cap", cap, minimum=1.0)
    require.number("slack", slack, minimum=0.0)
    n = run.n_clients
    total, counts = np.zeros(n), np.zeros(n, dtype=np.int64)
    # the sums of the open windows and where they start, the largest sums and their windows: of the
    # shortfalls in the first row, of the excesses in the second
    sums, starts = np.zeros((2, n)), np.zeros((2, n), dtype=np.int64)
    worst, windows = np.zeros((2, n)), np.zeros((2, n, 2), dtype=np.int64)
    for t in range(run.n_rounds):
        clients, share = run.chosen_in(t), fair_share(run, t)
        chosen = np.zeros(n)
        chosen[clients] = 1.0
        sums[0] += floor * share - chosen
        sums[1] += chosen - np.multiply(cap, share, where=share > 0, out=np.zeros(n))
        is_over = sums <= 0.0
        sums[is_over] = 0.0
        starts[is_over] = t + 1
        is_worse = sums > worst
        worst[is_worse] = sums[is_worse]
        windows[is_worse, 0] = starts[is_worse]
        windows[is_worse, 1] = t
        total += share
        counts[clients] += 1
    return Guarantee(floor, cap, slack, total, counts, *worst, *windows)


def fair_share(run: Recorded, round: int) -> FloatArray:
    """Return (n,) the places of a round over its available clients; 0 for the others.

    Args:
        run: The run. It must have a record of the available clients.
        round: The round, counted from 0.
    """
    available = run.available_in(round)
    n_available = max(1, int(np.count_nonzero(available)))
    n_places = min(max(run.cohort_size, run.chosen_in(round).size), n_available)
    return np.where(available, n_places / n_available, 0.0)


def fair_places(run: Recorded) -> FloatArray:
    """Return (n,) the fair share of each client in the whole run, in places.

    Args:
        run: The run. It must have a record of the available clients.
    """
    total = np.zeros(run.n_clients)
    for t in range(run.n_rounds):
        total += fair_share(run, t)
    return total


def least_share(fair: FloatArray, chosen: IntArray | FloatArray) -> float:
    """Return the part of its fair share that the least served client got; NaN without any share.

    Only clients count that were available at least half as often as the most available one.

    Args:
        fair: (n,) the fair share of each client, in places.
        chosen: (n,) places that each client got.
    """
    most = fair.max(initial=0.0)
    if most <= 0.0:
        return math.nan
    counts = fair >= 0.5 * most
    return float((chosen[counts] / fair[counts]).min())
