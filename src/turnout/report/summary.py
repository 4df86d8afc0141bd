"""Summary statistics: means over seeds with confidence intervals, and which is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.metrics import selection_counts
from turnout.results.groups import WorldGroup
from turnout.runs.cell import Cell
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics import Estimate
from turnout.types import IntArray


@dataclass(frozen=True, slots=True)
class Row:
    """One selector in the summary table.

    Attributes:
        name: Label of the selector.
        n_seeds: Runs that count.
        n_reached: By column, the runs that have a number.
        estimates: By column; columns without a number are absent.
        best: Columns in which no other mean is better.
        tied: Columns whose paired difference to the best may be zero.
    """

    name: str
    n_seeds: int
    n_reached: Mapping[str, int]
    estimates: Mapping[str, Estimate]
    best: frozenset[str]
    tied: frozenset[str]


def summary_rows(world: WorldGroup, metrics: Sequence[Metric[Facts]]) -> list[Row]:
    """Return one row per selector: what summary.json says, else what the rounds say.

    Args:
        world: The cells that compare.
        metrics: The columns.
    """
    scores = world.scores
    means = {metric.key: scores.estimate(metric) for metric in metrics}
    rankings = {metric.key: scores.ranking(metric) for metric in metrics}
    rows = []
    for name in scores.labels:
        n_reached = {metric.key: scores.n_reached(name, metric) for metric in metrics}
        estimates = {key: by_name[name] for key, by_name in means.items() if n_reached[key]}
        best = frozenset(key for key, ranking in rankings.items() if name in ranking.best)
        tied = frozenset(key for key, ranking in rankings.items() if name in ranking.tied)
        rows.append(Row(name, scores.n_seeds(name), n_reached, estimates, best, tied))
    return rows


def counts_of(cell: Cell) -> IntArray | None:
    """Return (n,) how often each client was chosen, None if the choices are not known yet."""
    if cell.choices is None:
        return None
    return selection_counts(cell.choices.clients, cell.settings.n_clients)
