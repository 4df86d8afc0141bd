"""The numbers of several selectors in one world, and what they say about each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import nearest, shortened
from turnout.core.types import FloatArray
from turnout.results.catalogue import metric_named
from turnout.results.metric import Facts, Metric
from turnout.results.reader import Cell
from turnout.results.statistics import (
    LEVEL,
    Estimate,
    Interval,
    above,
    estimate,
    holm,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)

#: best: ahead of all others by more than chance; leading: best mean, but another one may be as
#: good; tied: its difference to the best mean may be chance.
Place = Literal["", "best", "leading", "tied"]

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


class Leaders(NamedTuple):
    """The leading selectors.

    Attributes:
        best: Those with the best mean; empty if all are equal or there is nothing to rank.
        tied: Those whose difference to the best may be chance.
    """

    best: frozenset[str]
    tied: frozenset[str]

    def place(self, label: str) -> Place:
        """Return where a selector stands; it is the best only where the lead is real.

        Args:
            label: The label of the selector.
        """
        if label in self.best:
            return "leading" if self.tied else "best"
        return "tied" if label in self.tied else ""


@dataclass(frozen=True, slots=True)
class Scores:
    """The numbers of several selectors in one world.

    A run that never reached its target is censored: its time is at least its length. It counts with
    its length, so that a mean over such runs is a lower bound and not the mean of the survivors.

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
        counts = [self.n_seeds(label) for label in self.labels]
        fewest = min((count for count in counts if count), default=0)
        if not 0 < fewest < FEW_SEEDS:
            return ""
        seeds = "1 seed" if fewest == 1 else f"{fewest} seeds"
        return f"Only {seeds} per selector: with fewer than {FEW_SEEDS}, take no claim for granted."

    def n_seeds(self, label: str) -> int:
        """Return how many runs a selector has.

        Args:
            label: The label of the selector.
        """
        return len(self._runs_of(label))

    def values(self, label: str, metric: str | Metric[Facts]) -> dict[int, float]:
        """Return the numbers of a selector by seed; runs without one are left out.

        A run that never got to its target counts with its length.

        Args:
            label: The label of the selector.
            metric: A metric or its key.
        """
        metric = _metric(metric)
        values = {seed: _counted(run, metric) for seed, run in self._runs_of(label).items()}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}

    def n_reached(self, label: str, metric: str | Metric[Facts]) -> int:
        """Return how many runs of a selector have a number; of a time, how many got there.

        Args:
            label: The label of the selector.
            metric: A metric or its key.
        """
        metric = _metric(metric)
        return sum(math.isfinite(run(metric)) for run in self._runs_of(label).values())

    def is_censored(self, metric: str | Metric[Facts]) -> bool:
        """Return whether it is a time to a target that some run never reached.

        Args:
            metric: A metric or its key.
        """
        metric = _metric(metric)
        reached = (self.n_reached(label, metric) == self.n_seeds(label) for label in self.labels)
        return bool(metric.run_length) and not all(reached)

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
        metric = _metric(metric)
        baseline = self.labels[0] if baseline is None else baseline
        theirs = self._runs_of(baseline)
        steps = {
            label: _steps(metric, ours, theirs)
            for label, ours in self.runs.items()
            if label != baseline
        }
        tests = (above(step) for step in steps.values())
        corrected = holm(min(1.0, 2.0 * min(e.speaks_for, e.speaks_against)) for e in tests)
        return {
            label: Difference(estimate(step), p_value)
            for (label, step), p_value in zip(steps.items(), corrected, strict=True)
        }

    def ranking(self, metric: str | Metric[Facts]) -> Leaders:
        """Return who has the best mean, and whose difference to the best may be chance.

        Where seeds are missing, or did not reach a target, means do not compare: such a selector
        is not the best, and if it is clearly ahead of the best, none is.

        Args:
            metric: A metric or its key.
        """
        metric = _metric(metric)
        means = {label: mean.mean for label, mean in self.estimate(metric).items()}
        whole = {
            label: mean
            for label, mean in means.items()
            if 0 < self.n_reached(label, metric) == self.n_seeds(label)
        }
        best = metric.leaders(whole)
        steps = self.difference(metric, best[0]) if best else {}
        sign = 1.0 if metric.better == "higher" else -1.0
        if any(step.is_clear and sign * step.estimate.mean > 0.0 for step in steps.values()):
            return Leaders(frozenset(), frozenset())
        tied = {label for label, step in steps.items() if step.estimate.n and not step.is_clear}
        return Leaders(frozenset(best), frozenset(tied.difference(best)))

    def _runs_of(self, label: str) -> Mapping[int, Numbers]:
        return self.runs[known_label(label, self.runs)]


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


def _counted(run: Numbers, metric: Metric[Facts]) -> float:
    """Return the number of a run; of a time to a target that it never reached, its length."""
    value = run(metric)
    is_censored = bool(metric.run_length) and math.isnan(value)
    return run(metric_named(metric.run_length)) if is_censored else value


