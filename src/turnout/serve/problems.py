"""Errors as the API returns them: RFC 9457 problem documents that name the field and the fix."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from turnout.core.errors import MissingColumn, TurnoutError
from turnout.core.roster import Roster
from turnout.serve.database import DatabaseError
from turnout.serve.schemas import ProblemDocument

log = logging.getLogger("turnout.serve")

MEDIA_TYPE = "application/problem+json"
#: The header of responses to requests that may succeed a moment later.
RETRY: Mapping[str, str] = MappingProxyType({"Retry-After": "1"})

#: What a route may respond with, by status, for ``/openapi.json``.
Responses: TypeAlias = dict[int | str, dict[str, Any]]
_PROBLEM = {
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    "description": ProblemDocument.__doc__,
}
#: The errors of every route.
ERRORS: Responses = {
    400: {"model": ProblemDocument},  # adds the schema to the components
    **dict.fromkeys((401, 403, 404, 409, 413, 422, 429, 503), _PROBLEM),
}
#: Every kind of problem: the HTTP status, the field at fault, and the fix.
_KINDS: dict[str, tuple[int, str | None, str]] = {
    "bad-bits": (422, "available", "Pack one bit per client, in the order of enrolment."),
    "bad-column": (422, "columns", "Send one entry per client, in their order; null = unknown."),
    "bad-request": (400, None, "See the detail."),
    "contradiction": (409, "outcomes", "The first report stands: repeat it, or send nothing."),
    "database-failed": (503, None, "Repeat the request in a moment, which is safe."),
    "diverged": (500, None, "Use another server, and update this one."),
    "duplicate-client": (422, "clients", "Send every id once."),
    "foreign-origin": (403, "Origin", "Send it from a program, or from this server's own page."),
    "invalid-input": (422, None, "Do what the detail says, then send the request again."),
    "key-reused": (409, "Idempotency-Key", "Send a new key with every new round."),
    "missing-column": (409, None, "Do what the detail says, then send the request again."),
    "missing-metric": (422, "metrics", "Send the metric with the outcome; null = unknown."),
    "name-taken": (409, "name", "Choose another name, or delete that federation first."),
    "newer-database": (503, "database", "Use another server, then upgrade and restart this one."),
    "no-clients": (409, "clients", "Enrol clients first with PUT .../clients."),
    "no-receipt-key": (404, "receipt_key", "Start the server with --receipt-key FILE."),
    "no-token": (
        401,
        "Authorization",
        "Send 'Authorization: Bearer TOKEN'; see 'turnout serve token'.",
    ),
    "not-chosen": (422, "outcomes", "Report only clients of the round's cohort."),
    "not-new": (409, "name", "Create another federation, and import the state into that one."),
    "no-schedule": (409, None, "Use POST .../rounds."),
    "has-schedule": (409, None, "Use POST .../places; see GET .../places."),
    "name-the-choice": (
        422,
        "choice",
        "Send the choice of GET .../places, or an Idempotency-Key: then it is safe to repeat.",
    ),
    "unknown-choice": (404, "choice", "Make it first with POST .../places."),
    "wrong-choice": (409, "choice", "Ask for the next choice."),
    "policy-decides": (422, None, 'Leave it out, or use the policy "reported".'),
    "poll-first": (409, "losses", "Ask POST .../poll for the clients, then send their losses."),
    "round-open": (409, "round", "Close it first with POST .../rounds/NUMBER/close."),
    "server-error": (500, None, "The server's log has the reason."),
    "too-few-answers": (409, "quorum", 'Fix the clients, then send {"go_on": true}.'),
    "too-few-free": (409, "available", "Enrol more clients, or wait until busy ones are free."),
    "too-large": (413, "body", "Send it in parts, or start the server with a larger --max-body."),
    "too-many-tokens": (429, "Authorization", "Wait, then send a token that works."),
    "unknown-client": (404, "clients", "Enrol them first with PUT .../clients, or omit them."),
    "unknown-federation": (404, "name", "Create it with POST /federations."),
    "unknown-round": (404, "round", "Open it first with POST .../rounds."),
    "unknown-token": (401, "Authorization", "Make a token with 'turnout serve token'."),
    "wrong-poll": (422, "losses", "Poll again with the same terms as the round; null = no loss."),
    "wrong-round": (409, "round", "Ask for the next round, or omit the number."),
    "wrong-scope": (403, "Authorization", "Use a token with this scope."),
    "wrong-shape": (422, None, "Send what /openapi.json describes for this request."),
}
#: The fixes for the framework's own errors, by status.
_FIXES = {
    400: "Send JSON with 'Content-Type: application/json'.",
    404: "See /openapi.json for the paths.",
    405: "See /openapi.json for the methods of this path.",
}


class Diverged(TurnoutError, RuntimeError):
    """Replaying the log selected other clients than those on record."""


#: The kinds of turnout's own errors; all others are invalid input.
_KIND_OF: dict[type[Exception], str] = {
    DatabaseError: "newer-database",
    Diverged: "diverged",
    MissingColumn: "missing-column",
}


class HttpProblem(HTTPException):
    """A request that was not carried out; nothing has changed.

    Args:
        kind: What went wrong, as a word for programs.
        detail: What went wrong, in a sentence.
        status: The HTTP status, if it is not that of the kind.
        field: The part of the request that is wrong, if it is not that of the kind.
        fix: What to do about it, if there is something better to say than for the kind.
        headers: Further headers of the response.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        status: int | None = None,
        field: str | None = None,
        fix: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        usual_status, usual_field, usual_fix = _KINDS[kind]
        super().__init__(status or usual_status, detail, headers)
        self.kind, self.field, self.fix = kind, field or usual_field, fix or usual_fix

    def response(self) -> JSONResponse:
        """Return the response to the request."""
        document = {
            "type": f"urn:turnout:{self.kind}",
            "title": self.kind.replace("-", " ").capitalize(),
            "status": self.status_code,
            "detail": self.detail,
            "field": self.field,
            "fix": self.fix,
        }
        return JSONResponse(document, self.status_code, self.headers, MEDIA_TYPE)


