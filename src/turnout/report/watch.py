"""A page that follows run folders while they are written. It reads files only, and locks nothing.

>>> from turnout.report.watch import serve
>>> serve("runs/site")  # doctest: +SKIP

The server answers on loopback only. The page asks for news every second: polling needs no open
connection, so the page survives a restart of the server and a laptop that slept.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np

from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.require import integer
from turnout.core.require import number as a_number
from turnout.core.types import FloatArray
from turnout.report import report_page
from turnout.report.charts import over_rounds, success_so_far
from turnout.report.figure import Axis, Chart, Panel
from turnout.report.live import LiveRun, LiveView
from turnout.report.page import figures, packaged, plotly_js, templates, title_of
from turnout.results import files
from turnout.results.answers import OpenNow, read_open
from turnout.results.files import DamagedFile
from turnout.results.groups import plan_of
from turnout.results.reader import Cell, Problem, cell_folders, read_cells

#: Name, size, time of change and kind of each file of a folder.
_Print = tuple[tuple[str, int, int, int], ...]


class State(Enum):
    """The state of a watched folder."""

    ABSENT = "waiting for the folder"
    EMPTY = "waiting for a run"
    GONE = "the folder is gone"
    NO_FOLDER = "not a folder"
    RUNNING = "running"
    STALLED = "no news"
    FAILED = "failed"
    ENDED = "ended"


class WatchedRun(NamedTuple):
    """One run, as its folder is now.

    Attributes:
        key: Its folder below the watched one.
        cell: Its content; None if it cannot be read.
        news_at: When one of its files changed last, in seconds since 1970.
        due_at: When the next change is expected: at the end of the open round, else the last news.
        has_failed: Whether it left a traceback.
        problems: The damages of its files.
    """

    key: str
    cell: Cell | None
    news_at: float
    due_at: float
    has_failed: bool
    problems: list[Problem]

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or failed."""
        return self.has_failed or (self.cell is not None and self.cell.is_complete)


@dataclass(frozen=True, slots=True)
class Look:
    """All watched runs at one moment.

    Attributes:
        state: The state of the folder.
        runs: The runs by their folders, in the order of the experiment.
        n_planned: Planned runs, as far as they are known.
        news_at: When a file changed last, in seconds since 1970; 0 = there is none.
        version: Differs whenever anything else differs.
    """

    state: State
    runs: Mapping[str, WatchedRun] = field(default_factory=dict)
    n_planned: int = 0
    news_at: float = 0.0
    version: str = ""


class Watcher:
    """Looks at a folder that may not exist yet.

    Args:
        path: Experiment folder, cell folder or anything above them.
        stalled_s: Seconds without news after which a run counts as stalled.
    """

    def __init__(self, path: Path, stalled_s: float) -> None:
        self.path, self.stalled_s = path, stalled_s
        self._known: dict[str, tuple[_Print, WatchedRun]] = {}
        self._was_there = False

    def look(self) -> Look:
        """Return the runs as they are now."""
        if not self.path.is_dir():
            was_there = State.GONE if self._was_there else State.ABSENT
            return _nothing(State.NO_FOLDER if self.path.exists() else was_there)
        self._was_there = True
        try:
            found = {
                str(folder.relative_to(self.path)): folder for folder in cell_folders(self.path)
            }
        except (OSError, ValueError):  # it went away meanwhile
            return _nothing(State.GONE)
        self._known = {key: self._reread(key, folder) for key, folder in found.items()}
        if not self._known:
            return _nothing(State.EMPTY)
        labels, n_planned = self._plan(found.values())
        runs = _ordered([watched for _, watched in self._known.values()], labels)
        news_at = max(watched.news_at for watched in runs.values())
        state = self._state(runs, n_planned)
        prints = [(key, each) for key, (each, _) in self._known.items()]
        digest = hashlib.sha256(repr((state, n_planned, prints)).encode()).hexdigest()
        return Look(state, runs, n_planned, news_at, digest[:16])

    def _plan(self, folders: Iterable[Path]) -> tuple[list[str], int]:
        """Return the selectors of the experiments that are watched, in order, and all runs."""
        n_found = Counter(folder.parent.parent for folder in folders)
        labels: list[str] = []
        n_planned = 0
        for experiment, n_there in n_found.items():
            is_whole = experiment == self.path or self.path in experiment.parents
            listed, n_runs = plan_of(experiment) if is_whole else ([], 0)
            labels += listed
            n_planned += max(n_runs, n_there)
        return list(dict.fromkeys(labels)), n_planned

    def _state(self, runs: Mapping[str, WatchedRun], n_planned: int) -> State:
        if len(runs) >= n_planned and all(watched.is_over for watched in runs.values()):
            is_sound = not any(watched.has_failed for watched in runs.values())
            return State.ENDED if is_sound else State.FAILED
        due_at = max(watched.due_at for watched in runs.values())
        return State.STALLED if time.time() > due_at + self.stalled_s else State.RUNNING

    def _reread(self, key: str, folder: Path) -> tuple[_Print, WatchedRun]:
        """Return the run of a folder; it is read again only if a file has changed."""
        now = _print(folder)
        known = self._known.get(key)
        if known is not None and known[0] == now:
            return known
        cells, problems = read_cells([folder]) if now else ([], [])
        damages = [problem for problem in problems if problem.kind == "damaged"]
        news_at = max((changed for _, _, changed, _ in now), default=0) / 1e9
        has_failed = any(name == files.ERROR for name, *_ in now)
        has_failed = has_failed and not (cells and cells[0].is_complete)
        due_at = max(news_at, _round_ends_at(folder))
        return now, WatchedRun(
            key, cells[0] if cells else None, news_at, due_at, has_failed, damages
        )


