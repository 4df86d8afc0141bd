"""The client's side: who I am, what I know before a round, and what I report after it.

Two lines in an existing ``ClientApp``::

    from turnout.integrations.flower.client import describe

    describe(app, stable_id=lambda message, context: context.node_config["partition-id"])

Every value is plain, or a function of ``(message, context)`` like any handler of the app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from turnout.errors import InvalidInput
from turnout.integrations.flower import keys
from turnout.session.loss_report import LossReport

__all__ = ["LossReport", "describe"]  # apps import both from here

#: A value, or a function that gives it when the server asks.
Given = Any
_Handler = Callable[[Message, Context], Any]


def describe(
    app: ClientApp,
    *,
    stable_id: Given,
    num_examples: Given = None,
    features: Given = None,
    context: Given = None,
    columns: Mapping[str, Given] | None = None,
    loss: _Handler | None = None,
) -> None:
    """Let the server ask this client who it is and what selectors want to know.

    A value is plain, or a function of ``(message, context)``. A function for ``context`` or in
    ``columns`` is called before every round, if the selector needs it; everything else is asked
    once. The mods of the app do not see these questions.

    Args:
        app: The app of the client.
        stable_id: A text or a number that stays the same when the node restarts and is different
            for every client.
        num_examples: The number of examples, for the column num_samples.
        features: A code of the data, such as SimHash bits.
        context: The state of the device.
        columns: Any other column by its name, such as expected_duration.
        loss: A function that evaluates the model in ``message.content["arrays"]``, on all data or
            on a mini-batch as ``message.content["config"]["poll-data"]`` says.
    """
    known = {"num_samples": num_examples, "features": features, "context": context}
    given = {name: value for name, value in known.items() if value is not None}
    given |= columns or {}
    if stable_id is None:
        raise InvalidInput("stable_id must be a text, a number or a function that gives one.")
    if loss is not None and not callable(loss):
        raise InvalidInput(f"loss must be a function (message, context) -> float, got {loss!r}.")
    changing = {
        name: value
        for name, value in given.items()
        if callable(value) and name not in ("num_samples", "features")
    }
    fixed = {name: value for name, value in given.items() if name not in changing}
    for name, value in fixed.items():
        if not callable(value):
            _numbers(name, value)

    def answer_identity(message: Message, context: Context) -> Message:
        identity = ConfigRecord(
            {
                keys.STABLE_ID: _identity(_value(stable_id, message, context)),
                keys.EVERY_ROUND: sorted(changing),
            }
        )
        values = _values(fixed, message, context)
        return Message(RecordDict({keys.IDENTITY: identity, keys.VALUES: values}), reply_to=message)

    def answer_columns(message: Message, context: Context) -> Message:
        values = _values(changing, message, context)
        return Message(RecordDict({keys.VALUES: values}), reply_to=message)

    def answer_loss(message: Message, context: Context) -> Message:
        value = _numbers("loss", loss(message, context) if loss is not None else None)
        return Message(RecordDict({keys.VALUES: MetricRecord({"loss": value})}), reply_to=message)

    with _past_mods(app):
        app.query(keys.DESCRIBE)(answer_identity)
        app.query(keys.COLUMNS)(answer_columns)
        if loss is not None:
            app.query(keys.LOSS)(answer_loss)


@contextmanager
def _past_mods(app: ClientApp) -> Iterator[None]:
    """Register handlers that the app's mods do not see.

    Mods are written for messages with a model and a configuration. Our questions have neither, so
    mods that clip, add noise or read the round would refuse them.
    """
    mods, app._mods = app._mods, []
    try:
        yield
    finally:
        app._mods = mods


def _values(given: Mapping[str, Given], message: Message, context: Context) -> MetricRecord:
    """Return columns as a record; only plain floats, for it refuses numpy's types."""
    return MetricRecord(
        {name: _numbers(name, _value(value, message, context)) for name, value in given.items()}
    )


def _value(given: Given, message: Message, context: Context) -> Any:
    return given(message, context) if callable(given) else given


def _numbers(name: str, value: Any) -> float | list[float]:
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers, got {value!r}.") from error
    if array.ndim > 1:
        raise InvalidInput(f"{name} must be a number or a list of them, got shape {array.shape}.")
    numbers: float | list[float] = array.tolist()
    return numbers


def _identity(value: Any) -> str | int:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InvalidInput(f"stable_id must be a text or an integer, got {value!r}.")
    return value
