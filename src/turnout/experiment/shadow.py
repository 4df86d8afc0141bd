"""A selector that chooses beside the one in charge, is not followed, and learns of the overlap."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np

from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import FloatArray, IntArray, Outcome, RoundContext, Selection

#: Draws of the estimated chances begin behind this number of streams.
_ESTIMATES = 1_000


class Wish(NamedTuple):
    """What a shadow would have done in a round.

    Attributes:
        selection: Whom it would have chosen.
        chances: (n,) its chances; None if they are not known of everyone.
        of_chosen: (s,) its chances of those whom the selector in charge chose; None if only
            ``chances`` says them, or nothing does.
    """

    selection: Selection
    chances: FloatArray | None
    of_chosen: FloatArray | None = None

    def of(self, clients: IntArray) -> FloatArray:
        """Return the chances of those whom the selector in charge chose.

        Without any, 1 for whom it chose itself and 0 for others. That has the same mean as the
        chances, which say more.

        Args:
            clients: (s,) the chosen.
        """
        if self.of_chosen is not None:
            return self.of_chosen
        if self.chances is not None:
            return self.chances[clients]
        return np.isin(clients, self.selection.clients).astype(np.float64)

    def of_everyone(self, n_clients: int) -> FloatArray:
        """Return (n,) the chances of everyone, or 1 for whom it chose.

        Args:
            n_clients: n.
        """
        if self.chances is not None:
            return self.chances
        chosen = np.zeros(n_clients)
        chosen[self.selection.clients] = 1.0
        return chosen


class Shadow:
    """Chooses beside the selector in charge.

    Its random numbers are its own, so it changes nothing for the one in charge.

    Args:
        selector: What chooses; the shadow prepares it.
        seed: The seed of the run.
        place: Its number among the shadows.
    """

    def __init__(self, selector: Selector, seed: int, place: int = 0) -> None:
        self.selector, self._seed, self._place = selector, seed, place

    def choose(self, ctx: RoundContext, draws: int | None = None) -> Wish:
        """Return what the selector would do.

        Args:
            ctx: What is known before the round.
            draws: How often it chooses to estimate chances that have no closed form; None does not
                estimate them.
        """
        found = self.selector.chances(ctx)
        if found is None and draws is not None:
            found = self._estimated(ctx, draws)
        rng = stream(self._seed, Purpose.SHADOW, ctx.round, self._place)
        return Wish(self.selector.select(ctx, rng), found)

    def learn(
        self, wish: Wish, clients: IntArray, chance: FloatArray | None, outcome: Outcome
    ) -> None:
        """Learn of those whom both chose.

        Args:
            wish: What ``choose`` returned.
            clients: (s,) whom the selector in charge chose.
            chance: (s,) their chances; NaN or None = not known, then no estimate is corrected.
            outcome: What happened to them.
        """
        mine = wish.selection.clients
        kept = np.isin(mine, clients, assume_unique=True)
        at = np.searchsorted(clients, mine[kept])
        heard = np.ones(at.size) if chance is None else np.nan_to_num(chance[at], nan=1.0)
        part = self.selector.part(wish.selection, kept, heard)
        metrics = {name: values[at] for name, values in outcome.metrics.items()}
        self.selector.observe(part, Outcome(outcome.status[at], outcome.duration[at], metrics))

    def _estimated(self, ctx: RoundContext, draws: int) -> FloatArray:
        """Return how often each client is chosen, from the present state."""
        preview = copy.deepcopy(self.selector)  # some note what they chose for later rounds
        counts = np.zeros(ctx.n_clients)
        rng = stream(self._seed, Purpose.SHADOW, ctx.round, _ESTIMATES + self._place)
        for _ in range(draws):
            counts[preview.select(ctx, rng).clients] += 1.0
        return counts / draws
