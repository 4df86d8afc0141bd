"""The choices of federations whose rounds overlap."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v3"
down_revision = "v2"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "choice",
        sa.Column("federation_id", sa.Integer, sa.ForeignKey("federation.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(256)),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("chosen", sa.Text, nullable=False),
        sa.UniqueConstraint("federation_id", "key", name="one_choice_by_key"),
    )
