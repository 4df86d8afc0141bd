"""Aggregation that knows who took part, judged against the mean with a tuned server learning rate.

The plan is ``aggregation_plan.toml``. A pass tunes the rate of every rule on tasks that never
report. Another pass runs each rule with its rate on fresh seeds of reporting tasks. The page is
``docs/aggregation.md``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.core.types import FloatArray
from turnout.experiment import run_experiment
from turnout.experiment.variants import variants_of
from turnout.results.statistics import LEVEL, Interval, above, bootstrap_mean, holm
from turnout.studies.arena_tasks import Arena, ArenaTask, Measures, tasks_named
from turnout.studies.standings import Goal

#: The rule that all others are compared with.
MEAN = "mean"


@lru_cache(maxsize=1)
def plan() -> Mapping[str, Any]:
    """Return the plan as plain data."""
    file = resources.files("turnout.studies").joinpath("aggregation_plan.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


class Arm(NamedTuple):
    """A rule with a server learning rate.

    Attributes:
        rule: A name of the plan's rules.
        rate: The server learning rate.
    """

    rule: str
    rate: float = 1.0

    def task(self, label: str) -> ArenaTask:
        """Return a task of the arena with this aggregation.

        Args:
            label: The task.
        """
        task = tasks_named([label])[0]
        own = {"aggregation": plan()["rules"][self.rule], "server_lr": self.rate}
        training = {**task.table["training"], **own}
        table = {**task.table, "n_rounds": plan()["rounds"], "training": training}
        return replace(task, label=f"{label}, {self.rule} x {self.rate:g}", table=table)


class Runs(NamedTuple):
    """Runs of one arm in one task with one seed that belong together.

    Attributes:
        arm: The rule and its rate.
        task: The label of the task.
        seed: The seed.
        selectors: Who is run.
    """

    arm: Arm
    task: str
    seed: int
    selectors: Sequence[str]


def tuning_runs() -> Iterator[Runs]:
    """Return the runs by which rates are chosen, seed by seed."""
    own = plan()["tuning"]
    for seed in own["seeds"]:
        for rate in own["rates"]:
            for task in own["tasks"]:
                for rule in plan()["rules"]:
                    yield Runs(Arm(rule, rate), task, seed, own["selectors"])


def judged_runs(rates: Mapping[str, float]) -> Iterator[Runs]:
    """Return the runs that are judged, seed by seed.

    Args:
        rates: The rate of each rule.
    """
    arms = dict.fromkeys([Arm(MEAN), *(Arm(rule, rate) for rule, rate in rates.items())])
    for seed in plan()["seeds"]:
        for task in plan()["tasks"]:
            for arm in arms:
                yield Runs(arm, task, seed, plan()["selectors"])


def run_missing(arena: Arena, path: Path, out: Path, runs: Iterator[Runs]) -> None:
    """Run what the results lack, and keep each result at once.

    Args:
        arena: The results; they get longer.
        path: Their file.
        out: Folder of the run folders.
        runs: What is wanted.
    """
    for one in runs:
        task = one.arm.task(one.task)
        variants = [variant for name in one.selectors for variant in variants_of(name)]
        for lacking in arena.lacking([task], variants, [one.seed], out):
            if lacking.experiment is not None:
                run_experiment(lacking.experiment, lacking.folder, n_jobs=1)
                arena.keep(task, lacking.experiment, lacking.folder, curves=())
                arena.file.keep(path, trains=True)


def tuned(arena: Arena) -> dict[str, dict[float, float]]:
    """Return the mean time of each rule at each rate over that of the mean at rate 1.

    Args:
        arena: The results; a rate that lacks a run is left out.
    """
    own = plan()["tuning"]
    found: dict[str, dict[float, float]] = {rule: {} for rule in plan()["rules"]}
    for rule, by_rate in found.items():
        for rate in own["rates"]:
            gains = [
                versus(arena, task, selector, Arm(rule, rate), Arm(MEAN), own["seeds"]).sooner
                for task in own["tasks"]
                for selector in own["selectors"]
                if can_run(rule, selector)
            ]
            if all(gain.size == len(own["seeds"]) for gain in gains):
                by_rate[rate] = math.exp(-float(np.mean(np.concatenate(gains))))
    return found


def rates_of(arena: Arena) -> dict[str, float] | None:
    """Return the best rate of each rule; None while a run of the tuning is missing.

    Args:
        arena: The results.
    """
    times = tuned(arena)
    if any(len(by_rate) < len(plan()["tuning"]["rates"]) for by_rate in times.values()):
        return None
    return {rule: min(by_rate, key=by_rate.__getitem__) for rule, by_rate in times.items()}


def can_run(rule: str, selector: str) -> bool:
    """Return whether a selector has what a rule needs.

    Args:
        rule: A rule of the plan.
        selector: A selector of the plan.
    """
    needs = plan()["rules"][rule]["kind"] == "inverse-probability"
    return not needs or variants_of(selector)[0].make().reports_probability


class PairedArms(NamedTuple):
    """An arm against another one, a value per seed that both have.

    Attributes:
        sooner: Logarithm of the other's time over its own. Both are cut off where the other's run
            ended.
        gain: Its final accuracy minus the other's.
        never: How many of its runs never reached the target.
    """

    sooner: FloatArray
    gain: FloatArray
    never: int


def versus(
    arena: Arena, task: str, selector: str, arm: Arm, other: Arm, seeds: Sequence[int]
) -> PairedArms:
    """Compare two arms in a task.

    Args:
        arena: The results.
        task: The task.
        selector: The selector of both.
        arm: The arm.
        other: The other one.
        seeds: The seeds; those that one of them lacks are left out.
    """
    ours, theirs = (arena.trials(each.task(task)) for each in (arm, other))
    if (
        ours is None
        or theirs is None
        or selector not in ours.schemes.keys() & theirs.schemes.keys()
    ):
        return PairedArms(np.zeros(0), np.zeros(0), 0)
    both = set(ours.schemes[selector].seeds) & set(theirs.schemes[selector].seeds)
    common = [seed for seed in seeds if seed in both]
    ours, theirs, names = ours.only(common), theirs.only(common), Measures.of(arm.task(task))
    horizon = theirs.values(selector, names.length)
    times = ours.values(selector, names.time)
    cut, others = (np.minimum(x, horizon) for x in (times, theirs.values(selector, names.time)))
    gain = ours.values(selector, names.accuracy) - theirs.values(selector, names.accuracy)
    return PairedArms(np.log(others) - np.log(cut), gain, int(np.isinf(times).sum()))


class RuleResult(NamedTuple):
    """A rule against the tuned mean, for one selector or for all of them.

    Attributes:
        rule: The rule.
        rate: Its server learning rate.
        selector: The selector; empty for all.
        n_runs: Pairs of runs.
        never: Runs of the rule that never reached the target.
        time: Time over that of the tuned mean.
        gain: Final accuracy minus that of the tuned mean.
        p_time: Two-sided p-value of the times, means over tasks by seed, corrected (Holm).
        p_gain: The same of the accuracies.
    """

    rule: str
    rate: float
    selector: str
    n_runs: int
    never: int
    time: Interval
    gain: Interval
    p_time: float = math.nan
    p_gain: float = math.nan

    @property
    def is_lower(self) -> bool:
        """Whether final accuracy is lower by more than chance."""
        return self.p_gain < LEVEL and self.gain.value < 0.0


def comparisons(arena: Arena, rates: Mapping[str, float]) -> list[RuleResult]:
    """Return every comparison of the plan that has runs; the plain mean comes first.

    Args:
        arena: The results.
        rates: The rate of each rule.
    """
    base, seeds = Arm(MEAN, rates[MEAN]), complete_seeds(arena, rates)
    arms = [Arm(rule, rate) for rule, rate in [(MEAN, 1.0), *rates.items()]]
    found: list[RuleResult] = []
    p_values = []
    for arm in (arm for arm in arms if arm != base):
        for selector in ("", *plan()["selectors"]):
            names = [selector] if selector else plan()["selectors"]
            met = [
                versus(arena, task, name, arm, base, seeds)
                for name in names
                if can_run(arm.rule, name)
                for task in plan()["tasks"]
            ]
            times, gains = [one.sooner for one in met], [one.gain for one in met]
            if not met or not seeds:
                continue
            value, low, high = (math.exp(-x) for x in bootstrap_mean(times))
            size, never = sum(map(len, times)), sum(one.never for one in met)
            time, gain = Interval(value, high, low), bootstrap_mean(gains)
            found.append(RuleResult(*arm, selector, size, never, time, gain))
            p_values.append(tuple(_two_sided(each) for each in (times, gains)))
    single = [i for i, one in enumerate(found) if one.selector]
    corrected = [holm(p_values[i][kind] for i in single) for kind in (0, 1)]
    for place, i in enumerate(single):
        found[i] = found[i]._replace(p_time=corrected[0][place], p_gain=corrected[1][place])
    return found


def complete_seeds(arena: Arena, rates: Mapping[str, float]) -> list[int]:
    """Return the seeds of which every planned run is there; only these are judged.

    Args:
        arena: The results.
        rates: The rate of each rule.
    """
    lacking = set()
    for one in judged_runs(rates):
        trials = arena.trials(one.arm.task(one.task))
        for selector in one.selectors:
            known = () if trials is None or selector not in trials.schemes else trials.schemes
            if can_run(one.arm.rule, selector) and (
                not known or one.seed not in known[selector].seeds
            ):
                lacking.add(one.seed)
    return [seed for seed in plan()["seeds"] if seed not in lacking]


def goals_of_rule(found: Sequence[RuleResult], rule: str) -> tuple[Goal, ...]:
    """Return the bars of the plan for a rule.

    Args:
        found: All comparisons.
        rule: The rule.
    """
    bars, own = plan()["bars"], [one for one in found if one.rule == rule]
    whole = next(one for one in own if not one.selector)
    lower = [one.selector for one in own if one.is_lower]
    return (
        Goal(
            f"time at most {bars['time']:g} of the tuned mean's",
            _beyond(whole.time, bars["time"], is_most=True),
            f"{whole.time.value:.2f} ({whole.time.low:.2f} to {whole.time.high:.2f})",
        ),
        Goal(
            f"final accuracy at least {bars['accuracy']:g} higher",
            _beyond(whole.gain, bars["accuracy"], is_most=False),
            f"{whole.gain.value:+.3f} ({whole.gain.low:+.3f} to {whole.gain.high:+.3f})",
        ),
        Goal(
            "final accuracy lower by more than chance with no selector",
            len(lower) <= bars["lower"],
            f"lower with: {', '.join(lower) or 'none'}",
        ),
    )


def pays(goals: Sequence[Goal]) -> bool | None:
    """Return whether a rule pays by the plan; None while that is open.

    Args:
        goals: Its bars.
    """
    time, accuracy, is_not_lower = (goal.is_reached for goal in goals)
    if not is_not_lower or (time is False and accuracy is False):
        return False
    return True if time or accuracy else None


def _beyond(found: Interval, bar: float, *, is_most: bool) -> bool | None:
    """Return whether an interval is beyond a bar; None if it holds it or has no ends."""
    good, bad = (found.high, found.low) if is_most else (found.low, found.high)
    if math.isnan(good):
        return None
    sign = 1.0 if is_most else -1.0
    if sign * good <= sign * bar:
        return True
    return False if sign * bad > sign * bar else None


def _two_sided(by_task: Sequence[FloatArray]) -> float:
    """Return the two-sided p-value of the means over tasks, one per seed."""
    test = above(np.mean(by_task, axis=0))
    return min(1.0, 2.0 * min(test.speaks_for, test.speaks_against))
