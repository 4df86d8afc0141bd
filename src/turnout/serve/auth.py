"""Access control: bearer tokens with scopes, requests without a token, and limits of requests.

Every request needs a token. With ``--no-auth``, programs on the same machine need none, as long as
there never was a token: a revoked token leaves a row behind. The database stores only digests.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.routing import APIRoute
from pydantic_core import to_json
from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    bindparam,
    cast,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from turnout.core.errors import InvalidInput
from turnout.serve.database import FEDERATION, TOKEN, VERSION, check_version, lock_starts
from turnout.serve.logs import CALLER, note
from turnout.serve.problems import HttpProblem
from turnout.serve.schemas import NAME

#: What a token allows; each scope includes those before it.
SCOPES = ("read", "select", "admin")
#: Characters that a token must have which a person or a program has chosen.
_MIN_TOKEN = 32
_NAMES = "a name has up to 64 of a-z, 0-9, '_', '.' and '-', and begins with a letter or digit"
#: The scope of a token that was revoked.
_REVOKED = "revoked"
#: Bytes that the body of a request may have ...
MAX_BODY = 64 * 2**20
#: ... and those of requests that name no clients, by path.
_MAX_BODIES = {"/federations": 2**16, "/federations/{name}/tokens": 2**16}
#: Wrong tokens that an address may send within this many seconds ...
_MAX_WRONG, _WRONG_S = 20, 60
#: ... and addresses that are remembered for it.
_MAX_ADDRESSES = 10_000
_JSON = "application/json"
#: Headers that proxies add.
_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Grant(NamedTuple):
    """What a caller may do.

    Attributes:
        scope: One of ``SCOPES``.
        federation: The name of the only federation it applies to; None: all federations.
    """

    scope: str
    federation: str | None = None

    def covers(self, federation: str | None) -> bool:
        """Return whether it applies to a federation; None: to the whole server."""
        return self.federation is None or self.federation == federation


def make_token(connection: Connection, name: str, scope: str, federation: str | None) -> str:
    """Make a token and return it; it cannot be read again.

    Args:
        connection: A writing transaction.
        name: The name under which it is listed and revoked.
        scope: One of ``SCOPES``.
        federation: The only federation it applies to; None: all federations.

    Raises:
        InvalidInput: There is no such scope or federation, or the name is taken or not possible.
    """
    if not re.fullmatch(NAME, name):
        raise InvalidInput(f"name must not be {name[:80]!r}: {_NAMES}.", field="name")
    if scope not in SCOPES:
        raise InvalidInput(
            f"scope must be one of {', '.join(SCOPES)}, got {scope!r}.", field="scope"
        )
    number = None
    if federation is not None:
        query = select(FEDERATION.c.id).where(FEDERATION.c.name == federation)
        number = connection.execute(query).scalar()
        if number is None:
            raise InvalidInput(f"there is no federation {federation!r}.", field="federation")
    token = f"turnout_{secrets.token_urlsafe(32)}"
    values = {"federation_id": number, "name": name, "digest": _digest(token), "scope": scope}
    try:
        connection.execute(insert(TOKEN).values(created_at=time.time(), **values))
    except IntegrityError as error:
        raise InvalidInput(
            f"a token called {name!r} exists: choose another name.", field="name"
        ) from error
    note(connection, "made-token", federation, subject=f"{name} ({scope})")
    return token


def declare_tokens(connection: Connection, path: Path) -> None:
    """Make the tokens of a file, for servers that are set up by programs.

    Each line has a name, a scope and a token of at least 32 characters. A token of the same name is
    replaced. A token that is no longer in the file stays valid until it is revoked. Every line is
    checked before anything is changed.

    Args:
        connection: A writing transaction.
        path: The file.

    Raises:
        InvalidInput: The file cannot be read, or a line is wrong; no message has a token.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InvalidInput(f"{path} cannot be read: {reason}.", field="token_file") from error
    declared = _declared(path, lines)
    lock_starts(connection)
    for i, name, scope, digest in declared:
        query = select(TOKEN.c.digest, TOKEN.c.scope).where(TOKEN.c.name == name)
        there = connection.execute(query).one_or_none()
        if there == (digest, scope):
            continue
        is_it = (TOKEN.c.digest == digest) | (TOKEN.c.name == digest)
        if connection.execute(select(TOKEN.c.id).where(is_it, TOKEN.c.name != name)).first():
            raise InvalidInput(
                f"{path}, line {i}: the token of {name!r} was revoked, or has another name: write "
                "a new one there.",
                field="token_file",
            )
        if there is not None:
            revoke_token(connection, name)
        values = {"name": name, "scope": scope, "digest": digest, "created_at": time.time()}
        connection.execute(insert(TOKEN).values(values))
        note(connection, "made-token", subject=f"{name} ({scope})")


