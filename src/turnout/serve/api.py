"""The HTTP API: each route checks who asks, and hands over to a function that is a transaction."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from turnout.serve import federations, records, rounds
from turnout.serve.access import needs, needs_server
from turnout.serve.database import writing
from turnout.serve.documents import (
    PROBLEMS,
    CountsDocument,
    ReportDocument,
    RoundDocument,
    answered,
)
from turnout.serve.problems import Refusal
from turnout.serve.schemas import (
    Definition,
    Enrolment,
    NewRound,
    NewToken,
    Outcomes,
    Withdrawal,
)
from turnout.serve.store import Store
from turnout.serve.tokens import Grant, make_token, revoke_token

router = APIRouter(responses=PROBLEMS)

Name = Annotated[str, Path(description="The federation.", max_length=64)]
Number = Annotated[int, Path(description="The round, from 0.", ge=0, lt=2**31)]
Reader = Annotated[Grant, Depends(needs("read"))]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=256)]
_SELECTS = [Depends(needs("select"))]
_ADMIN = [Depends(needs("admin"))]
_OF_SERVER = [Depends(needs_server("admin"))]
_READS = [Depends(needs("read"))]
_NO_TERMS = NewRound()
_ROUND = answered(200, by=RoundDocument)
_COUNTS = answered(200, by=CountsDocument)
_NPZ = "application/octet-stream"


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


Stored = Annotated[Store, Depends(_store)]


@router.get("/federations", tags=["federations"])
def list_federations(store: Stored, grant: Reader) -> dict[str, Any]:
    """Name the federations that the token may read."""
    return {"federations": [name for name in federations.names(store) if grant.covers(name)]}


@router.post(
    "/federations",
    status_code=201,
    tags=["federations"],
    dependencies=_OF_SERVER,
    responses=answered(200, 201, by=CountsDocument),
)
def create_federation(store: Stored, body: Definition, response: Response) -> dict[str, Any]:
    """Create a federation. The same definition again is answered with 200."""
    if not federations.create(store, body):
        response.status_code = 200
    return federations.describe(store, body.name)


@router.get("/federations/{name}", tags=["federations"], dependencies=_READS, responses=_COUNTS)
def get_federation(store: Stored, name: Name) -> dict[str, Any]:
    """Describe a federation: definition, numbers of clients and rounds, what its selector needs."""
    return federations.describe(store, name)


@router.delete("/federations/{name}", status_code=204, tags=["federations"], dependencies=_ADMIN)
def delete_federation(store: Stored, name: Name) -> None:
    """Delete a federation with its clients, rounds and tokens."""
    federations.remove(store, name)


@router.put(
    "/federations/{name}/clients", tags=["clients"], dependencies=_SELECTS, responses=_COUNTS
)
def enrol_clients(store: Stored, name: Name, body: Enrolment) -> dict[str, Any]:
    """Enrol clients, or change their columns, in bulk; a million in one request are fine."""
    return federations.enrol(store, name, body)


@router.post(
    "/federations/{name}/clients/withdraw",
    tags=["clients"],
    dependencies=_SELECTS,
    responses=_COUNTS,
)
def withdraw_clients(store: Stored, name: Name, body: Withdrawal) -> dict[str, Any]:
    """Take clients out; they come back with everything learned about them when enrolled again."""
    return federations.withdraw(store, name, body)


@router.get("/federations/{name}/clients", tags=["clients"], dependencies=_READS)
def count_clients(store: Stored, name: Name) -> dict[str, Any]:
    """List all clients, with how often each was chosen and answered in time."""
    return federations.counts(store, name)


@router.post("/federations/{name}/poll", tags=["rounds"], dependencies=_SELECTS)
def poll(store: Stored, name: Name, body: NewRound = _NO_TERMS) -> dict[str, Any]:
    """Say whose losses the selector wants to see before it chooses; with most it is nobody's."""
    return rounds.poll(store, name, body)


