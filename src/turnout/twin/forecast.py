"""What selectors do in the fitted world: the one in charge and candidates, on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turnout.core.errors import TurnoutError
from turnout.experiment.simulation import simulate
from turnout.experiment.variants import Variant
from turnout.results.guarantee import fair_places, least_share
from turnout.results.run import Run
from turnout.results.statistics import CONFIDENCE, Estimate, estimate, student_quantile
from turnout.twin.world import FittedWorld

#: Seeds of the fitted world, if nothing else is asked for. Each draws what the records leave open.
SEEDS = 20
#: Rounds of a simulation at most, however long the records are.
MOST_ROUNDS = 1_000


@dataclass(frozen=True)
class Forecast:
    """Numbers of selectors in the fitted world, each a list of one number per seed.

    Each seed draws a world that the records allow, so intervals hold 95 % of such worlds. They do
    not shrink with more seeds.

    Attributes:
        n_answers: How many answers ``time_s`` is about.
        n_rounds: Rounds of each simulation.
        runs: Numbers by label and key: success, seconds, wasted, least_share, time_s.
        problems: Why a selector has none, by label.
    """

    n_answers: int
    n_rounds: int
    runs: Mapping[str, Mapping[str, list[float]]]
    problems: Mapping[str, str]

    def estimate(self, label: str, key: str) -> Estimate:
        """Return a mean over seeds with the interval of the drawn worlds.

        Args:
            label: The selector.
            key: The number.
        """
        return _of_worlds(self.runs[label][key])

    def difference(self, label: str, baseline: str, key: str) -> Estimate:
        """Return the mean difference between two selectors, seed by seed.

        The interval is wider with several candidates, so that with a chance of 95 % all hold.

        Args:
            label: The selector.
            baseline: The selector that it is compared with.
            key: The number.
        """
        pairs = zip(self.runs[label][key], self.runs[baseline][key], strict=True)
        return _of_worlds([ours - theirs for ours, theirs in pairs], max(1, len(self.runs) - 1))


def forecast(
    world: FittedWorld, variants: Sequence[Variant], n_answers: int, n_seeds: int = SEEDS
) -> Forecast:
    """Return what selectors do in a fitted world.

    Args:
        world: The world.
        variants: The selectors.
        n_answers: How many answers ``time_s`` is about.
        n_seeds: Seeds of each selector.
    """
    n_rounds = min(max(world.n_rounds, 1), MOST_ROUNDS)
    runs: dict[str, dict[str, list[float]]] = {}
    problems: dict[str, str] = {}
    for variant in variants:
        try:
            own = [
                _numbers(_run(world, variant, seed, n_rounds), n_answers) for seed in range(n_seeds)
            ]
        except TurnoutError as error:
            problems[variant.label] = str(error)
        else:
            runs[variant.label] = {key: [each[key] for each in own] for key in own[0]}
    return Forecast(n_answers, n_rounds, runs, problems)


def _of_worlds(values: Sequence[float], n_compared: int = 1) -> Estimate:
    """Return the mean, and the interval that holds another drawn world (Bonferroni)."""
    found = estimate(values)
    if found.n < 2 or np.isinf(values).any():
        return found._replace(half_width=math.inf)
    miss = (1.0 - CONFIDENCE) / n_compared
    low, high = np.nanquantile(values, [miss / 2.0, 1.0 - miss / 2.0])
    # Quantiles of a few worlds say too little about what is outside of them; Student's say more.
    reach = student_quantile(found.n - 1, 1.0 - miss) * math.sqrt(1.0 + 1.0 / found.n)
    half = max(reach * found.deviation, found.mean - float(low), float(high) - found.mean)
    return found._replace(half_width=half)


def _run(world: FittedWorld, variant: Variant, seed: int, n_rounds: int) -> Run:
    return simulate(
        variant.make(),
        world.environment_of(seed),
        cohort_size=min(variant.cohort_size or world.cohort_size, world.n_clients),
        n_rounds=n_rounds,
        seed=seed,
        policy=world.policy,
    )


def _numbers(run: Run, n_answers: int) -> dict[str, float]:
    """Return the numbers of one run."""
    n_places = max(1, run.clients.size)
    return {
        "success": run.success_ratio,
        "seconds": float(np.nansum(run.spent)) / n_places,
        "wasted": run.wasted_s / n_places,
        "least_share": least_share(fair_places(run), run.counts),
        "time_s": _time_to(run, n_answers),
    }


def _time_to(run: Run, n_answers: int) -> float:
    """Return when a run had its n-th answer; in proportion, if it ended before."""
    answers, clock = run.cep, run.clock_s
    if not answers.size or not answers[-1]:
        return float("inf")
    if answers[-1] < n_answers:
        return float(clock[-1]) * n_answers / float(answers[-1])
    return float(clock[np.searchsorted(answers, n_answers)])
