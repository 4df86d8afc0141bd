"""Run by Alembic: plays the steps over the connection that ``turnout.serve.database`` gives it."""

from __future__ import annotations

from alembic import context

from turnout.serve.database import METADATA

try:
    connection = context.config.attributes["connection"]
except (AttributeError, NameError):  # this module was imported, and not by Alembic
    connection = None

if connection is not None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        transactional_ddl=False,  # the caller's transaction is around everything
    )
    context.run_migrations()
