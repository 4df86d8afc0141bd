"""NAME: one line in words. Copy this file, it is a working selector.

Paper:      authors, title, venue year, arXiv or DOI.
Setting:    feedback used (success | loss | duration | context), horizon needed?, polling?, fair?
Idea:       three to six lines.
Symbols:    cohort_size = m, score_ = s_i ...
Equations:  select: Eq. (a), Alg. b lines c-d; observe: Eq. (e).
Deviations: numbered; each says what, why, and the parameter that restores the paper.
Limits:     when it fails.
Cost:       O(n) select, O(m) observe, state 8n bytes.
Checked:    by hand and against a slow implementation: tests/test_name.py.
"""

from __future__ import annotations

import numpy as np

from turnout.core.domains import Fraction
from turnout.core.selector import Selector
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.sampling import top_m


class Template(Selector):
    """The clients that succeeded most often lately; above it belongs ``@register("name")``.

    Args:
        memory: How much of the score is kept in a round; mu in the paper. Say what it does, and
            which value to try first.
    """

    needs_columns = frozenset[str]()  # columns that must be in the context
    needs_metrics = frozenset[str]()  # metrics that clients should report
    reports_probability = True  # False if there is no closed form

    def __init__(self, *, memory: Fraction = 0.9) -> None:
        self.memory = memory  # parameters are keyword-only and stored unchanged

    def reset(self, n_clients: int) -> None:
        """Allocate what is learned; names end in an underscore."""
        super().reset(n_clients)
        self.score_ = np.ones(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Choose from the available clients; the state stays as it is."""
        ranking = top_m(ctx.of_pool(self.score_), ctx.size, rng)
        return Selection(ctx.round, ctx.pool[ranking.chosen], ranking.probability)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Learn from what happened to the chosen."""
        score = self.score_[selection.clients]
        self.score_[selection.clients] = (
            self.memory * score + (1.0 - self.memory) * outcome.completed
        )
