"""OCS: optimal client sampling by the size of updates, with unbiased weights.

Paper:      W. Chen, S. Horvath, P. Richtarik, Optimal Client Sampling for Federated Learning,
            TMLR 2022, arXiv:2010.13723. We read the abstract and, line by line, the authors' code
            (SamuelHorvath/FL-optimal-client-sampling), which has AOCS, but not the whole text.
Setting:    The chosen clients report the norm of their update (update_norm). The server knows
            num_samples. No horizon and no polls are needed.
Idea:       The variance of an unbiased estimate of the full update is least when clients are drawn
            in proportion to the norms of their weighted updates, capped at certainty. Clients with
            large updates take part nearly always and those with small ones seldom. The aggregation
            divides by the probability: train with InverseProbability().
Symbols:    norm_ = |U_i|, share = w_i, weight = |w_i U_i|, probability = p_i, cohort_size = m,
            iterations = j_max.
Equations:  select: p minimises sum_i |w_i U_i|^2 / p_i subject to sum p = m and p <= 1 (OCS); with
            iterations, the algorithm that the paper calls AOCS. observe: |U_i| of the chosen.
Deviations: 1. In the paper all clients train in every round and only the drawn ones send their
            updates, so norms are those of this round. Here only chosen clients train, and norms are
            those of a client's last answer. The estimate stays unbiased, but its variance is least
            only while norms hardly change. No parameter restores the paper, because every client
            would have to train in every round.
            2. A client that has never answered gets the largest known weight, so that it is tried
            soon. The paper has no such clients.
            3. The paper draws each client independently, so a cohort is m on average and may be
            larger. Here the draw has the same probabilities and a fixed size, since the contract
            and the servers allow no more than m.
            4. With iterations, the probabilities of AOCS sum to at most m, and the cohort is the
            whole number below or above their sum.
            5. After ``patience`` unanswered requests in a row, each further one halves the weight
            of a client (turnout.sampling.running). patience=None turns this off.
            6. A weight counts at least 1e-6 of the largest, so that a client with a norm of 0 is
            looked at again and no probability is 0.
Limits:     Large norms come from unusual data, but also from noise and lies; bounds limit them.
            With the default mean in place of InverseProbability(), clients with large updates count
            too much.
Cost:       O(n) select, O(m) observe, state 17n bytes.
Checked:    By hand, against a general optimiser, against the authors' form of the formula and of
            AOCS one client at a time, and for unbiasedness, in tests/selectors/test_ocs.py.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np

from turnout.core.domains import Count, Index
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import LARGEST_REPORT, FloatArray, Outcome, RoundContext, Selection
from turnout.sampling import capped_allocation, exact_draw, known_weights
from turnout.sampling.running import count_unanswered, lowered

#: Least weight of a client, as a share of the largest.
LEAST_WEIGHT = 1e-6


@register("ocs")
class OCS(Selector):
    """Draw clients in proportion to the norm of their last update, weighted by data.

    Args:
        iterations: None computes the optimal probabilities. A number computes those of AOCS, which
            needs only sums over clients and so works with secure aggregation; j_max in the paper,
            which uses 4. Keep None unless you reproduce AOCS.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its weight (deviation 5). None never lowers it. Keep 5.
    """

    needs_columns = frozenset({"num_samples"})
    needs_metrics = frozenset({"update_norm"})
    reports_probability = True

    state_ranges = MappingProxyType(
        {"norm_": Range(0.0, LARGEST_REPORT), "unanswered_": NOT_NEGATIVE}
    )

    def __init__(self, *, iterations: Count | None = None, patience: Index | None = 5) -> None:
        self.iterations = iterations
        self.patience = patience

    @property
    def may_underfill(self) -> bool:  # type: ignore[override]  # depends on a parameter
        """Probabilities of AOCS may sum to less than the cohort."""
        return self.iterations is not None

    def reset(self, n_clients: int) -> None:
        """No client has answered yet."""
        super().reset(n_clients)
        self.norm_ = np.zeros(n_clients)
        self.is_known_ = np.zeros(n_clients, dtype=np.bool_)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw with the optimal probabilities."""
        weight = self._weight(ctx)
        if self.iterations is None:
            p = capped_allocation(np.log(weight), ctx.size).probability
        else:
            p = approximate_probability(weight, ctx.size, self.iterations)
        rest = math.ceil(float(p.sum()) - 1e-9) - float(p.sum())
        drawn = exact_draw(np.append(p, max(0.0, rest)), rng)  # the last one stands for nobody
        drawn = drawn[drawn < p.size]
        return Selection(ctx.round, ctx.pool[drawn], np.minimum(p[drawn], 1.0))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Remember the norms of the chosen."""
        norm, chosen = outcome.metric("update_norm"), selection.clients
        answered = ~np.isnan(norm)
        count_unanswered(self.unanswered_, chosen, answered)
        self.norm_[chosen[answered]] = norm[answered]
        self.is_known_[chosen[answered]] = True

    def _weight(self, ctx: RoundContext) -> FloatArray:
        """Return (p,) |w_i U_i| of the available clients, relative to the largest."""
        share = ctx.of_pool(known_weights(ctx.column("num_samples")))
        weight = share / max(float(share.max(initial=0.0)), np.finfo(float).tiny)
        weight = weight * ctx.of_pool(self.norm_)
        known = ctx.of_pool(self.is_known_)
        largest = float(weight[known].max(initial=0.0))
        if largest == 0.0:  # no client is known, or no known update was more than nothing
            weight, largest = np.ones(weight.size), 1.0
        weight = np.where(known, weight / largest, 1.0)
        weight = lowered(weight, ctx.of_pool(self.unanswered_), self.patience)
        return np.maximum(weight, LEAST_WEIGHT)


def approximate_probability(weight: FloatArray, size: int, iterations: int) -> FloatArray:
    """Return (n,) the probabilities of AOCS; they sum to at most ``size``.

    Args:
        weight: (n,) |w_i U_i|, above 0.
        size: m, from 0 to n.
        iterations: j_max.
    """
    p: FloatArray = np.minimum(size * weight / max(float(weight.sum()), 1e-300), 1.0)
    for _ in range(iterations):
        below = p < 1.0
        n_below, total = int(below.sum()), float(p[below].sum())
        factor = (size - p.size + n_below) / total if total > 0.0 else 1.0
        if factor <= 1.0:
            break
        p = np.minimum(factor * p, 1.0)
    return p
