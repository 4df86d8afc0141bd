"""What is learned from a log: all effects of clients together, and what is common to them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from turnout.core.types import FloatArray, Status
from turnout.twin.availability import Presence, presence_of
from turnout.twin.durations import USUAL_SCALE, Durations, durations_of
from turnout.twin.effects import Effects, binomial, shrunk
from turnout.twin.log import Log
from turnout.twin.reported import ReportedValues, reported_of
from turnout.worlds.fitted import EFFECTS

#: How far effects lie apart where nothing was seen: logits, logarithms.
USUAL_SPREAD = np.array([1.0, 1.0, 0.5, 0.5, 1e-3])
#: What everyone is taken for where nothing was seen: always there, succeeding, 500 examples.
USUAL_MEAN = np.array([5.0, 3.0, 0.0, 0.0, np.log(500.0)])
#: No guess of the seconds is further from the length of rounds than this many standard deviations.
_FAR = 1.5
#: How often what is common to all clients is learned anew, and the steps of shrinkage in between.
_OUTER, _INNER = 6, 25
#: Pairs of rounds in a row that must be seen for how long failures last.
LEAST_PAIRS = 100


class Fitted(NamedTuple):
    """What was learned, before it becomes a world.

    Attributes:
        effects: Of the clients.
        presence: What was seen of availability.
        durations: What is common to the durations of all clients.
        reported: Losses and sizes.
        success_stay: Chance that success is not drawn anew from one round to the next.
        n_success_pairs: From how many pairs of rounds in a row.
    """

    effects: Effects
    presence: Presence
    durations: Durations
    reported: ReportedValues
    success_stay: float
    n_success_pairs: int


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
    reported = reported_of(log)
    seen[:, 3], seen[:, 4] = reported.n_losses > 0.0, reported.n_sizes > 0.0
    start = np.tile(USUAL_MEAN, (n, 1))
    start[:, 0] = np.where(seen[:, 0], _logit(presence.present, presence.known), start[:, 0])
    start[:, 1] = np.where(seen[:, 1], _logit(succeeded, tried), start[:, 1])
    start[:, 2] = durations.start(_usual_length(log))
    for column, total, count in (
        (3, reported.level, reported.n_losses),
        (4, reported.size, reported.n_sizes),
    ):
        own = total / np.maximum(count, 1.0)
        usual = own[count > 0.0].mean() if (count > 0.0).any() else USUAL_MEAN[column]
        start[:, column] = np.where(count > 0.0, own, usual)
    effects = None
    for _ in range(_OUTER):
        effects = shrunk(
            _Likelihood(presence, succeeded, tried, durations, reported),
            start,
            USUAL_SPREAD,
            seen,
            _INNER,
        )
        start = effects.mean
        durations = durations.updated(effects.mean[:, 2], float(effects.population[2]))
    assert effects is not None
    chance = 1.0 / (1.0 + np.exp(-effects.mean[:, 1]))
    return Fitted(effects, presence, durations, reported, *_success_stay(log, survived, chance))


@dataclass(frozen=True)
class _Likelihood:
    presence: Presence
    succeeded: FloatArray
    tried: FloatArray
    durations: Durations
    reported: ReportedValues

    def __call__(self, effects: FloatArray) -> tuple[FloatArray, FloatArray]:
        slope, curvature = np.zeros_like(effects), np.zeros_like(effects)
        parts = (
            binomial(self.presence.present, self.presence.known, effects[:, 0]),
            binomial(self.succeeded, self.tried, effects[:, 1]),
            self.durations.likelihood(effects[:, 2], float(effects[:, 2].mean())),
        )
        for column, (own_slope, own_curvature) in enumerate(parts):
            slope[:, column], curvature[:, column] = own_slope, own_curvature
        slope[:, 3:], curvature[:, 3:] = self.reported.likelihood(effects[:, 3], effects[:, 4])
        return slope, curvature


def _usual_length(log: Log) -> float:
    """Return the logarithm of seconds as rounds show it: all there is where no duration is known.

    So many clients take no longer than a round as answered in time.
    """
    length = np.concatenate([record.run.length_s for record in log.records])
    length = length[np.isfinite(length) & (length > 0.0)]
    in_time = np.count_nonzero(log.status == Status.COMPLETED)
    late = np.count_nonzero(log.status == Status.LATE)
    beyond = NormalDist().inv_cdf((in_time + 0.5) / (in_time + late + 1.0))
    usual = float(np.log(np.median(length))) if length.size else 0.0
    return usual - USUAL_SCALE * min(max(beyond, -_FAR), _FAR)


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
    if n_pairs < LEAST_PAIRS or total <= 0.0:
        return 0.0, n_pairs
    lag = float((now * before).sum()) / total
    is_clear = lag > 3.0 / np.sqrt(n_pairs)
    return (min(lag, 0.99) if is_clear else 0.0), n_pairs
