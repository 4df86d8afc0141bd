"""The arena's figures: time and accuracy against fairness, the profile, and each parameter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from turnout.report.figure import Axis, Chart, Guide, Line, Mark, Panel
from turnout.report.to_matplotlib import write_figure
from turnout.results.statistics import Interval, performance_profile, profile_band
from turnout.studies.arena_tasks import Arena, ArenaTask
from turnout.studies.recommendation import BASELINE
from turnout.studies.standings import FAIR, OURS, Duel, Overall, speeds_of

_WIDTH = 7.2
_N_COLUMNS = 3
#: Selectors beside ours that have a name in the profile.
_N_NAMED = 4
_SPEEDS = (0.5, 0.75, 1.0, 1.5, 2.0)


def _colours(labels: Iterable[str]) -> dict[str, int]:
    """Return the number of each label's colour and mark: ours and the baseline are always alike."""
    ours = [OURS, BASELINE]
    return {label: place for place, label in enumerate([*ours, *sorted(set(labels) - set(ours))])}


class Against(NamedTuple):
    """What is drawn against fairness.

    Attributes:
        in_task: Its value in a task.
        over_all: Its value over all tasks.
        even: The value of the baseline.
        shown: The least range of its axis.
        text: The label of its axis.
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
    panels, colours = [_means(overall, against)], _colours(overall)
    for name in dict.fromkeys(duel.task.label for own in overall.values() for duel in own.duels):
        points = [
            _point(label, colours[label], against.in_task(duel), duel.least_share)
            for label, own in overall.items()
            for duel in own.duels
            if duel.task.label == name
        ]
        small = [dataclasses.replace(point, size=point.size * 0.7) for point in points]
        panels.append(_framed(small, against, name, height=1.7))
    figure = Chart("front", "", "", panels, _N_COLUMNS, _WIDTH, shares_y="row", legend="none")
    return write_figure(figure, paths)


def draw_means(overall: Mapping[str, Overall], paths: Sequence[Path]) -> list[Path]:
    """Draw time against fairness, the mean over tasks alone.

    Args:
        overall: By label.
        paths: The files; their endings are the formats.
    """
    panels = [_means(overall, TIME)]
    return write_figure(Chart("means", "", "", panels, width=_WIDTH, legend="none"), paths)


def draw_profile(
    arena: Arena, tasks: Sequence[ArenaTask], labels: Sequence[str], paths: Sequence[Path]
) -> list[Path]:
    """Draw the share of runs that are faster than the baseline by each factor.

    Ours has its 95 % interval, and the first ones have names. The others are faint lines.

    Args:
        arena: The results.
        tasks: The tasks.
        labels: The selectors, those first that are to have names.
        paths: The files; their endings are the formats.
    """
    factors = np.exp(np.linspace(math.log(0.4), math.log(2.5), 101))
    marks: list[Mark] = []
    others = [label for label in labels if label not in (OURS, BASELINE)]
    named = {OURS, *others[:_N_NAMED]}
    colours = _colours(labels)
    for label in labels:
        speeds = list(speeds_of(arena, tasks, label).values())
        if label == BASELINE or not speeds:
            continue
        is_ours = label == OURS
        share = performance_profile(speeds, np.log(factors))
        line = Line(label, colours[label], factors, share, is_bold=is_ours)
        if label not in named:
            line = dataclasses.replace(line, name="", opacity=0.25)
        if is_ours:
            low, high = profile_band(speeds, np.log(factors))
            line = dataclasses.replace(line, low=low, high=high)
        marks.append(line)
    ticks = {speed: f"{speed:g}" for speed in _SPEEDS}
    x = Axis(f"speed: time of {BASELINE} / own time to the target", is_log=True, ticks=ticks)
    y = Axis("share of runs that are faster")
    panel = Panel([*marks, Guide("x", 1.0)], x, y, height=3.8)
    return write_figure(Chart("profile", "", "", [panel], width=_WIDTH, legend="right"), paths)


class Varied(NamedTuple):
    """One parameter and its effects.

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
    """Draw the effect of each parameter on time and fairness, a column each.

    Args:
        sweeps: One per parameter.
        paths: The files; their endings are the formats.
    """
    above = [_varied(sweep, sweep.ratios, f"time / {BASELINE}'s", 1.0) for sweep in sweeps]
    below = [_varied(sweep, sweep.least_shares, "least share of fair", FAIR) for sweep in sweeps]
    panels, n = [*above, *below], len(sweeps)
    return write_figure(Chart("sweeps", "", "", panels, n, 1.8 * n, shares_y="row"), paths)


def _varied(
    sweep: Varied, by_task: Mapping[str, Sequence[float]], label: str, even: float
) -> Panel:
    places = np.arange(len(sweep.values))
    lines = [
        Line(task, number, places, np.array(numbers), size=4.0)
        for number, (task, numbers) in enumerate(by_task.items())
    ]
    rules = [Guide("x", sweep.values.index(sweep.default), "dot"), Guide("y", even, "dash")]
    ticks = {float(place): f"{value:g}" for place, value in enumerate(sweep.values)}
    return Panel([*lines, *rules], Axis(sweep.name, ticks=ticks), Axis(label), height=1.9)


def _means(overall: Mapping[str, Overall], against: Against) -> Panel:
    """Return a point for each selector, with its interval and its name."""
    most = max(len(own.duels) for own in overall.values())
    points, colours = [], _colours(overall)
    for label, own in overall.items():
        value, low, high = against.over_all(own)
        name = label if len(own.duels) == most else f"{label} ({len(own.duels)} of {most})"
        ends = None if math.isnan(low) else np.array([[low], [high]])
        point = _point(label, colours[label], value, own.least_share)
        points.append(dataclasses.replace(point, labels=[name], x_range=ends))
    panel = _framed(points, against, "Mean over tasks", height=3.9)
    return dataclasses.replace(
        panel,
        x=dataclasses.replace(panel.x, label=against.text),
        y=dataclasses.replace(panel.y, label="least share of fair (up is fairer)"),
        share=0.0,
    )


def _point(label: str, number: int, value: float, share: float) -> Line:
    size = 9.0 if label == OURS else 6.0
    return Line("", number, np.array([value]), np.array([share]), role="points", size=size)


def _framed(points: Sequence[Line], against: Against, title: str, height: float) -> Panel:
    values = [value for point in points for value in point.at.tolist()]
    values += [end for p in points if p.x_range is not None for end in p.x_range.ravel().tolist()]
    low, high = min(*values, against.shown[0]), max(*values, against.shown[1])
    room = 0.05 * (high - low)
    x, y = Axis(low=low - room, high=high + room), Axis(low=-0.1, high=1.1)
    marks: list[Mark] = [Guide("x", against.even), Guide("y", FAIR, "dash"), *points]
    return Panel(marks, x, y, title, height)
