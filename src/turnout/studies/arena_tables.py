"""The arena's tables, for the terminal and for its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from turnout.core.types import FloatArray
from turnout.results.statistics import Interval
from turnout.studies.arena_tasks import ORACLE, Arena, ArenaTask, Measures
from turnout.studies.paper_tables import TextTable
from turnout.studies.recommendation import BASELINE
from turnout.studies.standings import (
    Duel,
    Goal,
    Overall,
    Side,
    duels_of,
    goals_of,
    overall_of,
    sentence_of,
    share_won,
)

_MARKS = {Side.BETTER: "▲", Side.WORSE: "▼", Side.LEVEL: ""}


def overall_table(overall: Mapping[str, Overall]) -> TextTable:
    """Return one row per selector: time, chance to be faster, rank, fairness, record.

    Args:
        overall: By label.
    """
    rows = []
    for label, own in overall.items():
        sides = [duel.time for duel in own.duels]
        row = {
            "selector": label,
            "tasks": str(len(own.duels)),
            f"time / {BASELINE}": _interval(own.ratio),
            "chance to be faster": _interval(own.improvement),
            "mean rank": _interval(own.rank, ".1f"),
            "faster / slower": f"{sides.count(Side.BETTER)} / {sides.count(Side.WORSE)}",
            "never": f"{own.n_never} of {own.n_runs}",
            "won": _known(own.won),
            "least share": f"{own.least_share:.2f}",
            "unfair in": str(own.n_unfair),
        }
        rows.append(row)
    return TextTable.of("Over all tasks", rows)


def task_table(arena: Arena, task: ArenaTask) -> TextTable:
    """Return one row per selector in one task; no rows if the task was not run.

    Args:
        arena: The results.
        task: The task.
    """
    trials, names = arena.trials(task), Measures.of(task)
    duels = {
        label: duel
        for label in (trials.labels if trials else ())
        for duel in duels_of(arena, [task], label)
    }
    best = duels[ORACLE].ratio if ORACLE in duels else math.nan
    rows = (
        []
        if trials is None
        else [
            {
                "selector": label,
                "seeds": str(trials.n_seeds(label)),
                f"time to {task.target:.0%}, s": _time(trials.values(label, names.time)),
                "rounds": _time(trials.values(label, names.rounds)),
                "won": _known(share_won(duels[label].ratio, best) if label in duels else math.nan),
                "final accuracy": trials.estimate(label, names.accuracy).written(".3f"),
                "at equal time": _known(
                    duels[label].gain_at_time if label in duels else math.nan, "+.3f"
                ),
                "worst tenth": trials.estimate(label, names.worst_tenth).written(".3f"),
                "least share": trials.estimate(label, names.least_share).written(".2f"),
                "least answered": trials.estimate(label, names.least_answered).written(".2f")
                if trials.has(label, names.least_answered)
                else "-",
                "wasted": trials.estimate(label, names.wasted).written(".2f"),
            }
            for label in trials.labels
        ]
    )
    return TextTable.of(task.title, rows)


def duels_table(label: str, duels: Sequence[Duel]) -> TextTable:
    """Return one row per task: a selector against the baseline.

    Args:
        label: The selector.
        duels: Its duels.
    """
    rows = (
        {
            "task": duel.task.label,
            "seeds": str(duel.n_seeds),
            f"time / {BASELINE}": f"{duel.ratio:.2f} {_MARKS[duel.time]}".strip(),
            "never": str(duel.n_censored),
            "accuracy": f"{duel.accuracy} {_MARKS[duel.accuracy]}".strip(),
            "at equal time": _known(duel.gain_at_time, "+.3f"),
            "worst tenth": f"{duel.worst_tenth} {_MARKS[duel.worst_tenth]}".strip(),
            "least share": f"{duel.least_share:.2f}" + ("" if duel.is_fair else " unfair"),
            "least answered": _known(duel.least_answered),
        }
        for duel in duels
    )
    return TextTable.of(f"{label} against {BASELINE}", rows)


def goals_table(goals: Sequence[Goal]) -> TextTable:
    """Return one row per goal.

    Args:
        goals: The goals.
    """
    words = {True: "yes", False: "**no**", None: "open"}
    rows = tuple((goal.says, words[goal.is_reached], goal.measured) for goal in goals)
    return TextTable("The bar", ("it must show", "reached", "measured"), rows)


def _interval(interval: Interval, form: str = ".2f") -> str:
    if math.isnan(interval.value):
        return "-"
    value, low, high = (format(number, form) for number in interval)
    return value if math.isnan(interval.low) else f"{value} ({low} to {high})"


def _known(value: float, form: str = ".2f") -> str:
    return "-" if math.isnan(value) else format(value, form)


def _time(values: FloatArray) -> str:
    """Return the median, which is known while fewer than half of the runs never finished."""
    middle, n_never = float(np.median(values)), int(np.isinf(values).sum())
    if math.isinf(middle):
        return "never"
    return f"{middle:,.0f}" + (f" ({n_never} never)" if n_never else "")


def page_of(arena: Arena, tasks: Sequence[ArenaTask], label: str, figure: str) -> str:
    """Return the page as Markdown.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector; it must have met the baseline.
        figure: The file with time against fairness, beside the page.
    """
    overall = overall_of(arena, tasks)
    duels = overall[label].duels
    lines = [f"# {label} in the arena", "", sentence_of(duels), ""]
    lines += ["▲ and ▼: better and worse by more than chance, corrected for the tasks (Holm).", ""]
    for title, table in (
        ("Task by task", duels_table(label, duels)),
        ("What a selector should show", goals_table(goals_of(arena, tasks, label))),
        ("Among all selectors", overall_table(overall)),
    ):
        lines += [f"## {title}", "", *table.markdown(), ""]
    return "\n".join([*lines, f"![Time against fairness]({figure})", ""])