def _declared(path: Path, lines: Sequence[str]) -> list[tuple[int, str, str, str]]:
    """Return the number, name, scope and digest of every line of a file that has a token."""
    found: list[tuple[int, str, str, str]] = []
    line_of: dict[str, int] = {}
    for i, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[1] not in SCOPES or len(words[2]) < _MIN_TOKEN:
            problem = (
                f"must have a name, one of {', '.join(SCOPES)}, and a token of at least "
                f"{_MIN_TOKEN} characters."
            )
        elif not re.fullmatch(NAME, words[0]):  # what stands there may be the token
            problem = f"{_NAMES}: rename it."
        elif words[0] in line_of:
            problem = (
                f"the name {words[0]!r} is taken by line {line_of[words[0]]}: give every token its "
                "own name, or delete one of the lines."
            )
        else:
            line_of[words[0]] = i
            found.append((i, words[0], words[1], _digest(words[2])))
            continue
        raise InvalidInput(f"{path}, line {i}: {problem}", field="token_file")
    return found


def revoke_token(connection: Connection, name: str, federation: str | None = None) -> bool:
    """Revoke a token; return whether it existed.

    Args:
        connection: A writing transaction.
        name: The name of the token.
        federation: Revoke it only if it is for this federation; None: in any case.
    """
    is_it = TOKEN.c.name == name
    if federation is not None:
        number = select(FEDERATION.c.id).where(FEDERATION.c.name == federation).scalar_subquery()
        is_it &= TOKEN.c.federation_id == number
    if not revoke_tokens(connection, is_it):
        return False
    note(connection, "revoked-token", federation, subject=name)
    return True


def revoke_tokens(connection: Connection, which: ColumnElement[bool]) -> int:
    """Revoke tokens, and return how many there were.

    Their rows stay, so that the server does not open itself when the last token is gone. Their
    names can be used again.

    Args:
        connection: A writing transaction.
        which: A condition on the table of tokens.
    """
    query = update(TOKEN).where(which, TOKEN.c.scope != _REVOKED)
    # No token has such a digest, and no person chooses a digest as a name.
    nobody = literal("revoked ").concat(cast(TOKEN.c.id, String))
    values = {"scope": _REVOKED, "name": TOKEN.c.digest, "digest": nobody, "federation_id": None}
    return connection.execute(query.values(values)).rowcount


def list_tokens(connection: Connection) -> list[tuple[str, str, str | None]]:
    """Return the name, scope and federation of every token."""
    query = select(TOKEN.c.name, TOKEN.c.scope, FEDERATION.c.name).outerjoin(FEDERATION)
    query = query.where(TOKEN.c.scope != _REVOKED)
    return [tuple(row) for row in connection.execute(query.order_by(TOKEN.c.name))]


def has_tokens(connection: Connection) -> bool:
    """Return whether there is, or ever was, a token."""
    return connection.execute(select(TOKEN.c.id).limit(1)).first() is not None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, under an address that other machines cannot reach.

    Args:
        host: An address or a name, without a port.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # on ::, IPv4 is so
    except ValueError:
        return host == "localhost"


def needs(scope: str, *, everywhere: bool = False) -> Callable[[Request], Awaitable[Grant]]:
    """Return a dependency of routes that rejects callers without a scope.

    Args:
        scope: One of ``SCOPES``.
        everywhere: Whether the scope must apply to all federations, not only to that of the path.
    """

    async def check(request: Request) -> Grant:
        # A route with a body is checked twice, before the body is read and by FastAPI.
        if not hasattr(request.state, "grant"):
            request.state.grant = await run_in_threadpool(_grant, request)
        grant: Grant = request.state.grant
        name = request.path_params.get("name")
        is_covered = grant.covers(name) or (name is None and not everywhere)
        if SCOPES.index(grant.scope) >= SCOPES.index(scope) and is_covered:
            return grant
        where = "all federations" if name is None else f"the federation {name!r}"
        raise HttpProblem(
            "wrong-scope",
            f"the request needs the scope {scope!r} for {where}, which the token does not have.",
            fix=f"Use a token with the scope {scope!r}.",
        )

    return check


#: Dependencies of routes that need a scope for the federation in their path.
READ, SELECT, ADMIN = ([Depends(needs(scope))] for scope in SCOPES)


