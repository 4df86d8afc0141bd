"""NeuralUCB: upper confidence bounds from a network, the memory of its gradients, its training.

Numpy arrays come in and go out; torch works in double precision on one thread of the CPU.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout.errors import MissingExtra
from turnout.types import FloatArray

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtra("nccb needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.estimators.network import Factors, Network, as_tensor, gram, squared_length

__all__ = ["BONUSES", "Bonus", "Network", "remember", "train", "upper_bounds"]

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
