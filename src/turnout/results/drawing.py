"""How figures of the package look, and what several of them draw. Needs matplotlib.

Lines are means over seeds, bands reach from the lowest to the highest seed. Colours are the palette
of Okabe and Ito, which stays apart for colour-blind readers; line styles differ as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnout.errors import MissingExtra, OutputError
from turnout.types import Array, FloatArray

FORMATS = ("pdf", "svg", "png")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)))

#: Settings of matplotlib for every figure of the package.
STYLE = Path(__file__).with_name("turnout.mplstyle")

#: Left out of each format: dates would make every file differ from the last.
FILE_METADATA: Mapping[str, dict[str, None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {},
}


def require_matplotlib() -> None:
    """Raise ``MissingExtra`` if figures cannot be drawn here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("Figures need matplotlib: pip install 'turnout[plot]'.")


def draw_files(paths: Sequence[Path], fill: Callable[[Any], None]) -> list[Path]:
    """Draw a figure and write it into files.

    Args:
        paths: The files; their endings, some of ``FORMATS``, are the formats.
        fill: Draws on a canvas, which is a ``Figure`` of matplotlib.

    Returns:
        The paths.

    Raises:
        MissingExtra: matplotlib is not installed.
        OutputError: A file cannot be written.
    """
    require_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(STYLE):
        canvas = Figure(layout="constrained")
        fill(canvas)
        for path in paths:
            form = path.suffix.removeprefix(".")
            try:
                canvas.savefig(path, format=form, metadata=FILE_METADATA[form])
            except OSError as error:
                reason = error.strerror or error
                raise OutputError(
                    f"cannot write {path} ({reason}): choose another folder."
                ) from error
    return list(paths)


def look(number: int) -> dict[str, Any]:
    """Return colour and line style of a scheme.

    Args:
        number: Of the scheme, from 0; the same in every figure.
    """
    turn, place = divmod(number, len(COLOURS))
    return {"color": COLOURS[place], "linestyle": _LINES[(place + turn) % len(_LINES)]}


def draw_band(panel: Any, places: Array, values: FloatArray, label: str, **how: Any) -> None:
    """Draw the mean over seeds, with a band from the lowest to the highest seed.

    Args:
        panel: Axes of matplotlib.
        places: (k,) where on the x axis.
        values: (seeds, k) the curves.
        label: For the legend.
        how: Colour and line style, as ``look`` returns them.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    panel.fill_between(places, low, high, color=how["color"], alpha=0.15, linewidth=0)
    panel.plot(places, values.mean(axis=0), label=label, **how)


def draw_legend(
    canvas: Any, panels: Iterable[Any], n_columns: int = 4, named: Callable[[str], str] = str
) -> None:
    """Put one legend above all panels, with every line that is drawn in one of them.

    Args:
        canvas: The figure.
        panels: Axes of matplotlib.
        n_columns: How many names are side by side at most.
        named: Returns the name of a line's label in the legend.
    """
    lines = {named(line.get_label()): line for panel in panels for line in panel.get_lines()}
    place, columns = "outside upper center", min(len(lines), n_columns)
    canvas.legend(lines.values(), lines.keys(), ncols=columns, loc=place, frameon=False)
