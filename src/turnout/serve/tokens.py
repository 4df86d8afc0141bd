"""Bearer tokens: who may do what, in one federation or in all. Only their digests are kept."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from turnout.errors import InvalidInput
from turnout.serve.tables import FEDERATION, TOKEN

#: What a token allows; each allows what stands before it, too.
SCOPES = ("read", "select", "admin")


class Grant(NamedTuple):
    """What somebody may do.

    Attributes:
        scope: One of ``SCOPES``.
        federation: The one federation, by name; None: all of them.
    """

    scope: str
    federation: str | None = None

    def allows(self, scope: str) -> bool:
        """Return whether that may be done, in the right federation."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def covers(self, federation: str | None) -> bool:
        """Return whether it is about that federation; None: about the server."""
        return self.federation is None or self.federation == federation


def make_token(connection: Connection, name: str, scope: str, federation: str | None) -> str:
    """Make a token and return it; it cannot be read again.

    Args:
        connection: A transaction that writes.
        name: What it is called when it is listed or revoked.
        scope: One of ``SCOPES``.
        federation: The one federation it is for; None: all of them.

    Raises:
        InvalidInput: There is no such scope or federation, or the name is taken.
    """
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
            f"a token called {name!r} exists: choose another.", field="name"
        ) from error
    return token


def revoke_token(connection: Connection, name: str, federation: str | None = None) -> bool:
    """Forget a token; return whether there was one.

    Args:
        connection: A transaction that writes.
        name: Its name.
        federation: Only if it is for this federation; None: whichever it is for.
    """
    query = delete(TOKEN).where(TOKEN.c.name == name)
    if federation is not None:
        number = select(FEDERATION.c.id).where(FEDERATION.c.name == federation).scalar_subquery()
        query = query.where(TOKEN.c.federation_id == number)
    return connection.execute(query).rowcount > 0


def list_tokens(connection: Connection) -> list[tuple[str, str, str | None]]:
    """Return name, scope and federation of each.

    Args:
        connection: To the database.
    """
    query = select(TOKEN.c.name, TOKEN.c.scope, FEDERATION.c.name).outerjoin(FEDERATION)
    return [tuple(row) for row in connection.execute(query.order_by(TOKEN.c.name))]


def has_tokens(connection: Connection) -> bool:
    """Return whether there is any.

    Args:
        connection: To the database.
    """
    return connection.execute(select(TOKEN.c.id).limit(1)).first() is not None


def grant_of(connection: Connection, token: str) -> Grant | None:
    """Return what a token allows; None if it is not one of ours.

    Args:
        connection: To the database.
        token: As it was sent.
    """
    query = select(TOKEN.c.scope, FEDERATION.c.name, TOKEN.c.federation_id).outerjoin(FEDERATION)
    row = connection.execute(query.where(TOKEN.c.digest == _digest(token))).one_or_none()
    if row is None or (row.federation_id is not None and row.name is None):
        return None
    return Grant(row.scope, row.name)


def _digest(token: str) -> str:
    # 256 random bits need no slow hash.
    return hashlib.sha256(token.encode()).hexdigest()
