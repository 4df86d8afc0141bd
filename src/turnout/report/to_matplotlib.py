"""Figures into files: PDF, SVG and PNG. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.core.errors import MissingExtra
from turnout.core.files import writing_to
from turnout.core.types import Array, FloatArray
from turnout.report.figure import (
    COLOURS,
    GREY,
    Axis,
    Bars,
    Boxes,
    Chart,
    Colour,
    Guide,
    Heatmap,
    Line,
    Panel,
    hex_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FORMATS = ("pdf", "svg", "png")

#: Settings of matplotlib for every figure of the package.
STYLE = Path(__file__).with_name("turnout.mplstyle")
#: Dates would make every file differ from the last, so they are left out of each format.
_METADATA: Mapping[str, dict[str, None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {},
}
#: None is dotted: bounds are.
_LINES = (
    *("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1))),
    *((0, (8, 2)), (0, (6, 1, 2, 1)), (0, (3, 1)), (0, (1, 0.5))),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_ROLES: Mapping[str, dict[str, Any]] = {
    "line": {},
    "bound": {"linestyle": ":"},
    "reference": {"linestyle": "--", "linewidth": 0.8},
    "points": {"linestyle": ""},
}
#: Returns places of a mark as numbers.
_At = Callable[[Any], FloatArray]
#: Inches of a character of a tick; texts that do not fit are turned.
_TICK_CHARACTER = 0.06
#: Size of the names beside points.
_LABEL_SIZE = 7.0
#: Share of the room of a word over which the marks that stand there are spread.
_SPREAD = 0.8
#: Inches of a legend's row, of the line in front of a name, and of a character.
_LEGEND_ROW, _LEGEND_LINE, _LEGEND_CHARACTER = 0.2, 0.5, 0.058


def require_matplotlib() -> None:
    """Raise ``MissingExtra`` if figures cannot be drawn here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("Figures need matplotlib: pip install 'turnout[plot]'.")


def write_figure(chart: Chart, paths: Sequence[Path]) -> list[Path]:
    """Draw a figure and write it into files.

    Args:
        chart: What is drawn.
        paths: The files; their endings, some of ``FORMATS``, are the formats.

    Returns:
        The paths.

    Raises:
        MissingExtra: matplotlib is not installed.
        OutputError: A file cannot be written.
    """
    require_matplotlib()
    from matplotlib import style

    with style.context(STYLE):
        canvas = drawn(chart)
        for path in paths:
            form = path.suffix.removeprefix(".")
            with writing_to(path, "choose another folder"):
                path.parent.mkdir(parents=True, exist_ok=True)
                canvas.savefig(path, format=form, metadata=_METADATA[form])
    return list(paths)


def drawn(chart: Chart) -> Canvas:
    """Return a figure of matplotlib.

    Args:
        chart: What is drawn.
    """
    from matplotlib.figure import Figure as Canvas

    rows = chart.rows
    heights = [max(panel.height for panel in row) for row in rows]
    canvas = Canvas(layout="constrained")
    grid = canvas.add_gridspec(len(rows), 1, height_ratios=heights)
    everywhere: list[tuple[Axes, Panel]] = []
    for below, row in enumerate(rows):
        # a short last row leaves the places of its missing panels empty
        room = [panel.share or 1.0 for panel in row]
        room += [1.0] * (chart.n_columns - len(row)) if row[0].share else []
        inner = grid[below].subgridspec(1, len(room), width_ratios=room)
        shared = everywhere[0][0] if chart.shares_y == "all" and everywhere else None
        for number, panel in enumerate(row):
            axes = canvas.add_subplot(inner[0, number], sharey=shared)
            _draw_panel(axes, panel)
            if number and chart.shares_y != "none":
                axes.tick_params(labelleft=False)
            shared = None if chart.shares_y == "none" else shared or axes
            everywhere.append((axes, panel))
    for axes, panel in everywhere:  # only now does every axis have all its data
        _frame(axes, "x", panel.x)
        _frame(axes, "y", panel.y)
        texts = panel.words or panel.x.ticks.values()
        if _TICK_CHARACTER * sum(len(text) + 2 for text in texts) > chart.inches / chart.n_columns:
            for text in axes.get_xticklabels():
                text.set(rotation=30, ha="right", rotation_mode="anchor")
    if chart.shares_y != "none":
        for axes in canvas.axes:
            axes.label_outer(remove_inner_ticks=False)
    legend = _draw_legend(canvas, chart, [axes for axes, _ in everywhere])
    canvas.set_size_inches(chart.inches, sum(heights) + legend)
    canvas.suptitle(_escaped(chart.headline), fontsize=9)
    for axes, panel in everywhere:
        labelled = [mark for mark in panel.marks if isinstance(mark, Line) and mark.labels]
        if labelled:
            canvas.draw_without_rendering()  # the places of points are known only now
            _label_points(axes, labelled)
    return canvas


def _escaped(text: str) -> str:
    """Return a text in which dollars do not begin a formula."""
    return text.replace("$", r"\$")


