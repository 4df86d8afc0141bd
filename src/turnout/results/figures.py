"""Figures for a paper: accuracy by round and by time, profiles over worlds. Needs matplotlib."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnout import require
from turnout.results.drawing import draw_band, draw_files, draw_legend, look
from turnout.results.results import Results
from turnout.results.sensitivity import Panel, parameter_panels, swept_settings, world_panels
from turnout.results.sensitivity_figure import draw_panels
from turnout.results.tables import main_metric
from turnout.runs.catalogue import metric_named
from turnout.runs.cell import Cell
from turnout.runs.facts import Facts
from turnout.runs.files import slug
from turnout.runs.metric import Metric
from turnout.types import FloatArray

#: Inches of one column and of two, as in the usual two-column styles.
WIDTHS = {"one": 3.4, "two": 7.0}
_PANEL_HEIGHT, _LEGEND_HEIGHT = 2.1, 0.2
_N_PLACES = 200

#: (places, values): where a curve was measured, and what it was.
Curve = tuple[FloatArray, FloatArray]


def draw_results(
    results: Results,
    folder: Path,
    width: str = "two",
    formats: Sequence[str] = ("pdf",),
    metrics: Sequence[Metric[Facts]] = (),
) -> list[Path]:
    """Draw the figures of results and return the files that were written.

    ``curves``: accuracy (without training: answers in time) by round and by virtual time, a row of
    panels for each world. ``profile``, for several worlds: the share of runs above each level.
    ``sensitivity-KEY``, for everything that was swept: metrics against its values.

    Args:
        results: What is drawn.
        folder: Where the files go; it is made if it is not there.
        width: ``one`` or ``two`` columns of a page.
        formats: Some of ``pdf``, ``svg`` and ``png``.
        metrics: Those of the sensitivity; default: what the worlds are judged by.

    Raises:
        InvalidInput: The width is another.
        MissingExtra: matplotlib is not installed.
        OutputError: A file cannot be written.
    """
    require.choice("width", width, tuple(WIDTHS))
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable[[Any], None]] = {
        "curves": lambda canvas: _curves(canvas, results, width)
    }
    judged_by = {main_metric(world).key for world in results.worlds}
    if len(results.worlds) > 1 and len(judged_by) == 1 and results.across.labels:
        drawings["profile"] = lambda canvas: _profile(canvas, results)
    for key, panels in _sensitivities(results, metrics).items():
        drawings[f"sensitivity-{slug(key)}"] = functools.partial(
            _sensitivity, panels=panels, width=width
        )
    return [
        path
        for name, fill in drawings.items()
        for path in draw_files([folder / f"{name}.{form}" for form in formats], fill)
    ]


def _curves(canvas: Any, results: Results, width: str) -> None:
    """Draw a row of panels for each world; in one column the panels are below each other."""
    panels_of = {"one": (2 * len(results.worlds), 1), "two": (len(results.worlds), 2)}
    n_rows, n_columns = panels_of[width]
    n_names = 2 if width == "one" else 5
    legend = _LEGEND_HEIGHT * -(-len(results.labels) // n_names)
    canvas.set_size_inches(WIDTHS[width], _PANEL_HEIGHT * n_rows + legend)
    panels = canvas.subplots(n_rows, n_columns, squeeze=False).ravel()
    numbers = {label: number for number, label in enumerate(results.labels)}
    for place, world in enumerate(results.worlds):
        metric = main_metric(world)
        pair = panels[2 * place : 2 * place + 2]
        for panel, axis in zip(pair, ("round", "time"), strict=True):
            longest = max(_clock(cell)[-1] for cell in world.cells)
            scale = metric_named("total_time_s").scale([longest])
            for variant in world.variants:
                size = scale.size if axis == "time" else 1.0
                places, values = _joined([_curve(cell, metric, axis) for cell in variant.cells])
                draw_band(panel, places / size, values, variant.name, **look(numbers[variant.name]))
            panel.set_xlabel("round" if axis == "round" else f"virtual time ({scale.unit})")
            panel.set_ylabel(metric.title.lower() if metric.key == "accuracy" else metric.title)
            panel.set_xlim(left=0)
            if len(results.worlds) > 1:
                panel.set_title(f"{world.settings.experiment}, world {place + 1}")
    draw_legend(canvas, panels, n_names)


def _profile(canvas: Any, results: Results) -> None:
    """Draw the share of runs above each level of the main metric, mean over worlds."""
    canvas.set_size_inches(WIDTHS["one"], _PANEL_HEIGHT + 2 * _LEGEND_HEIGHT)
    panel = canvas.subplots()
    metric = main_metric(results.worlds[0])
    across = results.across
    values = [
        number
        for scores in across.worlds
        for label in across.labels
        for number in scores.values(label, metric).values()
    ]
    levels = np.linspace(min(values), max(values), _N_PLACES)
    numbers = {label: number for number, label in enumerate(results.labels)}
    for label, shares in across.performance_profile(metric.key, levels).items():
        panel.plot(levels, shares, label=label, **look(numbers[label]))
    panel.set_xlabel(f"{metric.title.lower()} \N{GREEK SMALL LETTER TAU}")
    panel.set_ylabel("share of runs above \N{GREEK SMALL LETTER TAU}")
    panel.set_ylim(-0.02, 1.02)
    draw_legend(canvas, [panel], 2)


def _sensitivities(results: Results, metrics: Sequence[Metric[Facts]]) -> dict[str, list[Panel]]:
    """Return panels by what was swept."""
    judged_by = list(metrics) or [main_metric(results.worlds[0])]
    by_key: dict[str, list[Panel]] = {}
    for metric in judged_by:
        panels = list(world_panels(results.worlds, metric))
        for world in results.worlds:
            where = ", ".join(f"{key}={value}" for key, value in swept_settings(world).items())
            panels += parameter_panels(world, metric, where)
        for panel in panels:
            by_key.setdefault(panel.key, []).append(panel)
    return by_key


def _sensitivity(canvas: Any, panels: Sequence[Panel], width: str) -> None:
    n_columns = 1 if width == "one" else min(2, len(panels))
    names = {each.name for panel in panels for each in panel.responses}
    legend = _LEGEND_HEIGHT * -(-len(names) // (2 * n_columns))
    is_single = width == "two" and n_columns == 1
    inches = WIDTHS["one"] if is_single else WIDTHS[width]
    canvas.set_size_inches(inches, _PANEL_HEIGHT * -(-len(panels) // n_columns) + legend)
    draw_panels(canvas, panels, n_columns)


def _clock(cell: Cell) -> FloatArray:
    return np.nancumsum(cell.series["length_s"])


def _curve(cell: Cell, metric: Metric[Facts], axis: str) -> Curve:
    """Return a curve without the rounds in which nothing was measured."""
    values = (
        cell.series["accuracy"]
        if metric.key == "accuracy"
        else np.nancumsum(cell.series["completed"])
    )
    places = np.arange(1.0, cell.n_rounds + 1.0) if axis == "round" else _clock(cell)
    is_measured = np.isfinite(values)
    return places[is_measured], values[is_measured]


def _joined(curves: Sequence[Curve]) -> tuple[FloatArray, FloatArray]:
    """Return curves at common places: from where all have begun to where the first one ends."""
    begin = max(places[0] for places, _ in curves)
    end = min(places[-1] for places, _ in curves)
    common = np.linspace(begin, end, _N_PLACES)
    return common, np.stack([np.interp(common, places, values) for places, values in curves])
