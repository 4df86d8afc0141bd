"""Requests to a server, repeated until there is an answer; every one of them is safe to repeat."""

from __future__ import annotations

import os
import time
import weakref
from typing import Any

from turnout.errors import InvalidInput, TurnoutError
from turnout.names import import_extra

#: The variable with the token, if none is given.
TOKEN_VARIABLE = "TURNOUT_TOKEN"

#: Seconds between two tries while the server does not answer.
_PAUSE_S = 0.2
#: Statuses of a server, or of a proxy in front of it, that is about to come back.
_AWAY = (502, 503, 504)


class RemoteError(TurnoutError, RuntimeError):
    """The server refused a request, or does not answer.

    Args:
        message: What is wrong, and the fix, in the server's words.
        status: The HTTP status; 0 if there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Wire:
    """The way to a server.

    Args:
        url: Where it is.
        token: What it is shown; None: what ``TURNOUT_TOKEN`` holds, if anything.
        patience_s: Seconds that a server which does not answer is waited for.
    """

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        advice = "turnout.Remote needs httpx: pip install 'turnout[remote]'"
        self._library = import_extra("httpx", advice)
        self._url, self._patience_s = url, patience_s
        token = token or os.environ.get(TOKEN_VARIABLE)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = self._library.Client(base_url=url, headers=headers, timeout=patience_s)
        weakref.finalize(self, self.client.close)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the content of the answer.

        Args:
            method: Of HTTP.
            path: Behind the server's URL.
            body: What to send, as plain data.

        Raises:
            RemoteError: The server refuses, or does not answer in time.
        """
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                answer = self.client.request(method, path, json=body)
                if answer.status_code not in _AWAY:
                    break
                problem = f"{answer.status_code}: {_message(answer)}"
            except self._library.TransportError as error:
                problem = str(error)
            except self._library.InvalidURL as error:
                raise InvalidInput(f"url is no URL: {error}.", field="url") from error
            if time.monotonic() >= ends:
                raise RemoteError(
                    f"{self._url} does not answer ({problem.rstrip('.?')}): is the server running?"
                )
            time.sleep(_PAUSE_S)
        if answer.is_success:
            return answer.json() if answer.content else None
        raise RemoteError(_message(answer), answer.status_code)


def _message(answer: Any) -> str:
    """Return what a server says is wrong; something in between may have answered instead."""
    try:
        problem = answer.json()
        return f"{problem['detail']} {problem['fix']}"
    except (ValueError, LookupError, TypeError):
        return f"{answer.url} answered {answer.status_code}: is it a turnout server?"
