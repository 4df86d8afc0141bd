"""Any other module: all clients of a tile at once under ``torch.func``.

Clients whose mini-batches have the same size go through the module together, so that a layer that
looks at its whole mini-batch sees what it would see alone.
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

from turnout.data.base import FederatedData
from turnout.training.batched.engine import Engine, Losses, Task, losses_of
from turnout.training.batched.weights import Stacked
from turnout.training.modules import input_tensor, label_tensor
from turnout.types import IntArray

__all__ = ["Functional", "why_not"]

#: Gradients and losses of a group of clients, from their weights, examples and labels.
Gradients = Callable[[list[Tensor], Tensor, Tensor], tuple[Sequence[Tensor], Tensor]]

#: Bytes of weights that a tile may have on a CPU and on a GPU.
CACHE, GPU_MEMORY = 1 << 22, 1 << 28

#: Examples that are tried before the engine is used, and by how much answers may differ.
PROBE, TOLERANCE = 3, 1e-4


class Functional(Engine):
    """Trains the clients of a tile with one call of the module a step."""

    name: ClassVar[str] = "vmap"

    def __init__(self, module: nn.Module, data: FederatedData) -> None:
        self.module = module
        self.data = data

    def limit(self) -> int:
        """Return how many clients fit into the cache."""
        weights = list(self.module.parameters())
        room = CACHE if weights[0].device.type == "cpu" else GPU_MEMORY
        return max(1, room // sum(weight.nbytes for weight in weights))

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        tile = task.tile()
        gradients = _gradients(self.module)
        weights = self._stacked(task, tile.n_clients)
        losses = torch.zeros(tile.rows.shape, device=task.weights.device)
        for step in range(tile.n_steps):
            size = tile.size[: np.count_nonzero(tile.size[:, step]), step]
            steps = [torch.empty_like(weight.value[: size.size]) for weight in weights]
            for n in np.unique(size):
                group = np.flatnonzero(size == n)
                x, y = self._examples(tile.rows[group, step, :n], task.weights.device)
                found, loss = gradients([weight.value[group] for weight in weights], x, y)
                losses[group, step, :n] = loss
                for whole, part in zip(steps, found, strict=True):
                    whole[group] = part
            for weight, gradient in zip(weights, steps, strict=True):
                weight.descend(gradient)
        for i, out in enumerate(task.out):
            torch.cat([weight.value[i].flatten() for weight in weights], out=out)
        return losses_of(losses, tile)

    def scores(self, x: Tensor) -> Tensor:
        """Return the answer of the module to examples."""
        scores: Tensor = self.module(x)
        return scores

    def _stacked(self, task: Task, n_clients: int) -> list[Stacked]:
        weights = list(self.module.parameters())
        starts = task.weights.split([weight.numel() for weight in weights])
        return [
            Stacked.copies(start.view_as(weight), n_clients, task.rule)
            for start, weight in zip(starts, weights, strict=True)
        ]

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
