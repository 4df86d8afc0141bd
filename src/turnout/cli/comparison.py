"""What a comparison shows: means with intervals, paired differences, rounds to an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from turnout.cli.options import numbers
from turnout.cli.output import table
from turnout.experiment import Grid
from turnout.runs.catalogue import all_metrics, at_targets, shown_in
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric, Scale

__all__ = ["comparison_rows", "comparison_tables"]


def comparison_tables(grid: Grid) -> list[Table]:
    """Return the tables of a grid, the best of each column in bold."""
    recipe = grid.experiment.training
    columns = shown_in("compare" if recipe is None else "compare --train")
    tables, compared = [_means(grid, _title(grid), columns)], columns
    if recipe is not None and recipe.target_accuracy:
        targets = recipe.target_accuracy
        title = "Rounds and virtual time to an accuracy (n of m = seeds that reached it)"
        tables.append(_means(grid, title, at_targets(targets)))
        learned = [metric for metric in columns if metric.group == "learning"]
        compared = [*learned, at_targets(targets[-1:])[0]]
    return [*tables, _differences(grid, compared)] if len(grid.labels) > 1 else tables


def comparison_rows(grid: Grid) -> list[dict[str, Any]]:
    """Return all metrics of all selectors for JSON, with differences to the first."""
    written = [key for cell in grid.cells if cell.summary for key in cell.summary]
    not_compared = {metric.key for metric in all_metrics() if metric.group == "computing"}
    keys = [key for key in dict.fromkeys(written) if key not in not_compared]
    variants = {variant.label: variant for variant in grid.experiment.selectors}
    return [
        {
            "label": label,
            "selector": variants[label].name,
            "parameters": variants[label].parameters,
            "folder": str(grid.folder),
            "metrics": {key: numbers(grid.estimate(label, key)) for key in keys},
            "difference_to_first": {
                key: numbers(grid.difference(label, grid.labels[0], key)) for key in keys
            },
            "problems": [cell.message for cell in grid.problems if cell.label == label],
        }
        for label in grid.labels
    ]


def _title(grid: Grid) -> str:
    experiment = grid.experiment
    n_seeds = len(experiment.seeds)
    seeds = "1 seed" if n_seeds == 1 else f"{n_seeds} seeds (mean ± 95 % interval, best in bold)"
    return (
        f"{experiment.n_rounds} rounds, {experiment.cohort_size} of {experiment.n_clients} clients"
        f", {seeds}"
    )


def _means(grid: Grid, title: str, metrics: Sequence[Metric[Facts]]) -> Table:
    """Return the means; one that not every seed has is over those that have it."""
    scales = [_scale(grid, metric) for metric in metrics]
    rows = _empty(title, metrics, scales)
    best = [_best(grid, metric) for metric in metrics]
    for label in grid.labels:
        n_seeds = _n_seeds(grid, label)
        cells = []
        for metric, scale, leaders in zip(metrics, scales, best, strict=True):
            mean = grid.estimate(label, metric.key)
            text = mean.over(scale.size).written(scale.form)
            text += f" ({mean.n} of {n_seeds})" if mean.n < n_seeds else ""
            cells.append(f"[bold green]{text}[/]" if label in leaders else text)
        rows.add_row(escape(label), *cells)
    return rows


def _differences(grid: Grid, metrics: Sequence[Metric[Facts]]) -> Table:
    """Return the paired differences to the first selector."""
    first = grid.labels[0]
    title = f"Difference to {escape(first)}, paired by seed (* = the interval excludes 0)"
    scales = [_scale(grid, metric) for metric in metrics]
    rows = _empty(title, metrics, scales)
    for label in grid.labels[1:]:
        cells = []
        for metric, scale in zip(metrics, scales, strict=True):
            step = grid.difference(label, first, metric.key)
            is_clear = step.n > 1 and not step.low <= 0.0 <= step.high
            cells.append(step.over(scale.size).written(f"+{scale.form}") + "*" * is_clear)
        rows.add_row(escape(label), *cells)
    return rows


def _empty(title: str, metrics: Sequence[Metric[Facts]], scales: Sequence[Scale]) -> Table:
    pairs = zip(metrics, scales, strict=True)
    headings = tuple(metric.titled(scale, short=True) for metric, scale in pairs)
    rows = table(title, "selector", *headings, numbers=headings)
    rows.columns[0].overflow = "fold"  # a label is never cut
    return rows


def _scale(grid: Grid, metric: Metric[Facts]) -> Scale:
    return metric.scale(grid.estimate(label, metric.key).mean for label in grid.labels)


def _n_seeds(grid: Grid, label: str) -> int:
    return sum(cell.label == label and cell.summary is not None for cell in grid.cells)


def _best(grid: Grid, metric: Metric[Facts]) -> list[str]:
    """Return who has the best mean; where seeds are missing, means do not compare."""
    estimates = {label: grid.estimate(label, metric.key) for label in grid.labels}
    whole = {
        label: value.mean
        for label, value in estimates.items()
        if value.n and value.n == _n_seeds(grid, label)
    }
    return metric.leaders(whole)
