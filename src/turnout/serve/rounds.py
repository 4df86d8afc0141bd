"""Rounds as requests see them: opened once, reported in any order and any number of times, closed.

Each function is one transaction. It checks everything first, so a request that is refused has
changed nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Row, insert, select, update

from turnout.serve.checks import check_outcomes, check_terms
from turnout.serve.events import RoundClosed, RoundOpened, RoundReported, unpacked
from turnout.serve.problems import Refusal, unknown_round
from turnout.serve.records import answer, find_round
from turnout.serve.schemas import ClientOutcome, NewRound, Outcomes, Terms
from turnout.serve.store import Store, Transaction
from turnout.serve.tables import EVENT, FEDERATION, ROUND
from turnout.types import Status

_NAMES = {status.value: status.name.lower() for status in Status}


def open_round(
    store: Store, name: str, wanted: NewRound, key: str | None
) -> tuple[bool, dict[str, Any]]:
    """Open the next round, or return the one that this request has opened already.

    Args:
        store: All federations.
        name: The federation.
        wanted: What is special about the round.
        key: The request's idempotency key.

    Returns:
        Whether the round is new, and the round.
    """
    with store.write(name) as work:
        machine = work.machine
        known = _known(work, wanted.round, key)
        if known is not None:
            return False, answer(known)
        if machine.chosen is not None and machine.is_over(work.at):
            _close(work)
        if machine.chosen is not None:
            return _as_open(work, wanted, key)
        _check_number(wanted.round, machine.session.round)
        terms = Terms(**{field: getattr(wanted, field) for field in Terms.model_fields})
        check_terms(machine, terms, work.at, go_on=wanted.go_on)
        work.add(RoundOpened(round=machine.session.round, terms=terms))
        return True, answer(_record(work, key))


def poll(store: Store, name: str, wanted: NewRound) -> dict[str, Any]:
    """Return whose losses the selector wants to see before it chooses; nothing changes.

    Args:
        store: All federations.
        name: The federation.
        wanted: As for the round itself.
    """
    with store.write(name) as work:  # whoever polls is about to open the round
        machine = work.machine
        if machine.chosen is not None and not machine.is_over(work.at):
            raise _is_open(machine.chosen.round)
        if machine.chosen is not None:
            _close(work)
        _check_number(wanted.round, machine.session.round)
        check_terms(machine, wanted, work.at, go_on=wanted.go_on, polls=True)
        clients = machine.polled(wanted, work.at)
        data = machine.session.reports.selector.poll_data
        return {"round": machine.session.round, "clients": clients, "data": data}


def report(store: Store, name: str, t: int, outcomes: Outcomes) -> dict[str, Any]:
    """Take in what became of chosen clients; what was reported before is compared.

    Args:
        store: All federations.
        name: The federation.
        t: The round.
        outcomes: What became of them.
    """
    with store.write(name) as work:
        row = find_round(work.connection, work.id, t)
        if row is None:
            raise unknown_round(t, work.machine.session.round)
        chosen = json.loads(row.chosen)["clients"]
        is_open = row.closed_at is None
        said = work.machine.said if is_open else _said(work, t)
        new = check_outcomes(work.machine, outcomes.outcomes, chosen, said)
        if new:
            only = Outcomes(outcomes=new, length_s=outcomes.length_s)
            work.add(RoundReported(round=t, report=only))
        if is_open and work.machine.is_over(work.at):
            _close(work)
            row = find_round(work.connection, work.id, t)
            assert row is not None
        n_missing = len(chosen) - len(said.keys() | {outcome.client for outcome in new})
        return {
            "round": t,
            "new": len(new),
            "repeated": len(outcomes.outcomes) - len(new),
            "counted": len(new) if is_open else 0,
            "missing": n_missing,
            "state": "open" if row.closed_at is None else "closed",
        }


def close_round(store: Store, name: str, t: int) -> dict[str, Any]:
    """Close a round; who was not reported is late. A closed one is returned as it is.

    Args:
        store: All federations.
        name: The federation.
        t: The round.
    """
    with store.write(name) as work:
        row = find_round(work.connection, work.id, t)
        if row is None:
            raise unknown_round(t, work.machine.session.round)
        if row.closed_at is None:
            _close(work)
            row = find_round(work.connection, work.id, t)
            assert row is not None
        return answer(row)


def close_overdue(store: Store, at: float) -> int:
    """Close rounds whose time is over, in all federations; return how many.

    Args:
        store: All federations.
        at: The time, in seconds since 1970.
    """
    with store.engine.begin() as connection:
        query = select(FEDERATION.c.name).join(ROUND, ROUND.c.federation_id == FEDERATION.c.id)
        overdue = connection.execute(
            query.where(ROUND.c.closed_at.is_(None), ROUND.c.closes_at <= at)
        ).scalars()
        names = list(overdue)
    n_closed = 0
    for name in names:
        with store.write(name) as work:
            if work.machine.chosen is not None and work.machine.is_over(work.at):
                _close(work)
                n_closed += 1
    return n_closed


def _known(work: Transaction, number: int | None, key: str | None) -> Row[Any] | None:
    """Return the round that was asked for before, by its key or its number."""
    if key is not None:
        query = select(ROUND).where(ROUND.c.federation_id == work.id, ROUND.c.key == key)
        row = work.connection.execute(query).one_or_none()
        if row is not None and number not in (None, row.number):
            raise Refusal(
                409,
                "key-reused",
                f"the key {key!r} has opened round {row.number}, not {number}.",
                field="Idempotency-Key",
                fix="Send another key with every new round.",
            )
        if row is not None:
            return row
    return None if number is None else find_round(work.connection, work.id, number)


def _as_open(work: Transaction, wanted: NewRound, key: str | None) -> tuple[bool, dict[str, Any]]:
    """Return the open round to who asks for no other."""
    assert work.machine.chosen is not None
    t = work.machine.chosen.round
    if key is not None or wanted.round is not None:  # a new one is meant
        raise _is_open(t)
    row = find_round(work.connection, work.id, t)
    assert row is not None
    return False, answer(row)


def _is_open(t: int) -> Refusal:
    return Refusal(
        409,
        "round-open",
        f"round {t} is open.",
        field="round",
        fix=f"Report the outcomes of round {t}, or close it with POST .../rounds/{t}/close.",
    )


def _check_number(wanted: int | None, next_round: int) -> None:
    if wanted is not None and wanted != next_round:
        raise Refusal(
            409,
            "wrong-round",
            f"round must be {next_round}, which comes next, got {wanted}.",
            field="round",
            fix=f"Ask for round {next_round}, or leave the number out.",
        )


def _record(work: Transaction, key: str | None) -> Row[Any]:
    """Write down the round that was opened, and return it."""
    chosen = work.machine.chosen
    assert chosen is not None
    chance = None if chosen.probability is None else chosen.probability.tolist()
    has_end = math.isfinite(chosen.deadline)
    body: dict[str, Any] = {
        "clients": list(chosen.ids),
        "probability": chance,
        "times": list(chosen.times),
        "deadline_s": chosen.deadline if has_end else None,
        "n_free": int(chosen.n_free),
    }
    closes_at = work.at + chosen.deadline if has_end and work.machine.told is None else None
    values = {"key": key, "opened_at": work.at, "closes_at": closes_at, "chosen": json.dumps(body)}
    work.connection.execute(
        insert(ROUND).values(federation_id=work.id, number=chosen.round, **values)
    )
    row = find_round(work.connection, work.id, chosen.round)
    assert row is not None
    return row


def _close(work: Transaction) -> None:
    machine = work.machine
    assert machine.chosen is not None
    work.add(RoundClosed(round=machine.chosen.round))
    ended = machine.ended
    assert ended is not None
    status = [_NAMES[int(value)] for value in ended.closed.status]
    result = {
        "status": status,
        "seconds": _plain(ended.closed.duration),
        "reasons": {str(ended.ids[i]): reason for i, reason in sorted(ended.reasons.items())},
        "length_s": float(ended.closed.length_s),
        "void": bool(ended.is_void),
        "counts": {name: status.count(name) for name in _NAMES.values()},
        "alerts": [alert.text for alert in ended.alerts],
    }
    work.connection.execute(
        update(ROUND)
        .where(ROUND.c.federation_id == work.id, ROUND.c.number == ended.round)
        .values(closed_at=work.at, result=json.dumps(result))
    )


def _plain(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _said(work: Transaction, t: int) -> dict[Hashable, ClientOutcome]:
    """Return everything that was reported of a round, from the log."""
    rows = work.connection.execute(
        select(EVENT.c.seq, EVENT.c.at, EVENT.c.kind, EVENT.c.body).where(
            EVENT.c.federation_id == work.id, EVENT.c.round == t, EVENT.c.kind == "reported"
        )
    )
    contents = [unpacked(*row).content for row in rows]
    return {
        outcome.client: outcome
        for content in contents
        if isinstance(content, RoundReported)
        for outcome in content.report.outcomes
    }