def check_unique(clients: Sequence[Hashable], field: str) -> None:
    """Reject repeated ids.

    Args:
        clients: Ids.
        field: The field of the request that has them.
    """
    if len(set(clients)) < len(clients):
        twice, _ = Counter(clients).most_common(1)[0]
        detail = f"{field} must name each client once, got {twice!r} twice."
        raise HttpProblem("duplicate-client", detail, field=field)


def round_open(t: int) -> HttpProblem:
    """Return the problem of a round that is open."""
    fix = f"Report the outcomes of round {t}, or close it with POST .../rounds/{t}/close."
    return HttpProblem("round-open", f"round {t} is open.", fix=fix)


def check_known(clients: Sequence[Hashable], roster: Roster, field: str) -> None:
    """Reject ids that are not enrolled, or repeated.

    Args:
        clients: Ids.
        roster: The clients that are enrolled.
        field: The field of the request that has the ids.
    """
    check_unique(clients, field)
    unknown = [client for client in clients if client not in roster]
    if unknown:
        some = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        detail = f"{len(unknown)} ids are not enrolled: {some}."
        raise HttpProblem("unknown-client", detail, field=field)


def handle_errors(app: FastAPI) -> None:
    """Let an application respond to every error with a problem document."""

    def respond(_: Request, error: Exception) -> JSONResponse:
        problem = _problem_of(error)
        if problem.status_code >= 500:
            is_bug = not isinstance(error, TurnoutError | SQLAlchemyError)
            log.error("a request failed: %s", error, exc_info=error if is_bug else None)
        return problem.response()

    # After the handler of ``Exception``, Starlette raises the error once more, so that expected
    # errors need handlers of their own.
    expected = (HTTPException, RequestValidationError, TurnoutError, SQLAlchemyError)
    for kind in (*expected, Exception):
        app.add_exception_handler(kind, respond)


def _problem_of(error: Exception) -> HttpProblem:
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, HTTPException):
        status, fix = error.status_code, _FIXES.get(error.status_code)
        about = str(error.detail)
        return HttpProblem("bad-request", about, status=status, fix=fix, headers=error.headers)
    if isinstance(error, RequestValidationError):
        first: dict[str, Any] = dict(error.errors()[0])
        field = _field(first["loc"], error.body, is_missing=first["type"] == "missing")
        return HttpProblem("wrong-shape", f"{field}: {first['msg']}.", field=field)
    if isinstance(error, SQLAlchemyError):
        return HttpProblem("database-failed", "the database did not respond.", headers=RETRY)
    if isinstance(error, TurnoutError):
        wrong = getattr(error, "field", None)
        fix = f"Correct {wrong}." if wrong else None
        return HttpProblem(
            _KIND_OF.get(type(error), "invalid-input"), str(error), field=wrong, fix=fix
        )
    return HttpProblem("server-error", "the server failed; nothing was changed.")


def _field(location: Sequence[str | int], body: Any, *, is_missing: bool) -> str:
    """Return where an error is, without the names of types that pydantic tried there."""
    where, *parts = location
    if where != "body":
        return str(parts[-1])
    path: list[str] = []
    for part in parts:
        is_list, is_dict = isinstance(body, list), isinstance(body, dict)
        if (is_list and isinstance(part, int)) or (is_dict and (part in body or is_missing)):
            path.append(str(part))
            body = body.get(part) if is_dict else body[part]
    return ".".join(path) or "body"
