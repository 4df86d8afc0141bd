"""Tables of scores: means with intervals, a verdict in a sentence, and on demand what they mean."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli.output import console, fitted, table
from turnout.results.catalogue import metric_named
from turnout.results.metric import Facts, Metric
from turnout.results.scores import Across, Scores, Versus
from turnout.results.statistics import Estimate, Interval
from turnout.results.tables import (
    ScoreTable,
    difference_table,
    explanations,
    mean_table,
)

MetricKeys = Annotated[
    str | None,
    typer.Option(
        help="Keys of metrics, separated by commas: accuracy,cep; default: the usual ones."
    ),
]
Baseline = Annotated[
    str | None, typer.Option(help="Label that others are compared with; default: the first.")
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Also print differences to the baseline, and what columns and marks mean."
    ),
]

_MARKS = (
    "Bold: best by more than chance; ≈: best mean, or a difference to it that may be chance. "
    "*: more than chance (paired t-test, 5 %, Holm's correction for the selectors compared).",
)
_VERSUS = (
    "vs {}: mean time over that of {}, or the mean difference where the first column is no time."
)
_HINT = "*: more than chance. ≈: may be the best. More: --explain."
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


def print_scores(
    scores: Scores,
    title: str,
    usual: Sequence[Metric[Facts]],
    wanted: Sequence[Metric[Facts]] = (),
    baseline: str | None = None,
    *,
    explain: bool = False,
) -> None:
    """Print a table of scores, and in one sentence what its first column says.

    The table has the usual columns that fit side by side, or all that the user asked for.

    Args:
        scores: The numbers.
        title: What the scores belong to.
        usual: The columns by default.
        wanted: The columns that the user asked for.
        baseline: The selector that the others are compared with; default: the first.
        explain: Whether to print the differences, and what columns and marks mean.
    """
    first = scores.labels[0] if baseline is None else baseline
    columns = list(wanted or usual)
    has_others = len(scores.labels) > 1
    versus = Versus(scores, columns[0], first) if has_others else None
    metrics = columns if wanted else _that_fit(scores, columns, versus)
    n_seeds = max(scores.n_seeds(label) for label in scores.labels)
    seeds = "1 seed" if n_seeds == 1 else f"{n_seeds} seeds (mean ± 95 % interval)"
    _print_table(f"{title}, {seeds}", mean_table(scores, metrics), versus)
    if versus is not None and versus.sentence:
        console.print(versus.sentence, markup=False)
    lines = [scores.caution] if scores.caution else []
    if explain and has_others:
        steps = difference_table(scores, metrics, first)
        _print_table(f"Difference to {first}, paired by seed", steps)
    if explain:
        lines += [_VERSUS.format(first, first), *_MARKS] if has_others and n_seeds > 1 else []
        lines += explanations(scores, metrics)
    elif has_others and n_seeds > 1:
        lines.append(_HINT)
    hidden = [metric.short for metric in columns if metric not in metrics]
    if hidden:
        lines.append(f"Not shown: {'; '.join(hidden)}. Widen the terminal, or give --metrics.")
    if lines:
        console.print("\n".join(lines), style="dim", markup=False)


def _that_fit(
    scores: Scores, metrics: Sequence[Metric[Facts]], versus: Versus | None
) -> list[Metric[Facts]]:
    """Return the most telling of the metrics whose columns fit side by side, in their order.

    The first metric of each kind comes first: how fast, how fairly, what was learned, by how many
    answers. At least one is returned, even if it does not fit.
    """
    kinds: dict[tuple[str, bool], list[Metric[Facts]]] = {}
    for metric in metrics:
        kinds.setdefault((metric.group, metric.is_time_to), []).append(metric)
    chosen: list[Metric[Facts]] = []
    for metric in (each for row in itertools.zip_longest(*kinds.values()) for each in row):
        trial = [each for each in metrics if each in chosen or each == metric]
        fits = metric is not None and len(_drawn(mean_table(scores, trial), versus)) == 1
        if fits or not chosen:
            chosen = trial
    return chosen


def print_across(
    across: Across,
    metrics: Sequence[Metric[Facts]],
    baseline: str | None,
    *,
    explain: bool = False,
) -> None:
    """Print the selectors that all worlds have, over these worlds.

    Args:
        across: The worlds.
        metrics: The first of them that can be ranked and that all runs have is what counts.
        baseline: The selector that the others are compared with; default: the first.
        explain: Whether to print what the columns mean.
    """
    if baseline is not None and baseline not in across.labels:
        return
    for metric in metrics:
        reached = (
            scores.n_reached(label, metric) for scores in across.worlds for label in across.labels
        )
        if across.labels and metric.better != "neither" and all(reached):
            break
    else:
        return
    first = across.labels[0] if baseline is None else baseline
    middle = across.interquartile_mean(metric.key)
    better = across.probability_of_improvement(metric.key, first)
    headings = (f"{metric.short}, IQM", f"P(better than {first})")
    title = f"Over {len(across.worlds)} worlds"
    rows = table(title, "selector", *headings, numbers=headings)
    for label in across.labels:
        chance = _interval(better[label], ".2f") if label in better else "-"
        rows.add_row(escape(label), _interval(middle[label], metric.form), chance)
    console.print(rows)
    if explain:
        console.print(_ACROSS, style="dim")


def _interval(interval: Interval, form: str) -> str:
    value, low, high = (format(number, form) for number in interval)
    return value if math.isnan(interval.low) else f"{value} \\[{low}, {high}]"


def numbers(estimate: Estimate) -> dict[str, float | int]:
    """Return an estimate for JSON."""
    names = ("mean", "sd", "ci95", "n")
    return dict(zip(names, estimate, strict=True))


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


def _print_table(title: str, content: ScoreTable, versus: Versus | None = None) -> None:
    console.print(title, style="italic", markup=False)
    console.print(*_drawn(content, versus))


def _drawn(content: ScoreTable, versus: Versus | None) -> list[Table]:
    """Return the tables of some columns: one if they fit side by side.

    Beside the first column stands each selector's part of the baseline's number.
    """
    headings = ["selector", *content.headings]
    rows = [
        [escape(label), *(_STYLES[entry.mark].format(escape(entry.text)) for entry in entries)]
        for label, entries in content.rows
    ]
    if versus is not None:
        headings.insert(2, escape(versus.heading))
        for row, (label, _) in zip(rows, content.rows, strict=True):
            row.insert(2, versus.written(label))
    return fitted(headings, rows)
