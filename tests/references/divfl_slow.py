"""DivFL after Balakrishnan et al., one client at a time, on whole vectors."""

from __future__ import annotations

import itertools
import math
import random


def error(vectors: list[list[float]], cohort: list[int]) -> float:
    """Sum over all clients of the distance to the closest client of the cohort."""
    return sum(min(math.dist(vector, vectors[i]) for i in cohort) for vector in vectors)


def greedy(vectors: list[list[float]], size: int) -> list[int]:
    """Add the client that leaves the smallest error, one at a time."""
    cohort: list[int] = []
    while len(cohort) < size:
        rest = [k for k in range(len(vectors)) if k not in cohort]
        cohort.append(min(rest, key=lambda k: error(vectors, [*cohort, k])))
    return cohort


def stochastic_greedy(
    vectors: list[list[float]], size: int, n_sampled: int, rng: random.Random
) -> list[int]:
    """Greedy, but every step looks at a random set of the clients that are left."""
    cohort: list[int] = []
    while len(cohort) < size:
        rest = [k for k in range(len(vectors)) if k not in cohort]
        looked_at = rng.sample(rest, min(n_sampled, len(rest)))
        cohort.append(min(looked_at, key=lambda k: error(vectors, [*cohort, k])))
    return cohort


def best(vectors: list[list[float]], size: int) -> float:
    """The smallest error of all cohorts."""
    every = itertools.combinations(range(len(vectors)), size)
    return min(error(vectors, list(cohort)) for cohort in every)
