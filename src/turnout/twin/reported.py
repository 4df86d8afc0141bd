"""What clients report: losses that fall over the rounds, each at its own level, and their sizes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turnout.core.types import FloatArray, IntArray
from turnout.twin.log import Log
from turnout.worlds import SyntheticLoss

#: What is tried for the share of the loss that never goes away, and for the rounds until half of
#: the rest is gone, as a share of the recorded rounds.
_FLOORS = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0])
_HALVES = np.geomspace(0.02, 5.0, 16)
#: Standard deviation of the logarithm of sizes that a client reports: they hardly change.
_SIZE_SCALE = 0.05
_LEAST_NOISE = 0.01
#: Fewer reports do not show how losses fall.
_LEAST_REPORTS = 30


class ReportedValues(NamedTuple):
    """Losses and sizes of a log.

    Attributes:
        losses: How losses fall and scatter; the usual ones if none were reported.
        n_losses: (n,) reported losses of each client.
        level: (n,) sum of the logarithms of a client's levels.
        loss_scale: How much the logarithm of a client's losses varies.
        n_sizes: (n,) reports of each client's number of examples.
        size: (n,) sum of their logarithms.
    """

    losses: SyntheticLoss
    n_losses: FloatArray
    level: FloatArray
    loss_scale: float
    n_sizes: FloatArray
    size: FloatArray

    def likelihood(self, level: FloatArray, size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return slopes and curvatures (n, 2) of both effects.

        Args:
            level: (n,) logarithm of each client's loss level.
            size: (n,) logarithm of each client's examples.
        """
        precision = np.array([self.loss_scale**-2, _SIZE_SCALE**-2])
        counts = np.stack((self.n_losses, self.n_sizes), axis=1)
        sums = np.stack((self.level, self.size), axis=1)
        slope = precision * (sums - counts * np.stack((level, size), axis=1))
        return slope, precision * counts


def reported_of(log: Log) -> ReportedValues:
    """Return what clients of a log reported.

    Args:
        log: The records.
    """
    n = log.n_clients
    has_loss, has_size = log.loss > 0.0, log.examples > 0.0
    clients, rounds = log.clients[has_loss], log.rounds[has_loss]
    height = np.log(log.loss[has_loss])
    n_losses = np.bincount(clients, minlength=n).astype(np.float64)
    losses, scale = SyntheticLoss(), 0.5
    if height.size >= _LEAST_REPORTS:
        losses, scale = _curve(clients, rounds, height, n, log.n_rounds)
    level = height - np.log(_falls(losses, rounds))
    sizes = np.log(log.examples[has_size])
    sized = log.clients[has_size]
    return ReportedValues(
        losses,
        n_losses,
        np.bincount(clients, level, minlength=n).astype(np.float64),
        scale,
        np.bincount(sized, minlength=n).astype(np.float64),
        np.bincount(sized, sizes, minlength=n).astype(np.float64),
    )


def _falls(losses: SyntheticLoss, rounds: IntArray) -> FloatArray:
    return np.asarray(losses.floor + (1.0 - losses.floor) / (1.0 + rounds / losses.half_life))


def _curve(
    clients: IntArray, rounds: IntArray, height: FloatArray, n: int, n_rounds: int
) -> tuple[SyntheticLoss, float]:
    """Return how losses fall, by least squares within clients, and how much they scatter."""
    count = np.maximum(np.bincount(clients, minlength=n), 1)
    best = math.inf, SyntheticLoss()
    for floor in _FLOORS:
        for share in _HALVES if floor < 1.0 else _HALVES[:1]:
            tried = SyntheticLoss(floor=float(floor), half_life=float(share * n_rounds))
            rest = height - np.log(_falls(tried, rounds))
            rest = rest - (np.bincount(clients, rest, minlength=n) / count)[clients]
            best = min(best, (float(np.square(rest).sum()), tried), key=lambda pair: pair[0])
    square, losses = best
    free = max(height.size - int((np.bincount(clients, minlength=n) > 0).sum()), 1)
    scale = max(math.sqrt(square / free), _LEAST_NOISE)
    noise = math.sqrt(math.expm1(min(scale, 2.0) ** 2))
    return SyntheticLoss(losses.floor, losses.half_life, noise), scale
