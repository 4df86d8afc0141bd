"""What is learned: handwritten digits, unevenly divided among the clients, by a small network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from turnout.data import Digits, Dirichlet, FederatedData, federate
from turnout.live.flower.client import LossReport

Weights = list[np.ndarray]
BATCH_SIZE = 32
SPLIT_SEED = 1  # everyone must divide the data alike


class Examples(NamedTuple):
    """Inputs and labels."""

    x: torch.Tensor
    y: torch.Tensor


def initial_weights(seed: int) -> Weights:
    """Return the weights that the first round starts from."""
    torch.manual_seed(seed)
    return _weights(_model())


def examples_of(client: int, n_clients: int) -> Examples:
    """Return the examples of one client."""
    data = _divided(n_clients)
    mine = slice(data.offsets[client], data.offsets[client + 1])
    return _examples(data, data.x[mine], data.y[mine])


def train(
    weights: Weights, examples: Examples, *, epochs: int, lr: float, seed: int
) -> tuple[Weights, dict[str, float]]:
    """Train on a client's examples; return the new weights and what there is to report."""
    model = _model(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    shuffle = torch.Generator().manual_seed(seed)
    report = LossReport()
    for _ in range(epochs):
        for batch in torch.randperm(len(examples.y), generator=shuffle).split(BATCH_SIZE):
            losses = cross_entropy(model(examples.x[batch]), examples.y[batch], reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            report.add(losses)
    return _weights(model), report.metrics()


@torch.no_grad()
def mean_loss(weights: Weights, examples: Examples) -> float:
    """Return the loss of a model on a client's examples."""
    return float(cross_entropy(_model(weights)(examples.x), examples.y))


@torch.no_grad()
def test(weights: Weights) -> dict[str, float]:
    """Return loss and accuracy on the test set."""
    data = _divided(1)
    examples = _examples(data, data.x_test, data.y_test)
    scores = _model(weights)(examples.x)
    right = (scores.argmax(1) == examples.y).double().mean()
    return {"loss": float(cross_entropy(scores, examples.y)), "accuracy": float(right)}


@lru_cache(maxsize=1)
def _divided(n_clients: int) -> FederatedData:
    return federate(Digits(), Dirichlet(alpha=0.5), n_clients, seed=SPLIT_SEED)


def _examples(data: FederatedData, x: np.ndarray, y: np.ndarray) -> Examples:
    scaled = torch.as_tensor(x, dtype=torch.float32) * data.scale + data.shift
    return Examples(scaled.flatten(1), torch.as_tensor(y))


def _model(weights: Sequence[np.ndarray] | None = None) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if weights is not None:
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.data = torch.tensor(value)
    return model


def _weights(model: nn.Module) -> Weights:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]
