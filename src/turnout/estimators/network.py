"""The network of NeuralUCB: its value and its gradients, in two factors.

``f(x) = sqrt(w) W_L relu(W_{L-1} ... relu(W_1 [x, x] / sqrt(2)))`` without biases. Doubling the
input makes f = 0 at the initial weights. Both halves of W_1 receive the same x, so only
``V = (left + right) / sqrt(2)`` has any effect, and training moves V exactly as it would move the
halves. So V (w, d) is kept here in place of W_1 (w, 2d).

The gradient of a layer is the outer product of two factors: the layer's input, and the delta of its
pre-activation. Inner products, squares and quadratic forms of gradients all follow from the two
factors, so the full gradient is never built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.types import FloatArray

#: The gradients of n rows, by layer: its input (n, in) and the delta of its output (n, out).
Factors = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Network:
    """The shape of the network; its weights are one flat array.

    Args:
        dimension: d, number of features.
        width: w, units per hidden layer, even.
        depth: L, number of weight matrices, at least 2.
    """

    dimension: int
    width: int
    depth: int

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shapes of V, W_2 ... W_L."""
        hidden = ((self.width, self.width),) * (self.depth - 2)
        return ((self.width, self.dimension), *hidden, (1, self.width))

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        return sum(rows * columns for rows, columns in self.shapes)

    @property
    def factor_sizes(self) -> list[int]:
        """Lengths of the factors of one gradient, layer by layer."""
        return [self.dimension, *[self.width] * (2 * self.depth - 2), 1]

    @property
    def n_factors(self) -> int:
        """Length of the row that a gradient is stored as."""
        return sum(self.factor_sizes)

    def initial(self, seed: int) -> FloatArray:
        """Draw theta_0: two equal halves that cancel in the last layer."""
        rng = np.random.default_rng(seed)
        half, deviation = self.width // 2, math.sqrt(4.0 / self.width)
        block = rng.normal(0.0, deviation, (half, self.dimension))
        first = np.concatenate((block, block)) / math.sqrt(2.0)  # Eq. (11) for l = 1, as V
        blocks = rng.normal(0.0, deviation, (self.depth - 2, half, half))
        hidden = [np.kron(np.eye(2), block).ravel() for block in blocks]  # Eq. (11)
        last = rng.normal(0.0, math.sqrt(2.0 / self.width), half)
        return np.concatenate([first.ravel(), *hidden, last, -last])  # Eq. (12)

    def layers(self, weights: FloatArray) -> list[Tensor]:
        """Return the flat weights as the matrices V, W_2 ... W_L."""
        parts = torch.split(as_tensor(weights), [rows * columns for rows, columns in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def pre_activations(self, layers: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """Return what each layer computes before its relu, Eq. (9)."""
        before = [x @ layers[0].T]
        if not before[0].requires_grad:
            before[0].requires_grad_()
        for layer in layers[1:]:
            before.append(torch.relu(before[-1]) @ layer.T)
        return before

    def gradients(self, layers: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Factors]:
        """Return f and the factors of its gradient for every row of x."""
        with torch.enable_grad():
            before = self.pre_activations(layers, x)
            value = math.sqrt(self.width) * before[-1][:, 0]
            deltas = torch.autograd.grad(value.sum(), before)
        hidden = [torch.relu(layer.detach()) for layer in before[:-1]]
        return value.detach(), list(zip((x, *hidden), deltas, strict=True))

    def unpacked(self, rows: FloatArray) -> Factors:
        """Return the factors stored as one row per observation."""
        parts = torch.split(as_tensor(rows.reshape(-1, self.n_factors)), self.factor_sizes, dim=1)
        return list(zip(parts[::2], parts[1::2], strict=True))


def gram(network: Network, a: Factors, b: Factors) -> Tensor:
    """Return (len(a), len(b)) the inner products of gradients, <g_i, g_j> / w.

    Args:
        network: Shape of the network.
        a: Gradients of the rows.
        b: Gradients of the columns.
    """
    total = a[-1][0] @ b[-1][0].T  # the last layer passes sqrt(w) back to everyone
    for (input_a, delta_a), (input_b, delta_b) in zip(a[:-1], b[:-1], strict=True):
        total.addcmul_(input_a @ input_b.T, delta_a @ delta_b.T, value=1.0 / network.width)
    return total


def squared_length(network: Network, factors: Factors) -> Tensor:
    """Return |g_i|^2 / w, the diagonal of the Gram matrix.

    Args:
        network: Shape of the network.
        factors: The gradients.
    """
    lengths = [received.square().sum(1) * delta.square().sum(1) for received, delta in factors]
    return torch.stack(lengths).sum(0) / network.width


def as_tensor(values: FloatArray) -> Tensor:
    """Return a copy of the values in double precision on the CPU.

    Args:
        values: The numbers, of any shape.
    """
    return torch.tensor(values, dtype=torch.float64, device="cpu")
