"""Pure functions from weights, probabilities or scores to chosen positions."""

from turnout.sampling.allocation import Allocation, capped_allocation
from turnout.sampling.bottleneck import bottleneck_limit
from turnout.sampling.ranking import Ranking, kth_largest, top_m, top_m_chances
from turnout.sampling.rounding import (
    dependent_rounding,
    draw_candidates,
    exact_draw,
    known_weights,
    multinomial_without_replacement,
    systematic_draw,
    uniform_draw,
)

__all__ = [
    "Allocation",
    "Ranking",
    "bottleneck_limit",
    "capped_allocation",
    "dependent_rounding",
    "draw_candidates",
    "exact_draw",
    "known_weights",
    "kth_largest",
    "multinomial_without_replacement",
    "systematic_draw",
    "top_m",
    "top_m_chances",
    "uniform_draw",
]
