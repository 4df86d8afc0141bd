"""Rounds that overlap, over HTTP: work for free places, and reports on it.

A choice gives clients work on the newest model. Every report names the number of the choice. The
server ends each round by itself; the round lists the clients whose work ended in it. The caller
aggregates the answers that have a weight in this list, which makes the next model. Each route is
one transaction.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from sqlalchemy import insert

from turnout.live import Cohort, OverlappingSession
from turnout.serve.auth import READ, SELECT, GuardedRoute
from turnout.serve.database import CHOICE
from turnout.serve.federation import PlacesFilled, WorkAnswered
from turnout.serve.problems import ERRORS, HttpProblem, Responses
from turnout.serve.rounds import (
    Key,
    Numbered,
    check_cohort,
    check_losses,
    check_next,
    chosen_document,
    close_if_over,
    record_overlapping,
)
from turnout.serve.schemas import (
    ChoiceDocument,
    NewPlaces,
    Outcomes,
    PlacesDocument,
    WorkDocument,
)
from turnout.serve.store import Name, Stored, Transaction, reports_on

router = APIRouter(
    prefix="/federations/{name}/places", tags=["places"], responses=ERRORS, route_class=GuardedRoute
)

Number = Annotated[int, Path(description="The choice, from 0.", ge=0, lt=2**31)]
_NO_TERMS = NewPlaces()
_PLACES: Responses = {200: {"model": PlacesDocument}}
_CHOSEN: Responses = {200: {"model": ChoiceDocument}, 201: {"model": ChoiceDocument}}
_WORK: Responses = {200: {"model": WorkDocument}}
_CHOICES = Numbered(CHOICE, "made choice")
_ADD = insert(CHOICE)


@router.post("", status_code=201, dependencies=SELECT, responses=_CHOSEN)
def fill_places(
    store: Stored,
    name: Name,
    response: Response,
    body: NewPlaces = _NO_TERMS,
    key: Key = None,
) -> dict[str, Any]:
    """Choose clients for the free places; they are at work from now on.

    If the same key or the same number is sent again, the response is 200 with the same clients. If
    no place or no client is free, the response is 200 without clients, and nothing changes.
    """
    with store.write(name) as tx:
        work = _work(tx)
        if key is None and body.choice is None:
            raise HttpProblem("name-the-choice", "the request names no choice and has no key.")
        row = _CHOICES.known(tx, body.choice, key)
        response.status_code = 200
        if row is not None:
            return {**json.loads(row.chosen), **_models(work)}
        close_if_over(tx)
        number = work.flights.next_choice
        if body.choice not in (None, number):
            detail = f"choice must be {number}, which comes next, got {body.choice}."
            raise HttpProblem("wrong-choice", detail, field="choice")
        if not check_next(tx, body) or not work.places():
            nobody = {**chosen_document(Cohort(number)), "at": None, "model": None}
            return {"choice": number, **nobody, **_models(work)}
        check_losses(tx.federation, body, tx.at)
        tx.add(PlacesFilled(round=number, terms=body))
        record_overlapping(tx)
        response.status_code = 201
        return {**_record(tx, key), **_models(work)}


@router.get("", dependencies=READ, responses=_PLACES)
def get_places(store: Stored, name: Name) -> dict[str, Any]:
    """Return which clients are at work and on which model, for example after a restart."""
    with store.read(name) as tx:
        work, federation = _work(tx), tx.federation
        return {
            "work": [
                {
                    "client": flight.client,
                    "choice": flight.choice,
                    "model": flight.version,
                    "began_at": work.began_at + flight.began_s,
                }
                for flight in work.at_work
            ],
            "places": work.places(),
            "closes_at": federation.closes_at(tx.at),
            "refused": work.flights.n_refused,
            **_models(work),
        }


@router.post("/{number}/outcomes", dependencies=SELECT, responses=_WORK)
def report_work(store: Stored, name: Name, number: Number, body: Outcomes) -> dict[str, Any]:
    """Report outcomes of clients of a choice, one by one or together.

    A report may be repeated. A second, different report on a client does not count, nor does a
    report on work that was given up; both are recorded. A report can close a round.
    """
    with store.write(name) as tx:
        work = _work(tx)
        row = _CHOICES.find(tx, number)
        if row is None:
            detail = f"choice {number} was never made, or is older than the records that are kept."
            raise HttpProblem("unknown-choice", detail)
        check_cohort(tx.federation, body, json.loads(row.chosen)["clients"])
        closed = close_if_over(tx)
        before = reports_on(tx, number)
        new = [outcome for outcome in body.outcomes if outcome not in before]
        refused: dict[str, str] = {}
        if new:
            tx.add(WorkAnswered(round=number, report=Outcomes(outcomes=new)))
            refused = {str(client): why for client, why in tx.federation.refused.items()}
            closed += record_overlapping(tx)
        return {
            "choice": number,
            "new": len(new),
            "repeated": len(body.outcomes) - len(new),
            "refused": refused,
            "closed": closed,
            **_models(work),
        }


def _work(tx: Transaction) -> OverlappingSession:
    if tx.federation.work is None:
        detail = "the federation has no schedule whose rounds overlap."
        raise HttpProblem("no-schedule", detail)
    return tx.federation.work


def _models(work: OverlappingSession) -> dict[str, Any]:
    flights = work.flights
    versions = {"version": flights.version, "versions": sorted(flights.versions)}
    return versions | {"next_choice": flights.next_choice}


def _record(tx: Transaction, key: str | None) -> dict[str, Any]:
    """Store the choice that was made; return it as responses have it."""
    cohort = tx.federation.given
    assert cohort is not None
    chosen = {
        "choice": cohort.round,
        "at": tx.at,
        "model": cohort.version,
        **chosen_document(cohort),
    }
    row = {"federation_id": tx.federation.id, "number": cohort.round, "key": key, "at": tx.at}
    tx.connection.execute(_ADD, row | {"chosen": json.dumps(chosen)})
    return chosen
