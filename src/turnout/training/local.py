"""Local training: how long a client trains, and by which rule.

FedAvg is plain SGD on the cross-entropy. FedProx adds ``proximal / 2 * ||w - w_global||^2`` to it;
that is gamma of E3CS's journal form and mu of the FedProx paper. Momentum and the moments of Adam
start at zero in every round: a client keeps nothing between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from turnout import require
from turnout.arrays import as_array
from turnout.domains import Count, Fraction, NonNegative, check_fields, choice
from turnout.errors import InvalidInput
from turnout.plain import LATER
from turnout.rng import Purpose, stream
from turnout.schedules import Schedule, at_round
from turnout.types import IntArray


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

    >>> LocalWork(epochs=2, batch_size=40).steps_of(np.array([100, 40, 7]), seed=0).tolist()
    [6, 2, 2]
    """

    epochs: Amount | None = None
    steps: Amount | None = None
    batch_size: Count | None = 40
    lr: float | Schedule = 0.01
    momentum: Fraction = 0.0
    proximal: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    optimizer: Annotated[str, choice("sgd", "adam")] = field(default="sgd", metadata=LATER)

    def __post_init__(self) -> None:
        check_fields(self)
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
        at_round("lr", self.lr, 0)
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
