"""The application and the server that runs it: API, page, health and metrics over one database."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from sqlalchemy import Engine

from turnout.core.errors import InvalidInput
from turnout.core.names import import_extra
from turnout.core.version import __version__
from turnout.serve import federations, rounds
from turnout.serve.auth import MAX_BODY, WrongTokens, has_tokens, is_loopback, needs
from turnout.serve.database import reading
from turnout.serve.problems import handle_errors
from turnout.serve.store import Store

log = logging.getLogger("turnout.serve")

#: Seconds between two checks for rounds whose time is over.
_CHECK_S = 1.0
#: Connections at the same time; further requests get the status 503.
_MAX_CONNECTIONS = 1000
#: Seconds that requests in progress have when the server is stopped.
_GRACE_S = 30


def create_app(engine: Engine, *, max_body: int = MAX_BODY, no_auth: bool = False) -> FastAPI:
    """Return the application.

    Args:
        engine: The database, as ``turnout.serve.open_database`` returns it.
        max_body: Bytes that the body of a request may have.
        no_auth: Whether programs on this machine need no token, as long as there never was one.
    """
    store = Store(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        stop = Event()
        thread = Thread(target=_close_rounds, args=(store, stop), daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join()
        store.snapshots.close()
        engine.dispose()

    app = FastAPI(
        title="turnout",
        summary="Client selection for federated learning",
        version=__version__,
        docs_url=None,  # its page would load scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.store, app.state.no_auth = store, no_auth
    app.state.max_body, app.state.wrong_tokens = max_body, WrongTokens()
    handle_errors(app)
    app.include_router(federations.router)
    app.include_router(rounds.router)
    for path, (name, media_type) in _PAGE.items():
        app.add_route(path, partial(_file, name, media_type), include_in_schema=False)

    @app.get("/health", tags=["server"])
    def health() -> dict[str, Any]:
        """Return whether the server and its database respond; no token is needed."""
        with reading(engine):
            return {"status": "ok", "version": __version__}

    @app.get("/metrics", tags=["server"], dependencies=[Depends(needs("read", everywhere=True))])
    def metrics() -> Response:
        """Return what this server has counted since its start, in Prometheus' text format."""
        store.catch_up()
        return Response(store.metrics.text(), media_type=store.metrics.content_type)

    return app


def _close_rounds(store: Store, stop: Event) -> None:
    """Close rounds whose time is over, until the server stops."""
    while not stop.wait(_CHECK_S):
        try:
            rounds.close_overdue(store, time.time())
        except Exception:  # the next check may succeed
            log.exception("overdue rounds could not be closed")


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

    Raises:
        InvalidInput: No token is configured, the server would be open to other machines without
            one, or half of the TLS files are missing.
        MissingExtra: uvicorn is not installed.
    """
    check(engine, host, certificate, key, no_auth=no_auth)
    logging.getLogger("uvicorn.error").addFilter(_is_useful)
    uvicorn = import_extra("uvicorn", "the server needs uvicorn: pip install 'turnout[serve]'")
    from turnout.serve.protocol import TimedProtocol

    uvicorn.run(
        create_app(engine, max_body=max_body, no_auth=no_auth),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        server_header=False,
        http=TimedProtocol,  # the other parser loses the body of requests that offer HTTP/2
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_S,
    )


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
