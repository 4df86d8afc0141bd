"""Engines for any module: all clients of a tile at once under ``torch.func``, or copies in threads.

Clients whose mini-batches have the same size go through the module together. So a layer that uses
its whole mini-batch sees the same examples as if the client trained alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from turnout.core.types import IntArray
from turnout.data.base import FederatedData
from turnout.training.engine import Engine, Losses, Task, losses_of
from turnout.training.modules import input_tensor, label_tensor
from turnout.training.reference import ReferenceTrainer

#: Gradients and losses of a group of clients, from their weights, examples and labels.
Gradients = Callable[[list[Tensor], Tensor, Tensor], tuple[Sequence[Tensor], Tensor]]

#: Bytes of weights in a tile, at most.
TILE_BYTES = 1 << 24

#: Number of examples on which the engine is tried, and how much gradients may differ.
PROBE, TOLERANCE = 3, 1e-4


class Functional(Engine):
    """Trains the clients of a tile with one call of the module per step."""

    name: ClassVar[str] = "vmap"

    def limit(self) -> int:
        """Return how many clients fit into the memory of a tile."""
        return max(1, TILE_BYTES // sum(weight.nbytes for weight in self.module.parameters()))

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        tile = task.tile()
        gradients = _gradients(self.module)
        weights = task.stacked([weight.shape for weight in self.module.parameters()])
        losses = torch.zeros(tile.rows.shape, device=task.weights.device)
        for step in range(tile.n_steps):
            size = tile.size[: np.count_nonzero(tile.size[:, step]), step]
            moves = [torch.empty_like(weight.value[: size.size]) for weight in weights]
            for n in np.unique(size):
                group = np.flatnonzero(size == n)
                x, y = self._examples(tile.rows[group, step, :n], losses.device)
                steps, loss = gradients([weight.value[group] for weight in weights], x, y)
                losses[group, step, :n] = loss
                for move, gradient in zip(moves, steps, strict=True):
                    move[group] = gradient
            for weight, move in zip(weights, moves, strict=True):
                weight.first(size.size).descend(move)
        task.finish(weights)
        return losses_of(losses, tile)

    def _examples(self, rows: IntArray, device: torch.device) -> tuple[Tensor, Tensor]:
        x = input_tensor(self.data, self.data.x[rows], device)
        return x, label_tensor(self.data.y[rows], device)


def _gradients(module: nn.Module) -> Gradients:
    """Return the function that maps (a, ...) weights, (a, n, ...) examples to gradients."""
    own = copy.deepcopy(module).train()  # its weights are swapped while it is called
    names = [name for name, _ in own.named_parameters()]

    def loss(weights: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores = functional_call(own, dict(zip(names, weights, strict=True)), (x,))
        losses = cross_entropy(scores, y, reduction="none")
        return losses.mean(), losses

    gradients: Gradients = vmap(grad(loss, has_aux=True), randomness="error")
    return gradients


def why_not(module: nn.Module, data: FederatedData) -> str:
    """Return why this engine cannot train a module, or an empty string.

    Two clients with different weights must get the gradients that autograd gives to each.

    Args:
        module: The module.
        data: The examples that it is tried on.

    """
    if data.is_text:
        return "texts have a label at each position"
    device = next(module.parameters()).device
    weights = [torch.stack([weight, 1.01 * weight]).detach() for weight in module.parameters()]
    n = min(PROBE, data.x.shape[0])
    x = input_tensor(data, data.x[:n], device).expand(2, n, *data.example_shape)
    y = label_tensor(data.y[:n], device).expand(2, n)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch warns if it would be slow
            by_vmap, _ = _gradients(module)(weights, x, y)
            by_autograd = [
                _by_autograd(module, [weight[i] for weight in weights], x[i], y[i]) for i in (0, 1)
            ]
    except Exception as error:  # a user's module may fail in any way
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    ours = torch.cat([part.flatten(1) for part in by_vmap], dim=1)
    theirs = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in by_autograd])
    if not torch.allclose(ours, theirs, rtol=0.0, atol=TOLERANCE * float(theirs.abs().max())):
        return "torch.func gives other gradients than autograd"
    return ""


def _by_autograd(module: nn.Module, weights: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    own = copy.deepcopy(module).train()
    with torch.no_grad():
        for weight, value in zip(own.parameters(), weights, strict=True):
            weight.copy_(value)
    loss = cross_entropy(own(x), y)
    return list(torch.autograd.grad(loss, list(own.parameters())))


# Where ``torch.func`` cannot train a module, the reference trainer trains copies of it.

#: Clients that one copy trains.
CLIENTS = 4


class Copies(Engine):
    """Trains one client in each thread, with autograd.

    Args:
        reference: The reference trainer of the module.

    """

    name: ClassVar[str] = "one client per thread"

    def __init__(self, reference: ReferenceTrainer) -> None:
        super().__init__(reference.module, reference.data)
        self.reference = reference

    def limit(self) -> int:
        """Return how many clients share a copy, one after the other."""
        return CLIENTS

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        own = copy.copy(self.reference)
        own.module = copy.deepcopy(self.module)
        updates = own.train(task.weights, task.clients, task.round, task.draws)
        for out, weights in zip(task.out, updates.weights, strict=True):
            out.copy_(weights)
        return Losses(updates.loss, updates.loss_std, updates.loss_rms)


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
