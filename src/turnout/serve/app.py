"""The application: API, page, health and metrics over one database."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event, Thread
from typing import Any

from fastapi import Depends, FastAPI, Response
from sqlalchemy import Engine

from turnout.serve import api, page
from turnout.serve.access import MAX_BODY, LimitBody, needs_server
from turnout.serve.answers import answer_errors
from turnout.serve.counter import Counter
from turnout.serve.database import reading
from turnout.serve.rounds import close_overdue
from turnout.serve.store import Store
from turnout.version import __version__

log = logging.getLogger("turnout.serve")

#: Seconds between two looks for rounds whose time is over.
_LOOK_S = 1.0


def create_app(engine: Engine, *, max_body: int = MAX_BODY) -> FastAPI:
    """Return the application.

    Args:
        engine: What ``turnout.serve.open_database`` returned.
        max_body: Bytes that the body of a request may have.
    """
    counter = Counter()
    store = Store(engine, counter)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        ends = Event()
        thread = Thread(target=_watch, args=(store, ends), name="turnout-deadlines", daemon=True)
        thread.start()
        yield
        ends.set()
        thread.join()
        store.snapshots.close()
        engine.dispose()

    app = FastAPI(
        title="turnout",
        summary="Who takes part in a round of federated learning",
        version=__version__,
        docs_url=None,  # its page would load scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.store = store
    app.add_middleware(LimitBody, most=max_body)
    answer_errors(app, max_body)
    app.include_router(api.router)
    app.include_router(page.router)

    @app.get("/health", tags=["server"])
    def health() -> dict[str, Any]:
        """Say whether the server and its database answer; no token is needed."""
        with reading(engine):
            return {"status": "ok", "version": __version__}

    @app.get("/metrics", tags=["server"], dependencies=[Depends(needs_server("read"))])
    def metrics() -> Response:
        """Return what this server has counted since it started, as Prometheus' text."""
        store.catch_up()
        return Response(counter.metrics.text(), media_type=counter.metrics.content_type)

    return app


def _watch(store: Store, ends: Event) -> None:
    """Close rounds whose time is over, until the server ends."""
    while not ends.wait(_LOOK_S):
        try:
            close_overdue(store, time.time())
        except Exception:  # the next look may do better
            log.exception("overdue rounds could not be closed")
