"""What the page shows of what is watched: the parts of the report, as far as a run has come."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from turnout.report.live import LiveView, live_view
from turnout.report.sketch import Sketch, lines
from turnout.results.live import LiveRun
from turnout.runs.answers import read_open
from turnout.runs.cell import Cell
from turnout.runs.files import DamagedFile
from turnout.runs.reader import Problem
from turnout.types import FloatArray
from turnout.watch.watcher import Look, State, Watched

#: Clients up to which a run is shown by client.
_MOST_CLIENTS = 100_000
#: Selectors whose curves are drawn, one colour each.
_MOST_CURVES = 8
_NONE = "\N{EN DASH}"
#: Measures that are drawn if a run has them, and what they are called.
_MEASURES = {"accuracy": "accuracy", "loss": "loss"}


class RunRow(NamedTuple):
    """A run in the table of all."""

    key: str
    name: str
    done: int
    planned: int
    state: str
    in_time: str
    accuracy: str


class OpenView(NamedTuple):
    """The round that is open."""

    number: int  #: from 1
    since: float | None  #: in seconds since 1970; None = not known
    deadline_s: float | None
    clients: list[tuple[str, str]]  #: name, and what was heard; empty = nothing yet
    n_heard: int


class PageView(NamedTuple):
    """Everything on the page."""

    title: str
    state: str  #: name of the state, for the style sheet
    words: str
    news_at: float  #: 0 = there was none
    problems: list[Problem]
    rows: list[RunRow]  #: empty if there is a single run
    chosen: str  #: key of the run that is shown in full
    curves: list[Sketch]
    opened: OpenView | None
    detail: LiveView | None
    has_report: bool


def page_view(look: Look, path: str, key: str, stalled_s: float) -> PageView:
    """Return what the page shows.

    Args:
        look: What was seen.
        path: What is watched, in words.
        key: The run that is to be shown in full; if there is none of that name, one is taken.
        stalled_s: Seconds without news after which a run counts as stalled.
    """
    chosen = _chosen(look, key)
    run = None if chosen is None or chosen.cell is None else _run(chosen.cell)
    problems = [problem for watched in look.runs.values() for problem in watched.problems]
    rows = [_row(watched) for watched in look.runs.values()] if len(look.runs) > 1 else []
    cells = [watched.cell for watched in look.runs.values() if watched.cell is not None]
    names = list(
        dict.fromkeys(cell.settings.experiment for cell in cells if cell.settings.experiment)
    )
    return PageView(
        title=", ".join(names[:3]) or path,
        state=look.state.name.lower().replace("_", "-"),
        words=_words(look, path, _progress(chosen, run), stalled_s),
        news_at=look.news_at,
        problems=problems,
        rows=rows,
        chosen=chosen.key if chosen is not None and rows else "",
        curves=_curves(list(look.runs.values())) if rows else [],
        opened=_opened(chosen),
        detail=None if run is None or chosen is None else _detail(chosen, run),
        has_report=any(cell.n_rounds for cell in cells),
    )


def _chosen(look: Look, key: str) -> Watched | None:
    """Return the run to show in full: the one asked for, the only one, or the only that runs."""
    if key in look.runs:
        return look.runs[key]
    runs = list(look.runs.values())
    running = [watched for watched in runs if not watched.is_over]
    for candidates in (runs, running):
        if len(candidates) == 1:
            return candidates[0]
    return None


def _progress(chosen: Watched | None, run: LiveRun | None) -> str:
    """Return how far the run is that is shown in full; empty if none is."""
    if chosen is None or chosen.cell is None:
        return ""
    # a live run writes its choices now and then only, its answers after each round
    n_done = chosen.cell.n_rounds if run is None or run.is_simulated else run.n_rounds
    return f"{n_done:,} of {chosen.cell.settings.n_rounds:,} rounds are done"


def _words(look: Look, path: str, progress: str, stalled_s: float) -> str:
    """Return the state in a sentence."""
    n_over = sum(watched.is_over for watched in look.runs.values())
    n_failed = sum(watched.has_failed for watched in look.runs.values())
    several = f"{n_over} of {look.n_planned} runs have ended"
    far = progress if look.n_planned == 1 and progress else several
    match look.state:
        case State.ABSENT:
            return f"{path} does not exist yet. This page shows it as soon as it does."
        case State.EMPTY:
            return f"There is no run in {path} yet. This page shows it as soon as there is."
        case State.GONE:
            return f"{path} is gone: it was deleted or moved. This page shows it if it comes back."
        case State.NO_FOLDER:
            return f"{path} is not a folder any more."
        case State.STALLED:
            return f"No news for more than {stalled_s:g} s: it may have stopped. {far}."
        case State.FAILED:
            return f"Ended, {n_failed} of {look.n_planned} runs failed; error.txt says why."
        case State.ENDED:
            return f"Ended: {far}."
        case _:
            return f"Running: {far}."


def _row(watched: Watched) -> RunRow:
    cell = watched.cell
    if cell is None:
        return RunRow(watched.key, watched.key, 0, 1, "not readable", _NONE, _NONE)
    chosen = float(np.nansum(cell.series["chosen"]))
    in_time = float(np.nansum(cell.series["completed"]))
    accuracy = cell.series.get("accuracy", np.zeros(0))
    known = accuracy[np.isfinite(accuracy)]
    state = "failed" if watched.has_failed else "ended" if cell.is_complete else "running"
    return RunRow(
        watched.key,
        f"{_where(watched)}{cell.settings.label}, seed {cell.settings.seed}",
        cell.n_rounds,
        cell.settings.n_rounds,
        state,
        f"{in_time / chosen:.0%}" if chosen else _NONE,
        f"{known[-1]:.4f}" if known.size else _NONE,
    )


def _where(watched: Watched) -> str:
    """Return the experiment of a run, if there may be several: ``point-1: ``."""
    above = PurePath(watched.key).parts[:-2]
    return f"{'/'.join(above)}: " if above else ""


def _opened(chosen: Watched | None) -> OpenView | None:
    """Return the open round of a run that is not over."""
    if chosen is None or chosen.cell is None or chosen.is_over:
        return None
    now = read_open(chosen.cell.path)
    if now is None:
        return None
    clients = [(name, now.heard.get(name, "")) for name in now.names]
    n_heard = sum(bool(heard) for _, heard in clients)
    return OpenView(now.round + 1, now.began_at, now.deadline_s, clients, n_heard)


def _run(cell: Cell) -> LiveRun | None:
    """Return a run by client; nothing while its choices are not known, or with too many clients."""
    if cell.settings.n_clients > _MOST_CLIENTS:
        return None
    try:
        run = LiveRun.of(cell) if cell.is_live else LiveRun.simulated(cell)
    except DamagedFile:
        return None
    return run if run is not None and run.n_rounds else None


def _detail(chosen: Watched, run: LiveRun) -> LiveView:
    view = live_view(run, "run", f"{run.settings.label}, seed {run.settings.seed}")
    measured = [] if chosen.cell is None else list(_measured(chosen.cell))
    return dataclasses.replace(view, sketches=[*measured, *view.sketches])


def _measured(cell: Cell) -> Iterator[Sketch]:
    for name, title in _MEASURES.items():
        values = cell.series.get(name, np.zeros(0))
        drawn = lines(name, f"{title.capitalize()} by round", "", {"series-0": (title, values)})
        if drawn is not None:
            yield drawn


def _curves(runs: list[Watched]) -> list[Sketch]:
    """Return accuracy, else answers in time, by selector: the mean of its seeds so far."""
    is_trained = any(each.cell is not None and "accuracy" in each.cell.series for each in runs)
    by_label: dict[str, list[FloatArray]] = {}
    for each in runs:
        if each.cell is None or not each.cell.n_rounds:
            continue
        values = each.cell.series.get("accuracy") if is_trained else _success(each.cell)
        if values is not None:
            label = f"{_where(each)}{each.cell.settings.label}"
            by_label.setdefault(label, []).append(values)
    curves = {}
    for number, (label, columns) in enumerate(list(by_label.items())[:_MOST_CURVES]):
        shortest = min(column.size for column in columns)
        curves[f"series-{number}"] = (label, np.mean([c[:shortest] for c in columns], axis=0))
    title = "Accuracy by round" if is_trained else "Answers in time so far"
    caption = "Mean over the seeds of a selector, up to the round that all of them reached."
    drawn = lines("curves", title, caption, curves)
    return [] if drawn is None else [drawn]


def _success(cell: Cell) -> FloatArray:
    chosen = np.nancumsum(cell.series["chosen"])
    return np.nancumsum(cell.series["completed"]) / np.maximum(chosen, 1.0)
