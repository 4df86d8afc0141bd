"""Dense layers of several clients at once, with their gradients written out.

Between dense layers values are (a, n, features): a clients at work, n examples each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from turnout.training.batched.weights import Stacked

__all__ = ["Flatten", "Layer", "Linear", "Relu", "Space", "Tanh", "where_above_0"]

#: ``where_above_0(values, by, 0.0, grad_input=out)`` keeps values where ``by`` is above 0.
where_above_0 = torch.ops.aten.threshold_backward.grad_input


class Layer(ABC):
    """One layer of all clients of a tile."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs and remember what the gradient needs; ``x`` may be overwritten."""

    @abstractmethod
    def backward(self, gradient: Tensor) -> Tensor | None:
        """Move the weights; return the gradient of the inputs, None if nobody asks for it."""


class Space:
    """Memory by name that is used again in every step, so that its pages stay in the cache."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._blocks: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor with arbitrary contents."""
        size = torch.Size(shape).numel()
        block = self._blocks.get(name)
        if block is None or block.numel() < size:
            block = self._blocks[name] = torch.empty(size, device=self._device)
        return block[:size].view(shape)


class Linear(Layer):
    """``y = x W' + b``."""

    def __init__(self, weight: Stacked, bias: Stacked | None, is_first: bool) -> None:
        self.weight = weight
        self.bias = bias
        self.is_first = is_first
        self.space = Space(weight.value.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return (a, n, outputs)."""
        self.x = x
        a, n, _ = x.shape
        weight = self.weight.value[:a].transpose(1, 2)
        out = self.space.take("out", a, n, weight.shape[2])
        if self.bias is None:
            return torch.bmm(x, weight, out=out)
        return torch.baddbmm(self.bias.value[:a, None], x, weight, out=out)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Move weight and bias."""
        a = gradient.shape[0]
        below = None
        if not self.is_first:
            below = self.space.take("below", *self.x.shape)
            torch.bmm(gradient, self.weight.value[:a], out=below)
        self.weight.descend_product(gradient.transpose(1, 2), self.x)
        if self.bias is not None:
            self.bias.descend(gradient.sum(1))
        return below


class Relu(Layer):
    """``max(x, 0)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` itself, changed."""
        self.out = x.relu_()
        return self.out

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient where the output is above 0."""
        where_above_0(gradient, self.out, 0.0, grad_input=gradient)
        return gradient


class Tanh(Layer):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` itself, changed."""
        self.out = x.tanh_()
        return self.out

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient times ``1 - tanh^2``."""
        torch.ops.aten.tanh_backward.grad_input(gradient, self.out, grad_input=gradient)
        return gradient


class Flatten(Layer):
    """From images with the examples last, (a, channels, height, width, n), to (a, n, features)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a view."""
        self.shape = x.shape
        return x.flatten(1, 3).transpose(1, 2)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient in the shape of images."""
        return gradient.transpose(1, 2).reshape(self.shape)
