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
from turnout.training.batched.layers import Layer, Space
from turnout.training.batched.parts import Part
from turnout.training.batched.weights import Rule, Stacked
from turnout.training.modules import label_tensor
from turnout.types import IntArray

__all__ = ["Chain"]

#: Bytes that the clients of a tile use together. More clients save calls, up to about this.
TILE_BYTES = 1 << 26

FLOAT = 4  # bytes


class Chain(Engine):
    """Stacked weights and gradients written out, layer after layer."""

    name: ClassVar[str] = "stacked layers"
    is_shareable: ClassVar[bool] = True

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
        """Return how many clients fit into the room of a tile."""
        values = sum(weight.numel() for weight in self.module.parameters())
        values += self.batch_size * sum(part.values for part in self.parts)
        return max(1, TILE_BYTES // (FLOAT * values))

    @torch.no_grad()
    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        tile, device = task.tile(), task.weights.device
        weights = task.stacked([weight.shape for weight in self.module.parameters()])
        layers, space = self._layers(weights), Space(device)
        labels = label_tensor(self.data.y[tile.rows], device)
        losses = torch.zeros(tile.rows.shape, device=device)
        for step in range(tile.n_steps):
            size = tile.size[: np.count_nonzero(tile.size[:, step]), step]
            here = np.s_[: size.size, step, : size.max()]
            scores = _through(layers, self._inputs(tile.rows[here], space))
            losses[here], gradient = _cross_entropy(scores, labels[here], _shares(size, device))
            _back(layers, gradient)
        task.finish(weights)
        return losses_of(losses, tile)

    def scores(self, x: Tensor) -> Tensor:
        """Return the answer of the module to examples."""
        if not self.takes_images:
            answer: Tensor = self.module(x)
            return answer
        rule = Rule(lr=0.0)
        weights = [Stacked(weight, weight[None], rule) for weight in self.module.parameters()]
        images = self._arranged(x.flatten(1)[None], Space(x.device))
        return _through(self._layers(weights), images)[0]

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

    def _inputs(self, rows: IntArray, space: Space) -> Tensor:
        """Return the examples behind (a, n) rows as the first layer wants them."""
        raw = self.x.take(rows, axis=0)
        x = self._arranged(torch.from_numpy(raw), space)
        if self.data.scale != 1.0:
            x.mul_(self.data.scale)
        if self.data.shift != 0.0:
            x.add_(self.data.shift)
        return x

    def _arranged(self, x: Tensor, space: Space) -> Tensor:
        """Return flat examples (a, n, values) as numbers; images with the examples last."""
        a, n, values = x.shape
        if not self.takes_images:
            return space.take("x", a, n, values).copy_(x)
        last = space.take("x", a, values, n).copy_(x.transpose(1, 2))
        return last.view(a, *self.data.example_shape, n)


def _through(layers: Sequence[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.forward(x)
    return x


def _back(layers: Sequence[Layer], gradient: Tensor | None) -> None:
    """Move the weights of all layers, the last one first."""
    for layer in reversed(layers):
        if gradient is not None:
            gradient = layer.backward(gradient)


def _shares(size: IntArray, device: torch.device) -> Tensor | float:
    """Return the weight of each example in the mean loss of its mini-batch, (a, n, 1) or one."""
    n = int(size.max())
    if size.min() == n:
        return 1.0 / n
    shares = np.where(np.arange(n) < size[:, None], 1.0 / size[:, None], 0.0)
    return torch.from_numpy(shares.astype(np.float32)).to(device).unsqueeze(2)


def _cross_entropy(scores: Tensor, labels: Tensor, shares: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the loss of each example, and the gradient of their weighted sum."""
    gradient = torch.log_softmax(scores, 2)
    index = labels.unsqueeze(2)
    losses = gradient.gather(2, index).squeeze(2).neg_()
    gradient.exp_()
    gradient.scatter_add_(2, index, scores.new_full((1, 1, 1), -1.0).expand_as(index))
    return losses, gradient.mul_(shares)
