"""Figures as plain data: panels with lines, points, bars, boxes and heat maps.

Each chart is described once. ``to_matplotlib`` draws it into files, ``to_plotly`` into pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from turnout.core.types import Array, FloatArray

#: The palette of Okabe and Ito, a little darker where it is hard to see on white. Its colours stay
#: apart for colour-blind readers. The report has the same ones, and others for the dark theme.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#b3589a"),
    *("#d99000", "#38a3dd", "#3b3f46", "#948700"),
)
GREY = "#888888"

#: Inches of one column and of two, as in the usual two-column styles.
WIDTHS = {"one": 3.4, "two": 7.0}

#: Colours by what they stand for, as numbers of ``COLOURS``; the style sheet has the same ones.
MEANINGS = {
    "in-time": 2,
    "late": 4,
    "failed": 1,
    "silent": 3,
    "busy": 5,
    "training": 0,
    "waiting": 4,
    "part": 0,
}
#: Colours of a theme, as a page with dark letters has them.
THEME = {"page": "#ffffff", "grid": "#e6e9ee"}

#: The number of a selector, whose colour follows from ``COLOURS``, a name of ``MEANINGS`` or
#: ``THEME``, or ``#rrggbb``.
Colour: TypeAlias = int | str
#: Places on an axis: numbers, or words that stand side by side.
Places: TypeAlias = Sequence[str] | Array


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or points.

    Attributes:
        name: Its name in the legend; empty = it is not in the legend.
        colour: Its colour.
        x: (k,) places; for steps, the k + 1 edges between which each value holds.
        y: (k,) values; NaN = unknown.
        low: (k,) lower ends of the band around it, or of the intervals of points.
        high: (k,) upper ends.
        role: ``line``, the dotted ``bound`` of a line, a thin ``reference``, or ``points`` alone.
        size: Diameter of the markers in points of type; 0 = a line without markers.
        x_range: (2, k) ends of the horizontal intervals of points.
        labels: A text beside each point.
        opacity: 1 hides what is below.
        is_steps: Whether the line is constant between edges.
        is_bold: Whether it stands out.
    """

    name: str
    colour: Colour
    x: Places
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    role: Literal["line", "bound", "reference", "points"] = "line"
    size: float = 0.0
    x_range: FloatArray | None = None
    labels: Sequence[str] = ()
    opacity: float = 1.0
    is_steps: bool = False
    is_bold: bool = False

    @property
    def at(self) -> FloatArray:
        """The places, if they are numbers."""
        return np.asarray(self.x, dtype=np.float64)

    @classmethod
    def over_seeds(cls, name: str, colour: Colour, x: Places, values: FloatArray) -> Line:
        """Return the mean over seeds, with a band from the lowest to the highest seed.

        Args:
            name: Its name in the legend.
            colour: Its colour.
            x: (k,) places.
            values: (seeds, k) the values of each seed; NaN = unknown.
        """
        known = np.ma.masked_invalid(values)
        mean, low, high = (f(axis=0).filled(np.nan) for f in (known.mean, known.min, known.max))
        return cls(name, colour, x, mean, *((low, high) if len(values) > 1 else ()))


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars. Those at words stand side by side; a base puts them on top of others.

    Attributes:
        name: Their name in the legend.
        colour: Their colour.
        x: (k,) places of their middles.
        y: (k,) heights; NaN = unknown.
        margin: (k,) half the length of the whisker at the end of each bar.
        base: (k,) where they begin; None = 0.
        width: Width of all bars, or (k,) of each.
    """

    name: str
    colour: Colour
    x: Places
    y: FloatArray
    margin: FloatArray | None = None
    base: FloatArray | None = None
    width: float | FloatArray = 0.86

    @classmethod
    def histogram(
        cls, values: Array, edges: FloatArray, colour: Colour, share_of: float = 1.0
    ) -> Bars:
        """Return how many values are between edges.

        Args:
            values: The values.
            edges: (k + 1,) the edges.
            colour: The colour of the bars.
            share_of: What the counts are divided by.
        """
        counts, _ = np.histogram(values, edges)
        middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        return cls("", colour, middles, counts / share_of, width=widths)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes from the first to the third quartile, with a line at the median.

    Attributes:
        name: Their name in the legend.
        colour: Their colour.
        x: (k,) places.
        groups: k arrays of values.
        whiskers: The percentiles at which the whiskers end.
    """

    name: str
    colour: Colour
    x: Places
    groups: Sequence[Array]
    whiskers: tuple[float, float] = (0.0, 100.0)

    @property
    def cuts(self) -> FloatArray:
        """(k, 5) lower whisker, quartiles, upper whisker."""
        at = (self.whiskers[0], 25.0, 50.0, 75.0, self.whiskers[1])
        return np.array([np.percentile(group, at) for group in self.groups])


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Numbers as colours, row by row from the bottom.

    Attributes:
        name: What it shows, such as a selector.
        colour: The number of the selector, by which a page hides it.
        values: (rows, columns) the numbers.
        label: What the numbers are.
        ends: The numbers of the darkest and the brightest colour; None = as the values are.
        x: (columns,) places of the columns; None = 0, 1, ...
        option: Which of several maps of the same name it is.
        rows: What each row is, for the pointer.
        columns: What each column is, for the pointer.
        groups: Name, first and last row of the groups that rows form.
        scale: The colour scale: ``cividis``, ``viridis`` or ``blues``.
        kinds: Name and colour of each value, if values are the numbers 0, 1, ... of kinds; there is
            no scale then.
    """

    name: str
    colour: Colour
    values: FloatArray
    label: str
    ends: tuple[float | None, float | None] = (None, None)
    x: Array | None = None
    option: str = ""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    groups: Sequence[tuple[str, int, int]] = ()
    scale: Literal["cividis", "viridis", "blues"] = "cividis"
    kinds: Sequence[tuple[str, Colour]] = ()


@dataclass(frozen=True, slots=True)
class Guide:
    """A straight line across a panel.

    Attributes:
        axis: The axis that it crosses.
        at: Where it crosses.
        dash: How it is drawn.
    """

    axis: Literal["x", "y"]
    at: float
    dash: Literal["solid", "dash", "dot"] = "solid"


Mark: TypeAlias = Line | Bars | Boxes | Heatmap | Guide


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis.

    Attributes:
        label: What stands beside it.
        unit: The unit of its numbers.
        is_log: Whether it is logarithmic.
        is_share: Whether its numbers are shares, which a reader takes as percentages.
        is_whole: Whether only whole numbers make sense as ticks.
        low: Where it begins; None = as the data are.
        high: Where it ends.
        ticks: The text at each place; empty = as the renderer chooses.
        tick_size: Size of these texts in points of type; None = as usual.
    """

    label: str = ""
    unit: str = ""
    is_log: bool = False
    is_share: bool = False
    is_whole: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Mapping[float, str] = field(default_factory=dict)
    tick_size: float | None = None

    @property
    def text(self) -> str:
        """The label with the unit."""
        return (
            f"{self.label} ({self.unit})" if self.unit and self.label else self.label or self.unit
        )


