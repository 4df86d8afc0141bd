"""What a page shows of a live run: statuses by client, trouble by name, waits, fair shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.report.live_sketches import css, sketches
from turnout.report.sketch import Shape, Sketch, cells, spelled
from turnout.results.live import ENDS, Complaint, LiveRun, Seen
from turnout.runs.answers import Notice
from turnout.types import FloatArray, IntArray

#: Clients that are shown one by one: the worst and the best of more.
MOST_WORST, MOST_BEST = 25, 10
#: Rounds of the status map, and lines of the table of reasons.
MOST_COLUMNS, MOST_REASONS = 400, 25
#: Alerts that are shown.
MOST_ALERTS = 20
#: Width of a round in the status map, in pixels: as wide as fits, but never less.
_MAP_WIDTH, _LEAST, _MOST = 1000, 4, 22
#: Where a status is drawn in its row, from the top, 0 to 10: shapes tell what colours do, too.
_PLACES = {
    Seen.IN_TIME: (0.5, 9.5),
    Seen.LATE: (5.0, 9.5),
    Seen.FAILED: (0.5, 9.5),
    Seen.SILENT: (0.5, 5.0),
    Seen.BUSY: (4.2, 5.8),
    Seen.AWAY: (0.0, 10.0),
}
_NONE = "\N{EN DASH}"


class Fact(NamedTuple):
    """One thing at a glance."""

    title: str
    text: str
    remark: str = ""


class MapRow(NamedTuple):
    """A client in the status map."""

    name: str
    shapes: list[Shape]
    words: str  #: for who cannot see it


class ClientRow(NamedTuple):
    """A client in the table: texts."""

    name: str
    cells: list[str]
    is_rest: bool = False  #: whether it stands for all others


@dataclass(frozen=True, slots=True)
class LiveView:
    """Everything that is shown of a live run."""

    id: str  #: of the element in the page
    name: str  #: of the run
    facts: list[Fact]
    alerts: list[Notice]  #: the newest first
    n_alerts: int
    map_rows: list[MapRow]
    map_width: int  #: rounds
    map_pixels: int
    map_first: int  #: the first round shown, from 1
    map_note: str
    kinds: list[tuple[str, str]]  #: class and words of each status
    headings: list[str]
    rows: list[ClientRow]
    complaints: list[Complaint]
    n_complaints: int
    sketches: list[Sketch]
    void: str  #: the rounds without enough answers
    fairness: str
    is_simulated: bool


def live_view(run: LiveRun, id: str, name: str) -> LiveView:
    """Return what a page shows of a live run.

    Args:
        run: The run, at least one round of it.
        id: The name of its element in the page.
        name: What it is called.
    """
    shown, n_rest = _shown(run)
    first = max(0, run.n_rounds - MOST_COLUMNS)
    width = run.n_rounds - first
    rows = [_client_row(run, client) for client in shown.tolist()]
    if n_rest:
        rows.append(_rest_row(run, shown, n_rest))
    return LiveView(
        id=id,
        name=name,
        facts=facts(run),
        alerts=list(run.alerts[: -MOST_ALERTS - 1 : -1]),
        n_alerts=len(run.alerts),
        map_rows=_map_rows(run, shown, first),
        map_width=width,
        map_pixels=width * int(np.clip(_MAP_WIDTH // max(width, 1), _LEAST, _MOST)),
        map_first=first + 1,
        map_note=_map_note(run, first, n_rest),
        kinds=[(css(kind), kind.words) for kind in Seen],
        headings=_headings(run),
        rows=rows,
        complaints=run.complaints[:MOST_REASONS],
        n_complaints=len(run.complaints),
        sketches=sketches(run),
        void=spelled(np.flatnonzero(run.answers.is_void) + 1),
        fairness=_fairness(run),
        is_simulated=run.is_simulated,
    )


def facts(run: LiveRun) -> list[Fact]:
    """Return the run at a glance.

    Args:
        run: The run.
    """
    totals, lengths = run.per_round.sum(axis=0), run.answers.length_s
    n_chosen, n_void = int(totals.sum()), int(run.answers.is_void.sum())
    troubles = ", ".join(f"{int(totals[kind]):,} {kind.words}" for kind in ENDS[1:])
    need = f"a round needs {run.min_answers:,} answer{'s' * (run.min_answers > 1)}"
    found = [
        Fact("Rounds", f"{run.n_rounds:,} of {run.settings.n_rounds:,}"),
        Fact("Void rounds", "" if run.is_simulated else f"{n_void:,}", need),
        Fact("Answers in time", f"{int(totals[0]):,} of {n_chosen:,}", troubles),
        Fact("Clients seen", f"{len(run.names):,}", _free(run)),
        _time("Virtual time of a round" if run.is_simulated else "Training per round", lengths),
        _time("Wait per round", run.waited_s),
    ]
    return [fact for fact in found if fact.text]


def seconds(value: float) -> str:
    """Return a time as people read it: ``0.4 s``, ``12 s``, ``4 min 10 s``, ``2 h 5 min``.

    Args:
        value: Seconds; NaN is a dash.
    """
    if not math.isfinite(value):
        return _NONE
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _time(title: str, values: FloatArray) -> Fact:
    known = values[np.isfinite(values)]
    if not known.size:
        return Fact(title, "")
    longest = int(np.nanargmax(values))
    remark = f"longest {seconds(float(values[longest]))} in round {longest + 1:,}"
    return Fact(title, seconds(float(np.median(known))), remark)


def _free(run: LiveRun) -> str:
    if run.run is None or not run.run.n_rounds:
        return ""
    return f"{run.run.n_available.mean():,.1f} free per round"


def _shown(run: LiveRun) -> tuple[IntArray, int]:
    """Return who is shown one by one, the worst first, and how many are not."""
    order = run.worst_first()
    if order.size <= MOST_WORST + MOST_BEST:
        return order, 0
    rest = order[MOST_WORST:]
    best = rest[np.lexsort((rest, -run.counts[rest, 0], run.trouble[rest]))][:MOST_BEST]
    return np.concatenate((order[:MOST_WORST], best)), order.size - MOST_WORST - MOST_BEST


def _map_note(run: LiveRun, first: int, n_rest: int) -> str:
    parts = []
    if n_rest:
        parts.append(
            f"The {MOST_WORST} clients with most trouble, then {MOST_BEST} of the best; {n_rest:,} "
            "are not shown."
        )
    if first:
        parts.append(f"The last {MOST_COLUMNS} of {run.n_rounds:,} rounds.")
    return " ".join(parts)


def _map_rows(run: LiveRun, shown: IntArray, first: int) -> list[MapRow]:
    table = run.seen(shown, first)
    return [
        _map_row(run.names[client], row, first) for client, row in zip(shown, table, strict=True)
    ]


def _map_row(name: str, row: IntArray, first: int) -> MapRow:
    shapes, words = [], []
    for kind, (low, high) in _PLACES.items():
        at = np.flatnonzero(row == kind)
        if at.size:
            tip = f"{name}, {kind.words}: {spelled(at + first + 1)}"
            shapes.append(Shape(css(kind), cells(row, kind, low, high), tip))
            words.append(f"{at.size} {kind.words}")
    return MapRow(name, shapes, ", ".join(words) or "never chosen")


def _headings(run: LiveRun) -> list[str]:
    ends = [kind.words.capitalize() for kind in ENDS]
    shares = [] if run.shares is None else ["Free in rounds", "Fair share", "Got of it"]
    return ["Chosen", *ends, "Usual answer", *shares]


def _client_row(run: LiveRun, client: int) -> ClientRow:
    counts, shares = run.counts[client], run.shares
    texts = [f"{counts.sum():,}", *(f"{count:,}" for count in counts)]
    texts.append(seconds(run.median_s(client)))
    if shares is not None:
        texts += [f"{shares.free[client]:,}", f"{shares.fair[client]:,.1f}"]
        texts.append(_percent(shares.ratio[client]))
    return ClientRow(run.names[client], texts)


def _rest_row(run: LiveRun, shown: IntArray, n_rest: int) -> ClientRow:
    """Return the sums of all who are not shown, and the mean of their shares."""
    is_rest = np.ones(len(run.names), dtype=np.bool_)
    is_rest[shown] = False
    counts, shares = run.counts[is_rest].sum(axis=0), run.shares
    texts = [f"{counts.sum():,}", *(f"{count:,}" for count in counts), _NONE]
    if shares is not None:
        fair, chosen = shares.fair[is_rest].sum(), shares.chosen[is_rest].sum()
        texts += [f"{shares.free[is_rest].sum():,}", f"{fair:,.1f}"]
        texts.append(_percent(chosen / fair if fair else math.nan))
    return ClientRow(f"{n_rest:,} others together", texts, is_rest=True)


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}" if math.isfinite(ratio) else _NONE


def _fairness(run: LiveRun) -> str:
    """Return in a few sentences whether everybody got its share while it was there."""
    shares = run.shares
    if shares is None or not np.isfinite(shares.ratio).any():
        return ""
    ratio = shares.ratio
    low, high = int(np.nanargmin(ratio)), int(np.nanargmax(ratio))
    never = int(np.count_nonzero((shares.chosen == 0) & (shares.fair > 0)))
    text = (
        f"Counted over the rounds in which a client was free. Least: {run.names[low]} with "
        f"{ratio[low]:.0%} of its fair share; most: {run.names[high]} with {ratio[high]:.0%}. "
        f"Jain's index of these parts is {shares.jain:.3f} (1 = all equal)."
    )
    return f"{text} Never chosen, though free: {never:,}." if never else text
