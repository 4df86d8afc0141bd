"""All metrics of a run. ``summary.json``, tables, report, measures of papers and docs follow it.

To add a metric, add an entry to ``LEARNING``, ``PROGRESS`` or ``PARTICIPATION``. ``to_target`` has
those with a parameter: some for each accuracy that a run is asked to reach.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.core.types import FloatArray, IntArray
from turnout.results import metrics
from turnout.results.guarantee import fair_places, least_share
from turnout.results.metric import Facts, Group, Metric, Table, last_of, number_of
from turnout.results.run import Run

# --------------------------------------------------------------------------------------------------
# Metrics of learning: how good the trained model is.
# --------------------------------------------------------------------------------------------------

_ALL: frozenset[Table] = frozenset({"train", "compare --train", "report"})


def to_target(target: float) -> tuple[Metric[Facts], Metric[Facts]]:
    """Return the metrics of the way to an accuracy: its rounds and its virtual time.

    Args:
        target: the accuracy, in (0, 1].
    """

    def rounds(facts: Facts) -> float:
        return metrics.rounds_to(facts.curve("accuracy"), target)

    def seconds(facts: Facts) -> float:
        after = rounds(facts)
        return after if math.isnan(after) else float(np.nancumsum(facts.length_s)[int(after) - 1])

    in_rounds = _learned(
        key=f"rounds_to_{target:g}",
        title=f"Rounds to {target:g}",
        heading=f"rounds to {target:g}",
        meaning=f"First round after which the accuracy on the test set is at least {target:g}.",
        unit="rounds",
        better="lower",
        decimals=0,
        tables=frozenset({"train"}),
        is_time_to=True,
        goal=f"{100 * target:g} %",
        run_length="rounds_run",
        compute=rounds,
    )
    in_time = dataclasses.replace(
        in_rounds,
        key=f"time_to_{target:g}_s",
        title=f"Time to {target:g}",
        heading=f"time to {target:g}",
        meaning=f"Virtual time until the accuracy on the test set is at least {target:g}.",
        unit="s",
        decimals=1,
        run_length="total_time_s",
        compute=seconds,
    )
    return in_rounds, in_time


def _metric(*, key: str, **fields: Any) -> Metric[Facts]:
    """Return a metric; by default it is a number from elsewhere, and its title is its key in words.

    Args:
        key: Its name.
        **fields: The other fields of the metric.
    """
    usual: dict[str, Any] = {
        "title": key.replace("_", " ").capitalize(),
        "compute": number_of(key),
    }
    return Metric(key=key, **usual | fields)


_trained = partial(_metric, group="learning", needs="training", tables=frozenset())
_energy = partial(_metric, group="energy", needs="energy", better="lower", decimals=0)
_fairness = partial(_metric, group="fairness")
_time = partial(_metric, group="time", unit="s", better="lower")
_overlap = partial(_metric, group="time", needs="overlap", better="lower")


def _learned(*, key: str, **fields: Any) -> Metric[Facts]:
    """Return a metric of training; by default it is the last value of its curve, and in no table.

    Args:
        key: Its name, which is that of the curve too.
        **fields: The other fields of the metric.
    """
    return _trained(key=key, **{"compute": last_of(key)} | fields)


#: In the order in which they are written and shown.
LEARNING: tuple[Metric[Facts], ...] = (
    _learned(
        key="accuracy",
        heading="accuracy",
        meaning="Share of the test set that the global model classifies correctly.",
        better="higher",
        decimals=4,
        tables=_ALL,
    ),
    _learned(
        key="loss",
        heading="loss",
        meaning="Mean loss of the global model on the test set.",
        better="lower",
        tables=_ALL,
    ),
    _learned(
        key="holdout_accuracy",
        title="Hold-out accuracy",
        meaning="Share of all held-out examples of clients that the model classifies correctly.",
        detail="Clients keep these examples out of training; E3CS is tested on them.",
        needs="hold-out",
        better="higher",
        decimals=4,
        tables=frozenset({"train", "report"}),
    ),
    _learned(
        key="holdout_loss",
        title="Hold-out loss",
        meaning="Mean loss of the global model on the examples that all clients hold out.",
        needs="hold-out",
        better="lower",
    ),
    _learned(
        key="train_loss",
        title="Training loss",
        meaning="Mean loss that the clients of a round reported, weighted by their data.",
        better="lower",
    ),
    _learned(
        key="local_loss",
        meaning="Mean loss of the global model on all clients' own examples, weighted by data.",
        better="lower",
        tables=frozenset({"train"}),
    ),
    _learned(
        key="jain_of_losses",
        heading="Jain, losses",
        meaning="How equal the clients' losses on their own examples are: 1 means all equal.",
        detail=(
            "It is Jain's index of the losses (UCB-CS, Eq. (3)): (sum of losses)^2 / (n * sum of "
            "squared losses). With n clients it is 1/n if one client has all the loss. An equally "
            "bad model for all clients scores 1, so read it beside the loss."
        ),
        better="higher",
        tables=_ALL,
    ),
    _learned(
        key="worst_accuracy",
        title="Worst 10 %",
        heading="worst 10 %",
        meaning="Mean accuracy of the worst tenth of the clients, each on its own examples.",
        better="higher",
        tables=_ALL,
    ),
    _learned(
        key="best_accuracy",
        meaning="Highest accuracy on the test set during the run.",
        better="higher",
        decimals=4,
        tables=frozenset({"train"}),
        compute=lambda facts: max(facts.measured("accuracy").tolist(), default=math.nan),
    ),
)

#: The same, behind the rounds and times to the targets.
PROGRESS: tuple[Metric[Facts], ...] = (
    _trained(
        key="rounds_run",
        meaning="Rounds of the run: fewer than planned if it stopped at its target.",
        unit="rounds",
        decimals=0,
        tables=frozenset({"train"}),
    ),
    _trained(
        key="stopped_at_target",
        meaning="Whether the run ended early because it had reached its target accuracy.",
        decimals=0,
    ),
    _trained(
        key="broken_answers",
        title="Broken replies",
        meaning="Replies with a loss or weights that are not finite; they count as failed.",
        unit="replies",
        better="lower",
        decimals=0,
    ),
)

# --------------------------------------------------------------------------------------------------
# Metrics of participation, fairness and time: who is chosen, who answers, how long it takes.
# --------------------------------------------------------------------------------------------------

_SIMULATION: frozenset[Table] = frozenset({"simulate", "compare", "report"})


def _counts(index: Callable[[IntArray], float]) -> Callable[[Facts], float]:
    """Return a metric of the selection counts, where they are known."""
    return lambda facts: math.nan if facts.counts is None else index(facts.counts)


def _success_ratio(facts: Facts) -> float:
    n_chosen = np.nansum(facts.chosen)
    return float(np.nansum(facts.completed) / n_chosen) if n_chosen else math.nan


def _shortfall(facts: Facts) -> float:
    """Return how far the worst client fell behind half its fair share; NaN if that is not known."""
    if facts.run is None or not facts.run.knows_available or facts.run.overlaps:
        return math.nan
    return float(metrics.guarantee(facts.run, floor=0.5, cap=math.inf).shortfall.max())


def _served(measure: Callable[[FloatArray, IntArray], float]) -> Callable[[Facts], float]:
    """Return a metric of fair shares and counts, where it is known who was available."""

    def compute(facts: Facts) -> float:
        run, counts = facts.run, facts.counts
        if run is None or counts is None or not run.knows_available:
            return math.nan
        return measure(fair_places(run), counts)

    return compute


def _left_out(fair: FloatArray, counts: IntArray) -> float:
    return float(np.count_nonzero((fair > 0.0) & (counts == 0)))


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


def _overlapping(measure: Callable[[Run], float]) -> Callable[[Facts], float]:
    """Return a metric of a run whose rounds overlap."""

    def compute(facts: Facts) -> float:
        return measure(facts.run) if facts.run is not None and facts.run.overlaps else math.nan

    return compute


def _staleness(total: Callable[..., float]) -> Callable[[Facts], float]:
    def measure(run: Run) -> float:
        stale = run.stale
        return float(total(stale)) if stale.size else math.nan

    return _overlapping(measure)


def _idle_share(facts: Facts) -> float:
    at_work = _overlapping(lambda run: run.concurrency)(facts)
    places = facts.numbers.get("places", math.nan)
    return 1.0 - at_work / places if places else math.nan


#: Where rounds overlap.
OVERLAP: tuple[Metric[Facts], ...] = (
    _overlap(
        key="staleness",
        meaning="Aggregations between the model that a client got and the one that it changed.",
        detail="The mean over all answers that counted. 0 is a synchronous round.",
        unit="aggregations",
        decimals=2,
        compute=_staleness(np.mean),
    ),
    _overlap(
        key="largest_staleness",
        meaning="The largest staleness of an answer that counted.",
        unit="aggregations",
        decimals=0,
        tables=frozenset({"simulate", "train"}),
        compute=_staleness(np.max),
    ),
    _overlap(
        key="at_work",
        title="Clients at work",
        heading="at work",
        meaning="Mean number of clients at work at the same time.",
        unit="clients",
        better="neither",
        decimals=1,
        compute=_overlapping(lambda run: run.concurrency),
    ),
    _overlap(
        key="idle_places",
        heading="idle",
        meaning="Share of the places' time in which nobody held them.",
        compute=_idle_share,
    ),
    _overlap(
        key="wasted_share",
        heading="wasted",
        meaning="Share of the devices' time that was spent on answers that did not count.",
        compute=_overlapping(
            lambda run: run.wasted_s / run.spent.sum() if run.spent.any() else math.nan
        ),
    ),
)


def _sum_of(curve: str) -> Callable[[Facts], float]:
    """Return a computation: the sum of a curve over the rounds; NaN if there is none."""

    def total(facts: Facts) -> float:
        measured = facts.measured(curve)
        return float(measured.sum()) if measured.size else math.nan

    return total


def _most_energy(facts: Facts) -> float:
    """Return the joules of the client that spent most; NaN if they are not known by client."""
    joules = None if facts.run is None else facts.run.reported.get("energy_j")
    if facts.run is None or joules is None:
        return math.nan
    spent = np.bincount(facts.run.clients, np.nan_to_num(joules), facts.run.n_clients)
    return float(spent.max(initial=0.0))


#: In the order in which they are written and shown.
PARTICIPATION: tuple[Metric[Facts], ...] = (
    _metric(
        key="success_ratio",
        heading="success",
        meaning="Share of the chosen clients that replied in time.",
        better="higher",
        decimals=4,
        tables=_SIMULATION | {"train", "compare --train"},
        compute=_success_ratio,
    ),
    _metric(
        key="cep",
        title="CEP",
        meaning="Cumulative effective participation: the number of replies in time so far.",
        detail=(
            "Each chosen client that replies before the round closes adds 1. One that is late, "
            "fails or stays silent adds 0. The number grows with the rounds and the cohort, so "
            "compare it only between runs of one length. The success ratio is CEP per choice."
        ),
        unit="replies",
        better="higher",
        decimals=0,
        tables=_SIMULATION | {"train"},
        compute=lambda facts: int(np.nansum(facts.completed)),
    ),
    _metric(
        key="regret",
        meaning="Replies in time that the best fixed plan in hindsight would have had in addition.",
        detail=(
            "A fixed plan gives each client a chance of being chosen that stays as it is in all "
            "rounds. The best one can only be found when all outcomes are known. A selector that "
            "learns comes close to it: its regret per round goes to 0. The plan keeps its own "
            "fairness quota: selectors with different quotas are measured against different "
            "plans, and their regrets are not comparable."
        ),
        unit="replies",
        decimals=0,
        tables=frozenset({"simulate", "report"}),
        compute=last_of("regret"),
    ),
    _metric(
        key="regret_bound",
        meaning="Upper bound on the mean regret, by Theorem 1 of E3CS.",
        detail="Only E3CS has it, and only in worlds where every client is always available.",
        unit="replies",
        decimals=0,
        tables=frozenset({"simulate"}),
        compute=last_of("bound"),
    ),
    _fairness(
        key="least_share",
        title="Share of the least served",
        heading="least served",
        meaning="Places of the least served client, as a fraction of its fair share.",
        detail=(
            "The fair share of a round is its places over its available clients. 1 means that "
            "every client got its fair share, and 0 that some client was never chosen. Only "
            "clients count that were available at least half as often as the most available one."
        ),
        better="higher",
        decimals=2,
        tables=_SIMULATION | {"train", "compare --train"},
        compute=_served(least_share),
    ),
    _fairness(
        key="left_out",
        heading="left out",
        meaning="Clients that were available and never chosen.",
        unit="clients",
        better="lower",
        decimals=0,
        tables=frozenset({"simulate", "train"}),
        compute=_served(_left_out),
    ),
    _fairness(
        key="jain_of_counts",
        heading="Jain",
        meaning="How equally often clients were chosen: 1 means all equally often.",
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
        heading="Gini",
        meaning="How unequally often clients were chosen: 0 means all equally often.",
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
        heading="min rate",
        meaning="Share of the rounds in which the least chosen client took part.",
        detail=(
            "0.1 means that each client was chosen in at least every tenth round on average; 0 "
            "means that a client was never chosen. It cannot be larger than cohort / clients."
        ),
        better="higher",
        tables=_SIMULATION,
        compute=_minimum_rate,
    ),
    _fairness(
        key="shortfall",
        heading="shortfall",
        meaning="Places by which the worst client fell behind half its fair share, in any window.",
        detail=(
            "The fair share of a round is its places over its available clients. 10 means that in "
            "some run of consecutive rounds a client got ten places fewer than half of its fair "
            "share. The selector `guarded` bounds it, and `turnout audit` names the clients."
        ),
        unit="places",
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
        meaning="Time that devices spent on work whose result did not arrive in time.",
        decimals=1,
        tables=frozenset({"simulate", "report"}),
        compute=lambda facts: facts.wasted_s,
    ),
    _fairness(
        key="backlog_per_round",
        meaning="Choices still owed to the client with the longest queue, per round: 0 means none.",
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
        meaning="The rate of selection at which backlogs grow.",
        detail=(
            "It is the rate that the selector promises to every client, such as beta of RBCS-F; "
            "0.15 for selectors that promise none."
        ),
        tables=frozenset(),
    ),
    _energy(
        key="energy_j",
        title="Energy",
        heading="energy",
        meaning="Energy that the devices of chosen clients spent on work.",
        unit="J",
        compute=_sum_of("energy_j"),
    ),
    _energy(
        key="energy_per_reply_j",
        title="Energy per reply",
        meaning="That energy, divided by the replies in time.",
        detail="Work that fails or comes too late costs energy as well, and brings no reply.",
        unit="J",
        compute=lambda facts: _sum_of("energy_j")(facts) / max(1, int(np.nansum(facts.completed))),
    ),
    _energy(
        key="most_energy_j",
        title="Most energy of a client",
        meaning="Energy that the client spent that spent most.",
        unit="J",
        compute=_most_energy,
    ),
    _energy(
        key="co2_g",
        title="Carbon",
        heading="CO2",
        meaning="Carbon dioxide of that energy, by the hourly table of the grid.",
        detail="Only worlds with the energy `battery-on-grid` have it.",
        unit="g",
        decimals=1,
        compute=_sum_of("co2_g"),
    ),
    _metric(
        key="seconds",
        title="Computing time",
        meaning="Wall-clock time of the run.",
        group="computing",
        unit="s",
        decimals=2,
        tables=frozenset({"simulate", "train"}),
    ),
)

#: What the metrics of a group have in common.
GROUPS: Mapping[Group, str] = {
    "learning": "The quality of the trained model. A curve counts with its last measured value.",
    "participation": "How many of the chosen clients replied in time.",
    "fairness": "How evenly selections are spread over the clients.",
    "time": "Time on the virtual clock of the simulated federation.",
    "energy": "What work took from batteries. Only runs in worlds with batteries have it.",
    "computing": "The cost of the run on the computer that ran it.",
}


def all_metrics(targets: Iterable[float] = ()) -> list[Metric[Facts]]:
    """Return every metric, in order; those with a parameter once for each target.

    Args:
        targets: accuracies that the run is asked to reach.
    """
    return [*LEARNING, *at_targets(targets), *PROGRESS, *PARTICIPATION, *OVERLAP]


def shown_in(table: Table, targets: Iterable[float] = ()) -> list[Metric[Facts]]:
    """Return the metrics that a table shows, in order."""
    return [metric for metric in all_metrics(targets) if table in metric.tables]


def at_targets(targets: Iterable[float]) -> list[Metric[Facts]]:
    """Return the metrics that have a parameter, once for each target."""
    return [metric for target in targets for metric in to_target(target)]


def find(key: str) -> Metric[Facts] | None:
    """Return a metric by its key; None if there is none.

    Args:
        key: As in ``summary.json``. A number inside is the target of a metric that has one.

    >>> find("rounds_to_0.85").title
    'Rounds to 0.85'
    """
    target = re.search(r"\d+(\.\d+)?", key)
    metrics = all_metrics([float(target[0])] if target else [])
    return next((metric for metric in metrics if metric.key == key), None)


def metric_named(key: str) -> Metric[Facts]:
    """Return a metric by its key.

    Args:
        key: As in ``summary.json``.

    Raises:
        InvalidInput: There is none; the message has the nearest key.
    """
    metric = find(key)
    if metric is None:
        keys = [metric.key for metric in all_metrics([0.8])]  # with an example of a target
        raise InvalidInput(f"unknown metric {key!r}.{nearest(key, keys)}", field="metric")
    return metric


def summarize(facts: Facts) -> dict[str, float]:
    """Return the numbers of ``summary.json``; what is not defined is NaN.

    A metric of something that the run does not have is left out.

    Args:
        facts: what is known about the run.
    """
    values = [(metric, metric.compute(facts)) for metric in all_metrics(facts.targets)]
    return {
        metric.key: value
        for metric, value in values
        if metric.needs is None or metric.needs in facts.has or math.isfinite(value)
    }