@dataclass(frozen=True, slots=True)
class Panel:
    """Marks on a pair of axes.

    Attributes:
        marks: What is drawn; later ones lie above.
        x: The horizontal axis.
        y: The vertical axis.
        title: The line above it.
        height: In inches, in files.
        share: Its share of the width of its row, relative to the others; 0 = a row of its own.
    """

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    height: float = 2.1
    share: float = 1.0

    @property
    def words(self) -> list[str]:
        """The words at which marks stand, in order; empty for an axis of numbers."""
        at = (mark.x for mark in self.marks if isinstance(mark, Line | Bars | Boxes))
        return list(dict.fromkeys(place for x in at for place in x if isinstance(place, str)))


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels in rows, with one legend.

    Attributes:
        key: Its name in a page and of its files.
        title: Its title in a page; files leave it to their captions.
        caption: What the reader should know.
        panels: The panels, row by row.
        n_columns: How many panels are side by side at most.
        width: In inches, in files; None = one column of a page, or two if there are many panels.
        headline: A line above the panels in files.
        shares_y: Whether panels of the same row, or all, have one vertical axis.
        legend: Where the legend is in files.
        legend_title: What the names in the legend are.
        is_wide: Whether it takes the whole width of a page.
        is_menu: Whether a page shows one panel at a time, chosen from menus.
    """

    key: str
    title: str
    caption: str
    panels: Sequence[Panel]
    n_columns: int = 1
    width: float | None = None
    headline: str = ""
    shares_y: Literal["none", "row", "all"] = "none"
    legend: Literal["above", "right", "none"] = "above"
    legend_title: str = ""
    is_wide: bool = False
    is_menu: bool = False

    @property
    def inches(self) -> float:
        """The width in inches, in files."""
        is_double = self.is_wide or self.n_columns > 1
        return self.width or WIDTHS["two" if is_double else "one"]

    @property
    def names(self) -> dict[str, Colour]:
        """The colour of each name that a legend explains; empty if there is only one."""
        found: dict[str, Colour] = {}
        for mark in (mark for panel in self.panels for mark in panel.marks):
            if isinstance(mark, Heatmap):
                found |= dict(mark.kinds)
            elif not isinstance(mark, Guide) and mark.name:
                found[mark.name] = mark.colour
        return found if len(found) > 1 else {}

    @property
    def has_map(self) -> bool:
        """Whether a heat map is among its marks, which needs more height."""
        return any(isinstance(mark, Heatmap) for panel in self.panels for mark in panel.marks)

    @property
    def rows(self) -> list[list[Panel]]:
        """The panels by row."""
        rows: list[list[Panel]] = []
        for panel in self.panels:
            is_new = not rows or len(rows[-1]) == self.n_columns
            if is_new or not panel.share or not rows[-1][-1].share:
                rows.append([])
            rows[-1].append(panel)
        return rows


def hex_of(colour: Colour) -> str:
    """Return a colour as ``#rrggbb``.

    Args:
        colour: A number, a name or such a text.
    """
    number = MEANINGS.get(colour) if isinstance(colour, str) else colour
    return THEME.get(str(colour), str(colour)) if number is None else COLOURS[number % len(COLOURS)]


def stacked(bars: Sequence[Bars]) -> list[Bars]:
    """Return bars on top of each other.

    Args:
        bars: From the lowest to the highest, all at the same places.
    """
    base, found = np.zeros(len(bars[0].y)), []
    for each in bars:
        found.append(dataclasses.replace(each, base=base))
        base = base + np.nan_to_num(each.y)
    return found
