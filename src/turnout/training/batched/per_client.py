"""Any module: the reference trainer on copies of it, in threads or one after the other."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from turnout.data.base import FederatedData
from turnout.training.batched.engine import Engine, Losses, Task
from turnout.training.modules import input_tensor
from turnout.training.reference import ReferenceTrainer

#: Clients that one copy trains.
CLIENTS = 4


class Copies(Engine):
    """Trains one client in each thread, with autograd.

    Args:
        reference: The reference trainer of the module.

    """

    name: ClassVar[str] = "one client per thread"

    def __init__(self, reference: ReferenceTrainer) -> None:
        self.reference = reference

    def limit(self) -> int:
        """Return how many clients share a copy, one after the other."""
        return CLIENTS

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        own = copy.copy(self.reference)
        own.module = copy.deepcopy(self.reference.module)
        updates = own.train(task.weights, task.clients, task.round)
        for out, weights in zip(task.out, updates.weights, strict=True):
            out.copy_(weights)
        return Losses(updates.loss, updates.loss_std, updates.loss_rms)

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the module for examples."""
        scores: Tensor = self.reference.module(x)
        return scores


class OneByOne(Copies):
    """``Copies`` without threads, because all threads share the generator of a module's noise."""

    name: ClassVar[str] = "one client after the other"
    is_serial: ClassVar[bool] = True


def is_noisy(module: nn.Module, data: FederatedData) -> bool:
    """Whether a module draws random numbers while it trains, as dropout does.

    Args:
        module: The module.
        data: The examples that it is tried on.

    """
    device = next(module.parameters()).device
    x = input_tensor(data, data.x[:2], device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copy.deepcopy(module).train()(x)
        return not torch.equal(before, torch.get_rng_state())
