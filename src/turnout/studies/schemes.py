"""Schemes as two papers describe them, where that differs from the selectors we ship."""

from __future__ import annotations

import numpy as np

from turnout.core.domains import Count
from turnout.core.selector import Selector
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.sampling import multinomial_without_replacement, top_m


class FixedFedCS(Selector):
    """FedCS of E3CS: always the same clients among those of highest success rate.

    "FedCS would unchangeably choose specific 20 out of 25 Class 1 clients" (arXiv, Sec. VI-B). Our
    ``fedcs`` breaks ties at random and shares the rounds among all 25, which changes fairness only.
    """

    needs_columns = frozenset({"success_rate"})
    reports_probability = True

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Choose by success rate, then by index."""
        rate = ctx.of_pool(ctx.column("success_rate"))
        best = np.argsort(-rate, kind="stable")[: ctx.size]
        return Selection(ctx.round, ctx.pool[np.sort(best)], np.ones(ctx.size))


class ParticipationPowD(Selector):
    """pow-d where a client's loss falls with every update of it that was aggregated.

    There is no training here, so the losses need a model. This is the journal's own explanation:
    clients that fail have a higher loss "since their local model has less chance to be aggregated"
    (Sec. VI-B). Only the order of losses matters to pow-d, so any falling function of the number of
    aggregated updates gives the same choices, and nothing is left to tune but d.
    """

    def __init__(self, *, candidates: Count = 40) -> None:
        self.candidates = candidates  # d

    def reset(self, n_clients: int) -> None:
        """Nothing was aggregated yet."""
        super().reset(n_clients)
        self.n_aggregated_ = np.zeros(n_clients, dtype=np.int64)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw d candidates uniformly, take those with the fewest aggregated updates."""
        d = min(max(self.candidates, ctx.size), ctx.pool.size)
        polled = ctx.pool[multinomial_without_replacement(np.ones(ctx.pool.size), d, rng)]
        loss = -self.n_aggregated_[polled].astype(np.float64)  # up to any rising function
        best = top_m(loss, ctx.size, rng).chosen
        return Selection(ctx.round, np.sort(polled[best]))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Count the updates that came back."""
        self.n_aggregated_[selection.clients[outcome.completed]] += 1
