"""The application and the server that runs it: API, page, health and metrics over one database."""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp

from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.names import import_extra
from turnout.core.version import __version__
from turnout.live.receipts import Receipts
from turnout.serve import federations, places, rounds
from turnout.serve.auth import (
    MAX_BODY,
    WrongTokens,
    declare_tokens,
    has_tokens,
    is_loopback,
    needs,
)
from turnout.serve.database import reading, tidy, writing
from turnout.serve.logs import CALLER, Caller, Requests, log_config
from turnout.serve.problems import ERRORS, HttpProblem, handle_errors
from turnout.serve.store import Store

log = logging.getLogger("turnout.serve")

#: Seconds between two checks for rounds whose time is over ...
_CHECK_S = 1.0
#: ... and for rounds that are older than is kept.
_FORGET_S = 3600.0
#: Objects that a request may leave for a while before unreachable ones are looked for.
_GC_AFTER = 20_000
#: Seconds that requests in progress have when the server is stopped ...
GRACE_S = 30
#: ... and snapshots after them.
_SNAPSHOT_S = 10


class _App(FastAPI):
    """The application, with a line of the log for each request, also for those that fail."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return what responds to requests."""
        return Requests(super().build_middleware_stack(), self.state.store.metrics.count_request)


def create_app(
    engine: Engine,
    *,
    max_body: int = MAX_BODY,
    no_auth: bool = False,
    keep_days: float | None = None,
    receipt_key: Path | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        engine: The database, as ``turnout.serve.open_database`` returns it.
        max_body: Bytes that the body of a request may have.
        no_auth: Whether programs on this machine need no token, as long as there never was one.
        keep_days: Days that the records of a round are kept after its end; None: for ever.
        receipt_key: PEM file of the key that signs receipts; None: they are not signed.

    Raises:
        InvalidInput: The days are not a number above 0.
    """
    if keep_days is not None and not 0.0 < keep_days < math.inf:
        raise InvalidInput(
            f"--keep-days must be a number above 0, got {keep_days:g}: omit it to keep everything.",
            field="keep_days",
        )
    store, receipts = Store(engine), Receipts(receipt_key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        stop = Event()
        thread = Thread(target=_keep_house, args=(store, stop, keep_days), daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join()
        store.snapshots.close()
        engine.dispose()

    app = _App(
        title="turnout",
        summary="Client selection for federated learning",
        version=__version__,
        docs_url=None,  # its page would load scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.store, app.state.receipts, app.state.no_auth = store, receipts, no_auth
    app.state.max_body, app.state.wrong_tokens = max_body, WrongTokens()
    handle_errors(app)
    for part in (rounds, places, federations):
        app.router.routes.extend(part.router.routes)  # matched in this order
    for path, (name, media_type) in _PAGE.items():
        app.add_route(path, partial(_file, name, media_type), include_in_schema=False)

    @app.get("/health", tags=["server"])
    async def health() -> dict[str, Any]:
        """Return that the server is alive; no token is needed, and no database."""
        return {"status": "ok", "version": __version__}

    @app.get("/ready", tags=["server"], responses=ERRORS)
    def ready() -> dict[str, Any]:
        """Return whether requests can be answered: the database responds, and is up to date."""
        with reading(engine):
            return {"status": "ready", "version": __version__}

    @app.get("/receipts.pem", tags=["server"], responses=ERRORS)
    def receipt_key_of_server() -> Response:
        """Return the public key of receipts; no token is needed."""
        if not receipts.public_key:
            raise HttpProblem("no-receipt-key", "the receipts of this server are not signed.")
        return Response(receipts.public_key, media_type="application/x-pem-file")

    @app.get("/metrics", tags=["server"], dependencies=[Depends(needs("read", everywhere=True))])
    def metrics() -> Response:
        """Return what this server has counted since its start, in Prometheus' text format."""
        store.catch_up()
        store.show_open_rounds(time.time())
        return Response(store.metrics.text(), media_type=store.metrics.content_type)

    return app


def _keep_house(store: Store, stop: Event, keep_days: float | None) -> None:
    """Close rounds whose time is over, tidy up and forget old ones, until the server stops."""
    CALLER.set(Caller("(server)"))
    closing = _Chore("overdue rounds can%s be closed")
    tidying = _Chore("the log of SQLite can%s be moved to the database file")
    forgetting = _Chore("old rounds can%s be deleted")
    next_forget = time.monotonic()
    while not stop.wait(_CHECK_S):
        with closing:
            rounds.close_overdue(store, time.time())
        with tidying:
            tidy(store.engine)
        if keep_days is None:
            continue
        with forgetting:
            if time.monotonic() >= next_forget:
                rounds.forget_old(store, time.time() - keep_days * 86_400.0)
                next_forget = time.monotonic() + _FORGET_S
            rounds.forget_waiting(store)


class _Chore:
    """Logs the first failure of a row, and that it is over; the next try may succeed.

    Args:
        text: What can be done, with a place for "not".
    """

    def __init__(self, text: str) -> None:
        self._text, self._is_failing = text, False

    def __enter__(self) -> None:
        """Start a try."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """End it."""
        if error is None:
            if self._is_failing:
                log.warning(self._text + " again", "")
            self._is_failing = False
            return False
        if not self._is_failing:
            is_bug = not isinstance(error, TurnoutError | SQLAlchemyError)
            log.error(self._text + ": %s", "not", error, exc_info=error if is_bug else None)
        self._is_failing = True
        return isinstance(error, Exception)


# --------------------------------------------------------------------------------------------------
# The page that shows federations, rounds and fairness: three files, and nothing from other hosts.
# --------------------------------------------------------------------------------------------------

#: The files of the page, by path.
_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def _file(name: str, media_type: str, _: Request) -> Response:
    content = files("turnout.serve").joinpath("pagefiles", name).read_bytes()
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=_HEADERS)


# --------------------------------------------------------------------------------------------------
# The server: uvicorn, with the checks that come before a port is opened.
# --------------------------------------------------------------------------------------------------


def run(
    engine: Engine,
    host: str = "127.0.0.1",
    port: int = 8717,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    max_body: int = MAX_BODY,
    no_auth: bool = False,
    token_file: Path | None = None,
    keep_days: float | None = None,
    grace_s: int = GRACE_S,
    json_logs: bool = False,
    receipt_key: Path | None = None,
) -> None:
    """Serve until the process is stopped.

    Args:
        engine: The database, as ``turnout.serve.open_database`` returns it.
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        certificate: PEM file of the certificate, with its chain; None: no TLS.
        key: PEM file of its private key.
        max_body: Bytes that the body of a request may have.
        no_auth: Whether programs on this machine need no token, as long as there never was one.
        token_file: Tokens that the server has from the start; see ``declare_tokens``.
        keep_days: Days that the records of a round are kept after its end; None: for ever.
        grace_s: Seconds that requests in progress have when the process is stopped.
        json_logs: Whether each line of the log is a JSON object.
        receipt_key: PEM file of the key that signs receipts; None: they are not signed.

    Raises:
        InvalidInput: No token is configured, the server would be open to other machines without
            one, half of the TLS files are missing, a file of tokens is wrong, or the days are not
            a number above 0.
        MissingExtra: uvicorn is not installed.
    """
    if token_file is not None:
        with writing(engine) as connection:
            declare_tokens(connection, token_file)
    check(engine, host, certificate, key, no_auth=no_auth)
    logging.getLogger("uvicorn.error").addFilter(_is_useful)
    uvicorn = import_extra("uvicorn", "the server needs uvicorn: pip install 'turnout[serve]'")
    from turnout.serve.protocol import MOST_CONNECTIONS, TimedProtocol

    config = uvicorn.Config(
        create_app(
            engine,
            max_body=max_body,
            no_auth=no_auth,
            keep_days=keep_days,
            receipt_key=receipt_key,
        ),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        server_header=False,
        http=TimedProtocol,  # the other parser loses the body of requests that offer HTTP/2
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=grace_s,
        log_config=log_config(as_json=json_logs),
        access_log=False,
    )
    server = uvicorn.Server(config)
    # Threads cannot be cancelled. What is not committed when the time is over is lost, as if the
    # process was killed, and its caller gets no response.
    last = Timer(grace_s + _SNAPSHOT_S, _give_up)
    last.daemon = True
    stop = server.handle_exit

    def handle_exit(number: int, frame: Any) -> None:
        stop(number, frame)
        with suppress(RuntimeError):  # it runs since the first signal
            last.start()

    server.handle_exit = handle_exit
    gc.collect()
    gc.freeze()  # what was imported stays, and is not looked through again and again
    gc.set_threshold(_GC_AFTER, *gc.get_threshold()[1:])
    server.run()
    last.cancel()
    if not server.started:
        raise SystemExit(3)  # uvicorn has logged why, such as a port that is taken


def _give_up() -> None:
    log.error("requests or snapshots are still in progress, and their time is over")
    logging.shutdown()
    os._exit(1)


def check(
    engine: Engine,
    host: str,
    certificate: Path | None = None,
    key: Path | None = None,
    *,
    no_auth: bool = False,
) -> None:
    """Reject what would be unsafe or cannot work, before a port is opened.

    Args:
        engine: The database.
        host: Address to bind.
        certificate: PEM file of the certificate.
        key: PEM file of its private key.
        no_auth: Whether programs on this machine need no token.

    Raises:
        InvalidInput: What is wrong, and the fix.
    """
    if (certificate is None) != (key is None):
        raise InvalidInput("--certificate and --key belong together: give both.", field="key")
    for field, path in (("certificate", certificate), ("key", key)):
        if path is not None and not path.is_file():
            raise InvalidInput(f"--{field}: there is no file {path}.", field=field)
    with engine.begin() as connection:
        had_token = has_tokens(connection)
    if no_auth and not is_loopback(host):
        raise InvalidInput(
            f"--no-auth is for this machine only, and --host {host} would admit others: omit one "
            "of the two.",
            field="host",
        )
    if no_auth and had_token:
        raise InvalidInput(
            "--no-auth: the database has a token, or had one, so every request needs one: omit "
            "--no-auth, or give another --database.",
            field="no_auth",
        )
    if not no_auth and not had_token:
        raise InvalidInput(
            "no token is configured: make one first with 'turnout serve token NAME --scope admin', "
            "or serve this machine only with --no-auth.",
            field="no_auth",
        )


def _is_useful(record: logging.LogRecord) -> bool:
    """Drop uvicorn's messages about every request that offers HTTP/2 or a web socket."""
    text = record.getMessage()
    return not text.startswith(("Unsupported upgrade request", "No supported WebSocket library"))
