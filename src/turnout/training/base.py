"""The contract of trainers: flat weights in, stacked weights and reports out.

A model is a flat vector of P weights, in the order of ``Module.parameters()``. Randomness is keyed
by (seed, round, client), so that every trainer sees the same mini-batches in the same order and a
resumed run repeats exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from turnout.types import FloatArray, IntArray

if TYPE_CHECKING:
    import torch

__all__ = ["ClientScores", "Scores", "Trainer", "Updates"]


@dataclass(frozen=True)
class Updates:
    """What a cohort sends back, aligned with the clients that were asked.

    A client whose loss or weights are not finite has NaN in its three losses and the global model
    as its weights: it cannot poison an average, and the caller marks it failed. Losses are
    cross-entropy only, without the terms of FedProx and weight decay. In texts every word counts
    as one loss.
    """

    weights: torch.Tensor  #: (s, P) local models after training
    num_examples: IntArray  #: (s,) training examples of each client
    loss: FloatArray  #: (s,) mean of the mini-batch losses seen during training
    loss_std: FloatArray  #: (s,) their standard deviation (of the population: 0 for one step)
    loss_rms: FloatArray  #: (s,) root of the mean squared loss per label, Oort's utility / |B|
    steps: IntArray  #: (s,) SGD steps taken


@dataclass(frozen=True)
class Scores:
    """A model on one set of examples; NaN without any.

    A loss that is not finite is ``LARGEST_REPORT`` with accuracy 0: a model that diverged is the
    worst there is, and never missing.
    """

    loss: float
    accuracy: float


@dataclass(frozen=True)
class ClientScores:
    """A model on each client's own examples, as in ``Scores``; NaN for a client without any."""

    loss: FloatArray  #: (n,)
    accuracy: FloatArray  #: (n,)


class Trainer(Protocol):
    """Trains and evaluates models on the data of many clients."""

    @property
    def n_weights(self) -> int:
        """P."""
        ...

    @property
    def steps(self) -> IntArray:
        """(n,) SGD steps that each client takes in a round: its work on the virtual clock."""
        ...

    def initial_weights(self) -> torch.Tensor:
        """Return (P,) the first global model, fixed by the seed."""
        ...

    def train(self, weights: torch.Tensor, clients: IntArray, round: int) -> Updates:
        """Let clients train from the global model; they start from the same weights."""
        ...

    def polled_loss(
        self,
        weights: torch.Tensor,
        clients: IntArray,
        round: int,
        data: Literal["all", "mini-batch"],
    ) -> FloatArray:
        """Return (len(clients),) the loss of the model on their data, without training."""
        ...

    def test(self, weights: torch.Tensor) -> Scores:
        """Return loss and accuracy on the test set."""
        ...

    def test_holdout(self, weights: torch.Tensor) -> Scores:
        """Return loss and accuracy on what all clients hold out, pooled; NaN without any."""
        ...

    def test_clients(self, weights: torch.Tensor, clients: IntArray | None = None) -> ClientScores:
        """Return loss and accuracy on each client's hold-out, or its training data without one."""
        ...
