"""Names on the wire: message types, records and metric keys.

Metrics of a train reply stand in its one ``MetricRecord``, under the selector's name of the metric
written with hyphens: ``loss_rms`` is ``loss-rms``.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import MessageType

__all__ = [
    "COLUMNS",
    "CONFIG",
    "DESCRIBE",
    "DURATION",
    "LOSS",
    "NUM_EXAMPLES",
    "metric_key",
    "query_type",
]

#: Actions of the query handlers that ``describe`` registers.
DESCRIBE, COLUMNS, LOSS = "turnout_describe", "turnout_columns", "turnout_loss"

#: Records of their messages and replies.
IDENTITY, VALUES, ARRAYS, CONFIG = "identity", "columns", "arrays", "config"

#: Keys of the identity and of the queries' configurations.
STABLE_ID, EVERY_ROUND = "stable-id", "every-round"
SERVER_ROUND, TOOK_PART, POLL_DATA = "server-round", "took-part", "poll-data"

#: Keys of a train reply's ``MetricRecord`` beside the losses.
NUM_EXAMPLES, DURATION = "num-examples", "duration"


def query_type(action: str) -> str:
    """Return the message type of one of our queries."""
    return f"{MessageType.QUERY}.{action}"


def metric_key(name: str, renamed: Mapping[str, str]) -> str:
    """Return the key under which clients report a selector's metric."""
    return renamed.get(name, name.replace("_", "-"))
