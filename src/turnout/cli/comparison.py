"""What a comparison shows: means with intervals, paired differences, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli.options import numbers
from turnout.cli.output import console, fitted, table
from turnout.experiment import Grid
from turnout.results.across import Across
from turnout.results.scores import Scores
from turnout.results.tables import (
    ScoreTable,
    compared_metrics,
    difference_table,
    explanations,
    mean_table,
)
from turnout.runs.catalogue import all_metrics, at_targets, metric_named, shown_in
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics.aggregates import Interval

MetricKeys = Annotated[
    str | None,
    typer.Option(
        "--metrics", help="Keys of metrics, with commas: accuracy,cep; default: the usual ones."
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", help="Label that others are compared with; default: the first."),
]

_MARKS = (
    "Bold: best by more than chance; ≈: best mean, or a difference to it that may be chance. "
    "*: more than chance (paired t-test, 5 %, Holm's correction for the selectors compared).",
)
_ACROSS = (
    "IQM: inter-quartile mean, over the middle half of all runs. P: chance that a run is better, "
    "mean over worlds. 95 % bootstrap intervals in brackets; with several worlds P above 0.5 in "
    "the whole interval is an improvement."
)

#: How marked cells are printed.
_STYLES = {
    "": "{}",
    "best": "[bold green]{}[/]",
    "leading": "{} ≈",
    "tied": "{} ≈",
    "clear": "{}*",
}


def named_metrics(keys: str | None) -> list[Metric[Facts]]:
    """Return the metrics of the option ``--metrics``; none if it was not given."""
    return [metric_named(key.strip()) for key in (keys or "").split(",") if key.strip()]


def grid_metrics(grid: Grid) -> list[Metric[Facts]]:
    """Return the metrics that the table of a grid shows if nobody says which."""
    recipe = grid.experiment.training
    if recipe is None:
        return shown_in("compare")
    return [*shown_in("compare --train"), *at_targets(recipe.target_accuracy)]


def print_scores(
    scores: Scores,
    title: str,
    usual: Sequence[Metric[Facts]],
    wanted: Sequence[Metric[Facts]] = (),
    baseline: str | None = None,
) -> None:
    """Print the tables of scores, and what a reader must know about them.

    Args:
        scores: The numbers.
        title: Of what they are.
        usual: The columns if nobody says which.
        wanted: The columns that somebody asked for.
        baseline: Whom the others are compared with; default: the first.
    """
    metrics = list(wanted or usual)
    n_seeds = max(scores.n_seeds(label) for label in scores.labels)
    seeds = "1 seed" if n_seeds == 1 else f"{n_seeds} seeds (mean ± 95 % interval)"
    _print_table(f"{title}, {seeds}", mean_table(scores, metrics))
    has_others = len(scores.labels) > 1
    if has_others:
        first = scores.labels[0] if baseline is None else baseline
        compared = list(wanted) or compared_metrics(metrics)
        steps = difference_table(scores, compared, first)
        _print_table(f"Difference to {first}, paired by seed", steps)
    lines = [*(_MARKS if has_others and n_seeds > 1 else ()), *explanations(scores, metrics)]
    console.print("\n".join(lines), style="dim", highlight=False, markup=False)


def print_across(across: Across, metrics: Sequence[Metric[Facts]], baseline: str | None) -> None:
    """Print the selectors that all worlds have, over these worlds.

    Args:
        across: The worlds.
        metrics: The first of them that can be ranked and that all runs have is what counts.
        baseline: Whom the others are compared with; default: the first.
    """
    if baseline is not None and baseline not in across.labels:
        return
    for metric in metrics:
        reached = (
            scores.n_reached(label, metric) for scores in across.worlds for label in across.labels
        )
        if across.labels and metric.better != "neither" and all(reached):
            _print_over_worlds(across, metric, baseline)
            return


def _print_over_worlds(across: Across, metric: Metric[Facts], baseline: str | None) -> None:
    first = across.labels[0] if baseline is None else baseline
    middle = across.interquartile_mean(metric.key)
    better = across.probability_of_improvement(metric.key, first)
    headings = (f"{metric.short}, IQM", f"P(better than {first})")
    n_worlds = len(across.worlds)
    rows = table(f"Over {n_worlds} worlds", "selector", *headings, numbers=headings)
    for label in across.labels:
        chance = _interval(better[label], ".2f") if label in better else "-"
        rows.add_row(escape(label), _interval(middle[label], metric.form), chance)
    console.print(rows)
    console.print(_ACROSS, style="dim", highlight=False)


def _interval(interval: Interval, form: str) -> str:
    value, low, high = (format(number, form) for number in interval)
    return value if math.isnan(interval.low) else f"{value} \\[{low}, {high}]"


def score_row(scores: Scores, label: str, keys: Sequence[str], baseline: str) -> dict[str, Any]:
    """Return all numbers of a selector for JSON.

    Args:
        scores: The numbers.
        label: The selector.
        keys: Keys of the metrics.
        baseline: Whom it is compared with.
    """
    means, steps = {}, {}
    for key in keys:
        reached = {"reached": scores.n_reached(label, key)} if metric_named(key).run_length else {}
        means[key] = numbers(scores.estimate(key)[label]) | reached
        if label != baseline:
            step = scores.difference(key, baseline)[label]
            steps[key] = {**numbers(step.estimate), "p": step.p_value}
    return {"label": label, "metrics": means, "difference": steps}


def comparison_rows(grid: Grid, baseline: str | None = None) -> list[dict[str, Any]]:
    """Return all metrics of all selectors for JSON, with differences to a baseline."""
    written = [key for cell in grid.cells if cell.summary for key in cell.summary]
    not_compared = {metric.key for metric in all_metrics() if metric.group == "computing"}
    keys = [key for key in dict.fromkeys(written) if key not in not_compared]
    variants = {variant.label: variant for variant in grid.experiment.selectors}
    return [
        {
            **score_row(grid.scores, label, keys, baseline or grid.labels[0]),
            "selector": variants[label].name,
            "parameters": variants[label].parameters,
            "folder": str(grid.folder),
            "problems": [cell.message for cell in grid.problems if cell.label == label],
        }
        for label in grid.labels
    ]


def _print_table(title: str, content: ScoreTable) -> None:
    cells = [
        [_STYLES[entry.mark].format(escape(entry.text)) for entry in entries]
        for _, entries in content.rows
    ]
    labels = [escape(label) for label, _ in content.rows]
    console.print(title, style="italic", highlight=False, markup=False)
    console.print(*fitted(("selector", labels), content.headings, cells))
