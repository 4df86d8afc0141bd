"""FedCor after Tang et al. with whole covariance matrices, one client at a time."""

from __future__ import annotations

import math

import numpy as np


def covariance(embedding: np.ndarray, noise: float) -> list[list[float]]:
    """The homogeneous linear kernel with noise on the diagonal."""
    n = len(embedding)
    return [
        [
            float(np.dot(embedding[i], embedding[j])) + (noise**2 if i == j else 0.0)
            for j in range(n)
        ]
        for i in range(n)
    ]


def cohort(
    sigma: list[list[float]], share: list[float], alpha: list[float], size: int, pool: list[int]
) -> list[int]:
    """Take the largest expected decrease, condition on it, and repeat."""
    n = len(sigma)
    sigma = [list(row) for row in sigma]
    chosen: list[int] = []
    while len(chosen) < size:
        best, most = -1, -math.inf
        for k in pool:
            if k in chosen:
                continue
            decrease = sum(share[i] * sigma[i][k] for i in range(n) if i not in chosen)
            decrease *= alpha[k] / math.sqrt(sigma[k][k])
            if decrease > most:
                best, most = k, decrease
        chosen.append(best)
        column = [sigma[i][best] for i in range(n)]
        for i in range(n):
            for j in range(n):
                sigma[i][j] -= column[i] * column[j] / column[best]
    return chosen


def log_likelihood(
    embedding: np.ndarray,
    change: np.ndarray,
    is_measured: np.ndarray,
    weight: np.ndarray,
    noise: float,
) -> float:
    """Sum over samples of the weighted log density of a multivariate normal distribution."""
    total = 0.0
    sigma = np.array(covariance(embedding, noise))
    for s in range(change.shape[1]):
        seen = np.flatnonzero(is_measured[:, s])
        y, k = change[seen, s], sigma[np.ix_(seen, seen)]
        determinant = float(np.linalg.slogdet(2 * math.pi * k)[1])
        total += weight[s] * -0.5 * (float(y @ np.linalg.solve(k, y)) + determinant)
    return total
