"""Dirichlet: a fixed unfair draw, to measure what unfairness costs.

Paper:      T. Huang et al., An Efficiency-boosting Client Selection Scheme for Federated Learning
            with Fairness Guarantee (RBCS-F), IEEE TPDS 2021, arXiv:2011.01783, Sec. 6.2.2.
Setting:    No feedback is needed. The unfairness is drawn once, before round 0.
Idea:       Draw q' from a Dirichlet distribution and use it in every round as the probability
            vector of a draw without replacement. A small concentration makes a few clients take
            almost all places; a large one approaches the uniform draw.
Symbols:    concentration = gamma_2, log_weight_ = ln of the unnormalised q'.
Equations:  select: Sec. 6.2.2, q' ~ Dir(gamma_2 p').
Deviations: 1. q' is kept as the logarithm of independent gamma variates. This is the same
            distribution, it survives underflow at tiny concentrations, and clients can join later.
            2. The paper does not say how m clients are drawn from q'. Here they are drawn one after
            the other without replacement, as ``numpy.random.choice(p=q', replace=False)`` does.
Limits:     It is unfair on purpose and not meant for use.
Cost:       O(n) select, state 8n bytes.
Checked:    Against numpy's draw, in tests/selectors/test_baselines.py.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np

from turnout.core.domains import Positive
from turnout.core.registry import register
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.stateful import Range
from turnout.core.types import RoundContext, Selection
from turnout.sampling import top_m


@register("dirichlet")
class Dirichlet(Selector):
    """Successive draw from one fixed Dirichlet vector.

    Args:
        concentration: How even the chances are; gamma_2 in the paper. 0.1 gives a few clients
            nearly all places, 100 is close to the uniform draw. Try 1 first.
    """

    state_ranges = MappingProxyType({"log_weight_": Range(-math.inf)})

    def __init__(self, *, concentration: Positive = 1.0) -> None:
        self.concentration = concentration

    def reset(self, n_clients: int) -> None:
        """Draw the vector from the default stream; ``randomize`` redraws it."""
        super().reset(n_clients)
        self.log_weight_ = np.zeros(n_clients)
        self.randomize(stream(0, Purpose.INIT))

    def randomize(self, rng: np.random.Generator) -> None:
        """Draw ln Gamma(gamma_2) per client as ln Gamma(gamma_2 + 1) + ln U / gamma_2."""
        gamma = rng.standard_gamma(self.concentration + 1.0, self.n_clients)
        uniform = rng.random(self.n_clients)
        self.log_weight_ = np.log(gamma) + np.log1p(-uniform) / self.concentration

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw one after the other in proportion to q'; Gumbel keys work on logarithms."""
        score = ctx.of_pool(self.log_weight_) - np.log(rng.standard_exponential(ctx.pool.size))
        return Selection(ctx.round, ctx.pool[top_m(score, ctx.size, rng).chosen])
