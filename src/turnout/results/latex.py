"""Tables for a paper: LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from turnout.results.scores import Scores
from turnout.results.tables import Entry, ScoreTable, difference_table, mean_table
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric

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
