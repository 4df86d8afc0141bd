"""uvicorn's protocol for HTTP/1.1 with limits for connections and for requests still arriving.

uvicorn closes connections that are idle between two requests. It waits without end for the rest of
a request, so that a few hundred half-sent requests would occupy a server. It also lets one address
have all connections.
"""

from __future__ import annotations

import asyncio
from contextvars import Context

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnout.serve.auth import is_loopback

#: Connections at the same time; further requests get the status 503.
MOST_CONNECTIONS = 1000
#: Those of one other machine, so that it leaves room for others; further ones are closed.
_MOST_PER_ADDRESS = 500

#: Seconds in which a request has to arrive, and a new connection has to send one ...
ARRIVAL_S = 20.0
#: ... and bytes for which it gets a second more.
_BYTES_PER_S = 64 * 1024


class TimedProtocol(H11Protocol):
    """Closes the connection if a request does not arrive in time, headers and body together.

    Also if its address has too many of them.
    """

    _ends: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect()
        host = self.client[0] if self.client else ""
        others = (one.client for one in self.connections)
        n_same = sum(other is not None and other[0] == host for other in others)
        if n_same > _MOST_PER_ADDRESS and not is_loopback(host):
            transport.close()

    def handle_events(self) -> None:
        """Start the next request as nobody's: a proxy may send those of many on one connection."""
        Context().run(super().handle_events)

    def data_received(self, data: bytes) -> None:
        """Give a request more time for what has arrived, and no limit when it has arrived."""
        if self._timer is None:
            self._expect()
        self._ends += len(data) / _BYTES_PER_S
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the request."""
        self._stop()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._ends = self.loop.time() + ARRIVAL_S
        self._timer = self.loop.call_at(self._ends, self._check)

    def _check(self) -> None:
        if self.flow.read_paused:  # it is the server that is slow
            self._expect()
        elif self.loop.time() < self._ends:
            self._timer = self.loop.call_at(self._ends, self._check)
        else:
            self.transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
