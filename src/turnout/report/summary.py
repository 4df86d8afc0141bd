"""Summary statistics: means over seeds with confidence intervals, and which is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from turnout import metrics
from turnout.report.groups import VariantCells, WorldGroup
from turnout.runs.cell import Cell
from turnout.statistics import Estimate, estimate
from turnout.types import FloatArray, IntArray

__all__ = ["COLUMNS", "Column", "Row", "counts_of", "summary_rows"]


class Column(NamedTuple):
    """One number per cell, and which direction is better."""

    key: str
    title: str
    better: Literal["higher", "lower", "neither"]
    meaning: str
    is_time: bool = False


COLUMNS = (
    Column("accuracy", "Accuracy", "higher", "accuracy of the model, last value of the run"),
    Column("loss", "Loss", "lower", "loss of the model, last value of the run"),
    Column(
        "jain_of_losses",
        "Jain of losses",
        "higher",
        "Jain's index of the clients' losses on their own examples (UCB-CS), 1 = all equal",
    ),
    Column(
        "worst_accuracy",
        "Worst 10 %",
        "higher",
        "mean accuracy of the worst tenth of the clients, on their own examples",
    ),
    Column("success_ratio", "Success ratio", "higher", "share of the chosen that were in time"),
    Column("cep", "CEP", "higher", "cumulative effective participation: all answers in time"),
    Column(
        "regret",
        "Regret",
        "neither",
        "answers lost against the best fixed allocation that keeps the selector's own quota; "
        "selectors with different quotas are measured against different allocations",
    ),
    Column("jain_of_counts", "Jain", "higher", "Jain's index of selection counts, 1 = all equal"),
    Column("gini_of_counts", "Gini", "lower", "Gini coefficient of selection counts, 0 = equal"),
    Column("minimum_rate", "Minimum rate", "higher", "share of rounds of the least chosen client"),
    Column("round_time_s", "Round time", "lower", "mean length of a round", is_time=True),
    Column("wasted_s", "Wasted time", "lower", "device time of clients not in time", is_time=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One selector in the summary table."""

    name: str
    n_seeds: int
    estimates: Mapping[str, Estimate]  #: by column; columns without a number are absent
    best: frozenset[str]  #: columns in which no other mean is better
    tied: frozenset[str]  #: columns whose paired difference to the best may be zero


def summary_rows(world: WorldGroup) -> list[Row]:
    """Return one row per selector: what summary.json says, else what the rounds say."""
    values = {variant.name: _values(variant) for variant in world.variants}
    best: dict[str, set[str]] = {name: set() for name in values}
    tied: dict[str, set[str]] = {name: set() for name in values}
    for column in COLUMNS:
        known = {name: of[column.key] for name, of in values.items() if column.key in of}
        leaders = _leaders(column, known)
        for name in known:
            if name in leaders:
                best[name].add(column.key)
            elif leaders and _may_be_equal(known[name], known[leaders[0]]):
                tied[name].add(column.key)
    rows = []
    for name, of in values.items():
        estimates = {key: estimate(list(by_seed.values())) for key, by_seed in of.items()}
        n_seeds = next(len(variant.cells) for variant in world.variants if variant.name == name)
        rows.append(Row(name, n_seeds, estimates, frozenset(best[name]), frozenset(tied[name])))
    return rows


def counts_of(cell: Cell) -> IntArray | None:
    """Return (n,) how often each client was chosen, None if the choices are not known yet."""
    if cell.choices is None:
        return None
    return metrics.selection_counts(cell.choices.clients, cell.settings.n_clients)


def _values(variant: VariantCells) -> dict[str, dict[int, float]]:
    """Return the numbers of a variant by column and seed."""
    found: dict[str, dict[int, float]] = {}
    for cell in variant.cells:
        known = _computed(cell) | {k: v for k, v in cell.summary.items() if math.isfinite(v)}
        for column in COLUMNS:
            value = known.get(column.key, math.nan)
            if math.isfinite(value):
                found.setdefault(column.key, {})[cell.settings.seed] = value
    return found


def _computed(cell: Cell) -> dict[str, float]:
    series = cell.series
    chosen, completed = np.nansum(series["chosen"]), np.nansum(series["completed"])
    values = {"cep": float(completed)}
    if chosen > 0:
        values["success_ratio"] = float(completed / chosen)
    for key in ("regret", "accuracy", "loss", "jain_of_losses", "worst_accuracy"):
        values[key] = _last(_known(series.get(key)))
    lengths, wasted = _known(series["length_s"]), _known(series.get("wasted_s"))
    if lengths.size:
        values["round_time_s"] = float(lengths.mean())
    if wasted.size:
        values["wasted_s"] = float(wasted.sum())
    counts = counts_of(cell)
    if counts is not None:
        values["jain_of_counts"] = metrics.jain_of_counts(counts)
        values["gini_of_counts"] = metrics.gini_of_counts(counts)
        values["minimum_rate"] = metrics.minimum_rate(counts, cell.n_rounds)
    return values


def _known(values: FloatArray | None) -> FloatArray:
    return np.zeros(0) if values is None else values[np.isfinite(values)]


def _last(known: FloatArray) -> float:
    return float(known[-1]) if known.size else math.nan


def _leaders(column: Column, known: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return who has the best mean; nobody if there is nothing to compare."""
    sign = 1.0 if column.better == "higher" else -1.0
    means = {name: sign * float(np.mean(list(by.values()))) for name, by in known.items()}
    if len(means) < 2 or column.better == "neither":
        return []
    top, bottom = max(means.values()), min(means.values())
    leaders = [name for name, mean in means.items() if math.isclose(mean, top, rel_tol=1e-9)]
    return [] if math.isclose(top, bottom, rel_tol=1e-9) else leaders


def _may_be_equal(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Return whether the 95 % interval of the paired difference holds 0."""
    shared = sorted(one.keys() & other.keys())
    if len(shared) < 2:
        return False
    difference = estimate([one[seed] - other[seed] for seed in shared])
    return abs(difference.mean) <= difference.half_width
