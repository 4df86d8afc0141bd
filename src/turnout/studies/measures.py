"""The measures of the papers' figures and of the arena: one number per run.

Every metric of the catalogue is a measure. The others are needed for a figure or two; their
docstring is the meaning.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.core.types import FloatArray, IntArray, Status
from turnout.experiment import Cell
from turnout.results import metrics
from turnout.results.catalogue import all_metrics
from turnout.results.files import CLIENT_SCORES, FolderError
from turnout.results.guarantee import fair_places, least_share
from turnout.results.metric import Facts, Metric
from turnout.results.run import Run
from turnout.results.statistics import estimate

Compute = Callable[[Cell], float]

#: By name, filled by the functions below.
MEASURES: dict[str, Metric[Cell]] = {}


def _measure(name: str, title: str, decimals: int) -> Callable[[Compute], Compute]:
    """Return a decorator that turns a function of a run into a measure.

    NaN means that the run diverged, infinity that it never reached the target.
    """

    def register(compute: Compute) -> Compute:
        meaning = compute.__doc__ or ""
        MEASURES[name] = Metric(
            key=name, title=title, decimals=decimals, meaning=meaning, compute=compute
        )
        return compute

    return register


def success_per_round(cell: Cell) -> FloatArray:
    """Return (T,) the share of the chosen clients that answered in each round.

    Args:
        cell: A complete run.
    """
    run = cell.run
    answered = np.diff(run.cep, prepend=0)
    share: FloatArray = answered / np.maximum(np.diff(run.offsets), 1)
    return share


def client_losses(cell: Cell) -> FloatArray:
    """Return (n,) the loss of the last model on each client's own examples.

    Args:
        cell: A complete run that trained a model.
    """
    if not cell.scores:
        raise FolderError(f"{cell.path} has no {CLIENT_SCORES}: nothing was trained there.")
    return cell.scores["loss"]


@_measure("cep-first-quarter", "CEP at T/4", 0)
def _cep_first_quarter(cell: Cell) -> float:
    """Return the answers in time in the first quarter of the rounds."""
    run = cell.run
    return float(run.cep[max(run.n_rounds // 4, 1) - 1])


@_measure("success-last-quarter", "success, last T/4", 4)
def _success_last_quarter(cell: Cell) -> float:
    """Return the mean success ratio of the rounds in the last quarter."""
    share = success_per_round(cell)
    return float(share[-max(share.size // 4, 1) :].mean())


def _by_class(cell: Cell) -> list[IntArray]:
    """Return the selection counts of each class, in the order of success rates."""
    counts, classes = cell.run.counts, cell.class_of
    if classes is None:
        raise FolderError(f"{cell.path}: the clients of this world have no classes.")
    return [counts[classes == number] for number in range(int(classes.max()) + 1)]


@_measure("best-class-share", "share of the best class", 3)
def _best_class_share(cell: Cell) -> float:
    """Return the share of all places that went to the most reliable class."""
    counts = _by_class(cell)
    return float(counts[-1].sum() / sum(part.sum() for part in counts))


@_measure("largest-wrong-count", "wrong choices per client", 1)
def _largest_wrong_count(cell: Cell) -> float:
    """Return the mean selection count of the class that was chosen most among the others."""
    return max(float(part.mean()) for part in _by_class(cell)[:-1])


@_measure("best-class-jain", "Jain inside the best class", 3)
def _best_class_jain(cell: Cell) -> float:
    """Return the Jain index of the selection counts in the most reliable class."""
    return metrics.jain_of_counts(_by_class(cell)[-1])


@_measure("best-class-quartile", "lower quartile of the best class / T", 3)
def _best_class_quartile(cell: Cell) -> float:
    """Return the lower quartile of selection counts in the best class, as a share of rounds."""
    return float(np.quantile(_by_class(cell)[-1], 0.25)) / cell.run.n_rounds


@_measure("turn-offset", "change point - T/4, rounds", 1)
def _turn_offset(cell: Cell) -> float:
    """Return the least-squares change point of the success per round, minus T/4."""
    share = success_per_round(cell)
    before = np.cumsum(share)[:-1]
    size = np.arange(1, share.size)
    gain = before**2 / size + (share.sum() - before) ** 2 / (share.size - size)
    return float(size[int(np.argmax(gain))] - share.size // 4)


def _last_fifth(cell: Cell) -> tuple[FloatArray, FloatArray]:
    backlog = cell.curves["backlog_mean"]
    size = max(backlog.size // 5, 2)
    rounds: FloatArray = np.arange(backlog.size - size + 1, backlog.size + 1, dtype=np.float64)
    return rounds, backlog[-size:]


@_measure("backlog-level", "mean queue, last T/5", 2)
def _backlog_level(cell: Cell) -> float:
    """Return the mean fairness queue in the last fifth of the rounds."""
    return float(_last_fifth(cell)[1].mean())


@_measure("backlog-growth", "growth exponent, last T/5", 2)
def _backlog_growth(cell: Cell) -> float:
    """Return the exponent a of backlog ~ t**a at the end: slope x round / level."""
    rounds, backlog = _last_fifth(cell)
    slope = float(np.polyfit(rounds - rounds.mean(), backlog, 1)[0])
    level = float(backlog.mean())
    return slope * float(rounds.mean()) / level if level > 0.0 else 0.0


@_measure("time-constant", "time constant, rounds", 0)
def _time_constant(cell: Cell) -> float:
    """Return the first round in which the backlog reaches 1 - 1/e of its final level."""
    level = (1.0 - math.exp(-1.0)) * _backlog_level(cell)
    return float(np.argmax(cell.curves["backlog_mean"] >= level) + 1)


@_measure("shortfall-fall", "fall of longest queue / t, T/2 to T", 4)
def _shortfall_fall(cell: Cell) -> float:
    """Return longest queue / rounds at T/2, minus the same at T."""
    longest = cell.curves["backlog_max"]
    half = max(longest.size // 2, 1)
    return float(longest[half - 1] / half - longest[-1] / longest.size)


@_measure("cohort-mean", "mean cohort", 2)
def _cohort_mean(cell: Cell) -> float:
    """Return the mean number of clients chosen in a round."""
    return float(np.diff(cell.run.offsets).mean())


@_measure("least-share", "least share of fair", 2)
def _least_share(cell: Cell) -> float:
    """Return the smallest ratio of places to fair places."""
    return least_share(fair_places(cell.run), cell.run.counts)


@_measure("least-answered", "least share of answers", 2)
def _least_answered(cell: Cell) -> float:
    """Return the smallest ratio of a client's answers in time to its fair share of all answers."""
    run, fair = cell.run, fair_places(cell.run)
    answers = np.bincount(run.clients[run.status == Status.COMPLETED], minlength=run.n_clients)
    total = float(fair.sum())
    return least_share(fair * (answers.sum() / total), answers) if total else math.nan


