"""Rules that turn the returned models into the next global model.

Every rule is a list of coefficients: new = global + server_lr * sum_i c_i (w_i - global), the sum
running over the clients that returned. A client drawn twice counts like two with the same model
(Cho et al., arXiv:2010.01243), except where the rule already divides by its probability.

===================== ========================= =============================================
rule                  c_i                       the step
===================== ========================= =============================================
MeanReturned("data")  n_i / sum over returned   full, whoever returned (FedAvg)
MeanReturned("equal") 1 / number returned       full, every client counts alike
KeepGlobal            n_i / sum over all        shrunk to the share of data returned (E3CS)
InverseProbability    n_i / sum over all / p_i  full on average (Horvitz-Thompson)
===================== ========================= =============================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from turnout.core.domains import CheckedFields, Flag
from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor


class Aggregation(ABC):
    """The weight of each returned model. A subclass is a frozen dataclass of plain settings."""

    #: Whether the rule divides by the probabilities with which clients were chosen.
    needs_probability: ClassVar[bool] = False

    @abstractmethod
    def coefficients(
        self,
        num_examples: IntArray,
        probability: FloatArray | None,
        total_examples: int,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Return (s,) the coefficients c_i of the s returned models.

        Args:
            num_examples: (s,) training examples of each returned client.
            probability: (s,) their inclusion probabilities; None if the selector reports none.
            total_examples: Training examples of all clients, chosen or not.
            times: How often each client was drawn; above 1 only in draws with replacement.

        """


@dataclass(frozen=True, slots=True)
class MeanReturned(CheckedFields, Aggregation):
    """The mean of the returned models.

    Args:
        by: ``"data"`` weights each model by its number of examples (FedAvg), ``"equal"`` gives
            every model the same weight.

    """

    by: Literal["data", "equal"] = "data"

    def coefficients(
        self,
        num_examples: IntArray,
        probability: FloatArray | None,
        total_examples: int,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Return coefficients that sum to 1."""
        size = np.ones(num_examples.size) if self.by == "equal" else num_examples.astype(float)
        weight: FloatArray = size * times
        return weight / weight.sum() if weight.size else weight


@dataclass(frozen=True, slots=True)
class KeepGlobal(Aggregation):
    """The mean over all clients; a client that did not return counts with the global model.

    E3CS, journal Eq. (5), arXiv Alg. 1 line 13. It equals ``MeanReturned("data")`` with the server
    step multiplied by the share of data that returned: the more returns, the larger the step.
    """

    def coefficients(
        self,
        num_examples: IntArray,
        probability: FloatArray | None,
        total_examples: int,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Return each client's share of all data."""
        share: FloatArray = num_examples * times / total_examples
        return share


@dataclass(frozen=True, slots=True)
class InverseProbability(CheckedFields, Aggregation):
    """Weight = share of all data / inclusion probability (Horvitz-Thompson).

    On average over the selector's draws this is the step of all clients together, if every chosen
    client returns. A client that fails is missing from the sum, so its data counts only as often
    as it succeeds. The probability is that of being drawn at all, so a client that was drawn twice
    counts once.

    Args:
        normalise: Divide by the sum of the coefficients (Hajek). Every round then takes a full
            step, at the price of a small bias. Try it when steps vary too much.

    """

    needs_probability: ClassVar[bool] = True

    normalise: Flag = False

    def coefficients(
        self,
        num_examples: IntArray,
        probability: FloatArray | None,
        total_examples: int,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Return share of data / probability."""
        if probability is None:
            raise InvalidInput(
                "aggregation InverseProbability needs inclusion probabilities, but this selector "
                "reports none. Use MeanReturned() or a selector with exact probabilities (random, "
                "e3cs)."
            )
        weight: FloatArray = num_examples / total_examples / probability
        return weight / weight.sum() if self.normalise and weight.size else weight


def aggregate(
    weights: Tensor,
    updates: Tensor | Sequence[Tensor],
    coefficients: FloatArray,
    server_lr: float = 1.0,
    bases: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """Return weights + server_lr * sum_i c_i (updates_i - base_i), summed in double precision.

    Args:
        weights: (P,) the global model.
        updates: (s, P) the local models. Rows with coefficient 0 are not read.
        coefficients: (s,) the weight of each row. If all are 0 the weights are returned bit for
            bit.
        server_lr: Factor on the step.
        bases: The model that each update started from; None = the global model.

    """
    import torch

    share = server_lr * coefficients
    rows = np.flatnonzero(share).tolist()
    if not rows:
        return weights.clone()
    # Sums of many models lose digits in single precision. Apple GPUs have no double precision.
    precise = torch.float32 if weights.device.type == "mps" else torch.float64
    old = [row for row in rows if bases is not None and bases[row] is not None]
    total = weights.to(precise) * (1.0 - float(np.delete(share, old).sum()))
    for row in rows:
        total.add_(updates[row], alpha=float(share[row]))
    for row in old:
        base = None if bases is None else bases[row]
        if base is not None:
            total.sub_(base, alpha=float(share[row]))
    return total.to(weights.dtype)
