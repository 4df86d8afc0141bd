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
from turnout.training.batched.layer_plan import LayerPlan
from turnout.training.batched.layers import Layer, Space
from turnout.training.batched.weights import Stacked, StepRule
from turnout.training.modules import label_tensor
from turnout.types import IntArray

#: Bytes that the clients of a tile use together. Larger tiles save no more time.
TILE_BYTES = 1 << 26

FLOAT = 4  # bytes


class Chain(Engine):
    """Trains with stacked weights and hand-written gradients, layer after layer.

    Args:
        parts: The layers of the module.
        module: The module.
        data: The examples of all clients.
        batch_size: Examples of the largest mini-batch.

    """

    name: ClassVar[str] = "stacked layers"
    is_shareable: ClassVar[bool] = True

    def __init__(
        self, parts: Sequence[LayerPlan], module: nn.Module, data: FederatedData, batch_size: int
    ) -> None:
        self.parts = parts
        self.module = module
        self.data = data
        self.batch_size = batch_size
        self.takes_images = len(parts[0].shape) == 3
        self.x = np.asarray(data.x).reshape(data.x.shape[0], -1)

    def limit(self) -> int:
        """Return how many clients fit into the memory of a tile."""
        values = sum(weight.numel() for weight in self.module.parameters())
        values += self.batch_size * sum(part.values for part in self.parts)
        return max(1, TILE_BYTES // (FLOAT * values))

    @torch.no_grad()
    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        tile, device = task.tile(), task.weights.device
        weights = task.stacked([weight.shape for weight in self.module.parameters()])
        labels = label_tensor(self.data.y[tile.rows], device).unsqueeze(3)
        losses = torch.zeros(*tile.rows.shape, 1, device=device)
        space, net = Space(device), None
        for step in range(tile.n_steps):
            size = tile.size[: np.count_nonzero(tile.size[:, step]), step]
            a, n = size.size, int(size.max())
            if net is None or net.shape != (a, n):
                net = self._net(weights, a, n, space)
                top = _CrossEntropy(net.out, space)
                net.connect(top.gradient)
            self._read(tile.rows[:a, step, :n], net.x)
            net.forward()
            losses[:a, step, :n] = top.losses(labels[:a, step, :n], _shares(size, device))
            net.backward()
        task.finish(weights)
        return losses_of(losses.squeeze(3), tile)

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the module for examples."""
        if not self.takes_images:
            answer: Tensor = self.module(x)
            return answer
        rule = StepRule(lr=0.0)
        weights = [Stacked(weight, weight[None], rule) for weight in self.module.parameters()]
        net = self._net(weights, 1, x.shape[0], Space(x.device))
        self._arrange(x.flatten(1)[None], net.x)
        net.forward()
        return net.out[0]

    def _net(self, weights: Sequence[Stacked], a: int, n: int, space: Space) -> _Net:
        """Return the layers of the first ``a`` clients for ``n`` examples each."""
        space.rewind()
        shape = (*self.data.example_shape, n) if self.takes_images else (n, self.x.shape[1])
        return _Net(
            self.parts, [weight.first(a) for weight in weights], space.take(a, *shape), space
        )

    def _read(self, rows: IntArray, x: Tensor) -> None:
        """Write the examples of (a, n) rows to the input of the first layer."""
        self._arrange(torch.from_numpy(self.x.take(rows, axis=0)), x)
        if self.data.scale != 1.0:
            x.mul_(self.data.scale)
        if self.data.shift != 0.0:
            x.add_(self.data.shift)

    def _arrange(self, examples: Tensor, x: Tensor) -> None:
        """Write flat examples, (a, n, values), to the input; images have the examples last."""
        if self.takes_images:
            x.flatten(1, 3).copy_(examples.transpose(1, 2))
        else:
            x.copy_(examples)


class _Net:
    """All layers of a few clients, connected with each other."""

    def __init__(
        self, parts: Sequence[LayerPlan], weights: Sequence[Stacked], x: Tensor, space: Space
    ) -> None:
        self.x = self.out = x
        self.layers: list[Layer] = []
        remaining = iter(weights)
        for part in parts:
            layer: Layer
            if part.n_weights:
                weight, bias = next(remaining), next(remaining) if part.n_weights == 2 else None
                layer = part.build(self.out, space, weight, bias, is_first=not self.layers)
            else:
                layer = part.build(self.out, space)
            self.layers.append(layer)
            self.out = layer.out
        self.shape = tuple(self.out.shape[:2])  #: clients, examples of each

    def connect(self, gradient: Tensor | None) -> None:
        """Tell the layers where the gradient of the scores will be."""
        for layer in reversed(self.layers):
            if gradient is not None:
                gradient = layer.connect(gradient)

    def forward(self) -> None:
        """Compute the scores."""
        for layer in self.layers:
            layer.forward()

    def backward(self) -> None:
        """Update the weights of all layers, the last layer first."""
        for layer in reversed(self.layers):
            layer.backward()


class _CrossEntropy:
    """The loss of scores, (a, n, classes), and its gradient."""

    def __init__(self, scores: Tensor, space: Space) -> None:
        self.scores = scores
        self.gradient = space.take(*scores.shape)
        self.minus_1 = scores.new_full((1, 1, 1), -1.0).expand(*scores.shape[:2], 1)

    def losses(self, labels: Tensor, shares: Tensor | float) -> Tensor:
        """Return each loss, (a, n, 1), and compute the gradient of their weighted sum."""
        torch.log_softmax(self.scores, 2, out=self.gradient)
        losses = self.gradient.gather(2, labels).neg_()
        self.gradient.exp_().scatter_add_(2, labels, self.minus_1).mul_(shares)
        return losses


def _shares(size: IntArray, device: torch.device) -> Tensor | float:
    """Return the weight of each example in the mean loss of its mini-batch, (a, n, 1) or scalar."""
    n = int(size.max())
    if size.min() == n:
        return 1.0 / n
    shares = np.where(np.arange(n) < size[:, None], 1.0 / size[:, None], 0.0)
    return torch.from_numpy(shares.astype(np.float32)).to(device).unsqueeze(2)
