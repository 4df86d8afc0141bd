"""Fed-CBS one client and one number at a time: QCID, and the probability of every cohort."""

from __future__ import annotations

import math

FLOOR = 1e-6


def qcid(counts: list[list[float]], members: list[int]) -> float:
    """The squared distance between the label shares of some clients and equal shares."""
    n_classes = len(counts[0])
    total = sum(sum(counts[k]) for k in members)
    share = [sum(counts[k][b] for k in members) / total for b in range(n_classes)]
    return sum((s - 1.0 / n_classes) ** 2 for s in share)


def qcid_by_products(counts: list[list[float]], members: list[int]) -> float:
    """The same from inner products, as a server under encryption computes it."""
    total = sum(sum(counts[k]) for k in members)
    products = sum(
        sum(x * y for x, y in zip(counts[i], counts[j], strict=True))
        for i in members
        for j in members
    )
    return products / total**2 - 1.0 / len(counts[0])


def bonus(k: int, times: int, factor: float) -> float:
    return factor * math.sqrt(3.0 * math.log(k) / (2.0 * times))


def cohort_probabilities(
    counts: list[list[float]],
    times: list[int],
    k: int,
    size: int,
    factor: float,
    power: float = 1.0,
    by_candidate: bool = False,
    last_power: float | None = None,
    first_is_best: bool = False,
) -> dict[frozenset[int], float]:
    """Follow every order in which a cohort can be drawn."""
    found: dict[frozenset[int], float] = {}

    def weight(members: list[int], candidate: int) -> float:
        m = len(members) + 1
        beta = m * power
        if last_power is not None:
            beta = power + (last_power - power) * (m - 1) / (size - 1)
        score = max(qcid(counts, [*members, candidate]), FLOOR) ** -beta
        if m == 1:
            return score + bonus(k, times[candidate], factor)
        if m == 2 and by_candidate:
            first = max(qcid(counts, members), FLOOR) ** -power
            return score / (first + bonus(k, times[candidate], factor))
        return score

    def follow(members: list[int], chance: float) -> None:
        if len(members) == size:
            key = frozenset(members)
            found[key] = found.get(key, 0.0) + chance
            return
        rest = [c for c in range(len(counts)) if c not in members]
        weights = [weight(members, c) for c in rest]
        if first_is_best and not members:
            weights = [float(w == max(weights)) for w in weights]
        for c, w in zip(rest, weights, strict=True):
            follow([*members, c], chance * w / sum(weights))

    follow([], 1.0)
    return found


def best_of(
    counts: list[list[float]], chance: dict[frozenset[int], float], n_cohorts: int
) -> dict[frozenset[int], float]:
    """The chance of each cohort to be the most balanced of several draws; no two are alike."""
    balance = {members: qcid(counts, sorted(members)) for members in chance}
    found = {}
    for members, own in balance.items():
        worse = sum(p for other, p in chance.items() if balance[other] > own)
        found[members] = (worse + chance[members]) ** n_cohorts - worse**n_cohorts
    return found
