"""What the papers' figures are judged by: one number per run.

Every metric of the catalogue is a measure; those of single figures are in ``figure_measures``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from turnout.errors import InvalidInput
from turnout.experiment import Cell
from turnout.names import nearest
from turnout.papers.figure_measures import MEASURES, rounds_to, time_to
from turnout.runs.catalogue import all_metrics
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics import estimate
from turnout.types import FloatArray

#: Metrics that presets and kept results know by another name than their key with hyphens.
_OTHER_NAMES: Mapping[str, str] = {
    "jain_of_counts": "jain",
    "gini_of_counts": "gini",
    "total_time_s": "total-time",
    "accuracy": "test-accuracy",
}

#: Times to an accuracy, by the beginning of their name; the rest is the accuracy, as a share.
_TIMES: Mapping[str, tuple[Callable[[str, float], Callable[[Cell], float]], str, str]] = {
    "rounds-to-hold-out-": (
        rounds_to,
        "holdout_accuracy",
        "rounds to {:.0%} on the hold-out",
    ),
    "rounds-to-": (rounds_to, "accuracy", "rounds to {:.0%}"),
    "time-to-": (time_to, "accuracy", "time to {:.0%}, s"),
}


#: Beginning of the rounds to the best accuracy of another scheme with the same seed; its label
#: follows. They are computed from kept curves, in whose rounds they count (``Trials.values``): no
#: run has them by itself.
RELATIVE = "rounds-to-best-of-"


def measure_named(name: str) -> Metric[Cell]:
    """Return a measure by its name.

    Args:
        name: The key of a metric with hyphens, a measure of single figures, or a time to an
            accuracy: ``rounds-to-0.75``, ``rounds-to-hold-out-0.75``, ``time-to-0.75``,
            ``rounds-to-best-of-Random``.

    >>> measure_named("rounds-to-0.75").title
    'rounds to 75%'
    """
    measures = _of_every_run() | MEASURES
    if name in measures:
        return measures[name]
    if name.startswith(RELATIVE):
        return _relative(name)
    start, level = _split(name)
    if start:
        compute, curve, title = _TIMES[start]
        return Metric(
            key=name,
            title=title.format(level),
            meaning=f"First time at which {curve} is at least {level:g}.",
            compute=compute(curve, level),
            decimals=0,
            is_time_to=True,
        )
    names = (*measures, *(f"{start}0.8" for start in _TIMES))
    raise InvalidInput(f"unknown measure {name!r}.{nearest(name, names)}", field="measure")


def target_of(name: str) -> tuple[str, float] | None:
    """Return the curve and the level that a time is about; None for another measure.

    Args:
        name: Of the measure.

    >>> target_of("rounds-to-hold-out-0.75")
    ('holdout_accuracy', 0.75)
    """
    start, level = _split(name)
    return (_TIMES[start][1], level) if start else None


def _split(name: str) -> tuple[str, float]:
    """Return the beginning of a time's name and its level; an empty one for another measure."""
    for start in _TIMES:
        level = name.removeprefix(start)
        if level != name and re.fullmatch(r"0?\.\d+", level):
            return start, float(level)
    return "", 0.0


def _relative(name: str) -> Metric[Cell]:
    other = name.removeprefix(RELATIVE)

    def alone(cell: Cell) -> float:
        raise InvalidInput(f"{name} needs the runs of {other} too.", field="measure")

    return Metric(
        key=name,
        title=f"rounds to the best of {other}",
        meaning=f"First round that is as accurate as {other} at its best, with the same seed.",
        compute=alone,
        decimals=0,
        is_time_to=True,
    )


def _of_every_run() -> dict[str, Metric[Cell]]:
    """Return the metrics of the catalogue as measures."""
    return {
        _OTHER_NAMES.get(metric.key, metric.key.replace("_", "-")): _read_back(metric)
        for metric in all_metrics()
    }


def _read_back(metric: Metric[Facts]) -> Metric[Cell]:
    """Return a metric as ``summary.json`` has it; one that an old file lacks is computed."""

    def read(cell: Cell) -> float:
        if metric.key not in cell.summary:
            return metric.compute(Facts.of_cell(cell))
        value = cell.summary[metric.key]
        return math.nan if value is None else float(value)

    return dataclasses.replace(cast(Metric[Any], metric), compute=read)


def comparable(values: FloatArray, measure: Metric[Cell]) -> FloatArray:
    """Return a measure without the seeds that say nothing, because another scheme lacks them.

    Args:
        values: One per seed.
        measure: What they are; only of times to the best of a scheme NaN means that.
    """
    return values[~np.isnan(values)] if measure.key.startswith(RELATIVE) else values


def typical(values: FloatArray, measure: Metric[Cell]) -> str:
    """Return a measure over seeds as text; of times the geometric mean, if all were reached.

    Args:
        values: One per seed; NaN = diverged, infinity = never got there.
        measure: What they are.
    """
    if measure.is_time_to and np.isfinite(values).all():
        return format(float(np.exp(np.log(values).mean())), measure.form)
    return shown(values, measure)


def shown(values: FloatArray, measure: Metric[Cell]) -> str:
    """Return a measure over seeds as text: mean and interval, or the median of times.

    Args:
        values: One per seed; NaN = diverged, infinity = never got there.
        measure: What they are.
    """
    values = comparable(values, measure)
    known = values[~np.isnan(values)]
    if not known.size:
        return "diverged" if values.size else "-"
    if measure.is_time_to:
        middle = float(np.median(known))
        text = "never" if math.isinf(middle) else format(middle, measure.form)
    else:
        text = estimate(values).written(measure.form)
    counts = {"diverged": values.size - known.size, "never": int(np.isinf(known).sum())}
    if counts["never"] == known.size:
        del counts["never"]  # the text says it
    remarks = [f"{n} of {values.size} {what}" for what, n in counts.items() if n]
    return f"{text} ({', '.join(remarks)})" if remarks else text
