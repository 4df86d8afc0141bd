"""The contract of engines: train the clients of a tile, and score examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnout.training.batched.tiles import Tile, stack
from turnout.training.batched.weights import Stacked, StepRule
from turnout.training.batches import BatchPlan
from turnout.types import FloatArray, IntArray


class Losses(NamedTuple):
    """What each client of a tile reports; see ``base.Updates``.

    Args:
        mean: (g,) mean loss of the mini-batches.
        std: (g,) their standard deviation.
        rms: (g,) root mean square of the losses of single labels.

    """

    mean: FloatArray
    std: FloatArray
    rms: FloatArray


@dataclass(frozen=True)
class Task:
    """A tile of g clients to train.

    Args:
        weights: (P,) the global model.
        clients: (g,) the clients, those with the most steps first.
        round: Number of the round.
        plans: The mini-batches of each client.
        first_rows: (g,) where the examples of each client begin.
        rule: How a step changes the weights.
        out: g vectors (P,) that receive the local models.

    """

    weights: Tensor
    clients: IntArray
    round: int
    plans: Sequence[BatchPlan]
    first_rows: IntArray
    rule: StepRule
    out: Sequence[Tensor]

    def tile(self) -> Tile:
        """Return the mini-batches of all clients side by side."""
        return stack(self.plans, self.first_rows)

    def stacked(self, shapes: Sequence[torch.Size]) -> list[Stacked]:
        """Return every weight array of all clients; a single client uses the memory of ``out``."""
        sizes = [shape.numel() for shape in shapes]
        starts = [
            start.view(shape)
            for start, shape in zip(torch.split(self.weights, sizes), shapes, strict=True)
        ]
        if len(self.out) > 1:
            return [Stacked.copies(start, len(self.out), self.rule) for start in starts]
        values = torch.split(self.out[0].copy_(self.weights), sizes)
        return [
            Stacked(start, value.view(1, *start.shape), self.rule)
            for start, value in zip(starts, values, strict=True)
        ]

    def finish(self, stacked: Sequence[Stacked]) -> None:
        """Write the models to ``out``."""
        if len(self.out) > 1:
            for i, out in enumerate(self.out):
                torch.cat([weight.value[i].flatten() for weight in stacked], out=out)


class Engine(ABC):
    """Trains tiles of clients. Several threads use an engine at once."""

    name: ClassVar[str]
    is_serial: ClassVar[bool] = False  #: whether tiles must be trained one after the other
    is_shareable: ClassVar[bool] = False  #: whether several threads may ask for scores at once

    @abstractmethod
    def limit(self) -> int:
        """Return how many clients a tile may hold."""

    @abstractmethod
    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the module for examples."""


def losses_of(losses: Tensor, tile: Tile) -> Losses:
    """Return the reports of the clients of a tile.

    Args:
        losses: (g, steps, width) the loss of each example.
        tile: Says which examples count.

    """
    each = np.where(tile.counts, losses.cpu().numpy(), 0.0)
    at_work = tile.size > 0
    n_steps = at_work.sum(1)
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # losses that are not finite are marked later
        batch = each.sum(2) / np.maximum(tile.size, 1)
        mean = batch.sum(1) / n_steps
        spread = np.where(at_work, batch - mean[:, None], 0.0)
        std = np.sqrt((spread**2).sum(1) / n_steps)
        rms = np.sqrt((each**2).sum((1, 2)) / tile.size.sum(1))
    return Losses(mean, std, rms)
