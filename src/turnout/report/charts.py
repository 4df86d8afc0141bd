"""The charts of a world, section by section; a section without data is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from turnout.report.curves import Trace, against_time, clock, identity, over_rounds, with_role
from turnout.report.distributions import boxes, chosen, fairness
from turnout.report.figures import Chart, Section, axes, label
from turnout.report.sensitivity import parameter_charts
from turnout.report.targets import loss_histogram
from turnout.results.groups import VariantCells, WorldGroup
from turnout.runs.catalogue import find, metric_named
from turnout.runs.cell import Cell
from turnout.runs.metric import Scale
from turnout.types import FloatArray

SEEDS = "Line: mean over seeds; band: lowest to highest seed."

#: Columns of rounds.jsonl that every kind of run has; all others get charts of their own.
_COMMON = frozenset(
    {"round", "available", "chosen", "completed", "late", "failed", "silent"}
    | {"length_s", "wasted_s", "regret"}
)
_MOST_EXTRA = 8
#: What the lengths of rounds add up to, in simulations and in live runs.
_CLOCKS = ("Virtual time", "Time that training took till then,")


def sections(world: WorldGroup, order: Mapping[str, int]) -> list[Section]:
    """Return what there is to show; ``order`` numbers the selectors for colours and toggling."""
    everything = (
        Section("Sensitivity", [*parameter_charts(world, order)]),
        Section("Learning", [*_learning(world, order), *loss_histogram(world, order)]),
        Section("Success and participation", [*_success(world, order)]),
        Section("Regret", [*_regret(world, order)]),
        Section("Who is chosen", [] if world.is_live else [*chosen(world, order)]),
        Section("Fairness", [] if world.is_live else [*fairness(world, order)]),
        Section("Time", [*_time(world, order)]),
        Section("Fairness queues", [*_queues(world, order)]),
    )
    return [section for section in everything if section.charts]


def _lines(key: str, title: str, caption: str, traces: list[Trace], y: str) -> Iterator[Chart]:
    if traces:
        yield Chart(key, title, caption, traces, axes("round", y))


def _learning(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    named = {name for cell in world.cells for name in cell.series} - _COMMON
    names = sorted(named, key=lambda name: (name != "accuracy", name != "loss", name))
    scale = _clock_scale(world)
    for number, name in enumerate(names[:_MOST_EXTRA]):
        traces = over_rounds(world, order, _curve(name))
        if not traces:
            continue
        metric = find(name)
        title = name.replace("_", " ")[:40].capitalize() if metric is None else metric.title
        caption = SEEDS if metric is None else f"{metric.meaning} {SEEDS}"
        y = label(title, 40)
        yield from _lines(f"extra-{number}", f"{title} by round", caption, traces, y)
        timed = against_time(world, order, name, scale.size)
        layout = axes(f"time ({scale.unit})", y)
        yield Chart(f"extra-{number}-time", f"{title} by time", caption, timed, layout)


def _success(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    ratio, cep = metric_named("success_ratio"), metric_named("cep")
    window = max(1, world.n_rounds // 20)
    yield from _lines(
        "success",
        f"{ratio.title} so far",
        f"{ratio.meaning} {SEEDS}",
        over_rounds(world, order, _success_so_far),
        ratio.title,
    )
    yield from _lines(
        "success-moving",
        f"{ratio.title}, moving",
        f"The same over the last {window} rounds. {SEEDS}",
        over_rounds(world, order, lambda cell: _success_moving(cell, window), start=window - 1),
        ratio.title,
    )
    yield from _lines(
        "cep",
        f"{cep.title} so far",
        f"{cep.meaning} {SEEDS}",
        over_rounds(world, order, lambda cell: np.nancumsum(cell.series["completed"])),
        cep.unit,
    )


def _regret(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    metric, limit = metric_named("regret"), metric_named("regret_bound")
    regret = over_rounds(world, order, _curve("regret"))
    with_bands = over_rounds(world, order, _curve("bound"), role="bound")
    bounds = [trace for trace in with_bands if trace["meta"]["role"] == "bound"]
    for trace in bounds:
        trace["name"] = f"bound of {trace['name']}"
    caption = f"{metric.meaning} The plan keeps the selector's own quota. {SEEDS}"
    yield from _lines("regret", metric.title, caption, regret, metric.unit)
    if regret and bounds:
        title, caption = f"{metric.title} and its bound", f"Dotted, {limit.title}: {limit.meaning}"
        yield from _lines("bound", title, caption, regret + bounds, metric.unit)


def _time(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    total, length = metric_named("total_time_s"), metric_named("round_time_s")
    scale = _clock_scale(world)
    yield from _lines(
        "time",
        f"{total.title} so far",
        f"{_CLOCKS[world.is_live]} at the end of each round. {SEEDS}",
        over_rounds(world, order, lambda cell: clock(cell) / scale.size),
        total.titled(scale),
    )
    traces = []
    for number, variant in enumerate(world.variants):
        lengths = _lengths(variant)
        if lengths.size:
            traces += _length_box(identity(variant, order), number, lengths)
    if traces:
        layout = axes("", f"{length.title} (s)", hovermode="x")
        names = [label(variant.name, 16) for variant in world.variants]
        layout["xaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names}
        caption = "Length of a round, all rounds and seeds. Whiskers: 5 % and 95 %."
        yield Chart("round-time", length.title, caption, traces, layout)


def _lengths(variant: VariantCells) -> FloatArray:
    lengths = np.concatenate([cell.series["length_s"] for cell in variant.cells])
    finite: FloatArray = lengths[np.isfinite(lengths)]
    return finite


def _length_box(who: Trace, number: int, lengths: FloatArray) -> list[Trace]:
    """Return the box and its tip: plotly's own would call the whiskers minimum and maximum."""
    box = boxes(who, [number], [lengths], (5, 95))
    low, q1, median, q3, high = np.percentile(lengths, (5, 25, 50, 75, 95))
    text = (
        f"median {median:.4g} s<br>half of the rounds {q1:.4g} to {q3:.4g} s"
        f"<br>nine in ten {low:.4g} to {high:.4g} s"
    )
    tip = {"type": "scatter", "mode": "markers", "x": box["x"], "y": box["median"]}
    tip |= {"hovertemplate": f"{text}<extra>%{{fullData.name}}</extra>"}
    tip |= with_role(who, "tip")
    return [box | {"hoverinfo": "skip"}, tip]


