"""A page that follows run folders while they are written. It reads files only, and locks nothing.

>>> from turnout.watch import serve
>>> serve("runs/site")  # doctest: +SKIP
"""

from turnout.watch.server import WatchServer, serve

__all__ = ["WatchServer", "serve"]
