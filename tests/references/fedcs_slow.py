"""FedCS, one client at a time: Nishio and Yonetani (arXiv:1804.08333) Alg. 3, and two readings."""

from __future__ import annotations

import math


def nishio_algorithm_3(
    pool: list[int],
    update: list[float],
    upload: list[float],
    download: list[float],
    deadline: float,
    at_most: int,
) -> list[int]:
    """The loop as printed; ``update`` is t^UD, ``upload`` t^UL, T^d_S the slowest download in S.

    Without room for ``at_most`` clients it is the paper's; T_cs = T_agg = 0.
    """

    def distribution(members: list[int]) -> float:
        return max((download[k] for k in members), default=0.0)

    remaining = list(pool)
    chosen: list[int] = []
    theta = 0.0
    while remaining and len(chosen) < at_most:
        best, best_value = -1, -math.inf
        for k in remaining:  # line 3
            increase = (
                distribution([*chosen, k])
                - distribution(chosen)
                + upload[k]
                + max(0.0, update[k] - theta)
            )
            value = math.inf if increase == 0.0 else 1.0 / increase
            if value > best_value:
                best, best_value = k, value
        remaining.remove(best)  # line 4
        theta_new = theta + upload[best] + max(0.0, update[best] - theta)  # line 5
        t = distribution([*chosen, best]) + theta_new  # line 6
        if t < deadline:  # line 7
            theta = theta_new
            chosen.append(best)
    return chosen


def most_reliable(pool: list[int], rate: list[float], k: int) -> list[int]:
    """E3CS: the k clients of highest true success rate."""
    order = sorted(pool, key=lambda i: -(0.0 if math.isnan(rate[i]) else rate[i]))
    return sorted(order[:k])


def below_deadline(pool: list[int], duration: list[float], deadline: float) -> list[int]:
    """RBCS-F Sec. 6.1.1: all whose expected time is shorter than the deadline."""
    return [i for i in pool if duration[i] < deadline]
