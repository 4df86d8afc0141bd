"""Rounds over HTTP: opened once, reported in any order and any number of times, closed once.

Each route is one transaction. It checks everything first, so a request that is rejected has changed
nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import math
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Header, Path, Query, Request, Response
from sqlalchemy import Row, Select, Table, bindparam, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from turnout.core.arrays import LARGEST_REPORT, NON_NEGATIVE_METRICS
from turnout.core.errors import TurnoutError
from turnout.core.types import Status
from turnout.live import ClosedRound, Cohort, TooFewAnswers
from turnout.live.receipts import Receipts
from turnout.live.reports import described, spelling
from turnout.live.reports import number as amount
from turnout.serve.auth import READ, SELECT, GuardedRoute
from turnout.serve.database import AUDIT, CHOICE, EVENT, FEDERATION, ROUND
from turnout.serve.federation import (
    LiveFederation,
    RoundClosed,
    RoundOpened,
    RoundReported,
    TimePassed,
    content_of,
)
from turnout.serve.problems import (
    ERRORS,
    RETRY,
    HttpProblem,
    Responses,
    check_known,
    check_unique,
    round_open,
)
from turnout.serve.schemas import (
    Bits,
    ClientOutcome,
    NewPlaces,
    NewRound,
    Outcomes,
    ReportDocument,
    RoundDocument,
    Terms,
)
from turnout.serve.store import (
    WITHOUT_NUL,
    Name,
    Store,
    Stored,
    Transaction,
    reported_outcomes,
    save,
)

log = logging.getLogger("turnout.serve")

router = APIRouter(
    prefix="/federations/{name}", tags=["rounds"], responses=ERRORS, route_class=GuardedRoute
)

Number = Annotated[int, Path(description="The round, from 0.", ge=0, lt=2**31)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=256)]
_NO_TERMS = NewRound()
_ROUND: Responses = {200: {"model": RoundDocument}}
_OPENED: Responses = {**_ROUND, 201: {"model": RoundDocument}}
_REPORT: Responses = {200: {"model": ReportDocument}}
_STATUSES = {status.value: status.name.lower() for status in Status}


@router.post("/poll", dependencies=SELECT)
def poll(store: Stored, name: Name, body: NewRound = _NO_TERMS) -> dict[str, Any]:
    """Return the clients whose losses the selector needs before it selects; most need none."""
    with store.write(name) as tx:  # the caller is about to open the round
        federation = tx.federation
        close_if_over(tx)
        if federation.cohort is not None:
            raise round_open(federation.cohort.round)
        _check_number(federation, body)
        check_next(tx, body)
        work = federation.work
        return {
            "round": federation.session.round if work is None else work.flights.next_choice,
            "clients": federation.polled(body, tx.at),
            "data": federation.selector.poll_data,
        }


@router.post("/rounds", status_code=201, dependencies=SELECT, responses=_OPENED)
def open_round(
    store: Stored,
    name: Name,
    response: Response,
    body: NewRound = _NO_TERMS,
    key: Key = None,
) -> dict[str, Any]:
    """Open the next round: the selected clients, with their probabilities.

    If the same key or the same number is sent again, the response is 200 with the same round. A
    request with neither of them returns the open round, if there is one.
    """
    with store.write(name) as tx:
        federation = _synchronous(tx)
        row = _ROUNDS.known(tx, body.round, key)
        if row is None:
            close_if_over(tx)
            if federation.cohort is not None:
                if key is not None or body.round is not None:  # the caller means a new one
                    raise round_open(federation.cohort.round)
                row = _row(tx, federation.cohort.round)
        if row is not None:
            response.status_code = 200
            return _document(row)
        _check_number(federation, body)
        if check_next(tx, body):
            check_losses(federation, body, tx.at)
        tx.add(RoundOpened(round=federation.session.round, terms=body))
        return _record(tx, key)


@router.get("/rounds", dependencies=READ)
def list_rounds(
    store: Stored,
    name: Name,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> dict[str, Any]:
    """Return the latest rounds, the newest first."""
    with store.read(name) as tx:
        query = select(ROUND).where(ROUND.c.federation_id == tx.federation.id)
        if before is not None:
            query = query.where(ROUND.c.number < before)
        rows = tx.connection.execute(query.order_by(ROUND.c.number.desc()).limit(limit))
        return {"rounds": [_document(row) for row in rows]}


@router.get("/rounds/{number}", dependencies=READ, responses=_ROUND)
def get_round(store: Stored, name: Name, number: Number) -> dict[str, Any]:
    """Return a round: the selected clients, and how the round ended."""
    with store.read(name) as tx:
        row = _row(tx, number)
        reported = list(tx.federation.outcomes) if row.closed_at is None else []
        return _document(row) | {"reported": reported}


@router.get("/receipts/{client:path}", dependencies=READ)
def get_receipts(
    store: Stored,
    name: Name,
    client: Annotated[str, Path(max_length=256, pattern=WITHOUT_NUL)],
    request: Request,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> dict[str, Any]:
    """Return what a client was counted for, the newest round first, signed with the server's key.

    There is a receipt for every closed round in which the client was selected. Where rounds
    overlap, there is one for each of its works that ended in the round.
    """
    with store.read(name) as tx:
        federation, receipts = tx.federation, request.app.state.receipts
        id, session = _client(federation, client), federation.session
        columns = session.journal.columns()
        mine = np.flatnonzero(columns["clients"] == federation.roster.index_of(id))
        numbers = np.unique(np.searchsorted(columns["offsets"], mine, side="right") - 1)
        if before is not None:
            numbers = numbers[numbers < before]
        latest = numbers[::-1][:limit].tolist()
        here = (ROUND.c.federation_id == tx.federation.id) & ROUND.c.number.in_(latest)
        rows = tx.connection.execute(select(ROUND).where(here).order_by(ROUND.c.number.desc()))
        found = [one for row in rows.all() for one in _receipts(tx, receipts, row, id)]
        return {"client": id, "receipts": found}


def _client(federation: LiveFederation, text: str) -> Hashable:
    """Return the id of a client in a path, where a number cannot be told from a text."""
    roster = federation.roster
    is_number = text not in roster and str(text).removeprefix("-").isdecimal()
    id: Hashable = int(text) if is_number else text
    check_known([id], roster, "client")
    return id


def _receipts(
    tx: Transaction, receipts: Receipts, row: Row[Any], client: Hashable
) -> Iterator[dict[str, Any]]:
    """Yield the receipts of a client for a round."""
    result, chosen, federation = json.loads(row.result), json.loads(row.chosen), tx.federation
    for i, name in enumerate(chosen["clients"]):
        if name != client:
            continue
        choice = chosen["choice"][i] if "choice" in chosen else row.number
        outcome = reported_outcomes(tx, choice).get(client)
        seconds = result["seconds"][i]
        yield receipts.make(
            federation.definition.name,
            row.number,
            client,
            run_began_at=federation.created_at,
            status=result["status"][i],
            is_void=result["void"],
            seconds=math.nan if seconds is None else seconds,
            closed_at=row.closed_at,
            report=None if outcome is None else outcome.model_dump(exclude_defaults=True),
        )


@router.post("/rounds/{number}/outcomes", dependencies=SELECT, responses=_REPORT)
def report_outcomes(store: Stored, name: Name, number: Number, body: Outcomes) -> dict[str, Any]:
    """Report the outcomes of selected clients, one by one or together.

    A report may be repeated. A report on a closed round no longer counts, but its client can be
    selected again. The last report of a round closes the round.
    """
    with store.write(name) as tx:
        federation = _synchronous(tx)
        row = _row(tx, number)
        cohort, is_open = json.loads(row.chosen)["clients"], row.closed_at is None
        known = federation.outcomes if is_open else reported_outcomes(tx, number)
        n_known = len(known)
        new = _new_outcomes(federation, body, cohort, known)
        if new:
            report = Outcomes(outcomes=new, length_s=body.length_s)
            tx.add(RoundReported(round=number, report=report))
        if is_open:
            close_if_over(tx)
        return {
            "round": number,
            "new": len(new),
            "repeated": len(body.outcomes) - len(new),
            "counted": len(new) if is_open else 0,
            "missing": len(cohort) - n_known - len(new),
            "ignored": _ignored(federation, new),
            "state": "closed" if federation.cohort is None or not is_open else "open",
        }


@router.post("/rounds/{number}/close", dependencies=SELECT, responses=_ROUND)
def close_round(store: Stored, name: Name, number: Number) -> dict[str, Any]:
    """Close a round before all clients are reported; the remaining clients are late."""
    with store.write(name) as tx:
        _synchronous(tx)
        row = _row(tx, number)
        if row.closed_at is None:
            _close(tx)
            row = _row(tx, number)
        return _document(row)


def close_overdue(store: Store, at: float) -> int:
    """Close the rounds of all federations whose time is over; return how many.

    Args:
        store: All federations.
        at: The time, in seconds since 1970.
    """
    with store.engine.begin() as connection:
        query = select(FEDERATION.c.name).join(ROUND, ROUND.c.federation_id == FEDERATION.c.id)
        is_overdue = ROUND.c.closed_at.is_(None) & (ROUND.c.closes_at <= at)
        names = list(connection.execute(query.where(is_overdue)).scalars())
    n_closed, failure = 0, None
    for name in names:
        try:
            with store.write(name) as tx:
                n_closed += len(close_if_over(tx))
        except Exception as error:  # the others do not wait for it
            failure = failure or error
    if failure is not None:
        raise failure
    return n_closed


def forget_old(store: Store, before: float) -> int:
    """Delete the records of rounds that were closed before a time; return how many.

    A federation with an open round has to wait until this server closes the round, or until
    ``forget_waiting`` finds it closed. One that fails is logged, and the others go on.

    Args:
        store: All federations.
        before: The time, in seconds since 1970.
    """
    with store.engine.begin() as connection:
        query = select(FEDERATION.c.name).join(ROUND, ROUND.c.federation_id == FEDERATION.c.id)
        query = query.where(ROUND.c.closed_at < before).distinct()
        names = list(connection.execute(query).scalars())
    return sum(_forget(store, name, before) for name in names)


def forget_waiting(store: Store) -> int:
    """Delete what had to wait in federations without an open round now; return how many rounds."""
    waiting = dict(store.when_idle)
    if not waiting:
        return 0
    with store.engine.begin() as connection:
        query = select(FEDERATION.c.name).join(ROUND, ROUND.c.federation_id == FEDERATION.c.id)
        busy = set(connection.execute(query.where(ROUND.c.closed_at.is_(None))).scalars())
    return sum(act() for name, act in waiting.items() if name not in busy)


def _forget(store: Store, name: str, before: float) -> int:
    """Delete old rounds of a federation; its state, which later rounds need, is stored first."""
    store.when_idle.pop(name, None)
    try:
        with store.write(name) as tx:
            number, connection = tx.federation.id, tx.connection
            is_old = (ROUND.c.federation_id == number) & (ROUND.c.closed_at < before)
            old = select(ROUND.c.number).where(is_old)
            if connection.execute(old.limit(1)).first() is None:  # another server was faster
                return 0
            if tx.federation.cohort is not None:
                store.when_idle[name] = partial(_forget, store, name, before)
                return 0
            save(connection, number, tx.federation.seq, content_of(tx.federation.checkpoint()))
            events = (EVENT.c.federation_id == number) & EVENT.c.round.in_(old)
            work = tx.federation.work
            if work is not None:  # an event there has the number of a choice
                events = (EVENT.c.federation_id == number) & (EVENT.c.at < before)
                oldest = min((one.choice for one in work.at_work), default=work.flights.next_choice)
                is_done = (CHOICE.c.federation_id == number) & (CHOICE.c.number < oldest)
                connection.execute(delete(CHOICE).where(is_done, CHOICE.c.at < before))
            events &= EVENT.c.seq < tx.federation.seq  # the last one tells the time of the state
            connection.execute(delete(EVENT).where(events))
            entries = (AUDIT.c.federation == name) & AUDIT.c.round.in_(old)
            connection.execute(delete(AUDIT).where(entries))
            return connection.execute(delete(ROUND).where(is_old)).rowcount
    except HttpProblem:  # it was deleted meanwhile
        return 0
    except Exception as error:
        is_bug = not isinstance(error, TurnoutError | SQLAlchemyError)
        text = "old rounds of federation %s cannot be deleted: %s"
        log.error(text, name, error, exc_info=error if is_bug else None)
        return 0


# --------------------------------------------------------------------------------------------------
# Rounds in the database.
# --------------------------------------------------------------------------------------------------


def _row(tx: Transaction, number: int) -> Row[Any]:
    row = _ROUNDS.find(tx, number)
    if row is None:
        t = tx.federation.session.round
        detail = f"round {number} was never opened; the next one is {t}."
        if number < t:
            detail = f"round {number} is older than the records that are kept (--keep-days)."
            raise HttpProblem("unknown-round", detail, fix=f"Omit it; the next one is {t}.")
        raise HttpProblem("unknown-round", detail)
    return row


class Numbered:
    """The rows of a federation that requests name by a number or by a key.

    Args:
        table: Rounds or choices.
        done: What a key has done, for an error: ``"opened round"``.
    """

    def __init__(self, table: Table, done: str) -> None:
        own = select(table).where(table.c.federation_id == bindparam("federation"))
        self._by_number = own.where(table.c.number == bindparam("wanted"))
        self._by_key = own.where(table.c.key == bindparam("wanted"))
        self._done = done

    def find(self, tx: Transaction, number: int) -> Row[Any] | None:
        """Return the row of a number; None if there is none."""
        return self._one(tx, self._by_number, number)

    def known(self, tx: Transaction, number: int | None, key: str | None) -> Row[Any] | None:
        """Return the row that an earlier request with this key or number has added."""
        row = None if key is None else self._one(tx, self._by_key, key)
        if row is None:
            return None if number is None else self.find(tx, number)
        if number not in (None, row.number):
            detail = f"the key {key!r} has {self._done} {row.number}, not {number}."
            raise HttpProblem("key-reused", detail)
        return row

    @staticmethod
    def _one(tx: Transaction, query: Select[Any], wanted: int | str) -> Row[Any] | None:
        values = {"federation": tx.federation.id, "wanted": wanted}
        return tx.connection.execute(query, values).one_or_none()


_ROUNDS = Numbered(ROUND, "opened round")
_ADD = insert(ROUND)


def chosen_document(cohort: Cohort) -> dict[str, Any]:
    """Return the clients of a round or a choice as responses have them.

    Args:
        cohort: The clients.
    """
    return {
        "clients": list(cohort.ids),
        "probability": None if cohort.probability is None else cohort.probability.tolist(),
        "times": list(cohort.times),
        "deadline_s": cohort.deadline if math.isfinite(cohort.deadline) else None,
        "n_free": int(cohort.n_free),
    }


def _document(row: Row[Any]) -> dict[str, Any]:
    """Return a round as responses have it."""
    times = {name: getattr(row, name) for name in ("opened_at", "closes_at", "closed_at")}
    state = {"round": row.number, "state": "open" if row.result is None else "closed"}
    result = {} if row.result is None else {"result": json.loads(row.result)}
    return {**state, **times, **json.loads(row.chosen), **result}


def _record(tx: Transaction, key: str | None) -> dict[str, Any]:
    """Store the round that was opened; return it as responses have it."""
    federation, cohort = tx.federation, tx.federation.cohort
    assert cohort is not None
    ends_itself = math.isfinite(cohort.deadline) and federation.reported is None
    busy = [c for c in federation.members.busy_clients() if federation.members.is_there(c)]
    chosen = {**chosen_document(cohort), "busy": busy}
    closes_at = tx.at + cohort.deadline if ends_itself else None
    times = {"opened_at": tx.at, "closes_at": closes_at}
    row = {"federation_id": federation.id, "number": cohort.round, "key": key, **times}
    tx.connection.execute(_ADD, row | {"chosen": json.dumps(chosen)})
    return {"round": cohort.round, "state": "open", **times, "closed_at": None, **chosen}


def close_if_over(tx: Transaction) -> list[int]:
    """Close the open round if its time is over; return its number.

    Where rounds overlap, clients whose time is over are given up.
    """
    if not tx.federation.is_over(tx.at):
        return []
    if tx.federation.work is not None:
        tx.add(TimePassed())
        return record_overlapping(tx)
    assert tx.federation.cohort is not None
    t = tx.federation.cohort.round
    _close(tx)
    return [t]


def record_overlapping(tx: Transaction) -> list[int]:
    """Store the rounds that an event has closed, and the one that is open now; return the former.

    Args:
        tx: The transaction of a federation whose rounds overlap.
    """
    federation, session = tx.federation, tx.federation.session
    here, t = ROUND.c.federation_id == federation.id, session.round
    began = tx.connection.execute(select(ROUND.c.opened_at).where(here, ROUND.c.number == t))
    for result in federation.ended:
        taken = result.taken
        assert taken is not None
        weights = iter([] if result.is_void else taken.weight.tolist())
        times = iter(taken.times.tolist())
        completed = (result.closed.status == Status.COMPLETED).tolist()
        chance = session.journal.part("probability", result.round).tolist()
        chosen = {
            **_NOBODY,
            "clients": list(result.ids),
            "probability": None if any(map(math.isnan, chance)) else chance,
            "times": [next(times) if is_used else 1 for is_used in completed],
            "choice": session.journal.part("choice", result.round).tolist(),
            "model": [result.round - stale for stale in result.staleness],
            "weight": [next(weights, None) if is_used else None for is_used in completed],
        }
        values = {"closed_at": tx.at, "chosen": json.dumps(chosen), "result": _stored(result)}
        _put(tx, result.round, values)
    if federation.is_working and (federation.ended or began.first() is None):
        _put(tx, t, {"chosen": json.dumps(_NOBODY | {"choice": [], "model": [], "weight": []})})
    ends = update(ROUND).where(here, ROUND.c.number == t)
    tx.connection.execute(ends.values(closes_at=federation.closes_at(tx.at)))
    return [result.round for result in federation.ended]


#: What is stored of a round that overlaps others, before anybody's work has ended in it.
_NOBODY = {**chosen_document(Cohort(0)), "busy": []}


def _put(tx: Transaction, number: int, values: dict[str, Any]) -> None:
    which = (ROUND.c.federation_id == tx.federation.id) & (ROUND.c.number == number)
    if not tx.connection.execute(update(ROUND).where(which).values(values)).rowcount:
        row = {"federation_id": tx.federation.id, "number": number, "opened_at": tx.at}
        tx.connection.execute(_ADD, {"key": None, "closes_at": None, **row, **values})


def _close(tx: Transaction) -> None:
    """Close the open round, and store its result."""
    federation = tx.federation
    assert federation.cohort is not None
    tx.add(RoundClosed(round=federation.cohort.round))
    result = federation.result
    assert result is not None
    tx.connection.execute(
        update(ROUND)
        .where(ROUND.c.federation_id == federation.id, ROUND.c.number == result.round)
        .values(closed_at=tx.at, result=_stored(result))
    )


def _stored(result: ClosedRound) -> str:
    """Return the result of a round, as JSON."""
    status = [_STATUSES[int(value)] for value in result.closed.status]
    stored = {
        "status": status,
        "seconds": [s if math.isfinite(s) else None for s in result.closed.duration.tolist()],
        "reasons": {str(result.ids[i]): reason for i, reason in sorted(result.reasons.items())},
        "length_s": float(result.closed.length_s),
        "void": bool(result.is_void),
        "counts": {name: status.count(name) for name in _STATUSES.values()},
        "alerts": [alert.text for alert in result.alerts],
    }
    return json.dumps(stored)


# --------------------------------------------------------------------------------------------------
# Checks of requests.
# --------------------------------------------------------------------------------------------------


def _synchronous(tx: Transaction) -> LiveFederation:
    """Return the federation; reject one whose rounds overlap."""
    if tx.federation.work is not None:
        raise HttpProblem("has-schedule", "the rounds of this federation overlap.")
    return tx.federation


def _check_number(federation: LiveFederation, terms: NewRound) -> None:
    work = federation.work
    t = federation.session.round if work is None else work.flights.next_choice
    if terms.round not in (None, t):
        detail = f"round must be {t}, which comes next, got {terms.round}."
        raise HttpProblem("wrong-round", detail, fix=f"Ask for round {t}, or omit the number.")


def check_next(tx: Transaction, terms: NewRound | NewPlaces) -> int:
    """Reject a choice that cannot be made now; return how many clients are free.

    Args:
        tx: The transaction; no round is open.
        terms: The request for the round, or for work in free places.
    """
    federation, session = tx.federation, tx.federation.session
    if not len(federation.roster):
        raise HttpProblem("no-clients", "no client is enrolled.")
    _check_available(tx, terms)
    for field in ("cohort_size", "deadline_s"):
        if federation.reported is None and getattr(terms, field) is not None:
            detail = f"the federation's policy sets {field}."
            raise HttpProblem("policy-decides", detail, field=field)
    quorum = session.settings.quorum
    if not terms.go_on:
        try:
            session.check_quorum()
        except TooFewAnswers as error:
            raise HttpProblem("too-few-answers", str(error)) from error
    n_free = int(np.count_nonzero(federation.free(terms, tx.at)))
    if federation.work is not None:  # nobody waits for a whole cohort
        session.check_columns()
        return n_free
    if federation.reported is None and n_free < quorum.min_free:
        detail = f"{n_free} clients are free, and {quorum.min_free} are needed."
        raise HttpProblem("too-few-free", detail, headers=RETRY)
    session.check_columns()
    session.check_fits()
    return n_free


def _check_available(tx: Transaction, terms: Terms) -> None:
    if isinstance(terms.available, Bits):
        n_clients = len(tx.federation.roster)
        n_bytes = -(-n_clients // 8)
        try:
            size = len(base64.b64decode(terms.available.bits, validate=True))
        except (binascii.Error, ValueError):
            size = -1
        if size != n_bytes:
            raise HttpProblem(
                "bad-bits",
                f"available.bits must be base64 of {n_bytes} bytes, one bit for each of the "
                f"{n_clients} clients.",
            )
    elif terms.available is not None:
        check_known(terms.available, tx.federation.roster, "available")


def check_losses(federation: LiveFederation, terms: Terms, at: float) -> None:
    """Reject a round without the losses that the selector needs."""
    polled = federation.polled(terms, at) if federation.selector.polls else []
    losses = terms.losses
    if not polled:
        return
    if losses is None:
        raise HttpProblem("poll-first", "the selector needs losses before it selects.")
    if len(losses.clients) != len(losses.losses) or set(losses.clients) != set(polled):
        raise HttpProblem(
            "wrong-poll",
            f"losses must have one entry for each of the {len(polled)} clients of .../poll.",
        )


def _new_outcomes(
    federation: LiveFederation,
    report: Outcomes,
    cohort: list[Hashable],
    known: dict[Hashable, ClientOutcome],
) -> list[ClientOutcome]:
    """Return the outcomes that are new; reject other clients, and other content than before.

    Args:
        federation: The federation.
        report: The report.
        cohort: The clients that were selected in the round.
        known: What was reported on the round before.
    """
    check_cohort(federation, report, cohort)
    for outcome in report.outcomes:
        if known.get(outcome.client, outcome) != outcome:
            detail = f"{outcome.client!r} was reported before, with different content."
            raise HttpProblem("contradiction", detail)
    return [outcome for outcome in report.outcomes if outcome.client not in known]


def check_cohort(federation: LiveFederation, report: Outcomes, cohort: list[Hashable]) -> None:
    """Reject reports of other clients, and those that lack something.

    Args:
        federation: The federation.
        report: The report.
        cohort: The clients that were selected in the round, or in the choice.
    """
    check_unique([outcome.client for outcome in report.outcomes], "outcomes")
    selected = set(cohort)
    odd = [outcome.client for outcome in report.outcomes if outcome.client not in selected]
    check_known(odd, federation.roster, "outcomes")
    if odd:
        what = "round" if federation.work is None else "choice"
        raise HttpProblem("not-chosen", f"{odd[0]!r} was not selected in this {what}.")
    for outcome in report.outcomes:
        _check_outcome(federation, outcome)


def _check_outcome(federation: LiveFederation, outcome: ClientOutcome) -> None:
    if outcome.status == "late" and federation.reported is None:
        raise HttpProblem(
            "policy-decides",
            "the federation's policy decides which clients are late.",
            field="status",
            fix='Report "completed" with its seconds, or nothing; or use the policy "reported".',
        )
    missing = [
        name
        for name in sorted(federation.selector.needs_metrics)
        if spelling(outcome.metrics, name) is None
        and name not in federation.selector.optional_metrics
    ]
    if outcome.status == "completed" and missing:
        raise HttpProblem(
            "missing-metric",
            f"the selector needs the metric {missing[0]!r} of {outcome.client!r}.",
            fix=f'Send "metrics": {{"{missing[0]}": ...}}; null = unknown.',
        )
    _check_vectors(federation, outcome)


def _ignored(federation: LiveFederation, outcomes: list[ClientOutcome]) -> dict[str, str]:
    """Return what was reported of clients that cannot be, or that nothing uses."""
    numbers = federation.selector.needs_metrics - federation.selector.metric_sizes.keys()
    ignored = {}
    for outcome in outcomes:
        problems = []
        for name in sorted(numbers):
            key = spelling(outcome.metrics, name)
            told = None if key is None else outcome.metrics[key]
            least = 0.0 if name in NON_NEGATIVE_METRICS else -LARGEST_REPORT
            if told is not None and not least <= amount(outcome.metrics, name) <= LARGEST_REPORT:
                problems.append(f"{key} {str(told)[:40]} cannot be, and counts as unknown")
        if "num_samples" in outcome.metrics:
            problems.append("num_samples is a column: send it with PUT .../clients")
        if problems:
            ignored[str(outcome.client)] = "; ".join(problems)
    return ignored


def _check_vectors(federation: LiveFederation, outcome: ClientOutcome) -> None:
    """Refuse vectors of another length or seed than the selector's; null is unknown."""
    reports = federation.session.reports
    for name in sorted(federation.selector.metric_sizes):
        key = spelling(outcome.metrics, name)
        if key is None or outcome.metrics[key] is None:
            continue
        if not reports.has(outcome.metrics, name, key):
            raise HttpProblem(
                "missing-metric",
                f"the selector needs {reports.wanted(name, key)}, and {outcome.client!r} sent "
                f"{described(outcome.metrics, key)}.",
                fix=f'Send "metrics": {{"{key}": [...]}} as the selector needs it; null = unknown.',
            )
