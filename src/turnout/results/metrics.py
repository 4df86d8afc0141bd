"""What a run is judged by: participation, regret and its bounds, fairness, queues, time.

Plain functions of arrays. A record of selections is a pair: ``clients``, the chosen of all rounds
one after the other, and ``offsets`` (T + 1,), where each round starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.core import arrays, require
from turnout.core.errors import InvalidInput
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, Status
from turnout.results.guarantee import Guarantee, guarantee

__all__ = [
    "Backlog",
    "Guarantee",
    "best_fixed_participation",
    "cumulative_participation",
    "gini_of_counts",
    "guarantee",
    "jain_of_counts",
    "jain_of_losses",
    "lowest",
    "minimum_rate",
    "queue_backlog",
    "regret",
    "rounds_to",
    "selection_counts",
    "selection_matrix",
    "success_ratio",
    "theorem1_bound",
    "theorem3_bound",
    "wasted_time",
    "worst_mean",
]


#: Rounds or clients at most; more would not fit into memory.
_MOST = 10**8


def cumulative_participation(completed: BoolArray, offsets: IntArray) -> IntArray:
    """Return (T,) the answers in time so far: CEP, E3CS arXiv Eq. (4).

    Args:
        completed: (S,) who of all chosen answered in time, round after round.
        offsets: (T + 1,) round t holds the entries offsets[t] .. offsets[t + 1].
    """
    answers = arrays.vector("completed", completed, np.bool_)
    so_far = np.concatenate(([0], np.cumsum(answers)))
    return so_far[arrays.offsets(offsets, answers.size)[1:]]


def success_ratio(completed: BoolArray) -> float:
    """Return the share of chosen clients that answered in time; NaN if none was chosen.

    Args:
        completed: (S,) who of all chosen answered in time.
    """
    answers = arrays.vector("completed", completed, np.bool_)
    return float(np.mean(answers)) if answers.size else math.nan


def selection_counts(clients: IntArray, n_clients: int) -> IntArray:
    """Return (n,) how often each client was chosen.

    Args:
        clients: (S,) the chosen, round after round.
        n_clients: Number of clients.
    """
    n = _n_clients(n_clients)
    return np.bincount(arrays.client_indices("clients", clients, n), minlength=n)


def selection_matrix(clients: IntArray, offsets: IntArray, n_clients: int) -> BoolArray:
    """Return (T, n) who was chosen in which round.

    Args:
        clients: (S,) the chosen, round after round.
        offsets: (T + 1,) round t holds the entries offsets[t] .. offsets[t + 1].
        n_clients: Number of clients.
    """
    n = _n_clients(n_clients)
    indices = arrays.client_indices("clients", clients, n)
    starts = arrays.offsets(offsets, indices.size)
    chosen = np.zeros((starts.size - 1, n), dtype=np.bool_)
    chosen[np.repeat(np.arange(starts.size - 1), np.diff(starts)), indices] = True
    return chosen


def minimum_rate(counts: IntArray, n_rounds: int) -> float:
    """Return the share of rounds that the least chosen client took part in.

    Args:
        counts: (n,) how often each client was chosen.
        n_rounds: Rounds that were played.
    """
    return float(_amounts("counts", counts).min()) / require.integer(
        "n_rounds", n_rounds, minimum=1
    )


def jain_of_counts(counts: npt.ArrayLike) -> float:
    """Return Jain's index of selection counts: 1 if all are equal, 1/n if one has everything.

    Args:
        counts: (n,) how often each client was chosen.
    """
    return _jain("counts", counts)


def jain_of_losses(losses: npt.ArrayLike) -> float:
    """Return Jain's index of the clients' losses: fairness in the sense of UCB-CS, Eq. (3).

    Args:
        losses: (n,) the loss of each client.
    """
    return _jain("losses", losses)


def worst_mean(values: npt.ArrayLike, share: float = 0.1) -> float:
    """Return the mean of the lowest values, such as the accuracy of the worst tenth of clients.

    At least one value counts; values that are missing do not.

    Args:
        values: One value per client.
        share: Share of the values that counts, inside [0, 1].
    """
    require.fraction("share", share)
    known = arrays.numbers("values", values)
    finite = np.sort(known[np.isfinite(known)])
    if finite.size == 0:
        return math.nan
    return float(finite[: max(1, math.ceil(share * finite.size - 1e-9))].mean())


def lowest(values: npt.ArrayLike, n: int) -> IntArray:
    """Return the indices of the n lowest values in rising order; equal ones are ordered by index.

    Args:
        values: One value per client.
        n: How many; fewer if there are not as many values.

    >>> lowest([3, 1, 2, 1], 3)
    array([1, 3, 2])
    """
    amounts = arrays.numbers("values", values).ravel()
    n = require.integer("n", n, minimum=0)
    few = np.arange(amounts.size)
    if amounts.size > n:  # selecting is faster than sorting a million
        few = np.argpartition(amounts, n)[:n]
    return few[np.lexsort((few, amounts[few]))]


def rounds_to(values: npt.ArrayLike, target: float) -> float:
    """Return after how many rounds a (T,) curve first reaches a target; NaN if it never does.

    Args:
        values: (T,) a measure after each round; NaN where it was not taken.
        target: The value to reach.

    >>> rounds_to([0.2, math.nan, 0.7, 0.6], target=0.6)
    3.0
    """
    curve = arrays.numbers("values", values)
    reached = np.flatnonzero(curve >= require.number("target", target))
    return float(reached[0] + 1) if reached.size else math.nan


def gini_of_counts(counts: npt.ArrayLike) -> float:
    """Return the Gini coefficient of counts: 0 if all are equal, 1 - 1/n if one has everything.

    Args:
        counts: (n,) how often each client was chosen.
    """
    ordered = np.sort(_amounts("counts", counts))
    total = float(ordered.sum())
    if total == 0.0:
        return 0.0
    rank = np.arange(1, ordered.size + 1)
    return float(np.sum((2 * rank - ordered.size - 1) * ordered) / (ordered.size * total))


def best_fixed_participation(
    success: BoolArray, cohort_size: int, quota: npt.ArrayLike = 0.0
) -> FloatArray:
    """Return (T,) the expected CEP of the best fixed allocation in hindsight after 1 .. T rounds.

    E3CS Definition 1: p = sigma_t + (k - K sigma_t) q with one q for all rounds, sum(q) = 1 and
    p <= 1. The best q gives as much as the cap allows to the clients of largest total success,
    each round counted with what it has to give.

    Args:
        success: (T, n) who would have succeeded.
        cohort_size: Clients per round, k.
        quota: sigma_t K / k, fixed or (T,), inside [0, 1].
    """
    matrix = arrays.as_array("success", success)
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or not matrix.size:
        raise InvalidInput("success must be a matrix of True and False, rounds x clients.")
    n_rounds, n = matrix.shape
    share = _quotas(quota, n_rounds)
    k = require.integer("cohort_size", cohort_size, minimum=1)
    return RunningRegret(n, k).add(matrix, np.zeros(n_rounds), share)


def regret(
    success: BoolArray, played: Array, cohort_size: int, quota: npt.ArrayLike = 0.0
) -> FloatArray:
    """Return (T,) the regret after 1 .. T rounds: E3CS Definition 2.

    A selector reports the probabilities of the chosen only; the choices themselves are then the
    unbiased estimate of ``sum(p * x)``.

    Args:
        success: (T, n) who would have succeeded.
        played: (T, n) inclusion probabilities of all clients, or who was chosen.
        cohort_size: Clients per round, k.
        quota: sigma_t K / k, fixed or (T,), inside [0, 1].
    """
    best = best_fixed_participation(success, cohort_size, quota)
    given = arrays.as_array("played", played)
    if given.shape != np.shape(success) or given.dtype.kind not in "bfiu":
        raise InvalidInput(
            f"played must be numbers in the shape of success, {np.shape(success)}, got "
            f"{given.dtype} of shape {given.shape}."
        )
    return best - np.cumsum(np.sum(given * success, axis=1, dtype=np.float64))


class RunningRegret:
    """E3CS Definition 2, a few rounds at a time, without keeping the fate of every client.

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
        self._scalars = np.array([0.0, np.inf, 0.0])  # by quota, cap of q, gained

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
        reserved = _continued(self._scalars[0], sigma * success.sum(axis=1))
        # p <= 1 in every round: q <= (1 - sigma_t) / (k - K sigma_t), tightest at the least sigma_t
        limit = np.ones(spare.size)
        np.divide(1.0 - sigma, spare, out=limit, where=spare > 0.0)
        cap = np.minimum.accumulate(np.minimum(limit, self._scalars[1]))
        gains = _continued(self._gains, spare[:, np.newaxis] * success)
        best_q = np.clip(1.0 - cap[:, np.newaxis] * np.arange(k), 0.0, cap[:, np.newaxis])
        best = np.einsum("tk,tk->t", best_q, _largest(gains, k))
        total = _continued(self._scalars[2], gained)
        self._gains, self._scalars = gains[-1], np.array([reserved[-1], cap[-1], total[-1]])
        regret: FloatArray = reserved + best - total
        return regret

    def state(self) -> dict[str, Array]:
        """Return everything remembered, as arrays."""
        return {"gains": self._gains.copy(), "scalars": self._scalars.copy()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state()`` saved.

        Args:
            state: What it returned.
        """
        self._gains, self._scalars = (np.array(state[name]) for name in ("gains", "scalars"))


def _continued(so_far: float | FloatArray, new: Array) -> FloatArray:
    """Return cumulative sums that do not depend on how the rounds were cut into batches."""
    first = np.asarray(so_far, dtype=np.float64)[np.newaxis]
    return np.cumsum(np.concatenate((first, new)), axis=0)[1:]


def _largest(gains: FloatArray, k: int) -> FloatArray:
    """Return the k largest of each row, the largest first; q is 0 for everyone else."""
    if k < gains.shape[1]:
        gains = np.partition(gains, gains.shape[1] - k, axis=1)[:, -k:]
    return -np.sort(-gains, axis=1)


def theorem1_bound(
    quota: npt.ArrayLike,
    n_rounds: int,
    cohort_size: int,
    n_clients: int,
    eta: float | None = None,
) -> FloatArray:
    """Return (T,) the bound of E3CS Theorem 1 on regret after 1 .. T rounds.

    arXiv Eq. (23) = journal Eq. (27) for a learning rate ``eta``; without one, Eq. (24) = Eq. (28),
    where each horizon has the rate that suits it.

    Args:
        quota: sigma_t K / k, fixed or (T,), inside [0, 1].
        n_rounds: Rounds, T.
        cohort_size: Clients per round, k.
        n_clients: Number of clients, K.
        eta: Learning rate; None = the best for each horizon.
    """
    k, n = require.integer("cohort_size", cohort_size, minimum=1), _n_clients(n_clients)
    spare = np.cumsum(k * (1.0 - _quotas(quota, _n_rounds(n_rounds))))  # sum of k - K sigma_t
    if eta is None:
        return 2.0 * np.sqrt(spare * n * math.log(n))  # Eq. (24)
    require.number("eta", eta, above=0.0)
    return eta * spare + n / eta * math.log(n)  # Eq. (23)


def theorem3_bound(
    n_rounds: int,
    n_clients: int,
    *,
    rate: float,
    penalty: float,
    noise: float,
    context_bound: float,
    coefficient_bound: float,
    longest_s: float,
    ridge: float = 1.0,
    delta: float = 0.05,
) -> FloatArray:
    """Return (T,) the bound of RBCS-F Theorem 3, Eq. (24), on regret per round after 1 .. T.

    The bound is as printed; by its own proof (2 alpha_t) the term sqrt(lambda) S should count
    twice.

    Args:
        n_rounds: Rounds, T.
        n_clients: Number of clients.
        rate: beta, the rate that each client is promised.
        penalty: V, the weight of time.
        noise: R of the sub-Gaussian noise of times.
        context_bound: L, the largest norm of a context.
        coefficient_bound: S, the largest norm of the coefficients.
        longest_s: K of the proof: no expected time is longer.
        ridge: lambda of the regression.
        delta: Chance that the bound does not hold.
    """
    require.number("penalty", penalty, above=0.0)
    require.fraction("rate", rate)
    for name, value in {"noise": noise, "longest_s": longest_s}.items():
        require.number(name, value, minimum=0.0, maximum=arrays.LARGEST_REPORT)
    for name, value in {"context": context_bound, "coefficient": coefficient_bound}.items():
        require.number(f"{name}_bound", value, minimum=0.0, maximum=arrays.LARGEST_REPORT)
    require.number("ridge", ridge, above=0.0)
    require.number("delta", delta, above=0.0, maximum=1.0)
    t = np.arange(1, _n_rounds(n_rounds) + 1)
    growth = (1.0 + t * context_bound**2 / ridge) / delta
    width = 2.0 * noise * np.sqrt(3.0 * np.log(growth)) + math.sqrt(ridge) * coefficient_bound
    zeta = max(longest_s, 1.0) * np.maximum(width, 1.0)
    learning = zeta * np.sqrt(6.0 * np.log1p(t * context_bound**2 / (3.0 * ridge)) / t)
    bound: FloatArray = _n_clients(n_clients) * (1.0 + rate**2) / (2.0 * penalty) + learning
    return bound


class Backlog(NamedTuple):
    """Virtual fairness queues over a run; stable if the backlog per round goes to 0.

    Attributes:
        mean: (T,) mean queue after each round.
        largest: (T,) longest queue after each round.
        final: (n,) queues after the last round.
    """

    mean: FloatArray
    largest: FloatArray
    final: FloatArray

    @property
    def per_round(self) -> FloatArray:
        """(T,) the longest queue over the number of rounds so far."""
        return self.largest / np.arange(1, self.largest.size + 1)


def queue_backlog(
    clients: IntArray, offsets: IntArray, n_clients: int, rate: float = 0.15
) -> Backlog:
    """Return the queues of RBCS-F, Eq. (6), for any record of selections.

    Args:
        clients: (S,) the chosen, round after round.
        offsets: (T + 1,) round t holds the entries offsets[t] .. offsets[t + 1].
        n_clients: Number of clients.
        rate: beta, what a queue grows by in a round, inside [0, 1].
    """
    require.fraction("rate", rate)
    queue = np.zeros(_n_clients(n_clients))
    indices = arrays.client_indices("clients", clients, queue.size)
    starts = arrays.offsets(offsets, indices.size)
    mean, largest = np.zeros(starts.size - 1), np.zeros(starts.size - 1)
    for t in range(mean.size):
        queue += rate
        queue[indices[starts[t] : starts[t + 1]]] -= 1.0
        np.maximum(queue, 0.0, out=queue)  # Eq. (6)
        mean[t], largest[t] = queue.mean(), queue.max()
    return Backlog(mean, largest, queue)


def wasted_time(status: Array, spent: FloatArray) -> float:
    """Return the device seconds spent by chosen clients that were not in time.

    Args:
        status: (S,) a ``Status`` for each of all chosen.
        spent: (S,) device seconds of each.
    """
    ended = arrays.statuses(status)
    seconds = arrays.vector("spent", spent, np.float64, ended.size)
    return float(seconds[ended != Status.COMPLETED].sum())


def _n_clients(value: int) -> int:
    return require.integer("n_clients", value, minimum=1, maximum=_MOST)


def _n_rounds(value: int) -> int:
    return require.integer("n_rounds", value, minimum=1, maximum=_MOST)


def _quotas(quota: npt.ArrayLike, n_rounds: int) -> FloatArray:
    quotas = arrays.numbers("quota", quota)
    if quotas.shape not in ((), (n_rounds,)):
        raise InvalidInput(f"quota must be a number or of shape ({n_rounds},), got {quotas.shape}.")
    share = np.broadcast_to(quotas, (n_rounds,))
    if not ((share >= 0.0) & (share <= 1.0)).all():
        raise InvalidInput(f"quota must be inside [0, 1], got {share.min()} .. {share.max()}.")
    return share


def _amounts(field: str, values: npt.ArrayLike) -> FloatArray:
    amounts = arrays.numbers(field, values)
    if amounts.ndim != 1 or amounts.size == 0 or not ((amounts >= 0.0) & (amounts < np.inf)).all():
        raise InvalidInput(f"{field} must be one-dimensional, not empty, finite and >= 0.")
    return amounts


def _jain(field: str, values: npt.ArrayLike) -> float:
    amounts = _amounts(field, values)
    largest = float(amounts.max())
    if largest == 0.0:
        return 1.0
    scaled = amounts / largest  # squares of tiny or huge amounts stay inside the range
    return float(scaled.sum() ** 2 / (scaled.size * (scaled**2).sum()))