def _queues(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    unit = metric_named("backlog_per_round").unit
    caption = f"Choices still owed to a client at the promised rate. {SEEDS}"
    for key, title in (("mean", "Mean backlog"), ("max", "Largest backlog")):
        traces = over_rounds(world, order, _curve(f"backlog_{key}"))
        yield from _lines(f"backlog-{key}", title, caption, traces, unit)


def _curve(name: str) -> Callable[[Cell], FloatArray | None]:
    """Return a reader of a column of ``selections.npz`` or, without it, of ``rounds.jsonl``."""

    def read(cell: Cell) -> FloatArray | None:
        return cell.curves.get(name, cell.series.get(name))

    return read


def _success_so_far(cell: Cell) -> FloatArray:
    return _ratio(np.nancumsum(cell.series["completed"]), np.nancumsum(cell.series["chosen"]))


def _success_moving(cell: Cell, window: int) -> FloatArray:
    completed, chosen_ = cell.series["completed"], cell.series["chosen"]
    return _ratio(_moving_sum(completed, window), _moving_sum(chosen_, window))


def _moving_sum(values: FloatArray, window: int) -> FloatArray:
    total = np.concatenate((np.zeros(window), np.nancumsum(values)))
    moving: FloatArray = total[window:] - total[:-window]
    return moving


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)


def _clock_scale(world: WorldGroup) -> Scale:
    return metric_named("total_time_s").scale(float(clock(cell)[-1]) for cell in world.cells)
