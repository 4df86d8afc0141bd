"""Charts of who is chosen how often: boxes, Lorenz curves, fairness bars, the map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from turnout.report.curves import Trace, identity, plain, share_line, with_role
from turnout.report.figures import Chart, axes, label
from turnout.report.heatmap import class_names, classes_of, heat_map
from turnout.report.summary import counts_of, summary_rows
from turnout.results.groups import VariantCells, WorldGroup
from turnout.runs.catalogue import shown_in
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics import Estimate
from turnout.types import Array, FloatArray, IntArray

_N_LORENZ = 101


def chosen(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield the selection counts by class of client, and the map of client by round."""
    class_of = classes_of(world)
    traces = []
    for variant in world.variants:
        counts = _counts(variant)
        if not counts:
            continue
        pooled, labels = np.array(counts), ["all clients"]
        groups: list[Array] = [pooled]
        if class_of is not None:
            present = np.unique(class_of)
            labels = class_names(world, present)
            groups = [pooled[:, class_of == number] for number in present]
        traces.append(boxes(identity(variant, order), labels, groups, (0, 100)))
    if traces:
        what = label(str(world.settings.classes.get("what") or "class"), 40)
        layout = axes("" if class_of is None else what, "times chosen", boxmode="group")
        layout |= {"hovermode": "closest"}
        layout["xaxis"]["type"] = "category"
        title = "Selections per client" if class_of is None else "Selections by client class"
        caption = "Selections of a client in a run, all seeds. Whiskers: least and most chosen."
        yield Chart("counts", title, caption, traces, layout, is_wide=True)
    maps = heat_map(world, order)
    if maps is not None:
        caption = "Share of rounds in which a client was chosen."
        yield Chart("map", "Client by round", caption, maps=maps, is_wide=True)


def fairness(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield the Lorenz curves of selection counts and the indices of fairness."""
    curves = _lorenz_curves(world, order)
    if not curves:
        return
    caption = "Share of all selections that the least chosen clients got. Dashed: all equal."
    layout = axes("share of clients", "share of selections")
    yield Chart("lorenz", "Lorenz curve of selections", caption, curves, layout)
    metrics = [metric for metric in shown_in("report") if metric.group == "fairness"]
    rows = summary_rows(world, metrics)
    bars = [
        _bars(identity(variant, order), metrics, row.estimates)
        for variant, row in zip(world.variants, rows, strict=True)
    ]
    meanings = " ".join(f"{metric.short}: {metric.meaning}" for metric in metrics)
    caption = f"{meanings} Whiskers: 95 % confidence."
    layout = axes("", "", barmode="group")
    yield Chart("fairness", "Fairness of selection counts", caption, bars, layout)


def boxes(
    who: Trace, at: Sequence[str | int], groups: list[Array], ends: tuple[float, float]
) -> Trace:
    """Return boxes made of percentiles, so that no single value goes into the page."""
    low, high = ends
    cuts = np.array([np.percentile(group, (low, 25, 50, 75, high)) for group in groups])
    names = ("lowerfence", "q1", "median", "q3", "upperfence")
    return {
        **with_role(who, "box"),
        "type": "box",
        "x": list(at),
        **{name: plain(column) for name, column in zip(names, cuts.T, strict=True)},
        "mean": plain(np.array([group.mean() for group in groups])),
    }


def _counts(variant: VariantCells) -> list[IntArray]:
    return [counts for cell in variant.cells if (counts := counts_of(cell)) is not None]


def _bars(who: Trace, metrics: Sequence[Metric[Facts]], estimates: Mapping[str, Estimate]) -> Trace:
    shown = {metric.short: estimates[metric.key] for metric in metrics if metric.key in estimates}
    margins = np.nan_to_num(np.array([estimate.half_width for estimate in shown.values()]))
    return {
        **with_role(who, "bar"),
        "type": "bar",
        "x": list(shown),
        "y": plain(np.array([estimate.mean for estimate in shown.values()])),
        "error_y": {"type": "data", "array": plain(margins), "thickness": 1, "width": 2},
        "hovertemplate": "%{y:.3f}<extra>%{fullData.name}</extra>",
    }


def _lorenz_curves(world: WorldGroup, order: Mapping[str, int]) -> list[Trace]:
    share = np.linspace(0.0, 1.0, _N_LORENZ)
    traces: list[Trace] = []
    for variant in world.variants:
        curves = [_lorenz(counts, share) for counts in _counts(variant) if counts.sum() > 0]
        if curves:
            traces.append(share_line(identity(variant, order), share, np.mean(curves, axis=0)))
    equal: Trace = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1]}
    equal |= {"name": "all equal", "meta": {"role": "reference"}, "hoverinfo": "skip"}
    return [equal, *traces] if traces else []


def _lorenz(counts: IntArray, share: FloatArray) -> FloatArray:
    held = np.concatenate(([0.0], np.cumsum(np.sort(counts)))) / counts.sum()
    cut: FloatArray = np.interp(share, np.linspace(0.0, 1.0, held.size), held)
    return cut
