"""Which examples a client uses in which step: the same for every trainer.

A pass over the client's examples is a fresh permutation, cut into mini-batches; the last one of a
pass holds what is left and may be smaller. Steps go on over as many passes as they need. A batch
larger than the client's data is all of its data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.rng import Purpose, stream
from turnout.types import IntArray

__all__ = ["BatchPlan", "batch_plan", "client_plan", "examples_seen", "polled_rows"]

#: Seeds of torch generators are below this number.
SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The mini-batches of one client in one round.

    Step j uses the client's examples ``order[bounds[j]:bounds[j + 1]]``, counted from the client's
    first one.
    """

    order: IntArray
    bounds: IntArray  #: (steps + 1,)
    noise_seed: int  #: seed of dropout and other noise inside the model

    @property
    def n_steps(self) -> int:
        """How many mini-batches."""
        return self.bounds.size - 1


def batch_plan(
    n_examples: int, batch_size: int | None, n_steps: int, rng: np.random.Generator
) -> BatchPlan:
    """Return the mini-batches of ``n_steps`` steps over ``n_examples`` examples.

    >>> plan = batch_plan(5, 2, 4, np.random.default_rng(0))
    >>> plan.bounds.tolist(), sorted(plan.order[:5].tolist()), plan.order.size
    ([0, 2, 4, 5, 7], [0, 1, 2, 3, 4], 7)
    """
    noise_seed = int(rng.integers(SEEDS))
    size = n_examples if batch_size is None else min(batch_size, n_examples)
    per_pass = -(-n_examples // size)
    n_passes = -(-n_steps // per_pass)
    order = np.concatenate([rng.permutation(n_examples) for _ in range(n_passes)])
    step = np.arange(n_steps + 1)
    bounds = step // per_pass * n_examples + step % per_pass * size
    return BatchPlan(order[: bounds[-1]], bounds, noise_seed)


def examples_seen(num_samples: IntArray, batch_size: int | None, steps: IntArray) -> IntArray:
    """Return how many examples clients go through in their steps, those of all passes.

    >>> examples_seen(np.array([5, 5, 1]), 2, np.array([3, 4, 2])).tolist()
    [5, 7, 2]
    """
    size = num_samples if batch_size is None else np.minimum(batch_size, num_samples)
    passes, left = np.divmod(steps, -(-num_samples // size))
    seen: IntArray = passes * num_samples + left * size
    return seen


def client_plan(
    n_examples: int, batch_size: int | None, n_steps: int, seed: int, round: int, client: int
) -> BatchPlan:
    """Return the mini-batches of a client in a round, fixed by the seed."""
    rng = stream(seed, Purpose.TRAIN, round, client)
    return batch_plan(n_examples, batch_size, n_steps, rng)


def polled_rows(
    n_examples: int, batch_size: int | None, seed: int, round: int, client: int
) -> IntArray:
    """Return the examples of the one mini-batch on which a polled client evaluates (cpow-d)."""
    size = n_examples if batch_size is None else min(batch_size, n_examples)
    return stream(seed, Purpose.POLL, round, client).permutation(n_examples)[:size]
