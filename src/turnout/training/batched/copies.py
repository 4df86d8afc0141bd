"""Any module: the reference trainer, one client in each thread, each with its own copy."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from turnout.training.batched.engine import Engine, Losses, Task
from turnout.training.reference import ReferenceTrainer

__all__ = ["Copies", "OneByOne"]


class Copies(Engine):
    """Trains one client in each thread with autograd."""

    name: ClassVar[str] = "one client per thread"

    def __init__(self, reference: ReferenceTrainer) -> None:
        self.reference = reference

    def limit(self) -> int:
        """Return 1."""
        return 1

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        own = copy.copy(self.reference)
        own.module = copy.deepcopy(self.reference.module)
        updates = own.train(task.weights, task.clients, task.round)
        for out, weights in zip(task.out, updates.weights, strict=True):
            out.copy_(weights)
        return Losses(updates.loss, updates.loss_std, updates.loss_rms)

    def scores(self, x: Tensor) -> Tensor:
        """Return the answer of the module to examples."""
        scores: Tensor = self.reference.module(x)
        return scores
