"""The standings of the arena: each selector against the baseline, by task and over all tasks.

They also say which goals a selector reaches. ``docs/build_arena.py`` writes the standings of the
built-in selectors to ``arena_standings.json``, so that commands can show them without the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from turnout.core.types import FloatArray
from turnout.results.statistics import (
    LEVEL,
    Evidence,
    Interval,
    above,
    bootstrap_mean,
    holm,
    probability_of_improvement,
)
from turnout.studies.arena_tasks import ORACLE, ORACLES, Arena, ArenaTask, Measures
from turnout.studies.recommendation import BASELINE
from turnout.studies.trials import Trials

#: The selector of ours.
OURS = "pace"
#: An oracle must save at least this share of the baseline's time for a share of it to be named:
#: shares of less are ratios of chance.
_LEAST_TO_WIN = 0.1

#: The part of its fair share that the least served client must get, on average over seeds.
FAIR = 0.5


class Side(StrEnum):
    """Whether a selector is better than the baseline, with Holm's correction for the tasks."""

    BETTER = "better"
    WORSE = "worse"
    LEVEL = "level"


class Duel(NamedTuple):
    """A selector against the baseline in one task.

    Attributes:
        task: The task.
        n_seeds: Seeds that both have.
        ratio: Geometric mean of its time to the target divided by the baseline's, by ``sooner``.
        n_censored: The number of its runs that never reached the target.
        time: Whether it is faster, by a test of the same numbers.
        accuracy: Whether its final accuracy is higher.
        gain: The mean difference of final accuracies, paired by seed.
        gain_at_time: The same when the shorter of both runs ends; NaN if no curves were kept.
        worst_tenth: Whether the worst tenth of its clients has a higher accuracy.
        least_share: The part of its fair share that the least served client got, mean over seeds.
        least_answered: The same of answers in time; NaN if it was not kept.
    """

    task: ArenaTask
    n_seeds: int
    ratio: float
    n_censored: int
    time: Side
    accuracy: Side
    gain: float
    gain_at_time: float
    worst_tenth: Side
    least_share: float
    least_answered: float

    @property
    def is_fair(self) -> bool:
        """Whether every client got at least half of its fair share."""
        return self.least_share >= FAIR


class Overall(NamedTuple):
    """A selector over all tasks that it and the baseline have run.

    Attributes:
        duels: One per task.
        ratio: Geometric mean of the time ratios, with an interval over runs.
        improvement: The chance that one of its runs is faster than one of the baseline's.
        rank: Mean rank of its times among all selectors; 1 is the fastest.
        gain: Mean difference of final accuracies, with an interval over runs.
        least_share: Mean over tasks.
        won: The share of the time that the oracle saves, in the tasks that both have; NaN if the
            oracle saves nothing or was not run.
    """

    duels: tuple[Duel, ...]
    ratio: Interval
    improvement: Interval
    rank: Interval
    gain: Interval
    least_share: float
    won: float = math.nan

    @property
    def gain_at_time(self) -> float:
        """The mean of the tasks' differences at equal time; NaN if a task has none."""
        return float(np.mean([duel.gain_at_time for duel in self.duels]))

    @property
    def least_answered(self) -> float:
        """The mean of the tasks' least shares of answers; NaN if a task has none."""
        return float(np.mean([duel.least_answered for duel in self.duels]))

    @property
    def n_never(self) -> int:
        """The number of runs that never reached the target."""
        return sum(duel.n_censored for duel in self.duels)

    @property
    def n_runs(self) -> int:
        """The number of runs."""
        return sum(duel.n_seeds for duel in self.duels)

    @property
    def n_unfair(self) -> int:
        """The number of tasks in which a client got less than half of its fair share."""
        return sum(not duel.is_fair for duel in self.duels)


class _Meeting(NamedTuple):
    """A selector and the baseline in a task in which they have seeds in common."""

    task: ArenaTask
    trials: Trials
    label: str

    def paired(self, kind: str) -> tuple[FloatArray, FloatArray]:
        """Return a measure of both, one value per seed; ``kind`` is a field of ``Measures``."""
        return self.trials.paired(self.label, BASELINE, getattr(Measures.of(self.task), kind))

    @property
    def speeds(self) -> FloatArray:
        """How much sooner it arrives than the baseline, one per seed."""
        return sooner(self.trials, self.label, BASELINE, Measures.of(self.task))

    @property
    def gains(self) -> FloatArray:
        """The selector's final accuracy minus the baseline's, one per seed."""
        own, others = self.paired("accuracy")
        return own - others

    @property
    def gain_at_time(self) -> float:
        """The mean difference of accuracies when the shorter of two runs ends; NaN if unknown."""
        ends = np.minimum(*self.paired("length"))
        both = self.trials.paired_at(self.label, BASELINE, "accuracy", ends)
        return math.nan if both is None else float((both[0] - both[1]).mean())

    @property
    def least_answered(self) -> float:
        """The least share of answers, mean over seeds; NaN if it was not kept."""
        name = Measures.of(self.task).least_answered
        known = self.trials.has(self.label, name)
        return self.trials.estimate(self.label, name).mean if known else math.nan

    def evidence(self, kind: str) -> Evidence:
        """Return the tests that the selector is better, and that it is worse."""
        if kind == "time":
            return above(self.speeds)
        own, others = self.paired(kind)
        return above(own - others)


