"""Which examples a client uses in which step: the same for every trainer.

A pass over the client's examples is a fresh permutation, cut into mini-batches. The last mini-batch
of a pass holds the rest and may be smaller; a model that needs more examples than that rest gets
them from the mini-batch before. Steps continue over as many passes as they need. A
batch size above the client's number of examples means all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.rng import Purpose, stream
from turnout.types import IntArray

#: Seeds of torch generators are below this number.
SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The mini-batches of one client in one round.

    Step j uses the client's examples ``order[bounds[j]:bounds[j + 1]]``, counted from the client's
    first one.

    Args:
        order: The examples of all steps, one after the other.
        bounds: (steps + 1,) where the mini-batch of each step begins.
        noise_seed: Seed of dropout and other noise inside the model.

    """

    order: IntArray
    bounds: IntArray
    noise_seed: int

    @property
    def n_steps(self) -> int:
        """Number of mini-batches."""
        return self.bounds.size - 1


def batch_plan(
    n_examples: int,
    batch_size: int | None,
    n_steps: int,
    rng: np.random.Generator,
    least: int = 1,
) -> BatchPlan:
    """Return mini-batches of some examples.

    Args:
        n_examples: Number of examples.
        batch_size: Examples of a mini-batch; None for all.
        n_steps: Number of mini-batches.
        rng: Draws the permutations.
        least: Examples that the last mini-batch of a pass gets at least, from the one before it.

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
    if per_pass > 1:
        missing = max(0, least - (n_examples - (per_pass - 1) * size))
        bounds[step % per_pass == per_pass - 1] -= missing
    return BatchPlan(order[: bounds[-1]], bounds, noise_seed)


def examples_seen(num_samples: IntArray, batch_size: int | None, steps: IntArray) -> IntArray:
    """Return how many examples clients process in their steps, over all passes.

    Args:
        num_samples: (n,) training examples of each client.
        batch_size: Examples of a mini-batch; None for all.
        steps: (n,) steps of each client.

    >>> examples_seen(np.array([5, 5, 1]), 2, np.array([3, 4, 2])).tolist()
    [5, 7, 2]
    """
    size = num_samples if batch_size is None else np.minimum(batch_size, num_samples)
    passes, left = np.divmod(steps, -(-num_samples // size))
    seen: IntArray = passes * num_samples + left * size
    return seen


def client_plan(
    n_examples: int,
    batch_size: int | None,
    n_steps: int,
    seed: int,
    round: int,
    client: int,
    least: int = 1,
) -> BatchPlan:
    """Return the mini-batches of a client in a round; the seed fixes them.

    Args:
        n_examples: Training examples of the client.
        batch_size: Examples of a mini-batch; None for all.
        n_steps: Number of mini-batches.
        seed: Seed of the run.
        round: Number of the round.
        client: Number of the client.
        least: Examples that the last mini-batch of a pass gets at least.

    """
    rng = stream(seed, Purpose.TRAIN, round, client)
    return batch_plan(n_examples, batch_size, n_steps, rng, least)


def polled_rows(
    n_examples: int, batch_size: int | None, seed: int, round: int, client: int
) -> IntArray:
    """Return the examples of the mini-batch on which a polled client evaluates (cpow-d).

    Args:
        n_examples: Training examples of the client.
        batch_size: Examples of the mini-batch; None for all.
        seed: Seed of the run.
        round: Number of the round.
        client: Number of the client.

    """
    size = n_examples if batch_size is None else min(batch_size, n_examples)
    return stream(seed, Purpose.POLL, round, client).permutation(n_examples)[:size]
