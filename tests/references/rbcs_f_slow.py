"""RBCS-F read straight from the paper: explicit H and b per client, P4 by the O(N^2) Alg. 1."""

from __future__ import annotations

import math
import statistics
from itertools import combinations

import numpy as np


def objective(chosen: list[int], time: list[float], queue: list[float], penalty: float) -> float:
    """Eq. (21) for one set."""
    return penalty * max(time[n] for n in chosen) - sum(queue[n] for n in chosen)


def algorithm_1(
    time: list[float], m: int, available: list[bool], queue: list[float], penalty: float
) -> tuple[list[int], float]:
    """Alg. 1: the best set and its objective; "break the first loop" is the inner one."""
    pool = [n for n in range(len(time)) if available[n]]
    by_queue = sorted(pool, key=lambda n: -queue[n])  # line 2
    k = min(m, len(pool))  # line 4
    best: list[int] = []
    best_value = math.inf
    for n_max in pool:  # line 5
        members: list[int] = []
        for n in by_queue:  # line 7
            if time[n] <= time[n_max]:
                members.append(n)
            if len(members) == k:
                value = objective(members, time, queue, penalty)  # line 12
                if value < best_value:
                    best, best_value = members, value
                break  # line 13
    return sorted(best), best_value


def brute_force(time: list[float], k: int, queue: list[float], penalty: float) -> float:
    """The least objective of P4 over all subsets of size k."""
    sets = combinations(range(len(time)), k)
    return min(objective(list(members), time, queue, penalty) for members in sets)


class SlowRBCSF:
    """Alg. 2, one client after the other, with a matrix inversion each."""

    def __init__(
        self, n_clients: int, dimension: int, rate: float, penalty: float, ridge: float
    ) -> None:
        self.rate, self.penalty = rate, penalty
        self.H = [ridge * np.eye(dimension) for _ in range(n_clients)]  # line 2
        self.b = [np.zeros(dimension) for _ in range(n_clients)]
        self.Z = [0.0] * n_clients

    def theta(self, n: int) -> np.ndarray:
        """Line 7, Eq. (18)."""
        return np.linalg.inv(self.H[n]) @ self.b[n]

    def times(self, contexts: np.ndarray, alpha: float, clip: bool = True) -> list[float]:
        """Lines 8-9; Eq. (19) clips at 0."""
        times = []
        for n, c in enumerate(contexts):
            width = math.sqrt(c @ np.linalg.inv(self.H[n]) @ c)
            time = float(c @ self.theta(n)) - alpha * width
            times.append(max(time, 0.0) if clip else time)
        return times

    def update(self, chosen: list[int], contexts: np.ndarray, durations: list[float]) -> None:
        """Lines 13-17; ours: an unknown duration counts as the median of its cohort's known."""
        known = [duration for duration in durations if not math.isnan(duration)]
        for n in range(len(self.Z)):
            taken = 1.0 if n in chosen else 0.0
            self.Z[n] = max(self.Z[n] + self.rate - taken, 0.0)  # Eq. (6)
        for n, duration in zip(chosen, durations, strict=True):
            if known:
                duration = statistics.median(known) if math.isnan(duration) else duration
                c = contexts[n]
                self.H[n] = self.H[n] + np.outer(c, c)
                self.b[n] = self.b[n] + duration * c
