"""Which figures runs have: the charts of a world for the report, and those of results for files.

A line is the mean over seeds; its band reaches from the lowest to the highest seed. Charts without
data are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.require import choice
from turnout.core.types import Array, FloatArray, IntArray
from turnout.report.figure import (
    GREY,
    WIDTHS,
    Axis,
    Bars,
    Boxes,
    Chart,
    Heatmap,
    Line,
    Mark,
    Panel,
)
from turnout.report.to_matplotlib import write_figure
from turnout.results import sensitivity
from turnout.results.catalogue import find, metric_named, shown_in
from turnout.results.files import slug
from turnout.results.groups import VariantCells, WorldGroup
from turnout.results.metric import Facts, Metric, Scale
from turnout.results.reader import Cell
from turnout.results.results import Results
from turnout.results.tables import main_metric
from turnout.twin.check import QUANTILES, Played, replayed
from turnout.twin.fit import fit_log
from turnout.twin.log import log_of

#: Points of a line at most.
N_POINTS = 250
#: Cells of the map of clients and rounds at most.
N_ROWS, N_COLUMNS = 100, 125

#: Columns of rounds.jsonl that every kind of run has; all others get charts of their own.
_COMMON = frozenset(
    {"round", "available", "chosen", "completed", "late", "failed", "silent"}
    | {"length_s", "wasted_s", "regret", "energy_j", "co2_g", "staleness", "at_work"}
)
_MOST_EXTRA, _MOST_CLASSES, _N_BINS, _N_LORENZ, _N_LEVELS = 8, 12, 30, 101, 200
#: The bins of losses end here; the few losses above are counted in the last one.
_HIGHEST_PERCENTILE = 99.0
_SEEDS = "Line: mean over seeds; band: lowest to highest seed."
_NUMBERS = f"{_SEEDS} Without markers: the selector has no such parameter."
_WORDS = "Marker: mean over seeds; bar: lowest to highest seed."

_ROUND = Axis("round")

#: The number of each selector, which gives it its colour and by which a page hides it.
Order = Mapping[str, int]
#: Returns (T,) a column of a cell; None if it has no such column.
Column = Callable[[Cell], FloatArray | None]


class Section(NamedTuple):
    """Charts under one heading."""

    title: str
    charts: list[Chart]


def sections(world: WorldGroup, order: Order) -> list[Section]:
    """Return the charts of a world for the report.

    Args:
        world: Cells that compare.
        order: The number of each selector.
    """
    by_client = [] if world.is_live else [("Who is chosen", _chosen), ("Fairness", _fairness)]
    everything: list[tuple[str, Callable[[WorldGroup, Order], Iterator[Chart]]]] = [
        ("Sensitivity", parameter_charts),
        ("Learning", _learning),
        ("Success and participation", _success),
        ("Regret", _regret),
        *by_client,
        ("Time", _time),
        ("Rounds that overlap", _overlap),
        ("Energy", _energy),
        ("Fairness queues", _queues),
        ("Twin", twin_charts),
    ]
    found = [Section(title, list(charts(world, order))) for title, charts in everything]
    return [section for section in found if section.charts]


# Lines over rounds and time -----------------------------------------------------------------------


def _over_rounds(world: WorldGroup, order: Order, column: Column, start: int = 0) -> list[Line]:
    """Return a line for each selector; ``start`` is the first round that is drawn."""
    lines = (
        over_rounds(variant.name, order[variant.name], map(column, variant.cells), start)
        for variant in world.variants
    )
    return [line for line in lines if line is not None]


def over_rounds(
    name: str, colour: int, columns: Iterable[FloatArray | None], start: int = 0
) -> Line | None:
    """Return the line of one selector; None if no run has a number.

    A line ends with the shortest of its runs: a mean over fewer and fewer seeds would jump.

    Args:
        name: Its name in the legend.
        colour: The number of the selector.
        columns: (T,) values of each run; None = it has none.
        start: The first round that is drawn.
    """
    known = [values for values in columns if values is not None]
    shortest = min((values.size for values in known), default=0)
    rows = np.array([values[:shortest] for values in known])
    at = _points(rows, start)
    return Line.over_seeds(name, colour, at + 1, rows[:, at]) if at.size else None


def _points(rows: FloatArray, start: int) -> Array:
    """Return the rounds to draw: those in which a seed has a number, at most ``N_POINTS``."""
    if not rows.size:
        return np.zeros(0, dtype=np.int64)
    measured = np.flatnonzero(np.isfinite(rows).any(axis=0))
    measured = measured[measured >= min(start, rows.shape[-1] - 1)]
    cut = np.linspace(0, measured.size - 1, min(N_POINTS, measured.size)).round()
    shown: Array = measured[cut.astype(np.int64)]
    return shown


def _over_time(world: WorldGroup, order: Order, column: Column, seconds: float) -> list[Line]:
    """Return the same against the clock."""
    return _over(world, order, column, _clock, seconds)


def _over(
    world: WorldGroup, order: Order, column: Column, spent: Column, size: float
) -> list[Line]:
    """Return the same against what was spent; between measurements, the last known value holds.

    Args:
        world: Cells that compare.
        order: The number of each selector.
        column: What is drawn.
        spent: Returns (T,) what has been spent after each round.
        size: The unit of the axis, in the unit of ``spent``.
    """
    lines = []
    for variant in world.variants:
        curves = []
        for cell in variant.cells:
            values, at = column(cell), spent(cell)
            if at is not None and values is not None and np.isfinite(values).any():
                curves.append((at[np.isfinite(values)], values[np.isfinite(values)]))
        if curves:
            places = np.linspace(0.0, min(float(at[-1]) for at, _ in curves), N_POINTS)
            rows = np.array([_last_known(at, values, places) for at, values in curves])
            lines.append(Line.over_seeds(variant.name, order[variant.name], places / size, rows))
    return lines


def _last_known(at: FloatArray, values: FloatArray, times: FloatArray) -> FloatArray:
    return np.concatenate(([np.nan], values))[np.searchsorted(at, times, side="right")]


def _clock(cell: Cell) -> FloatArray:
    """Return (T,) the time at the end of each round."""
    return np.nancumsum(cell.series["length_s"])


def _clock_scale(world: WorldGroup) -> Scale:
    return metric_named("total_time_s").scale(float(_clock(cell)[-1]) for cell in world.cells)


def _column(name: str) -> Column:
    """Return a reader of a column of ``selections.npz`` or, without it, of ``rounds.jsonl``."""
    return lambda cell: cell.curves.get(name, cell.series.get(name))


def _lines(
    key: str, title: str, caption: str, lines: Sequence[Mark], y: str, x: Axis = _ROUND
) -> Iterator[Chart]:
    if lines:
        yield Chart(key, title, caption, [Panel(lines, x, Axis(y))])


def _learning(world: WorldGroup, order: Order) -> Iterator[Chart]:
    named = {name for cell in world.cells for name in cell.series} - _COMMON
    names = sorted(named, key=lambda name: (name != "accuracy", name != "loss", name))
    scale = _clock_scale(world)
    for number, name in enumerate(names[:_MOST_EXTRA]):
        metric, column = find(name), _column(name)
        title = name.replace("_", " ")[:40].capitalize() if metric is None else metric.title
        caption = _SEEDS if metric is None else f"{metric.meaning} {_SEEDS}"
        lines = _over_rounds(world, order, column)
        yield from _lines(f"extra-{number}", f"{title} by round", caption, lines, title)
        lines = _over_time(world, order, column, scale.size)
        place, time = f"extra-{number}-time", Axis("time", scale.unit)
        yield from _lines(place, f"{title} by time", caption, lines, title, time)
    yield from _loss_histogram(world, order)


def _loss_histogram(world: WorldGroup, order: Order) -> Iterator[Chart]:
    """Yield the distribution over clients of the final model's loss, as steps."""
    losses = {variant.name: _losses(variant) for variant in world.variants}
    present = {name: values for name, values in losses.items() if values.size}
    if not present:
        return
    together = np.concatenate([*present.values()])
    top = float(np.percentile(together, _HIGHEST_PERCENTILE, method="lower"))
    edges = np.linspace(0.0, top if top > 0.0 else 1.0, _N_BINS + 1)
    lines = []
    for name, values in present.items():
        counts, _ = np.histogram(np.minimum(values, edges[-1]), edges)
        lines.append(Line(name, order[name], edges, counts / values.size, is_steps=True))
    caption = (
        "Share of clients by the loss of the final model on their own examples, all seeds. The last"
        " step holds everything above. The Jain index of these losses is in the summary."
    )
    panel = Panel(lines, Axis("loss of a client"), Axis("share of clients", is_share=True))
    yield Chart("local-loss", "Local losses at the end", caption, [panel], is_wide=True)


