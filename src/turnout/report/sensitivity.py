"""Charts of a metric against what was swept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from turnout.report.curves import Trace, add_line, plain
from turnout.report.figures import Chart, axes, label
from turnout.results.groups import WorldGroup
from turnout.results.sensitivity import Panel, parameter_panels, world_panels
from turnout.results.tables import main_metric
from turnout.types import FloatArray

_NUMBERS = "Line: mean over seeds; band: lowest to highest seed. Without marks: no such parameter."
_WORDS = "Mark: mean over seeds; bar: lowest to highest seed."


def parameter_charts(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield a chart for each parameter of which a selector has several values.

    Args:
        world: Cells that compare.
        order: The number of each selector, for colours and toggling.
    """
    return _charts(parameter_panels(world, main_metric(world)), order)


def world_charts(worlds: Sequence[WorldGroup], order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield a chart for each setting of worlds that a sweep went over.

    Args:
        worlds: All worlds of the page.
        order: The number of each selector, for colours and toggling.
    """
    return _charts(world_panels(worlds, main_metric(worlds[0])), order)


def _charts(panels: Iterable[Panel], order: Mapping[str, int]) -> Iterator[Chart]:
    for number, panel in enumerate(panels):
        means = [mean for each in panel.responses for mean in each.values.mean(axis=0).tolist()]
        scale = panel.metric.scale(means)
        layout = axes(label(panel.key, 40), panel.metric.titled(scale))
        kind = "log" if panel.is_wide else "linear"
        layout["xaxis"]["type"] = kind if panel.is_numeric else "category"
        where = f" ({panel.where})" if panel.where else ""
        title = f"{panel.metric.title} by {panel.key}{where}"
        caption = f"{panel.metric.meaning} {_NUMBERS if panel.is_numeric else _WORDS}"
        yield Chart(f"swept-{number}", title, caption, _traces(panel, order, scale.size), layout)


def _traces(panel: Panel, order: Mapping[str, int], unit: float) -> list[Trace]:
    bands: list[Trace] = []
    lines: list[Trace] = []
    everywhere = panel.places if not panel.is_numeric else [panel.places[0], panel.places[-1]]
    for each in panel.responses:
        who = {"name": label(each.name), "meta": {"selector": order[each.label]}}
        at = [p if panel.is_numeric else label(str(p)) for p in each.places or everywhere]
        rows = np.broadcast_to(each.values / unit, (len(each.values), len(at)))
        add_line(bands, lines, who, at, rows, "line")
        if not panel.is_numeric:
            lines[-1] |= {"mode": "markers", "error_y": _bars(rows)}
        elif each.places:
            lines[-1]["mode"] = "lines+markers"
    return bands + lines if panel.is_numeric else lines


def _bars(rows: FloatArray) -> Trace:
    """Return bars from the lowest to the highest seed."""
    mean = rows.mean(axis=0)
    up, down = plain(rows.max(axis=0) - mean), plain(mean - rows.min(axis=0))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
