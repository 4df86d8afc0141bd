"""Who may send a request: tokens, loopback without them, no foreign pages, no endless bodies."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.serve.database import reading
from turnout.serve.problems import MEDIA_TYPE, Refusal
from turnout.serve.store import Store
from turnout.serve.tokens import Grant, grant_of, has_tokens

#: Bytes that the body of a request may have.
MAX_BODY = 64 * 2**20
#: Headers that proxies add.
_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own, which no other machine reaches.

    Args:
        host: An address or a name, without a port.
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def needs(scope: str) -> Callable[[Request], Grant]:
    """Return a dependency that lets only those through who may do something.

    Args:
        scope: One of ``turnout.serve.tokens.SCOPES``.
    """

    def check(request: Request) -> Grant:
        grant = _grant(request)
        federation = request.path_params.get("name")
        if not grant.allows(scope) or (federation is not None and not grant.covers(federation)):
            raise _forbidden(scope, federation)
        return grant

    return check


def needs_server(scope: str) -> Callable[[Request], Grant]:
    """Return a dependency that lets only those through whose token is for all federations.

    Args:
        scope: One of ``turnout.serve.tokens.SCOPES``.
    """

    def check(request: Request) -> Grant:
        grant = _grant(request)
        if not grant.allows(scope) or not grant.covers(None):
            raise _forbidden(scope, None)
        return grant

    return check


def _grant(request: Request) -> Grant:
    _check_origin(request)
    store: Store = request.app.state.store
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    with reading(store.engine) as connection:
        grant = grant_of(connection, token.strip()) if kind.lower() == "bearer" else None
        if grant is not None:
            return grant
        if not has_tokens(connection) and _is_local(request):
            return Grant("admin")
    raise Refusal(
        401,
        "no-token" if not token else "unknown-token",
        "this request needs a token." if not token else "this token is not known here.",
        field="Authorization",
        fix="Send 'Authorization: Bearer TOKEN'; 'turnout serve token' makes one.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine, and was meant for it.

    A page of another site could have its name point to this machine, so the name counts as well.
    What a proxy passes on may come from anywhere.
    """
    client = request.client
    if client is None or any(name in request.headers for name in _OF_PROXIES):
        return False
    return is_loopback(client.host) and is_loopback(request.url.hostname or "")


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Refusal(
            403,
            "foreign-origin",
            "this request comes from a page of another site.",
            field="Origin",
            fix="Send it from a program, or from this server's own page.",
        )


def _forbidden(scope: str, federation: str | None) -> Refusal:
    where = "all federations" if federation is None else f"the federation {federation!r}"
    return Refusal(
        403,
        "wrong-scope",
        f"this needs the scope {scope!r} for {where}, which the token does not have.",
        field="Authorization",
        fix=f"Use a token with the scope {scope!r}.",
    )


class LimitBody:
    """Refuses bodies that are too large, as soon as that is known.

    Args:
        app: What is behind it.
        most: Bytes that a body may have.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count what it sends."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self.most:
            problem = self._problem()
            answer = JSONResponse(problem.document(), problem.status, media_type=MEDIA_TYPE)
            await answer(scope, receive, send)
            return
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message: dict[str, Any] = dict(await receive())
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.most:
                raise HTTPException(413)  # the framework lets this one through
            return message

        await self.app(scope, counted, send)

    def _problem(self) -> Refusal:
        return too_large(self.most)


def too_large(most: int) -> Refusal:
    """Return that a body is too large.

    Args:
        most: Bytes that it may have.
    """
    return Refusal(
        413,
        "too-large",
        f"the body is larger than {most} bytes.",
        field="body",
        fix="Send it in parts (PUT .../clients adds to what is there), or start the server with a "
        "larger --max-body.",
    )
