"""Summary statistics: means over seeds with confidence intervals, and which is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turnout.metrics import selection_counts
from turnout.report.groups import VariantCells, WorldGroup
from turnout.runs.cell import Cell
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics import Estimate, estimate
from turnout.types import IntArray

__all__ = ["Row", "counts_of", "summary_rows"]


@dataclass(frozen=True, slots=True)
class Row:
    """One selector in the summary table.

    Attributes:
        name: Label of the selector.
        n_seeds: Runs that count.
        estimates: By column; columns without a number are absent.
        best: Columns in which no other mean is better.
        tied: Columns whose paired difference to the best may be zero.
    """

    name: str
    n_seeds: int
    estimates: Mapping[str, Estimate]
    best: frozenset[str]
    tied: frozenset[str]


def summary_rows(world: WorldGroup, metrics: Sequence[Metric[Facts]]) -> list[Row]:
    """Return one row per selector: what summary.json says, else what the rounds say.

    Args:
        world: The cells that compare.
        metrics: The columns.
    """
    values = {variant.name: _values(variant, metrics) for variant in world.variants}
    n_seeds = {variant.name: len(variant.cells) for variant in world.variants}
    best: dict[str, set[str]] = {name: set() for name in values}
    tied: dict[str, set[str]] = {name: set() for name in values}
    for metric in metrics:
        whole = {  # where seeds are missing, means do not compare
            name: by_key[metric.key]
            for name, by_key in values.items()
            if len(by_key.get(metric.key, ())) == n_seeds[name]
        }
        means = {name: float(np.mean([*by_seed.values()])) for name, by_seed in whole.items()}
        leaders = metric.leaders(means)
        for name, by_seed in whole.items():
            if name in leaders:
                best[name].add(metric.key)
            elif leaders and _may_be_equal(by_seed, whole[leaders[0]]):
                tied[name].add(metric.key)
    rows = []
    for name, by_key in values.items():
        estimates = {key: estimate(list(by_seed.values())) for key, by_seed in by_key.items()}
        marks = frozenset(best[name]), frozenset(tied[name])
        rows.append(Row(name, n_seeds[name], estimates, *marks))
    return rows


def counts_of(cell: Cell) -> IntArray | None:
    """Return (n,) how often each client was chosen, None if the choices are not known yet."""
    if cell.choices is None:
        return None
    return selection_counts(cell.choices.clients, cell.settings.n_clients)


def _values(variant: VariantCells, metrics: Sequence[Metric[Facts]]) -> dict[str, dict[int, float]]:
    """Return the numbers of a variant by metric and seed."""
    values: dict[str, dict[int, float]] = {}
    for cell in variant.cells:
        facts = Facts.of_cell(cell)
        for metric in metrics:
            value = cell.summary.get(metric.key, math.nan)
            value = value if math.isfinite(value) else float(metric.compute(facts))
            if math.isfinite(value):
                values.setdefault(metric.key, {})[cell.settings.seed] = value
    return values


def _may_be_equal(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Return whether the 95 % interval of the paired difference holds 0."""
    shared = sorted(one.keys() & other.keys())
    if len(shared) < 2:
        return False
    difference = estimate([one[seed] - other[seed] for seed in shared])
    return abs(difference.mean) <= difference.half_width