def _step(metric: Metric[Facts], ours: Numbers, theirs: Numbers) -> float:
    """Return the difference of two runs.

    Times are counted up to the end of a run that did not get there: a run that was cut off can make
    a difference smaller and never larger.
    """
    values = [_counted(run, metric) for run in (ours, theirs)]
    ends = [
        value for run, value in zip((ours, theirs), values, strict=True) if math.isnan(run(metric))
    ]
    first, second = np.minimum(values, np.min([math.inf, *ends]))
    return float(first - second)


def _steps(
    metric: Metric[Facts], ours: Mapping[int, Numbers], theirs: Mapping[int, Numbers]
) -> FloatArray:
    """Return the differences for the seeds that both have."""
    shared = sorted(ours.keys() & theirs.keys())
    steps: FloatArray = np.array([_step(metric, ours[seed], theirs[seed]) for seed in shared])
    return steps[np.isfinite(steps)]


# --------------------------------------------------------------------------------------------------
# Selectors over several worlds: robust means, chances to be better, performance profiles.
# --------------------------------------------------------------------------------------------------


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
        ranked, sign = _ranked(metric)
        tasks = {label: self._tasks(label, ranked, sign) for label in self.labels}
        theirs = tasks[known_label(baseline, tasks)]
        return {
            label: probability_of_improvement(ours, theirs)
            for label, ours in tasks.items()
            if label != baseline
        }

    def performance_profile(self, metric: str, levels: FloatArray) -> dict[str, FloatArray]:
        """Return the share of runs that are better than each level, mean over worlds, by label.

        Args:
            metric: The key of a metric that has a better direction.
            levels: (k,) the levels.
        """
        ranked, sign = _ranked(metric)
        return {
            label: performance_profile(self._tasks(label, ranked, sign), sign * levels)
            for label in self.labels
        }

    def _tasks(self, label: str, metric: Metric[Facts], sign: float = 1.0) -> list[FloatArray]:
        numbers = ([*scores.values(label, metric).values()] for scores in self.worlds)
        tasks = [sign * np.array(values) for values in numbers]
        if not all(task.size for task in tasks):
            raise InvalidInput(
                f"metric {metric.key!r} has no number for {label} in one of the worlds: choose "
                "another metric.",
                field="metric",
            )
        return tasks


def _ranked(key: str) -> tuple[Metric[Facts], float]:
    """Return a metric and the sign with which its higher numbers are better."""
    metric = metric_named(key)
    if metric.better == "neither":
        raise InvalidInput(
            f"metric {key!r} has no better direction: choose one that has, such as accuracy.",
            field="metric",
        )
    return metric, 1.0 if metric.better == "higher" else -1.0


# The first column in words ------------------------------------------------------------------------


#: Part of its fair share below which a sentence names what the least served client got.
_FAIR = 0.5
#: Clients that a selector must leave out on average to be named for it.
_ONE = 1.0
#: Selectors that a part of a sentence names.
_MOST_NAMES = 4
_LONGEST_HEADING = 16


