"""Regret while a run goes on, without keeping everyone's fate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from turnout.types import Array, BoolArray, FloatArray


class RunningRegret:
    """E3CS Definition 2, a few rounds at a time; equals ``turnout.metrics.regret``.

    What it remembers is the size of one round: how often each client would have succeeded, weighted
    by what the round had to give beyond the quota.

    Args:
        n_clients: Size of the federation.
        cohort_size: Answers wanted per round.
    """

    def __init__(self, n_clients: int, cohort_size: int) -> None:
        self._n = n_clients
        self._k = min(cohort_size, n_clients)
        self._gains = np.zeros(n_clients)
        self._reserved = 0.0
        self._cap = np.inf
        self._gained = 0.0

    def add(self, success: BoolArray, gained: Array, quota: FloatArray) -> FloatArray:
        """Return (B,) the regret after each of B new rounds.

        Args:
            success: (B, n) who would have succeeded.
            gained: (B,) how many of the chosen would have succeeded.
            quota: (B,) share of the cohort that is given by equal chances, sigma_t K / k.
        """
        n, k = self._n, self._k
        sigma = quota * k / n
        spare = k * (1.0 - quota)  # k - K sigma_t
        reserved = _continued(self._reserved, sigma * success.sum(axis=1))
        limit = np.ones(spare.size)  # of q, so that p <= 1
        np.divide(1.0 - sigma, spare, out=limit, where=spare > 0.0)
        cap = np.minimum.accumulate(np.minimum(limit, self._cap))
        gains = _continued(self._gains, spare[:, np.newaxis] * success)
        best_q = np.clip(1.0 - cap[:, np.newaxis] * np.arange(k), 0.0, cap[:, np.newaxis])
        best = np.einsum("tk,tk->t", best_q, _largest(gains, k))
        total = _continued(self._gained, gained)
        self._gains, self._reserved = gains[-1], float(reserved[-1])
        self._cap, self._gained = float(cap[-1]), float(total[-1])
        regret: FloatArray = reserved + best - total
        return regret

    def state(self) -> dict[str, Array]:
        """Return everything remembered, as arrays."""
        scalars = np.array([self._reserved, self._cap, self._gained])
        return {"gains": self._gains.copy(), "scalars": scalars}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state()`` saved.

        Args:
            state: What it returned.
        """
        self._gains = np.array(state["gains"])
        self._reserved, self._cap, self._gained = (float(value) for value in state["scalars"])


def _continued(so_far: float | FloatArray, new: Array) -> FloatArray:
    """Return cumulative sums that do not depend on how the rounds were cut into batches."""
    first = np.asarray(so_far, dtype=np.float64)[np.newaxis]
    total: FloatArray = np.cumsum(np.concatenate((first, new)), axis=0)[1:]
    return total


def _largest(gains: FloatArray, k: int) -> FloatArray:
    """Return the k largest of each row, the largest first; q is 0 for everyone else."""
    if k < gains.shape[1]:
        gains = np.partition(gains, gains.shape[1] - k, axis=1)[:, -k:]
    return -np.sort(-gains, axis=1)
