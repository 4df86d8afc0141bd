"""HiCS-FL by Eqs. (7), (9), (10), one client and one number at a time."""

from __future__ import annotations

import math
import random


def balance(bias: list[float], temperature: float) -> float:  # Eq. (7)
    top = max(bias)
    raw = [math.exp((b - top) / temperature) for b in bias]
    p = [r / sum(raw) for r in raw]
    return -sum(x * math.log(x) for x in p if x > 0.0)


def distance(a: list[float], b: list[float], temperature: float, factor: float) -> float:  # Eq. (9)
    product = sum(x * y for x, y in zip(a, b, strict=True))
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    angle = math.acos(max(-1.0, min(1.0, product / length)))
    return angle + factor * abs(balance(a, temperature) - balance(b, temperature))


def group_chances(groups: list[list[int]], balances: list[float], gamma: float) -> list[float]:
    means = [sum(balances[k] for k in members) / len(members) for members in groups]
    raw = [math.exp(gamma * mean) for mean in means]
    return [r / sum(raw) for r in raw]  # Eq. (10)


def cohort(
    groups: list[list[int]], chances: list[float], sizes: list[float], m: int, rng: random.Random
) -> set[int]:
    """Alg. 1, lines 7-12."""
    chosen: set[int] = set()
    while len(chosen) < m:
        (members,) = rng.choices(groups, chances)
        chosen.add(rng.choices(members, [sizes[k] for k in members])[0])
    return chosen