class Versus(NamedTuple):
    """Selectors beside a baseline, by one metric.

    Attributes:
        scores: The numbers.
        metric: What they are compared by.
        baseline: The selector that the others are compared with.
    """

    scores: Scores
    metric: Metric[Facts]
    baseline: str

    @property
    def heading(self) -> str:
        """What a column is called that has the numbers of ``written``."""
        return shortened(f"vs {self.baseline}", _LONGEST_HEADING)

    @property
    def steps(self) -> Mapping[str, Difference]:
        """The differences to the baseline, paired by seed."""
        return self.scores.difference(self.metric, self.baseline)

    def written(self, label: str) -> str:
        """Return a selector's number beside the baseline's: a ratio of times, else a difference.

        A star marks what is more than chance. Where some seeds did not reach a target, the ratio
        is a limit; where neither selector reached it in all seeds, there is no ratio.

        Args:
            label: The label of the selector.
        """
        if label == self.baseline:
            return ""
        step = self.steps[label]
        if not step.estimate.n:
            return "-"
        star = "*" if step.is_clear else ""
        if not self.metric.is_time_to:
            scale = self.metric.scale(
                mean.mean for mean in self.scores.estimate(self.metric).values()
            )
            return f"{step.estimate.mean / scale.size:+,{scale.form}}{star}"
        ratio = self._ratio(label)
        return f"{ratio}{star}" if ratio else "-"

    def _ratio(self, label: str) -> str:
        """Return the ratio of two mean times over the seeds that both have; empty if unknown."""
        ours, theirs = (self.scores.values(name, self.metric) for name in (label, self.baseline))
        shared = ours.keys() & theirs.keys()
        total = sum(theirs[seed] for seed in shared)
        cut, base_cut = self._is_cut(label), self._is_cut(self.baseline)
        if not total or (cut and base_cut):
            return ""
        limit = "≥ " if cut else "≤ " if base_cut else ""
        return f"{limit}{sum(ours[seed] for seed in shared) / total:.2f}"

    def _is_cut(self, label: str) -> bool:
        return self.scores.n_reached(label, self.metric) < self.scores.n_seeds(label)

    @property
    def sentence(self) -> str:
        """What the numbers say; empty if there is nothing to compare or to rank."""
        metric, scores, steps = self.metric, self.scores, self.steps
        if metric.better == "neither" or all(step.estimate.n < 2 for step in steps.values()):
            return ""
        if not any(scores.n_reached(label, metric) for label in scores.labels):
            return f"No run reached {metric.goal}." if metric.is_time_to else ""
        sign = 1.0 if metric.better == "higher" else -1.0
        gains = {label: sign * step.estimate.mean for label, step in steps.items()}
        clear = sorted((n for n in steps if steps[n].is_clear), key=lambda n: -gains[n])
        ahead = [label for label in clear if gains[label] > 0.0]
        behind = [label for label in clear if gains[label] < 0.0]
        level = [label for label in steps if label not in clear]
        clauses = [self._ahead(ahead)] if ahead else [self._nobody(behind)]
        if level and ahead:
            clauses.append(f"{_listed(level)} did not differ clearly from {self.baseline}")
        return "; ".join([*clauses, *self._behind(behind), *self._unserved()]) + "."

    def _ahead(self, labels: Sequence[str]) -> str:
        """Return a clause about those that are better than the baseline, the best first."""
        if not self.metric.is_time_to:
            ours, theirs = self._with_means(labels), self._with_means([self.baseline])
            were = "was" if len(labels) == 1 else "were"
            return f"By {self._measure}, {ours} {were} better than {theirs}"
        unit = "rounds" if self.metric.unit == "rounds" else "time"
        known = {n: ratio.replace("≤", "at most") for n in labels if (ratio := self._ratio(n))}
        unknown = [label for label in labels if label not in known]
        if not known:
            return f"{_listed(unknown)} reached {self.metric.goal} sooner than {self.baseline}"
        (best, ratio), *others = known.items()
        first = f"{best} reached {self.metric.goal} in {ratio} of {self.baseline}'s {unit}"
        clause = _listed([first, *(f"{label} in {ratio}" for label, ratio in others)])
        return clause + (f", and {_listed(unknown)} sooner than {self.baseline}" if unknown else "")

    @property
    def _measure(self) -> str:
        """The name of the metric inside a sentence; abbreviations stay as they are."""
        name = self.metric.short
        return name if name[:2].isupper() else name[0].lower() + name[1:]

    def _nobody(self, behind: Sequence[str]) -> str:
        if self.metric.is_time_to:
            sooner = "sooner" if behind else "sooner or later"
            return f"No selector reached {self.metric.goal} clearly {sooner} than {self.baseline}"
        better = "better" if behind else "better or worse"
        return f"By {self._measure}, no selector was clearly {better} than {self.baseline}"

    def _behind(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield clauses about those that are worse than the baseline."""
        never = [n for n in labels if self.scores.n_reached(n, self.metric) == 0]
        worse = [label for label in labels if label not in never]
        if worse and self.metric.is_time_to:
            known = {n: ratio.replace("≥", "at least") for n in worse if (ratio := self._ratio(n))}
            if known:
                (label, ratio), *others = known.items()
                first = f"{label} took {ratio} times as long"
                yield _listed([first, *(f"{name} {longer}" for name, longer in others)])
            if len(known) < len(worse):
                yield f"{_listed([n for n in worse if n not in known])} took longer"
        elif worse:
            yield f"{self._with_means(worse)} {'was' if len(worse) == 1 else 'were'} worse"
        if never:
            yield f"{_listed(never)} never reached it"

    def _unserved(self) -> Iterator[str]:
        """Yield clauses about the clients that selectors hardly served, or did not serve at all."""
        out = {n: self.scores.estimate("left_out")[n].mean for n in self.scores.labels}
        left = {label: round(mean) for label, mean in out.items() if mean >= _ONE}
        if left:
            (label, number), *others = left.items()
            first = f"{label} left {number} client{'s' if number > 1 else ''} out"
            yield _listed([first, *(f"{name} {more}" for name, more in others)])
        least = {n: self.scores.estimate("least_share")[n].mean for n in self.scores.labels}
        low = {n: mean for n, mean in least.items() if mean < _FAIR and n not in left}
        if low:
            (worst, share), *further = low.items()
            first = f"{share:.2f} of a fair share with {worst}"
            clause = _listed([first, *(f"{mean:.2f} with {name}" for name, mean in further)])
            rest = {n: mean for n, mean in least.items() if n not in low and n not in left}
            if rest:
                limit, whom = ("", *rest) if len(rest) == 1 else ("at least ", "the rest")
                clause += f", and {limit}{min(rest.values()):.2f} with {whom}"
            yield f"the least served client got {clause}"

    def _with_means(self, labels: Sequence[str]) -> str:
        """Return selectors with their means, as a list in a sentence."""
        means = {
            label: estimate.mean for label, estimate in self.scores.estimate(self.metric).items()
        }
        scale = self.metric.scale(means.values())
        written = {
            n: f"{mean / scale.size:,{scale.form}} {scale.unit}" for n, mean in means.items()
        }
        return _listed([f"{label} ({written[label].rstrip()})" for label in labels])


def _listed(names: Sequence[str]) -> str:
    """Return names or numbers as a list in a sentence."""
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} others"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
