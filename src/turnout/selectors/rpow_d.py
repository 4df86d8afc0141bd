"""rpow-d: pow-d on the losses that clients reported when they last took part.

Paper:      Y. J. Cho, J. Wang, G. Joshi, Client Selection in Federated Learning: Convergence
            Analysis and Power-of-Choice Selection Strategies, arXiv:2010.01243 (pi_rpow-d).
Setting:    The chosen clients report their mean local loss. The server knows num_samples. No polls
            are needed.
Idea:       The communication-efficient variant of pow-d: draw d candidates in proportion to data
            size and rank them by the loss of their last participation. The loss of a client that
            never took part counts as infinite. Stale losses can mislead it: in UCB-CS it loses to
            the random draw.
Symbols:    candidates = d, last_loss_ = loss at the last participation.
Equations:  select: pi_rpow-d. observe: latest loss per client.
Deviations: 1. candidates=None is d = 2m, the setting of UCB-CS.
            2. A client that was chosen and reported nothing keeps its last loss. If it has none, it
            ranks after every client that reported, so silent clients are not chosen forever.
            3. In the paper no client stops answering. A client that does would keep its last loss.
            Here, after ``patience`` unanswered requests in a row, each further one halves that loss
            (turnout.sampling.running); patience=None restores the paper.
Limits:     Losses get stale: a client that was bad long ago keeps its rank until it is chosen
            again.
Cost:       O(n) select, O(m) observe, state 24n bytes.
Checked:    By hand and against a slow implementation, in tests/selectors/test_power_of_choice.py.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from turnout.core.domains import Count, Index
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import LARGEST_REPORT, Outcome, RoundContext, Selection
from turnout.sampling import draw_candidates, top_m
from turnout.sampling.running import count_unanswered, lowered

#: Loss of a client that never took part (above every loss) and of one that never reported.
NEVER_CHOSEN = 2.0 * LARGEST_REPORT
NEVER_REPORTED = -1.0


@register("rpow-d")
class RPowD(Selector):
    """Of d candidates, the m with the highest loss at their last participation.

    Args:
        candidates: Number of clients that are compared; d in the paper. At least the cohort size.
            None compares twice the cohort. A larger number prefers high losses more strongly, and
            costs nothing here.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its score (deviation 3). None never lowers it. Keep 5.
    """

    needs_columns = frozenset({"num_samples"})
    needs_metrics = frozenset({"loss"})

    later_state = frozenset({"unanswered_"})
    state_ranges = MappingProxyType(
        {
            "last_loss_": Range(NEVER_REPORTED, NEVER_CHOSEN),
            "last_round_": Range(-1.0),
            "unanswered_": NOT_NEGATIVE,
        }
    )

    def __init__(self, *, candidates: Count | None = None, patience: Index | None = 5) -> None:
        self.candidates = candidates
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Never took part = infinite loss, kept as a number above every loss."""
        super().reset(n_clients)
        self.last_loss_ = np.full(n_clients, NEVER_CHOSEN)
        self.last_round_ = np.full(n_clients, -1, dtype=np.int64)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Rank d candidates by their last loss."""
        candidates = draw_candidates(ctx, self.candidates, rng)
        unanswered = self.unanswered_[candidates]
        loss = lowered(self.last_loss_[candidates], unanswered, self.patience)
        best = top_m(loss, ctx.size, rng).chosen
        return Selection(ctx.round, np.sort(candidates[best]))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Keep the loss of the latest participation; late feedback does not undo newer."""
        answered = ~np.isnan(outcome.metric("loss"))
        count_unanswered(self.unanswered_, selection.clients, answered)
        is_newer = selection.round >= self.last_round_[selection.clients]
        clients, loss = selection.clients[is_newer], outcome.metric("loss")[is_newer]
        last = self.last_loss_[clients]
        kept = np.where(last == NEVER_CHOSEN, NEVER_REPORTED, last)
        self.last_loss_[clients] = np.where(np.isnan(loss), kept, loss)
        self.last_round_[clients] = selection.round
