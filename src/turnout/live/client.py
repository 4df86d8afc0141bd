"""What a client reports about itself, and the keys under which it does so.

Columns are fixed, or they change with every round. Metrics stand under the selector's name of them,
such as ``loss_rms``. Clients import this module, so it loads nothing of the server's side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.sketch import SKETCH_SEED, flat_update, sketch

#: Keys of numbers that clients report beside an answer.
NUM_EXAMPLES, DURATION = "num-examples", "duration"
#: What follows the key of a sketch in the key of its seed.
SEED = "_seed"

#: A value, or a function that returns it when the server asks.
Given: TypeAlias = Any
#: Columns that are asked for once, also if they are functions.
_ONCE = ("num_samples", "features")


def update_report(
    before: Iterable[Any],
    after: Iterable[Any],
    *,
    size: int = 64,
    seed: int = SKETCH_SEED,
    bias: bool = False,
) -> dict[str, float | list[float]]:
    """Return ``update_norm`` and ``update_sketch`` of a client's update, for its reply.

    The same arrays give the same numbers on every client, so the server can compare updates without
    holding them. Sketches are those of ``turnout.core.sketch``.

    Args:
        before: The arrays of the model that the client received, in order.
        after: The arrays of the model that it trained, in the same order.
        size: The length of the sketch, as the selector needs it.
        seed: The seed of the sketch, the same for everyone.
        bias: Whether ``bias_update`` is reported as well: the change of the last array, which must
            be the bias of the model's last layer. It shows which labels the client has.

    >>> report = update_report([np.zeros(3)], [np.array([3.0, 4.0, 0.0])], size=2)
    >>> report["update_norm"], len(report["update_sketch"])
    (5.0, 2)
    """
    after = list(after)
    update = flat_update(before, after)
    report = {
        "update_norm": float(np.linalg.norm(update)),
        "update_sketch": sketch(update, size, seed).tolist(),
        f"update_sketch{SEED}": float(seed),
    }
    if bias:
        shape: tuple[int, ...] = np.shape(after[-1]) if after else ()
        if len(shape) != 1:
            raise InvalidInput(
                "bias=True needs a model whose last array is the bias of its last layer, one "
                f"number per class, got an array of shape {shape}: order the arrays so.",
                field="bias",
            )
        report["bias_update"] = update[update.size - sum(shape) :].tolist()
    return report


def split_columns(
    num_examples: Given, features: Given, context: Given, columns: Mapping[str, Given] | None
) -> tuple[dict[str, Given], dict[str, Given]]:
    """Return the columns that are asked for once, and those that are asked for before every round.

    Plain values are checked at once.

    Args:
        num_examples: The number of examples, for the column num_samples.
        features: A code of the data, such as SimHash bits.
        context: The state of the device.
        columns: Any other column by its name.
    """
    known = {"num_samples": num_examples, "features": features, "context": context}
    given = {name: value for name, value in known.items() if value is not None}
    given |= columns or {}
    changing = {
        name: value for name, value in given.items() if callable(value) and name not in _ONCE
    }
    fixed = {name: value for name, value in given.items() if name not in changing}
    for name, value in fixed.items():
        if not callable(value):
            numbers("num_examples" if name == "num_samples" else name, value)
    return fixed, changing


def column_values(given: Mapping[str, Given], *asked: Any) -> dict[str, float | list[float]]:
    """Return the values of columns in plain numbers.

    Args:
        given: Values, or functions that return them.
        asked: The arguments of the functions.
    """
    return {
        name: numbers(name, value(*asked) if callable(value) else value)
        for name, value in given.items()
    }


def numbers(name: str, value: Any) -> float | list[float]:
    """Return a number or a list of them in plain floats.

    Args:
        name: What it is, for the error.
        value: A number, an array or a tensor of at most one dimension.
    """
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers, got {value!r}.") from error
    if array.ndim > 1:
        raise InvalidInput(f"{name} must be a number or a list of them, got shape {array.shape}.")
    plain: float | list[float] = array.tolist()
    return plain


class LossReport:
    """Mean, spread and root mean square of the losses of one local training.

    It works with torch and everything else.

    >>> report = LossReport()
    >>> report.add(0.5, n=32)
    >>> report.add(0.7, n=32)
    >>> sorted(report.metrics())
    ['duration', 'loss', 'loss_rms', 'loss_std']

    Put them into the reply's ``MetricRecord`` beside ``num-examples``. Make the report before the
    training starts: it also measures the time.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._batches = 0
        self._mean = 0.0
        self._spread = 0.0  # sum of squared distances from the mean
        self._examples = 0
        self._squares = 0.0  # sum over examples

    def add(self, loss: Any, n: int = 1) -> None:
        """Add a mini-batch.

        Args:
            loss: The loss of each example (``reduction="none"``), which makes the root mean square
                exact, or their mean, which then counts for every example.
            n: How many examples the mean is of.
        """
        if hasattr(loss, "detach"):  # a tensor
            loss = loss.detach().cpu()
        values = np.asarray(loss, dtype=np.float64)
        if values.ndim == 0:
            n_examples = require.integer("n", n, minimum=1)
            mean, squares = float(values), n_examples * float(values) ** 2
        elif values.size:
            n_examples = values.size
            mean, squares = float(values.mean()), float(np.square(values).sum())
        else:
            return
        self._batches += 1
        distance = mean - self._mean
        self._mean += distance / self._batches
        self._spread += distance * (mean - self._mean)
        self._examples += n_examples
        self._squares += squares

    def metrics(self) -> dict[str, float]:
        """Return ``loss``, ``loss_std``, ``loss_rms`` and ``duration``; NaN if nothing was added.

        The keys are always the same, because strategies that average metrics need that.
        """
        is_empty = self._batches == 0
        return {
            "loss": math.nan if is_empty else self._mean,
            "loss_std": math.nan if is_empty else math.sqrt(self._spread / self._batches),
            "loss_rms": math.nan if is_empty else math.sqrt(self._squares / self._examples),
            DURATION: time.perf_counter() - self._started,
        }