def duels_of(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> tuple[Duel, ...]:
    """Compare a selector with the baseline in each task in which both have seeds.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector.
    """
    met = _met(arena, tasks, label)
    kinds = ("time", "accuracy", "worst_tenth")
    sides = {kind: _sides([one.evidence(kind) for one in met]) for kind in kinds}
    return tuple(
        Duel(
            one.task,
            one.speeds.size,
            math.exp(-float(one.speeds.mean())),
            int(np.isinf(one.paired("time")[0]).sum()),
            sides["time"][i],
            sides["accuracy"][i],
            float(one.gains.mean()),
            one.gain_at_time,
            sides["worst_tenth"][i],
            one.trials.estimate(label, Measures.of(one.task).least_share).mean,
            one.least_answered,
        )
        for i, one in enumerate(met)
    )


def overall_of(arena: Arena, tasks: Sequence[ArenaTask]) -> dict[str, Overall]:
    """Return every selector over the tasks, the fastest first.

    Selectors that have all tasks are ranked among each other. One that lacks a task has no rank,
    and neither has an oracle.

    Args:
        arena: The results.
        tasks: The tasks.
    """
    speeds = {label: speeds_of(arena, tasks, label) for label in arena.labels(tasks)}
    n_played = sum(arena.trials(task) is not None for task in tasks)
    complete = [
        own for label, own in speeds.items() if len(own) == n_played and label not in ORACLES
    ]
    overall = {}
    for label, own in speeds.items():
        if not own:
            continue
        duels = duels_of(arena, tasks, label)
        mean, low, high = (math.exp(-value) for value in bootstrap_mean(list(own.values())))
        improvement = Interval(0.5, 0.5, 0.5)
        if label != BASELINE:
            theirs = [speeds[BASELINE][task] for task in own]
            improvement = probability_of_improvement(list(own.values()), theirs)
        rank = Interval(math.nan, math.nan, math.nan)
        overall[label] = Overall(
            duels,
            Interval(mean, high, low),  # a high speed is a low ratio
            improvement,
            _mean_rank(complete, own) if any(own is one for one in complete) else rank,
            bootstrap_mean([one.gains for one in _met(arena, tasks, label)]),
            float(np.mean([duel.least_share for duel in duels])),
            _won(own, speeds.get(ORACLE, {})),
        )
    return dict(sorted(overall.items(), key=lambda item: item[1].ratio.value))


def sooner(trials: Trials, label: str, other: str, measures: Measures) -> FloatArray:
    """Return the logarithms of another selector's times over a selector's, one per common seed.

    Both are cut off where the baseline's run of that seed ended, in seconds. A run that never
    reached the target in its rounds counts as that long, so short rounds do not make a selector
    look faster. Means and tests use these numbers.

    Args:
        trials: The results of a task.
        label: The selector.
        other: The other one.
        measures: The measures of the task.
    """
    labels = (label, other, BASELINE)
    if not set(labels) <= trials.schemes.keys():
        return np.zeros(0)
    common = set.intersection(*(set(trials.schemes[each].seeds) for each in labels))
    same = replace(trials, schemes={each: trials.schemes[each] for each in labels})
    same = same.only(sorted(common))
    horizon = same.values(BASELINE, measures.length)
    own, others = (np.minimum(same.values(x, measures.time), horizon) for x in (label, other))
    return np.asarray(np.log(others) - np.log(own))


def speeds_of(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> dict[str, FloatArray]:
    """Return the log speeds of a selector relative to the baseline, one per seed, by task.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector.
    """
    return {one.task.label: one.speeds for one in _met(arena, tasks, label)}


def share_won(ratio: float, best: float) -> float:
    """Return the share of the time that can be saved that was saved; NaN if it is next to nothing.

    Args:
        ratio: Time over the baseline's.
        best: The oracle's.

    >>> share_won(0.8, 0.6)
    0.5
    """
    return round((1.0 - ratio) / (1.0 - best), 12) if best <= 1.0 - _LEAST_TO_WIN else math.nan


def _won(own: Mapping[str, FloatArray], oracle: Mapping[str, FloatArray]) -> float:
    """Return the share won over the tasks that a selector and the oracle have both."""
    both = [task for task in own if task in oracle]
    if not both:
        return math.nan
    ours, best = (
        math.exp(-float(np.mean([speeds[task].mean() for task in both])))
        for speeds in (own, oracle)
    )
    return share_won(ours, best)


def sentence_of(duels: Sequence[Duel]) -> str:
    """Return the record of a selector as a sentence.

    Args:
        duels: One per task.

    >>> sentence_of([])
    'It has not met random yet.'
    """
    if not duels:
        return f"It has not met {BASELINE} yet."
    faster = sum(duel.time == Side.BETTER for duel in duels)
    slower = sum(duel.time == Side.WORSE for duel in duels)
    lower = sum(duel.accuracy == Side.WORSE for duel in duels)
    worse = sum(duel.worst_tenth == Side.WORSE for duel in duels)
    unfair = sum(not duel.is_fair for duel in duels)
    return (
        f"Faster than {BASELINE} in {faster or 'none'} of {len(duels)}, slower in "
        f"{slower or 'none'}; final "
        f"accuracy lower in {lower or 'none'}, worst tenth lower in {worse or 'none'}; unfair in "
        f"{unfair or 'none'}."
    )


def _met(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> list[_Meeting]:
    """Return the tasks in which a selector and the baseline have seeds in common."""
    return [
        one
        for task in tasks
        if (trials := arena.trials(task)) is not None
        and (one := _Meeting(task, trials, label)).speeds.size
    ]


def _sides(evidence: Sequence[Evidence]) -> list[Side]:
    """Return the verdicts, with each side corrected for the number of tasks."""
    better = holm(part.speaks_for for part in evidence)
    worse = holm(part.speaks_against for part in evidence)
    border = LEVEL / 2.0
    return [
        Side.BETTER if up < border else Side.WORSE if down < border else Side.LEVEL
        for up, down in zip(better, worse, strict=True)
    ]


def _mean_rank(everyone: Sequence[dict[str, FloatArray]], own: dict[str, FloatArray]) -> Interval:
    """Return the mean rank of a selector's times by task and seed; equal times share a rank."""
    ranks = []
    for task, ours in own.items():
        others = [speeds[task] for speeds in everyone]
        n_seeds = min(ours.size, *(other.size for other in others))
        table = np.stack([other[:n_seeds] for other in others])
        ahead = (table > ours[:n_seeds]).sum(axis=0)
        level = (table == ours[:n_seeds]).sum(axis=0)
        ranks.append(1.0 + ahead + (level - 1) / 2.0)
    return bootstrap_mean(ranks)


#: The number of nine tasks in which a selector must be faster, and much faster.
N_FASTER, N_MUCH_FASTER = 7, 5
#: A time ratio that counts as much faster.
MUCH = 0.8


class Goal(NamedTuple):
    """A goal that a selector must reach to be better than the baseline.

    Attributes:
        says: The goal.
        is_reached: Whether it is reached; None if chance may have decided.
        measured: What was measured.
    """

    says: str
    is_reached: bool | None
    measured: str


def goals_of(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> tuple[Goal, ...]:
    """Return every goal for a selector.

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
    ranks = {
        other: own.rank.value
        for other, own in overall.items()
        if own.n_unfair <= overall[label].n_unfair and not math.isnan(own.rank.value)
    }
    in_order = sorted(ranks, key=ranks.__getitem__)
    found = ", ".join(f"{other} {ranks[other]:.1f}" for other in in_order)
    is_best = label in ranks and ranks[label] == min(ranks.values())
    return Goal("best mean rank in time of those that are unfair in no more tasks", is_best, found)


def _not_dominated(
    arena: Arena, tasks: Sequence[ArenaTask], overall: Mapping[str, Overall], label: str
) -> Goal:
    """Return whether no other selector is both faster and fairer in a task.

    If one is so beyond chance, the goal is missed. If one is so only by its means, it stays open.
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
    is_faster = above(sooner(trials, other, label, measures))
    shares, others = trials.paired(label, other, measures.least_share)
    is_fairer = above(others - shares)
    return max(is_faster.speaks_for, is_fairer.speaks_for) < LEVEL / 2.0


FILE = "arena_standings.json"


class Standing(NamedTuple):
    """A selector over all tasks in which it met the baseline.

    Attributes:
        n_tasks: How many these are.
        time: Time to the target over the baseline's, and the ends of its interval.
        least_share: What the least served client got of its fair share, mean over tasks.
        n_unfair: In how many tasks that is below one half.
        record: Its record in a sentence.
    """

    n_tasks: int
    time: tuple[float, float, float]
    least_share: float
    n_unfair: int
    record: str


@lru_cache(maxsize=1)
def standings() -> Mapping[str, Standing]:
    """Return the standings by selector, the fastest first."""
    text = resources.files("turnout.studies").joinpath(FILE).read_text(encoding="utf-8")
    return {
        label: Standing(**row | {"time": tuple(row["time"])})
        for label, row in json.loads(text).items()
    }


def standings_text(overall: Mapping[str, Overall]) -> str:
    """Return the file's content.

    Args:
        overall: By label.
    """
    rows: dict[str, dict[str, Any]] = {
        label: Standing(
            len(own.duels),
            (round(own.ratio.value, 3), round(own.ratio.low, 3), round(own.ratio.high, 3)),
            round(own.least_share, 3),
            own.n_unfair,
            "Everyone is measured against it." if label == BASELINE else sentence_of(own.duels),
        )._asdict()
        for label, own in overall.items()
        if label not in ORACLES
    }
    return json.dumps(rows, indent=1) + "\n"
