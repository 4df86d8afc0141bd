"""What an engine is: it trains the clients of one tile, and scores examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from turnout.training.batched.tiles import Tile, stack
from turnout.training.batched.weights import Rule
from turnout.training.batches import BatchPlan
from turnout.types import FloatArray, IntArray

__all__ = ["Engine", "Losses", "Task", "losses_of"]


class Losses(NamedTuple):
    """What each client of a tile reports; see ``base.Updates``."""

    mean: FloatArray
    std: FloatArray
    rms: FloatArray


@dataclass(frozen=True)
class Task:
    """A tile to train."""

    weights: Tensor  #: (P,) the global model
    clients: IntArray  #: (g,) the longest work first
    round: int
    plans: Sequence[BatchPlan]
    first_rows: IntArray  #: (g,) where the examples of each client begin
    rule: Rule
    out: Sequence[Tensor]  #: g times (P,): where the local models go

    def tile(self) -> Tile:
        """Return the mini-batches of all clients side by side."""
        return stack(self.plans, self.first_rows)


class Engine(ABC):
    """Trains tiles of clients; several threads use it at once."""

    name: ClassVar[str]

    @abstractmethod
    def limit(self) -> int:
        """Return how many clients a tile may hold."""

    @abstractmethod
    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """Return the answer of the module at hand to examples."""


def losses_of(losses: Tensor, tile: Tile) -> Losses:
    """Return the reports of clients from the loss of each example, (g, steps, width)."""
    each = np.where(tile.counts, losses.cpu().numpy(), 0.0)
    at_work = tile.size > 0
    n_steps = at_work.sum(1)
    with np.errstate(invalid="ignore", over="ignore"):  # clients that broke are marked later
        batch = each.sum(2) / np.maximum(tile.size, 1)
        mean = batch.sum(1) / n_steps
        spread = np.where(at_work, batch - mean[:, None], 0.0)
        std = np.sqrt((spread**2).sum(1) / n_steps)
        rms = np.sqrt((each**2).sum((1, 2)) / tile.size.sum(1))
    return Losses(mean, std, rms)
