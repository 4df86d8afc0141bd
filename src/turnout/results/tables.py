"""Tables of scores, before anybody prints them: what stands in each cell, and how it is marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from turnout.results.groups import WorldGroup
from turnout.results.scores import Place, Scores
from turnout.results.targets import targets_of
from turnout.runs.catalogue import at_targets, metric_named, shown_in
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric, Scale
from turnout.statistics import Estimate

#: The place in a ranking; clear: a difference that is more than chance.
Mark = Place | Literal["clear"]
#: What the clock of a simulation is called, and that of a live run.
_CLOCKS = ("Virtual time", "Time that training took")


class Entry(NamedTuple):
    """A cell of a table.

    Attributes:
        mean: The mean in the unit of its column; "-" if there is none.
        margin: Half the 95 % interval; empty with a single seed.
        reached: How many seeds have a number, such as ``3 of 5``; empty if all have.
        mark: How it is marked.
    """

    mean: str
    margin: str = ""
    reached: str = ""
    mark: Mark = ""

    @property
    def text(self) -> str:
        """The cell in one line, without its mark."""
        mean = f"{self.mean} ± {self.margin}" if self.margin else self.mean
        return f"{mean} ({self.reached})" if self.reached else mean


class ScoreTable(NamedTuple):
    """Numbers of selectors by metric.

    Attributes:
        columns: What is shown, and in which unit.
        rows: The label of each selector and its cells.
    """

    columns: list[tuple[Metric[Facts], Scale]]
    rows: list[tuple[str, list[Entry]]]

    @property
    def headings(self) -> list[str]:
        """Short headings of the columns, with units."""
        return [metric.titled(scale, short=True) for metric, scale in self.columns]


def main_metric(world: WorldGroup) -> Metric[Facts]:
    """Return what a world is judged by: accuracy, or answers in time where nothing is trained.

    Args:
        world: Cells that compare.
    """
    is_trained = any("accuracy" in cell.series for cell in world.cells)
    return metric_named("accuracy" if is_trained else "cep")


def usual_metrics(world: WorldGroup) -> list[Metric[Facts]]:
    """Return the metrics that a table of a world shows if nobody says which.

    Args:
        world: Cells that compare.
    """
    targets = targets_of(world.cells)
    is_trained = bool(world.settings.training) or bool(targets)
    usual = [*shown_in("compare --train" if is_trained else "compare"), *at_targets(targets)]
    return suitable(world, usual)


def suitable(world: WorldGroup, metrics: Sequence[Metric[Facts]]) -> list[Metric[Facts]]:
    """Return the metrics that say something about a world.

    Of live runs, those that some run has. Their time is not virtual. Metrics of fairness are left
    out: they count all rounds, but clients come and go (``results.live`` counts who was there).

    Args:
        world: Cells that compare.
        metrics: Those of a table.
    """
    if not world.is_live:
        return list(metrics)
    scores = world.scores
    return [
        replace(metric, meaning=metric.meaning.replace(*_CLOCKS))
        for metric in metrics
        if metric.group != "fairness" and any(scores.n_reached(n, metric) for n in scores.labels)
    ]


def compared_metrics(metrics: Sequence[Metric[Facts]]) -> list[Metric[Facts]]:
    """Return those of the metrics that are worth a difference: with training, what was learned.

    Args:
        metrics: Those of a table, with the highest target last.
    """
    learned = [metric for metric in metrics if metric.group == "learning"]
    last_target = [metric for metric in learned if metric.is_time_to][-2:]
    return [*(m for m in learned if not m.is_time_to), *last_target] or list(metrics)


def mean_table(scores: Scores, metrics: Iterable[Metric[Facts]]) -> ScoreTable:
    """Return means over seeds, with the best of each column marked.

    Args:
        scores: The numbers.
        metrics: The columns.
    """
    shown, columns = [], []
    for metric in metrics:
        means, ranking = scores.estimate(metric), scores.ranking(metric)
        scale = metric.scale(mean.mean for mean in means.values())
        shown.append((metric, scale))
        column = []
        for label, mean in means.items():
            mark = ranking.place(label)
            n_reached, n_seeds = scores.n_reached(label, metric), scores.n_seeds(label)
            reached = f"{n_reached} of {n_seeds}" if n_reached < n_seeds else ""
            entry = _entry(mean, scale) if n_reached else Entry("-")
            if n_reached and reached and metric.run_length:
                entry = Entry(f"≥ {entry.mean}")
            column.append(entry._replace(reached=reached, mark=mark if n_reached else ""))
        columns.append(column)
    return ScoreTable(shown, _rows(scores.labels, columns))


def difference_table(
    scores: Scores, metrics: Iterable[Metric[Facts]], baseline: str | None = None
) -> ScoreTable:
    """Return differences to a baseline, paired by seed; those that are more than chance are marked.

    Args:
        scores: The numbers.
        metrics: The columns.
        baseline: The label of a selector; default: the first one.
    """
    shown, columns = [], []
    for metric in metrics:
        steps = scores.difference(metric, baseline)
        means = scores.estimate(metric).values()
        scale = metric.scale(mean.mean for mean in means)
        shown.append((metric, scale))
        columns.append(
            [
                _entry(step.estimate, scale, "+")._replace(mark="clear" if step.is_clear else "")
                for step in steps.values()
            ]
        )
    first = scores.labels[0] if baseline is None else baseline
    return ScoreTable(shown, _rows([name for name in scores.labels if name != first], columns))


def explanations(scores: Scores, metrics: Sequence[Metric[Facts]]) -> list[str]:
    """Return what a reader of a table must know: what its metrics mean, and how far to trust it.

    Args:
        scores: The numbers.
        metrics: The columns.
    """
    lines = [f"{metric.short}: {metric.meaning} ({metric.direction})" for metric in metrics]
    if any(scores.is_censored(metric) for metric in metrics):
        lines.append(
            "n of m: n seeds reached it; the others count with the length of their run, so that "
            "the mean is at least so long. Differences count both runs up to the end of such a run."
        )
    return [*lines, scores.caution] if scores.caution else lines


def _entry(estimate: Estimate, scale: Scale, sign: str = "") -> Entry:
    if not estimate.n:
        return Entry("-")
    shown = estimate.over(scale.size)
    half = "" if estimate.n < 2 else format(shown.half_width, f",{scale.form}")
    return Entry(format(shown.mean, f"{sign},{scale.form}"), half)


def _rows(
    labels: Sequence[str], columns: Sequence[Sequence[Entry]]
) -> list[tuple[str, list[Entry]]]:
    return [(label, [column[row] for column in columns]) for row, label in enumerate(labels)]
