"""A server that listens: uvicorn, with the checks that come before a port is opened."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine

from turnout.errors import InvalidInput
from turnout.names import import_extra
from turnout.serve.access import MAX_BODY, is_loopback
from turnout.serve.app import create_app
from turnout.serve.tokens import has_tokens

#: Seconds that requests in progress have when the server is asked to end.
_GRACE_S = 30


class Listen(NamedTuple):
    """Where and how to listen.

    Attributes:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        certificate: PEM file of the certificate, with its chain; None: no TLS.
        key: PEM file of its private key.
        max_body: Bytes that the body of a request may have.
    """

    host: str = "127.0.0.1"
    port: int = 8717
    certificate: Path | None = None
    key: Path | None = None
    max_body: int = MAX_BODY


def run(engine: Engine, listen: Listen) -> None:
    """Serve until the process is told to end.

    Args:
        engine: What ``turnout.serve.open_database`` returned.
        listen: Where and how.

    Raises:
        InvalidInput: It would be open to other machines without a token, or half of TLS is missing.
        MissingExtra: uvicorn is not installed.
    """
    check(engine, listen)
    logging.getLogger("uvicorn.error").addFilter(_is_of_use)
    uvicorn = import_extra("uvicorn", "the server needs uvicorn: pip install 'turnout[serve]'")
    uvicorn.run(
        create_app(engine, max_body=listen.max_body),
        host=listen.host,
        port=listen.port,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
        server_header=False,
        http="h11",  # the other parser loses the body of requests that offer HTTP/2, as Java does
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
    )


def _is_of_use(record: logging.LogRecord) -> bool:
    """Leave out what uvicorn says about every request that offers HTTP/2 or a web socket."""
    text = record.getMessage()
    return not text.startswith(("Unsupported upgrade request", "No supported WebSocket library"))


def check(engine: Engine, listen: Listen) -> None:
    """Refuse what would be unsafe or cannot work, before a port is opened.

    Args:
        engine: The database.
        listen: Where and how.

    Raises:
        InvalidInput: What is wrong, and the fix.
    """
    if (listen.certificate is None) != (listen.key is None):
        raise InvalidInput("--certificate and --key belong together: give both.", field="key")
    for field, path in (("certificate", listen.certificate), ("key", listen.key)):
        if path is not None and not path.is_file():
            raise InvalidInput(f"--{field}: there is no file {path}.", field=field)
    with engine.begin() as connection:
        is_open = not has_tokens(connection)
    if is_open and not is_loopback(listen.host):
        raise InvalidInput(
            f"--host {listen.host} would let other machines in, and no token is configured: make "
            "one first with 'turnout serve token NAME --scope admin', or leave --host out.",
            field="host",
        )
