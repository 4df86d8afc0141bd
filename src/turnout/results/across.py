"""Selectors over several worlds: robust means, chances to be better, performance profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.errors import InvalidInput
from turnout.results.scores import Scores, known_label
from turnout.runs.catalogue import metric_named
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics.aggregates import (
    Interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from turnout.types import FloatArray


@dataclass(frozen=True, slots=True)
class Across:
    """The selectors that all of some worlds have, over these worlds.

    Attributes:
        worlds: The scores of each world.
    """

    worlds: Sequence[Scores]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the selectors that every world has."""
        first, *others = self.worlds
        return tuple(label for label in first.labels if all(label in s.labels for s in others))

    def interquartile_mean(self, metric: str) -> dict[str, Interval]:
        """Return the mean over the middle half of all runs, by label.

        Args:
            metric: The key of a metric with one scale in all worlds, such as ``accuracy``.
        """
        found = metric_named(metric)
        return {label: interquartile_mean(self._tasks(label, found)) for label in self.labels}

    def probability_of_improvement(self, metric: str, baseline: str) -> dict[str, Interval]:
        """Return how likely a run is better than one of a baseline, by label.

        Args:
            metric: The key of a metric that has a better direction.
            baseline: The label of a selector.
        """
        ranked = _ranked(metric)
        theirs = self._tasks(known_label(baseline, self.labels), ranked)
        return {
            label: probability_of_improvement(*_higher(ranked, self._tasks(label, ranked), theirs))
            for label in self.labels
            if label != baseline
        }

    def performance_profile(self, metric: str, levels: FloatArray) -> dict[str, FloatArray]:
        """Return the share of runs that are better than each level, mean over worlds, by label.

        Args:
            metric: The key of a metric that has a better direction.
            levels: (k,) the levels.
        """
        ranked = _ranked(metric)
        profiles = {}
        for label in self.labels:
            tasks, (asked,) = _higher(ranked, self._tasks(label, ranked), [levels])
            profiles[label] = performance_profile(tasks, asked)
        return profiles

    def _tasks(self, label: str, metric: Metric[Facts]) -> list[FloatArray]:
        tasks = [np.array([*scores.values(label, metric).values()]) for scores in self.worlds]
        if not all(task.size for task in tasks):
            raise InvalidInput(
                f"metric {metric.key!r} has no number for {label} in one of the worlds: choose "
                "another metric.",
                field="metric",
            )
        return tasks


def _ranked(key: str) -> Metric[Facts]:
    metric = metric_named(key)
    if metric.better == "neither":
        raise InvalidInput(
            f"metric {key!r} has no better direction: choose one that has, such as accuracy.",
            field="metric",
        )
    return metric


def _higher(
    metric: Metric[Facts], ours: Sequence[FloatArray], theirs: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return numbers of which the higher are better."""
    sign = 1.0 if metric.better == "higher" else -1.0
    return [sign * values for values in ours], [sign * values for values in theirs]