def _nothing(state: State) -> Look:
    return Look(state, version=state.name)


def _print(folder: Path) -> _Print:
    """Return the fingerprint of a folder's files; empty if the folder is gone."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in shown]
    except OSError:
        return ()
    kinds = ((name, about, stat.S_IFMT(about.st_mode)) for name, about in found)
    return tuple(sorted((name, a.st_size, a.st_mtime_ns, kind) for name, a, kind in kinds))


def _round_ends_at(folder: Path) -> float:
    """Return when the open round of a live run ends at the latest; 0 if that is not known."""
    opened = read_open(folder)
    if opened is None or opened.deadline_s is None or opened.began_at is None:
        return 0.0
    return opened.began_at + opened.deadline_s


def _ordered(runs: list[WatchedRun], labels: list[str]) -> dict[str, WatchedRun]:
    """Return the runs by key: in the order of the plan, then by seed."""
    rank = {label: number for number, label in enumerate(labels)}

    def place(watched: WatchedRun) -> tuple[int, str, int]:
        if watched.cell is None:
            return len(rank), watched.key, 0
        settings = watched.cell.settings
        return rank.get(settings.label, len(rank)), settings.label, settings.seed

    return {watched.key: watched for watched in sorted(runs, key=place)}


# The page -----------------------------------------------------------------------------------------


__all__ = ["WatchServer", "serve"]

#: Seconds without news after which a run counts as stalled.
STALLED_S = 300.0
_HOST = "127.0.0.1"
#: Names under which a browser on this machine, or behind a tunnel to it, may ask.
_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
#: Only our own scripts and style; nothing else is fetched, framed or sent anywhere. plotly sets
#: styles of what it draws.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The report has a stricter policy of its own, inside its page.
_REPORT_POLICY = "frame-ancestors 'none'"
#: After a slow look, the next one waits this many times as long: the run needs the computer.
_REST = 5.0
#: Runs with more clients than this are not shown by client.
_MOST_CLIENTS = 100_000
#: Selectors whose curves are drawn, one colour each.
_MOST_CURVES = 8
#: Measures that are drawn if a run has them.
_MEASURES = ("accuracy", "loss", "staleness", "at_work")
_NONE = "\N{EN DASH}"


# What the page shows ------------------------------------------------------------------------------


#: The state in a sentence.
_WORDS = {
    State.ABSENT: "{path} does not exist yet. This page shows it as soon as it does.",
    State.EMPTY: "There is no run in {path} yet. This page shows it as soon as there is.",
    State.GONE: "{path} is gone: it was deleted or moved. This page shows it if it comes back.",
    State.NO_FOLDER: "{path} is not a folder any more.",
    State.STALLED: "No news for more than {stalled_s:g} s: it may have stopped. {far}.",
    State.FAILED: "Ended, {failed} runs failed; error.txt says why.",
    State.ENDED: "Ended: {far}.",
    State.RUNNING: "Running: {far}.",
}


class RunRow(NamedTuple):
    """A run in the table of all."""

    key: str
    link: str
    name: str
    done: int
    planned: int
    state: str
    in_time: str
    accuracy: str


class PageView(NamedTuple):
    """Everything on the page."""

    title: str
    state: str  #: name of the state, for the style sheet
    words: str
    news_at: float  #: 0 = there was none
    problems: list[Problem]
    rows: list[RunRow]  #: empty if there is a single run
    chosen: str  #: key of the run that is shown in full
    curves: list[Chart]
    opened: OpenNow | None
    detail: LiveView | None
    has_report: bool


def page_view(look: Look, path: str, key: str, stalled_s: float) -> PageView:
    """Return what the page shows.

    Args:
        look: The folder as it is now.
        path: The name of the folder.
        key: The run that is to be shown in full; if there is none of that name, one is taken: the
            only one, or the only one that is not over.
        stalled_s: Seconds without news after which a run counts as stalled.
    """
    runs = list(look.runs.values())
    running = [watched for watched in runs if not watched.is_over]
    only = next((those[0] for those in (runs, running) if len(those) == 1), None)
    shown = look.runs.get(key, only)
    cell = None if shown is None else shown.cell
    run = None if cell is None else _run(cell)
    far = f"{len(runs) - len(running)} of {look.n_planned} runs have ended"
    if look.n_planned == 1 and cell is not None:
        # a live run writes its choices only now and then, but its answers after each round
        n_done = cell.n_rounds if run is None or run.is_simulated else run.n_rounds
        far = f"{n_done:,} of {cell.settings.n_rounds:,} rounds are done"
    failed = f"{sum(watched.has_failed for watched in runs)} of {look.n_planned}"
    cells = [watched.cell for watched in runs if watched.cell is not None]
    is_one = len(runs) < 2
    return PageView(
        title=title_of(cells) or path,
        state=look.state.name.lower().replace("_", "-"),
        words=_WORDS[look.state].format(path=path, far=far, failed=failed, stalled_s=stalled_s),
        news_at=look.news_at,
        problems=[problem for watched in runs for problem in watched.problems],
        rows=[] if is_one else [_row(watched) for watched in runs],
        chosen="" if is_one or shown is None else shown.key,
        curves=[] if is_one else _curves(runs),
        opened=read_open(cell.path) if cell is not None and shown in running else None,
        detail=None if cell is None or run is None else _detail(cell, run),
        has_report=any(cell.n_rounds for cell in cells),
    )


def _row(watched: WatchedRun) -> RunRow:
    key, cell = watched.key, watched.cell
    if cell is None:
        return RunRow(key, quote(key), key, 0, 1, "not readable", _NONE, _NONE)
    accuracy = cell.series.get("accuracy", np.zeros(0))
    known = accuracy[np.isfinite(accuracy)]
    return RunRow(
        key,
        quote(key),
        f"{_where(watched)}{cell.settings.label}, seed {cell.settings.seed}",
        cell.n_rounds,
        cell.settings.n_rounds,
        "failed" if watched.has_failed else "ended" if cell.is_complete else "running",
        f"{success_so_far(cell)[-1]:.0%}" if np.nansum(cell.series["chosen"]) else _NONE,
        f"{known[-1]:.4f}" if known.size else _NONE,
    )


def _where(watched: WatchedRun) -> str:
    """Return the experiment of a run, if there may be several: ``point-1: ``."""
    above = PurePath(watched.key).parts[:-2]
    return f"{'/'.join(above)}: " if above else ""


def _run(cell: Cell) -> LiveRun | None:
    """Return a run by client; None while its choices are not known, or with too many clients."""
    if cell.settings.n_clients > _MOST_CLIENTS:
        return None
    try:
        run = LiveRun.of(cell) if cell.is_live else LiveRun.simulated(cell)
    except DamagedFile:
        return None
    return run if run is not None and run.n_rounds else None


def _detail(cell: Cell, run: LiveRun) -> LiveView:
    lines = (over_rounds(name, 0, [cell.series.get(name)]) for name in _MEASURES)
    measured = [line for line in lines if line is not None]
    name = f"{run.settings.label}, seed {run.settings.seed}"
    return LiveView(run, "run", name, run.settings.label, measured)


def _curves(runs: list[WatchedRun]) -> list[Chart]:
    """Return accuracy, else answers in time, by selector: the mean of its seeds so far."""
    started = [
        (f"{_where(each)}{cell.settings.label}", cell)
        for each in runs
        if (cell := each.cell) is not None and cell.n_rounds
    ]
    is_trained = any("accuracy" in cell.series for _, cell in started)
    by_label: dict[str, list[FloatArray | None]] = {}
    for label, cell in started:
        values = cell.series.get("accuracy") if is_trained else success_so_far(cell)
        by_label.setdefault(label, []).append(values)
    first = enumerate(list(by_label.items())[:_MOST_CURVES])
    drawn = (over_rounds(name, number, columns) for number, (name, columns) in first)
    lines = [line for line in drawn if line is not None]
    title = "Accuracy by round" if is_trained else "Replies in time so far"
    caption = (
        "Line: mean over the seeds of a selector, up to the round that all of them reached; band: "
        "lowest to highest seed."
    )
    panel = Panel(lines, Axis("round"))
    return [Chart("curves", title, caption, [panel], is_wide=True)] if lines else []


# The server ---------------------------------------------------------------------------------------


class WatchServer(ThreadingHTTPServer):
    """Serves the page that follows a folder.

    Args:
        path: The folder; it need not exist yet.
        port: The port on loopback; 0 takes a free one.
        stalled_s: Seconds without news after which a run counts as stalled.

    Raises:
        InvalidInput: The path is not a folder, or the port is not available.
        MissingExtra: If Jinja2 or plotly is not installed.
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
        integer("port", port, minimum=0, maximum=65_535)
        self._watcher = Watcher(self.path, a_number("stalled_s", stalled_s, minimum=0.0))
        self._templates, self.plotly = templates(), plotly_js()
        self._lock = Lock()
        self._parts: dict[str, dict[str, Any]] = {}  # by run
        self._next_at = 0.0  # on time.monotonic()
        self._look = self._watcher.look()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise InvalidInput(
                f"--port: {port} is not available ({error.strerror or error}): choose another, or "
                "0 for a free one.",
                field="port",
            ) from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}/"

    def page(self) -> str:
        """Return the page without its content, which the script asks for."""
        return self._templates.get_template("watch.html").render(path=str(self.path))

    def news(self, key: str, version: str) -> dict[str, Any]:
        """Return what has changed since a version of the page.

        Args:
            key: The run that is shown in full.
            version: The version that the page shows; empty = none yet.
        """
        with self._lock:
            before = time.monotonic()
            if before >= self._next_at:
                self._look = self._watcher.look()
            part = self._part(key)
            after = time.monotonic()
            self._next_at = max(self._next_at, after + (after - before) * _REST)
        now = {"version": part["version"], "now": time.time()}
        return now if version == part["version"] else now | part

    def _part(self, key: str) -> dict[str, Any]:
        """Return version, title and content of the page for a run, made anew if it has changed."""
        version = self._look.version
        # nothing is kept of older versions, nor for keys that somebody made up
        self._parts = {run: part for run, part in self._parts.items() if part["version"] == version}
        if key not in self._look.runs:
            key = ""
        if key not in self._parts:
            view = page_view(self._look, str(self.path), key, self._watcher.stalled_s)
            self._parts[key] = {
                "version": version,
                "title": view.title,
                "html": self._templates.get_template("part.html").render(view=view),
                "charts": figures(
                    {"curves": view.curves, "run": view.detail.charts if view.detail else []}
                )["charts"],
            }
        return self._parts[key]


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: WatchServer
    server_version, sys_version = "turnout", ""

    def do_GET(self) -> None:
        """Answer with the page, its style and script, news or the report."""
        if self._own_name() not in _OWN_NAMES:  # a foreign page whose name points here
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "Only for this machine.")
            return
        asked = urlsplit(self.path)
        try:
            match asked.path:
                case "/":
                    self._answer(HTTPStatus.OK, "text/html", self.server.page())
                case "/plotly.js":
                    self._answer(HTTPStatus.OK, "text/javascript", self.server.plotly)
                case "/figures.js" | "/watch.js":
                    self._answer(HTTPStatus.OK, "text/javascript", packaged(asked.path[1:]))
                case "/watch.css":
                    style = "".join(map(packaged, ("report.css", "live.css", "watch.css")))
                    self._answer(HTTPStatus.OK, "text/css", style)
                case "/news":
                    query = parse_qs(asked.query)
                    key, version = (query.get(name, [""])[0] for name in ("run", "version"))
                    news = json.dumps(self.server.news(key, version))
                    self._answer(HTTPStatus.OK, "application/json", news)
                case "/report":
                    report = report_page([self.server.path])
                    self._answer(HTTPStatus.OK, "text/html", report, _REPORT_POLICY)
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is nothing here.")
        except TurnoutError as error:
            self._answer(HTTPStatus.CONFLICT, "text/plain", str(error))

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal is for people."""

    def _own_name(self) -> str:
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return ""

    def _answer(self, status: HTTPStatus, kind: str, text: str, policy: str = _POLICY) -> None:
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
    with suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.2)
