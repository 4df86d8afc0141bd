"""TiFL from its text, one client and one tier at a time: tiering, draw, credits, ChangeProbs."""

from __future__ import annotations

import random


def tiers_of(seconds: list[float], n_tiers: int) -> list[list[int]]:
    """Sort clients by time and cut the list into equal parts, the fastest first."""
    order = sorted(range(len(seconds)), key=lambda k: seconds[k])
    n = len(order)
    return [
        [k for place, k in enumerate(order) if place * n_tiers // n == t] for t in range(n_tiers)
    ]


def draw(tiers: list[list[int]], probs: list[float], size: int, rng: random.Random) -> set[int]:
    """Draw a tier, then clients of it; a tier that is too small is filled from the nearest."""
    (drawn,) = rng.choices(range(len(tiers)), probs)
    cohort: set[int] = set()
    for t in sorted(range(len(tiers)), key=lambda t: (abs(t - drawn), t)):
        cohort |= set(rng.sample(tiers[t], min(size - len(cohort), len(tiers[t]))))
    return cohort


def change_probs(losses: list[float], least: float = 1.0) -> list[float]:
    """Each tier gets one share more than the next better one, and the best gets ``least``."""
    n = len(losses)
    worse_than = [sum(other < loss for other in losses) for loss in losses]
    return [(below + least) / (n * (n - 1) / 2 + n * least) for below in worse_than]