_KNOWN = (
    select(TOKEN.c.name.label("token"), TOKEN.c.scope, TOKEN.c.federation_id, FEDERATION.c.name)
    .add_columns(VERSION)
    .outerjoin(FEDERATION)
    .where(TOKEN.c.digest == bindparam("sent"))
)


def _grant(request: Request) -> Grant:
    """Return what the caller may do."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HttpProblem("foreign-origin", "the request comes from a page of another site.")
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    address, digest = request.client.host if request.client else "", _digest(token.strip())
    wrong_tokens: WrongTokens = request.app.state.wrong_tokens
    if token:
        wrong_tokens.check(address, digest)
    with request.app.state.store.engine.begin() as connection:
        is_sent = kind.lower() == "bearer"
        row = connection.execute(_KNOWN, {"sent": digest}).one_or_none() if is_sent else None
        check_version(connection, row)
        if row is not None and (row.federation_id is None or row.name is not None):
            wrong_tokens.note(address, digest, is_right=True)
            CALLER.get().actor = row.token
            return Grant(row.scope, row.name)
        if request.app.state.no_auth and not has_tokens(connection) and _is_local(request):
            return Grant("admin")
    if token:
        wrong_tokens.note(address, digest, is_right=False)
    problem = "the token is not known here." if token else "the request needs a token."
    headers = {"WWW-Authenticate": "Bearer"}
    raise HttpProblem("unknown-token" if token else "no-token", problem, headers=headers)


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine and is addressed to it.

    The name of the host counts too, because a page of another site could let its name point to
    this machine. A request that a proxy forwards may come from anywhere.
    """
    client = request.client
    if client is None or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    return is_loopback(client.host) and is_loopback(request.url.hostname or "")


def _digest(token: str) -> str:
    # 256 random bits need no slow hash.
    return hashlib.sha256(token.encode()).hexdigest()


class WrongTokens:
    """Counts wrong tokens by address; after too many, an address has to wait.

    Tokens that were right before are not affected: their callers may share the address.
    """

    def __init__(self) -> None:
        self._right: set[str] = set()  # digests
        self._wrong: dict[str, list[float]] = {}  # when each address sent them, the oldest first
        self._lock = Lock()

    def check(self, address: str, digest: str) -> None:
        """Reject a token that was never right, if its address has sent too many wrong ones."""
        latest = self._wrong.get(address, [])[-_MAX_WRONG:]
        left = _WRONG_S - (time.monotonic() - latest[0]) if len(latest) == _MAX_WRONG else 0.0
        if left > 0.0 and digest not in self._right:
            detail = f"{_MAX_WRONG} wrong tokens came from {address} within {_WRONG_S} seconds."
            raise HttpProblem(
                "too-many-tokens", detail, headers={"Retry-After": f"{math.ceil(left)}"}
            )

    def note(self, address: str, digest: str, *, is_right: bool) -> None:
        """Remember whether a token was right."""
        with self._lock:
            if is_right:
                self._right.add(digest)
                return
            times = self._wrong.pop(address, [])[1 - _MAX_WRONG :]
            if len(self._wrong) >= _MAX_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]  # the one that was longest quiet
            self._wrong[address] = [*times, time.monotonic()]


class GuardedRoute(APIRoute):
    """A route that checks the token before it reads the body, and limits the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        checks = [depends.dependency for depends in self.dependencies if depends.dependency]
        parts = self.dependant.dependencies
        self.dependant.dependencies = [part for part in parts if part.call not in checks]
        self.dependant.call = self._answered()
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            for check in checks:
                await check(request)
            most = min(_MAX_BODIES.get(self.path, math.inf), request.app.state.max_body)
            announced = request.headers.get("content-length", "0")
            too_large = HttpProblem("too-large", f"the body is larger than {most} bytes.")
            if announced.isdigit() and int(announced) > most:
                raise too_large
            n_bytes = 0

            async def counted() -> Message:
                nonlocal n_bytes
                message = await request.receive()
                n_bytes += len(message.get("body", b""))
                if n_bytes > most:
                    raise too_large
                return message

            return await handle(Request(request.scope, counted))

        return guarded

    def _answered(self) -> Callable[..., Response]:
        """Return the endpoint with its response, which FastAPI would make in a second thread."""
        endpoint, usual_status = self.endpoint, self.status_code or 200

        @wraps(endpoint)
        def answered(**arguments: Any) -> Response:
            content = endpoint(**arguments)
            if isinstance(content, Response):
                return content
            status = getattr(arguments.get("response"), "status_code", None) or usual_status
            if status == 204:
                return Response(status_code=status)
            return Response(to_json(content, inf_nan_mode="null"), status, media_type=_JSON)

        return answered