@_measure("wasted-share", "wasted device time", 3)
def _wasted_share(cell: Cell) -> float:
    """Return the share of the devices' working time whose result was not used."""
    worked = float(cell.run.spent.sum())
    return cell.run.wasted_s / worked if worked else 0.0


def _mean_look(cell: Cell, name: str) -> float:
    looks = cell.run.measured.get(name, np.zeros(0))
    looks = looks[np.isfinite(looks)]
    return float(looks.mean()) if looks.size else math.nan


@_measure("found-utility", "utility of the chosen, 0 = mean, 1 = best", 3)
def _found_utility(cell: Cell) -> float:
    """Return the mean utility of the chosen over all looks of a run that was watched."""
    return _mean_look(cell, "chosen_utility")


@_measure("missed-utility", "share of the best utility missed", 3)
def _missed_utility(cell: Cell) -> float:
    """Return the mean share of the best cohort's utility that was missed, over all looks."""
    return _mean_look(cell, "utility_regret")


def _evaluated(cell: Cell, name: str) -> tuple[IntArray, FloatArray]:
    """Return the rounds in which training evaluates a curve, and its values.

    A value that is not finite stays NaN: the model had diverged by then.
    """
    training = cell.settings.training
    every = training["evaluate_clients_every" if name == "local_loss" else "evaluate_every"]
    n_rounds = cell.settings.n_rounds
    rounds = np.unique(np.append(np.arange(every, n_rounds + 1, every), n_rounds))
    values = cell.run.measured.get(name, np.zeros(0))
    padded = np.full(n_rounds, np.nan)
    padded[: values.size] = values
    return rounds, padded[rounds - 1]


