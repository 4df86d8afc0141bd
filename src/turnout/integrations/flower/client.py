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
from turnout.session.client_columns import ClientColumns, Given, numbers, told
from turnout.session.loss_report import LossReport

__all__ = ["LossReport", "describe"]  # apps import both from here

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
    columns_of = ClientColumns.of(num_examples, features, context, columns)
    if stable_id is None:
        raise InvalidInput("stable_id must be a text, a number or a function that gives one.")
    if loss is not None and not callable(loss):
        raise InvalidInput(f"loss must be a function (message, context) -> float, got {loss!r}.")

    def answer_identity(message: Message, context: Context) -> Message:
        identity = ConfigRecord(
            {
                keys.STABLE_ID: _identity(
                    stable_id(message, context) if callable(stable_id) else stable_id
                ),
                keys.EVERY_ROUND: sorted(columns_of.changing),
            }
        )
        values = MetricRecord({**told(columns_of.fixed, message, context)})
        return Message(RecordDict({keys.IDENTITY: identity, keys.VALUES: values}), reply_to=message)

    def answer_columns(message: Message, context: Context) -> Message:
        values = MetricRecord({**told(columns_of.changing, message, context)})
        return Message(RecordDict({keys.VALUES: values}), reply_to=message)

    def answer_loss(message: Message, context: Context) -> Message:
        value = numbers("loss", loss(message, context) if loss is not None else None)
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


def _identity(value: Any) -> str | int:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InvalidInput(f"stable_id must be a text or an integer, got {value!r}.")
    return value
