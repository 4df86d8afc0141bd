"""A selector that ignores everything but its own taste."""

import numpy as np

import turnout
from turnout import Selection

TASTES = ("first", "last", "favourites", "nobody")


class Stubborn(turnout.Selector):
    """Chooses the lowest or highest indices, those it chose most often, or nobody."""

    may_underfill = True

    def __init__(self, *, taste: str = "first") -> None:
        self.taste = taste

    def reset(self, n_clients: int) -> None:
        super().reset(n_clients)
        self.count_ = np.zeros(n_clients)

    def select(self, ctx, rng) -> Selection:
        score = {
            "first": -np.arange(ctx.n_clients),
            "last": np.arange(ctx.n_clients),
            "favourites": self.count_,
            "nobody": self.count_,
        }[self.taste]
        size = 0 if self.taste == "nobody" else ctx.size
        ranked = ctx.pool[np.argsort(-score[ctx.pool], kind="stable")]
        return Selection(ctx.round, np.sort(ranked[:size]), np.ones(size))

    def observe(self, selection, outcome) -> None:
        self.count_[selection.clients] += 1.0
