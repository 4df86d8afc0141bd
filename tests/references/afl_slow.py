"""Active Federated Learning as Goetz et al. print it, one client at a time."""

from __future__ import annotations

import math
import random


def cohort(
    values: list[float], m: int, alpha: tuple[float, float, float], rng: random.Random
) -> set[int]:
    ignored, sharpness, random_share = alpha
    n = len(values)
    n_random = math.floor(random_share * m + rng.random())
    order = list(range(n))
    rng.shuffle(order)  # ties
    order.sort(key=lambda k: values[k])
    n_ignored = min(math.floor(ignored * n), n - (m - n_random))
    scores = dict.fromkeys(order[n_ignored:], 0.0)
    for k in scores:
        scores[k] = math.exp(sharpness * (values[k] - max(values)))
    chosen: set[int] = set()
    while len(chosen) < m - n_random:  # one after the other, by what is left
        left = [k for k in scores if k not in chosen]
        chosen.add(rng.choices(left, [scores[k] for k in left])[0])
    rest = [k for k in range(n) if k not in chosen]
    return chosen | set(rng.sample(rest, n_random))
