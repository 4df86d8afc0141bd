"""Figures into pages: data for plotly, which the report's script paints by theme.

Every trace says in ``meta`` which selector it belongs to and what role it has. Plotly reads a
little HTML in names and ticks, so texts from files are escaped here.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

from turnout.core.names import shortened
from turnout.core.types import FloatArray
from turnout.report.figure import (
    MEANINGS,
    Axis,
    Bars,
    Boxes,
    Chart,
    Colour,
    Guide,
    Heatmap,
    Line,
    Panel,
)

Trace = dict[str, Any]

_NAME = "<extra>%{fullData.name}</extra>"
_HOVER = f"%{{y:.4~g}}{_NAME}"
_HOVER_SHARE = f"%{{y:.1%}}{_NAME}"
_HOVER_RANGE = f"%{{y:.4~g}} (%{{customdata[0]:.4~g}} to %{{customdata[1]:.4~g}}){_NAME}"
#: Shares of width and height between panels.
_GAP_X, _GAP_Y = 0.2, 0.2


def label(text: str, most: int = 28) -> str:
    """Return a text from a file for plotly: short, and harmless.

    Args:
        text: Any text.
        most: Characters that fit.
    """
    return escape(shortened(text, most))


def plotly_chart(chart: Chart) -> dict[str, Any]:
    """Return the traces and the layout of a chart, without colours.

    Args:
        chart: What is drawn.
    """
    traces: list[Trace] = []
    layout: dict[str, Any] = {"annotations": [], "shapes": []}
    rows = chart.rows
    number = 0
    for place, row in enumerate(rows):
        bottom = 1.0 - (place + 1 - _GAP_Y * (len(rows) > 1)) / len(rows)
        for (left, right), panel in zip(_domains(row), row, strict=True):
            name = "" if not number else str(number + 1)
            number += 1
            axes = {"xaxis": f"x{name}", "yaxis": f"y{name}"} if name else {}
            traces += [trace | axes for trace in _panel_traces(panel)]
            layout[f"xaxis{name}"] = _axis(panel.x, panel.words)
            layout[f"yaxis{name}"] = _axis(panel.y, [])
            if len(chart.panels) > 1:
                top = 1.0 - place / len(rows) - 0.04
                layout[f"xaxis{name}"] |= {"domain": [left, right], "anchor": f"y{name}"}
                layout[f"yaxis{name}"] |= {"domain": [bottom, top], "anchor": f"x{name}"}
                layout["annotations"].append(_title(panel.title, (left + right) / 2, top))
            guides = (mark for mark in panel.marks if isinstance(mark, Guide))
            layout["shapes"] += [_shape(mark, name) for mark in guides]
    layout |= _modes(chart)
    return {"traces": traces, "layout": {key: value for key, value in layout.items() if value}}


def plotly_maps(chart: Chart) -> dict[str, Any]:
    """Return the heat maps of a chart, of which the page shows one, chosen by name and option.

    Args:
        chart: A chart whose panels are heat maps of the same rows and columns.
    """
    marks = [mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Heatmap)]
    by_name: dict[str, dict[str, Any]] = {}
    for mark in marks:
        one = by_name.setdefault(mark.name, {"selector": mark.colour, "name": mark.name})
        one.setdefault("runs", {})[mark.option] = _packed(mark.values)
    first = marks[0]
    assert first.x is not None
    groups = [
        {"name": label(name), "first": start, "last": end} for name, start, end in first.groups
    ]
    return {
        "maps": list(by_name.values()),
        "rows": list(first.rows),
        "columns": list(first.columns),
        "x": first.x.tolist(),
        "groups": groups,
    }


def plain(values: Any) -> list[float | None]:
    """Return numbers for JSON, with five digits; NaN becomes null.

    Args:
        values: (k,) the numbers.
    """
    listed = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in listed]


def _domains(row: Sequence[Panel]) -> Iterator[tuple[float, float]]:
    """Yield the left and right end of each panel of a row."""
    shares = np.array([panel.share or 1.0 for panel in row])
    rights = np.cumsum(shares) / shares.sum()
    for number, right in enumerate(rights.tolist()):
        left = float(rights[number - 1]) if number else 0.0
        yield left, right - (_GAP_X / len(row) if number + 1 < len(row) else 0.0)


def _panel_traces(panel: Panel) -> list[Trace]:
    """Return the traces of a panel: bands lie below all lines."""
    marks = (mark for mark in panel.marks if not isinstance(mark, Guide))
    found = [trace for mark in marks for trace in _traces(mark, panel.y)]
    return sorted(found, key=lambda trace: trace["meta"]["role"] != "band")


def _axis(axis: Axis, words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": label(axis.text, 40)}}
    if words:
        found["type"] = "category"
    elif axis.is_log:
        found["type"] = "log"
    if axis.ticks:
        found |= {"tickvals": list(axis.ticks)}
        found |= {"ticktext": [label(text, 16) for text in axis.ticks.values()]}
        found |= {"tickfont": {"size": axis.tick_size}} if axis.tick_size else {}
    if axis.low is not None and axis.high is not None:
        ends = [axis.low, axis.high]
        found["range"] = [math.log10(end) for end in ends] if axis.is_log else ends
    elif axis.low == 0.0:
        found["rangemode"] = "tozero"
    return found


def _title(text: str, x: float, y: float) -> dict[str, Any]:
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "yanchor": "bottom"}
    return {"text": label(text, 60), "showarrow": False, **place}


def _shape(mark: Guide, name: str) -> dict[str, Any]:
    along = {"x": "y", "y": "x"}[mark.axis]
    ends = {f"{mark.axis}0": mark.at, f"{mark.axis}1": mark.at, f"{along}0": 0, f"{along}1": 1}
    refs = {f"{mark.axis}ref": f"{mark.axis}{name}", f"{along}ref": f"{along}{name} domain"}
    return {"type": "line", **ends, **refs, "line": {"width": 1, "dash": mark.dash}}


def _modes(chart: Chart) -> dict[str, Any]:
    """Return how bars and boxes stand, and what the pointer shows."""
    marks = [mark for panel in chart.panels for mark in panel.marks]
    are_words = any(panel.words for panel in chart.panels)
    modes: dict[str, Any] = {}
    if any(isinstance(mark, Bars) for mark in marks):
        modes["barmode"] = "group" if are_words else "overlay"
    if any(isinstance(mark, Boxes) for mark in marks):
        modes |= {"boxmode": "group", "hovermode": "closest"} if are_words else {"hovermode": "x"}
    if any(isinstance(mark, Line) and mark.is_steps for mark in marks):
        modes["hovermode"] = "x"
    if chart.has_map:
        modes["hovermode"] = "closest"
    return modes


def _who(name: str, colour: Colour, role: str) -> Trace:
    """Return what every trace carries: its name, its role, and a selector or a colour."""
    colours = {"selector": colour} if isinstance(colour, int) else {"colour": _painted(colour)}
    return {"name": label(name), "meta": {**colours, "role": role}}


def _painted(colour: Colour) -> Colour:
    """Return the number of a colour of the theme, for the script; other colours as they are."""
    return MEANINGS.get(colour, colour) if isinstance(colour, str) else colour


@singledispatch
def _traces(mark: Any, y: Axis) -> list[Trace]:
    raise TypeError(f"{type(mark).__name__} is not a mark of a chart.")


@_traces.register(Line)
def _(mark: Line, y: Axis) -> list[Trace]:
    """Return the line, below it the band; points have intervals instead."""
    mode = {"points": "markers"}.get(mark.role, "lines+markers" if mark.size else "lines")
    mode += "+text" if mark.labels else ""
    role = "line" if mark.role == "points" else mark.role
    line = _who(mark.name, mark.colour, role) | {"type": "scatter", "mode": mode}
    line |= {"x": _places(mark.x), "y": plain(mark.y), "connectgaps": True}
    line |= {"hovertemplate": _HOVER_SHARE if y.is_share else _HOVER}
    if mark.role == "reference":
        return [line | {"meta": {"role": role}, "hoverinfo": "skip", "hovertemplate": None}]
    if mark.is_steps:
        return [line | {"x": plain(np.repeat(mark.at, 2)[1:-1]), "y": plain(np.repeat(mark.y, 2))}]
    if mark.labels:
        line |= {"text": [label(text) for text in mark.labels], "textposition": "top center"}
    if mark.x_range is not None:
        line["error_x"] = _interval(mark.at, *mark.x_range)
    if mark.low is None or mark.high is None:
        return [line]
    spread = [list(pair) for pair in zip(plain(mark.low), plain(mark.high), strict=True)]
    line |= {"hovertemplate": _HOVER_RANGE, "customdata": spread}
    if mark.role == "points":
        return [line | {"error_y": _interval(mark.y, mark.low, mark.high)}]
    inside = np.flatnonzero(np.isfinite(mark.low))
    there = [line["x"][i] for i in inside]
    band = _who(mark.name, mark.colour, "band") | {"hoverinfo": "skip", "fill": "toself"}
    band |= {"type": "scatter", "mode": "lines", "x": there + there[::-1]}
    band["y"] = plain(np.concatenate((mark.high[inside], mark.low[inside][::-1])))
    return [band, line]


def _interval(middle: FloatArray, low: FloatArray, high: FloatArray) -> Trace:
    up, down = plain(high - middle), plain(middle - low)
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down}


@_traces.register(Bars)
def _(mark: Bars, y: Axis) -> list[Trace]:
    found = _who(mark.name, mark.colour, "bar") | {"type": "bar", "hovertemplate": _HOVER}
    found |= {"x": _places(mark.x), "y": plain(mark.y)}
    if mark.margin is not None:
        margin = plain(np.nan_to_num(mark.margin))
        found["error_y"] = {"type": "data", "array": margin, "thickness": 1, "width": 2}
    if mark.base is not None:  # of a bar with a base, plotly would show the upper end
        found |= {"base": plain(mark.base), "customdata": found["y"]}
        found["hovertemplate"] = f"%{{customdata:.4~g}}{_NAME}"
    if np.ndim(mark.width):
        found["width"] = plain(mark.width)
    return [found]


@_traces.register(Boxes)
def _(mark: Boxes, y: Axis) -> list[Trace]:
    """Return the boxes; those whose whiskers are no extremes have a tip that says what they are."""
    names = ("lowerfence", "q1", "median", "q3", "upperfence")
    cuts = {name: plain(cut) for name, cut in zip(names, mark.cuts.T, strict=True)}
    box = _who(mark.name, mark.colour, "box") | {"type": "box", "x": _places(mark.x), **cuts}
    box["mean"] = plain([group.mean() for group in mark.groups])
    if mark.whiskers == (0.0, 100.0):
        return [box]
    unit = f" {y.unit}" if y.unit else ""
    texts = [
        f"median {median:.4g}{unit}<br>half of them {q1:.4g} to {q3:.4g}{unit}"
        f"<br>nine in ten {low:.4g} to {high:.4g}{unit}{_NAME}"
        for low, q1, median, q3, high in mark.cuts.tolist()
    ]
    tip = _who(mark.name, mark.colour, "tip") | {"type": "scatter", "mode": "markers"}
    tip |= {"x": box["x"], "y": box["median"], "hovertemplate": texts}
    return [box | {"hoverinfo": "skip"}, tip]


@_traces.register(Heatmap)
def _(mark: Heatmap, y: Axis) -> list[Trace]:
    low, high = mark.ends
    if mark.kinds:
        found = _who(mark.name, mark.colour, "kinds") | {"type": "heatmap", "showscale": False}
        found["meta"] |= {"kinds": [[name, _painted(colour)] for name, colour in mark.kinds]}
        found["meta"] |= {"rows": [label(row, 60) for row in mark.rows]}
        return [found | {"z": mark.values.tolist(), "x": _numbers(mark.x)}]
    found = _who(mark.name, mark.colour, "map") | {"type": "heatmap", "zmin": low, "zmax": high}
    found |= {"z": [plain(row) for row in mark.values], "colorscale": mark.scale.capitalize()}
    found |= {"colorbar": {"title": {"text": mark.label, "side": "right"}}}
    return [found if mark.x is None else found | {"x": _numbers(mark.x)}]


def _places(x: Any) -> list[Any]:
    return [label(place) for place in x] if isinstance(next(iter(x), 0), str) else _numbers(x)


def _numbers(x: Any) -> list[Any]:
    """Return places as they are if they are whole numbers, else with five digits."""
    array = np.asarray(x)
    whole: list[Any] = array.tolist()
    return whole if array.dtype.kind in "iu" else plain(array)


def _packed(values: FloatArray) -> str:
    """Return shares with one byte per cell, row by row: 0 = never, 255 = always."""
    levels = np.clip(np.rint(values * 255.0), 0, 255).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode("ascii")
