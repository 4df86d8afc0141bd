"""Names on the wire: message types, records and keys of our own questions."""

from __future__ import annotations

from flwr.app import MessageType

#: Actions of the query handlers that ``describe`` registers.
DESCRIBE, COLUMNS, LOSS = "turnout_describe", "turnout_columns", "turnout_loss"

#: Records of their messages and replies.
IDENTITY, VALUES, ARRAYS, CONFIG = "identity", "columns", "arrays", "config"

#: Keys of the identity and of the queries' configurations.
STABLE_ID, EVERY_ROUND = "stable-id", "every-round"
SERVER_ROUND, TOOK_PART, POLL_DATA = "server-round", "took-part", "poll-data"


def query_type(action: str) -> str:
    """Return the message type of one of our queries."""
    return f"{MessageType.QUERY}.{action}"
