"""The audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v2"
down_revision = "v1"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("federation", sa.String(64)),
        sa.Column("version", sa.Integer),
        sa.Column("round", sa.Integer),
        sa.Column("subject", sa.String(256)),
        sa.Column("request_id", sa.String(64)),
        sa.Column("address", sa.String(64)),
    )
    op.create_index("audit_of_round", "audit", ["federation", "round"])
