"""Read a module layer by layer, to see whether it can be trained with stacked weights.

Only layers whose class is exactly a standard one are read. A subclass, a hook, a shared or a frozen
weight may change what a layer does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import nn

from turnout.training.batched.convolution import ConvReluPool
from turnout.training.batched.layers import Dense, Flatten, Layer, Relu, Tanh

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
