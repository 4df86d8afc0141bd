"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v1"
down_revision = None


def _of_federation() -> sa.Column[int]:
    return sa.Column("federation_id", sa.Integer, sa.ForeignKey("federation.id"), primary_key=True)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "federation",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "event",
        _of_federation(),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("round", sa.Integer),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_index("event_of_round", "event", ["federation_id", "round"])
    op.create_table(
        "round",
        _of_federation(),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(256)),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("closes_at", sa.Double),
        sa.Column("closed_at", sa.Double),
        sa.Column("chosen", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.UniqueConstraint("federation_id", "key", name="one_round_by_key"),
    )
    op.create_table(
        "snapshot",
        _of_federation(),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "token",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("federation_id", sa.Integer, sa.ForeignKey("federation.id")),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