def _losses(variant: VariantCells) -> FloatArray:
    parts = [cell.scores["loss"] for cell in variant.cells if "loss" in cell.scores]
    together = np.concatenate(parts) if parts else np.zeros(0)
    return together[np.isfinite(together) & (together >= 0.0)]


def _success(world: WorldGroup, order: Order) -> Iterator[Chart]:
    ratio, cep = metric_named("success_ratio"), metric_named("cep")
    window = max(1, world.n_rounds // 20)
    lines = _over_rounds(world, order, success_so_far)
    title, caption = f"{ratio.title} so far", f"{ratio.meaning} {_SEEDS}"
    yield from _lines("success", title, caption, lines, ratio.title)
    lines = _over_rounds(world, order, lambda cell: _success_in(cell, window), window - 1)
    title, caption = f"{ratio.title}, moving", f"The same over the last {window} rounds. {_SEEDS}"
    yield from _lines("success-moving", title, caption, lines, ratio.title)
    lines = _over_rounds(world, order, _answers_so_far)
    title, caption = f"{cep.title} so far", f"{cep.meaning} {_SEEDS}"
    yield from _lines("cep", title, caption, lines, cep.unit)


def success_so_far(cell: Cell) -> FloatArray:
    """Return (T,) the share of answers in time up to each round."""
    return _success_in(cell, cell.n_rounds)


def _success_in(cell: Cell, window: int) -> FloatArray:
    """Return (T,) the share of answers in time in the last rounds."""
    completed, chosen = (_moving_sum(cell.series[name], window) for name in ("completed", "chosen"))
    return np.where(chosen > 0, completed / np.where(chosen > 0, chosen, 1.0), np.nan)


def _moving_sum(values: FloatArray, window: int) -> FloatArray:
    total = np.concatenate((np.zeros(window), np.nancumsum(values)))
    return total[window:] - total[:-window]


def _answers_so_far(cell: Cell) -> FloatArray:
    return np.nancumsum(cell.series["completed"])


def _regret(world: WorldGroup, order: Order) -> Iterator[Chart]:
    metric, limit = metric_named("regret"), metric_named("regret_bound")
    regret = _over_rounds(world, order, _column("regret"))
    bounds = [
        dataclasses.replace(line, name=f"bound of {line.name}", role="bound", low=None, high=None)
        for line in _over_rounds(world, order, _column("bound"))
    ]
    caption = f"{metric.meaning} The plan keeps the selector's own quota. {_SEEDS}"
    yield from _lines("regret", metric.title, caption, regret, metric.unit)
    if regret and bounds:
        title, caption = f"{metric.title} and its bound", f"Dotted, {limit.title}: {limit.meaning}"
        yield from _lines("bound", title, caption, [*regret, *bounds], metric.unit)


def _time(world: WorldGroup, order: Order) -> Iterator[Chart]:
    total, length = metric_named("total_time_s"), metric_named("round_time_s")
    scale = _clock_scale(world)
    what = "Time that training has taken" if world.is_live else "Virtual time"
    lines = _over_rounds(world, order, lambda cell: _clock(cell) / scale.size)
    caption = f"{what} at the end of each round. {_SEEDS}"
    yield from _lines("time", f"{total.title} so far", caption, lines, total.titled(scale))
    boxes = []
    for number, variant in enumerate(world.variants):
        lengths = np.concatenate([cell.series["length_s"] for cell in variant.cells])
        known = lengths[np.isfinite(lengths)]
        if known.size:
            name, at = variant.name, np.array([number])
            boxes.append(Boxes(name, order[name], at, [known], (5.0, 95.0)))
    if boxes:
        names = {float(number): variant.name for number, variant in enumerate(world.variants)}
        panel = Panel(boxes, Axis(ticks=names), Axis(length.title, "s"))
        caption = "Length of a round, all rounds and seeds. Whiskers: 5 % and 95 %."
        yield Chart("round-time", length.title, caption, [panel], legend="none")


def _overlap(world: WorldGroup, order: Order) -> Iterator[Chart]:
    """Yield what runs have whose rounds overlap: staleness, clients at work and wasted work."""
    stale, at_work = metric_named("staleness"), metric_named("at_work")
    lines = _over_rounds(world, order, _column("staleness"))
    if not lines:
        return
    caption = f"{stale.meaning} The mean over the replies of a round. {_SEEDS}"
    yield from _lines("staleness", stale.title, caption, lines, stale.title)
    steps = [
        Line(variant.name, order[variant.name], *_ages(variant), is_steps=True)
        for variant in world.variants
        if any(cell.choices is not None and cell.run.stale.size for cell in variant.cells)
    ]
    caption = "Share of the replies that counted, by their staleness, all seeds."
    x = Axis(stale.title, is_whole=True)
    if steps:
        panel = Panel(steps, x, Axis("share of replies", is_share=True))
        yield Chart("staleness-shares", "Replies by staleness", caption, [panel])
    caption = f"{at_work.meaning} {_SEEDS}"
    lines = _over_rounds(world, order, _column("at_work"))
    yield from _lines("at-work", at_work.title, caption, lines, at_work.title)
    wasted = metric_named("wasted_share")
    lines = _over_rounds(world, order, _wasted_so_far)
    caption = f"Devices' time on work that did not count, as a share of all their time. {_SEEDS}"
    yield from _lines("wasted", f"{wasted.title} so far", caption, lines, wasted.title)


def _ages(variant: VariantCells) -> tuple[Array, FloatArray]:
    """Return the edges of whole numbers, and the share of the replies with each staleness."""
    runs = [cell.run for cell in variant.cells if cell.choices is not None]
    counts = np.bincount(np.concatenate([run.stale for run in runs]))
    return np.arange(counts.size + 1) - 0.5, counts / counts.sum()


def _wasted_so_far(cell: Cell) -> FloatArray | None:
    """Return (T,) the share of the devices' time that was wasted up to each round."""
    at_work = cell.series.get("at_work")
    if at_work is None:
        return None
    worked = np.nancumsum(at_work * cell.series["length_s"])
    wasted = np.nancumsum(cell.series["wasted_s"])
    share: FloatArray = np.full(worked.size, np.nan)
    np.divide(wasted, worked, out=share, where=worked > 0.0)
    return share


def _energy(world: WorldGroup, order: Order) -> Iterator[Chart]:
    """Yield what worlds with batteries have: energy and carbon so far, and who could be chosen."""
    spent = metric_named("energy_j")
    lines = _over_rounds(world, order, _energy_so_far)
    if not lines:
        return
    title = f"{spent.title} (kJ)"
    caption = f"{spent.meaning} {_SEEDS}"
    yield from _lines("energy", f"{spent.title} so far", caption, lines, title)
    grams = metric_named("co2_g")
    lines = _over_rounds(world, order, _so_far("co2_g", 1.0))
    caption = f"{grams.meaning} {_SEEDS}"
    yield from _lines("carbon", f"{grams.title} so far", caption, lines, f"{grams.title} (g)")
    lines = _over(world, order, _column("accuracy"), _energy_so_far, 1.0)
    caption = f"What a model costs: its accuracy, by the energy that was spent until then. {_SEEDS}"
    yield from _lines(
        "accuracy-energy", "Accuracy by energy", caption, lines, "accuracy", Axis("energy", "kJ")
    )
    lines = _over_rounds(world, order, _column("available"))
    caption = f"Clients that could be chosen: free, and with enough in their batteries. {_SEEDS}"
    yield from _lines("available", "Clients that could be chosen", caption, lines, "clients")


def _so_far(name: str, size: float) -> Column:
    """Return a reader of the sum of a column up to each round; None without the column."""

    def read(cell: Cell) -> FloatArray | None:
        values = cell.series.get(name)
        return None if values is None else np.nancumsum(values) / size

    return read


_energy_so_far = _so_far("energy_j", 1e3)


def _queues(world: WorldGroup, order: Order) -> Iterator[Chart]:
    written = (cell.summary.get("backlog_rate") for cell in world.cells)
    rates = {float(rate) for rate in written if isinstance(rate, int | float)}
    shown = " or ".join(f"{rate:g}" for rate in sorted(rates))
    rate = f"a rate of {shown} choices a round" if rates else "the promised rate"
    caption = f"Choices still owed to a client at {rate}. {_SEEDS}"
    unit = metric_named("backlog_per_round").unit
    for key, title in (("mean", "Mean backlog"), ("max", "Largest backlog")):
        lines = _over_rounds(world, order, _column(f"backlog_{key}"))
        yield from _lines(f"backlog-{key}", title, caption, lines, unit)


# Who is chosen how often --------------------------------------------------------------------------


def _chosen(world: WorldGroup, order: Order) -> Iterator[Chart]:
    """Yield the selection counts by class of client, and the map of client by round."""
    class_of = _classes_of(world)
    boxes = []
    for variant in world.variants:
        counts = _counts(variant)
        if not counts:
            continue
        pooled, labels = np.array(counts), ["all clients"]
        groups: list[Array] = [pooled]
        if class_of is not None:
            present = np.unique(class_of)
            labels = _class_names(world, present)
            groups = [pooled[:, class_of == number] for number in present]
        boxes.append(Boxes(variant.name, order[variant.name], labels, groups))
    if boxes:
        what = "" if class_of is None else str(world.settings.classes.get("what") or "class")
        title = "Selections per client" if class_of is None else "Selections by client class"
        caption = "Selections of a client in a run, all seeds. Whiskers: least and most chosen."
        panel = Panel(boxes, Axis(what), Axis("times chosen"))
        yield Chart("counts", title, caption, [panel], is_wide=True)
    panels = list(_maps(world, class_of, order))
    if panels:
        caption = "Share of rounds in which a client was chosen."
        yield Chart("map", "Client by round", caption, panels, 2, is_wide=True, is_menu=True)


def _counts(variant: VariantCells) -> list[IntArray]:
    """Return (n,) how often each client was chosen, for each seed whose choices are known."""
    return [cell.choices.counts for cell in variant.cells if cell.choices is not None]


def _classes_of(world: WorldGroup) -> IntArray | None:
    """Return (n,) the class of each client, None without classes or with too many to draw."""
    recorded = [cell.class_of for cell in world.cells]
    class_of = next((classes for classes in recorded if classes is not None), None)
    n_classes = 0 if class_of is None else np.unique(class_of).size
    return class_of if 2 <= n_classes <= _MOST_CLASSES else None


def _class_names(world: WorldGroup, classes: IntArray) -> list[str]:
    setting = world.settings.classes.get("names")
    names = setting if isinstance(setting, list) else []
    return [
        str(names[number]) if 0 <= number < len(names) else f"class {number}"
        for number in classes.tolist()
    ]


def _maps(world: WorldGroup, class_of: IntArray | None, order: Order) -> Iterator[Panel]:
    """Yield who was chosen when, binned so that a large run stays light.

    Each selector has a panel of its first seed and, with several seeds, one of their mean.
    """
    n, n_rounds = world.settings.n_clients, world.n_rounds
    position = np.arange(n) if class_of is None else np.argsort(class_of, kind="stable")
    row_of = np.empty(n, dtype=np.int64)
    row_of[position] = _bins(n, N_ROWS)
    column_of = _bins(n_rounds, N_COLUMNS)
    sizes = np.bincount(column_of)
    middles = np.cumsum(sizes) - (sizes - 1) / 2
    ordered = row_of[position]
    groups = [] if class_of is None else _groups(world, class_of[position], ordered)
    rows = _labels(position, ordered, "client")
    columns = _labels(np.arange(1, n_rounds + 1), column_of, "round")
    ticks = {(first + last) / 2: name for name, first, last in groups}
    y = Axis("client class" if groups else "client", ticks=ticks)
    for variant in world.variants:
        name, cells = variant.name, [cell for cell in variant.cells if cell.choices is not None]
        shares = [_shares(cell, row_of, column_of) for cell in cells]
        runs = {f"seed {cell.settings.seed}": shares[0] for cell in cells[:1]}
        if len(cells) > 1:
            runs[f"mean of {len(cells)} seeds"] = np.mean(shares, axis=0)
        for run, values in runs.items():
            mark = Heatmap(
                *(name, order[name], values, "share of rounds", (0.0, 1.0)),
                *(middles, run, rows, columns, groups),
            )
            yield Panel([mark], Axis("round"), y, f"{name}, {run}")


def _bins(n: int, most: int) -> IntArray:
    """Return (n,) the bin of each of n clients or rounds, equally many in each."""
    return np.arange(n, dtype=np.int64) * min(n, most) // n


def _shares(cell: Cell, row_of: IntArray, column_of: IntArray) -> FloatArray:
    """Return in which share of its rounds each client of a bin was chosen."""
    assert cell.choices is not None
    n_rows, n_columns = int(row_of.max()) + 1, int(column_of.max()) + 1
    column = np.repeat(column_of[: cell.n_rounds], np.diff(cell.choices.offsets))
    hits = np.bincount(row_of[cell.choices.clients] * n_columns + column, None, n_rows * n_columns)
    room = np.outer(np.bincount(row_of), np.bincount(column_of))
    return np.asarray(hits.reshape(n_rows, n_columns) / room)


def _labels(members: IntArray, bin_of: IntArray, word: str) -> list[str]:
    """Return what each bin holds: one client, a range, or so many clients."""
    starts = np.flatnonzero(np.diff(bin_of, prepend=-1))
    return [_bin_label(held, word) for held in np.split(members, starts[1:])]


def _bin_label(held: Sequence[int] | Array, word: str) -> str:
    first, last = int(held[0]), int(held[-1])
    if len(held) == 1:
        return f"{word} {first}"
    is_range = last - first == len(held) - 1
    return f"{word}s {first}-{last}" if is_range else f"{len(held)} {word}s from {first}"


def _groups(world: WorldGroup, ordered: IntArray, row_of: IntArray) -> list[tuple[str, int, int]]:
    """Return the name and the first and last row of each class, bottom up."""
    classes, starts, sizes = np.unique(ordered, return_index=True, return_counts=True)
    ends = (row_of[starts].tolist(), row_of[starts + sizes - 1].tolist())
    return list(zip(_class_names(world, classes), *ends, strict=True))


def _fairness(world: WorldGroup, order: Order) -> Iterator[Chart]:
    """Yield the Lorenz curves of selection counts and the indices of fairness."""
    share = np.linspace(0.0, 1.0, _N_LORENZ)
    lines = []
    for variant in world.variants:
        curves = [_lorenz(counts, share) for counts in _counts(variant) if counts.sum() > 0]
        if curves:
            y = np.mean(curves, axis=0)
            lines.append(Line(variant.name, order[variant.name], share, y))
    if not lines:
        return
    ends = np.array([0, 1])
    equal = Line("all equal", GREY, ends, ends, role="reference")
    caption = "Share of all selections that the least chosen clients got. Dashed: all equal."
    axes = (Axis("share of clients"), Axis("share of selections", is_share=True))
    yield Chart("lorenz", "Lorenz curve of selections", caption, [Panel([equal, *lines], *axes)])
    metrics = [metric for metric in shown_in("report") if metric.group == "fairness"]
    units = dict.fromkeys(metric.unit for metric in metrics)
    same = {unit: [metric for metric in metrics if metric.unit == unit] for unit in units}
    panels = [_bars(world, order, those, unit) for unit, those in same.items()]
    meanings = " ".join(f"{metric.short}: {metric.meaning}" for metric in metrics)
    caption = f"{meanings} Whiskers: 95 % confidence."
    title = "Fairness of selection counts"
    yield Chart("fairness", title, caption, panels, n_columns=len(panels))


def _lorenz(counts: IntArray, share: FloatArray) -> FloatArray:
    held = np.concatenate(([0.0], np.cumsum(np.sort(counts)))) / counts.sum()
    cut: FloatArray = np.interp(share, np.linspace(0.0, 1.0, held.size), held)
    return cut


def _bars(world: WorldGroup, order: Order, metrics: Sequence[Metric[Facts]], unit: str) -> Panel:
    """Return a panel of metrics that have one unit; without a unit, they are from 0 to 1."""
    means = {metric.short: world.scores.estimate(metric) for metric in metrics}
    bars = []
    for name in world.scores.labels:
        known = {m.short: means[m.short][name] for m in metrics if world.scores.n_reached(name, m)}
        mean = np.array([estimate.mean for estimate in known.values()])
        margin = np.array([estimate.half_width for estimate in known.values()])
        bars.append(Bars(name, order[name], list(known), mean, margin))
    return Panel(bars, y=Axis(unit or "index"), share=float(len(metrics)) + 0.5)


# A metric against what was swept ------------------------------------------------------------------


def parameter_charts(world: WorldGroup, order: Order) -> Iterator[Chart]:
    """Yield a chart for each parameter of which a selector has several values.

    Args:
        world: Cells that compare.
        order: The number of each selector.
    """
    return _swept(sensitivity.parameter_panels(world, main_metric(world)), order)


def world_charts(worlds: Sequence[WorldGroup], order: Order) -> Iterator[Chart]:
    """Yield a chart for each setting of worlds that a sweep went over.

    Args:
        worlds: All worlds of the page.
        order: The number of each selector.
    """
    return _swept(sensitivity.world_panels(worlds, main_metric(worlds[0])), order)


def _swept(panels: Iterable[sensitivity.Sensitivity], order: Order) -> Iterator[Chart]:
    for number, panel in enumerate(panels):
        where = f" ({panel.where})" if panel.where else ""
        title = f"{panel.metric.title} by {panel.key}{where}"
        caption = f"{panel.metric.meaning} {_NUMBERS if panel.is_numeric else _WORDS}"
        numbers = {each.name: order[each.label] for each in panel.responses}
        yield Chart(f"swept-{number}", title, caption, [_swept_panel(panel, numbers)])


def _swept_panel(panel: sensitivity.Sensitivity, numbers: Order) -> Panel:
    """Return lines over numbers or points at words; levels are selectors without the parameter."""
    means = [mean for each in panel.responses for mean in each.values.mean(axis=0).tolist()]
    scale = panel.metric.scale(means)
    marks: list[Mark] = []
    for each in panel.responses:
        ends = [panel.places[0], panel.places[-1]] if panel.is_numeric else panel.places
        at = list(each.places) or ends
        values = np.broadcast_to(each.values / scale.size, (len(each.values), len(at)))
        places = np.array(at) if panel.is_numeric else [str(place) for place in at]
        line = Line.over_seeds(each.name, numbers[each.name], places, values)
        if panel.is_numeric:
            marks.append(dataclasses.replace(line, size=4.0 * bool(each.places)))
        else:
            marks.append(dataclasses.replace(line, role="points", size=5.0))
    y = panel.metric.titled(scale)
    return Panel(marks, Axis(panel.key, is_log=panel.is_wide), Axis(y), panel.where)


# Figures for papers -------------------------------------------------------------------------------


def figures_of(
    results: Results, width: str = "two", metrics: Sequence[Metric[Facts]] = ()
) -> Iterator[Chart]:
    """Yield the figures of results for a paper.

    ``curves``: accuracy (without training: answers in time) by round and by virtual time, a row of
    panels for each world. ``profile``, for several worlds: the share of runs above each level.
    ``sensitivity-KEY``, for everything that was swept: metrics against its values.

    Args:
        results: What is drawn.
        width: ``one`` or ``two`` columns of a page.
        metrics: Those of the sensitivity; default: what the worlds are judged by.

    Raises:
        InvalidInput: The width is another.
    """
    choice("width", width, tuple(WIDTHS))
    order = {label: number for number, label in enumerate(results.labels)}
    inches, n_columns = WIDTHS[width], 1 if width == "one" else 2
    panels = []
    for number, world in enumerate(results.worlds, 1):
        title = f"{world.settings.experiment}, world {number}" if len(results.worlds) > 1 else ""
        panels += _curve_panels(world, order, title)
    yield Chart("curves", "Learning curves", _SEEDS, panels, n_columns, inches)
    judged_by = {main_metric(world).key for world in results.worlds}
    if len(results.worlds) > 1 and len(judged_by) == 1 and results.across.labels:
        yield _profile(results, order)
    for key, swept in _swept_by_key(results, metrics).items():
        names = dict.fromkeys(each.name for panel in swept for each in panel.responses)
        numbers = {name: number for number, name in enumerate(names)}
        side_by_side = min(n_columns, len(swept))
        drawn = [_swept_panel(panel, numbers) for panel in swept]
        title = f"Sensitivity to {key}"
        yield Chart(f"sensitivity-{slug(key)}", title, _SEEDS, drawn, side_by_side)


def draw_results(
    results: Results,
    folder: Path,
    width: str = "two",
    formats: Sequence[str] = ("pdf",),
    metrics: Sequence[Metric[Facts]] = (),
) -> list[Path]:
    """Draw the figures of results and return the files that were written; see ``figures_of``.

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
    return [
        path
        for figure in figures_of(results, width, metrics)
        for path in write_figure(figure, [folder / f"{figure.key}.{form}" for form in formats])
    ]


def _curve_panels(world: WorldGroup, order: Order, title: str) -> list[Panel]:
    """Return what a world is judged by against rounds and against time."""
    metric = main_metric(world)
    is_trained = metric.key == "accuracy"
    column = _column("accuracy") if is_trained else _answers_so_far
    y = Axis(metric.title.lower() if is_trained else metric.title)
    scale = _clock_scale(world)
    time = Axis("virtual time", scale.unit, low=0.0)
    return [
        Panel(_over_rounds(world, order, column), Axis("round", low=0.0), y, title),
        Panel(_over_time(world, order, column, scale.size), time, y, title),
    ]


def _profile(results: Results, order: Order) -> Chart:
    """Return the share of runs above each level of the main metric, mean over worlds."""
    metric, across = main_metric(results.worlds[0]), results.across
    values = [
        number
        for scores in across.worlds
        for label in across.labels
        for number in scores.values(label, metric).values()
    ]
    levels = np.linspace(min(values), max(values), _N_LEVELS)
    lines = [
        Line(label, order[label], levels, np.asarray(shares))
        for label, shares in across.performance_profile(metric.key, levels).items()
    ]
    tau = "\N{GREEK SMALL LETTER TAU}"
    x = Axis(f"{metric.title.lower()} {tau}")
    y = Axis(f"share of runs above {tau}", low=-0.02, high=1.02)
    caption = "Share of runs above each level, mean over worlds."
    panel = Panel(lines, x, y)
    return Chart("profile", "Performance profile", caption, [panel])


def _swept_by_key(
    results: Results, metrics: Sequence[Metric[Facts]]
) -> dict[str, list[sensitivity.Sensitivity]]:
    """Return panels by what was swept."""
    by_key: dict[str, list[sensitivity.Sensitivity]] = {}
    for metric in metrics or [main_metric(results.worlds[0])]:
        panels = list(sensitivity.world_panels(results.worlds, metric))
        for world in results.worlds:
            panels += sensitivity.parameter_panels(world, metric, sensitivity.point_name(world))
        for panel in panels:
            by_key.setdefault(panel.key, []).append(panel)
    return by_key


# The twin of a live federation --------------------------------------------------------------------


#: Live runs with fewer rounds get no twin in the report.
LEAST_ROUNDS = 30
#: Worlds that are drawn, and rounds that are played in each at most.
_DRAWS, _MOST_ROUNDS = 40, 300
#: More clients are not played for a page.
_MOST_CLIENTS = 20_000
_CAPTION = (
    "A world was fitted to the records (turnout fit), and the recorded choices were played in "
    "{draws} worlds drawn from it. Orange: recorded. Blue: the worlds, with a band that holds the "
    "middle 90 %. Where the recorded line leaves the band, do not trust the twin."
)
#: How the recorded numbers and the twin's are drawn.
_RECORDED, _TWIN = 1, 0


def twin_charts(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield fitted against recorded distributions, for a live federation with enough rounds.

    Args:
        world: Cells that compare.
        order: The number of each selector.
    """
    live = [each for each in world.cells if each.choices is not None and each.is_live]
    cells = [each for each in live if not each.run.overlaps]
    too_large = any(each.settings.n_clients > _MOST_CLIENTS for each in cells)
    if too_large or not cells or max(each.n_rounds for each in cells) < LEAST_ROUNDS:
        return
    try:
        log = log_of(cells)
        fitted = fit_log(log)
    except InvalidInput:  # such as no answer at all, which the page shows elsewhere
        return
    rounds = np.arange(log.last.run.n_rounds)[-_MOST_ROUNDS:]
    found = replayed(fitted, log.last, rounds, _DRAWS)
    caption = _CAPTION.format(draws=_DRAWS)
    panels = [panel for panel in _rounds(found) if panel is not None]
    yield Chart("twin", "Rounds", caption, panels, n_columns=3, is_wide=True)
    panels = [panel for panel in _clients(found) if panel is not None]
    yield Chart("twin-clients", "Clients", "As above.", panels, n_columns=3, is_wide=True)


def _rounds(found: Played) -> Iterator[Panel | None]:
    yield _there(found, "clients there")
    yield _cumulative(found, "answers", Axis("answers in a round"))
    yield _cumulative(found, "round length", Axis("length of a round", "s"))


def _clients(found: Played) -> Iterator[Panel | None]:
    yield _quantiles(found)
    yield _by_client(found, "rounds there, by client")
    yield _by_client(found, "answers, by client")


def _there(found: Played, name: str) -> Panel | None:
    if name not in found.recorded:
        return None
    recorded, drawn = found.recorded[name], found.drawn[name]
    at = np.arange(1.0, recorded.size + 1.0)
    return Panel(_pair(at, recorded, drawn), Axis("round"), Axis("clients there"))


def _cumulative(found: Played, name: str, axis: Axis) -> Panel | None:
    recorded, drawn = found.recorded[name], found.drawn[name]
    both = np.concatenate((recorded, drawn.ravel()))
    grid = np.linspace(both.min(), np.quantile(both, 0.995), 60)
    share = np.array([(recorded <= x).mean() for x in grid])
    shares = np.array([(drawn <= x).mean(axis=1) for x in grid]).T
    return Panel(_pair(grid, share, shares), axis, Axis("rounds up to this", is_share=True))


def _quantiles(found: Played) -> Panel | None:
    recorded, drawn = (each["durations of answers"] for each in found)
    if np.isnan(recorded).any() or np.isnan(drawn).any():
        return None
    marks = _pair(QUANTILES, recorded, drawn)
    return Panel(marks, Axis("share of the answers", is_share=True), Axis("seconds of an answer"))


def _by_client(found: Played, name: str) -> Panel | None:
    if name not in found.recorded:
        return None
    recorded, drawn = found.recorded[name], found.drawn[name]
    order = np.argsort(recorded, kind="stable")
    at = np.arange(1.0, recorded.size + 1.0)
    axis = Axis("clients, fewest first")
    return Panel(_pair(at, recorded[order], drawn[:, order]), axis, Axis(name.split(",")[0]))


def _pair(at: FloatArray, recorded: FloatArray, drawn: FloatArray) -> list[Mark]:
    """Return the middle 90 % of the drawn worlds, and what was recorded above it."""
    low, middle, high = np.quantile(drawn, (0.05, 0.5, 0.95), axis=0)
    return [
        Line("fitted", _TWIN, at, middle, low, high),
        Line("recorded", _RECORDED, at, recorded),
    ]
