"""What every trainer on PyTorch shares: checks, mini-batches, the first model, evaluation."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from torch import Tensor, nn

from turnout import require
from turnout.arrays import client_indices
from turnout.data.base import PADDING, FederatedData
from turnout.errors import InvalidInput
from turnout.training.base import ClientScores, ModelScores, Updates
from turnout.training.batches import BatchPlan, client_plan, polled_rows
from turnout.training.buffers import changing_buffers, check_batches, least_batch
from turnout.training.local import LocalWork
from turnout.training.models import Model
from turnout.training.modules import device_named, initial_module, load_weights, read_weights
from turnout.training.scoring import Scorer, at_worst, client_rows
from turnout.types import Array, FloatArray, IntArray


class TorchTrainer(ABC):
    """Base of the trainers on PyTorch; see ``base.Trainer``. It loads weights into one module.

    Args:
        data: The examples of all clients.
        model: What is trained: a recipe or a module.
        local: How long and by which rule a client trains.
        seed: Fixes the first model and all mini-batches.
        device: A device of PyTorch such as ``"cpu"`` or ``"cuda"``.

    """

    def __init__(
        self,
        data: FederatedData,
        model: Model | nn.Module,
        local: LocalWork,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        require.integer("seed", seed, minimum=0)
        _check_data(data, local)
        self.data = data
        self.model = model
        self.local = local
        self.seed = seed
        self.device = device_named(device)
        self.module = initial_module(model, data, seed).to(self.device)
        self.buffers = changing_buffers(self.module, data)  #: names; they follow the weights
        self.least_batch = least_batch(self.module, data)  #: examples of the smallest mini-batch
        check_batches(self.module, data, local.batch_size, self.least_batch)
        self.steps = local.steps_of(data.num_samples, seed)  #: (n,) SGD steps in a round
        self.scorer = Scorer(data, self.device, self.module)
        self._initial = read_weights(self.module, self.buffers)

    @property
    def n_weights(self) -> int:
        """Number of weights and changing buffers, P."""
        return self._initial.numel()

    @property
    def n_buffers(self) -> int:
        """How many of them, the last, are buffers."""
        return sum(self.module.get_buffer(name).numel() for name in self.buffers)

    def initial_weights(self) -> Tensor:
        """Return (P,) the first global model, fixed by the seed."""
        return self._initial.clone()

    @abstractmethod
    def train(self, weights: Tensor, clients: IntArray, round: int) -> Updates:
        """Let each client train, starting from the global model."""

    def plan(self, client: int, round: int) -> BatchPlan:
        """Return the mini-batches of a client in a round."""
        n = int(self.data.offsets[client + 1] - self.data.offsets[client])
        steps = int(self.steps[client])
        return client_plan(
            n, self.local.batch_size, steps, self.seed, round, client, self.least_batch
        )

    def polled_loss(
        self,
        weights: Tensor,
        clients: IntArray,
        round: int,
        data: Literal["all", "mini-batch"],
    ) -> FloatArray:
        """Return the loss of the model on all of each client's data or on one mini-batch of it."""
        require.choice("data", data, ("all", "mini-batch"))
        clients = self.checked_clients(clients)
        rows, group = client_rows(self.data.offsets, clients)
        if data == "mini-batch" and clients.size:
            batches = [self._polled_batch(int(client), round) for client in clients]
            rows = np.concatenate(batches)
            group = np.repeat(np.arange(clients.size), [batch.size for batch in batches])
        self._use(weights)
        scores = self.scorer.of_groups(self.data.x, self.data.y, rows, group, clients.size)
        return np.where(np.isfinite(scores.loss), scores.loss, np.nan)

    def test(self, weights: Tensor) -> ModelScores:
        """Return loss and accuracy on the test set; NaN without one."""
        return self._score(weights, self.data.x_test, self.data.y_test)

    def test_holdout(self, weights: Tensor) -> ModelScores:
        """Return loss and accuracy on what all clients hold out, pooled; NaN without any."""
        return self._score(weights, self.data.x_holdout, self.data.y_holdout)

    def test_clients(self, weights: Tensor, clients: IntArray | None = None) -> ClientScores:
        """Return loss and accuracy on each client's hold-out, or its training data without one.

        If any client holds out examples, only hold-outs count: a client without any gets NaN.
        """
        everybody = np.arange(self.data.n_clients)
        clients = everybody if clients is None else self.checked_clients(clients)
        x, y, offsets = self.data.x, self.data.y, self.data.offsets
        if self.data.has_holdout:
            x, y = self.data.x_holdout, self.data.y_holdout
            offsets = self.data.holdout_offsets
        rows, group = client_rows(offsets, clients)
        self._use(weights)
        return at_worst(self.scorer.of_groups(x, y, rows, group, clients.size))

    def module_with(self, weights: Tensor) -> nn.Module:
        """Return a copy of the module with some weights, for evaluation on the CPU."""
        module = copy.deepcopy(self.module).cpu()
        load_weights(module, weights.cpu(), self.buffers)
        return module.eval()

    def checked_clients(self, clients: IntArray) -> IntArray:
        """Return client indices, or raise an error that names one that does not exist."""
        return client_indices("clients", clients, self.data.n_clients)

    def _score(self, weights: Tensor, x: Array, y: IntArray) -> ModelScores:
        self._use(weights)
        rows = np.arange(x.shape[0])
        scores = at_worst(self.scorer.of_groups(x, y, rows, np.zeros_like(rows), 1))
        return ModelScores(float(scores.loss[0]), float(scores.accuracy[0]))

    def _use(self, weights: Tensor) -> None:
        load_weights(self.module, weights, self.buffers)
        self.module.eval()

    def _polled_batch(self, client: int, round: int) -> IntArray:
        first = int(self.data.offsets[client])
        n = int(self.data.offsets[client + 1]) - first
        return first + polled_rows(n, self.local.batch_size, self.seed, round, client)


def _check_data(data: FederatedData, local: LocalWork) -> None:
    counts = data.num_samples
    empty = np.flatnonzero(counts == 0)
    if empty.size:
        some = ", ".join(str(client) for client in empty[:5])
        raise InvalidInput(
            f"data: {empty.size} of {data.n_clients} clients have no training examples (clients "
            f"{some}{' ...' if empty.size > 5 else ''}). Use fewer clients, a milder partition "
            "or a smaller hold_out."
        )
    if local.batch_size is not None and local.batch_size > counts.max():
        raise InvalidInput(
            f"batch_size is {local.batch_size} but no client has more than {counts.max()} training "
            "examples. Use a smaller batch, fewer clients or a smaller hold_out, or "
            "batch_size=None for all of a client's data in one step."
        )
    _check_labels(data)


def _check_labels(data: FederatedData) -> None:
    lowest = PADDING if data.is_text else 0
    for y in (data.y, data.y_holdout, data.y_test):
        if y.size and (y.min() < lowest or y.max() >= data.n_classes):
            raise InvalidInput(
                f"data: labels of {data.name} must be 0 .. {data.n_classes - 1} for its "
                f"{data.n_classes} classes, got {y.min()} .. {y.max()}."
            )
    for x in (data.x, data.x_holdout, data.x_test):
        if data.is_text and x.size and (x.min() < 0 or x.max() >= data.n_classes):
            raise InvalidInput(
                f"data: words of {data.name} must be 0 .. {data.n_classes - 1} for its vocabulary "
                f"of {data.n_classes}, got {x.min()} .. {x.max()}."
            )
