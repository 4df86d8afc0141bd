"""Aggregation that knows who took part: rules that remember, so that rare clients are not lost.

The mean of the returned models is the mean of all clients only if all take part alike. A selector
that prefers fast clients, and clients that fail, bend it towards those that return. With the exact
chances of a selector, ``InverseProbability`` straightens it. These rules need no chances. They
learn from who returned, so they also correct for failures.

================ ================================================ ============================
rule             what a client counts                             what is remembered
================ ================================================ ============================
``RunningRates`` n_i / all data / share of rounds it returned in   a count per client
``OnlineWeights`` n_i / all data / mean interval between returns   three numbers per client
``LastUpdates``  n_i / all data, with its last update             n P numbers
================ ================================================ ============================

The step is that of all clients together on average (``LastUpdates``: of their last updates). Large
weights make steps vary. ``normalise`` makes every step a full one, at the price of a bias, and
``most`` clips the weights. FedAU is Wang and Ji, ICLR 2024, arXiv:2306.03401; MIFA is Gu et al.,
NeurIPS 2021, arXiv:2106.04159.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.domains import CheckedFields, Count, Flag, Positive, PositiveOrInfinite
from turnout.core.types import Array, BoolArray, FloatArray
from turnout.training.aggregate import Answered, Memory, RememberingAggregation, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RunningRates(CheckedFields, RememberingAggregation):
    """Share of data over the share of rounds in which a client returned.

    The rate of a client is (returns + prior x mean rate) / (rounds + prior), where the mean is over
    all clients and everything is from before the round.

    Args:
        prior: Rounds that the mean rate of all clients is worth. Try 5.
        normalise: Divide by the sum of the coefficients, so that every step is a full one.
        most: Largest weight of a client relative to its share of data; infinity clips nothing.
    """

    prior: Positive = 5.0
    normalise: Flag = True
    most: PositiveOrInfinite = math.inf

    def start(self, n_clients: int, n_weights: int) -> Memory:
        """Return counts of nothing."""
        return {"n_returned": np.zeros(n_clients), "n_rounds": np.zeros(1)}

    def grown(self, memory: Memory, n_clients: int, n_weights: int) -> Memory:
        """Count the rounds of each client from when it joined."""
        counts = {name: old for name, old in memory.items() if name != "n_rounds"}
        fresh = RememberingAggregation.grown(self, counts, n_clients, n_weights)
        if memory:
            n_before, rounds = memory["n_returned"].size, memory["n_rounds"]
            joined = np.zeros(n_clients - n_before)
            old = np.broadcast_to(rounds, n_before)
            fresh["n_rounds"] = np.concatenate([old, joined]) if joined.size else rounds.copy()
        return fresh

    def weigh(self, answered: Answered, memory: Memory) -> FloatArray:
        """Return share of data / rate."""
        n_rounds, n_returned = memory["n_rounds"], memory["n_returned"]
        mean = float(n_returned.mean()) / float(n_rounds.mean()) if n_returned.any() else 0.0
        if mean == 0.0:  # nobody has returned before: all are alike
            mean = answered.clients.size / n_returned.size
        if n_rounds.size > 1:
            n_rounds = n_rounds[answered.clients]
        rate = (n_returned[answered.clients] + self.prior * mean) / (n_rounds + self.prior)
        return weighted(answered, 1.0 / rate, self.most, self.normalise)

    def remember(self, memory: Memory, returned: BoolArray) -> None:
        """Count a round."""
        memory["n_rounds"] += 1.0
        memory["n_returned"] += returned


@dataclass(frozen=True, slots=True)
class OnlineWeights(CheckedFields, RememberingAggregation):
    """FedAU: share of data x mean interval between returns, from before the round.

    An interval that reaches the cutoff is closed as if the client had returned, so a client that
    has been away for long cannot get a huge weight at once. A client counts once, weight 1, until
    its first interval is closed. Deviation: shares of data take the place of 1 / clients; they are
    the same for equal clients.

    Args:
        cutoff: Rounds after which an interval is closed; K in the paper. Keep 50.
        normalise: Divide by the sum of the coefficients, so that every step is a full one. The
            paper does not.
        most: Largest weight of a client relative to its share of data; infinity clips nothing.
    """

    cutoff: Count = 50
    normalise: Flag = False
    most: PositiveOrInfinite = math.inf

    def start(self, n_clients: int, n_weights: int) -> Memory:
        """Return weights of 1 and open intervals of length 0."""
        return {
            "mean_interval": np.ones(n_clients),
            "n_intervals": np.zeros(n_clients),
            "open_interval": np.zeros(n_clients),
        }

    def weigh(self, answered: Answered, memory: Memory) -> FloatArray:
        """Return share of data x mean interval."""
        intervals = memory["mean_interval"][answered.clients]
        return weighted(answered, intervals, self.most, self.normalise)

    def remember(self, memory: Memory, returned: BoolArray) -> None:
        """Close the intervals of those who returned, and those that reached the cutoff."""
        mean, n, length = (memory[x] for x in ("mean_interval", "n_intervals", "open_interval"))
        length += 1.0
        closed = returned | (length >= self.cutoff)
        mean[closed] = (n[closed] * mean[closed] + length[closed]) / (n[closed] + 1.0)
        n[closed] += 1.0
        length[closed] = 0.0


@dataclass(frozen=True, slots=True)
class LastUpdates(RememberingAggregation):
    """MIFA: the mean of the last update of every client, returned now or earlier.

    It remembers a whole update per client: clients x parameters x 4 bytes, which are saved with
    every checkpoint. Deviation: the paper has everyone return in the first round; here clients that
    never returned count with an update of 0. A round in which nobody returns takes no step.
    """

    def start(self, n_clients: int, n_weights: int) -> Memory:
        """Return updates of 0."""
        return {"update": np.zeros((n_clients, n_weights), np.float32)}

    def weigh(self, answered: Answered, memory: Memory) -> FloatArray:
        """Return shares of the returned data, by which buffers are averaged."""
        return weighted(answered, np.ones(answered.clients.size), math.inf, True)

    def combined(
        self,
        weights: Tensor,
        updates: Tensor,
        answered: Answered,
        memory: Memory,
        server_lr: float,
    ) -> Tensor:
        """Return weights + server_lr x sum over all clients of share of data x last update."""
        import torch

        n = memory["update"].shape[1]
        last = (updates[:, :n] - weights[:n]).to("cpu", torch.float32).numpy()
        step = server_lr * self.step(last, answered, memory)
        new = weights.clone()
        new[:n] += torch.from_numpy(step.astype(np.float32)).to(weights.device)
        return new

    def step(self, updates: Iterable[Array], answered: Answered, memory: Memory) -> FloatArray:
        """Remember the updates; return the mean of the last ones of all clients."""
        for client, update in zip(answered.clients, updates, strict=True):
            memory["update"][client] = update
        return weighted_sum(memory["update"], answered.all_examples / answered.all_examples.sum())


def weighted(answered: Answered, factor: FloatArray, most: float, normalise: bool) -> FloatArray:
    """Return shares of all data times a factor.

    Args:
        answered: Who returned.
        factor: (s,) their factors.
        most: The largest factor that counts.
        normalise: Whether the sum is 1.
    """
    size = answered.num_examples * answered.times
    weight: FloatArray = size / answered.all_examples.sum() * np.minimum(factor, most)
    return weight / weight.sum() if normalise and weight.size else weight
