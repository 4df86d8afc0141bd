"""The arena's figures: time and accuracy against fairness, the profile, and each parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.arena.results import Arena
from turnout.arena.standing import BASELINE, FAIR, Duel, Overall, speeds_of
from turnout.arena.tasks import ArenaTask
from turnout.results.drawing import COLOURS, draw_files
from turnout.statistics.aggregates import Interval, performance_profile, profile_band

#: Panels beside each other.
N_COLUMNS = 3
#: The selector of ours, drawn larger than the others.
OURS = "pace"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Against(NamedTuple):
    """What is drawn against fairness.

    Attributes:
        in_task: Its value in a task.
        over_all: Its value over all tasks.
        even: The value of the baseline.
        shown: What an axis shows at least.
        text: What stands below it.
    """

    in_task: Callable[[Duel], float]
    over_all: Callable[[Overall], Interval]
    even: float
    shown: tuple[float, float]
    text: str


TIME = Against(
    lambda duel: duel.ratio,
    lambda own: own.ratio,
    1.0,
    (0.5, 1.2),
    f"time to the target / {BASELINE}'s (left is faster)",
)
ACCURACY = Against(
    lambda duel: duel.gain,
    lambda own: own.gain,
    0.0,
    (-0.03, 0.015),
    f"final accuracy - {BASELINE}'s (right is better)",
)


def draw_front(
    overall: Mapping[str, Overall], against: Against, paths: Sequence[Path]
) -> list[Path]:
    """Draw time or accuracy against fairness: the mean over tasks, and each task.

    Args:
        overall: By label.
        against: ``TIME`` or ``ACCURACY``.
        paths: The files; their endings are the formats.
    """
    styles = _styles(overall)
    names = list(dict.fromkeys(duel.task.label for own in overall.values() for duel in own.duels))
    n_rows = math.ceil(len(names) / N_COLUMNS)

    def fill(canvas: Any) -> None:
        canvas.set_size_inches(7.2, 3.4 + 1.7 * n_rows)
        canvas.set_layout_engine("constrained")
        above, below = canvas.subfigures(2, 1, height_ratios=[3.4, 1.7 * n_rows])
        _fill_means(above.subplots(), overall, against, styles)
        panels = below.subplots(n_rows, N_COLUMNS, squeeze=False, sharey=True).ravel()
        for panel, name in zip(panels, names, strict=False):
            for label, own in overall.items():
                for duel in own.duels:
                    if duel.task.label == name:
                        value = against.in_task(duel)
                        _point(panel, value, duel.least_share, styles[label], 24.0)
            _frame(panel, against, name)
        for panel in panels[len(names) :]:
            panel.set_visible(False)

    return draw_files(paths, fill)


def draw_means(overall: Mapping[str, Overall], paths: Sequence[Path]) -> list[Path]:
    """Draw time against fairness, the mean over tasks alone.

    Args:
        overall: By label.
        paths: The files; their endings are the formats.
    """

    def fill(canvas: Any) -> None:
        canvas.set_size_inches(7.2, 3.6)
        _fill_means(canvas.add_subplot(), overall, TIME, _styles(overall))

    return draw_files(paths, fill)


def draw_profile(
    arena: Arena, tasks: Sequence[ArenaTask], labels: Sequence[str], paths: Sequence[Path]
) -> list[Path]:
    """Draw the share of runs that are faster than the baseline by each factor.

    Ours has its 95 % interval; those of all would hide each other.

    Args:
        arena: The results.
        tasks: The tasks.
        labels: The selectors.
        paths: The files; their endings are the formats.
    """
    factors = np.exp(np.linspace(math.log(0.4), math.log(2.5), 101))

    def fill(canvas: Any) -> None:
        canvas.set_size_inches(7.2, 3.8)
        canvas.set_layout_engine("constrained")
        panel = canvas.add_subplot()
        lines = ("-", "--", ":")
        for i, (label, (colour, _)) in enumerate(_styles(labels).items()):
            speeds = list(speeds_of(arena, tasks, label).values())
            if label != BASELINE and speeds:
                share = performance_profile(speeds, np.log(factors))
                how = {"linewidth": 2.4 if label == OURS else 1.2}
                line = lines[i // len(COLOURS) % len(lines)]
                panel.plot(factors, share, color=colour, label=label, linestyle=line, **how)
                if label == OURS:
                    band = profile_band(speeds, np.log(factors))
                    panel.fill_between(factors, *band, color=colour, alpha=0.2, linewidth=0.0)
        panel.set_xscale("log")
        panel.set_xticks([0.5, 0.75, 1.0, 1.5, 2.0], ["0.5", "0.75", "1", "1.5", "2"])
        panel.minorticks_off()
        panel.axvline(1.0, color="#888888", linewidth=0.8)
        panel.set_xlabel(f"speed: time of {BASELINE} / own time to the target")
        panel.set_ylabel("share of runs that are faster")
        panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return draw_files(paths, fill)


class Varied(NamedTuple):
    """One parameter and what it does.

    Attributes:
        name: The parameter.
        values: Its values, ascending.
        default: Its default, one of the values.
        ratios: Time to the target over the baseline's, by task, one number per value.
        least_shares: Least share of fair, by task, one number per value.
    """

    name: str
    values: tuple[float, ...]
    default: float
    ratios: Mapping[str, Sequence[float]]
    least_shares: Mapping[str, Sequence[float]]


def draw_sweeps(sweeps: Sequence[Varied], paths: Sequence[Path]) -> list[Path]:
    """Draw what each parameter does to time and fairness, a column each.

    Args:
        sweeps: One per parameter.
        paths: The files; their endings are the formats.
    """

    def fill(canvas: Any) -> None:
        canvas.set_size_inches(1.8 * len(sweeps), 4.0)
        panels = canvas.subplots(2, len(sweeps), squeeze=False, sharey="row", sharex="col")
        for column, sweep in enumerate(sweeps):
            for row, by_task in enumerate((sweep.ratios, sweep.least_shares)):
                panel = panels[row][column]
                places = range(len(sweep.values))
                for i, (task, numbers) in enumerate(by_task.items()):
                    how = {"color": COLOURS[i], "marker": _MARKERS[i], "markersize": 4}
                    panel.plot(places, numbers, label=task, **how)
                at = sweep.values.index(sweep.default)
                panel.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
                panel.axhline((1.0, FAIR)[row], color="#888888", linewidth=0.8, linestyle="--")
                panel.set_xticks(places, [f"{value:g}" for value in sweep.values])
            panels[1][column].set_xlabel(sweep.name)
        panels[0][0].set_ylabel(f"time / {BASELINE}'s")
        panels[1][0].set_ylabel("least share of fair")
        handles, names = panels[0][0].get_legend_handles_labels()
        canvas.legend(handles, names, ncols=3, loc="outside upper center", frameon=False)

    return draw_files(paths, fill)


def _fill_means(
    panel: Any,
    overall: Mapping[str, Overall],
    against: Against,
    styles: Mapping[str, tuple[str, str]],
) -> None:
    """Draw a point for each selector, with its interval; names stand beside."""
    most = max(len(own.duels) for own in overall.values())
    for label, own in overall.items():
        (value, low, high), share, n_tasks = against.over_all(own), own.least_share, len(own.duels)
        name = label if n_tasks == most else f"{label} ({n_tasks} of {most} tasks)"
        if not math.isnan(low):
            how = {"color": styles[label][0], "linewidth": 1.0, "alpha": 0.6}
            panel.plot([low, high], [share, share], **how)
        _point(panel, value, share, styles[label], 90.0 if label == OURS else 40.0, name)
        if label == OURS:
            how = {"textcoords": "offset points", "ha": "center", "fontweight": "bold"}
            panel.annotate(label, (value, share), (0, 8), **how)
    panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _frame(panel, against, "Mean over tasks")
    panel.set_xlabel(against.text)
    panel.set_ylabel("least share of fair (up is fairer)")


def _styles(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    n = len(COLOURS)
    return {
        label: (COLOURS[i % n], _MARKERS[(i // n + i) % len(_MARKERS)])
        for i, label in enumerate(labels)
    }


def _point(
    panel: Any,
    value: float,
    share: float,
    style: tuple[str, str],
    size: float,
    name: str | None = None,
) -> None:
    colour, marker = style
    panel.scatter([value], [share], s=size, c=colour, marker=marker, label=name, zorder=3)


def _frame(panel: Any, against: Against, title: str) -> None:
    panel.axvline(against.even, color="#888888", linewidth=0.8)
    panel.axhline(FAIR, color="#888888", linewidth=0.8, linestyle="--")
    panel.set_title(title)
    panel.set_ylim(-0.1, 1.1)
    left, right = panel.get_xlim()
    panel.set_xlim(min(left, against.shown[0]), max(right, against.shown[1]))
