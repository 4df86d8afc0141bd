"""E3CS: Exp3 with multiple plays and a guaranteed chance for everyone.

Paper:      T. Huang, W. Lin, L. Shen, K. Li, A. Y. Zomaya, Stochastic Client Selection for
            Federated Learning with Volatile Clients, IEEE Internet of Things Journal 2022
            ("journal"), and arXiv:2011.08756 ("arXiv"). The two differ in draw and estimate.
Setting:    The server sees which of the chosen clients succeeded. No polls are needed, and no
            horizon except for the learning rate of Theorem 1. A fairness quota guarantees every
            client a chance.
Idea:       Keep an exponential weight per client. Reserve a probability of sigma_t for each client,
            divide the rest by weight, and cap each probability at one. Draw the cohort. From the
            drawn clients, estimate every client's success without bias, and update the weights.
Symbols:    pool size = K, ctx.size = k, quota = sigma_t K / k, floor = sigma_t, eta = eta,
            log_weight_ = ln w_{i,t}, overflow = S_t, completed = x_{i,t}.
Equations:  select: Alg. 1 lines 3-4, Alg. 2, Eqs. (12)-(18) arXiv = (17)-(23) journal.
            observe: arXiv Eqs. (10), (11); journal Eqs. (15), (16). Rate: Theorem 1.
Deviations: 1. draw="exact" is the default: systematic sampling over a random order, which is fast
            for a million clients. "dependent-rounding" is the arXiv draw (equally exact);
            "multinomial" is the journal draw, whose inclusion probabilities are not p_{i,t},
            although the text claims so. Its estimate is therefore biased, and effective
            participation is lost.
            2. estimate="loss" (arXiv) is the default; "gain" is the journal's. In the loss form
            every client that was not drawn has xhat = 1. Only ratios of weights matter, so the
            common factor is divided out and O(k) clients change: the drawn lose (1 - x) / p, and
            the overflow set S_t, whose weights the paper freezes, loses 1.
            3. E3CS-inc: the arXiv text sets sigma_t = 1 after T/4, which is infeasible; the journal
            corrects it to k/K, which is quota 1: quota=StepAfter(T // 4, 0.0, 1.0).
            4. Availability is not in the paper. Here K is the number of clients available in the
            round, and k is at most K. Unavailable clients are treated like clients that were not
            drawn.
            5. Probabilities below 1e-12 count as 1e-12 in the estimate, which keeps weights finite.
            6. The condition in arXiv Eq. (17) and journal Eqs. (22), (23) compares w_j with Psi of
            another client. The intended condition is Psi_j <= Psi_{i_v}, as in arXiv Eq. (18). The
            cap is found in closed form, see turnout.sampling.allocation.
            7. share = a > 0 is not in the paper: after each round w <- (1 - a) w + a mean(w), the
            fixed share of M. Herbster, M. Warmuth, Tracking the Best Expert, 1998, which P. Auer et
            al., The Nonstochastic Multiarmed Bandit Problem, 2002, use as Exp3.S. It keeps the sum
            of the weights, and w_i is always at least a / K of that sum. So in the proof of Theorem
            1 a fixed allocation costs at most ln(K / a) more when it takes over, and ln(1 / (1 -
            a)) more a round: against the best sequence of s fixed allocations ln K in the bound
            becomes s ln(K / a) + T ln(1 / (1 - a)). With a = s / T that is of order s ln(K T / s),
            and regret of order sqrt(k K T s ln(K T)) at the best eta.
Limits:     With quota 0 it settles on the first reliable clients and is slow to notice when they
            get worse. A quota makes it keep exploring. Even then it forgets as slowly as it
            learned. In a world of 100 clients, cohort 20, where the halves with success rates of 90
            % and 10 % swap after 200 or 2,000 rounds, it needs 254 or 1,999 rounds to return to 90
            % of its success. With share 0.0001 it needs 213 and 224 rounds, with 0.001 167 and 163,
            with 0.01 98 and 96 (means of 5 seeds, standard deviation 2 to 55). Success before the
            change is 0.70, 0.71, 0.70 and 0.65. It only sees success, not loss or duration.
Cost:       O(n) select, O(k) observe, O(n) with a share, state 8n bytes.
Checked:    by hand, against a slow implementation of both published forms and for unbiasedness:
            tests/selectors/test_e3cs.py. Figs. 2-3 (arXiv) and 3-4 (journal): turnout reproduce
            e3cs-arxiv, turnout reproduce e3cs-journal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from turnout.core.domains import Count, Fraction, Positive
from turnout.core.errors import InvalidInput
from turnout.core.registry import register
from turnout.core.schedules import Schedule, ScheduledFraction, at_round
from turnout.core.selector import Selector
from turnout.core.types import BoolArray, FloatArray, IntArray, Outcome, RoundContext, Selection
from turnout.results.metrics import theorem1_bound
from turnout.sampling import (
    capped_allocation,
    dependent_rounding,
    exact_draw,
    multinomial_without_replacement,
)

#: Smallest probability that an estimate divides by.
SMALLEST_PROBABILITY = 1e-12

Draw = Callable[[FloatArray, int, np.random.Generator], IntArray]

DRAWS: Mapping[str, Draw] = MappingProxyType(
    {
        "exact": lambda p, k, rng: exact_draw(p, rng),
        "dependent-rounding": lambda p, k, rng: dependent_rounding(p, rng),
        "multinomial": multinomial_without_replacement,
    }
)

#: Draws whose inclusion probabilities are the allocated ones, and can be reported as such.
EXACT_DRAWS = frozenset({"exact", "dependent-rounding"})

#: Change of ln w per unit of step, for the drawn clients (x, p) and for the overflow set S_t.
ESTIMATES: Mapping[str, tuple[Callable[[FloatArray, FloatArray], FloatArray], float]] = (
    MappingProxyType(
        {
            "loss": (lambda x, p: -(1.0 - x) / p, -1.0),  # arXiv Eq. (10), minus the common 1
            "gain": (lambda x, p: x / p, 0.0),  # journal Eq. (15)
        }
    )
)


@register("e3cs")
class E3CS(Selector):
    """Exponential weights over clients, with a quota of equal chances.

    Args:
        eta: Learning rate of the weights; eta in the paper, 0.5 in the journal and 0.6 in the arXiv
            text. "theorem-1" computes it from ``horizon``. Keep 0.5 first; raise it if it finds
            reliable clients too slowly.
        quota: Share of the cohort that is reserved for equal chances; sigma_t K / k in the paper. 0
            only looks at success, 1 is the uniform draw. Try 0.5 first, then ``StepAfter(T // 4,
            0.0, 1.0)``, which is E3CS-inc.
        draw: How the cohort is drawn from the probabilities. "exact" is fast, "dependent-rounding"
            is the arXiv text's draw and "multinomial" the journal's, see deviation 1. Keep "exact"
            unless you reproduce a paper.
        estimate: How the success of a client is estimated; xhat in the paper. "loss" is the arXiv
            text's form and "gain" the journal's. Keep "loss".
        horizon: Number of rounds; T in the paper. Only eta="theorem-1" needs it.
        share: Part of each weight that is divided equally among all clients after a round, so that
            no client is written off for good (deviation 7). 0 is the paper. Try 0.001 where clients
            may change.
    """

    memo_by_client = frozenset({"target"})

    def __init__(
        self,
        *,
        eta: Positive | Literal["theorem-1"] = 0.5,
        quota: ScheduledFraction = 0.5,
        draw: Literal["exact", "dependent-rounding", "multinomial"] = "exact",
        estimate: Literal["loss", "gain"] = "loss",
        horizon: Count | None = None,
        share: Fraction = 0.0,
    ) -> None:
        self.eta = eta
        self.quota = quota
        self.draw = draw
        self.estimate = estimate
        self.horizon = horizon
        self.share = share

    def check_parameters(self) -> None:
        """``eta="theorem-1"`` needs a horizon."""
        super().check_parameters()
        if self.eta == "theorem-1" and self.horizon is None:
            raise InvalidInput(
                "eta='theorem-1' needs horizon=, the number of rounds; got None.", field="eta"
            )

    @property
    def reports_probability(self) -> bool:  # type: ignore[override]  # depends on a parameter
        """The journal's multinomial draw misses its probabilities."""
        return self.draw in EXACT_DRAWS

    def reset(self, n_clients: int) -> None:
        """All weights are 1 (Alg. 1, line 1)."""
        super().reset(n_clients)
        self.log_weight_ = np.zeros(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Allocate probability by weight above the floor, then draw."""
        k, n_pool = ctx.size, ctx.pool.size  # k, K
        sigma = self.quota_at(ctx.round) * k / max(1, n_pool)
        p, overflow = capped_allocation(ctx.of_pool(self.log_weight_), k, sigma)  # Alg. 1, line 3
        drawn = DRAWS[self.draw](p, k, rng)  # Alg. 1, line 4
        step = self._rate(n_pool, k) * (k - n_pool * sigma) / max(1, n_pool)  # of Eq. (11)
        memo = {"overflow": ctx.pool[overflow], "step": np.array(step)}
        chance = np.maximum(p[drawn], np.finfo(np.float64).tiny)
        reported = chance if self.reports_probability else None
        return Selection(ctx.round, ctx.pool[drawn], reported, memo | {"target": chance})

    def chances(self, ctx: RoundContext) -> FloatArray | None:
        """Return the allocated probabilities; None for the journal's draw, which misses them."""
        if not self.reports_probability:
            return None
        sigma = self.quota_at(ctx.round) * ctx.size / max(1, ctx.pool.size)
        p = capped_allocation(ctx.of_pool(self.log_weight_), ctx.size, sigma).probability
        return ctx.of_everyone(np.maximum(p, np.finfo(np.float64).tiny))

    def part(self, selection: Selection, kept: BoolArray, chance: FloatArray) -> Selection:
        """Return the part; the estimates divide by the chance to be drawn and known."""
        part = super().part(selection, kept, chance)
        memo = {**part.memo, "target": part.recall("target") * chance}
        return Selection(part.round, part.clients, part.probability, memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Reweight the drawn clients by their estimated success, and the overflow set S_t.

        The paper keeps the weights in S_t. The loss form divides all weights by the factor of a
        client that was not drawn (deviation 2), so there S_t loses that factor.
        """
        p = np.maximum(selection.recall("target"), SMALLEST_PROBABILITY)
        of_drawn, of_overflow = ESTIMATES[self.estimate]
        change = of_drawn(outcome.completed.astype(np.float64), p)  # Eq. (10) | Eq. (15)
        overflow, step = selection.recall("overflow"), selection.recall("step")
        if overflow.size:
            change[np.isin(selection.clients, overflow)] = 0.0  # its own success does not count
            self.log_weight_[overflow] += step * of_overflow
        self.log_weight_[selection.clients] += step * change  # Eq. (11) | Eq. (16)
        if self.share:
            # Only ratios of weights matter. Subtracting the largest logarithm keeps exp from
            # overflowing.
            weight = np.exp(self.log_weight_ - self.log_weight_.max())
            mixed = (1.0 - self.share) * weight + self.share * weight.mean()  # fixed share
            self.log_weight_ = np.log(mixed)

    def quota_at(self, round: int) -> float:
        """Return the quota of a round."""
        return at_round("quota", self.quota, round, maximum=1.0)

    def regret_bound(self, n_rounds: int, cohort_size: int, n_clients: int) -> FloatArray | None:
        """Return the bound of Theorem 1; none with a share, whose bound is for changing worlds."""
        if self.share:
            return None
        eta = None if self.eta == "theorem-1" else self.eta
        quota = np.array([self.quota_at(t) for t in range(n_rounds)])
        return theorem1_bound(quota, n_rounds, min(cohort_size, n_clients), n_clients, eta)

    def _rate(self, n_pool: int, k: int) -> float:
        if self.eta != "theorem-1":
            return self.eta
        assert self.horizon is not None  # checked in check_parameters
        given_by_weight = k * _sum_not_reserved(self.quota, self.horizon)  # sum of k - K sigma_t
        if given_by_weight <= 0.0 or n_pool < 2:
            return 0.0  # uniform throughout: there is nothing to learn
        return math.sqrt(n_pool * math.log(n_pool) / given_by_weight)  # Theorem 1


@lru_cache(maxsize=64)
def _sum_not_reserved(quota: float | Schedule, horizon: int) -> float:
    return sum(1.0 - at_round("quota", quota, t, maximum=1.0) for t in range(horizon))
