"""Small drawings for a page without a script: shapes that stretch, with their labels beside them.

A template draws them. Everything is in units of its own (one per round), so that text keeps its
size on every screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from turnout.types import Array, FloatArray

#: Bars and points of a drawing at most; more rounds are drawn as means over some.
MOST_BARS = 150
#: Height of a drawing, in its own units.
HEIGHT = 100.0
#: Share of its place that a bar fills.
_BAR = 0.86
_MOST_RANGES = 12


class Shape(NamedTuple):
    """A path of a drawing.

    Attributes:
        kind: Its class in the style sheet.
        path: What is drawn, as SVG has it.
        tip: What it says when the pointer rests on it.
    """

    kind: str
    path: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Shapes over rounds, with what stands at the ends of its axes.

    Attributes:
        key: Its name in the page.
        title: Above it.
        caption: Below it.
        width: Its width, in its own units.
        shapes: What is drawn.
        places: For each unit of width what is there, for the pointer.
        top: What the top of the drawing stands for.
        first: What its left end is.
        last: What its right end is.
        legend: The classes of its shapes and what they mean.
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
    legend: Mapping[str, str] = field(default_factory=dict)


def bars(
    key: str,
    title: str,
    caption: str,
    parts: Mapping[str, tuple[str, FloatArray]],
    unit: str,
    level: float | None = None,
) -> Sketch | None:
    """Return bars over rounds, one part on the other.

    Args:
        key: Its name in the page.
        title: Above it.
        caption: Below it.
        parts: By class of the style sheet: what it is, and (T,) how much of it. NaN = unknown.
        unit: Behind the numbers.
        level: A line to draw across, such as a quorum.
    """
    columns = [np.nan_to_num(values) for _, values in parts.values()]
    n_rounds = columns[0].size
    if not n_rounds:
        return None
    bins = _bins(n_rounds)
    means = np.array([np.bincount(bins, values) / np.bincount(bins) for values in columns])
    tops = np.cumsum(means, axis=0)
    ends = [float(tops[-1].max()), 0.0 if level is None else level]
    top = nice_top(max(ends))
    shapes = [
        Shape(kind, _blocks(tops[i] - means[i], tops[i], top)) for i, kind in enumerate(parts)
    ]
    if level is not None:
        y = number(HEIGHT * (1 - level / top))
        shapes.append(Shape("level", f"M0 {y}H{means.shape[1]}", f"{level:g} {unit}"))
    labels = [text for text, _ in parts.values()]
    places = [
        f"{where}: "
        + ", ".join(
            f"{value:.3g} {unit} {text}" if unit else f"{value:.3g} {text}"
            for text, value in zip(labels, column, strict=True)
            if value > 0
        )
        for where, column in zip(_places(bins), means.T, strict=True)
    ]
    legend = dict(zip(parts, labels, strict=True))
    words = f"{top:,g} {unit}".strip()
    return Sketch(
        key, title, caption, means.shape[1], shapes, places, words, *_ends(n_rounds), legend
    )


def lines(
    key: str, title: str, caption: str, curves: Mapping[str, tuple[str, FloatArray]]
) -> Sketch | None:
    """Return lines over rounds.

    Args:
        key: Its name in the page.
        title: Above it.
        caption: Below it.
        curves: By class of the style sheet: what it is, and (T,) its values. NaN = not measured.
    """
    known = {name: pair for name, pair in curves.items() if np.isfinite(pair[1]).any()}
    if not known:
        return None
    n_rounds = max(values.size for _, values in known.values())
    top = nice_top(max(float(np.nanmax(values)) for _, values in known.values()))
    shapes = []
    for name, (text, values) in known.items():
        measured = np.flatnonzero(np.isfinite(values))
        cut = np.linspace(0, measured.size - 1, min(measured.size, 2 * MOST_BARS)).round()
        at = measured[cut.astype(np.int64)]
        y = HEIGHT * (1 - np.clip(values[at] / top, 0.0, 1.0))
        points = [f"{number(a + 0.5)} {number(b)}" for a, b in zip(at, y, strict=True)]
        path = f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h.01"
        shapes.append(Shape(f"line {name}", path, f"{text}: {values[at[-1]]:.4g} now"))
    legend = {name: text for name, (text, _) in known.items()}
    ends = _ends(n_rounds)
    return Sketch(key, title, caption, n_rounds, shapes, [], f"{top:,g}", *ends, legend)


def cells(row: Array, kind: int, low: float, high: float) -> str:
    """Return blocks at the places of a row that are of a kind, as a path.

    Args:
        row: (T,) kinds.
        kind: The one to draw.
        low: Where a block begins, from the top.
        high: Where it ends.
    """
    y, tall = number(low), number(high - low)
    return "".join(
        f"M{first} {y}h{last - first + 1}v{tall}h-{last - first + 1}z"
        for first, last in ranges(np.flatnonzero(row == kind))
    )


def ranges(numbers: Array) -> Iterable[tuple[int, int]]:
    """Return the first and last of each run of consecutive numbers.

    Args:
        numbers: Integers, ascending.
    """
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, numbers.size - 1)
    return (
        zip(numbers[firsts].tolist(), numbers[lasts].tolist(), strict=True) if numbers.size else ()
    )


def spelled(numbers: Array) -> str:
    """Return numbers in words: ``3, 17-19, 41``; of many only the last.

    Args:
        numbers: Integers, ascending.
    """
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges(numbers)]
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
    return next(
        step * power
        for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
        if value <= step * power * (1 + 1e-9)
    )


def number(value: float) -> str:
    """Return a number for a path: short.

    Args:
        value: Any finite number.
    """
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _bins(n_rounds: int) -> Array:
    return np.arange(n_rounds, dtype=np.int64) * min(n_rounds, MOST_BARS) // n_rounds


def _places(bins: Array) -> list[str]:
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    ends = np.append(starts[1:], bins.size)
    return [
        f"round {a + 1}" if b - a == 1 else f"rounds {a + 1}-{b}, mean"
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _ends(n_rounds: int) -> tuple[str, str]:
    return "round 1", f"round {n_rounds:,}" if n_rounds > 1 else ""


def _blocks(low: Sequence[float] | Array, high: Sequence[float] | Array, top: float) -> str:
    return "".join(
        f"M{i} {number(HEIGHT * (1 - b / top))}h{_BAR}V{number(HEIGHT * (1 - a / top))}h-{_BAR}z"
        for i, (a, b) in enumerate(zip(low, high, strict=True))
        if b > a
    )
