"""Figures of a metric against what was swept. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.results.drawing import draw_band, draw_legend, look
from turnout.results.sensitivity import Panel

#: Width over which the selectors at one word are spread.
_SHIFT = 0.5


def draw_panels(canvas: Any, panels: Sequence[Panel], n_columns: int) -> None:
    """Draw panels side by side, with one legend.

    Args:
        canvas: A ``Figure`` of matplotlib, with its size set.
        panels: What is drawn.
        n_columns: How many are side by side.
    """
    n_rows = -(-len(panels) // n_columns)
    grid = canvas.subplots(n_rows, n_columns, squeeze=False).ravel()
    names = dict.fromkeys(each.name for panel in panels for each in panel.responses)
    numbers = {name: number for number, name in enumerate(names)}
    for empty in grid[len(panels) :]:
        empty.set_axis_off()
    for drawn, panel in zip(grid, panels, strict=False):
        _draw(drawn, panel, numbers)
    draw_legend(canvas, grid, 2 * n_columns)


def _draw(drawn: Any, panel: Panel, numbers: dict[str, int]) -> None:
    places = panel.places
    means = [mean for each in panel.responses for mean in each.values.mean(axis=0).tolist()]
    scale = panel.metric.scale(means)
    for number, each in enumerate(panel.responses):
        how, values = look(numbers[each.name]), each.values / scale.size
        if not panel.is_numeric:
            shift = (number - (len(panel.responses) - 1) / 2) * _SHIFT / len(panel.responses)
            at = np.array([places.index(place) + shift for place in each.places or places])
            values = np.broadcast_to(values, (len(values), at.size))
            drawn.vlines(at, values.min(axis=0), values.max(axis=0), color=how["color"])
            how["linestyle"] = "none"
            drawn.plot(at, values.mean(axis=0), marker="o", markersize=4, label=each.name, **how)
        elif each.places:
            draw_band(drawn, np.array(each.places), values, each.name, marker="o", **how)
        else:
            ends = np.array([places[0], places[-1]])
            draw_band(drawn, ends, np.repeat(values, 2, axis=1), each.name, **how)
    if not panel.is_numeric:
        drawn.set_xticks(range(len(places)), [str(place) for place in places])
        drawn.set_xlim(-0.5, len(places) - 0.5)
    elif panel.is_wide:
        drawn.set_xscale("log")
    drawn.set_xlabel(panel.key)
    drawn.set_ylabel(panel.metric.titled(scale))
    drawn.set_title(panel.where)
