"""Models that are a chain of standard layers: logistic regression, perceptrons, simple CNNs.

The softmax and the cross-entropy on top have the gradient ``softmax - one-hot``, so no graph of
operations is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from turnout.data.base import FederatedData
from turnout.training.batched.engine import Engine, Losses, Task, losses_of
from turnout.training.batched.layers import Layer
from turnout.training.batched.parts import Part
from turnout.training.batched.weights import Rule, Stacked
from turnout.training.modules import label_tensor
from turnout.types import IntArray

__all__ = ["Chain"]

#: Bytes that the clients of a tile use together: what stays in the cache of a core; on a GPU, what
#: its memory has room for.
CACHE, GPU_MEMORY = 1 << 22, 1 << 30

FLOAT = 4  # bytes


class Chain(Engine):
    """Stacked weights and gradients written out, layer after layer."""

    name: ClassVar[str] = "stacked layers"

    def __init__(
        self, parts: Sequence[Part], module: nn.Module, data: FederatedData, batch_size: int
    ) -> None:
        self.parts = parts
        self.module = module
        self.data = data
        self.batch_size = batch_size  #: examples of the largest mini-batch
        self.takes_images = len(parts[0].shape) == 3
        self.x = np.asarray(data.x).reshape(data.x.shape[0], -1)

    def limit(self) -> int:
        """Return how many clients fit into the cache."""
        weights = list(self.module.parameters())
        values = sum(weight.numel() for weight in weights)
        values += self.batch_size * sum(part.values for part in self.parts)
        room = CACHE if weights[0].device.type == "cpu" else GPU_MEMORY
        return max(1, room // (FLOAT * values))

    @torch.no_grad()
    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        tile = task.tile()
        weights = task.stacked([weight.shape for weight in self.module.parameters()])
        layers = self._layers(weights)
        losses = torch.zeros(tile.rows.shape, device=task.weights.device)
        for step in range(tile.n_steps):
            size = tile.size[: np.count_nonzero(tile.size[:, step]), step]
            rows = tile.rows[: size.size, step, : size.max()]
            scores = _through(layers, self._inputs(rows, losses.device))
            labels = label_tensor(self.data.y[rows], losses.device)
            loss, gradient = _cross_entropy(scores, labels, _shares(size, losses.device))
            losses[: loss.shape[0], step, : loss.shape[1]] = loss
            _back(layers, gradient)
        task.finish(weights)
        return losses_of(losses, tile)

    def scores(self, x: Tensor) -> Tensor:
        """Return the answer of the module to examples."""
        rule = Rule(lr=0.0)
        weights = [Stacked(weight, weight[None], rule) for weight in self.module.parameters()]
        return _through(self._layers(weights), self._arranged(x.flatten(1)[None]))[0]

    def _layers(self, weights: Sequence[Stacked]) -> list[Layer]:
        """Return the layers of all clients of a tile."""
        left = iter(weights)
        layers: list[Layer] = []
        for part in self.parts:
            if part.n_weights:
                weight, bias = next(left), next(left) if part.n_weights == 2 else None
                layers.append(part.build(weight, bias, is_first=not layers))
            else:
                layers.append(part.build())
        return layers

    def _inputs(self, rows: IntArray, device: torch.device) -> Tensor:
        """Return the examples behind (a, n) rows as the first layer wants them."""
        taken = torch.from_numpy(self.x.take(rows.ravel(), axis=0)).to(device)
        x = self._arranged(taken.view(*rows.shape, -1))
        if self.data.scale != 1.0:
            x.mul_(self.data.scale)
        if self.data.shift != 0.0:
            x.add_(self.data.shift)
        return x

    def _arranged(self, x: Tensor) -> Tensor:
        """Return flat examples (a, n, values) as numbers; images with the examples last."""
        if not self.takes_images:
            return x.to(torch.float32)
        a, n, _ = x.shape
        last = x.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return last.contiguous().view(a, *self.data.example_shape, n)


def _through(layers: Sequence[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.forward(x)
    return x


def _back(layers: Sequence[Layer], gradient: Tensor | None) -> None:
    """Move the weights of all layers, the last one first."""
    for layer in reversed(layers):
        if gradient is not None:
            gradient = layer.backward(gradient)


def _shares(size: IntArray, device: torch.device) -> Tensor:
    """Return (a, n, 1) the weight of each example in the mean loss of its mini-batch."""
    counts = np.arange(size.max()) < size[:, None]
    shares = np.where(counts, 1.0 / size[:, None], 0.0).astype(np.float32)
    return torch.from_numpy(shares).to(device).unsqueeze(2)


def _cross_entropy(scores: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each example, and the gradient of their weighted sum."""
    gradient = torch.log_softmax(scores, 2)
    index = labels.unsqueeze(2)
    losses = gradient.gather(2, index).squeeze(2).neg_()
    gradient.exp_()
    gradient.scatter_add_(2, index, scores.new_full((1, 1, 1), -1.0).expand_as(index))
    return losses, gradient.mul_(shares)
