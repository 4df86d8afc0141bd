"""Effects of clients by shrinkage: who is seen seldom gets the population's.

Every client has several effects at once, normal around the population's mean with one covariance.
So what is known of one effect says something about the others: slow clients may have other data.
Each effect of a client has a likelihood of its own, given by its slope and its curvature. The
population's mean and covariance are found by expectation maximisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from turnout.core.types import BoolArray, FloatArray

#: Slope and curvature (>= 0) of the log-likelihood of each client, at (n, k) effects.
Likelihood = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

#: Effects differ between clients by at least this much.
_LEAST_SPREAD = 1e-4
#: Each covariance is that of so many imagined clients whose effects are unrelated.
_IMAGINED = 4.0
#: Longest step of an effect in one iteration.
_STEP = 2.0


class Effects(NamedTuple):
    """Effects of all clients.

    Attributes:
        mean: (n, k) the best estimates.
        covariance: (n, k, k) their uncertainty.
        population: (k,) the mean over clients.
        population_error: (k,) its standard errors.
        spread: (k, k) the covariance between clients.
    """

    mean: FloatArray
    covariance: FloatArray
    population: FloatArray
    population_error: FloatArray
    spread: FloatArray


def shrunk(
    likelihood: Likelihood, start: FloatArray, scale: FloatArray, seen: BoolArray, n_steps: int = 60
) -> Effects:
    """Return the effects of all clients, by shrinkage.

    Args:
        likelihood: Of each client.
        start: (n, k) first guess.
        scale: (k,) how far effects usually lie apart; the spread where nothing was seen.
        seen: (n, k) whether there is any observation of the effect.
        n_steps: Iterations.
    """
    n, k = start.shape
    mean = start.copy()
    any_seen = np.asarray(seen.any(axis=0))
    population = np.where(any_seen, _mean_where(start, seen), start.mean(axis=0))
    spread = np.diag(np.square(scale))
    covariance: FloatArray = np.broadcast_to(spread, (n, k, k))
    for step in range(n_steps):
        slope, curvature = likelihood(mean)
        precision = np.linalg.inv(spread)
        covariance = np.asarray(np.linalg.inv(precision + curvature[:, :, None] * np.eye(k)))
        gradient = slope - (mean - population) @ precision
        move = np.einsum("nij,nj->ni", covariance, gradient)
        mean = mean + np.clip(move, -_STEP, _STEP)
        if step >= 2:
            weight = np.where(any_seen, seen, True)
            population = np.where(any_seen, _mean_where(mean, weight), population)
            spread = _spread(np.asarray(mean - population), covariance, any_seen, scale)
    error = _error(curvature, spread, any_seen, scale)
    return Effects(mean, covariance, population, error, spread)


def _mean_where(values: FloatArray, seen: BoolArray) -> FloatArray:
    count = np.maximum(seen.sum(axis=0), 1)
    mean: FloatArray = np.where(seen, values, 0.0).sum(axis=0) / count
    return mean


def _spread(
    deviation: FloatArray, covariance: FloatArray, any_seen: BoolArray, scale: FloatArray
) -> FloatArray:
    """Return the covariance between clients; effects that nobody showed are unrelated."""
    n = len(deviation)
    total = np.einsum("ni,nj->ij", deviation, deviation) + covariance.sum(axis=0)
    variance = np.maximum(np.diag(total) / n, _LEAST_SPREAD**2)
    both = np.outer(any_seen, any_seen)
    shared = np.where(both, total, 0.0) / (n + _IMAGINED)
    np.fill_diagonal(shared, np.where(any_seen, variance, np.square(scale)))
    return shared


def _error(
    curvature: FloatArray, spread: FloatArray, any_seen: BoolArray, scale: FloatArray
) -> FloatArray:
    """Return the standard errors of the population's mean."""
    variance = np.diag(spread)
    information = np.where(
        curvature > 0.0, 1.0 / (variance + 1.0 / np.maximum(curvature, 1e-12)), 0.0
    )
    total = information.sum(axis=0)
    error: FloatArray = np.where(
        any_seen & (total > 0.0), 1.0 / np.sqrt(np.maximum(total, 1e-12)), scale
    )
    return error


def binomial(
    successes: FloatArray, trials: FloatArray, logit: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return slope and curvature of a binomial likelihood at log-odds.

    Args:
        successes: (n,) successes, may be fractions.
        trials: (n,) trials, may be fractions.
        logit: (n,) the log-odds.
    """
    chance = 1.0 / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0)))
    return successes - trials * chance, trials * chance * (1.0 - chance)
