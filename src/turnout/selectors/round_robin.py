"""Round-robin: whoever has waited longest goes next.

Paper:      There is none: the classical scheduler, as a deterministic fairness baseline.
Setting:    No feedback is needed. It is fair in every window of n / m rounds.
Idea:       Keep the round in which each client was last chosen, and take the clients that have
            waited longest. Clients that never took part come first. Ties go to clients with fewer
            turns and are then broken at random, so each cycle has a random order.
Symbols:    last_round_ = round of the last participation, -1 = never; n_chosen_ = turns taken.
Equations:  There are none.
Deviations: none.
Limits:     It gives clients that always fail as many places as reliable ones.
Cost:       O(n) select, O(m) observe, state 16n bytes.
Checked:    Every client comes exactly once in a cycle: tests/selectors/test_baselines.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import FloatArray, Outcome, RoundContext, Selection
from turnout.sampling import top_m, top_m_chances


@register("round-robin")
class RoundRobin(Selector):
    """The longest waiting first."""

    expected_check_failures: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"learns": "fair by design: what came of a participation is not used"}
    )

    state_ranges = MappingProxyType({"last_round_": Range(-1.0), "n_chosen_": NOT_NEGATIVE})

    reports_probability = True

    def reset(self, n_clients: int) -> None:
        """Nobody has taken part yet."""
        super().reset(n_clients)
        self.last_round_ = np.full(n_clients, -1.0)
        self.n_chosen_ = np.zeros(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take the clients whose last participation lies furthest back."""
        ranking = top_m(self._wait(ctx), ctx.size, rng)
        return Selection(ctx.round, ctx.pool[ranking.chosen], ranking.probability)

    def chances(self, ctx: RoundContext) -> FloatArray:
        """Return 1 for those whose turn it is, and equal chances for drawn places."""
        return ctx.of_everyone(top_m_chances(self._wait(ctx), ctx.size))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Note the participation, whatever came of it; late feedback never turns time back."""
        last = self.last_round_[selection.clients]
        self.last_round_[selection.clients] = np.maximum(last, selection.round)
        self.n_chosen_[selection.clients] += 1.0

    def _wait(self, ctx: RoundContext) -> FloatArray:
        """Return how long each available client has waited; fewer turns decide ties."""
        turns = self.n_chosen_ / (self.n_chosen_.max() + 1.0)  # below 1
        return np.negative(ctx.of_pool(self.last_round_ + turns))
