"""Random: every available client has the same chance.

Paper:      B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
            Data, AISTATS 2017, arXiv:1602.05629.
Setting:    No feedback, no horizon and no polls are needed. It is fair in expectation.
Idea:       Draw the cohort uniformly without replacement. It is the baseline of every paper.
Symbols:    cohort_size = m, pool = available clients.
Equations:  select: Alg. 1, "random set of m clients".
Deviations: 1. Only available clients are drawn. The paper assumes that all are available.
Limits:     It wastes places on clients that fail, and it learns nothing about any client.
Cost:       O(m) select when everyone is available, O(n) otherwise; no state.
Checked:    The frequencies of all clients, in tests/selectors/test_baselines.py.
"""

from __future__ import annotations

import numpy as np

from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.types import FloatArray, RoundContext, Selection
from turnout.sampling import uniform_draw


@register("random")
class Random(Selector):
    """Uniform draw without replacement."""

    reports_probability = True

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw ``ctx.size`` of the pool."""
        drawn = uniform_draw(ctx.pool.size, ctx.size, rng)
        chance = np.full(ctx.size, ctx.size / max(1, ctx.pool.size))
        return Selection(ctx.round, ctx.pool[drawn], chance)

    def chances(self, ctx: RoundContext) -> FloatArray:
        """Return the same chance for all who are available."""
        return ctx.of_everyone(np.full(ctx.pool.size, ctx.size / max(1, ctx.pool.size)))
