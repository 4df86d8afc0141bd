"""REFL, both halves, from its authors' code, one client at a time."""

from __future__ import annotations

import itertools
import math
import random


def chosen(
    forecast: list[float],
    last_answer: list[int],
    t: int,
    size: int,
    rest: int,
    rule: str,
    rng: random.Random,
) -> set[int]:
    """Sort the clients that check in by their forecast; resting ones fill what is left."""

    def key(k: int) -> tuple[float, float]:
        return (forecast[k] if rule == "ranked" else float(forecast[k] >= 0.5), rng.random())

    everyone = range(len(forecast))
    resting = [k for k in everyone if last_answer[k] >= 0 and t - last_answer[k] <= rest]
    awake = [k for k in everyone if k not in resting]
    return set((sorted(awake, key=key) + sorted(resting, key=key))[:size])


def stay_rates(seen: list[list[bool]], strength: float) -> list[float]:
    """The share of rounds after which an available client was available again."""
    n = len(seen[0])
    chances, stays = [0] * n, [0] * n
    for before, after in itertools.pairwise(seen):
        for k in range(n):
            if before[k]:
                chances[k] += 1
                stays[k] += after[k]
    usual = sum(stays) / sum(chances) if sum(chances) else 1.0
    return [(s + strength * usual) / (c + strength) for s, c in zip(stays, chances, strict=True)]


def stale_weights(
    staleness: list[int], updates: list[list[float]], beta: float, scale: float = 1.0
) -> list[float]:
    """The aggregation of stale updates, as the authors' code computes it; they sum to 1.

    A fresh update counts 1. Without a fresh one the deviation is left out.
    """
    fresh = [u for u, age in zip(updates, staleness, strict=True) if age == 0]
    n = len(fresh)
    total = [sum(u[i] for u in fresh) for i in range(len(updates[0]))]
    ratio = {}
    for k, (u, age) in enumerate(zip(updates, staleness, strict=True)):
        if age and n:
            moved = sum(
                (x / (n + 1) + f / (n + 1) - f / n) ** 2 for x, f in zip(u, total, strict=True)
            )
            ratio[k] = moved / sum((f / n) ** 2 for f in total)
    largest = max(ratio.values(), default=1.0)
    weights = []
    for k, age in enumerate(staleness):
        boost = 1.0 - math.exp(-ratio[k] / largest) / scale if k in ratio else 0.0
        weights.append(1.0 if age == 0 else (1.0 - beta) / (age + 1) + beta * boost)
    return [w / sum(weights) for w in weights]
