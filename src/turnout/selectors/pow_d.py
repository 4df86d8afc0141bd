"""pow-d: poll d candidates and take those with the highest loss.

Paper:      Y. J. Cho, J. Wang, G. Joshi, Client Selection in Federated Learning: Convergence
            Analysis and Power-of-Choice Selection Strategies, arXiv:2010.01243 (pi_pow-d).
Setting:    The candidates are polled for their loss on the current model. The server knows
            num_samples. Nothing is learned.
Idea:       Draw d candidates in proportion to data size, ask them for their loss on all their data,
            and train the m with the largest.
Symbols:    candidates = d, cohort_size = m, polled_loss = F_k(w).
Equations:  poll: step 1 of pi_pow-d, without replacement with probability p_k. select: steps 2-3.
Deviations: 1. candidates=None is d = 2m, the setting of UCB-CS; the paper tunes d per task.
            2. A polled client that does not answer ranks last. Only available clients are drawn.
Limits:     It costs d evaluations and a round trip before every round. It trusts the answers.
Cost:       O(n) poll, O(d) select; no state; d evaluations on clients per round.
Checked:    By hand and against a slow implementation, in tests/selectors/test_power_of_choice.py.
"""

from __future__ import annotations

import numpy as np

from turnout.core.domains import Count
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.types import IntArray, RoundContext, Selection
from turnout.sampling import draw_candidates, top_m


@register("pow-d")
class PowD(Selector):
    """Poll d, take the m with the highest loss.

    Args:
        candidates: Number of clients that are polled; d in the paper. At least the cohort size.
            None polls twice the cohort. A larger number prefers high losses more strongly and costs
            more evaluations.
    """

    needs_columns = frozenset({"num_samples"})

    def __init__(self, *, candidates: Count | None = None) -> None:
        self.candidates = candidates

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray:
        """Ask d candidates for their loss."""
        return draw_candidates(ctx, self.candidates, rng)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take the highest answers; a silent candidate ranks last."""
        polled, loss = ctx.answers()
        is_there = ctx.available[polled]
        polled, loss = polled[is_there], loss[is_there]
        score = np.where(np.isnan(loss), -np.inf, loss)
        best = top_m(score, min(ctx.size, polled.size), rng).chosen
        return Selection(ctx.round, np.sort(polled[best]))