@router.post(
    "/federations/{name}/rounds",
    status_code=201,
    tags=["rounds"],
    dependencies=_SELECTS,
    responses=answered(200, 201, by=RoundDocument),
)
def open_round(
    store: Stored,
    name: Name,
    response: Response,
    body: NewRound = _NO_TERMS,
    key: Key = None,
) -> dict[str, Any]:
    """Open the next round: who is chosen, with their chances.

    The same key or the same number again is answered with 200 and the same round. So is a request
    with neither while a round is open.
    """
    is_new, answer = rounds.open_round(store, name, body, key)
    response.status_code = 201 if is_new else 200
    return answer


@router.get("/federations/{name}/rounds", tags=["rounds"], dependencies=_READS)
def list_rounds(
    store: Stored,
    name: Name,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> dict[str, Any]:
    """Return the latest rounds, the newest first."""
    return {"rounds": records.list_rounds(store, name, before, limit)}


@router.get(
    "/federations/{name}/rounds/{number}", tags=["rounds"], dependencies=_READS, responses=_ROUND
)
def get_round(store: Stored, name: Name, number: Number) -> dict[str, Any]:
    """Return a round: who was chosen, and how it ended."""
    return records.get_round(store, name, number)


@router.post(
    "/federations/{name}/rounds/{number}/outcomes",
    tags=["rounds"],
    dependencies=_SELECTS,
    responses=answered(200, by=ReportDocument),
)
def report_outcomes(store: Stored, name: Name, number: Number, body: Outcomes) -> dict[str, Any]:
    """Report what became of chosen clients, one by one or together.

    A report that was sent before is fine, and so is one for a round that is over: it no longer
    counts, but its client is free again. The round is closed when everyone was reported.
    """
    return rounds.report(store, name, number, body)


@router.post(
    "/federations/{name}/rounds/{number}/close",
    tags=["rounds"],
    dependencies=_SELECTS,
    responses=_ROUND,
)
def close_round(store: Stored, name: Name, number: Number) -> dict[str, Any]:
    """Close a round before everyone was reported; the others are late."""
    return rounds.close_round(store, name, number)


@router.get("/federations/{name}/fairness", tags=["records"], dependencies=_READS)
def get_fairness(store: Stored, name: Name) -> dict[str, Any]:
    """Return how evenly clients were chosen."""
    return federations.fairness(store, name)


@router.get("/federations/{name}/state", tags=["state"], dependencies=_ADMIN)
def export_state(store: Stored, name: Name) -> Response:
    """Return everything that the next round depends on, as a file (.npz)."""
    return Response(federations.export_state(store, name), media_type=_NPZ)


@router.put("/federations/{name}/state", tags=["state"], dependencies=_ADMIN)
async def import_state(store: Stored, name: Name, request: Request) -> dict[str, Any]:
    """Let a new federation go on from such a file."""
    content = await request.body()
    return await run_in_threadpool(federations.import_state, store, name, content)


@router.post("/federations/{name}/tokens", status_code=201, tags=["tokens"], dependencies=_ADMIN)
def create_token(store: Stored, name: Name, body: NewToken) -> dict[str, Any]:
    """Make a token for this federation; it is shown once."""
    with writing(store.engine) as connection:
        token = make_token(connection, body.name, body.scope, name)
    return {"name": body.name, "scope": body.scope, "federation": name, "token": token}


@router.delete(
    "/federations/{name}/tokens/{token}", status_code=204, tags=["tokens"], dependencies=_ADMIN
)
def delete_token(store: Stored, name: Name, token: Annotated[str, Path(max_length=64)]) -> None:
    """Revoke a token of this federation."""
    with writing(store.engine) as connection:
        if not revoke_token(connection, token, name):
            detail = f"this federation has no token {token!r}."
            fix = "List them with 'turnout serve tokens'."
            raise Refusal(404, "unknown-token", detail, field="token", fix=fix)
