"""The oracle of the arena: the objective and the floor of ``pace``, and nothing left to learn.

It is told what no server knows: every client's expected time in this round, its chance to answer,
and its loss under the present model. Without floor and queue it is the unfair oracle.
Its lead over the baseline is what can be won by knowing more. It is no bound on what can be won by
planning ahead, and in worlds with liars it hears the same losses as everyone.
"""

from __future__ import annotations

import numpy as np

from turnout.core.types import FloatArray, IntArray, RoundContext
from turnout.selectors.pace import CLIP, SHORTEST, Pace, typical_share


class Oracle(Pace):
    """Pace with true expectations."""

    needs_columns = frozenset({"expected_duration", "success_rate"})
    uses_columns = frozenset({"num_samples"})

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Ask everyone for the loss."""
        return ctx.pool if self.utility > 0.0 else None

    def _expected(self, ctx: RoundContext, base: FloatArray) -> FloatArray:
        """Return the true expectations."""
        time = np.array(ctx.column("expected_duration"), dtype=np.float64)
        return np.maximum(np.nan_to_num(time, nan=float(base.mean())), SHORTEST)

    def _worth(self, ctx: RoundContext) -> FloatArray:
        """Return utility times the true chance to answer."""
        worth = np.nan_to_num(np.array(ctx.column("success_rate"), dtype=np.float64))
        if ctx.polled is not None and ctx.polled_loss is not None:
            loss = np.full(ctx.n_clients, np.nan)
            loss[ctx.polled] = ctx.polled_loss
            worth *= typical_share(loss, CLIP)
        if "num_samples" in ctx.columns:
            worth *= typical_share(np.array(ctx.column("num_samples"), dtype=np.float64), CLIP)
        return worth
