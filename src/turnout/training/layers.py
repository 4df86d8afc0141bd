"""Chains of standard layers, for several clients at once, with hand-written gradients.

Logistic regression, perceptrons and simple CNNs are such chains. The softmax and the cross-entropy
on top have the gradient ``softmax - one-hot``, so no graph of operations is recorded.

A layer is built for one shape: it holds references to its inputs, its outputs and their gradients.
A step is then a short list of calls on tensors that exist already. Fewer calls matter: with two
threads each call may have to wait for Python's lock.

Between dense layers values are (a, n, features): a clients at work, n examples each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from turnout.core.types import IntArray
from turnout.data.base import FederatedData
from turnout.training.engine import Engine, Losses, Stacked, StepRule, Task, losses_of
from turnout.training.modules import label_tensor

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


# Convolution, ReLU and 2x2 max pooling of several clients at once, as one matrix product.
#
# With a kernel of k x k, the four outputs under one pooling window depend on one (k + 1) x (k + 1)
# patch of the input. So all patches, 2 apart, become the columns of a matrix, and each kernel
# becomes four rows: itself at its four places inside the patch, zero elsewhere. The product has the
# four values of each pooling window in four blocks; pooling is a maximum of blocks. Compared with
# unfolding into k x k patches this multiplies the arithmetic by ((k + 1) / k)^2 but divides the
# copying by 2.8 (for k = 5). With few channels copying takes most of the time.
#
# Examples are the last axis: (a, channels, height, width, n). Everything that is copied or added is
# then a run of n numbers.


class ConvReluPool(Layer):
    """Convolution with an odd kernel and stride 1, ReLU, 2x2 max pooling.

    Args:
        x: (a, channels, height, width, n) the inputs.
        space: Gives memory.
        weight: (a, out, channels, k, k) the kernels.
        bias: (a, out) or None.
        is_first: Whether no layer below needs a gradient.
        padding: Zeros around the inputs.

    """

    def __init__(
        self,
        x: Tensor,
        space: Space,
        weight: Stacked,
        bias: Stacked | None,
        is_first: bool,
        padding: int = 0,
    ) -> None:
        self.x = x
        self.space = space
        self.weight = weight
        self.bias = bias
        self.is_first = is_first
        self.padding = padding
        a, out, channels, k, _ = weight.value.shape
        self.padded = self._padded()
        height, width, n = self.padded.shape[2:]
        h, w = (height - k + 1) // 2, (width - k + 1) // 2
        self.windows = self.padded.unfold(2, k + 1, 2).unfold(3, k + 1, 2)
        self.windows = self.windows.permute(0, 1, 5, 6, 2, 3, 4)
        self.patches = space.take(*self.windows.shape)
        self.columns = self.patches.view(a, -1, h * w * n)
        self.columns_turned = self.columns.transpose(1, 2)
        self.rows = space.take(a, 4 * out, channels * (k + 1) ** 2).zero_()
        self.kernels = self._kernels(self.rows)
        self.products = space.take(a, 4 * out, h * w * n)
        self.blocks = self.products.view(a, 4, out, h * w * n).unbind(1)
        self.wins = [space.take(a, out, h * w * n) for _ in range(3)]
        self.pooled = space.take(a, out, h * w * n)
        self.offset = None if bias is None else bias.value[:, :, None]
        self.out = self.pooled.view(a, out, h, w, n)

    def forward(self) -> None:
        """Compute (a, out, height', width', n)."""
        if self.padding:
            self._inside(self.padded).copy_(self.x)
        self.patches.copy_(self.windows)
        self.kernels.copy_(self.weight.value[:, None, None])
        torch.bmm(self.rows, self.columns, out=self.products)
        self._pool()

    def connect(self, gradient: Tensor) -> Tensor | None:
        """Store the place of the gradient of the outputs; return that of the inputs."""
        self.gradient = gradient.view(self.pooled.shape)
        self.lower = self.space.take(*self.pooled.shape)
        self.of_rows = self.space.take(*self.rows.shape)
        (top_left, top_right), (bottom_left, bottom_right) = (
            half.unbind(1) for half in self._kernels(self.of_rows).unbind(1)
        )
        self.of_kernels = top_left, top_right, bottom_left, bottom_right
        return None if self.is_first else self._connect_below()

    def backward(self) -> None:
        """Update kernels and bias."""
        where_above_0(self.gradient, self.pooled, 0.0, grad_input=self.gradient)
        if self.bias is not None:
            self.bias.descend(self.gradient.sum(2))
        self._unpool()
        torch.bmm(self.products, self.columns_turned, out=self.of_rows)
        if not self.is_first:
            self._back_to_inputs()
        top_left, top_right, bottom_left, bottom_right = self.of_kernels
        self.weight.descend((top_left + top_right).add_(bottom_left).add_(bottom_right))

    def _padded(self) -> Tensor:
        """Return the memory of the inputs with zeros around them."""
        p = self.padding
        if not p:
            return self.x
        a, channels, height, width, n = self.x.shape
        return self.space.take(a, channels, height + 2 * p, width + 2 * p, n).zero_()

    def _inside(self, padded: Tensor) -> Tensor:
        p, (height, width) = self.padding, self.x.shape[2:4]
        return padded[:, :, p : p + height, p : p + width]

    def _kernels(self, rows: Tensor) -> Tensor:
        """Return the four places of each kernel in the rows, (a, 2, 2, out, channels, k, k)."""
        a, out, channels, k, _ = self.weight.value.shape
        patch = (k + 1) ** 2
        block = out * channels * patch
        shape = (a, 2, 2, out, channels, k, k)
        strides = (4 * block, 2 * block + k + 1, block + 1, channels * patch, patch, k + 1, 1)
        return rows.as_strided(shape, strides)

    def _pool(self) -> None:
        """Compute relu(maximum of the four blocks + bias); store which block is largest."""
        top_left, top_right, bottom_left, bottom_right = self.blocks
        top_right_wins, bottom_right_wins, bottom_wins = self.wins
        torch.sub(top_right, top_left, out=top_right_wins)
        torch.sub(bottom_right, bottom_left, out=bottom_right_wins)
        torch.maximum(top_left, top_right, out=top_left)
        torch.maximum(bottom_left, bottom_right, out=bottom_left)
        torch.sub(bottom_left, top_left, out=bottom_wins)
        torch.maximum(top_left, bottom_left, out=self.pooled)
        if self.offset is not None:
            self.pooled.add_(self.offset)
        self.pooled.relu_()

    def _unpool(self) -> None:
        """Overwrite the four blocks with their gradient: only the first largest gets any."""
        top_left, top_right, bottom_left, bottom_right = self.blocks
        top_right_wins, bottom_right_wins, bottom_wins = self.wins
        where_above_0(self.gradient, bottom_wins, 0.0, grad_input=self.lower)
        upper = self.gradient.sub_(self.lower)
        where_above_0(upper, top_right_wins, 0.0, grad_input=top_right)
        torch.sub(upper, top_right, out=top_left)
        where_above_0(self.lower, bottom_right_wins, 0.0, grad_input=bottom_right)
        torch.sub(self.lower, bottom_right, out=bottom_left)

    def _connect_below(self) -> Tensor:
        """Pair each part of the patches with the place in the inputs that it came from.

        Even and odd rows and columns are kept apart, so that each sum is over adjacent numbers.
        """
        a, channels, height, width, n = self.padded.shape
        h, w = self.patches.shape[4:6]
        half = self.patches.shape[2] // 2
        self.rows_turned = self.rows.transpose(1, 2)
        parts = self.patches.view(a, channels, half, 2, half, 2, h, w, n)
        self.planes = self.space.take(a, channels, 2, 2, -(-height // 2), -(-width // 2), n)
        self.overlaps = [
            (self.planes[..., i : i + h, j : j + w, :], parts[:, :, i, :, j])
            for i in range(half)
            for j in range(half)
        ]
        self.joined = self.planes.permute(0, 1, 4, 2, 5, 3, 6)
        self.whole = self.space.take(*self.joined.shape)
        sides = 2 * self.joined.shape[2], 2 * self.joined.shape[4]
        self.cropped = self._inside(self.whole.view(a, channels, *sides, n))
        is_cut = self.cropped.numel() < self.whole.numel()
        self.below = self.space.take(*self.x.shape) if is_cut else self.cropped
        return self.below

    def _back_to_inputs(self) -> None:
        """Add the gradient of the patches where they overlap."""
        torch.bmm(self.rows_turned, self.products, out=self.columns)  # not needed any more
        self.planes.zero_()
        for place, part in self.overlaps:
            place.add_(part)
        self.whole.copy_(self.joined)
        if self.below is not self.cropped:
            self.below.copy_(self.cropped)


# A module is read layer by layer to find out whether it can be trained with stacked weights. Only
# layers whose class is exactly a standard one are read. A subclass, a hook, a shared or a frozen
# weight may change what a layer does.

Shape = tuple[int, ...]

READABLE = {
    nn.Identity,
    nn.Dropout,
    nn.Flatten,
    nn.Linear,
    nn.ReLU,
    nn.Tanh,
    nn.Conv2d,
    nn.MaxPool2d,
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Unreadable(Exception):
    """A module is not a chain of layers that can be read. The message says why."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """A layer before it has weights.

    Args:
        build: Makes the layer from its inputs and the space; a layer with weights also takes
            weight, bias and ``is_first``.
        shape: The shape of an example after the layer.
        values: Numbers that it holds for each example while it trains.
        n_weights: 2 for weight and bias, 1 for a weight alone, 0 for none.

    """

    build: Callable[..., Layer]
    shape: Shape
    values: int = 0
    n_weights: int = 0


def read_layer_plans(module: nn.Module, example_shape: Shape) -> list[LayerPlan]:
    """Return the layers of a module.

    Args:
        module: The module.
        example_shape: The shape of an example.

    Raises:
        Unreadable: A layer is not known.

    """
    layers = list(_leaves(module))
    if sum(len(list(layer.parameters())) for layer in layers) > len(list(module.parameters())):
        raise Unreadable("layers share weights")
    shape = example_shape
    if layers and _is_flatten(layers[0]):
        shape, layers = (math.prod(shape),), layers[1:]
    parts: list[LayerPlan] = []
    while layers:
        layers, plans = _next(layers, shape)
        parts += plans
        shape = parts[-1].shape if parts else shape
    if not parts or parts[-1].build is not Dense or not parts[0].n_weights:
        raise Unreadable("it does not begin with weights or end with a linear layer")
    return parts


def _next(layers: list[nn.Module], shape: Shape) -> tuple[list[nn.Module], list[LayerPlan]]:
    """Read the first layer or layers; return the remaining ones and what was read."""
    is_flat = len(shape) == 1
    match layers:
        case [nn.Identity(), *rest] | [nn.Dropout(p=0.0), *rest]:
            return rest, []
        case [nn.Linear() as linear, *rest] if shape == (linear.in_features,):
            width = linear.out_features
            return rest, [LayerPlan(Dense, (width,), shape[0] + width, _n_weights(linear))]
        case [nn.ReLU(), *rest] if is_flat:
            return rest, [LayerPlan(Relu, shape)]
        case [nn.Tanh(), *rest] if is_flat:
            return rest, [LayerPlan(Tanh, shape)]
        case [nn.Flatten() as flatten, *rest] if not is_flat and _is_flatten(flatten):
            return rest, [LayerPlan(Flatten, (math.prod(shape),))]
        case [nn.Conv2d() as conv, nn.ReLU(), nn.MaxPool2d() as pool, *rest]:
            if len(shape) == 3 and _is_plain(conv) and _is_2x2(pool):
                return rest, [_convolution(conv, shape)]
    raise Unreadable(
        f"{layers[0]} on examples of shape {shape} is not among the layers that can be read"
    )


def _convolution(conv: nn.Conv2d, shape: Shape) -> LayerPlan:
    channels, out = conv.in_channels, conv.out_channels
    k, p = conv.kernel_size[0], int(conv.padding[0])
    h, w = ((side + 2 * p - k + 1) // 2 for side in shape[1:])
    if channels != shape[0] or min(h, w) < 1:
        raise Unreadable(f"{conv} does not fit images of shape {shape}")
    values = (channels * (k + 1) ** 2 + 8 * out) * h * w
    return LayerPlan(partial(ConvReluPool, padding=p), (out, h, w), values, _n_weights(conv))


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution has a square odd kernel, stride 1 and no padding or zeros."""
    k, p = conv.kernel_size, conv.padding
    return (
        (k[0] == k[1] and k[0] % 2 == 1)
        and (isinstance(p, tuple) and p[0] == p[1] and conv.padding_mode == "zeros")
        and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
    )


def _is_2x2(pool: nn.MaxPool2d) -> bool:
    return (
        all(size in (2, (2, 2)) for size in (pool.kernel_size, pool.stride))
        and (pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)))
        and not (pool.ceil_mode or pool.return_indices)
    )


def _is_flatten(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)


def _n_weights(layer: nn.Module) -> int:
    return len(list(layer.parameters()))


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested ``Sequential`` in order."""
    name = type(module).__name__
    if any(getattr(module, hooks) for hooks in HOOKS) or "forward" in vars(module):
        raise Unreadable(f"{name} has hooks")
    if not all(weight.requires_grad for weight in module.parameters()):
        raise Unreadable(f"{name} has frozen weights")
    if type(module) is nn.Sequential:
        for layer in module:
            yield from _leaves(layer)
    elif type(module) in READABLE:
        yield module
    else:
        raise Unreadable(f"{name} is not among the layers that can be read")


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
        super().__init__(module, data)
        self.parts = parts
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
            return super().scores(x)
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
