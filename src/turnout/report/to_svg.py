"""Figures into pages without scripts: bars and lines over rounds as SVG paths.

A page that is renewed every second can neither load a script of megabytes nor wait for matplotlib,
and its security policy forbids the inline styles that matplotlib writes. A template draws the
paths; the style sheet has their colours. Shapes stretch with the page, text does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.core.types import Array
from turnout.report.figure import Bars, Chart, Colour, Guide, Line

#: Most bars of a drawing; where there are more rounds, each bar is a mean over several.
MOST_BARS = 150
#: Height of a drawing, in its own units; its width is one unit per bar or round.
HEIGHT = 100.0
_MOST_RANGES = 12


class Shape(NamedTuple):
    """A path of a drawing.

    Attributes:
        kind: Its class in the style sheet.
        path: The ``d`` of an SVG path.
        tip: The text under the pointer.
    """

    kind: str
    path: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A chart for a template.

    Attributes:
        key: Its name in the page.
        title: The line above it.
        caption: The text below it.
        width: Its width, in its own units.
        shapes: The paths.
        places: The text under the pointer for each unit of width.
        top: The number at the top of the vertical axis.
        first: The text at the left end.
        last: The text at the right end.
        legend: The name of each class of shapes.
    """

    key: str
    title: str
    caption: str
    width: int
    shapes: list[Shape]
    places: list[str]
    top: str
    first: str
    last: str
    legend: Mapping[str, str]


def sketch(chart: Chart) -> Sketch | None:
    """Return a chart of bars or of lines over rounds; None if it has no numbers.

    Args:
        chart: A chart with one panel, of which bars, lines and horizontal guides are drawn.
    """
    (panel,) = chart.panels
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    lines = [m for m in panel.marks if isinstance(m, Line) and np.isfinite(m.y).any()]
    levels = [mark.at for mark in panel.marks if isinstance(mark, Guide)]
    if not lines and not any(len(mark.y) for mark in bars):
        return None
    unit = panel.y.unit
    means, places, ends = _binned(bars, panel.words, unit)
    tops = np.cumsum(means, axis=0)
    highest = [*levels, *(float(np.nanmax(line.y)) for line in lines), *tops[-1:].ravel()]
    top = nice_top(max(highest))
    if lines:
        width = max(int(line.at[-1]) for line in lines)
        ends = ("round 1", f"round {width:,}" if width > 1 else "")
    else:
        width = means.shape[1]
    shapes = [
        Shape(_css(mark.colour), _blocks(high - mean, high, top))
        for mark, mean, high in zip(bars, means, tops, strict=True)
    ]
    shapes += [_line(line, top) for line in lines]
    for level in levels:
        y = _number(HEIGHT * (1 - level / top))
        shapes.append(Shape("level", f"M0 {y}H{width}", f"{level:g} {unit}"))
    marks: list[Bars | Line] = [*bars, *lines]
    legend = {_css(mark.colour): mark.name for mark in marks}
    texts = (chart.key, chart.title, chart.caption)
    return Sketch(*texts, width, shapes, places, f"{top:,g} {unit}".strip(), *ends, legend)


def cells(row: Array, kind: int, low: float, high: float) -> str:
    """Return blocks at the places of a row that are of a kind, as a path.

    Args:
        row: (T,) kinds.
        kind: The one to draw.
        low: Where a block begins, from the top.
        high: Where it ends.
    """
    y, tall = _number(low), _number(high - low)
    return "".join(
        f"M{first} {y}h{last - first + 1}v{tall}h-{last - first + 1}z"
        for first, last in _ranges(np.flatnonzero(row == kind))
    )


def spelled(numbers: Array) -> str:
    """Return numbers in words: ``3, 17-19, 41``; of many only the last.

    Args:
        numbers: Integers, ascending.
    """
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in _ranges(numbers)]
    cut = parts[-_MOST_RANGES:]
    return ", ".join(["…", *cut] if len(cut) < len(parts) else cut)


def nice_top(value: float) -> float:
    """Return the next round number: 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten; 1 for nothing.

    Args:
        value: The largest that must fit.
    """
    if not (math.isfinite(value) and value > 0):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
    return next(step * power for step in steps if value <= step * power * (1 + 1e-9))


def _binned(
    bars: Sequence[Bars], words: Sequence[str], unit: str
) -> tuple[Array, list[str], tuple[str, str]]:
    """Return (bars, places) heights, a text for each place, and the texts at both ends."""
    if not bars:
        return np.zeros((0, 0)), [], ("", "")
    n = len(bars[0].y)
    bins = np.arange(n, dtype=np.int64) * min(n, MOST_BARS) // n
    sizes = np.bincount(bins)
    means = np.array([np.bincount(bins, np.nan_to_num(mark.y)) / sizes for mark in bars])
    last = np.cumsum(sizes)
    where = list(words) or [
        f"round {end}" if size == 1 else f"rounds {end - size + 1}-{end}, mean"
        for end, size in zip(last.tolist(), sizes.tolist(), strict=True)
    ]
    names = [f"{unit} {mark.name}".strip() for mark in bars]
    places = [
        f"{place}: "
        + ", ".join(f"{v:.3g} {name}" for name, v in zip(names, column, strict=True) if v > 0)
        for place, column in zip(where, means.T, strict=True)
    ]
    ends = (words[0], words[-1]) if words else ("round 1", f"round {n:,}" if n > 1 else "")
    return means, places, ends


def _line(line: Line, top: float) -> Shape:
    measured = np.flatnonzero(np.isfinite(line.y))
    cut = np.linspace(0, measured.size - 1, min(measured.size, 2 * MOST_BARS)).round()
    at = measured[cut.astype(np.int64)]
    x, y = line.at[at] - 0.5, HEIGHT * (1 - np.clip(line.y[at] / top, 0.0, 1.0))
    points = [f"{_number(a)} {_number(b)}" for a, b in zip(x, y, strict=True)]
    path = f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h.01"
    return Shape(f"line {_css(line.colour)}", path, f"{line.name}: {line.y[at[-1]]:.4g} now")


def _blocks(low: Array, high: Array, top: float) -> str:
    return "".join(
        f"M{i} {_number(HEIGHT * (1 - b / top))}h.86V{_number(HEIGHT * (1 - a / top))}h-.86z"
        for i, (a, b) in enumerate(zip(low, high, strict=True))
        if b > a
    )


def _ranges(numbers: Array) -> Iterable[tuple[int, int]]:
    """Return the first and last of each run of consecutive numbers."""
    if not numbers.size:
        return ()
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs]


def _css(colour: Colour) -> str:
    return f"series-{colour}" if isinstance(colour, int) else colour


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
