"""REFL's selection from its text and the authors' code, one client at a time."""

from __future__ import annotations

import itertools
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
