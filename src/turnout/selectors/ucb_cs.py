"""UCB-CS: discounted upper confidence bounds on the local loss.

Paper:      Y. J. Cho, S. Gupta, G. Joshi, O. Yagan, Bandit-based Communication-Efficient Client
            Selection Strategies for Federated Learning, Asilomar 2020, arXiv:2012.08009.
Setting:    The chosen clients report their mean local loss and its spread over mini-batches. The
            server knows num_samples. No horizon and no polls are needed.
Idea:       Clients with a high loss speed up training. Estimate each client's loss by a discounted
            mean of its reports, add a bonus that grows while it is not chosen, weight the sum by
            its share of the data, and take the m largest.
Symbols:    discount = gamma, share = p_k, mean_loss_ = L_t / N_t, count_ = N_t(gamma, k),
            rounds_ = T_t(gamma), spread_ = sigma_t.
Equations:  select: Eqs. (4), (7), Alg. 1 line 7. observe: Eqs. (5), (6), (7).
Deviations: 1. Eqs. (5)-(7) discount once per local iteration, Alg. 1 line 8 once per round. Here it
            is once per round. discount=gamma**tau restores the iteration count.
            2. Alg. 1 line 8 discounts the stored index of a neglected client, which contradicts Eq.
            (4), where its bonus grows. Here Eq. (4) is computed for every client in every round;
            stored_index=True is Alg. 1 as printed.
            3. A client that was never chosen has an infinite index, and ties are broken at random.
            The paper leaves round 0 open.
            4. A chosen client that reports no loss counts as tried at its own mean, or at 0 if it
            has none. Otherwise a client that never answers would stay at infinity and be chosen
            forever. sigma_t keeps its value when no client reports a spread.
            5. Unknown data sizes (NaN) count as the mean size.
            6. By deviation 4, a client that stopped answering keeps its mean. So after ``patience``
            unanswered requests in a row, each further one halves its index. The client is then
            asked less and less often, whenever its bonus has grown enough
            (turnout.sampling.running). patience=None turns this off.
Limits:     It trusts reported losses: a client that reports a large one is chosen often. Without a
            reported spread there is no exploration beyond the first visit.
Cost:       O(n) select and observe, state 24n bytes.
Checked:    By hand and against a slow implementation of Eqs. (4)-(7), in
            tests/selectors/test_ucb_cs.py.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np

from turnout.core.domains import Flag, Fraction, Index
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import LARGEST_REPORT, FloatArray, Outcome, RoundContext, Selection
from turnout.sampling import known_weights, top_m
from turnout.sampling.running import count_unanswered, lowered

#: Stored index of a client that was never chosen.
NEVER = -1.0


@register("ucb-cs")
class UCBCS(Selector):
    """The largest discounted upper confidence bounds on local loss, weighted by data.

    Args:
        discount: How much of the past counts after a round; gamma in the paper, 0.7 for
            Synthetic(1,1). Lower follows changing losses faster and is noisier. Try 0.7 first.
        stored_index: Whether the index of a client is computed when it reports, and multiplied by
            the discount after each round, as Alg. 1 line 8 prints it. False computes Eq. (4) for
            everyone in every round. Keep False.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its score (deviation 6). None never lowers it. Keep 5.
    """

    memo_by_client = frozenset({"share"})
    needs_columns = frozenset({"num_samples"})
    needs_metrics = frozenset({"loss", "loss_std"})
    reports_probability = True

    later_state = frozenset({"unanswered_"})
    state_ranges = MappingProxyType(
        {
            "mean_loss_": Range(0.0, LARGEST_REPORT),
            "count_": NOT_NEGATIVE,
            "unanswered_": NOT_NEGATIVE,
            "rounds_": NOT_NEGATIVE,
            "spread_": Range(0.0, LARGEST_REPORT),
            "index_": Range(NEVER, LARGEST_REPORT),
        }
    )

    def __init__(
        self, *, discount: Fraction = 0.7, stored_index: Flag = False, patience: Index | None = 5
    ) -> None:
        self.discount = discount
        self.stored_index = stored_index
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Nobody has reported yet."""
        super().reset(n_clients)
        self.mean_loss_ = np.zeros(n_clients)
        self.count_ = np.zeros(n_clients)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)
        self.rounds_ = 0.0
        self.spread_ = 0.0
        if self.stored_index:
            self.index_ = np.full(n_clients, NEVER)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take the m largest indices."""
        # Shares are of all clients, available or not, as p_k in the paper.
        size = known_weights(ctx.column("num_samples"))
        share = ctx.of_pool(size) / max(float(size.sum()), np.finfo(np.float64).tiny)
        if self.stored_index:
            index = ctx.of_pool(self.index_)
            index = np.where(index == NEVER, np.inf, index)
        else:
            index = self._index(share, ctx.of_pool(self.count_), ctx.of_pool(self.mean_loss_))
        index = lowered(index, ctx.of_pool(self.unanswered_), self.patience)
        ranking = top_m(index, ctx.size, rng)
        memo = {"share": share[ranking.chosen]}
        return Selection(ctx.round, ctx.pool[ranking.chosen], ranking.probability, memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Discount everything by one round and add what the chosen reported."""
        chosen = selection.clients
        self.rounds_ = self.discount * self.rounds_ + 1.0  # T_t, Eq. (7)
        self.count_ *= self.discount  # Eq. (6)
        count, mean = self.count_[chosen], self.mean_loss_[chosen]
        loss = outcome.metric("loss")
        count_unanswered(self.unanswered_, chosen, ~np.isnan(loss))
        loss = np.where(np.isnan(loss), mean, loss)
        self.mean_loss_[chosen] = (count * mean + loss) / (count + 1.0)  # L_t / N_t, Eq. (5)
        self.count_[chosen] = count + 1.0
        spread = outcome.metric("loss_std")
        if not np.isnan(spread).all():
            self.spread_ = float(np.nanmax(spread))
        if self.stored_index:
            self.index_ = np.where(self.index_ == NEVER, NEVER, self.discount * self.index_)
            count, mean = self.count_[chosen], self.mean_loss_[chosen]
            index = self._index(selection.recall("share"), count, mean)  # Alg. 1, lines 5-6
            self.index_[chosen] = np.minimum(index, LARGEST_REPORT)

    def _index(self, share: FloatArray, count: FloatArray, mean_loss: FloatArray) -> FloatArray:
        """Return Eq. (4); infinite for clients that were never chosen."""
        bonus = 2.0 * self.spread_**2 * math.log(max(1.0, self.rounds_))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            index: FloatArray = np.sqrt(bonus / count)  # Eq. (7)
            index += mean_loss
            index *= share  # Eq. (4)
        index[share == 0.0] = 0.0  # also where the bonus of a long forgotten client overflows
        index[count == 0.0] = np.inf
        return index
