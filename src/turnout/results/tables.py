"""Tables of scores before they are printed: the text of each entry, and its mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from turnout.results.catalogue import at_targets, metric_named, shown_in
from turnout.results.groups import WorldGroup
from turnout.results.metric import Facts, Metric, Scale
from turnout.results.reader import Cell
from turnout.results.scores import Place, Scores
from turnout.results.statistics import Estimate

# --------------------------------------------------------------------------------------------------
# Which accuracies a table of training asks for.
# --------------------------------------------------------------------------------------------------

#: Accuracies to look for in runs that name none; the highest that anyone reached are shown.
_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_MOST_TARGETS = 4
_N_LEVELS = 3


def targets_of(cells: Sequence[Cell]) -> list[float]:
    """Return the accuracies that runs name as targets, else round numbers that they reached.

    Args:
        cells: Cells that compare.
    """
    named = sorted({target for cell in cells for target in cell.settings.targets})
    if named:
        return named[-_MOST_TARGETS:]
    measured = (cell.series.get("accuracy", np.zeros(0)) for cell in cells)
    best = np.nanmax(np.concatenate([[-math.inf], *measured]))
    return [level for level in _LEVELS if level <= best][-_N_LEVELS:]


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


def usual_columns(is_trained: bool, targets: Sequence[float]) -> list[Metric[Facts]]:
    """Return the metrics that a table shows by default, what decides first.

    With training: the time to the highest target, how fairly the clients were served, and what was
    learned.

    Args:
        is_trained: Whether the runs train a model.
        targets: The accuracies to reach, ascending.
    """
    if not is_trained:
        return shown_in("compare")
    shown, times = shown_in("compare --train"), at_targets(targets)
    fairness = [metric for metric in shown if metric.group == "fairness"]
    rest = [metric for metric in shown if metric.group != "fairness"]
    return [*times[-1:], *fairness, *rest, *times[:-1]]


def usual_metrics(world: WorldGroup) -> list[Metric[Facts]]:
    """Return the metrics that a table of a world shows by default.

    Args:
        world: Cells that compare.
    """
    targets = targets_of(world.cells)
    is_trained = bool(world.settings.training) or bool(targets)
    return suitable(world, usual_columns(is_trained, targets))


def suitable(world: WorldGroup, metrics: Sequence[Metric[Facts]]) -> list[Metric[Facts]]:
    """Return the metrics that say something about a world.

    Of live runs, those that some run has. Their time is not virtual. Metrics of fairness are left
    out: they count all rounds, but clients come and go (``report.live`` counts per client).

    Args:
        world: Cells that compare.
        metrics: Those of a table.
    """
    scores = world.scores
    if not world.is_live:
        has_energy = any(scores.n_reached(n, metric_named("energy_j")) for n in scores.labels)
        return [metric for metric in metrics if metric.needs != "energy" or has_energy]
    return [
        replace(metric, meaning=metric.meaning.replace(*_CLOCKS))
        for metric in metrics
        if metric.group != "fairness" and any(scores.n_reached(n, metric) for n in scores.labels)
    ]


def compared_metrics(metrics: Sequence[Metric[Facts]]) -> list[Metric[Facts]]:
    """Return those of the metrics that are worth a difference: with training, what was learned.

    Args:
        metrics: Those of a table. Of times to targets, the first has the highest target.
    """
    learned = [metric for metric in metrics if metric.group == "learning"]
    goals = [metric.goal for metric in learned if metric.is_time_to][:1]
    return [m for m in learned if not m.is_time_to or m.goal in goals] or list(metrics)


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
        scale = metric.scale(mean.mean for mean in scores.estimate(metric).values())
        shown.append((metric, scale))
        entries = ((_entry(step.estimate, scale, "+"), step.is_clear) for step in steps.values())
        columns.append([entry._replace(mark="clear" if clear else "") for entry, clear in entries])
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
            "n of m: n seeds reached it; the others count with the length of their run, so the "
            "mean is a lower limit. Differences count both runs up to the end of such a run."
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


# --------------------------------------------------------------------------------------------------
# Tables for a paper: LaTeX with booktabs.
# --------------------------------------------------------------------------------------------------

_ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "neither": ""}
_SIGNS = {"tied": r"$^{\dagger}$", "clear": r"$^{*}$"}
_BOLD = ("best", "leading")
_TEST = r"paired $t$-test at 5\,\%, Holm's correction"
#: Characters of a line, between two columns, and of an arrow, in small letters on a page of 345 pt.
_LINE, _GAP, _ARROW = 76, 2, 2
#: What the marks mean, as sentences of a caption.
_MEANING = {
    "best": "Bold: best mean.",
    "leading": "Bold: best mean.",
    "tied": rf"$\dagger$: not different from the best ({_TEST}).",
    "clear": f"$*$: more than chance ({_TEST}).",
}
_CENSORED = (
    r"($n$ of $m$): $n$ of $m$ seeds reached the accuracy; the others count with the length of "
    "their run."
)
_CENSORED_DIFFERENCE = "Times are counted up to the end of a run that did not reach the accuracy."
#: Characters that LaTeX would read as commands, and those that its usual fonts lack.
_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "±": r"$\pm$",
        "≥": r"$\geq$",
        "<": r"$<$",
        ">": r"$>$",
    }
)


def latex_table(
    scores: Scores,
    metrics: Sequence[Metric[Facts]],
    title: str,
    label: str = "results",
    baseline: str | None = None,
) -> str:
    r"""Return a table in LaTeX; it needs ``\usepackage{booktabs}``.

    The best mean of a column is bold. A dagger marks what is not different from it. Columns that do
    not fit a line of an article stand in a block below.

    Args:
        scores: The numbers.
        metrics: The columns.
        title: What the caption begins with.
        label: For ``\ref{tab:...}``.
        baseline: If it is given, the table has the differences to this selector, paired by seed,
            and a star marks those that are more than chance.
    """
    if baseline is None:
        table, shown, censored = mean_table(scores, metrics), title, _CENSORED
    else:
        table = difference_table(scores, metrics, baseline)
        shown = f"{title}. Difference to {baseline}, paired by seed"
        censored = _CENSORED_DIFFERENCE
    marks = {entry.mark for _, entries in table.rows for entry in entries}
    meanings = dict.fromkeys(_MEANING[mark] for mark in _MEANING if mark in marks)
    sentences = [*_seeds(scores, shown), *meanings]
    if any(scores.is_censored(metric) for metric in metrics):
        sentences.append(censored)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\small\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{' '.join(sentences)}}}",
            rf"\label{{tab:{label}}}",
            "\n\\par\\medskip\n".join(_block(table, columns) for columns in _blocks(table)),
            r"\end{table}",
            "",
        ]
    )


def _blocks(table: ScoreTable) -> list[list[int]]:
    """Return the columns of each block, so that every block fits a line."""
    names = max(len(name) for name, _ in table.rows)
    blocks: list[list[int]] = []
    room = 0
    for column, heading in enumerate(table.headings):
        texts = (entries[column].text for _, entries in table.rows)
        width = max(len(heading) + _ARROW, *map(len, texts)) + _GAP
        if not blocks or width > room:
            blocks.append([])
            room = _LINE - names
        blocks[-1].append(column)
        room -= width
    return blocks


def _block(table: ScoreTable, columns: Sequence[int]) -> str:
    """Return some columns of a table."""
    arrows = [_ARROWS[metric.better] for metric, _ in table.columns]
    heads = [_escaped(table.headings[column]) + arrows[column] for column in columns]
    rows = [
        " & ".join([_escaped(name), *(_cell(entries[column]) for column in columns)]) + r" \\"
        for name, entries in table.rows
    ]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            " & ".join(["Selector", *heads]) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _cell(entry: Entry) -> str:
    if entry.mean == "-":
        number = "--"
    else:
        formula = entry.mean.replace("≥ ", r"\geq ")
        formula += rf" \pm {entry.margin}" if entry.margin else ""
        number = rf"$\mathbf{{{formula}}}$" if entry.mark in _BOLD else f"${formula}$"
    number += _SIGNS.get(entry.mark, "")
    return f"{number} ({entry.reached})" if entry.reached else number


def _seeds(scores: Scores, title: str) -> list[str]:
    counts = sorted({scores.n_seeds(label) for label in scores.labels})
    n_seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    interval = r" $\pm$ half the 95\,\% confidence interval" if counts[-1] > 1 else ""
    seeds = "seed" if counts == [1] else "seeds"
    return [f"{_escaped(title)}.", f"Mean over {n_seeds} {seeds}{interval}."]


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
