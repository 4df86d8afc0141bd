"""The numbers of several selectors in one world, and what they say about each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.errors import InvalidInput
from turnout.names import nearest
from turnout.runs.catalogue import metric_named
from turnout.runs.cell import Cell
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.statistics import Estimate, estimate
from turnout.statistics.evidence import LEVEL, above, holm
from turnout.types import FloatArray

__all__ = ["FEW_SEEDS", "Difference", "Numbers", "Ranking", "Scores", "known_label", "numbers_of"]

#: With fewer seeds than this, a table says that it rests on few.
FEW_SEEDS = 5

#: The numbers of one run: its value of a metric, NaN if it has none.
Numbers = Callable[[Metric[Facts]], float]


class Difference(NamedTuple):
    """How far a selector is from a baseline, seed by seed.

    Attributes:
        estimate: The mean difference over the seeds that both have.
        p_value: Chance of a difference as large as this one if there were none: a paired t-test,
            corrected by Holm for all selectors that are compared.
    """

    estimate: Estimate
    p_value: float

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance, at 5 %."""
        return self.p_value <= LEVEL


class Ranking(NamedTuple):
    """Who is ahead.

    Attributes:
        best: Those with the best mean; empty if all are equal or there is nothing to rank.
        tied: Those whose difference to the best may be chance.
    """

    best: frozenset[str]
    tied: frozenset[str]


@dataclass(frozen=True, slots=True)
class Scores:
    """The numbers of several selectors in one world.

    A time to a target that not every run reached is a restricted mean: every run counts with its
    time up to a common limit, and one that did not get there counts with the limit. So the mean is
    over the same seeds for everybody, and not over those who survived.

    Attributes:
        runs: Where the numbers of each run come from, by label and seed.
    """

    runs: Mapping[str, Mapping[int, Numbers]]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the selectors, in order."""
        return tuple(self.runs)

    @property
    def caution(self) -> str:
        """What to say where few seeds back a claim; empty if there are enough."""
        fewest = min(self.n_seeds(label) for label in self.labels)
        if fewest >= FEW_SEEDS:
            return ""
        seeds = "1 seed" if fewest == 1 else f"{fewest} seeds"
        return f"Only {seeds} per selector: with fewer than {FEW_SEEDS}, take no claim for granted."

    def n_seeds(self, label: str) -> int:
        """Return how many runs a selector has."""
        return len(self._runs_of(label))

    def values(self, label: str, metric: str | Metric[Facts]) -> dict[int, float]:
        """Return the numbers of a selector by seed; runs without one are left out.

        Args:
            label: The label of the selector.
            metric: A metric or its key.
        """
        metric = _metric(metric)
        limit = self.limit(metric)
        times = {seed: _up_to(limit, run(metric)) for seed, run in self._runs_of(label).items()}
        return {seed: value for seed, value in times.items() if math.isfinite(value)}

    def limit(self, metric: str | Metric[Facts]) -> float:
        """Return up to where a time to a target is counted; infinite if every run reached it.

        It is the end of the shortest run that did not get there, so that nobody's time up to it is
        unknown. NaN if the length of such a run is not known.

        Args:
            metric: A metric or its key.
        """
        metric = _metric(metric)
        if not metric.run_length:
            return math.nan
        length = metric_named(metric.run_length)
        runs = [run for by_seed in self.runs.values() for run in by_seed.values()]
        ends = [run(length) for run in runs if math.isnan(run(metric))]
        return float(np.min([math.inf, *ends]))

    def n_reached(self, label: str, metric: str | Metric[Facts]) -> int:
        """Return how many runs of a selector have a number; of a time, how many got there.

        Args:
            label: The label of the selector.
            metric: A metric or its key.
        """
        metric = _metric(metric)
        return sum(math.isfinite(run(metric)) for run in self._runs_of(label).values())

    def estimate(self, metric: str | Metric[Facts]) -> dict[str, Estimate]:
        """Return the mean over seeds with its 95 % interval, by label.

        Args:
            metric: A metric or its key.
        """
        return {label: estimate([*self.values(label, metric).values()]) for label in self.labels}

    def difference(
        self, metric: str | Metric[Facts], baseline: str | None = None
    ) -> dict[str, Difference]:
        """Return how far the others are from a baseline, paired by seed, by label.

        Args:
            metric: A metric or its key.
            baseline: The label of a selector; default: the first one.
        """
        baseline = self.labels[0] if baseline is None else baseline
        theirs = self.values(baseline, metric)
        steps = {}
        for label in self.labels:
            ours = self.values(label, metric)
            shared = sorted(ours.keys() & theirs.keys())
            steps[label] = np.array([ours[seed] - theirs[seed] for seed in shared])
        del steps[baseline]
        corrected = holm(_p_value(step) for step in steps.values())
        return {
            label: Difference(estimate(step), p_value)
            for (label, step), p_value in zip(steps.items(), corrected, strict=True)
        }

    def ranking(self, metric: str | Metric[Facts]) -> Ranking:
        """Return who has the best mean, and whose difference to the best may be chance.

        Where seeds are missing, means do not compare, and the selector is left out.

        Args:
            metric: A metric or its key.
        """
        metric = _metric(metric)
        means = self.estimate(metric)
        whole = {label: mean for label, mean in means.items() if 0 < mean.n == self.n_seeds(label)}
        best = metric.leaders({label: mean.mean for label, mean in whole.items()})
        if not best:
            return Ranking(frozenset(), frozenset())
        among = Scores({label: self.runs[label] for label in whole})
        steps = among.difference(metric, best[0])
        tied = {label for label, step in steps.items() if not step.is_clear}
        return Ranking(frozenset(best), frozenset(tied.difference(best)))

    def _runs_of(self, label: str) -> Mapping[int, Numbers]:
        if label not in self.runs:
            raise InvalidInput(
                f"unknown label {label!r}.{nearest(label, self.runs)}", field="label"
            )
        return self.runs[label]


def known_label(label: str, labels: Iterable[str]) -> str:
    """Return a label if it is one of some.

    Args:
        label: What was written.
        labels: Those that there are.

    Raises:
        InvalidInput: It is none of them; the message has the nearest one.
    """
    labels = tuple(labels)
    if label not in labels:
        raise InvalidInput(f"unknown label {label!r}.{nearest(label, labels)}", field="label")
    return label


def numbers_of(cell: Cell) -> Numbers:
    """Return the numbers of a cell: what ``summary.json`` says, else what its rounds say.

    Args:
        cell: A cell, read back; it may be incomplete or old.
    """
    facts = functools.cache(lambda: Facts.of_cell(cell))

    def number(metric: Metric[Facts]) -> float:
        value = cell.summary.get(metric.key, math.nan)
        value = value if math.isfinite(value) else float(metric.compute(facts()))
        return value if math.isfinite(value) else math.nan

    return number


def _metric(metric: str | Metric[Facts]) -> Metric[Facts]:
    return metric_named(metric) if isinstance(metric, str) else metric


def _up_to(limit: float, value: float) -> float:
    """Return a value, a time at most as large as the limit; NaN = there is no limit."""
    return value if math.isnan(limit) else float(np.fmin(value, limit))


def _p_value(differences: FloatArray) -> float:
    evidence = above(differences)
    return min(1.0, 2.0 * min(evidence.speaks_for, evidence.speaks_against))