def _window(name: str, title: str, curve: str, first: float, last: float, worst: float) -> Compute:
    """Register the mean of a curve between two shares of the planned rounds.

    A round in which the model had diverged counts as ``worst``. NaN marks the run as diverged.
    """

    def mean(cell: Cell) -> float:
        rounds, values = _evaluated(cell, curve)
        share = rounds / cell.settings.n_rounds
        inside = values[(share > first) & (share <= last)]
        inside = inside if inside.size else values[-1:]
        return float(np.where(np.isfinite(inside), inside, worst).mean())

    mean.__doc__ = f"Mean {curve} between {first:.0%} and {last:.0%} of the planned rounds."
    return _measure(name, title, 4)(mean)


def rounds_to(name: str, level: float) -> Compute:
    """Return a measure: the first round in which a curve reaches a level, or infinity.

    Args:
        name: The curve, a name of ``Run.measured``.
        level: The level, a share.
    """

    def first(cell: Cell) -> float:
        rounds, values = _evaluated(cell, name)
        reached = np.flatnonzero(np.nan_to_num(values, nan=-np.inf) >= level)
        return float(rounds[reached[0]]) if reached.size else math.inf

    return first


def _spent_to(spent: Callable[[Run], FloatArray]) -> Callable[[str, float], Compute]:
    """Return what makes measures: how much was spent when a curve reaches a level, or infinity.

    Args:
        spent: Returns (T,) what a run has spent after each round.
    """

    def spent_to(name: str, level: float) -> Compute:
        in_rounds = rounds_to(name, level)

        def first(cell: Cell) -> float:
            rounds = in_rounds(cell)
            return float(spent(cell.run)[int(rounds) - 1]) if math.isfinite(rounds) else math.inf

        return first

    return spent_to


time_to = _spent_to(lambda run: run.clock_s)
energy_to = _spent_to(lambda run: np.nancumsum(run.measured["energy_j"]))


def _worst_client_loss(cell: Cell) -> float:
    """Return the loss of the last model on the client with the largest loss."""
    return float(np.max(client_losses(cell)))


def _log(name: str, title: str, compute: Compute) -> Compute:
    """Register the logarithm of a measure whose scale differs between seeds."""

    def log(cell: Cell) -> float:
        return math.log(max(compute(cell), math.ulp(0.0)))

    log.__doc__ = f"Logarithm: {compute.__doc__}"
    return _measure(name, title, 3)(log)


#: The global loss is Eq. (1) of UCB-CS.
_global_loss = _window(
    "global-loss", "global loss, last T/10", "local_loss", 0.9, 1.0, worst=math.nan
)
_early_loss = _window(
    "global-loss-early", "global loss, first T/4", "local_loss", 0.0, 0.25, worst=math.nan
)
_log("log-global-loss", "log global loss, last T/10", _global_loss)
_log("log-global-loss-early", "log global loss, first T/4", _early_loss)
_log("log-worst-client-loss", "log largest local loss", _worst_client_loss)
_window("final-accuracy", "accuracy, last T/20", "accuracy", 0.95, 1.0, worst=0.0)
_window("early-accuracy", "accuracy, first T/4", "accuracy", 0.0, 0.25, worst=0.0)
_window("final-hold-out", "hold-out accuracy, last T/20", "holdout_accuracy", 0.95, 1.0, worst=0.0)
_window("early-hold-out", "hold-out accuracy, first T/4", "holdout_accuracy", 0.0, 0.25, worst=0.0)


#: Metrics that have another name in presets and kept results than their key with hyphens.
_OTHER_NAMES: Mapping[str, str] = {
    "jain_of_counts": "jain",
    "gini_of_counts": "gini",
    "total_time_s": "total-time",
    "accuracy": "test-accuracy",
}

#: Times to an accuracy, by the beginning of their name; the rest is the accuracy, as a share.
_TIMES: Mapping[str, tuple[Callable[[str, float], Compute], str, str]] = {
    "rounds-to-hold-out-": (rounds_to, "holdout_accuracy", "rounds to {:.0%} on the hold-out"),
    "rounds-to-": (rounds_to, "accuracy", "rounds to {:.0%}"),
    "time-to-": (time_to, "accuracy", "time to {:.0%}, s"),
    "energy-to-": (energy_to, "accuracy", "energy to {:.0%}, J"),
}

#: Beginning of the rounds to the best accuracy of another scheme with the same seed; the label of
#: the scheme follows. ``Trials.values`` computes them from kept curves: a single run has none.
RELATIVE = "rounds-to-best-of-"


