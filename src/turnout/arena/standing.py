"""What the results say: each selector against the baseline in each task, and over all tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from turnout.arena.results import Arena, Measures
from turnout.arena.tasks import ArenaTask
from turnout.papers.results import Trials
from turnout.statistics.aggregates import Interval, bootstrap_mean, probability_of_improvement
from turnout.statistics.evidence import LEVEL, Evidence, above, holm, later, log_ratio
from turnout.types import FloatArray

#: Everyone is measured against this selector.
BASELINE = "random"

#: Share of its fair share that the least served client must get, on average over seeds.
FAIR = 0.5


class Side(StrEnum):
    """On which side of the baseline a selector is, corrected for the number of tasks (Holm)."""

    BETTER = "better"
    WORSE = "worse"
    LEVEL = "level"


class Duel(NamedTuple):
    """A selector against the baseline in one task.

    Attributes:
        task: The task.
        n_seeds: Seeds that both have.
        ratio: Geometric mean of its time to the target over the baseline's; runs that never got
            there count with their length.
        n_censored: How many of its runs never got there.
        time: Whether it is faster.
        accuracy: Whether its final accuracy is higher.
        gain: By how much: the mean difference of final accuracies, paired by seed.
        worst_tenth: Whether the worst tenth of its clients has a higher accuracy.
        least_share: What the least served client got of its fair share, mean over seeds.
    """

    task: ArenaTask
    n_seeds: int
    ratio: float
    n_censored: int
    time: Side
    accuracy: Side
    gain: float
    worst_tenth: Side
    least_share: float

    @property
    def is_fair(self) -> bool:
        """Whether nobody got less than half of its fair share."""
        return self.least_share >= FAIR


class Overall(NamedTuple):
    """A selector over all tasks that it and the baseline have.

    Attributes:
        duels: One per task.
        ratio: Geometric mean of the time ratios, with an interval over runs.
        improvement: Chance that a run of it is faster than one of the baseline.
        rank: Mean rank of its times among all selectors, 1 = fastest.
        gain: Mean difference of final accuracies, with an interval over runs.
        least_share: Mean over tasks.
    """

    duels: tuple[Duel, ...]
    ratio: Interval
    improvement: Interval
    rank: Interval
    gain: Interval
    least_share: float


def duels_of(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> tuple[Duel, ...]:
    """Return how a selector does against the baseline, in each task where both have seeds.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector.
    """
    found = _met(arena, tasks, label)
    sides = {
        kind: _sides([_evidence(kind, trials, label, Measures.of(task)) for task, trials in found])
        for kind in ("time", "accuracy", "worst_tenth")
    }
    duels = []
    for i, (task, trials) in enumerate(found):
        measures = Measures.of(task)
        times, others = trials.paired(label, BASELINE, measures.time)
        ratios = log_ratio(times, others, trials.lengths(label, BASELINE, measures.time))
        duels.append(
            Duel(
                task,
                times.size,
                math.exp(float(ratios.mean())),
                int(np.isinf(times).sum()),
                sides["time"][i],
                sides["accuracy"][i],
                float(_gains(task, trials, label).mean()),
                sides["worst_tenth"][i],
                float(trials.values(label, measures.least_share).mean()),
            )
        )
    return tuple(duels)


def overall_of(arena: Arena, tasks: Sequence[ArenaTask]) -> dict[str, Overall]:
    """Return every selector over the tasks, the fastest first.

    Ranks are among the selectors that have all tasks; one that lacks a task has none.

    Args:
        arena: The results.
        tasks: The tasks.
    """
    speeds = {label: speeds_of(arena, tasks, label) for label in arena.labels(tasks)}
    played = [task for task in tasks if arena.trials(task) is not None]
    complete = [label for label, own in speeds.items() if len(own) == len(played)]
    overall = {}
    for label, own in speeds.items():
        if not own:
            continue
        duels = duels_of(arena, tasks, label)
        ratio = Interval(*(math.exp(-value) for value in bootstrap_mean(list(own.values()))))
        theirs = [np.zeros(1) if label == BASELINE else speeds[BASELINE][task] for task in own]
        even = Interval(0.5, 0.5, 0.5)
        overall[label] = Overall(
            duels,
            Interval(ratio.value, ratio.high, ratio.low),
            even if label == BASELINE else probability_of_improvement(list(own.values()), theirs),
            _mean_rank([speeds[other] for other in complete], own)
            if label in complete
            else Interval(math.nan, math.nan, math.nan),
            bootstrap_mean([_gains(*met, label) for met in _met(arena, tasks, label)]),
            float(np.mean([duel.least_share for duel in duels])),
        )
    return dict(sorted(overall.items(), key=lambda item: item[1].ratio.value))


def speeds_of(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> dict[str, FloatArray]:
    """Return minus the logarithm of a selector's times over the baseline's, one per seed, by task.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector.
    """
    speeds = {}
    for task, trials in _met(arena, tasks, label):
        name = Measures.of(task).time
        times, others = trials.paired(label, BASELINE, name)
        speeds[task.label] = -log_ratio(times, others, trials.lengths(label, BASELINE, name))
    return speeds


def sentence_of(duels: Sequence[Duel]) -> str:
    """Return a selector's record in a sentence.

    Args:
        duels: One per task.

    >>> sentence_of([])
    'It has not met random yet.'
    """
    if not duels:
        return f"It has not met {BASELINE} yet."
    n = len(duels)
    faster, slower = (_count(duels, "time", side) for side in (Side.BETTER, Side.WORSE))
    lower = _count(duels, "accuracy", Side.WORSE)
    worse = _count(duels, "worst_tenth", Side.WORSE)
    unfair = sum(not duel.is_fair for duel in duels)
    return (
        f"Faster than {BASELINE} in {faster or 'none'} of {n}, slower in {slower or 'none'}; final "
        f"accuracy lower in {lower or 'none'}, worst tenth lower in {worse or 'none'}; unfair in "
        f"{unfair or 'none'}."
    )


def _met(arena: Arena, tasks: Sequence[ArenaTask], label: str) -> list[tuple[ArenaTask, Trials]]:
    """Return the tasks in which a selector and the baseline have seeds in common."""
    return [
        (task, trials)
        for task in tasks
        if (trials := arena.trials(task)) is not None
        and {label, BASELINE} <= trials.schemes.keys()
        and trials.paired(label, BASELINE, Measures.of(task).time)[0].size
    ]


def _gains(task: ArenaTask, trials: Trials, label: str) -> FloatArray:
    """Return a selector's final accuracy minus the baseline's, one per seed."""
    own, others = trials.paired(label, BASELINE, Measures.of(task).accuracy)
    return own - others


def _count(duels: Sequence[Duel], kind: str, side: Side) -> int:
    return sum(getattr(duel, kind) == side for duel in duels)


def _evidence(kind: str, trials: Trials, label: str, measures: Measures) -> Evidence:
    """Return the tests that a selector is better, and that it is worse, than the baseline."""
    if kind == "time":
        times, others = trials.paired(label, BASELINE, measures.time)
        ours, theirs = trials.lengths(label, BASELINE, measures.time)
        return later(others, times, (theirs, ours))
    first, second = trials.paired(label, BASELINE, getattr(measures, kind))
    return above(first - second)


def _sides(evidence: Sequence[Evidence]) -> list[Side]:
    """Return the verdicts, each side corrected for the number of tasks."""
    better = holm(part.speaks_for for part in evidence)
    worse = holm(part.speaks_against for part in evidence)
    border = LEVEL / 2.0
    return [
        Side.BETTER if up < border else Side.WORSE if down < border else Side.LEVEL
        for up, down in zip(better, worse, strict=True)
    ]


def _mean_rank(everyone: Sequence[dict[str, FloatArray]], own: dict[str, FloatArray]) -> Interval:
    """Return the mean rank of a selector's times: by task and seed, equals share a rank."""
    ranks = []
    for task, ours in own.items():
        others = [speeds[task] for speeds in everyone]
        n_seeds = min(ours.size, *(other.size for other in others))
        table = np.stack([other[:n_seeds] for other in others])
        ahead = (table > ours[:n_seeds]).sum(axis=0)
        level = (table == ours[:n_seeds]).sum(axis=0)
        ranks.append(1.0 + ahead + (level - 1) / 2.0)
    return bootstrap_mean(ranks)
