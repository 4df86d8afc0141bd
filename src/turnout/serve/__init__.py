"""``turnout serve``: selection over HTTP, for federations in any language.

The API is in front of ``turnout.session``. What happens to a federation is a log in a database, so
that a server may be killed at any moment and several may share one database.
"""

from __future__ import annotations

from turnout.errors import MissingExtra

try:
    from turnout.serve.app import create_app
    from turnout.serve.database import DatabaseError, open_database
except ModuleNotFoundError as error:
    if (error.name or "").startswith("turnout"):
        raise
    raise MissingExtra(f"the server needs {error.name}: pip install 'turnout[serve]'") from error

__all__ = ["DatabaseError", "create_app", "open_database"]
