"""Optimisers of the server: how the mean of the returned models becomes the next global model.

The mean minus the global model is taken for a gradient step, Delta (Reddi et al., Adaptive
Federated Optimization, ICLR 2021, arXiv:2003.00295, Alg. 2; Hsu et al., arXiv:1909.06335 for
momentum). Numbers equal those of Flower's strategies of the same names. Where Flower differs from
the paper, a parameter restores the paper.

=============== ==================================================== =========================
optimiser       the step                                             Flower's strategy
=============== ==================================================== =========================
TakeMean        Delta                                                FedAvg
ServerMomentum  u = momentum u + Delta; step u                       FedAvgM
FedAdam         lr m / (sqrt(v) + tau), v = b2 v + (1 - b2) Delta^2  FedAdam
FedYogi         the same, v -= (1 - b2) Delta^2 sign(v - Delta^2)    FedYogi
=============== ==================================================== =========================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from turnout.core.domains import BelowOne, CheckedFields, Flag, NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor

#: What an optimiser remembers, by name: (P,) each.
Moments = dict[str, "Tensor"]


class ServerOptimizer(ABC):
    """The step of the global model. A subclass is a frozen dataclass of plain settings."""

    #: What is remembered from round to round.
    moments: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def step(self, weights: Tensor, mean: Tensor, moments: Moments, round: int) -> Tensor:
        """Return (P,) the next global model.

        Args:
            weights: (P,) the global model.
            mean: (P,) the aggregated model.
            moments: (P,) each, zero before the first round; changed in place.
            round: The round, from 0.
        """


@dataclass(frozen=True, slots=True)
class TakeMean(ServerOptimizer):
    """The aggregated model is the next global model (FedAvg)."""

    def step(self, weights: Tensor, mean: Tensor, moments: Moments, round: int) -> Tensor:
        """Return the aggregated model."""
        return mean


@dataclass(frozen=True, slots=True)
class ServerMomentum(CheckedFields, ServerOptimizer):
    """Momentum on the server (FedAvgM).

    Args:
        momentum: How much of the last step is repeated, inside [0, 1). Try 0.9.
    """

    moments: ClassVar[tuple[str, ...]] = ("velocity",)

    momentum: BelowOne = 0.9

    def step(self, weights: Tensor, mean: Tensor, moments: Moments, round: int) -> Tensor:
        """Go along the sum of past steps."""
        return weights + moments["velocity"].mul_(self.momentum).add_(mean - weights)


@dataclass(frozen=True, slots=True)
class FedAdam(CheckedFields, ServerOptimizer):
    """Adam on the server.

    Deviations of Flower, and of the default here, from Alg. 2 of the paper: v starts at 0 instead
    of at least tau squared (``start=tau**2`` restores it), and the step size is corrected for the
    bias of the first rounds (``bias_correction=False`` restores the paper).

    Args:
        lr: Step size of the server; eta in the paper.
        beta_1: How much of the mean step is kept, inside [0, 1).
        beta_2: How much of the mean square is kept, inside [0, 1).
        tau: Added to the root of the mean square. Larger adapts less.
        bias_correction: Whether the step size is corrected as in Adam, with Flower's count of
            rounds, which begins at 2.
        start: The mean square before the first round.
    """

    moments: ClassVar[tuple[str, ...]] = ("mean", "square")

    lr: Positive = 0.1
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    tau: Positive = 1e-3
    bias_correction: Flag = True
    start: NonNegative = 0.0

    def step(self, weights: Tensor, mean: Tensor, moments: Moments, round: int) -> Tensor:
        """Divide the mean step by the root of its mean square."""
        lr = self.lr
        if self.bias_correction:
            n = round + 2
            lr *= (1.0 - self.beta_2**n) ** 0.5 / (1.0 - self.beta_1**n)
        return _adaptive(self, weights, mean, moments, lr)

    def squared(self, square: Tensor, delta_squared: Tensor) -> Tensor:
        """Return the mean square after a round."""
        return self.beta_2 * square + (1.0 - self.beta_2) * delta_squared


@dataclass(frozen=True, slots=True)
class FedYogi(CheckedFields, ServerOptimizer):
    """Yogi on the server: the mean square changes by at most one step's square.

    Deviation of Flower, and of the default here: v starts at 0 (``start=tau**2`` restores the
    paper).

    Args:
        lr: Step size of the server; eta in the paper.
        beta_1: How much of the mean step is kept, inside [0, 1).
        beta_2: How much of the mean square is kept, inside [0, 1).
        tau: Added to the root of the mean square. Larger adapts less.
        start: The mean square before the first round.
    """

    moments: ClassVar[tuple[str, ...]] = ("mean", "square")

    lr: Positive = 0.01
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    tau: Positive = 1e-3
    start: NonNegative = 0.0

    def step(self, weights: Tensor, mean: Tensor, moments: Moments, round: int) -> Tensor:
        """Divide the mean step by the root of its mean square."""
        return _adaptive(self, weights, mean, moments, self.lr)

    def squared(self, square: Tensor, delta_squared: Tensor) -> Tensor:
        """Return the mean square after a round."""
        return square - (1.0 - self.beta_2) * delta_squared * (square - delta_squared).sign()


def _adaptive(
    rule: FedAdam | FedYogi, weights: Tensor, mean: Tensor, moments: Moments, lr: float
) -> Tensor:
    """Return the step of Alg. 2 in Reddi et al."""
    delta, square = mean - weights, moments["square"]
    if rule.start and not square.any():  # the first round with an answer
        square.fill_(rule.start)
    moments["mean"].mul_(rule.beta_1).add_(delta, alpha=1.0 - rule.beta_1)
    square.copy_(rule.squared(square, delta.square()))
    return weights + lr * moments["mean"] / (square.sqrt() + rule.tau)