def _draw_panel(axes: Axes, panel: Panel) -> None:
    words = panel.words
    side_by_side = [mark for mark in panel.marks if _is_at_words(mark)]
    for mark in panel.marks:
        shift, width = 0.0, 1.0
        if _is_at_words(mark):
            width = _SPREAD / len(side_by_side)
            shift = (side_by_side.index(mark) - (len(side_by_side) - 1) / 2) * width
        _draw(mark, axes, partial(_places, words, shift), width)
    if words:
        axes.set_xticks(range(len(words)), [_escaped(word) for word in words])
        axes.set_xlim(-0.5, len(words) - 0.5)
        axes.grid(visible=False, axis="x")
    axes.set_title(_escaped(panel.title))


def _frame(axes: Axes, name: str, axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    one = axes.xaxis if name == "x" else axes.yaxis
    if axis.is_log:
        getattr(axes, f"set_{name}scale")("log")
    if axis.ticks:
        one.set_ticks(list(axis.ticks), [_escaped(text) for text in axis.ticks.values()])
        one.set_minor_locator(NullLocator())
        one.set_tick_params(labelsize=axis.tick_size)
    elif axis.is_whole:
        one.set_major_locator(MaxNLocator(integer=True))
    one.set_label_text(_escaped(axis.text))
    getattr(axes, f"set_{name}lim")(axis.low, axis.high)


def _label_points(axes: Axes, points: Sequence[Line]) -> None:
    """Write names beside points, where they hide as little as possible of points and other names.

    Boxes are in points of type. A character is taken as 0.55 of its height wide.
    """
    scale = 72.0 / axes.figure.dpi
    frame = (np.array(axes.get_window_extent().extents) * scale).tolist()
    places = [
        (mark, text, (x, y), axes.transData.transform((x, y)) * scale)
        for mark in points
        for text, x, y in zip(mark.labels, mark.at.tolist(), mark.y.tolist(), strict=True)
    ]
    taken = [_box(at[0], at[1], mark.size, mark.size) for mark, *_, at in places]
    for mark in points:
        ranges = np.zeros((2, 0)) if mark.x_range is None else mark.x_range
        for y, low, high in zip(mark.y, *ranges, strict=False):
            ends = axes.transData.transform([(low, y), (high, y)]) * scale
            taken.append(_box(ends[:, 0].mean(), ends[0, 1], np.ptp(ends[:, 0]), 2.0))
    for mark, text, where, at in places:
        wide = 0.55 * _LABEL_SIZE * len(text)
        costs: dict[float, Any] = {}
        for far, dx, dy in itertools.product((0, 8, 16), (0, 1, -1), (1, -1, 0)):
            gap = 2 + mark.size / 2 + far
            offset = (dx * (gap + wide / 2), dy * (gap + _LABEL_SIZE / 2))
            box = _box(at[0] + offset[0], at[1] + offset[1], wide, _LABEL_SIZE)
            hidden = sum(_common(box, other) for other in taken)
            outside = wide * _LABEL_SIZE - _common(box, frame)
            costs[hidden + 9 * outside + 2 * far + 0.01 * len(costs)] = offset, box
        offset, box = costs[min(costs)]
        taken.append(box)
        how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": _LABEL_SIZE}
        how |= {"textcoords": "offset points", "color": hex_of(mark.colour)}
        axes.annotate(_escaped(text), where, offset, **how)


def _box(x: float, y: float, wide: float, tall: float) -> tuple[float, float, float, float]:
    return x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2


def _common(box: Sequence[float], other: Sequence[float]) -> float:
    """Return the area that two boxes share."""
    wide = min(box[2], other[2]) - max(box[0], other[0])
    tall = min(box[3], other[3]) - max(box[1], other[1])
    return max(0.0, wide) * max(0.0, tall)


def _places(words: Sequence[str], shift: float, x: Any) -> FloatArray:
    """Return places as numbers; words are shifted aside, so that marks do not hide each other."""
    if not words:
        return np.asarray(x, dtype=np.float64)
    return np.array([words.index(word) + shift for word in x])


def _is_at_words(mark: Any) -> bool:
    return isinstance(mark, Line | Bars | Boxes) and any(isinstance(at, str) for at in mark.x)


def _style(colour: Colour, styles: Sequence[Any]) -> Any:
    """Return a line style or marker: another one for each colour, and again when colours repeat."""
    if not isinstance(colour, int):
        return styles[0]
    turn, place = divmod(colour, len(COLOURS))
    return styles[(place + turn) % len(styles)]


@singledispatch
def _draw(mark: Any, axes: Axes, at: _At, width: float) -> None:
    raise TypeError(f"{type(mark).__name__} is not a mark of a chart.")


@_draw.register(Line)
def _(mark: Line, axes: Axes, at: _At, width: float) -> None:
    colour, x, is_known = hex_of(mark.colour), at(mark.x), np.isfinite(mark.y)
    how: dict[str, Any] = {"color": colour, "label": _escaped(mark.name), "alpha": mark.opacity}
    how |= {"linestyle": _style(mark.colour, _LINES), **_ROLES[mark.role]}
    how |= {"linewidth": 2.4} if mark.is_bold else {}
    if mark.is_steps:
        axes.stairs(mark.y, x, baseline=None, **how | {"linestyle": "-", "linewidth": 1.0})
        return
    if mark.size:
        how |= {"marker": _style(mark.colour, _MARKERS), "markersize": mark.size}
    x, y = x[is_known], mark.y[is_known]
    axes.plot(x, y, **how)
    if mark.low is not None and mark.high is not None:
        low, high = mark.low[is_known], mark.high[is_known]
        if mark.role == "points":
            axes.vlines(x, low, high, color=colour, linewidth=1.0)
        else:
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if mark.x_range is not None:
        axes.hlines(y, *mark.x_range, color=colour, linewidth=1.0, alpha=0.6)


@_draw.register(Bars)
def _(mark: Bars, axes: Axes, at: _At, width: float) -> None:
    how: dict[str, Any] = {
        "color": hex_of(mark.colour),
        "label": _escaped(mark.name),
        "linewidth": 0,
    }
    if np.ndim(mark.width):  # a histogram, whose bars touch
        how |= {"edgecolor": "white", "linewidth": 0.4}
    base = 0.0 if mark.base is None else mark.base
    x, height = at(mark.x), np.nan_to_num(mark.y)
    axes.bar(x, height, mark.width * width, base, **how)
    if mark.margin is not None:
        whisker: dict[str, Any] = {"fmt": "none", "ecolor": "black", "elinewidth": 0.8}
        axes.errorbar(x, height, np.nan_to_num(mark.margin), capsize=1.5, **whisker)


@_draw.register(Boxes)
def _(mark: Boxes, axes: Axes, at: _At, width: float) -> None:
    names = ("whislo", "q1", "med", "q3", "whishi")
    stats = [dict(zip(names, cuts, strict=True)) for cuts in mark.cuts.tolist()]
    thin = {"linewidth": 0.8}
    box = {"facecolor": hex_of(mark.colour), "alpha": 0.6, **thin}
    how: dict[str, Any] = {"boxprops": box, "medianprops": {"color": "black"}}
    how |= {"whiskerprops": thin, "capprops": thin, "patch_artist": True, "showfliers": False}
    how["widths"] = 0.6 if width == 1.0 else 0.85 * width
    made = axes.bxp(stats, positions=at(mark.x), manage_ticks=False, **how)
    made["boxes"][0].set_label(_escaped(mark.name))


@_draw.register(Heatmap)
def _(mark: Heatmap, axes: Axes, at: _At, width: float) -> None:
    low, high = mark.ends
    n_rows, n_columns = mark.values.shape
    x: Array = np.arange(n_columns) if mark.x is None else mark.x
    half = (x[-1] - x[0]) / max(2 * (n_columns - 1), 1) or 0.5
    how: dict[str, Any] = {"cmap": {"blues": "Blues"}.get(mark.scale, mark.scale)}
    how |= {"extent": (x[0] - half, x[-1] + half, -0.5, n_rows - 0.5), "vmin": low, "vmax": high}
    how |= {"aspect": "auto", "origin": "lower", "interpolation": "nearest"}
    axes.grid(visible=False)
    if mark.kinds:
        from matplotlib.colors import ListedColormap

        colours = [hex_of(colour) for _, colour in mark.kinds]
        how |= {"cmap": ListedColormap(colours), "vmin": -0.5, "vmax": len(colours) - 0.5}
        axes.imshow(mark.values, **how)
        for (name, _), colour in zip(mark.kinds, colours, strict=True):
            axes.bar(np.nan, np.nan, color=colour, label=_escaped(name))  # only in the legend
        return
    image = axes.imshow(mark.values, **how)
    axes.figure.colorbar(image, ax=axes, label=_escaped(mark.label), pad=0.01)
    for _, (_, first, _) in itertools.pairwise(mark.groups):
        axes.axhline(first - 0.5, color="white", linewidth=1.2)


@_draw.register(Guide)
def _(mark: Guide, axes: Axes, at: _At, width: float) -> None:
    how: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": _DASHES[mark.dash]}
    (axes.axvline if mark.axis == "x" else axes.axhline)(mark.at, **how)


def _draw_legend(canvas: Canvas, chart: Chart, everywhere: Iterable[Axes]) -> float:
    """Draw one legend for all panels and return its height in inches, if it is above them."""
    handles: dict[str, Any] = {}
    for axes in everywhere:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if chart.legend == "none" or not handles:
        return 0.0
    how: dict[str, Any] = {"title": chart.legend_title or None, "frameon": False}
    if chart.legend == "right":
        turned = dict(reversed(handles.items()))  # bars are stacked from below
        how |= {"loc": "outside right center", "handlelength": 1.0, "labelspacing": 0.25}
        canvas.legend(turned.values(), turned.keys(), **how)
        return 0.0
    widest = _LEGEND_LINE + _LEGEND_CHARACTER * max(map(len, handles))
    n_rows = math.ceil(len(handles) / max(1, int(chart.inches / widest)))
    how |= {"ncols": math.ceil(len(handles) / n_rows), "loc": "outside upper center"}
    canvas.legend(handles.values(), handles.keys(), **how)
    return _LEGEND_ROW * n_rows
