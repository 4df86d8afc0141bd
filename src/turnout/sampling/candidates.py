"""Draw candidates in proportion to their data, also where the size of the data is unknown."""

from __future__ import annotations

import numpy as np

from turnout import require
from turnout.arrays import vector
from turnout.errors import InvalidInput
from turnout.sampling.rounding import multinomial_without_replacement
from turnout.types import FloatArray, IntArray, RoundContext


def known_weights(weight: FloatArray) -> FloatArray:
    """Return the weights as floats, with the mean of the known ones in place of NaN.

    Args:
        weight: (n,) weights, NaN = unknown. If all are unknown, all become 1.
    """
    weight = vector("weight", weight, np.float64)
    unknown = np.isnan(weight)
    if not unknown.any():
        return weight
    reported = weight[~unknown]
    return np.where(unknown, reported.mean() if reported.size else 1.0, weight)


def draw_candidates(
    ctx: RoundContext, candidates: int | None, rng: np.random.Generator
) -> IntArray:
    """Draw d available clients without replacement in proportion to ``num_samples``.

    Args:
        ctx: The round; it must have the column ``num_samples``.
        candidates: d, at least the cohort size; None = twice the cohort. At most everyone available
            is drawn.
        rng: Generator of the draw.

    Returns:
        (d,) client indices, ascending.
    """
    require.instance("ctx", ctx, RoundContext)
    if candidates is None:
        candidates = 2 * ctx.size
    elif require.integer("candidates", candidates, minimum=1) < ctx.cohort_size:
        raise InvalidInput(
            f"candidates must be at least cohort_size = {ctx.cohort_size}, got {candidates}.",
            field="candidates",
        )
    d = min(candidates, ctx.pool.size)
    weight = ctx.of_pool(known_weights(ctx.column("num_samples")))
    return ctx.pool[multinomial_without_replacement(weight, d, rng)]
