"""The tables of the database, as they are now; ``migrations`` has how they came to be.

What happened to a federation is a log of events, and its state is what they add up to. A snapshot
is that state after one of them, so that the earlier ones need not be played again.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()


def _of_federation() -> Column[int]:
    return Column("federation_id", Integer, ForeignKey("federation.id"), primary_key=True)


FEDERATION = Table(
    "federation",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("definition", Text, nullable=False),  # JSON, see ``schemas.Definition``
    Column("seq", Integer, nullable=False),  # of its last event; its row is what writers lock
    Column("created_at", Double, nullable=False),
)

EVENT = Table(
    "event",
    METADATA,
    _of_federation(),
    Column("seq", Integer, primary_key=True),
    Column("at", Double, nullable=False),  # seconds since 1970
    Column("kind", String(16), nullable=False),
    Column("round", Integer),
    Column("body", LargeBinary, nullable=False),  # compressed JSON, see ``events``
    Index("event_of_round", "federation_id", "round"),
)

ROUND = Table(
    "round",
    METADATA,
    _of_federation(),
    Column("number", Integer, primary_key=True),
    Column("key", String(256)),  # of the request that opened it
    Column("opened_at", Double, nullable=False),
    Column("closes_at", Double),  # at the latest; none: when everyone was heard
    Column("closed_at", Double),
    Column("chosen", Text, nullable=False),  # JSON, as it was answered
    Column("result", Text),
    UniqueConstraint("federation_id", "key", name="one_round_by_key"),
)

SNAPSHOT = Table(
    "snapshot",
    METADATA,
    _of_federation(),
    Column("seq", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),  # a checkpoint of the session
)

TOKEN = Table(
    "token",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("federation_id", Integer, ForeignKey("federation.id")),  # none: all federations
    Column("name", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256; the token is not kept
    Column("scope", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
)
