"""Local training: how long a client trains, by which rule, and on which mini-batches.

FedAvg is plain SGD on the cross-entropy. FedProx adds ``proximal / 2 * ||w - w_global||^2`` to it;
that is gamma of E3CS's journal form and mu of the FedProx paper. Momentum and the moments of Adam
start at zero in every round: a client keeps nothing between rounds.

A pass over the client's examples is a fresh permutation, cut into mini-batches. The last mini-batch
of a pass holds the rest and may be smaller. A model that needs more examples than that gets them
from the mini-batch before. Steps continue over as many passes as they need. A batch size above the
client's number of examples means all of them. All trainers use the same mini-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from turnout.core import require
from turnout.core.arrays import as_array
from turnout.core.domains import Count, Fraction, NonNegative, check_fields, choice
from turnout.core.errors import InvalidInput
from turnout.core.plain import LATER
from turnout.core.rng import Purpose, stream
from turnout.core.schedules import ScheduledNonNegative, at_round
from turnout.core.types import IntArray


@dataclass(frozen=True, slots=True)
class PerClient:
    """An amount of work for each client.

    Args:
        values: An integer >= 1 for each client, in the order of the clients.

    >>> LocalWork(epochs=PerClient([1, 2, 4])).steps_of(np.array([80, 80, 80]), seed=0).tolist()
    [2, 4, 8]
    """

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _counts("values", self.values))


#: The losses that need no code of your own. The first is the default.
LOSSES = ("cross-entropy", "squared-error", "absolute-error")

#: One number for all clients, a tuple to draw each client's number from, or one per client.
Amount = int | tuple[int, ...] | PerClient


@dataclass(frozen=True, slots=True)
class LocalWork:
    """Local training: epochs or SGD steps, the batch, the step size, FedAvg or FedProx.

    For ``epochs`` and ``steps`` a tuple such as ``(1, 2, 3, 4)`` gives each client a number that is
    drawn from it once, fixed by the seed (E3CS, journal form).

    Args:
        epochs: Passes over the client's examples, >= 1. Default: 1, unless ``steps`` is set.
        steps: SGD steps, >= 1, over as many reshuffled passes as they need. Set either epochs or
            steps.
        batch_size: Examples of a step, >= 1. None: all examples of the client.
        lr: Step size: a number or a schedule over rounds. Try 0.01 to 0.1.
        momentum: Momentum of SGD, inside [0, 1]. It starts at zero in every round.
        proximal: Coefficient of FedProx, >= 0; 0 is FedAvg. The FedProx paper tries 0.001 to 1.
        weight_decay: Adds ``weight_decay * w`` to the gradient, >= 0.
        optimizer: "sgd", or "adam" with the usual rates 0.9 and 0.999. Adam wants small step sizes;
            try 0.001 to 0.002.
        loss: "cross-entropy" of labels, "squared-error" or "absolute-error" of targets, or a
            function of your own as ``"module:function"``: scores and labels to one loss each.
        algorithm: Your own subclass of ``turnout.training.LocalAlgorithm``, as ``"module:Class"``.
            It may change every step and remember something for each client. Empty: plain steps.

    >>> LocalWork(epochs=2, batch_size=40).steps_of(np.array([100, 40, 7]), seed=0).tolist()
    [6, 2, 2]
    """

    epochs: Amount | None = None
    steps: Amount | None = None
    batch_size: Count | None = 40
    lr: ScheduledNonNegative = 0.01
    momentum: Fraction = 0.0
    proximal: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    optimizer: Annotated[str, choice("sgd", "adam")] = field(default="sgd", metadata=LATER)
    loss: str = field(default=LOSSES[0], metadata=LATER)
    algorithm: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_path("loss", self.loss, LOSSES)
        _check_path("algorithm", self.algorithm, ("",))
        if self.epochs is not None and self.steps is not None:
            raise InvalidInput(
                f"epochs and steps exclude each other, got {self.epochs!r} and {self.steps!r}: "
                "give one of them.",
                field="epochs",
            )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        for name in ("epochs", "steps"):
            object.__setattr__(self, name, _amount(name, getattr(self, name)))
        if self.optimizer == "adam" and self.momentum:
            raise InvalidInput(
                f"momentum is {self.momentum} and optimizer is 'adam', which has moments of its "
                "own: leave momentum at 0 or use optimizer='sgd'.",
                field="momentum",
            )

    def steps_of(self, num_samples: IntArray, seed: int) -> IntArray:
        """Return (n,) the SGD steps that each client takes in a round.

        Args:
            num_samples: (n,) training examples of each client.
            seed: Fixes the numbers that are drawn from a tuple.

        """
        if self.steps is not None:
            return _per_client("steps", self.steps, num_samples.size, seed)
        assert self.epochs is not None
        epochs = _per_client("epochs", self.epochs, num_samples.size, seed)
        return epochs * self.batches_of(num_samples)

    def batches_of(self, num_samples: IntArray) -> IntArray:
        """Return (n,) the mini-batches in one pass over each client's examples."""
        if self.batch_size is None:
            return np.minimum(num_samples, 1)
        return -(-num_samples // self.batch_size)

    def lr_in(self, round: int) -> float:
        """Return the step size in a round."""
        return at_round("lr", self.lr, round)


def _per_client(name: str, amount: Amount, n_clients: int, seed: int) -> IntArray:
    if isinstance(amount, PerClient):
        if len(amount.values) != n_clients:
            raise InvalidInput(
                f"{name} has {len(amount.values)} values for {n_clients} clients: give one each."
            )
        return np.array(amount.values, dtype=np.int64)
    if isinstance(amount, tuple):
        return stream(seed, Purpose.TRAIN).choice(np.array(amount, dtype=np.int64), n_clients)
    return np.full(n_clients, amount, dtype=np.int64)


def _check_path(field: str, value: Any, known: tuple[str, ...]) -> None:
    is_path = isinstance(value, str) and value.count(":") == 1 and not value.startswith(":")
    if value not in known and not is_path:
        names = ", ".join(repr(name) for name in known if name)
        wanted = f"be {names + ' or ' if names else ''}'module:name'"
        raise require.wrong(field, wanted, value)


def _amount(name: str, value: Any) -> Amount | None:
    if value is None or isinstance(value, PerClient):
        return value
    if isinstance(value, list | tuple):
        return _counts(name, value)
    if isinstance(value, np.ndarray):
        raise InvalidInput(
            f"{name} is an array: write {name}=PerClient(array) for one per client.", field=name
        )
    return require.integer(name, value, minimum=1)


def _counts(name: str, values: Any) -> tuple[int, ...]:
    if as_array(name, values).ndim != 1 or np.size(values) == 0:
        raise InvalidInput(f"{name} must be a list of integers >= 1, got {values!r}.", field=name)
    return tuple(require.integer(name, value, minimum=1) for value in values)


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
    # The order of the draws is part of every result: first the seed, then the permutations.
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
