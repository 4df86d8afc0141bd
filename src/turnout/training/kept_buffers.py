"""Clients that keep the buffers of their model to themselves, as in SiloBN.

Andreux et al., Siloed Federated Learning for Multi-Centric Histopathology Datasets, 2020: weights
are averaged, the running moments of batch normalisation stay where they were measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from turnout.training.base import ClientScores, Trainer, Updates
from turnout.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor


class KeptBuffers:
    """Lets clients train and evaluate with their own buffers, one client after the other.

    ``values`` are (n, buffers) those of each client; NaN for a client that has not trained yet,
    which uses those of the global model.

    Args:
        trainer: The trainer, with a model that changes its buffers.

    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._n = trainer.n_buffers
        first = trainer.initial_weights()[-self._n :]
        self.values: Tensor = first.repeat(trainer.steps.size, 1).fill_(np.nan)

    def train(self, weights: Tensor, clients: IntArray, round: int) -> Updates:
        """Let each client train from the global weights and its buffers, and keep the latter."""
        import torch

        each = [
            self._trainer.train(self._model(weights, client), np.array([client]), round)
            for client in clients
        ]
        local = torch.cat([updates.weights for updates in each])
        is_sound = torch.from_numpy(np.isfinite([updates.loss[0] for updates in each]))
        self.values[clients[is_sound.numpy()]] = local[is_sound.to(local.device), -self._n :]
        reports = ("num_examples", "loss", "loss_std", "loss_rms", "steps")
        joined = (np.concatenate([getattr(updates, name) for updates in each]) for name in reports)
        return Updates(local, *joined)

    def polled_loss(
        self,
        weights: Tensor,
        clients: IntArray,
        round: int,
        data: Literal["all", "mini-batch"],
    ) -> FloatArray:
        """Return the loss of the weights with each client's buffers on its data."""
        each = [
            self._trainer.polled_loss(self._model(weights, client), np.array([client]), round, data)
            for client in clients
        ]
        return np.concatenate([np.zeros(0), *each])

    def test_clients(self, weights: Tensor, clients: IntArray | None = None) -> ClientScores:
        """Return loss and accuracy of the weights with each client's buffers on its examples."""
        each = [
            self._trainer.test_clients(self._model(weights, client), np.array([client]))
            for client in (range(len(self.values)) if clients is None else clients)
        ]
        loss, accuracy = (
            np.concatenate([np.zeros(0), *(getattr(scores, name) for scores in each)])
            for name in ("loss", "accuracy")
        )
        return ClientScores(loss, accuracy)

    def _model(self, weights: Tensor, client: int) -> Tensor:
        own = self.values[client]
        if own.isnan().any():
            return weights
        model = weights.clone()
        model[-self._n :] = own
        return model
