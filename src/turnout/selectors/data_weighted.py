"""Data-weighted: chances in proportion to the number of examples.

Paper:      Y. J. Cho, J. Wang, G. Joshi, Client Selection in Federated Learning: Convergence
            Analysis and Power-of-Choice Selection Strategies, arXiv:2010.01243 (pi_rand); also
            pi_rand of UCB-CS (Cho, Gupta, Joshi, Yagan, arXiv:2012.08009), Sec. II-B.
Setting:    The server knows num_samples. No feedback is needed.
Idea:       Sampling in proportion to p_k = |D_k| / |D| makes the plain mean of the returned models
            unbiased. Cho et al. draw m times with replacement, so a client may be drawn twice and
            counts twice in the mean.
Symbols:    num_samples = D_k, share = p_k.
Equations:  select: Sec. II-B of UCB-CS, "chooses clients in proportion to p_k".
Deviations: 1. The default draw is without replacement, with exact inclusion probabilities min(1,
            tau p_k): the cohort is full and no client counts twice. replacement=True restores the
            paper. Then the cohort may be smaller than asked, memo["multiplicity"] says how often
            each client was drawn, and training and Flower count its model that often in the mean.
            With differential privacy, Flower counts each client once. Both draws need the plain
            mean. By default, training (MeanReturned("data")) and Flower's FedAvg (num-examples)
            also weight by examples, so size would count twice. Give training MeanReturned("equal").
            Give Flower FedAvg(weighted_by_key="one"), and let every client reply with the metric
            "one" = 1, also when it evaluates.
            2. Only available clients are drawn. Unknown sizes (NaN) count as the mean size. Clients
            of size 0 are drawn only when the others run out, and never with replacement.
Limits:     A client with most of the data is in nearly every cohort. The sizes are what clients
            claim.
Cost:       O(n) select; no state.
Checked:    The frequencies of both draws, in tests/selectors/test_baselines.py.
"""

from __future__ import annotations

import numpy as np

from turnout.core.domains import Flag
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.types import FloatArray, RoundContext, Selection
from turnout.sampling import capped_allocation, exact_draw, known_weights, uniform_draw


@register("data-weighted")
class DataWeighted(Selector):
    """Draw in proportion to data size, with or without replacement.

    Args:
        replacement: Whether a client can be drawn twice, as in the paper. True may give a smaller
            cohort, see deviation 1. Keep False unless you reproduce a paper.
    """

    memo_by_client = frozenset({"multiplicity"})
    needs_columns = frozenset({"num_samples"})
    reports_probability = True

    def __init__(self, *, replacement: Flag = False) -> None:
        self.replacement = replacement

    @property
    def may_underfill(self) -> bool:  # type: ignore[override]  # depends on a parameter
        """Draws with replacement may hit a client twice."""
        return self.replacement

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw the cohort in proportion to ``num_samples``."""
        weight = ctx.of_pool(known_weights(ctx.column("num_samples")))
        positive = np.flatnonzero(weight > 0.0)
        if self.replacement and positive.size:
            share = weight / weight.sum()
            counts = rng.multinomial(ctx.size, share)
            drawn = np.flatnonzero(counts)
            chance = 1.0 - (1.0 - share[drawn]) ** ctx.size
            return Selection(ctx.round, ctx.pool[drawn], chance, {"multiplicity": counts[drawn]})
        size = min(ctx.size, positive.size)
        p = capped_allocation(np.log(weight[positive]), size).probability
        drawn = exact_draw(p, rng)
        chosen, chance = positive[drawn], p[drawn]
        if size < ctx.size:  # only clients without data are left
            empty = np.flatnonzero(weight == 0.0)
            extra = empty[uniform_draw(empty.size, ctx.size - size, rng)]
            chosen = np.concatenate((chosen, extra))
            chance = np.concatenate((chance, np.full(extra.size, extra.size / empty.size)))
        order = np.argsort(chosen)
        return Selection(ctx.round, ctx.pool[chosen[order]], chance[order])

    def chances(self, ctx: RoundContext) -> FloatArray:
        """Return the chances of the draw that ``select`` makes."""
        weight = ctx.of_pool(known_weights(ctx.column("num_samples")))
        is_positive = weight > 0.0
        n_positive = int(np.count_nonzero(is_positive))
        chance = np.zeros(weight.size)
        if self.replacement and n_positive:
            chance = 1.0 - (1.0 - weight / weight.sum()) ** ctx.size
        else:
            size = min(ctx.size, n_positive)
            log_weight = np.log(weight[is_positive])
            chance[is_positive] = capped_allocation(log_weight, size).probability
            chance[~is_positive] = (ctx.size - size) / max(1, weight.size - n_positive)
        return ctx.of_everyone(chance)
