"""Bars that were set before their runs, judged from kept results.

Those of ``pace``'s second version are in ``pace_bars.toml``, those of rounds that overlap in
``results/overlap/plan.toml``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from typing import Any

from turnout.core.types import FloatArray
from turnout.results.statistics import Interval, bootstrap_mean
from turnout.studies.arena_tasks import ORACLE, Arena, ArenaTask, Measures, tasks_in, tasks_named
from turnout.studies.claims import Claim, Finding, judge
from turnout.studies.recommendation import BASELINE
from turnout.studies.standings import (
    OURS,
    Duel,
    Goal,
    Side,
    duels_of,
    overall_of,
    share_won,
    sooner,
)


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
    names = bars()["selector"], bars()["before"]
    both = {
        task.label: gains
        for task in tasks
        if (trials := arena.trials(task)) is not None
        and (gains := sooner(trials, *names, Measures.of(task))).size
    }
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


def beside_synchronous(arena: Arena, synchronous: Arena) -> Arena:
    """Return the results of rounds that overlap, with synchronous rounds as the baseline.

    Args:
        arena: The results of the group "overlap".
        synchronous: The results of the same tasks without buffers.
    """
    both = Arena()
    for task in tasks_in("overlap"):
        own, plain = arena.trials(task), synchronous.trials(tasks_named([task.plain])[0])
        if own is not None and plain is not None and BASELINE in plain.schemes:
            schemes = {**own.schemes, BASELINE: plain.schemes[BASELINE]}
            both.file.parts[(task.label, 1)] = replace(own, schemes=schemes)
    return both


def overlap_bars_of(arena: Arena, synchronous: Arena, plan: Mapping[str, Any]) -> tuple[Goal, ...]:
    """Return every bar of rounds that overlap; all are open until everything planned was run.

    Args:
        arena: The results of the group "overlap".
        synchronous: The results of the same tasks without buffers.
        plan: The plan, as plain data.
    """
    tasks, least = tasks_in("overlap"), plan["bars"]
    beside = beside_synchronous(arena, synchronous)
    own, against = (duels_of(kept, tasks, OURS) for kept in (arena, beside))
    complete = [duel for duel in (*own, *against) if duel.n_seeds >= plan["seeds"]]
    is_complete = len(complete) == 2 * len(plan["tasks"])
    faster = [duel for duel in own if duel.time == Side.BETTER]
    lower = [duel for duel in against if Side.WORSE in (duel.accuracy, duel.worst_tenth)]
    unfair = [duel for duel in own if duel.least_share < least["least_share"]]
    n_lower, n_faster = least["lower_tasks"], least["sooner_than_buffered_random_tasks"]
    times = least["speedup_over_synchronous_random"]
    ratio = overall_of(beside, tasks)[OURS].ratio if against else None
    speed = _time(f"{times:g} times as fast as synchronous {BASELINE}", ratio, 1.0 / times)
    if ratio is not None:
        value, high, low = (1.0 / number for number in ratio)
        speed = speed._replace(measured=f"{value:.2f} times ({low:.2f} to {high:.2f})")
    goals = (
        speed,
        _none(
            f"sooner than buffered {BASELINE} in at least {n_faster} tasks", faster, own
        )._replace(is_reached=len(faster) >= n_faster),
        _none(
            f"final accuracy or worst tenth lower than synchronous {BASELINE}'s in "
            f"{n_lower or 'no'} task",
            lower,
            against,
        )._replace(is_reached=len(lower) <= n_lower),
        _none(f"least share at least {least['least_share']:g} in every task", unfair, own),
    )
    return goals if is_complete else tuple(goal._replace(is_reached=None) for goal in goals)


def fedbuff_findings(arena: Arena, plan: Mapping[str, Any]) -> list[tuple[Claim, Finding]]:
    """Return the claims of FedBuff's paper that its tasks can judge, with what was measured.

    Args:
        arena: The results of the group "fedbuff": ``random`` under each of the schedules.
        plan: The plan, as plain data: the claims and the number of seeds.
    """
    tasks = [task for task in tasks_in("fedbuff") if BASELINE in arena.labels([task])]
    kept = {task.label: arena.file.parts[(task.label, 1)] for task in tasks}
    schemes = {label: trials.schemes[BASELINE] for label, trials in kept.items()}
    found = []
    for entry in plan["claims"] if tasks else ():
        claim = Claim(1, entry["says"], "order", Measures.of(tasks[0]).time, entry["order"])
        if all(
            label in schemes and len(schemes[label].seeds) >= plan["seeds"]
            for label in claim.labels(())
        ):
            found.append((claim, judge(claim, replace(kept[tasks[0].label], schemes=schemes))))
    return found


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
    found = ", ".join(duel.task.plain or duel.task.label for duel in wrong) or "none"
    return Goal(says, not wrong if duels else None, f"{found} of {len(duels)} tasks")
