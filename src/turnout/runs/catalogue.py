"""All metrics of a run. ``summary.json``, tables, report, measures of papers and docs follow it.

To add a metric, add an entry to ``LEARNING`` or ``PARTICIPATION``. An entry with a parameter is a
function of it: one metric for each accuracy that a run is asked to reach.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from turnout.errors import InvalidInput
from turnout.names import nearest
from turnout.runs.facts import Facts
from turnout.runs.learning import LEARNING, Family
from turnout.runs.metric import Group, Metric, Table
from turnout.runs.participation import PARTICIPATION

#: What the metrics of a group have in common.
GROUPS: Mapping[Group, str] = MappingProxyType(
    {
        "learning": "How good the trained model is. Curves count with their last measured value.",
        "participation": "How many of the chosen clients answered in time.",
        "fairness": "How evenly the choices are spread over the clients.",
        "time": "Time on the virtual clock of the simulated federation.",
        "computing": "What the run cost on the computer that ran it.",
    }
)

#: The target of metrics that have one, where their keys are listed.
_EXAMPLE = (0.8,)

#: In the order in which they are written and shown.
METRICS = (*LEARNING, *PARTICIPATION)


def all_metrics(targets: Iterable[float] = ()) -> list[Metric[Facts]]:
    """Return every metric, in order; those with a parameter once for each target.

    Args:
        targets: accuracies that the run is asked to reach.
    """
    levels = tuple(targets)
    return [
        metric
        for entry in METRICS
        for metric in ([entry] if isinstance(entry, Metric) else _expanded(entry, levels))
    ]


def shown_in(table: Table, targets: Iterable[float] = ()) -> list[Metric[Facts]]:
    """Return the metrics that a table shows, in order."""
    return [metric for metric in all_metrics(targets) if table in metric.tables]


def at_targets(targets: Iterable[float]) -> list[Metric[Facts]]:
    """Return the metrics that have a parameter, once for each target."""
    levels = tuple(targets)
    families = [entry for entry in METRICS if not isinstance(entry, Metric)]
    return [metric for family in families for metric in _expanded(family, levels)]


def find(key: str) -> Metric[Facts] | None:
    """Return a metric by its key; None if there is none.

    Args:
        key: As in ``summary.json``. A number inside is the target of a metric that has one.

    >>> find("rounds_to_0.85").title
    'Rounds to 0.85'
    """
    target = re.search(r"\d+(\.\d+)?", key)
    metrics = all_metrics([float(target[0])] if target else [])
    return next((metric for metric in metrics if metric.key == key), None)


def metric_named(key: str) -> Metric[Facts]:
    """Return a metric by its key.

    Args:
        key: As in ``summary.json``.

    Raises:
        InvalidInput: There is none; the message has the nearest key.
    """
    metric = find(key)
    if metric is None:
        keys = [metric.key for metric in all_metrics(_EXAMPLE)]
        raise InvalidInput(f"unknown metric {key!r}.{nearest(key, keys)}", field="metric")
    return metric


def summarize(facts: Facts) -> dict[str, float]:
    """Return the numbers of ``summary.json``; what is not defined is NaN.

    A metric of something that the run does not have is left out.

    Args:
        facts: what is known about the run.
    """
    values = [(metric, metric.compute(facts)) for metric in all_metrics(facts.targets)]
    return {
        metric.key: value
        for metric, value in values
        if metric.needs is None or metric.needs in facts.has or math.isfinite(value)
    }


def _expanded(family: Family, targets: Iterable[float]) -> list[Metric[Facts]]:
    return [metric for target in targets for metric in family(target)]
