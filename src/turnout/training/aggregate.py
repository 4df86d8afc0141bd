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

Rules that remember who took part are in ``turnout.training.participation``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from turnout.core.domains import CheckedFields, Flag, PositiveOrInfinite
from turnout.core.errors import InvalidInput
from turnout.core.plain import LATER
from turnout.core.types import Array, BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor


#: What a rule remembers from round to round, by name. It is saved with a checkpoint.
Memory = dict[str, Array]


class Answered(NamedTuple):
    """The clients whose models a round has.

    Attributes:
        clients: (s,) who they are.
        num_examples: (s,) their training examples, or other weights.
        probability: (s,) their inclusion probabilities; None if the selector reports none.
        times: (s,) how often each was drawn.
        all_examples: (n,) the same of all clients, returned or not.
    """

    clients: IntArray
    num_examples: Array
    probability: FloatArray | None
    times: IntArray
    all_examples: Array


class Aggregation(ABC):
    """The weight of each returned model. A subclass is a frozen dataclass of plain settings."""

    #: Whether the rule divides by the probabilities with which clients were chosen.
    needs_probability: ClassVar[bool] = False

    @abstractmethod
    def coefficients(
        self,
        num_examples: Array,
        probability: FloatArray | None,
        total_examples: float,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Return (s,) the coefficients c_i of the s returned models.

        Args:
            num_examples: (s,) training examples of each returned client.
            probability: (s,) their inclusion probabilities; None if the selector reports none.
            total_examples: Training examples of all clients, chosen or not.
            times: How often each client was drawn; above 1 only in draws with replacement.

        """

    def start(self, n_clients: int, n_weights: int) -> Memory:
        """Return what is remembered before the first round; by default nothing.

        Args:
            n_clients: Number of clients.
            n_weights: Weights of the model, without buffers.
        """
        return {}

    def weigh(self, answered: Answered, memory: Memory) -> FloatArray:
        """Return (s,) the coefficients of the returned models, by what is remembered.

        Args:
            answered: Who returned.
            memory: What was remembered in earlier rounds.
        """
        return self.coefficients(
            answered.num_examples,
            answered.probability,
            answered.all_examples.sum(),
            answered.times,
        )

    def check(self, selector: str, reports_probability: bool) -> None:
        """Refuse a selector that does not know the chances which the rule divides by.

        Args:
            selector: What the selector is called.
            reports_probability: Whether it reports exact chances.
        """
        if self.needs_probability and not reports_probability:
            raise InvalidInput(
                f"aggregation {type(self).__name__} needs inclusion probabilities, but "
                f"{selector} declares none. Use MeanReturned() or a selector with exact "
                "probabilities (random, e3cs); a selector of your own declares them by "
                "reports_probability = True.",
                field="aggregation",
            )

    def grown(self, memory: Memory, n_clients: int, n_weights: int) -> Memory:
        """Return what is remembered when clients have joined; they come last.

        Args:
            memory: What is remembered; empty before the first round.
            n_clients: Number of clients now.
            n_weights: Weights of the model, without buffers.
        """
        fresh = self.start(n_clients, n_weights)
        for name, old in memory.items():
            fresh[name][: len(old)] = old
        return fresh

    def step(self, updates: Iterable[Array], answered: Answered, memory: Memory) -> FloatArray:
        """Return (P,) the change of the global model, without PyTorch.

        Args:
            updates: (P,) returned model minus global model, for each client that returned.
            answered: Who returned.
            memory: What is remembered.
        """
        return weighted_sum(updates, self.weigh(answered, memory))

    def combined(
        self,
        weights: Tensor,
        updates: Tensor,
        answered: Answered,
        memory: Memory,
        server_lr: float,
    ) -> Tensor:
        """Return the global model after the step.

        Args:
            weights: (P,) the global model.
            updates: (s, P) the returned models.
            answered: Who returned.
            memory: What is remembered.
            server_lr: Factor on the step.
        """
        return aggregate(weights, updates, self.weigh(answered, memory), server_lr)

    def remember(self, memory: Memory, returned: BoolArray) -> None:
        """Learn who returned, in place; called at the end of every round, also if nobody did.

        Args:
            memory: What is remembered.
            returned: (n,) who returned a model that was used.
        """
        return


class RememberingAggregation(Aggregation):
    """A rule that goes by ``weigh`` and its memory; it cannot weigh a round by itself."""

    def coefficients(
        self,
        num_examples: Array,
        probability: FloatArray | None,
        total_examples: float,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Refuse: who took part before is not known here."""
        raise InvalidInput(
            f"aggregation {type(self).__name__} remembers who took part: call weigh() with its "
            "memory.",
            field="aggregation",
        )


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
        num_examples: Array,
        probability: FloatArray | None,
        total_examples: float,
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
        num_examples: Array,
        probability: FloatArray | None,
        total_examples: float,
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
        most: Largest 1 / probability that counts: it bounds a step, at the price of a bias.
            Infinity clips nothing.

    """

    needs_probability: ClassVar[bool] = True

    normalise: Flag = False
    most: PositiveOrInfinite = field(default=math.inf, metadata=LATER)

    def coefficients(
        self,
        num_examples: Array,
        probability: FloatArray | None,
        total_examples: float,
        times: IntArray | int = 1,
    ) -> FloatArray:
        """Return share of data / probability."""
        if probability is None:
            raise InvalidInput(
                "aggregation InverseProbability needs inclusion probabilities, but this selector "
                "reports none. Use MeanReturned() or a selector with exact probabilities (random, "
                "e3cs)."
            )
        weight: FloatArray = (
            num_examples / total_examples / np.maximum(probability, 1.0 / self.most)
        )
        return weight / weight.sum() if self.normalise and weight.size else weight


def weighted_sum(rows: Iterable[Array], coefficients: FloatArray) -> FloatArray:
    """Return (P,) the sum of coefficient times row, in double precision.

    Args:
        rows: (P,) each; at least one.
        coefficients: (s,) one for each row.
    """
    total = np.zeros(1)
    for row, coefficient in zip(rows, coefficients, strict=True):
        total = total + coefficient * row.astype(np.float64)
    return total


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
