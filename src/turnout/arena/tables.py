"""The arena's tables and figure, for the terminal and for its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnout.arena.results import Arena, Measures
from turnout.arena.standing import BASELINE, FAIR, Duel, Overall, Side, speeds_of
from turnout.arena.tasks import ArenaTask
from turnout.papers.tables import TextTable
from turnout.results.drawing import COLOURS, draw_files
from turnout.statistics import estimate
from turnout.statistics.aggregates import Interval, performance_profile

#: Panels beside each other.
N_COLUMNS = 3

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


def draw_front(overall: Mapping[str, Overall], paths: Sequence[Path]) -> list[Path]:
    """Draw time against fairness: the mean over tasks, and each task.

    Args:
        overall: By label.
        paths: The files; their endings are the formats.
    """
    styles = _styles(overall)
    names = list(dict.fromkeys(duel.task.label for own in overall.values() for duel in own.duels))
    n_rows = math.ceil(len(names) / N_COLUMNS)

    def fill(canvas: Any) -> None:
        canvas.set_size_inches(7.2, 3.2 + 1.7 * n_rows)
        canvas.set_layout_engine("constrained")
        above, below = canvas.subfigures(2, 1, height_ratios=[3.2, 1.7 * n_rows])
        panel = above.subplots()
        for label, own in overall.items():
            _point(panel, own.ratio.value, own.least_share, styles[label], label)
        _frame(panel, "Mean over tasks")
        panel.set_xlabel(f"time to the target / {BASELINE}'s (left is faster)")
        panel.set_ylabel("least share of fair (up is fairer)")
        panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        panels = below.subplots(n_rows, N_COLUMNS, squeeze=False, sharey=True).ravel()
        for panel, name in zip(panels, names, strict=False):
            for label, own in overall.items():
                for duel in own.duels:
                    if duel.task.label == name:
                        _point(panel, duel.ratio, duel.least_share, styles[label])
            _frame(panel, name)
        for panel in panels[len(names) :]:
            panel.set_visible(False)

    return draw_files(paths, fill)


def draw_profile(
    arena: Arena, tasks: Sequence[ArenaTask], labels: Sequence[str], paths: Sequence[Path]
) -> list[Path]:
    """Draw the share of runs that are faster than the baseline by each factor.

    Args:
        arena: The results.
        tasks: The tasks.
        labels: The selectors.
        paths: The files; their endings are the formats.
    """
    factors = np.exp(np.linspace(math.log(0.4), math.log(2.5), 101))

    def fill(canvas: Any) -> None:
        canvas.set_size_inches(7.2, 3.6)
        canvas.set_layout_engine("constrained")
        panel = canvas.add_subplot()
        for label, (colour, _) in _styles(labels).items():
            speeds = list(speeds_of(arena, tasks, label).values())
            if label != BASELINE and speeds:
                share = performance_profile(speeds, np.log(factors))
                width = 2.4 if label == "pace" else 1.2
                panel.plot(factors, share, color=colour, label=label, linewidth=width)
        panel.set_xscale("log")
        panel.set_xticks([0.5, 0.75, 1.0, 1.5, 2.0], ["0.5", "0.75", "1", "1.5", "2"])
        panel.minorticks_off()
        panel.axvline(1.0, color="#888888", linewidth=0.8)
        panel.set_xlabel(f"speed: time of {BASELINE} / own time to the target")
        panel.set_ylabel("share of runs that are faster")
        panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return draw_files(paths, fill)


def _styles(labels: Any) -> dict[str, tuple[str, str]]:
    markers = ("o", "s", "^", "D", "v", "P", "X")
    n = len(COLOURS)
    return {
        label: (COLOURS[i % n], markers[(i // n + i) % len(markers)])
        for i, label in enumerate(labels)
    }


def _point(
    panel: Any, time: float, share: float, style: tuple[str, str], label: str | None = None
) -> None:
    colour, marker = style
    size = 55.0 if label else 24.0
    panel.scatter([time], [share], s=size, c=colour, marker=marker, label=label, zorder=3)


def _frame(panel: Any, title: str) -> None:
    panel.axvline(1.0, color="#888888", linewidth=0.8)
    panel.axhline(FAIR, color="#888888", linewidth=0.8, linestyle="--")
    panel.set_title(title)
    panel.set_ylim(-0.05, 1.1)
    left, right = panel.get_xlim()
    panel.set_xlim(min(left, 0.5), max(right, 1.5))


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
