"""What clients say of their losses: the truth, or a share of them exaggerates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from turnout.domains import CheckedFields, Fraction, Positive
from turnout.environments.base import WorldStream, fixed_rng, frozen
from turnout.types import BoolArray, FloatArray, IntArray


class Claims(ABC):
    """What clients report in the place of their true losses."""

    @abstractmethod
    def claimed(self, loss: FloatArray, clients: IntArray, n_clients: int, seed: int) -> FloatArray:
        """Return (s,) what some clients say.

        Args:
            loss: (s,) what is true.
            clients: (s,) who they are.
            n_clients: Number of clients of the world.
            seed: Seed of the world.
        """


@dataclass(frozen=True, slots=True)
class Honest(Claims):
    """Everyone tells the truth."""

    def claimed(self, loss: FloatArray, clients: IntArray, n_clients: int, seed: int) -> FloatArray:
        """Return what is true."""
        return loss


@dataclass(frozen=True, slots=True)
class Liars(CheckedFields, Claims):
    """Some clients exaggerate every loss that they report, also when they are polled.

    Args:
        share: Share of the clients that lie, from 0 to 1; the seed draws who.
        factor: What a liar multiplies its loss by, above 0.
    """

    share: Fraction = 0.1
    factor: Positive = 10.0

    def claimed(self, loss: FloatArray, clients: IntArray, n_clients: int, seed: int) -> FloatArray:
        """Multiply the losses of the liars."""
        lies = _liars(round(self.share * n_clients), n_clients, seed)[clients]
        return np.where(lies, self.factor * loss, loss)


@lru_cache(maxsize=4)
def _liars(n_liars: int, n_clients: int, seed: int) -> BoolArray:
    order = fixed_rng(seed, WorldStream.CLAIMS).permutation(n_clients)
    return frozen(order < n_liars)
