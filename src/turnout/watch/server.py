"""The server of the page: on loopback, for reading only.

The page asks for news every second; polling needs no open connection, so a restart, a laptop that
slept and Ctrl-C are all the same to it.
"""

from __future__ import annotations

import json
import os
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from turnout import require
from turnout.errors import InvalidInput, TurnoutError
from turnout.report import report_page
from turnout.report.page import packaged, templates
from turnout.watch.view import page_view
from turnout.watch.watcher import Watcher

#: Seconds without news after which a run counts as stalled.
STALLED_S = 300.0
_HOST = "127.0.0.1"
#: Names under which a browser on this machine, or behind a tunnel to it, may ask.
_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
#: Only our own script and style; nothing else is fetched, framed or sent anywhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The report has a stricter policy of its own, inside its page.
_REPORT_POLICY = "frame-ancestors 'none'"
#: After a look that took long, the next one waits so many times as long; a run needs the computer.
_REST = 5.0


class WatchServer(ThreadingHTTPServer):
    """Serves the page that follows a folder.

    Args:
        path: The folder; it need not exist yet.
        port: The port on loopback; 0 takes a free one.
        stalled_s: Seconds without news after which a run counts as stalled.

    Raises:
        InvalidInput: The path is not a folder, or the port cannot be had.
        MissingExtra: If Jinja2 is not installed.
    """

    daemon_threads = True

    def __init__(
        self, path: str | os.PathLike[str], port: int = 0, stalled_s: float = STALLED_S
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(
                f"{path} is not a folder: give a run folder, such as runs/NAME.", field="path"
            )
        require.integer("port", port, minimum=0, maximum=65_535)
        self._watcher = Watcher(self.path, require.number("stalled_s", stalled_s, minimum=0.0))
        self._templates = templates("turnout.watch")
        self._lock = Lock()
        self._parts: dict[str, tuple[str, str, str]] = {}  # by run: version, title, content
        self._next_at = 0.0  # on time.monotonic()
        self._look = self._watcher.look()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise InvalidInput(
                f"--port: {port} cannot be had ({error.strerror or error}): choose another, or 0 "
                "for a free one.",
                field="port",
            ) from error

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{_HOST}:{self.server_port}/"

    def page(self) -> str:
        """Return the page without its content, which the script asks for."""
        return self._templates.get_template("watch.html").render(path=str(self.path))

    def news(self, key: str, version: str) -> dict[str, Any]:
        """Return what has changed since a version of the page.

        Args:
            key: The run that is shown in full.
            version: What the page shows; empty = nothing yet.
        """
        with self._lock:
            before = time.monotonic()
            if before >= self._next_at:
                self._look = self._watcher.look()
            known = self._part(key)
            after = time.monotonic()
            self._next_at = max(self._next_at, after + (after - before) * _REST)
        told: dict[str, Any] = {"version": known[0], "now": time.time(), "title": known[1]}
        return told if version == known[0] else told | {"html": known[2]}

    def report(self) -> str:
        """Return the report of all rounds so far."""
        return report_page([self.path])

    def _part(self, key: str) -> tuple[str, str, str]:
        """Return version, title and content of the page for a run, made anew if it has changed."""
        version = self._look.version
        # of older versions nothing is kept, and nothing for keys that somebody made up
        self._parts = {run: part for run, part in self._parts.items() if part[0] == version}
        if key not in self._look.runs:
            key = ""
        if key not in self._parts:
            view = page_view(self._look, str(self.path), key, self._watcher.stalled_s)
            content = self._templates.get_template("part.html").render(view=view)
            self._parts[key] = (version, view.title, content)
        return self._parts[key]


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: WatchServer
    server_version, sys_version = "turnout", ""

    def do_GET(self) -> None:
        """Answer with the page, its style and script, news or the report."""
        if self._own_name() not in _OWN_NAMES:  # a foreign page whose name points here
            self._say(HTTPStatus.FORBIDDEN, "text/plain", "Only for this machine.")
            return
        asked = urlsplit(self.path)
        try:
            match asked.path:
                case "/":
                    self._say(HTTPStatus.OK, "text/html", self.server.page())
                case "/watch.js":
                    self._say(HTTPStatus.OK, "text/javascript", _script())
                case "/watch.css":
                    self._say(HTTPStatus.OK, "text/css", _style())
                case "/news":
                    query = parse_qs(asked.query)
                    key, version = (query.get(name, [""])[0] for name in ("run", "version"))
                    news = json.dumps(self.server.news(key, version))
                    self._say(HTTPStatus.OK, "application/json", news)
                case "/report":
                    self._say(HTTPStatus.OK, "text/html", self.server.report(), _REPORT_POLICY)
                case _:
                    self._say(HTTPStatus.NOT_FOUND, "text/plain", "There is nothing here.")
        except TurnoutError as error:
            self._say(HTTPStatus.CONFLICT, "text/plain", str(error))

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is for people."""

    def _own_name(self) -> str:
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return ""

    def _say(self, status: HTTPStatus, kind: str, text: str, policy: str = _POLICY) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def serve(path: str | os.PathLike[str], port: int = 0, stalled_s: float = STALLED_S) -> None:
    """Serve the page that follows a folder, until Ctrl-C.

    Args:
        path: The folder; it need not exist yet.
        port: The port on loopback; 0 takes a free one.
        stalled_s: Seconds without news after which a run counts as stalled.
    """
    with WatchServer(path, port, stalled_s) as server:
        run_until_interrupted(server)


def run_until_interrupted(server: WatchServer) -> None:
    """Answer requests until Ctrl-C.

    Args:
        server: The server.
    """
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        return


def _style() -> str:
    return "".join(map(packaged, ("report.css", "live.css"))) + _own("watch.css")


def _script() -> str:
    return _own("watch.js")


def _own(name: str) -> str:
    return resources.files("turnout.watch").joinpath(name).read_text(encoding="utf-8")
