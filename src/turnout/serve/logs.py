"""Who did what: a line of the log for each request, and the audit log in the database.

Every request has an id, which its response, its lines of the log and its audit entries share. An
audit entry is committed with the change that it is about, so neither is there without the other.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.live.transport import one_line
from turnout.serve.database import AUDIT

access_log = logging.getLogger("turnout.access")
access_log.addFilter(one_line)

#: The header with the id of a request, which a caller may choose.
REQUEST_ID = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
#: Paths that are asked for all the time by other programs.
_PROBES = frozenset({"/health", "/ready", "/metrics"})


@dataclass
class Caller:
    """Who asks.

    Attributes:
        actor: The name of the token, or in parentheses what else it is.
        request_id: The id of the request; None outside of requests.
        address: Where it comes from.
    """

    actor: str
    request_id: str | None = None
    address: str | None = None


#: Who asks at the moment. ``turnout.serve.auth`` fills in the name of the token.
CALLER: ContextVar[Caller] = ContextVar("caller")
_OPERATOR = Caller("(command line)")
_NOTE = insert(AUDIT)


# --------------------------------------------------------------------------------------------------
# The audit log.
# --------------------------------------------------------------------------------------------------


def note(
    connection: Connection,
    action: str,
    federation: str | None = None,
    *,
    version: int | None = None,
    round: int | None = None,
    subject: str | None = None,
) -> None:
    """Add an entry to the audit log.

    Args:
        connection: The transaction of the change.
        action: What was done.
        federation: The name of the federation; None: to the whole server.
        version: The version of the federation after it.
        round: The round that it is about.
        subject: What else it is about, such as the name of another token.
    """
    values = vars(CALLER.get(_OPERATOR)) | {
        "action": action,
        "federation": federation,
        "version": version,
    }
    values |= {"round": round, "subject": subject, "at": time.time()}
    connection.execute(_NOTE, values)


def list_audit(
    connection: Connection,
    federation: str | None = None,
    actor: str | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    """Return the latest entries of the audit log, the newest first.

    Args:
        connection: A transaction.
        federation: Only those about this federation; None: all.
        actor: Only those by the token of this name; None: all.
        limit: How many at most.
    """
    query = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
    for column, wanted in ((AUDIT.c.federation, federation), (AUDIT.c.actor, actor)):
        if wanted is not None:
            query = query.where(column == wanted)
    return [dict(row) for row in connection.execute(query).mappings()]


# --------------------------------------------------------------------------------------------------
# Requests.
# --------------------------------------------------------------------------------------------------


class Requests:
    """Gives every request an id, and writes a line about it.

    Args:
        app: The application.
        count: Called with the status and the seconds of every request.
    """

    def __init__(self, app: ASGIApp, count: Any) -> None:
        self._app, self._count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application respond."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        sent = dict(scope["headers"]).get(REQUEST_ID.lower().encode(), b"").decode("latin-1")
        request_id = sent if _ID.fullmatch(sent) else secrets.token_hex(8)
        client = scope.get("client")
        caller = Caller("(no token)", request_id, client[0] if client else None)
        started, status = time.perf_counter(), 499  # the caller has gone

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                header = (REQUEST_ID.lower().encode(), request_id.encode())
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        reset = CALLER.set(caller)
        try:
            await self._app(scope, receive, tagged)
        finally:
            seconds = time.perf_counter() - started
            self._count(status, seconds)
            level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
            access_log.log(
                level,
                "%s %s %d %.1f ms",
                scope["method"], scope["path"], status, 1000.0 * seconds,
                extra={"fields": {
                    "method": scope["method"], "path": scope["path"], "status": status,
                    "ms": round(1000.0 * seconds, 1),
                }},
            )  # fmt: skip
            CALLER.reset(reset)


# --------------------------------------------------------------------------------------------------
# The log.
# --------------------------------------------------------------------------------------------------


class _Text(logging.Formatter):
    """A line for people: time, level, request, message."""

    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        caller = CALLER.get(_OPERATOR)
        record.who = f"{caller.request_id} {caller.actor}: " if caller.request_id else ""
        return super().format(record)


class _Json(logging.Formatter):
    """A line for programs: an object with the request and what else is known."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        caller = CALLER.get(_OPERATOR)
        if caller.request_id:
            line |= {"request_id": caller.request_id, "token": caller.actor}
            line |= {"address": caller.address}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def log_config(*, as_json: bool) -> dict[str, Any]:
    """Return the configuration of the log: requests on standard output, the rest on the other.

    Args:
        as_json: Whether each line is a JSON object.
    """
    text = {"()": _Text, "fmt": "%(asctime)s %(levelname)s %(who)s%(message)s"}
    handler = {"class": "logging.StreamHandler", "formatter": "line"}
    info, quiet = {"level": "INFO"}, {"handlers": [], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": _Json} if as_json else text},
        "handlers": {
            name: handler | {"stream": f"ext://sys.{name}"} for name in ("stdout", "stderr")
        },
        "loggers": {
            "turnout": info,
            "turnout.access": info | {"handlers": ["stdout"], "propagate": False},
            "uvicorn": info,
            "uvicorn.access": quiet,  # ours has the token and the id
        },
        "root": {"level": "WARNING", "handlers": ["stderr"]},
    }
