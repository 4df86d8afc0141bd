"""How errors become answers: every one is a problem document, whatever raised it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from turnout.errors import InvalidInput, MissingColumn, TurnoutError
from turnout.serve.access import too_large
from turnout.serve.database import DatabaseError
from turnout.serve.problems import MEDIA_TYPE, Refusal
from turnout.serve.store import Diverged

log = logging.getLogger("turnout.serve")

#: What the framework's own errors say, by status.
_FIXES = {
    404: "See /openapi.json for the paths.",
    405: "See /openapi.json for the methods of this path.",
    400: "Send JSON with 'Content-Type: application/json'.",
}


def answer_errors(app: FastAPI, max_body: int) -> None:
    """Let an application answer every error with a problem document.

    Args:
        app: The application.
        max_body: Bytes that a body may have, to be named when it has more.
    """

    def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 413:
            return _answer(too_large(max_body))
        fix = _FIXES.get(error.status_code, "See the detail.")
        problem = Refusal(error.status_code, "bad-request", str(error.detail), fix=fix)
        return _answer(problem, dict(error.headers or {}))

    app.add_exception_handler(Refusal, _of_refusal)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, _of_body)
    app.add_exception_handler(Diverged, _of_divergence)
    app.add_exception_handler(DatabaseError, _of_version)
    app.add_exception_handler(TurnoutError, _of_turnout)
    app.add_exception_handler(SQLAlchemyError, _of_database)
    app.add_exception_handler(Exception, _of_bug)


def _answer(problem: Refusal, headers: dict[str, str] | None = None) -> JSONResponse:
    headers = {**(problem.headers or {}), **(headers or {})}
    return JSONResponse(problem.document(), problem.status, headers, MEDIA_TYPE)


def _of_refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    return _answer(error)


def _of_body(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    field = _place(first["loc"], error.body, is_missing=first["type"] == "missing")
    return _answer(
        Refusal(
            422,
            "wrong-shape",
            f"{field}: {first['msg']}.",
            field=field,
            fix="Send what /openapi.json describes for this request.",
        )
    )


def _place(location: Sequence[str | int], body: Any, *, is_missing: bool) -> str:
    """Return where an error is, without the names of types that pydantic tried there."""
    where, *parts = location
    if where != "body":
        return str(parts[-1])
    place: list[str] = []
    for part in parts:
        is_there = isinstance(body, dict) and part in body
        is_there = is_there or (isinstance(body, list) and isinstance(part, int))
        if is_there or (is_missing and isinstance(body, dict)):
            place.append(str(part))
            body = body[part] if is_there else None
    return ".".join(place) or "body"


def _of_turnout(_: Request, error: Exception) -> JSONResponse:
    field = error.field if isinstance(error, InvalidInput) else None
    is_missing = isinstance(error, MissingColumn)
    status, kind = (409, "missing-column") if is_missing else (422, "invalid-input")
    fix = f"Correct {field}." if field else "Do what the detail says, then send it again."
    return _answer(Refusal(status, kind, str(error), field=field, fix=fix))


def _of_version(_: Request, error: Exception) -> JSONResponse:
    log.error("%s", error)
    fix = "Ask another server, and have this one upgraded and started again."
    return _answer(Refusal(503, "newer-database", str(error), field="database", fix=fix))


def _of_divergence(_: Request, error: Exception) -> JSONResponse:
    log.error("%s", error)
    fix = "Ask another server, and have this one updated."
    return _answer(Refusal(500, "diverged", str(error), fix=fix))


def _of_database(_: Request, error: Exception) -> JSONResponse:
    log.error("the database failed: %s", error)
    return _answer(
        Refusal(
            503,
            "database-failed",
            "the database did not answer.",
            fix="Send the request again in a moment; it is safe to repeat.",
            headers={"Retry-After": "1"},
        )
    )


def _of_bug(_: Request, error: Exception) -> JSONResponse:
    log.exception("a request failed", exc_info=error)
    return _answer(
        Refusal(
            500,
            "server-error",
            "the server failed; nothing was changed.",
            fix="The server's log has the reason.",
        )
    )
