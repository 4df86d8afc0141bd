"""What a selector must show to be better than the draw, and whether it does.

The bar is against the baseline in every task, and against all other selectors where it says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from turnout.arena.results import Arena, Measures
from turnout.arena.standing import BASELINE, FAIR, Overall, Side, overall_of
from turnout.arena.tasks import ArenaTask
from turnout.papers.results import Trials
from turnout.statistics.evidence import LEVEL, above, later

#: Of nine tasks: in how many it must be faster, and in how many by ``MUCH``.
N_FASTER, N_MUCH_FASTER = 7, 5
#: Time over the baseline's that counts as much faster.
MUCH = 0.8


class Goal(NamedTuple):
    """A part of the bar.

    Attributes:
        says: What must be shown.
        is_reached: Whether it is; None if chance may decide it.
        measured: What was found.
    """

    says: str
    is_reached: bool | None
    measured: str


def goals_of(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> tuple[Goal, ...]:
    """Return every part of the bar for a selector.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector; it must have met the baseline.
    """
    overall = overall_of(arena, tasks)
    duels = overall[label].duels
    lower = [duel.task.label for duel in duels if duel.accuracy == Side.WORSE]
    worse = [duel.task.label for duel in duels if duel.worst_tenth == Side.WORSE]
    least = min(duels, key=lambda duel: duel.least_share)
    faster = [duel for duel in duels if duel.time == Side.BETTER]
    much = [duel for duel in faster if duel.ratio <= MUCH]
    others = ", ".join(f"{d.task.label} {d.ratio:.2f}" for d in duels if d not in faster)
    return (
        Goal(
            f"final accuracy never lower than {BASELINE}'s by more than chance",
            not lower,
            f"lower in: {', '.join(lower) or 'none'}",
        ),
        Goal(
            f"worst tenth never lower than {BASELINE}'s by more than chance",
            not worse,
            f"lower in: {', '.join(worse) or 'none'}",
        ),
        Goal(
            f"least share at least {FAIR:g} of fair in every task",
            least.least_share >= FAIR,
            f"{least.least_share:.2f} at the least ({least.task.label})",
        ),
        Goal(
            f"faster by more than chance in {N_FASTER} of {len(tasks)} tasks",
            len(faster) >= N_FASTER,
            f"in {len(faster)} of {len(duels)}; time over {BASELINE}'s in the others: "
            f"{others or 'none'}",
        ),
        Goal(
            f"by {1 - MUCH:.0%} or more in {N_MUCH_FASTER}",
            len(much) >= N_MUCH_FASTER,
            f"in {len(much)}: {', '.join(f'{d.task.label} {d.ratio:.2f}' for d in much)}",
        ),
        _best_rank(overall, label),
        _not_dominated(arena, tasks, overall, label),
    )


def _best_rank(overall: Mapping[str, Overall], label: str) -> Goal:
    """Return whether no selector that is as fair has a better mean rank in time."""
    unfair = {other: sum(not duel.is_fair for duel in own.duels) for other, own in overall.items()}
    ranks = {
        other: own.rank.value
        for other, own in overall.items()
        if unfair[other] <= unfair[label] and not math.isnan(own.rank.value)
    }
    found = ", ".join(f"{other} {rank:.1f}" for other, rank in sorted(ranks.items(), key=_second))
    is_best = label in ranks and ranks[label] == min(ranks.values())
    return Goal("best mean rank in time of those that are unfair in no more tasks", is_best, found)


def _second(item: tuple[str, float]) -> float:
    return item[1]


def _not_dominated(
    arena: Arena, tasks: Sequence[ArenaTask], overall: Mapping[str, Overall], label: str
) -> Goal:
    """Return whether no selector is both faster and fairer in a task, by means and beyond chance.

    A selector that dominates beyond chance loses the goal; one that does so by its means alone
    leaves it open.
    """
    by_chance: list[str] = []
    beyond: list[str] = []
    own = {duel.task.label: duel for duel in overall[label].duels}
    for other, theirs in overall.items():
        for duel in theirs.duels:
            ours = own.get(duel.task.label)
            if other == label or ours is None:
                continue
            if duel.ratio < ours.ratio and duel.least_share > ours.least_share:
                trials = arena.trials(duel.task)
                assert trials is not None  # both have met the baseline there
                text = f"{other} in {duel.task.label}"
                is_proven = _dominates(trials, other, label, Measures.of(duel.task))
                (beyond if is_proven else by_chance).append(text)
    found = f"beyond chance: {', '.join(beyond) or 'none'}; by the means only: "
    says = "no other selector is both faster and fairer in any task"
    is_reached = False if beyond else None if by_chance else True
    return Goal(says, is_reached, found + (", ".join(by_chance) or "none"))


def _dominates(trials: Trials, other: str, label: str, measures: Measures) -> bool:
    """Return whether another selector is faster and fairer by paired tests, one-sided each."""
    times, theirs = trials.paired(label, other, measures.time)
    is_faster = later(times, theirs, trials.lengths(label, other, measures.time))
    shares, others = trials.paired(label, other, measures.least_share)
    is_fairer = above(others - shares)
    return max(is_faster.speaks_for, is_fairer.speaks_for) < LEVEL / 2.0
