"""Dense layers of several clients at once, with hand-written gradients.

A layer is built for one shape: it holds references to its inputs, its outputs and their gradients.
A step is then a short list of calls on tensors that exist already. Fewer calls matter: with two
threads each call may have to wait for Python's lock.

Between dense layers values are (a, n, features): a clients at work, n examples each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from turnout.training.batched.weights import Stacked

#: ``where_above_0(values, by, 0.0, grad_input=out)`` keeps values where ``by`` is above 0.
where_above_0 = torch.ops.aten.threshold_backward.grad_input


class Space:
    """Blocks of memory that are given out in order, and again after ``rewind``.

    Args:
        device: Where the memory is.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._blocks: list[Tensor] = []
        self._used = 0

    def rewind(self) -> None:
        """Give out the first block next."""
        self._used = 0

    def take(self, *shape: int) -> Tensor:
        """Return a tensor with arbitrary contents."""
        size = torch.Size(shape).numel()
        if self._used == len(self._blocks):
            self._blocks.append(torch.empty(size, device=self._device))
        if self._blocks[self._used].numel() < size:
            self._blocks[self._used] = torch.empty(size, device=self._device)
        self._used += 1
        return self._blocks[self._used - 1][:size].view(shape)


class Layer(ABC):
    """One layer of several clients, for one shape of its inputs."""

    out: Tensor  #: where ``forward`` writes the outputs

    @abstractmethod
    def forward(self) -> None:
        """Compute the outputs; the inputs may be overwritten."""

    @abstractmethod
    def connect(self, gradient: Tensor) -> Tensor | None:
        """Store the place of the gradient of the outputs; return that of the inputs."""

    @abstractmethod
    def backward(self) -> None:
        """Update the weights and compute the gradient of the inputs."""


class Dense(Layer):
    """``y = x W' + b``.

    Args:
        x: (a, n, inputs) the inputs.
        space: Gives memory.
        weight: (a, outputs, inputs) the matrices.
        bias: (a, outputs) or None.
        is_first: Whether no layer below needs a gradient.

    """

    def __init__(
        self, x: Tensor, space: Space, weight: Stacked, bias: Stacked | None, is_first: bool
    ) -> None:
        self.x = x
        self.weight = weight
        self.bias = bias
        self.is_first = is_first
        self.space = space
        self.turned = weight.value.transpose(1, 2)
        self.offset = None if bias is None else bias.value[:, None]
        self.out = space.take(*x.shape[:2], weight.value.shape[1])

    def forward(self) -> None:
        """Compute (a, n, outputs)."""
        if self.offset is None:
            torch.bmm(self.x, self.turned, out=self.out)
        else:
            torch.baddbmm(self.offset, self.x, self.turned, out=self.out)

    def connect(self, gradient: Tensor) -> Tensor | None:
        """Store the place of the gradient of the outputs; return that of the inputs."""
        self.gradient = gradient
        self.gradient_turned = gradient.transpose(1, 2)
        self.below = None if self.is_first else self.space.take(*self.x.shape)
        return self.below

    def backward(self) -> None:
        """Update weight and bias."""
        if self.below is not None:
            torch.bmm(self.gradient, self.weight.value, out=self.below)
        self.weight.descend_product(self.gradient_turned, self.x)
        if self.bias is not None:
            self.bias.descend(self.gradient.sum(1))


class _Elementwise(Layer):
    """A function of each number, computed in place."""

    def __init__(self, x: Tensor, space: Space) -> None:
        self.out = x

    def connect(self, gradient: Tensor) -> Tensor:
        """Store the place of the gradient of the outputs; that of the inputs is the same."""
        self.gradient = gradient
        return gradient


class Relu(_Elementwise):
    """``max(x, 0)``."""

    def forward(self) -> None:
        """Change the inputs."""
        self.out.relu_()

    def backward(self) -> None:
        """Keep the gradient where the output is above 0."""
        where_above_0(self.gradient, self.out, 0.0, grad_input=self.gradient)


class Tanh(_Elementwise):
    """Hyperbolic tangent."""

    def forward(self) -> None:
        """Change the inputs."""
        self.out.tanh_()

    def backward(self) -> None:
        """Multiply the gradient by ``1 - tanh^2``."""
        torch.ops.aten.tanh_backward.grad_input(self.gradient, self.out, grad_input=self.gradient)


class Flatten(Layer):
    """From images with the examples last, (a, channels, height, width, n), to (a, n, features)."""

    def __init__(self, x: Tensor, space: Space) -> None:
        self.space = space
        self.shape = x.shape
        self.out = x.flatten(1, 3).transpose(1, 2)

    def forward(self) -> None:
        """Do nothing: the outputs are a view of the inputs."""

    def connect(self, gradient: Tensor) -> Tensor:
        """Store the place of the gradient of the outputs; return that of the inputs."""
        self.gradient = gradient
        below = self.space.take(*self.shape)
        self.below_flat = below.flatten(1, 3).transpose(1, 2)
        return below

    def backward(self) -> None:
        """Copy the gradient."""
        self.below_flat.copy_(self.gradient)
