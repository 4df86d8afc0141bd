"""Run by Alembic: plays the steps over the connection that ``turnout.serve.database`` gives it."""

from __future__ import annotations

from alembic import context

from turnout.serve.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=False,  # the caller's transaction is around everything
)
context.run_migrations()
