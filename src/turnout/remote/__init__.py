"""A selector that lives on a server: ``turnout serve`` chooses, with the same cohorts as here."""

from __future__ import annotations

from turnout.remote.selector import Remote
from turnout.remote.wire import TOKEN_VARIABLE, RemoteError

__all__ = ["TOKEN_VARIABLE", "Remote", "RemoteError"]
