"""The charts of a world, section by section; a section without data is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape

import numpy as np

from turnout.names import shortened
from turnout.report.curves import (
    Trace,
    against_time,
    clock,
    identity,
    over_rounds,
    time_unit,
)
from turnout.report.distributions import boxes, chosen, fairness
from turnout.report.figures import Chart, Section, axes
from turnout.report.groups import VariantCells, WorldGroup
from turnout.report.targets import loss_histogram
from turnout.runs.cell import Cell
from turnout.types import FloatArray

__all__ = ["sections"]

SEEDS = "Line: mean over seeds; band: lowest to highest seed."

#: Columns of rounds.jsonl that every kind of run has; all others get charts of their own.
_COMMON = frozenset(
    {"round", "available", "chosen", "completed", "late", "failed", "silent"}
    | {"length_s", "wasted_s", "regret"}
)
_MOST_EXTRA = 8
_MEANINGS = {
    "accuracy": "Of the global model, on the test set. ",
    "loss": "Of the global model, on the test set. ",
    "holdout_accuracy": "Of the global model, on what all clients hold out. ",
    "holdout_loss": "Of the global model, on what all clients hold out. ",
    "train_loss": "What the clients of a round report of their training, mean by data. ",
    "local_loss": "Of the global model on all clients' own examples, mean by data. ",
    "jain_of_losses": "Jain's index of the clients' losses on their own examples, 1 is equal. ",
    "worst_accuracy": "Mean over the worst tenth of the clients, on their own examples. ",
}


def sections(world: WorldGroup, order: Mapping[str, int]) -> list[Section]:
    """Return what there is to show; ``order`` numbers the selectors for colours and toggling."""
    made = (
        Section("Learning", [*_learning(world, order), *loss_histogram(world, order)]),
        Section("Success and participation", [*_success(world, order)]),
        Section("Regret", [*_regret(world, order)]),
        Section("Who is chosen", [*chosen(world, order)]),
        Section("Fairness", [*fairness(world, order)]),
        Section("Time", [*_time(world, order)]),
        Section("Fairness queues", [*_queues(world, order)]),
    )
    return [section for section in made if section.charts]


def _lines(key: str, title: str, caption: str, traces: list[Trace], y: str) -> Iterator[Chart]:
    if traces:
        yield Chart(key, title, caption, traces, axes("round", y))


def _learning(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    named = {name for cell in world.cells for name in cell.series} - _COMMON
    names = sorted(named, key=lambda name: (name != "accuracy", name != "loss", name))
    unit, seconds = _clock_unit(world)
    for number, name in enumerate(names[:_MOST_EXTRA]):
        traces = over_rounds(world, order, _written(name))
        if not traces:
            continue
        what = name.replace("_", " ")[:40]
        title, y = what.capitalize(), escape(what)
        caption = _MEANINGS.get(name, "") + SEEDS
        yield from _lines(f"extra-{number}", f"{title} by round", caption, traces, y)
        timed = against_time(world, order, name, seconds)
        layout = axes(f"time ({unit})", y)
        yield Chart(f"extra-{number}-time", f"{title} by time", caption, timed, layout)


def _success(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    window = max(1, world.n_rounds // 20)
    yield from _lines(
        "success",
        "Success ratio so far",
        f"Share of all chosen clients that answered in time. {SEEDS}",
        over_rounds(world, order, _success_so_far),
        "success ratio",
    )
    yield from _lines(
        "success-moving",
        "Success ratio, moving",
        f"The same over the last {window} rounds. {SEEDS}",
        over_rounds(world, order, lambda cell: _success_moving(cell, window), start=window - 1),
        "success ratio",
    )
    yield from _lines(
        "cep",
        "Cumulative effective participation",
        f"Answers in time so far (CEP). {SEEDS}",
        over_rounds(world, order, lambda cell: np.nancumsum(cell.series["completed"])),
        "answers in time",
    )


def _regret(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    regret = over_rounds(world, order, _regret_of)
    with_bands = over_rounds(world, order, _recorded("bound"), role="bound")
    bounds = [trace for trace in with_bands if trace["meta"]["role"] == "bound"]
    for trace in bounds:
        trace["name"] = f"bound of {trace['name']}"
    caption = (
        "Answers lost against the best fixed allocation in hindsight that keeps the selector's own "
        f"quota. {SEEDS}"
    )
    yield from _lines("regret", "Regret", caption, regret, "answers lost")
    if regret and bounds:
        caption = "Dotted: the bound of E3CS Theorem 1, for selectors that it applies to."
        yield from _lines("bound", "Regret and its bound", caption, regret + bounds, "answers lost")


def _time(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    unit, seconds = _clock_unit(world)
    yield from _lines(
        "time",
        "Time so far",
        f"Virtual time at the end of each round. {SEEDS}",
        over_rounds(world, order, lambda cell: clock(cell) / seconds),
        f"time ({unit})",
    )
    traces = []
    for number, variant in enumerate(world.variants):
        lengths = _lengths(variant)
        if lengths.size:
            traces += _length_box(identity(variant, order), number, lengths)
    if traces:
        layout = axes("", "seconds", hovermode="x")
        names = [escape(shortened(variant.name, 16)) for variant in world.variants]
        layout["xaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names}
        caption = "Length of a round, all rounds and seeds. Whiskers: 5 % and 95 %."
        yield Chart("round-time", "Round time", caption, traces, layout)


def _lengths(variant: VariantCells) -> FloatArray:
    lengths = np.concatenate([cell.series["length_s"] for cell in variant.cells])
    known: FloatArray = lengths[np.isfinite(lengths)]
    return known


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
    tip |= {**who, "meta": {**who["meta"], "role": "tip"}}
    return [box | {"hoverinfo": "skip"}, tip]


def _queues(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    caption = f"Virtual queues of RBCS-F: selections owed to a client. {SEEDS}"
    for key, title in (("mean", "Mean backlog"), ("max", "Largest backlog")):
        traces = over_rounds(world, order, _recorded(f"backlog_{key}"))
        yield from _lines(f"backlog-{key}", title, caption, traces, "selections owed")


def _written(name: str) -> Callable[[Cell], FloatArray | None]:
    """Return a reader of a column of ``rounds.jsonl``."""
    return lambda cell: cell.series.get(name)


def _recorded(name: str) -> Callable[[Cell], FloatArray | None]:
    """Return a reader of a column of ``selections.npz``."""
    return lambda cell: cell.curves.get(name)


def _regret_of(cell: Cell) -> FloatArray | None:
    exact = _recorded("regret")(cell)
    return cell.series.get("regret") if exact is None else exact


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


def _clock_unit(world: WorldGroup) -> tuple[str, float]:
    return time_unit(max(float(clock(cell)[-1]) for cell in world.cells))
