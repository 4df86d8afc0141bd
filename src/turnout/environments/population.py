"""What clients are and what they report without training: data sizes, features, losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from turnout.domains import (
    CheckedFields,
    Count,
    Fraction,
    NonNegative,
    Positive,
    PositiveOrInfinite,
)
from turnout.environments.base import Moment, WorldStream, fixed_rng, frozen
from turnout.types import Array, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Population(CheckedFields):
    """Traits of clients that never change during a run, drawn from the seed.

    The number of examples follows a power law, the loss level is log-normal around 1. A feature is
    a bit whose chance to be set rises, or falls, with the client's loss level.

    Args:
        samples: Smallest number of examples of a client, at least 1.
        tail: Exponent of the power law, P(more than x examples) ~ x**-tail, above 0. Infinity gives
            everyone ``samples`` examples.
        level_spread: Standard deviation of the logarithm of the loss levels, >= 0.
        n_features: Number of feature bits, at least 1.
        feature_strength: How strongly bits depend on the loss level, >= 0; 0 = not at all.
    """

    samples: Count = 500
    tail: PositiveOrInfinite = math.inf
    level_spread: NonNegative = 0.5
    n_features: Count = 64
    feature_strength: NonNegative = 1.0

    def num_samples(self, n_clients: int, seed: int) -> IntArray:
        """Return (n,) the number of examples of each client."""
        return _num_samples(self, n_clients, seed)

    def loss_level(self, n_clients: int, seed: int) -> FloatArray:
        """Return (n,) how high each client's loss is, around 1."""
        return _loss_level(self, n_clients, seed)

    def features(self, n_clients: int, seed: int) -> Array:
        """Return (n, n_features) bits."""
        return _features(self, n_clients, seed)


@dataclass(frozen=True, slots=True)
class SyntheticLoss(CheckedFields):
    """Losses as if a model were trained: they fall over the rounds, at the same pace for everyone.

    In round t the loss of client i is ``level_i * (floor + (1 - floor) / (1 + t / half_life))``
    times a random factor. ``loss_rms`` is ``sqrt(loss^2 + loss_std^2)``. The losses do not depend
    on who takes part, so they are the same for every selector.

    Args:
        floor: Share of the first loss that never goes away, from 0 to 1.
        half_life: Rounds until the rest has halved, above 0.
        noise: Relative standard deviation of the random factor, whose mean is 1; >= 0.
        batch_spread: ``loss_std`` divided by ``loss``: how much mini-batches differ, >= 0.
    """

    floor: Fraction = 0.1
    half_life: Positive = 100.0
    noise: NonNegative = 0.1
    batch_spread: NonNegative = 0.3

    def mean(self, level: FloatArray, round: int) -> FloatArray:
        """Return (n,) the loss without noise."""
        return level * (self.floor + (1.0 - self.floor) / (1.0 + round / self.half_life))

    def metrics(self, level: FloatArray, moment: Moment) -> dict[str, FloatArray]:
        """Return what each client would report in this round, (n,) each."""
        sigma = math.sqrt(math.log1p(self.noise**2))
        factor = moment.rng(WorldStream.LOSS).lognormal(-0.5 * sigma**2, sigma, level.size)
        loss = self.mean(level, moment.round) * factor
        spread = self.batch_spread * loss
        return {"loss": loss, "loss_std": spread, "loss_rms": np.hypot(loss, spread)}

    def all_data(self, level: FloatArray, moment: Moment) -> FloatArray:
        """Return (n,) the loss on all data, the same that a client would report."""
        return self.metrics(level, moment)["loss"]

    def mini_batch(self, level: FloatArray, moment: Moment) -> FloatArray:
        """Return (n,) the loss of one mini-batch; never negative."""
        metrics = self.metrics(level, moment)
        deviation = moment.rng(WorldStream.MINI_BATCH).standard_normal(level.size)
        return np.maximum(metrics["loss"] + metrics["loss_std"] * deviation, 0.0)


@lru_cache(maxsize=4)
def _num_samples(population: Population, n_clients: int, seed: int) -> IntArray:
    factor = np.power(_traits(seed, 0).random(n_clients), -1.0 / population.tail)
    return frozen(np.minimum(population.samples * factor, 1e15).astype(np.int64))


@lru_cache(maxsize=4)
def _loss_level(population: Population, n_clients: int, seed: int) -> FloatArray:
    deviation = _traits(seed, 1).standard_normal(n_clients)
    return frozen(np.exp(population.level_spread * deviation))


@lru_cache(maxsize=2)
def _features(population: Population, n_clients: int, seed: int) -> Array:
    # the same deviations that the loss levels are computed from
    height = _traits(seed, 1).standard_normal(n_clients)
    rng = _traits(seed, 2)
    slope = population.feature_strength * rng.choice([-1.0, 1.0], population.n_features)
    bits = np.empty((n_clients, population.n_features), dtype=np.uint8)
    for feature in range(population.n_features):
        chance = 1.0 / (1.0 + np.exp(-slope[feature] * height))
        bits[:, feature] = rng.random(n_clients) < chance
    return frozen(bits)


def _traits(seed: int, trait: int) -> np.random.Generator:
    return fixed_rng(seed, WorldStream.POPULATION, level=trait)
