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
    random_part,
    systematic_draw,
    uniform_draw,
)
from turnout.sampling.running import below_everyone, count_unanswered, lowered

__all__ = [
    "Allocation",
    "Ranking",
    "below_everyone",
    "bottleneck_limit",
    "capped_allocation",
    "count_unanswered",
    "dependent_rounding",
    "draw_candidates",
    "exact_draw",
    "known_weights",
    "kth_largest",
    "lowered",
    "multinomial_without_replacement",
    "random_part",
    "systematic_draw",
    "top_m",
    "top_m_chances",
    "uniform_draw",
]
