"""The figure of a division: which client has how much of what."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from turnout.core.errors import InvalidInput, OutputError
from turnout.data import FederatedData
from turnout.data.federate import Division, division
from turnout.report.figure import Axis, Bars, Chart, Heatmap, Panel, stacked
from turnout.report.to_matplotlib import FORMATS, write_figure

#: Most clients that get a bar of their own.
_MOST_BARS = 60
#: Bars show shares where the largest client has more than this many times the median.
_WIDE = 5
#: Most words of a text that get a row.
_MOST_WORDS = 30
_N_BINS = 15
#: The colours of labels: Tableau's twenty, of which every second one is a light shade.
_LABELS = (
    *("#1f77b4", "#aec7e8", "#ff7f0e", "#ffbb78", "#2ca02c", "#98df8a", "#d62728"),
    *("#ff9896", "#9467bd", "#c5b0d5", "#8c564b", "#c49c94", "#e377c2", "#f7b6d2"),
    *("#7f7f7f", "#c7c7c7", "#bcbd22", "#dbdb8d", "#17becf", "#9edae5"),
)


def draw_division(data: FederatedData, path: Path, title: str = "") -> Path:
    """Write a figure of the labels of each client and of the spread of sizes.

    Args:
        data: The divided dataset.
        path: The file to write. Its ending, ``.png``, ``.pdf`` or ``.svg``, sets the format.
        title: A line above the figure.

    Returns:
        The path.
    """
    if path.suffix.removeprefix(".") not in FORMATS:
        raise InvalidInput(f"path must end in .{', .'.join(FORMATS)}, got {path}.", field="path")
    try:
        write_figure(division_figure(data, title), [path])
    except OutputError as error:
        raise InvalidInput(f"path {error}", field="path") from error
    return path


def division_figure(data: FederatedData, title: str = "") -> Chart:
    """Return the figure of a division.

    Few clients are stacked bars. Many clients or many labels are a matrix, in which clients with
    the same main label are side by side.

    Args:
        data: The divided dataset.
        title: A line above the figure.
    """
    shown = division(data)
    low, high = int(shown.sizes.min()), int(shown.sizes.max())
    has_bars = shown.sizes.size <= _MOST_BARS and data.n_classes <= len(_LABELS)
    has_bars = has_bars and not data.is_text
    panels = [_bars(shown) if has_bars else _matrix(shown, data)]
    if high - low <= 1:  # a histogram would show nothing
        each = str(low) if low == high else f"{low} or {high}"
        title = ", ".join(part for part in (title, f"{each} examples each") if part)
    else:
        panels.append(_histogram(shown))
    head = ("division", title, "", panels, len(panels), 7.0, title)
    return Chart(*head, legend="right", legend_title="label")


def _bars(shown: Division) -> Panel:
    """Return a bar for each client, cut by label; all of one height where sizes differ a lot."""
    n_classes = shown.label_counts.shape[1]
    colours = _LABELS[::2] if 2 * n_classes <= len(_LABELS) else _LABELS
    client = np.arange(shown.sizes.size)
    is_wide = shown.sizes.max() > _WIDE * np.median(shown.sizes)
    heights = shown.shares(client) if is_wide else shown.label_counts
    bars = [
        Bars(str(number), colours[number], client, heights[:, number].astype(float))
        for number in range(n_classes)
    ]
    x = Axis("client", is_whole=True, low=-0.7, high=client.size - 0.3)
    y = Axis("share of the client's examples" if is_wide else "examples", is_share=is_wide)
    return Panel(stacked(bars), x, y, height=3.4, share=3.0)


def _matrix(shown: Division, data: FederatedData) -> Panel:
    """Return a column for each client and a row for each label, dark where the client has many."""
    rows = np.arange(data.n_classes)
    if data.is_text:  # the most frequent word is on top
        rows = np.argsort(-shown.label_counts.sum(axis=0), kind="stable")[:_MOST_WORDS][::-1]
    values = (shown.label_counts[np.ix_(shown.order, rows)] / shown.n_labels[shown.order, None]).T
    label = "share of the client's labels"
    mark = Heatmap("", 0, values, label, (0.0, None), scale="blues")
    words = data.words if data.is_text else None
    ticks = {float(place): words[row] for place, row in enumerate(rows)} if words else {}
    x = Axis(f"client, ordered by {shown.ordered_by}")
    y = Axis("next word" if data.is_text else "label", ticks=ticks, tick_size=6.0)
    return Panel([mark], x, y, height=3.4, share=3.0)


def _histogram(shown: Division) -> Panel:
    low, high = int(shown.sizes.min()), int(shown.sizes.max())
    is_wide = high > 20 * low
    edges = (np.geomspace if is_wide else np.linspace)(low, high, _N_BINS + 1)
    bars = Bars.histogram(shown.sizes, edges, "#4c72b0")
    x, y = Axis("examples of a client", is_log=is_wide), Axis("clients", is_whole=True)
    return Panel([bars], x, y, height=3.4)
