"""The contract of trainers: flat weights in, stacked weights and reports out.

A model is a flat vector of P weights, in the order of ``Module.parameters()``. Buffers that change
during training, such as those of batch normalisation, follow them and count as weights here.
Randomness is keyed by (seed, round, client), so that every trainer sees the same mini-batches in
the same order and a resumed run repeats exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from turnout.core.types import Array, FloatArray, IntArray, PollData

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Updates:
    """The models and reports of a cohort, in the order of the clients that were asked.

    A client whose loss or weights are not finite has NaN in its three losses and the global model
    as its weights. So it cannot spoil an average, and the caller marks it as failed. Losses are
    cross-entropy only, without the terms of FedProx and weight decay. In texts every word counts
    as one loss.

    Args:
        weights: (s, P) local models after training.
        num_examples: (s,) training examples of each client.
        loss: (s,) mean of the mini-batch losses during training.
        loss_std: (s,) their standard deviation (of the population: 0 for one step).
        loss_rms: (s,) root of the mean squared loss per label, Oort's utility / |B|.
        steps: (s,) SGD steps.

    """

    weights: torch.Tensor
    num_examples: IntArray
    loss: FloatArray
    loss_std: FloatArray
    loss_rms: FloatArray
    steps: IntArray


@dataclass(frozen=True)
class ModelScores:
    """The quality of a model on one set of examples; NaN if the set is empty.

    A model that diverged is never missing, it is the worst: a loss that is not finite becomes
    ``LARGEST_REPORT`` with accuracy 0.

    Args:
        loss: Mean cross-entropy of the labels.
        accuracy: Share of labels that are predicted correctly, inside [0, 1].

    """

    loss: float
    accuracy: float


@dataclass(frozen=True)
class ClientScores:
    """The quality of a model on each client's own examples; NaN for a client without any.

    A model that diverged counts as in ``ModelScores``.

    Args:
        loss: (n,) mean cross-entropy of the labels.
        accuracy: (n,) share of labels that are predicted correctly, inside [0, 1].

    """

    loss: FloatArray
    accuracy: FloatArray


class Clients(Protocol):
    """Clients that train and evaluate a model on their own examples."""

    def train(
        self,
        weights: torch.Tensor,
        clients: IntArray,
        round: int,
        draws: IntArray | None = None,
    ) -> Updates:
        """Let each client train, starting from the global model.

        ``draws`` are (s,) the rounds that key the mini-batches of each client, where they are not
        those of ``round``: in rounds that overlap, the numbers of their choices.
        """

    def polled_loss(
        self, weights: torch.Tensor, clients: IntArray, round: int, data: PollData
    ) -> FloatArray:
        """Return (len(clients),) the loss of the model on their data, without training."""

    def test_clients(self, weights: torch.Tensor, clients: IntArray | None = None) -> ClientScores:
        """Return loss and accuracy on each client's hold-out, or its training data without one."""


class Trainer(Clients, Protocol):
    """Trains and evaluates models on the data of many clients."""

    @property
    def n_weights(self) -> int:
        """Number of weights and changing buffers, P."""

    @property
    def n_buffers(self) -> int:
        """How many of them, the last, are buffers."""

    @property
    def steps(self) -> IntArray:
        """(n,) SGD steps that each client takes in a round: its work on the virtual clock."""

    def initial_weights(self) -> torch.Tensor:
        """Return (P,) the first global model, fixed by the seed."""

    def test(self, weights: torch.Tensor) -> ModelScores:
        """Return loss and accuracy on the test set."""

    def test_holdout(self, weights: torch.Tensor) -> ModelScores:
        """Return loss and accuracy on what all clients hold out, pooled; NaN without any."""

    def module_with(self, weights: torch.Tensor) -> torch.nn.Module:
        """Return a copy of the module with some weights, for evaluation on the CPU."""


class LocalAlgorithm:
    """What clients do beside plain gradient steps; subclass it for an algorithm of your own.

    Name the subclass in ``LocalWork(algorithm="module:Class")``. It is made without arguments. The
    methods here do nothing. Weights are flat vectors of P numbers, without buffers. A client whose
    weights are not finite does not reach ``finish``.
    """

    def reset(self, n_clients: int, n_weights: int) -> None:
        """Start afresh; called before the first round.

        Args:
            n_clients: Number of clients.
            n_weights: P.
        """

    def gradient(
        self, client: int, weights: torch.Tensor, start: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        """Return (P,) the direction of a step, in place of the gradient of the mini-batch.

        Args:
            client: Who trains.
            weights: (P,) its weights.
            start: (P,) the global model from which it started.
            gradient: (P,) the gradient of its mini-batch.
        """
        return gradient

    def finish(
        self, client: int, start: torch.Tensor, end: torch.Tensor, steps: int, lr: float
    ) -> None:
        """Remember what a client needs in its next round; called after its last step.

        Args:
            client: Who trained.
            start: (P,) the global model from which it started.
            end: (P,) its weights now.
            steps: How many steps it took.
            lr: The step size.
        """

    def end_round(self, clients: IntArray) -> None:
        """Learn what the server learns; called when all clients of a round have trained.

        Args:
            clients: Who trained.
        """

    def state(self) -> dict[str, Array]:
        """Return what has changed since ``reset``, as arrays."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a saved state.

        Args:
            state: What ``state`` returned.
        """
