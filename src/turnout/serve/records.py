"""Rounds on record: who was chosen, how it ended; for requests that only look."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from sqlalchemy import Connection, Row, select

from turnout.serve.machine import Machine
from turnout.serve.problems import unknown_round
from turnout.serve.store import Store
from turnout.serve.tables import ROUND


def get_round(store: Store, name: str, t: int) -> dict[str, Any]:
    """Return a round.

    Args:
        store: All federations.
        name: The federation.
        t: The round.
    """
    with store.read(name) as (connection, federation, machine):
        row = find_round(connection, federation, t)
        if row is None:
            raise unknown_round(t, machine.session.round)
        return answer(row) | {"reported": _reported(machine, row)}


def list_rounds(store: Store, name: str, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Return the latest rounds, the newest first.

    Args:
        store: All federations.
        name: The federation.
        before: Only rounds before this one; None: up to the newest.
        limit: How many at most.
    """
    with store.read(name) as (connection, federation, _):
        query = select(ROUND).where(ROUND.c.federation_id == federation)
        if before is not None:
            query = query.where(ROUND.c.number < before)
        rows = connection.execute(query.order_by(ROUND.c.number.desc()).limit(limit))
        return [answer(row) for row in rows]


def answer(row: Row[Any]) -> dict[str, Any]:
    """Return a round as requests see it.

    Args:
        row: The round in the database.
    """
    ended = {"state": "open"} if row.result is None else {"state": "closed"}
    times = {"opened_at": row.opened_at, "closes_at": row.closes_at, "closed_at": row.closed_at}
    result = {} if row.result is None else {"result": json.loads(row.result)}
    return {"round": row.number, **ended, **times, **json.loads(row.chosen), **result}


def find_round(connection: Connection, federation: int, t: int) -> Row[Any] | None:
    """Return a round as it is in the database; None if it was never opened.

    Args:
        connection: To the database.
        federation: Its number there.
        t: The round.
    """
    query = select(ROUND).where(ROUND.c.federation_id == federation, ROUND.c.number == t)
    return connection.execute(query).one_or_none()


def _reported(machine: Machine, row: Row[Any]) -> list[Hashable]:
    is_open = machine.chosen is not None and machine.chosen.round == row.number
    return list(machine.said) if is_open else []
