"""The client's side in Flower: its identity, its columns before a round, its report after it.

Two lines in an existing ``ClientApp``::

    from turnout.live.flower.client import describe

    describe(app, stable_id=lambda message, context: context.node_config["partition-id"])

Every value is plain, or a function of ``(message, context)`` like any handler of the app. The names
of message types, records and keys are here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from turnout.core.errors import InvalidInput
from turnout.live.client import (
    Given,
    LossReport,
    column_values,
    numbers,
    split_columns,
    update_report,
)

__all__ = ["LossReport", "describe", "update_report"]  # apps import them from here

#: Actions of the query handlers that ``describe`` registers.
DESCRIBE, COLUMNS, LOSS = "turnout_describe", "turnout_columns", "turnout_loss"

#: Records of their messages and replies.
IDENTITY, VALUES, ARRAYS, CONFIG = "identity", "columns", "arrays", "config"

#: Keys of the identity and of the queries' configurations.
STABLE_ID, EVERY_ROUND = "stable-id", "every-round"
SERVER_ROUND, TOOK_PART, POLL_DATA = "server-round", "took-part", "poll-data"

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
    """Let the server ask this client for its identity and for what selectors need to know.

    A value is plain, or a function of ``(message, context)``. A function for ``context`` or in
    ``columns`` is called before every round if the selector needs it; everything else is asked for
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
    fixed, changing = split_columns(num_examples, features, context, columns)
    if stable_id is None:
        raise InvalidInput("stable_id must be a text, a number or a function that gives one.")
    if loss is not None and not callable(loss):
        raise InvalidInput(f"loss must be a function (message, context) -> float, got {loss!r}.")

    def answer_identity(message: Message, context: Context) -> Message:
        name = _identity(stable_id(message, context) if callable(stable_id) else stable_id)
        identity = ConfigRecord({STABLE_ID: name, EVERY_ROUND: sorted(changing)})
        values = MetricRecord({**column_values(fixed, message, context)})
        return Message(RecordDict({IDENTITY: identity, VALUES: values}), reply_to=message)

    def answer_columns(message: Message, context: Context) -> Message:
        values = MetricRecord({**column_values(changing, message, context)})
        return Message(RecordDict({VALUES: values}), reply_to=message)

    def answer_loss(message: Message, context: Context) -> Message:
        value = numbers("loss", loss(message, context) if loss is not None else None)
        return Message(RecordDict({VALUES: MetricRecord({"loss": value})}), reply_to=message)

    # The app's mods do not see these handlers. Mods are written for messages with a model and a
    # configuration: mods that clip, add noise or read the round would reject our questions.
    mods, app._mods = app._mods, []
    try:
        app.query(DESCRIBE)(answer_identity)
        app.query(COLUMNS)(answer_columns)
        if loss is not None:
            app.query(LOSS)(answer_loss)
    finally:
        app._mods = mods


def query_type(action: str) -> str:
    """Return the message type of one of our queries."""
    return f"{MessageType.QUERY}.{action}"


def _identity(value: Any) -> str | int:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InvalidInput(f"stable_id must be a text or an integer, got {value!r}.")
    return value
