"""Lines over rounds or over time: the mean of the seeds with a band from lowest to highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from turnout.report.figures import label
from turnout.results.groups import VariantCells, WorldGroup
from turnout.runs.cell import Cell
from turnout.types import Array, FloatArray

Trace = dict[str, Any]

#: Points of a line; its band, there and back, has twice as many.
N_POINTS = 250

_HOVER = "%{y:.4~g}<extra>%{fullData.name}</extra>"
_HOVER_SEEDS = (
    "%{y:.4~g} (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})<extra>%{fullData.name}</extra>"
)


def over_rounds(
    world: WorldGroup,
    order: Mapping[str, int],
    column: Callable[[Cell], FloatArray | None],
    *,
    role: str = "line",
    start: int = 0,
) -> list[Trace]:
    """Return the traces of a (T,) column of each cell; ``start`` is the first round drawn.

    A line ends with the shortest of its runs: a mean over fewer and fewer seeds would jump.
    """
    bands: list[Trace] = []
    lines: list[Trace] = []
    for variant in world.variants:
        columns = [values for cell in variant.cells if (values := column(cell)) is not None]
        shortest = min((values.size for values in columns), default=0)
        rows = np.array([values[:shortest] for values in columns])
        at = _points(rows, start)
        if at.size:
            add_line(bands, lines, identity(variant, order), at + 1, rows[:, at], role)
    return bands + lines


def against_time(
    world: WorldGroup, order: Mapping[str, int], name: str, seconds: float
) -> list[Trace]:
    """Return a column of ``rounds.jsonl`` against the virtual clock, last known value first."""
    bands: list[Trace] = []
    lines: list[Trace] = []
    for variant in world.variants:
        curves = [pair for cell in variant.cells if (pair := _timed(cell, name)) is not None]
        if not curves:
            continue
        end = min(float(at[-1]) for at, _ in curves)
        times = np.linspace(0.0, end, N_POINTS)
        rows = [_last_known(at, values, times) for at, values in curves]
        shown = plain(times / seconds)
        add_line(bands, lines, identity(variant, order), shown, np.array(rows), "line")
    return bands + lines


def identity(variant: VariantCells, order: Mapping[str, int]) -> Trace:
    """Return what every trace of a selector carries: its name, and the number it is toggled by."""
    return {"name": label(variant.name), "meta": {"selector": order[variant.name]}}


def with_role(who: Trace, role: str) -> Trace:
    """Return what a trace of a selector carries, and how the page paints it."""
    return {**who, "meta": {**who["meta"], "role": role}}


def share_line(who: Trace, x: FloatArray, y: FloatArray) -> Trace:
    """Return a line of shares."""
    return {
        **with_role(who, "line"),
        "type": "scatter",
        "mode": "lines",
        "x": plain(x),
        "y": plain(y),
        "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>",
    }


def clock(cell: Cell) -> FloatArray:
    """Return (T,) the virtual time at the end of each round."""
    return np.nancumsum(cell.series["length_s"])


def plain(values: Array) -> list[float | None]:
    """Return numbers for JSON, with five digits; NaN becomes null."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]


def _points(rows: FloatArray, start: int) -> Array:
    """Return the rounds to draw: those in which a seed has a number, at most ``N_POINTS``."""
    measured: Array = (
        np.flatnonzero(np.isfinite(rows).any(axis=0)) if rows.size else np.zeros(0, int)
    )
    measured = measured[measured >= min(start, rows.shape[-1] - 1)]
    chosen = (
        np.linspace(0, measured.size - 1, min(N_POINTS, measured.size)).round().astype(np.int64)
    )
    shown: Array = measured[chosen]
    return shown


def add_line(
    bands: list[Trace], lines: list[Trace], who: Trace, at: Any, rows: FloatArray, role: str
) -> None:
    """Append the line of the mean and, for several seeds, the band around it.

    Args:
        bands: Where the band goes.
        lines: Where the line goes.
        who: Name and number of the selector; see ``identity``.
        at: Places on the x axis.
        rows: (seeds, places) the values.
        role: How the page paints the line.
    """
    x = at.tolist() if isinstance(at, np.ndarray) else at
    is_known = np.isfinite(rows)
    n_known = is_known.sum(axis=0)
    total = np.where(is_known, rows, 0.0).sum(axis=0)
    mean = np.where(n_known > 0, total / np.maximum(n_known, 1), np.nan)
    low = np.where(is_known, rows, np.inf).min(axis=0)
    high = np.where(is_known, rows, -np.inf).max(axis=0)
    line = {"type": "scatter", "mode": "lines", "x": x, "y": plain(mean), "connectgaps": True}
    hover: Trace = {"hovertemplate": _HOVER}
    if len(rows) > 1:
        spread = [list(pair) for pair in zip(plain(low), plain(high), strict=True)]
        hover = {"hovertemplate": _HOVER_SEEDS, "customdata": spread}
        bands.append(_band(who, x, low, high))
    lines.append({**with_role(who, role), **line, **hover})


def _band(who: Trace, x: list[Any], low: FloatArray, high: FloatArray) -> Trace:
    inside = np.flatnonzero(np.isfinite(low))
    there = [x[i] for i in inside]
    return {
        **with_role(who, "band"),
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        "hoverinfo": "skip",
        "x": there + there[::-1],
        "y": plain(np.concatenate((high[inside], low[inside][::-1]))),
    }


def _timed(cell: Cell, name: str) -> tuple[FloatArray, FloatArray] | None:
    values = cell.series.get(name)
    if values is None or not np.isfinite(values).any():
        return None
    is_known = np.isfinite(values)
    return clock(cell)[is_known], values[is_known]


def _last_known(at: FloatArray, values: FloatArray, times: FloatArray) -> FloatArray:
    latest = np.searchsorted(at, times, side="right") - 1
    return np.where(latest >= 0, values[np.maximum(latest, 0)], np.nan)
