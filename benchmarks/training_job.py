"""The job of all trainers in ``training.py``: 20 of 100 clients, 440 images of 28x28 each.

One epoch, mini-batches of 40, SGD. The images are artificial: bright shapes on a black background.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from turnout.data.base import FederatedData
from turnout.training.local import LocalWork, client_plan
from turnout.training.models import EmnistCnn, Logistic, Mlp, Model

CLIENTS, COHORT, SAMPLES, CLASSES, BATCH = 100, 20, 440, 26, 40
LR = 0.05
SEED = 0
MODELS: dict[str, Model] = {"logistic": Logistic(), "mlp": Mlp(), "cnn": EmnistCnn()}


def make_data(n_clients: int = CLIENTS, samples: int = SAMPLES) -> FederatedData:
    """Return images whose class is a pattern of blocks, half of each image black."""
    rng = np.random.default_rng(SEED)
    n = n_clients * samples
    y = rng.integers(CLASSES, size=n)
    patterns = rng.random((CLASSES, 7, 7)) < 0.5
    bright = np.kron(patterns, np.ones((4, 4), dtype=np.uint8))
    x = rng.integers(64, 256, (n, 1, 28, 28), dtype=np.uint8)
    for label in range(CLASSES):
        x[y == label] *= bright[label]
    none, offsets = np.zeros(n_clients + 1, dtype=np.int64), np.arange(n_clients + 1) * samples
    x_test, y_test = x[:10_000], y[:10_000]
    return FederatedData(
        "blocks", x, y, offsets, x[:0], y[:0], none, x_test, y_test, CLASSES, scale=1 / 255
    )


@functools.cache
def loaded(model: str) -> tuple[Tensor, Tensor, nn.Module]:
    """Return all examples as a model sees them, labels and a module; once per process."""
    data = make_data()
    x = torch.from_numpy(data.x).float().mul_(data.scale)
    return x, torch.from_numpy(data.y), MODELS[model].build(data)


def local_work(momentum: float) -> LocalWork:
    return LocalWork(epochs=1, batch_size=BATCH, lr=LR, momentum=momentum)


def cohort(round: int) -> np.ndarray:
    return np.sort(np.random.default_rng((SEED, round)).choice(CLIENTS, COHORT, replace=False))


def order(client: int, round: int) -> Tensor:
    """Return the order of a client's examples, the same for all."""
    steps = -(-SAMPLES // BATCH)
    return torch.from_numpy(client_plan(SAMPLES, BATCH, steps, SEED, round, client).order)


def train_plain(module: nn.Module, x: Tensor, y: Tensor, rows: Tensor, momentum: float) -> float:
    """Train one client in the usual way; return the mean loss."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum)
    total = 0.0
    for batch in torch.split(rows, BATCH):
        optimizer.zero_grad()
        loss = cross_entropy(module(x[batch]), y[batch])
        torch.autograd.backward(loss)
        optimizer.step()
        total += loss.item()
    return total / -(-rows.numel() // BATCH)
