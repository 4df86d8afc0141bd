"""``turnout serve``: client selection over HTTP, for federations in any language.

The API drives ``turnout.live``. The history of a federation is a log in a database, so that a
server may be killed at any moment, and several servers can share one database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnout.core.errors import MissingExtra

if TYPE_CHECKING:
    from turnout.serve.app import create_app
    from turnout.serve.database import DatabaseError, open_database

__all__ = ["DatabaseError", "create_app", "open_database"]

#: Where the names are, those of the command included. They are imported when they are first used:
#: ``turnout.serve.client`` needs less than the server does.
_HOMES = {
    **dict.fromkeys(("DatabaseError", "migrated", "open_database", "writing"), "database"),
    **dict.fromkeys(("create_app", "run"), "app"),
    **dict.fromkeys(("back_up", "restore"), "backup"),
    "write_folder": "folder",
    "Store": "store",
    "list_audit": "logs",
    **dict.fromkeys(("list_tokens", "make_token", "revoke_token"), "auth"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("turnout"):
            raise
        advice = f"the server needs {error.name}: pip install 'turnout[serve]'"
        raise MissingExtra(advice) from error
