"""Properties that selectors live on, measured in data and traces: one number per seed.

A control shows that a selector wins where its assumption holds. The numbers here say how far the
assumption holds elsewhere: how much losses differ, how much features explain, whether rates last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.registry import make
from turnout.core.types import Array, FloatArray
from turnout.experiment import Experiment, rounds
from turnout.training import Federation
from turnout.worlds import Environment

#: Folds of the cross-validation, and the strengths of the ridge that are tried.
_N_FOLDS, _RIDGES = 10, (1.0, 10.0, 100.0, 1000.0)

#: Clients that train at a time when the utility of all is asked for.
_AT_ONCE = 50


def explained_share(features: Array, utility: FloatArray) -> float:
    """Return the share of the variance of utility that a linear fit on features explains.

    Each client is predicted from the others (ten folds), with the best of four strengths of a
    ridge. So features that say nothing explain about 0.

    Args:
        features: (n, d) what the server knows of each client.
        utility: (n,) the utility of each client.

    >>> bits = np.random.default_rng(0).integers(2, size=(200, 8))
    >>> explained_share(bits, bits @ np.arange(8.0)) > 0.99
    True
    """
    n = utility.size
    if n < 2 * _N_FOLDS or features.shape[0] != n:
        raise InvalidInput(
            f"features and utility must be of the same {2 * _N_FOLDS} clients or more, got "
            f"{features.shape[0]} and {n}.",
            field="features",
        )
    x = np.asarray(features, dtype=np.float64)
    fold = np.random.default_rng(0).permutation(n) % _N_FOLDS
    error = np.empty((len(_RIDGES), n))
    for number in range(_N_FOLDS):
        rest, own = fold != number, fold == number
        centre, mean = x[rest].mean(axis=0), utility[rest].mean()
        inner = x[rest] - centre
        gram, moment = inner.T @ inner, inner.T @ (utility[rest] - mean)
        for row, ridge in enumerate(_RIDGES):
            slope = np.linalg.solve(gram + ridge * np.eye(x.shape[1]), moment)
            error[row, own] = utility[own] - mean - (x[own] - centre) @ slope
    return float(1.0 - (error**2).mean(axis=1).min() / utility.var())


def relative_spread(values: FloatArray) -> float:
    """Return the standard deviation between clients over their mean, mean over looks.

    Args:
        values: (looks, n) or (n,) positive numbers of each client.
    """
    table = np.atleast_2d(values)
    return float((table.std(axis=1) / table.mean(axis=1)).mean())


def persistence(values: FloatArray, lag: int) -> float:
    """Return the correlation between clients' numbers and those some looks later, mean over looks.

    1: what was seen then still orders the clients. 0: it says nothing.

    Args:
        values: (looks, n) numbers of each client.
        lag: Looks between the two.
    """
    if not 1 <= lag < values.shape[0]:
        raise InvalidInput(
            f"lag must be from 1 to {values.shape[0] - 1}, one less than the looks; got {lag}.",
            field="lag",
        )
    pairs = zip(values[:-lag], values[lag:], strict=True)
    return float(np.mean([np.corrcoef(now, then)[0, 1] for now, then in pairs]))


def drift(values: FloatArray) -> float:
    """Return how far a client's number moves from one look to the next, over the mean number.

    Args:
        values: (looks, n) positive numbers of each client.
    """
    return float(np.abs(np.diff(values, axis=0)).mean() / values.mean())


class ClientLevels(NamedTuple):
    """What a run with random selection shows of the clients' losses.

    Attributes:
        over_time: (looks, n) the loss of the global model on each client's data.
        utility: (n,) |D| x RMS loss that each client reports if it trains after the last round.
        features: (n, d) the code of each client's data.
    """

    over_time: FloatArray
    utility: FloatArray
    features: Array


def losses_of(experiment: Experiment, seed: int, every: int) -> ClientLevels:
    """Train with random selection and look at the losses of all clients on the way.

    Args:
        experiment: The world, the sizes and the training; its selectors are not used.
        seed: The seed.
        every: Rounds between two looks.
    """
    federation = experiment.federation(seed)
    if federation is None:
        raise InvalidInput("experiment must train a model: it has no losses.", field="experiment")
    records = rounds(
        make("random"),
        experiment.environment(seed),
        cohort_size=experiment.cohort_size,
        n_rounds=experiment.n_rounds,
        participants=federation,
    )
    looks = [
        federation.client_scores().loss for record in records if (record.round + 1) % every == 0
    ]
    features = federation.data.features
    return ClientLevels(
        np.array(looks),
        _utility(federation, experiment.n_rounds),
        np.zeros((federation.data.n_clients, 0)) if features is None else features,
    )


def _utility(federation: Federation, round: int) -> FloatArray:
    clients = np.arange(federation.data.n_clients)
    parts = np.array_split(clients, -(-clients.size // _AT_ONCE))
    rms = [federation.trainer.train(federation.weights, part, round).loss_rms for part in parts]
    sizes = federation.data.num_samples.astype(np.float64)
    return sizes * np.concatenate(rms)


def success_rates(world: Environment, n_rounds: int) -> Mapping[str, float]:
    """Return how much success differs between clients, and whether it lasts.

    Success is to be available and to survive.

    Args:
        world: The world.
        n_rounds: Rounds to look at.

    Returns:
        ``spread``, the standard deviation of the clients' success rates, and ``lasts``, the
        correlation of their rates in the first fifth of the rounds and in the others.
    """
    seen = np.array(
        [world.context(t, 1).available & world.fate(t).survived for t in range(n_rounds)],
        dtype=np.float64,
    )
    first, rest = seen[: n_rounds // 5].mean(axis=0), seen[n_rounds // 5 :].mean(axis=0)
    lasts = float(np.corrcoef(first, rest)[0, 1])
    return {"spread": float(seen.mean(axis=0).std()), "lasts": lasts}


def time_shares(world: Environment, n_rounds: int) -> Mapping[str, float]:
    """Return the share of the variance of times that a server could know before the round.

    Args:
        world: The world. Nobody is selected in it.
        n_rounds: Rounds to look at.

    Returns:
        ``client``: what the mean time of each client explains. ``context``: what the expected time
        of client and round explains, which a context can tell.
    """
    names = ("expected_duration",)
    expected = np.array(
        [world.context(t, 1, columns=names).column(names[0]) for t in range(n_rounds)]
    )
    taken = np.array([world.fate(t).duration for t in range(n_rounds)])

    def share(prediction: Any) -> float:
        return float(1.0 - ((taken - prediction) ** 2).mean() / taken.var())

    return {"client": share(taken.mean(axis=0)), "context": share(expected)}
