"""A selector that lives on a server: ``turnout serve`` chooses, with the same cohorts as here.

``follow`` tells trackers of a server's rounds.
"""

from __future__ import annotations

from turnout.remote.following import follow
from turnout.remote.selector import Remote
from turnout.remote.wire import TOKEN_VARIABLE, RemoteError

__all__ = ["TOKEN_VARIABLE", "Remote", "RemoteError", "follow"]
