"""NeuralUCB: upper confidence bounds from a network, the memory of its gradients, its training.

Numpy arrays come in and go out; torch works in double precision on one thread of the CPU.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout.core.errors import MissingExtra

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtra("nccb needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.core.types import FloatArray

# The network of NeuralUCB: its value and its gradients, in two factors.
#
# ``f(x) = sqrt(w) W_L relu(W_{L-1} ... relu(W_1 [x, x] / sqrt(2)))`` without biases. Doubling the
# input makes f = 0 at the initial weights. Both halves of W_1 receive the same x, so only ``V =
# (left + right) / sqrt(2)`` has any effect, and training moves V exactly as it would move the
# halves. So V (w, d) is kept here in place of W_1 (w, 2d).
#
# The gradient of a layer is the outer product of two factors: the layer's input, and the delta of
# its pre-activation. Inner products, squares and quadratic forms of gradients all follow from the
# two factors, so the full gradient is never built.

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


#: Clients scored at a time, few enough that their numbers stay in the processor's cache.
BLOCK = 512

#: Smallest shift of the Gram matrix relative to its diagonal, so that it stays positive definite.
RELATIVE_SHIFT = 1e-12

Width = Callable[[Factors], Tensor]


class Bonus(NamedTuple):
    """How past gradients are remembered, and the width sqrt(g' Z^-1 g / w) that follows.

    Args:
        update: (network, evidence, gradients of new observations, memory) -> evidence.
        width: (network, evidence, ridge) -> function from new gradients to their widths.
    """

    update: Callable[[Network, FloatArray, Factors, int | None], FloatArray]
    width: Callable[[Network, FloatArray, float], Width]


def _exact_update(
    network: Network, evidence: FloatArray, new: Factors, memory: int | None
) -> FloatArray:
    """Append one row of factors per observation and keep the latest."""
    rows = torch.cat([factor for layer in new for factor in layer], dim=1).numpy()
    kept = np.concatenate((evidence.reshape(-1, rows.shape[1]), rows))
    return kept if memory is None else kept[-memory:].copy()


def _exact_width(network: Network, evidence: FloatArray, ridge: float) -> Width:
    """Invert Z = lambda I + sum g g' / w through the Gram matrix of the past (Woodbury)."""
    past = network.unpacked(evidence)
    past_gram = gram(network, past, past)
    largest = float(past_gram.diagonal().max()) if past_gram.numel() else 0.0
    # A shift that is tiny beside the matrix would be lost to rounding, and Cholesky would fail.
    shift = max(ridge, RELATIVE_SHIFT * largest)
    past_gram.diagonal().add_(shift)
    root = torch.linalg.cholesky(past_gram)

    def width(new: Factors) -> Tensor:
        cross = gram(network, new, past).T
        explained: Tensor = torch.linalg.solve_triangular(root, cross, upper=False)
        left = squared_length(network, new) - explained.square_().sum(0)
        return (left.clamp_min_(0.0) / shift).sqrt_()

    return width


def _diagonal_update(
    network: Network, evidence: FloatArray, new: Factors, memory: int | None
) -> FloatArray:
    """Add the squares of the new gradients; the sum is one row and forgets nothing."""
    layers = [delta.square().T @ received.square() / network.width for received, delta in new]
    layers[0] /= 2.0  # each half of W_1 receives x / sqrt(2)
    added: FloatArray = torch.cat([layer.ravel() for layer in layers])[None, :].numpy()
    return evidence + added if evidence.size else added


def _diagonal_width(network: Network, evidence: FloatArray, ridge: float) -> Width:
    """Take the diagonal of Z = lambda I + sum g g' / w in place of Z."""
    past = evidence[0] if evidence.size else np.zeros(network.n_weights)
    inverse = [1.0 / (ridge + layer) for layer in network.layers(past)]

    def width(new: Factors) -> Tensor:
        squares = [
            (delta.square() * (received.square() @ layer.T)).sum(1)
            for (received, delta), layer in zip(new, inverse, strict=True)
        ]
        return (torch.stack(squares).sum(0) / network.width).sqrt_()

    return width


#: Z as it is published, or its diagonal only.
BONUSES: Mapping[str, Bonus] = MappingProxyType(
    {
        "exact": Bonus(_exact_update, _exact_width),
        "diagonal": Bonus(_diagonal_update, _diagonal_width),
    }
)


def upper_bounds(
    network: Network,
    weights: FloatArray,
    evidence: FloatArray,
    x: FloatArray,
    *,
    ridge: float,
    explore: float,
    bonus: str,
) -> FloatArray:
    """Return f(x) + explore * sqrt(g' Z^-1 g / w) for every row of x, Eq. (13).

    Args:
        network: Shape of the network.
        weights: Its weights, flat.
        evidence: Past gradients, as ``remember`` returns them.
        x: (n, d) features.
        ridge: lambda of Z, above 0.
        explore: Weight of the width, >= 0.
        bonus: Key of ``BONUSES``.
    """
    bounds = np.empty(x.shape[0])
    with _alone():
        width_of = BONUSES[bonus].width(network, evidence, ridge)
        layers = network.layers(weights)
        for start in range(0, x.shape[0], BLOCK):
            block = slice(start, start + BLOCK)
            value, new = network.gradients(layers, as_tensor(x[block]))
            bounds[block] = (value + explore * width_of(new)).numpy()
    return bounds


def remember(
    network: Network,
    weights: FloatArray,
    evidence: FloatArray,
    x: FloatArray,
    *,
    bonus: str,
    memory: int | None,
) -> FloatArray:
    """Return the evidence after the rows of x were chosen, Eq. (14).

    Args:
        network: Shape of the network.
        weights: Its current weights, flat.
        evidence: Past gradients so far.
        x: (n, d) features of the chosen clients.
        bonus: Key of ``BONUSES``.
        memory: Number of observations to keep; None = all. The diagonal form keeps all.
    """
    with _alone():
        _, new = network.gradients(network.layers(weights), as_tensor(x))
        return BONUSES[bonus].update(network, evidence, new, memory)


def train(
    network: Network,
    weights: FloatArray,
    start: FloatArray,
    x: FloatArray,
    target: FloatArray,
    *,
    ridge: float,
    learning_rate: float,
    steps: int,
) -> FloatArray:
    """Return the weights after gradient steps on Eq. (10).

    The step is ``learning_rate / (w (ridge + sum_i |g_i|^2 / w))``: the divisor bounds the
    curvature while the network is nearly linear in its weights. A step that would raise the loss is
    not taken, and the next one is half as long, so training cannot diverge.

    Args:
        network: Shape of the network.
        weights: Weights to start from, flat.
        start: theta_0, the weights that the regularisation pulls towards.
        x: (n, d) features of past observations.
        target: (n,) their rewards.
        ridge: lambda, strength of the regularisation, above 0.
        learning_rate: Step size relative to the bound above.
        steps: Number of gradient steps.
    """
    with _alone():
        loss_and_slope = _objective(network, start, as_tensor(x), as_tensor(target), ridge)
        layers = network.layers(weights)
        _, gradients = network.gradients(layers, as_tensor(x))
        bound = ridge + float(squared_length(network, gradients).sum())
        step = learning_rate / (network.width * bound)
        loss, slope = loss_and_slope(layers)
        for _ in range(steps):
            trial = [layer - step * down for layer, down in zip(layers, slope, strict=True)]
            trial_loss, trial_slope = loss_and_slope(trial)
            if trial_loss <= loss:
                layers, loss, slope = trial, trial_loss, trial_slope
            else:
                step /= 2.0
        trained: FloatArray = torch.cat([layer.ravel() for layer in layers]).numpy()
        return trained


def _objective(
    network: Network, start: FloatArray, x: Tensor, target: Tensor, ridge: float
) -> Callable[[list[Tensor]], tuple[float, list[Tensor]]]:
    """Return the function layers -> loss of Eq. (10) and its slope."""
    origin, pull = network.layers(start), network.width * ridge

    def loss_and_slope(layers: list[Tensor]) -> tuple[float, list[Tensor]]:
        with torch.enable_grad():
            free = [layer.detach().requires_grad_() for layer in layers]
            output = network.pre_activations(free, x)[-1][:, 0]
            error = (math.sqrt(network.width) * output - target).square().sum() / 2.0
            slope = torch.autograd.grad(error, free)
        away = [layer - old for layer, old in zip(layers, origin, strict=True)]
        distance = sum(float(gap.square().sum()) for gap in away)
        loss = float(error) + pull * distance / 2.0
        return loss, [down.add_(gap, alpha=pull) for down, gap in zip(slope, away, strict=True)]

    return loss_and_slope


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Work on one thread and outside the caller's gradient modes.

    Sums are then taken in the same order on every machine, so that runs agree bit for bit.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        torch.set_num_threads(n_threads)


__all__ = [
    "BONUSES",
    "Bonus",
    "Network",
    "remember",
    "train",
    "upper_bounds",
]
