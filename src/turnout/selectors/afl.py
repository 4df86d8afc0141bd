"""AFL: active federated learning, a softmax over losses with a random rest.

Paper:      J. Goetz, K. Malik, D. Bui, S. Moon, H. Liu, A. Kumar, Active Federated Learning,
            NeurIPS 2019 workshop, arXiv:1909.12641. We read the abstract, a public statement of its
            Algorithm 1 and, line by line, the code of Plato and of FedCor's authors, but not the
            whole text.
Setting:    The chosen clients report their mean local loss. The server knows num_samples. No
            horizon and no polls are needed.
Idea:       A client's value is the loss of its last answer, weighted so that large clients count
            more. The least valuable three quarters are left out. Most of the cohort is drawn by a
            softmax over the values of the others, and a tenth at random from all that are left.
Symbols:    value_ = v_k, ignored = alpha_1, sharpness = alpha_2, random_share = alpha_3,
            cohort_size = m.
Equations:  select: Algorithm 1. observe: the valuation l(x_k, y_k; w) / sqrt(n_k)
            with the summed loss l, that is sqrt(n_k) times the mean loss.
Deviations: 1. A client that has not answered counts with the mean of the known values; while none
            is known, all are alike. The public codes differ: FedCor's authors evaluate the first
            model on all clients, or start at a high value; in Plato such clients come last.
            2. alpha_3 m is seldom a whole number. Here it is rounded up with the chance of its
            fraction, so that it is right on average. Both public codes always round it up.
            3. Fewer than alpha_1 n clients are left out where the rest could not fill the cohort.
            4. Unknown data sizes (NaN) count as the mean size.
            5. The paper takes the loss on all data of a client before training; training here
            reports the mean loss of the mini-batches during it.
            6. After ``patience`` unanswered requests in a row, each further one halves a client's
            value (turnout.sampling.running). patience=None turns this off.
Limits:     It trusts reported losses. With small losses, alpha_2 = 0.01 makes the softmax nearly
            uniform over the clients that are not left out.
Cost:       O(n) select, O(m) observe, state 17n bytes.
Checked:    By hand, against a slow implementation and by frequencies, in
            tests/selectors/test_afl.py.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np

from turnout.core.domains import Fraction, Index, NonNegative
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.sampling import (
    known_weights,
    multinomial_without_replacement,
    top_m,
    uniform_draw,
)
from turnout.sampling.running import count_unanswered, lowered


@register("afl")
class AFL(Selector):
    """Draw by a softmax over the values of the most valuable clients, and some at random.

    Args:
        ignored: Share of the available clients, the least valuable, that only the random rest can
            draw; alpha_1 in the paper. Keep 0.75.
        sharpness: How much a unit of value counts in the softmax; alpha_2 in the paper, 0.01.
            Raise it if losses are small.
        random_share: Share of the cohort that is drawn at random; alpha_3 in the paper. Keep 0.1.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its value (deviation 6). None never lowers it. Keep 5.
    """

    memo_by_client = frozenset({"root"})
    needs_columns = frozenset({"num_samples"})
    needs_metrics = frozenset({"loss"})

    state_ranges = MappingProxyType({"value_": NOT_NEGATIVE, "unanswered_": NOT_NEGATIVE})

    def __init__(
        self,
        *,
        ignored: Fraction = 0.75,
        sharpness: NonNegative = 0.01,
        random_share: Fraction = 0.1,
        patience: Index | None = 5,
    ) -> None:
        self.ignored = ignored
        self.sharpness = sharpness
        self.random_share = random_share
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """No client has answered yet."""
        super().reset(n_clients)
        self.value_ = np.zeros(n_clients)
        self.is_known_ = np.zeros(n_clients, dtype=np.bool_)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw the valuable, then the random rest."""
        n_pool = ctx.pool.size
        n_random = min(ctx.size, math.floor(self.random_share * ctx.size + rng.random()))
        n_valued = ctx.size - n_random
        value = ctx.of_pool(self.value_)
        known = ctx.of_pool(self.is_known_)
        typical = float(value[known].mean()) if known.any() else 0.0
        value = np.where(known, value, typical)
        value = lowered(value, ctx.of_pool(self.unanswered_), self.patience)
        n_kept = max(n_valued, n_pool - math.floor(self.ignored * n_pool))
        kept = top_m(value, n_kept, rng).chosen
        largest = float(value[kept].max(initial=0.0))
        weight = np.exp(self.sharpness * (value[kept] - largest))
        drawn = kept[multinomial_without_replacement(weight, n_valued, rng)]
        rest = np.delete(np.arange(n_pool), drawn)
        chosen = np.concatenate((drawn, rest[uniform_draw(rest.size, n_random, rng)]))
        size = known_weights(ctx.column("num_samples"))[ctx.pool[np.sort(chosen)]]
        return Selection(ctx.round, ctx.pool[np.sort(chosen)], memo={"root": np.sqrt(size)})

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Value the clients that reported a loss."""
        loss, chosen = outcome.metric("loss"), selection.clients
        answered = ~np.isnan(loss)
        count_unanswered(self.unanswered_, chosen, answered)
        value = selection.recall("root") * loss
        self.value_[chosen[answered]] = value[answered]
        self.is_known_[chosen[answered]] = True
