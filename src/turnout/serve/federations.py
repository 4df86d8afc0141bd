"""Federations over HTTP: created, described, exported and deleted; their clients and their tokens.

Each route is one transaction. It checks everything first, so a request that is rejected has changed
nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from sqlalchemy import delete, insert, select

from turnout.core.arrays import COLUMN_LIMITS
from turnout.core.types import Status
from turnout.live.members import MOST_COLUMNS, MOST_NUMBERS, possible_range
from turnout.live.transport import clock
from turnout.results import metrics
from turnout.serve.auth import (
    ADMIN,
    READ,
    SELECT,
    Grant,
    GuardedRoute,
    make_token,
    needs,
    revoke_token,
    revoke_tokens,
)
from turnout.serve.database import CHOICE, EVENT, FEDERATION, ROUND, SNAPSHOT, TOKEN, writing
from turnout.serve.federation import LiveFederation, StateImported, as_array, check_new, content_of
from turnout.serve.logs import note
from turnout.serve.problems import (
    ERRORS,
    HttpProblem,
    Responses,
    check_known,
    check_unique,
    round_open,
)
from turnout.serve.schemas import (
    ClientId,
    CountsDocument,
    Definition,
    Enrolment,
    NewToken,
    Withdrawal,
)
from turnout.serve.store import WITHOUT_NUL, Name, Stored, save

_COUNTS: Responses = {200: {"model": CountsDocument}}
_CREATED: Responses = {**_COUNTS, 201: {"model": CountsDocument}}
#: Clients that are listed as selected least and most often.
_N_LISTED = 10

router = APIRouter(prefix="/federations", responses=ERRORS, route_class=GuardedRoute)


Reader = Annotated[Grant, Depends(needs("read"))]


@router.get("", tags=["federations"])
def list_federations(store: Stored, grant: Reader) -> dict[str, Any]:
    """Name the federations that the token may read."""
    with store.engine.begin() as connection:
        names = connection.execute(select(FEDERATION.c.name).order_by("name")).scalars()
        return {"federations": [name for name in names if grant.covers(name)]}


@router.post(
    "",
    status_code=201,
    tags=["federations"],
    dependencies=[Depends(needs("admin", everywhere=True))],
    responses=_CREATED,
)
def create_federation(store: Stored, body: Definition, response: Response) -> dict[str, Any]:
    """Create a federation. If the same definition is sent again, the response is 200."""
    text = body.model_dump_json()
    query = select(FEDERATION.c.definition).where(FEDERATION.c.name == body.name)
    with store.engine.begin() as connection:
        there = connection.execute(query).scalar()
    if there is None:  # one that is there was checked by the turnout that created it
        check_new(body)
        with writing(store.engine) as connection:
            there = connection.execute(query).scalar()  # another request may have been faster
            if there is None:
                values = {"name": body.name, "definition": text, "seq": 0}
                connection.execute(insert(FEDERATION).values(created_at=time.time(), **values))
                note(connection, "created", body.name, version=0)
    if there is not None:
        response.status_code = 200
        # An earlier turnout may have stored it without the settings that are new since then.
        known = Definition.model_validate_json(there).model_dump_json()
        if json.loads(known) != json.loads(text):
            detail = f"there is a federation {body.name!r} with another definition."
            raise HttpProblem("name-taken", detail)
    return get_federation(store, body.name)


@router.get("/{name}", tags=["federations"], dependencies=READ, responses=_COUNTS)
def get_federation(store: Stored, name: Name) -> dict[str, Any]:
    """Describe a federation: definition, numbers of clients and rounds, needs of its selector."""
    with store.read(name) as tx:
        federation, selector = tx.federation, tx.federation.selector
        return {
            **federation.definition.model_dump(mode="json"),
            **_counts(federation),
            "needs": {
                "columns": sorted(selector.needs_columns),
                "may_use": sorted(selector.uses_columns),
                "metrics": sorted(federation.selector.needs_metrics),
                "polls": selector.polls,
                "poll_data": selector.poll_data,
            },
            "reports_probability": selector.reports_probability,
            "may_underfill": selector.may_underfill,
        }


@router.delete("/{name}", status_code=204, tags=["federations"], dependencies=ADMIN)
def delete_federation(store: Stored, name: Name) -> None:
    """Delete a federation with its clients, rounds and tokens."""
    with store.write(name) as tx:
        number = tx.federation.id
        row = select(FEDERATION.c.id).where(FEDERATION.c.id == number)
        tx.connection.execute(row.with_for_update())  # waits until no snapshot is being written
        revoke_tokens(tx.connection, TOKEN.c.federation_id == number)
        for table in (EVENT, ROUND, CHOICE, SNAPSHOT):
            tx.connection.execute(delete(table).where(table.c.federation_id == number))
        tx.connection.execute(delete(FEDERATION).where(FEDERATION.c.id == number))
        note(tx.connection, "deleted", name, version=tx.federation.seq)
    store.forget(tx.federation, is_deleted=True)


@router.put("/{name}/clients", tags=["clients"], dependencies=SELECT, responses=_COUNTS)
def enrol_clients(store: Stored, name: Name, body: Enrolment) -> dict[str, Any]:
    """Enrol clients, or change their columns, in bulk; a million in one request are fine."""
    with store.write(name) as tx:
        _check_enrolment(tx.federation, body)
        known = sum(client in tx.federation.roster for client in body.clients)
        tx.add(body)
        return {"new": len(body.clients) - known, "known": known, **_counts(tx.federation)}


@router.post("/{name}/clients/withdraw", tags=["clients"], dependencies=SELECT, responses=_COUNTS)
def withdraw_clients(store: Stored, name: Name, body: Withdrawal) -> dict[str, Any]:
    """Withdraw clients. What the selector has learned about them is kept for their return."""
    with store.write(name) as tx:
        check_known(body.clients, tx.federation.roster, "clients")
        tx.add(body)
        return _counts(tx.federation)


@router.get("/{name}/clients", tags=["clients"], dependencies=READ)
def count_clients(
    store: Stored,
    name: Name,
    offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> dict[str, Any]:
    """List clients in the order of enrolment, all or some, with how often each was selected.

    Also how often each of them answered in time.
    """
    part = slice(offset, None if limit is None else offset + limit)
    with store.read(name) as tx:
        return {
            "clients": list(tx.federation.roster.ids[part]),
            "chosen": tx.federation.selection_counts()[part].tolist(),
            "completed": tx.federation.selection_counts(Status.COMPLETED)[part].tolist(),
        }


@router.get("/{name}/fairness", tags=["records"], dependencies=READ)
def get_fairness(store: Stored, name: Name) -> dict[str, Any]:
    """Return how evenly clients were selected."""
    with store.read(name) as tx:
        roster, counts = tx.federation.roster, tx.federation.selection_counts()
        shares = np.linspace(0.0, 1.0, 11)
        least, most = metrics.lowest(counts, _N_LISTED), metrics.lowest(-counts, _N_LISTED)
        return {
            **_counts(tx.federation),
            "choices": int(counts.sum()),
            "never_chosen": int(np.count_nonzero(counts == 0)),
            "jain": metrics.jain_of_counts(counts) if counts.any() else None,
            "gini": metrics.gini_of_counts(counts) if counts.any() else None,
            "deciles": np.quantile(counts, shares).tolist() if counts.size else [],
            "least": [[roster.id_of(i), int(counts[i])] for i in least.tolist()],
            "most": [[roster.id_of(i), int(counts[i])] for i in most.tolist()],
        }


@router.get("/{name}/shadows", tags=["records"], dependencies=READ)
def get_shadows(store: Stored, name: Name) -> dict[str, Any]:
    """Return what the shadows would have done, and what they learn from."""
    with store.read(name) as tx:
        session = tx.federation.session
        if session.shadows is None:
            return {"shadows": [], "columns": [], "metrics": []}
        run, shadows = session.journal.run, session.shadows
        return {
            "shadows": [
                {
                    "selector": each.label,
                    "is_on": is_on,
                    "rounds": each.n_rounds,
                    "agreement": _known(each.agreement(run)),
                    "least_share": _known(each.least_share(run)),
                }
                for each, is_on in shadows.shadowed
            ],
            "columns": sorted(shadows.wanted),
            "metrics": sorted(shadows.metrics),
        }


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


@router.get("/{name}/state", tags=["state"], dependencies=ADMIN)
def export_state(store: Stored, name: Name) -> Response:
    """Return everything that the next round depends on, as a file (.npz)."""
    with store.write(name) as tx:  # it is noted who has taken a copy
        if tx.federation.cohort is not None:
            raise round_open(tx.federation.cohort.round)
        content = content_of(tx.federation.checkpoint())
        note(tx.connection, "exported", name, version=tx.federation.seq)
    return Response(content, media_type="application/octet-stream")


async def _content(request: Request) -> bytes:
    return await request.body()


@router.put("/{name}/state", tags=["state"], dependencies=ADMIN)
def import_state(
    store: Stored, name: Name, content: Annotated[bytes, Depends(_content)]
) -> dict[str, Any]:
    """Let a new federation continue from such a file."""
    with store.write(name) as tx:
        if tx.federation.seq:
            detail = f"the federation {name!r} has clients or rounds of its own."
            raise HttpProblem("not-new", detail)
        # Raises if the file is damaged, or of another federation.
        LiveFederation(tx.federation.definition).load(content, 0, tx.at)
        save(tx.connection, tx.federation.id, tx.federation.seq + 1, content)
        tx.add(StateImported())
    store.forget(tx.federation)  # it is loaded again, from the snapshot
    with store.read(name) as tx:
        return _counts(tx.federation)


@router.post("/{name}/tokens", status_code=201, tags=["tokens"], dependencies=ADMIN)
def create_token(store: Stored, name: Name, body: NewToken) -> dict[str, Any]:
    """Make a token for this federation; it is shown once."""
    with writing(store.engine) as connection:
        token = make_token(connection, body.name, body.scope, name)
    return {"name": body.name, "scope": body.scope, "federation": name, "token": token}


@router.delete("/{name}/tokens/{token}", status_code=204, tags=["tokens"], dependencies=ADMIN)
def delete_token(
    store: Stored,
    name: Name,
    token: Annotated[str, Path(max_length=64, pattern=WITHOUT_NUL)],
) -> None:
    """Revoke a token of this federation."""
    with writing(store.engine) as connection:
        if not revoke_token(connection, token, name):
            detail = f"this federation has no token {token!r}."
            fix = "List the tokens with 'turnout serve tokens'."
            raise HttpProblem("unknown-token", detail, status=404, field="token", fix=fix)


def _counts(federation: LiveFederation) -> dict[str, Any]:
    members = federation.members
    with clock.held(max(time.time(), federation.at)):
        free = members.selectable()
    if federation.work is not None:
        free &= ~federation.work.flights.busy(free.size)
    is_open = federation.is_working or federation.cohort is not None
    return {
        "n_clients": len(members.roster),
        "n_present": members.n_connected,
        "n_free": int(np.count_nonzero(free)),
        "n_rounds": federation.session.round,
        "open_round": federation.session.round if is_open else None,
        "version": federation.seq,
    }


# --------------------------------------------------------------------------------------------------
# Checks of requests.
# --------------------------------------------------------------------------------------------------


def _check_enrolment(federation: LiveFederation, enrolment: Enrolment) -> None:
    """Reject repeated ids, and columns that fit neither the clients nor the known columns.

    The ids 7 and "7" are the same text, and results name clients by their text.
    """
    check_unique(enrolment.clients, "clients")
    here, roster = set(enrolment.clients), federation.roster
    for client, twin in _other_types(enrolment.clients):
        if (twin in here or twin in roster) and client not in roster:
            detail = f"clients must not differ only in their type, got {client!r} and {twin!r}."
            raise HttpProblem("duplicate-client", detail, fix="Send all ids as texts.")
    columns = federation.members.columns
    if len(columns.state().keys() | enrolment.columns.keys()) > MOST_COLUMNS:
        raise HttpProblem("bad-column", f"columns: there may be {MOST_COLUMNS} columns at most.")
    for name, values in enrolment.columns.items():
        wrong = _column_problem(name, values, len(enrolment.clients), columns.shape_of(name))
        if wrong:
            field = f"columns.{name}"
            raise HttpProblem("bad-column", f"{field}: {wrong}.", field=field)


def _other_types(clients: list[ClientId]) -> list[tuple[ClientId, ClientId]]:
    """Return the ids for which there is one of the other type with the same text, and that one."""
    numbers = [(c, str(c)) for c in clients if isinstance(c, int)]
    texts = [(c, int(c)) for c in clients if isinstance(c, str) and c.removeprefix("-").isdecimal()]
    return [*numbers, *((text, number) for text, number in texts if str(number) == text)]


def _column_problem(
    name: str, values: Sequence[Any], n_clients: int, known: tuple[int, ...] | None
) -> str | None:
    """Return what is wrong with a column; ``known`` is the shape of earlier entries."""
    if len(values) != n_clients:
        return f"has {len(values)} entries for {n_clients} clients"
    try:
        array = as_array(values)
    except ValueError:
        return "has lists of different lengths"
    shape = array.shape[1:]
    if name in COLUMN_LIMITS and shape:
        return "must have one number for each client"
    if shape and not 0 < shape[0] <= MOST_NUMBERS:
        return f"must have 1 to {MOST_NUMBERS} numbers for each client"
    if known is not None and known != shape:
        return f"has shape {shape} for each client, others have {known}"
    least, most = possible_range(name)
    wrong = array[(array < least) | (array > most)]
    if wrong.size:
        return f"must have numbers from {least:g} to {most:g}, or null, got {wrong[0]:g}"
    return None
