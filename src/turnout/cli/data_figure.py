"""A figure of a division: who has how much of what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from turnout.data import FederatedData
from turnout.data.summary import Division, division
from turnout.errors import InvalidInput
from turnout.results.drawing import FILE_METADATA, FORMATS, STYLE, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most clients that get a bar of their own, and most labels that get a colour.
_MOST_BARS, _MOST_COLOURS = 60, 20
#: Bars show shares where the largest client has more than this many times the median.
_WIDE = 5
#: Most words of a text that get a column.
_MOST_WORDS = 30


def draw_division(data: FederatedData, path: Path, title: str = "") -> Path:
    """Write a figure of the labels of each client and of the spread of sizes.

    Few clients are stacked bars. Many clients or many labels are a matrix, in which clients with
    the same main label are side by side.

    Args:
        data: The divided dataset.
        path: The file to write. Its ending, ``.png``, ``.pdf`` or ``.svg``, sets the format.
        title: A line above the figure.

    Returns:
        The path.

    """
    file_format = path.suffix.removeprefix(".")
    if file_format not in FORMATS:
        raise InvalidInput(f"path must end in .{', .'.join(FORMATS)}, got {path}.", field="path")
    require_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context([STYLE, {"axes.grid": False}]):
        canvas = Figure(figsize=(7.0, 3.4), layout="constrained")
        _fill(canvas, division(data), data, title)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            canvas.savefig(path, metadata=FILE_METADATA[file_format])
        except OSError as error:
            raise InvalidInput(f"path {path} cannot be written: {error}.", field="path") from error
    return path


def _fill(canvas: Figure, shown: Division, data: FederatedData, title: str) -> None:
    low, high = int(shown.sizes.min()), int(shown.sizes.max())
    if high - low <= 1:  # nothing to see in a histogram
        each = str(low) if low == high else f"{low} or {high}"
        title = ", ".join(part for part in (title, f"{each} examples each") if part)
        wide = canvas.subplots()
    else:
        wide, narrow = canvas.subplots(1, 2, width_ratios=(3, 1))
        _histogram(narrow, shown)
    few_clients = shown.sizes.size <= _MOST_BARS
    if few_clients and data.n_classes <= _MOST_COLOURS and not data.is_text:
        _bars(wide, shown)
    else:
        _matrix(canvas, wide, shown, data)
    canvas.suptitle(title, fontsize=9)


def _bars(axes: Axes, shown: Division) -> None:
    """One bar for each client, cut by label; all of one height where sizes differ too much."""
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    n_classes = shown.label_counts.shape[1]
    colours = matplotlib.colormaps["tab10" if n_classes <= 10 else "tab20"]
    client = np.arange(shown.sizes.size)
    is_wide = shown.sizes.max() > _WIDE * np.median(shown.sizes)
    heights = shown.shares(client) if is_wide else shown.label_counts
    below = np.zeros(client.size)
    for label in range(n_classes):
        height = heights[:, label]
        axes.bar(client, height, 0.86, below, color=colours(label), label=str(label), linewidth=0)
        below += height
    what = "share of the client's examples" if is_wide else "examples"
    axes.set(xlabel="client", ylabel=what, xlim=(-0.7, client.size - 0.3))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        title="label",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        handlelength=1.0,
        labelspacing=0.25,
    )


def _matrix(canvas: Figure, axes: Axes, shown: Division, data: FederatedData) -> None:
    """One column for each client, one row for each label, dark where the client has many."""
    rows = np.arange(data.n_classes)
    if data.is_text:
        rows = np.argsort(-shown.label_counts.sum(axis=0), kind="stable")[:_MOST_WORDS]
    image = axes.imshow(
        (shown.label_counts[np.ix_(shown.order, rows)] / shown.n_labels[shown.order, None]).T,
        aspect="auto",
        cmap="Blues",
        vmin=0.0,
        interpolation="nearest",
        origin="upper" if data.is_text else "lower",
    )
    canvas.colorbar(image, ax=axes, label="share of the client's labels", pad=0.01)
    what = "next word" if data.is_text else "label"
    axes.set(xlabel=f"client, ordered by {shown.ordered_by}", ylabel=what)
    if data.is_text and data.words:
        axes.set_yticks(range(rows.size), [data.words[row] for row in rows], fontsize=6)


def _histogram(axes: Axes, shown: Division) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = int(shown.sizes.min()), int(shown.sizes.max())
    is_wide = high > 20 * low
    edges = np.geomspace(low, high, 16) if is_wide else np.linspace(low, high, 16)
    axes.hist(shown.sizes, bins=edges.tolist(), color="#4c72b0", edgecolor="white", linewidth=0.4)
    axes.set_xscale("log" if is_wide else "linear")
    axes.set(xlabel="examples of a client", ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
