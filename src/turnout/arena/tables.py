"""The arena's tables, for the terminal and for its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.arena.goals import Goal
from turnout.arena.results import Arena, Measures
from turnout.arena.standing import BASELINE, Duel, Overall, Side
from turnout.arena.tasks import ArenaTask
from turnout.papers.tables import TextTable
from turnout.statistics import estimate
from turnout.statistics.aggregates import Interval

_MARKS = {Side.BETTER: "▲", Side.WORSE: "▼", Side.LEVEL: ""}


def overall_table(overall: Mapping[str, Overall]) -> TextTable:
    """Return one row per selector: time, chance to be faster, rank, fairness, record.

    Args:
        overall: By label.
    """
    headings = (
        "selector",
        "tasks",
        f"time / {BASELINE}",
        "chance to be faster",
        "mean rank",
        "faster / slower",
        "least share",
        "unfair in",
    )
    rows = []
    for label, own in overall.items():
        sides = [duel.time for duel in own.duels]
        rows.append(
            (
                label,
                str(len(own.duels)),
                _interval(own.ratio),
                _interval(own.improvement),
                _interval(own.rank, 1),
                f"{sides.count(Side.BETTER)} / {sides.count(Side.WORSE)}",
                f"{own.least_share:.2f}",
                str(sum(not duel.is_fair for duel in own.duels)),
            )
        )
    return TextTable("Over all tasks", headings, tuple(rows))


def task_table(arena: Arena, task: ArenaTask) -> TextTable:
    """Return one row per selector in one task.

    Args:
        arena: The results.
        task: The task.
    """
    trials = arena.trials(task)
    measures = Measures.of(task)
    headings = (
        "selector",
        "seeds",
        f"time to {task.target:.0%}, s",
        "rounds",
        "final accuracy",
        "worst tenth",
        "least share",
        "wasted",
    )
    rows = []
    for label in () if trials is None else trials.schemes:
        assert trials is not None
        values = {name: trials.values(label, name) for name in measures}
        rows.append(
            (
                label,
                str(values[measures.time].size),
                _time(values[measures.time], 0),
                _time(values[measures.rounds], 0),
                _mean(values[measures.accuracy], 3),
                _mean(values[measures.worst_tenth], 3),
                _mean(values[measures.least_share], 2),
                _mean(values[measures.wasted], 2),
            )
        )
    return TextTable(task.title, headings, tuple(rows))


def duels_table(label: str, duels: Sequence[Duel]) -> TextTable:
    """Return one row per task: a selector against the baseline.

    Args:
        label: The selector.
        duels: Its duels.
    """
    headings = (
        "task",
        "seeds",
        f"time / {BASELINE}",
        "never",
        "accuracy",
        "worst tenth",
        "least share",
    )
    rows = tuple(
        (
            duel.task.label,
            str(duel.n_seeds),
            f"{duel.ratio:.2f} {_MARKS[duel.time]}".strip(),
            str(duel.n_censored),
            f"{duel.accuracy} {_MARKS[duel.accuracy]}".strip(),
            f"{duel.worst_tenth} {_MARKS[duel.worst_tenth]}".strip(),
            f"{duel.least_share:.2f}" + ("" if duel.is_fair else " unfair"),
        )
        for duel in duels
    )
    return TextTable(f"{label} against {BASELINE}", headings, rows)


def goals_table(goals: Sequence[Goal]) -> TextTable:
    """Return one row per part of the bar.

    Args:
        goals: The parts.
    """
    words = {True: "yes", False: "**no**", None: "open"}
    rows = tuple((goal.says, words[goal.is_reached], goal.measured) for goal in goals)
    return TextTable("The bar", ("it must show", "reached", "measured"), rows)


def _interval(interval: Interval, decimals: int = 2) -> str:
    if math.isnan(interval.value):
        return "-"
    value = f"{interval.value:.{decimals}f}"
    if math.isnan(interval.low):
        return value
    return f"{value} ({interval.low:.{decimals}f} to {interval.high:.{decimals}f})"


def _mean(values: Any, decimals: int) -> str:
    own = estimate(values)
    half = "" if math.isnan(own.half_width) else f" ± {own.half_width:.{decimals}f}"
    return f"{own.mean:.{decimals}f}{half}"


def _time(values: Any, decimals: int) -> str:
    """Return the median: it stays known while fewer than half of the runs never got there."""
    middle = float(np.median(values))
    text = "never" if math.isinf(middle) else f"{middle:,.{decimals}f}"
    n_never = int(np.isinf(values).sum())
    return f"{text} ({n_never} never)" if n_never and not math.isinf(middle) else text