@lru_cache(maxsize=256)
def measure_named(name: str) -> Metric[Cell]:
    """Return a measure by its name.

    Args:
        name: The key of a metric with hyphens, a measure of single figures, or a time to an
            accuracy: ``rounds-to-0.75``, ``rounds-to-hold-out-0.75``, ``time-to-0.75``,
            ``rounds-to-best-of-Random``.

    >>> measure_named("rounds-to-0.75").title
    'rounds to 75%'
    """
    metrics = {
        _OTHER_NAMES.get(metric.key, metric.key.replace("_", "-")): metric
        for metric in all_metrics()
    }
    if name in MEASURES:
        return MEASURES[name]
    if name in metrics:
        return _read_back(metrics[name])
    start, level = _split(name)
    if start:
        make, curve, title = _TIMES[start]
        meaning = f"First time at which {curve} is at least {level:g}."
        return _time(name, title.format(level), meaning, make(curve, level))
    if name.startswith(RELATIVE):
        other = name.removeprefix(RELATIVE)
        meaning = f"First round that is as accurate as {other} at its best, with the same seed."
        return _time(name, f"rounds to the best of {other}", meaning, _needs_another_run)
    names = (*metrics, *MEASURES, *(f"{start}0.8" for start in _TIMES))
    raise InvalidInput(f"unknown measure {name!r}.{nearest(name, names)}", field="measure")


def _time(name: str, title: str, meaning: str, compute: Compute) -> Metric[Cell]:
    return Metric(
        key=name, title=title, meaning=meaning, compute=compute, decimals=0, is_time_to=True
    )


def _needs_another_run(cell: Cell) -> float:
    raise InvalidInput(f"{cell.path} has only one of the two runs.", field="measure")


def target_of(name: str) -> tuple[str, float] | None:
    """Return the curve and the level of a time to an accuracy; None for another measure.

    Args:
        name: Name of the measure.

    >>> target_of("rounds-to-hold-out-0.75")
    ('holdout_accuracy', 0.75)
    """
    start, level = _split(name)
    return (_TIMES[start][1], level) if start else None


def _split(name: str) -> tuple[str, float]:
    """Return the beginning of a time's name and its level; an empty one for another measure."""
    for start in _TIMES:
        level = name.removeprefix(start)
        if level != name and re.fullmatch(r"0?\.\d+", level):
            return start, float(level)
    return "", 0.0


def _read_back(metric: Metric[Facts]) -> Metric[Cell]:
    """Return a metric as ``summary.json`` has it; one that an old file lacks is computed."""

    def read(cell: Cell) -> float:
        if metric.key not in cell.summary:
            return metric.compute(Facts.of_cell(cell))
        value = cell.summary[metric.key]
        return math.nan if value is None else float(value)

    return dataclasses.replace(cast(Metric[Any], metric), compute=read)


def comparable(values: FloatArray, measure: Metric[Cell]) -> FloatArray:
    """Return the values without seeds that another scheme lacks.

    Args:
        values: One per seed.
        measure: The measure. NaN has this meaning only for times to the best of another scheme.
    """
    return values[~np.isnan(values)] if measure.key.startswith(RELATIVE) else values


def typical(values: FloatArray, measure: Metric[Cell]) -> str:
    """Return a measure over seeds as text: for times that were all reached, the geometric mean.

    Args:
        values: One per seed; NaN = diverged, infinity = never reached.
        measure: The measure.
    """
    if measure.is_time_to and np.isfinite(values).all():
        return format(float(np.exp(np.log(values).mean())), measure.form)
    return shown(values, measure)


def shown(values: FloatArray, measure: Metric[Cell]) -> str:
    """Return a measure over seeds as text: mean and interval, or the median of times.

    Args:
        values: One per seed; NaN = diverged, infinity = never reached.
        measure: The measure.
    """
    values = comparable(values, measure)
    known = values[~np.isnan(values)]
    if not known.size:
        return "diverged" if values.size else "-"
    if measure.is_time_to:
        middle = float(np.median(known))
        text = "never" if math.isinf(middle) else format(middle, measure.form)
    else:
        text = estimate(values).written(measure.form)
    counts = {"diverged": values.size - known.size, "never": int(np.isinf(known).sum())}
    if counts["never"] == known.size:
        del counts["never"]  # the text says it already
    remarks = [f"{n} of {values.size} {what}" for what, n in counts.items() if n]
    return f"{text} ({', '.join(remarks)})" if remarks else text
