"""The bars of ``pace``'s second version: set in ``pace_bars.toml``, judged from kept results."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from turnout.core.types import FloatArray
from turnout.results.statistics import Interval, bootstrap_mean
from turnout.studies.arena_tasks import ORACLE, Arena, ArenaTask, Measures
from turnout.studies.recommendation import BASELINE
from turnout.studies.standings import Duel, Goal, Side, duels_of, share_won
from turnout.studies.trials import Trials


@lru_cache(maxsize=1)
def bars() -> Mapping[str, Any]:
    """Return the bars as plain data."""
    file = resources.files("turnout.studies").joinpath("pace_bars.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def ratio_to_before(arena: Arena, tasks: Sequence[ArenaTask]) -> dict[str, Interval]:
    """Return the time over that of the first version by task, and over all of them as "".

    Args:
        arena: The results.
        tasks: The tasks; those that lack one of the versions are left out.
    """
    both = {task.label: _gains(arena.trials(task), Measures.of(task)) for task in tasks}
    both = {task: gains for task, gains in both.items() if gains.size}
    found = {task: _ratio([gains]) for task, gains in both.items()}
    return found | ({"": _ratio(list(both.values()))} if both else {})


def bars_of(arena: Arena, tasks: Sequence[ArenaTask]) -> tuple[Goal, ...]:
    """Return every bar with what was measured; a bar of which nothing was measured is open.

    Args:
        arena: The results.
        tasks: Tasks; only those count on which nothing was tuned.
    """
    reporting = [task for task in tasks if task.reports]
    own = bars()
    name, before = own["selector"], own["before"]
    ratios = ratio_to_before(arena, reporting)
    duels = duels_of(arena, reporting, name)
    measured = len(ratios) - 1 if ratios else 0
    return (
        _time(
            f"at most {own['together']:g} of {before}'s time together",
            ratios.get(""),
            own["together"],
        )._replace(measured=_interval(ratios.get("")) + f", {measured} of {len(reporting)} tasks"),
        *(
            _time(f"at most {most:g} of it in {task}", ratios.get(task), most)
            for task, most in own["in_tasks"].items()
        ),
        _won(arena, reporting, name, before, own["won"]),
        _none(
            f"slower than {BASELINE} in no task", [d for d in duels if d.time == Side.WORSE], duels
        ),
        _none(
            f"final accuracy lower than {BASELINE}'s in no task",
            [duel for duel in duels if duel.accuracy == Side.WORSE],
            duels,
        ),
        _none(
            f"least share at least {own['least_share']:g} in every task",
            [duel for duel in duels if duel.least_share < own["least_share"]],
            duels,
        ),
    )


def _gains(trials: Trials | None, measures: Measures) -> FloatArray:
    """Return the logarithms of the first version's times over the second's, one per common seed.

    Both are cut off where the baseline's run ended, as in the arena's tables.
    """
    labels = (BASELINE, bars()["selector"], bars()["before"])
    if trials is None or not set(labels) <= trials.schemes.keys():
        return np.zeros(0)
    common = set.intersection(*(set(trials.schemes[label].seeds) for label in labels))
    same = trials.only(sorted(common))
    horizon = same.values(BASELINE, measures.length)
    ours, before = (np.minimum(same.values(label, measures.time), horizon) for label in labels[1:])
    return np.asarray(np.log(before) - np.log(ours))


def _ratio(gains: Sequence[FloatArray]) -> Interval:
    value, low, high = (math.exp(-number) for number in bootstrap_mean(gains))
    return Interval(value, high, low)


def _time(says: str, found: Interval | None, most: float) -> Goal:
    """Return a bar of time: it is open while its interval holds the bar."""
    is_reached = None
    if found is not None and found.high <= most:
        is_reached = True
    elif found is not None and found.low > most:
        is_reached = False
    return Goal(says, is_reached, _interval(found))


def _interval(found: Interval | None) -> str:
    return (
        "not run" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    )


def _won(arena: Arena, tasks: Sequence[ArenaTask], name: str, before: str, least: float) -> Goal:
    """Return whether enough of the oracle's lead is won where the first version won less."""
    ratios = {
        label: {duel.task.label: duel.ratio for duel in duels_of(arena, tasks, label)}
        for label in (name, before, ORACLE)
    }
    won_before = {
        task: share_won(ratios[before].get(task, math.nan), best)
        for task, best in ratios[ORACLE].items()
    }
    shares = {
        task: share_won(ratios[name].get(task, math.nan), best)
        for task, best in ratios[ORACLE].items()
        if won_before[task] < least
    }
    text = ", ".join(
        f"{task} {'not run' if math.isnan(share) else format(share, '.2f')}"
        for task, share in shares.items()
    )
    is_open = not ratios[ORACLE] or any(map(math.isnan, (*won_before.values(), *shares.values())))
    is_reached = None if is_open else all(share >= least for share in shares.values())
    met = f"{len(ratios[ORACLE])} tasks with the oracle; the first version wins less in: "
    says = f"at least {least:.0%} of the oracle's lead, where {before} wins less"
    return Goal(says, is_reached, met + (text or "none"))


def _none(says: str, wrong: Sequence[Duel], duels: Sequence[Duel]) -> Goal:
    """Return a bar that no task may break."""
    found = ", ".join(duel.task.label for duel in wrong) or "none"
    return Goal(says, not wrong if duels else None, f"{found} of {len(duels)} tasks")
