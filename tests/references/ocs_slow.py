"""Optimal client sampling in the form of Chen, Horvath and Richtarik, one client at a time."""

from __future__ import annotations


def optimal(weights: list[float], m: int) -> list[float]:
    """Sort, find the largest l that leaves every p at most 1, and share m + l - n among l."""
    n = len(weights)
    order = sorted(range(n), key=lambda i: weights[i])
    best = 0
    for count in range(1, n + 1):
        total = sum(weights[i] for i in order[:count])
        left = m + count - n
        if left > 0 and left * weights[order[count - 1]] <= total:
            best = count
    p = [1.0] * n
    total = sum(weights[i] for i in order[:best])
    for i in order[:best]:
        p[i] = (m + best - n) * weights[i] / total
    return p


def approximate(weights: list[float], m: int, j_max: int) -> list[float]:
    """AOCS: clients send a pair (p, 1) or (0, 0), the server sends back one factor."""
    n, total = len(weights), sum(weights)
    p = [min(m * weight / total, 1.0) for weight in weights]
    for _ in range(j_max):
        pairs = [(value, 1) if value < 1.0 else (0.0, 0) for value in p]
        sum_p, count = sum(a for a, _ in pairs), sum(b for _, b in pairs)
        if sum_p == 0.0:
            break
        factor = (m - n + count) / sum_p
        p = [min(factor * value, 1.0) for value in p]
        if factor <= 1.0:
            break
    return p
