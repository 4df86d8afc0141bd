"""Metrics of participation, fairness and time: who is chosen, who answers, how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from turnout import metrics
from turnout.runs.facts import Facts, last_of, number_of
from turnout.runs.metric import Metric, Table
from turnout.types import IntArray

_fairness: Callable[..., Metric[Facts]] = partial(Metric, group="fairness")
_time: Callable[..., Metric[Facts]] = partial(Metric, group="time", unit="s", better="lower")

_SIMULATION: frozenset[Table] = frozenset({"simulate", "compare", "report"})


def _counts(index: Callable[[IntArray], float]) -> Callable[[Facts], float]:
    """Return a metric of the selection counts, where they are known."""
    return lambda facts: math.nan if facts.counts is None else index(facts.counts)


def _success_ratio(facts: Facts) -> float:
    n_chosen = np.nansum(facts.chosen)
    return float(np.nansum(facts.completed) / n_chosen) if n_chosen else math.nan


def _shortfall(facts: Facts) -> float:
    """Return how far the worst client fell behind half its fair share; NaN if that is not known."""
    if facts.run is None or not facts.run.knows_available:
        return math.nan
    return float(metrics.guarantee(facts.run, floor=0.5, cap=math.inf).shortfall.max())


def _minimum_rate(facts: Facts) -> float:
    if facts.counts is None:
        return math.nan
    return metrics.minimum_rate(facts.counts, facts.n_rounds)


def _lengths(total: Callable[..., float]) -> Callable[[Facts], float]:
    """Return a metric of the lengths of rounds, where any is known."""

    def compute(facts: Facts) -> float:
        lengths = facts.length_s[np.isfinite(facts.length_s)]
        return float(total(lengths)) if lengths.size else math.nan

    return compute


#: In the order in which they are written and shown.
PARTICIPATION: tuple[Metric[Facts], ...] = (
    Metric(
        key="success_ratio",
        title="Success ratio",
        heading="success",
        meaning="Share of the chosen clients that answered in time.",
        better="higher",
        decimals=4,
        tables=_SIMULATION | {"train", "compare --train"},
        compute=_success_ratio,
    ),
    Metric(
        key="cep",
        title="CEP",
        meaning="Cumulative effective participation: how many answers came in time in all.",
        detail=(
            "Each chosen client that answers before the round closes adds 1. One that is late, "
            "fails or stays silent adds 0. The number grows with the rounds and the cohort, so "
            "compare it only between runs of one length. The success ratio is CEP per choice."
        ),
        unit="answers",
        better="higher",
        decimals=0,
        tables=_SIMULATION | {"train"},
        compute=lambda facts: int(np.nansum(facts.completed)),
    ),
    Metric(
        key="regret",
        title="Regret",
        meaning="Answers in time that were missed against the best fixed plan in hindsight.",
        detail=(
            "A fixed plan gives each client a chance of being chosen that stays as it is in all "
            "rounds. The best one can only be found when all outcomes are known. A selector that "
            "learns comes close to it: its regret per round goes to 0. The plan keeps its own "
            "fairness quota: selectors with different quotas are measured against different "
            "plans, and their regrets do not compare."
        ),
        unit="answers",
        decimals=0,
        tables=frozenset({"simulate", "report"}),
        compute=last_of("regret"),
    ),
    Metric(
        key="regret_bound",
        title="Regret bound",
        meaning="What Theorem 1 of E3CS says the regret stays below on average.",
        detail="Only E3CS has it, and only in worlds in which every client is always available.",
        unit="answers",
        decimals=0,
        tables=frozenset({"simulate"}),
        compute=last_of("bound"),
    ),
    _fairness(
        key="jain_of_counts",
        title="Jain of counts",
        heading="Jain",
        meaning="How equally often the clients were chosen: 1 = all equally often.",
        detail=(
            "It is Jain's index of the selection counts: (sum of counts)^2 / (n * sum of squared "
            "counts). Read it as the share of the clients that take part: 0.25 is what one gets "
            "if a quarter of them is chosen equally often and the others never."
        ),
        better="higher",
        tables=_SIMULATION,
        compute=_counts(metrics.jain_of_counts),
    ),
    _fairness(
        key="gini_of_counts",
        title="Gini of counts",
        heading="Gini",
        meaning="How unequally often the clients were chosen: 0 = all equally often.",
        detail=(
            "It is the Gini coefficient of the selection counts, known from incomes: near 1, a few "
            "clients get almost every place. It is the area between the Lorenz curve and the line "
            "of equal shares, doubled."
        ),
        better="lower",
        tables=frozenset({"simulate", "report"}),
        compute=_counts(metrics.gini_of_counts),
    ),
    _fairness(
        key="minimum_rate",
        title="Minimum rate",
        heading="min rate",
        meaning="Share of the rounds in which the least chosen client took part.",
        detail=(
            "0.1 means that everybody was chosen in at least every tenth round on average; 0 means "
            "that somebody was never chosen. It cannot be larger than cohort / clients."
        ),
        better="higher",
        tables=_SIMULATION,
        compute=_minimum_rate,
    ),
    _fairness(
        key="shortfall",
        title="Shortfall",
        heading="shortfall",
        meaning="Places by which the worst client fell behind half its fair share, in any window.",
        detail=(
            "The fair share of a round is its places over its available clients. 10 means that in "
            "some run of consecutive rounds a client got ten places fewer than half of its fair "
            "share. The selector `guarded` bounds it, and `turnout audit` names the clients."
        ),
        better="lower",
        decimals=1,
        tables=frozenset({"report"}),
        compute=_shortfall,
    ),
    _time(
        key="round_time_s",
        title="Round time",
        heading="round",
        meaning="Mean length of a round.",
        decimals=2,
        tables=_SIMULATION,
        compute=_lengths(np.mean),
    ),
    _time(
        key="total_time_s",
        title="Total time",
        meaning="Length of the whole run.",
        decimals=0,
        tables=frozenset({"simulate", "train"}),
        compute=_lengths(np.sum),
    ),
    _time(
        key="wasted_s",
        title="Wasted time",
        meaning="Time that devices spent on answers that did not come in time.",
        decimals=1,
        tables=frozenset({"simulate", "report"}),
        compute=lambda facts: facts.wasted_s,
    ),
    _fairness(
        key="backlog_per_round",
        title="Backlog per round",
        meaning="Choices still owed to the client that waits most, per round: 0 = none.",
        detail=(
            "The backlog is a queue for every client (RBCS-F, Eq. (6)): it grows by the rate "
            "that the client is promised in each round, falls by 1 when the client is chosen, and "
            "never below 0. The number is the longest queue at the end, divided by the rounds. "
            "Near 0 the promise is kept in the long run; a number that does not fall with longer "
            "runs means that some client is left behind for good."
        ),
        unit="choices",
        better="lower",
        tables=frozenset({"simulate"}),
        compute=lambda facts: facts.last("backlog_max") / max(facts.n_rounds, 1),
    ),
    _fairness(
        key="backlog_rate",
        title="Backlog rate",
        meaning="The rate of being chosen at which backlogs are counted.",
        detail=(
            "It is the rate that the selector promises to every client, such as beta of RBCS-F; "
            "0.15 for selectors that promise none."
        ),
        tables=frozenset(),
        compute=number_of("backlog_rate"),
    ),
    Metric(
        key="seconds",
        title="Computing time",
        meaning="Real time that the computer took.",
        group="computing",
        unit="s",
        decimals=2,
        tables=frozenset({"simulate", "train"}),
        compute=number_of("seconds"),
    ),
)
