"""From records to a world: ``turnout.fit(runs)``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, Status
from turnout.experiment.codec import decode
from turnout.twin.availability import Presence, presence_of
from turnout.twin.durations import LEVELS, Durations, durations_of
from turnout.twin.effects import Effects, binomial, shrunk
from turnout.twin.log import Log, read_log, settings_of
from turnout.twin.quantities import quantities_of
from turnout.twin.world import FittedWorld
from turnout.worlds import FittedArrays, FixedDeadline, RoundPolicy, SyntheticLoss
from turnout.worlds.fitted import EFFECTS

#: How far effects lie apart where nothing was seen: logits, logarithms.
USUAL_SPREAD = np.array([1.0, 1.0, 0.5, 0.5, 1e-3])
#: What everyone is taken for where nothing was seen: always there, succeeding, 500 examples.
USUAL_MEAN = np.array([5.0, 3.0, 0.0, 0.0, np.log(500.0)])
#: How often what is common to all clients is learned anew, and the steps of shrinkage in between.
_OUTER, _INNER = 6, 25
#: Pairs of rounds in a row that must be seen for how long failures last.
_LEAST_PAIRS = 100


class Fitted(NamedTuple):
    """What was learned, before it becomes a world.

    Attributes:
        effects: Of the clients.
        presence: What was seen of availability.
        durations: What is common to the durations of all clients.
        success_stay: Chance that success is not drawn anew from one round to the next.
        n_success_pairs: From how many pairs of rounds in a row.
    """

    effects: Effects
    presence: Presence
    durations: Durations
    success_stay: float
    n_success_pairs: int


def fit(runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> FittedWorld:
    """Return the world that was fitted to the records of a federation.

    Availability is learned from the recorded pool, never from who was chosen. Answers that were cut
    off count as longer than the time they had. Clients that were seldom seen get more of the
    population's values, clients that were never seen get all of them.

    Args:
        runs: Run folders of one federation: what Flower, NVFlare or ``turnout serve`` recorded, or
            simulated runs of one world and one seed.

    Raises:
        InvalidInput: The records cannot be used, or are of several federations.

    >>> import tempfile, turnout
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = turnout.compare(["random"], "e3cs", n_rounds=50, seeds=1, n_jobs=1, out=folder)
    ...     world = turnout.fit(folder)
    >>> world.n_clients, world.success.shape
    (100, (100,))
    """
    return fit_log(read_log([runs] if isinstance(runs, str | os.PathLike) else runs))


def fit_log(log: Log) -> FittedWorld:
    """Return the world that was fitted to a log.

    Args:
        log: The records of one federation.

    Raises:
        InvalidInput: No client ever answered.
    """
    completed = log.status == Status.COMPLETED
    if not completed.any():
        raise InvalidInput(
            f"runs hold {completed.size:,} choices and not one answer in time: nothing can be "
            "learned of durations. See the reasons with turnout show, and record more.",
            field="runs",
        )
    fitted = learned_from(log)
    settings = settings_of(log)
    failed = log.status[np.isin(log.status, (Status.FAILED, Status.SILENT))]
    policy = settings["policy"]
    return FittedWorld(
        _arrays(fitted, log.n_rounds),
        log.names,
        settings["cohort_size"],
        log.n_rounds,
        decode(policy, RoundPolicy, ("policy",)) if policy else FixedDeadline(),
        SyntheticLoss(),
        bool(failed.size and (failed == Status.FAILED).mean() > 0.5),
        quantities_of(log, fitted.effects, fitted.presence, fitted.durations, fitted.success_stay),
        log.notes,
        tuple(str(record.cell.path) for record in log.records),
    )


def learned_from(log: Log) -> Fitted:
    """Return what a log shows.

    Args:
        log: The records of one federation.
    """
    n, k = log.n_clients, len(EFFECTS)
    presence = presence_of(log)
    survived = np.isin(log.status, (Status.COMPLETED, Status.LATE)).astype(np.float64)
    tried = np.bincount(log.clients, minlength=n).astype(np.float64)
    succeeded = np.bincount(log.clients, survived, minlength=n).astype(np.float64)
    durations = durations_of(
        log.clients, log.rounds, log.warm, log.seconds, log.limit, n, log.n_rounds
    )
    seen = np.zeros((n, k), dtype=np.bool_)
    seen[:, 0], seen[:, 1] = presence.known > 0.0, tried > 0.0
    seen[:, 2] = np.bincount(durations.clients, minlength=n) > 0
    start = np.tile(USUAL_MEAN, (n, 1))
    start[:, 0] = np.where(seen[:, 0], _logit(presence.present, presence.known), start[:, 0])
    start[:, 1] = np.where(seen[:, 1], _logit(succeeded, tried), start[:, 1])
    start[:, 2] = durations.start()
    effects = None
    for _ in range(_OUTER):
        effects = shrunk(
            _Likelihood(presence, succeeded, tried, durations), start, USUAL_SPREAD, seen, _INNER
        )
        start = effects.mean
        durations = durations.updated(effects.mean[:, 2], float(effects.population[2]))
    assert effects is not None
    chance = 1.0 / (1.0 + np.exp(-effects.mean[:, 1]))
    return Fitted(effects, presence, durations, *_success_stay(log, survived, chance))


@dataclass(frozen=True)
class _Likelihood:
    presence: Presence
    succeeded: FloatArray
    tried: FloatArray
    durations: Durations

    def __call__(self, effects: FloatArray) -> tuple[FloatArray, FloatArray]:
        slope, curvature = np.zeros_like(effects), np.zeros_like(effects)
        parts = (
            binomial(self.presence.present, self.presence.known, effects[:, 0]),
            binomial(self.succeeded, self.tried, effects[:, 1]),
            self.durations.likelihood(effects[:, 2], float(effects[:, 2].mean())),
        )
        for column, (own_slope, own_curvature) in enumerate(parts):
            slope[:, column], curvature[:, column] = own_slope, own_curvature
        return slope, curvature


def _logit(successes: FloatArray, trials: FloatArray) -> FloatArray:
    return np.asarray(np.log((successes + 0.5) / (trials - successes + 0.5)))


def _success_stay(log: Log, survived: FloatArray, chance: FloatArray) -> tuple[float, int]:
    """Return how success resembles that of the round before, and from how many pairs."""
    residual = survived - chance[log.clients]
    key = log.rounds * log.n_clients + log.clients
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    place = np.searchsorted(sorted_key, sorted_key - log.n_clients)
    place = np.minimum(place, key.size - 1)
    is_pair = (sorted_key[place] == sorted_key - log.n_clients) & (log.rounds[order] > 0)
    now, before = residual[order][is_pair], residual[order][place][is_pair]
    variance = chance[log.clients[order][is_pair]]
    total = float((variance * (1.0 - variance)).sum())
    n_pairs = int(is_pair.sum())
    if n_pairs < _LEAST_PAIRS or total <= 0.0:
        return 0.0, n_pairs
    lag = float((now * before).sum()) / total
    is_clear = lag > 3.0 / np.sqrt(n_pairs)
    return (min(lag, 0.99) if is_clear else 0.0), n_pairs


def _arrays(fitted: Fitted, n_rounds: int) -> FittedArrays:
    effects, presence, durations = fitted.effects, fitted.presence, fitted.durations
    ridge = 1e-12 * np.eye(len(EFFECTS))
    return FittedArrays.from_arrays(
        {
            "mean": effects.mean,
            "factor": np.linalg.cholesky(effects.covariance + ridge),
            "population": effects.population,
            "population_error": effects.population_error,
            "spread": np.linalg.cholesky(effects.spread + ridge),
            "stay": presence.stay,
            "rhythm": presence.rhythm,
            "period": np.array(presence.period),
            "success_stay": np.array(fitted.success_stay),
            "scale": durations.scale,
            "noise_at": LEVELS,
            "noise": durations.noise.quantile,
            "round_scale": np.array(durations.round_scale),
            "drift": np.array(durations.drift),
            "warm": np.array(durations.gain),
            "n_rounds": np.array(float(n_rounds)),
        }
    )
