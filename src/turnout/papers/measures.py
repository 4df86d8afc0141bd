"""What the papers' figures are judged by: one number per run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout import metrics
from turnout.errors import InvalidInput
from turnout.experiment import Cell
from turnout.names import nearest
from turnout.runs.files import CLIENT_SCORES, FolderError
from turnout.types import FloatArray, IntArray

__all__ = ["MEASURES", "Measure", "client_losses", "measure_named", "success_per_round"]


class Measure(NamedTuple):
    """A number of a run, and how it is written.

    Args:
        compute: NaN means that the run diverged, infinity that it never got there.
        form: Format of the number.
        what: Heading.
        is_time: Whether it is a time to a target, which a run may never reach.
    """

    compute: Callable[[Cell], float]
    form: str
    what: str
    is_time: bool = False


def success_per_round(cell: Cell) -> FloatArray:
    """Return (T,) the share of the chosen that answered in each round."""
    run = cell.run
    answered = np.diff(run.cep, prepend=0)
    share: FloatArray = answered / np.maximum(np.diff(run.offsets), 1)
    return share


def client_losses(cell: Cell) -> FloatArray:
    """Return (n,) the loss of the last model on each client's own examples."""
    if not cell.scores:
        raise FolderError(f"{cell.path} has no {CLIENT_SCORES}: nothing was trained there.")
    return cell.scores["loss"]


def _cep_first_quarter(cell: Cell) -> float:
    run = cell.run
    return float(run.cep[max(run.n_rounds // 4, 1) - 1])


def _success_last_quarter(cell: Cell) -> float:
    share = success_per_round(cell)
    return float(share[-max(share.size // 4, 1) :].mean())


def _by_class(cell: Cell) -> list[IntArray]:
    """Return the selection counts of each class, in the order of success rates."""
    counts, classes = cell.run.counts, cell.class_of
    if classes is None:
        raise FolderError(f"{cell.path}: the clients of this world have no classes.")
    return [counts[classes == number] for number in range(int(classes.max()) + 1)]


def _best_class_share(cell: Cell) -> float:
    counts = _by_class(cell)
    return float(counts[-1].sum() / sum(part.sum() for part in counts))


def _largest_wrong_count(cell: Cell) -> float:
    return max(float(part.mean()) for part in _by_class(cell)[:-1])


def _best_class_jain(cell: Cell) -> float:
    return metrics.jain_of_counts(_by_class(cell)[-1])


def _best_class_quartile(cell: Cell) -> float:
    return float(np.quantile(_by_class(cell)[-1], 0.25)) / cell.run.n_rounds


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


def _backlog_level(cell: Cell) -> float:
    return float(_last_fifth(cell)[1].mean())


def _backlog_growth(cell: Cell) -> float:
    """Return the exponent a of backlog ~ t**a at the end: slope x round / level."""
    rounds, backlog = _last_fifth(cell)
    slope = float(np.polyfit(rounds - rounds.mean(), backlog, 1)[0])
    level = float(backlog.mean())
    return slope * float(rounds.mean()) / level if level > 0.0 else 0.0


def _time_constant(cell: Cell) -> float:
    """Return the first round in which the backlog reaches 1 - 1/e of its final level."""
    level = (1.0 - math.exp(-1.0)) * _backlog_level(cell)
    return float(np.argmax(cell.curves["backlog_mean"] >= level) + 1)


def _shortfall_fall(cell: Cell) -> float:
    """Return longest queue / rounds at T/2, minus the same at T."""
    longest = cell.curves["backlog_max"]
    half = max(longest.size // 2, 1)
    return float(longest[half - 1] / half - longest[-1] / longest.size)


def _cohort_mean(cell: Cell) -> float:
    return float(np.diff(cell.run.offsets).mean())


def _looked_at(cell: Cell, name: str) -> tuple[IntArray, FloatArray]:
    """Return the rounds in which training looks at something, and what it saw.

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


def _window(name: str, first: float, last: float, worst: float) -> Callable[[Cell], float]:
    """Return the mean of a curve between two shares of the planned rounds.

    ``worst`` counts for a round in which the model had diverged; NaN makes the run a divergence.
    """

    def mean(cell: Cell) -> float:
        rounds, values = _looked_at(cell, name)
        share = rounds / cell.settings.n_rounds
        inside = values[(share > first) & (share <= last)]
        inside = inside if inside.size else values[-1:]
        return float(np.where(np.isfinite(inside), inside, worst).mean())

    return mean


def _rounds_to(name: str, level: float) -> Callable[[Cell], float]:
    """Return the first round in which a curve is at least at a level; infinity if it never is."""

    def first(cell: Cell) -> float:
        rounds, values = _looked_at(cell, name)
        reached = np.flatnonzero(np.nan_to_num(values, nan=-np.inf) >= level)
        return float(rounds[reached[0]]) if reached.size else math.inf

    return first


def _time_to(name: str, level: float) -> Callable[[Cell], float]:
    """Return the virtual time of the first round in which a curve is at least at a level."""
    rounds_to = _rounds_to(name, level)

    def first(cell: Cell) -> float:
        rounds = rounds_to(cell)
        return float(cell.run.clock_s[int(rounds) - 1]) if math.isfinite(rounds) else math.inf

    return first


def _worst_client_loss(cell: Cell) -> float:
    return float(np.max(client_losses(cell)))


def _log(compute: Callable[[Cell], float]) -> Callable[[Cell], float]:
    """Return the logarithm of a measure, for values whose scale differs between seeds."""
    return lambda cell: math.log(max(compute(cell), math.ulp(0.0)))


#: Mean global loss, Eq. (1) of UCB-CS, over the last tenth and the first quarter of the run.
_GLOBAL_LOSS = _window("local_loss", 0.9, 1.0, math.nan)
_EARLY_LOSS = _window("local_loss", 0.0, 0.25, math.nan)


def _summary(name: str) -> Callable[[Cell], float]:
    def read(cell: Cell) -> float:
        value = cell.summary.get(name)
        return math.nan if value is None else float(value)

    return read


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "success-ratio": Measure(_summary("success_ratio"), ".4f", "success ratio"),
        "cep": Measure(_summary("cep"), ".0f", "CEP"),
        "cep-first-quarter": Measure(_cep_first_quarter, ".0f", "CEP at T/4"),
        "success-last-quarter": Measure(_success_last_quarter, ".4f", "success, last T/4"),
        "jain": Measure(_summary("jain_of_counts"), ".3f", "Jain of counts"),
        "gini": Measure(_summary("gini_of_counts"), ".3f", "Gini of counts"),
        "minimum-rate": Measure(_summary("minimum_rate"), ".3f", "minimum rate"),
        "total-time": Measure(_summary("total_time_s"), ".0f", "total time, s"),
        "backlog-per-round": Measure(_summary("backlog_per_round"), ".3f", "longest queue / T"),
        "regret": Measure(_summary("regret"), ".0f", "regret"),
        "regret-bound": Measure(_summary("regret_bound"), ".0f", "bound"),
        "best-class-share": Measure(_best_class_share, ".3f", "share of the best class"),
        "largest-wrong-count": Measure(_largest_wrong_count, ".1f", "wrong choices per client"),
        "best-class-jain": Measure(_best_class_jain, ".3f", "Jain inside the best class"),
        "best-class-quartile": Measure(
            _best_class_quartile, ".3f", "lower quartile of the best class / T"
        ),
        "turn-offset": Measure(_turn_offset, ".1f", "change point - T/4, rounds"),
        "backlog-level": Measure(_backlog_level, ".2f", "mean queue, last T/5"),
        "backlog-growth": Measure(_backlog_growth, ".2f", "growth exponent, last T/5"),
        "time-constant": Measure(_time_constant, ".0f", "time constant, rounds"),
        "shortfall-fall": Measure(_shortfall_fall, ".4f", "fall of longest queue / t, T/2 to T"),
        "global-loss": Measure(_GLOBAL_LOSS, ".4f", "global loss, last T/10"),
        "global-loss-early": Measure(_EARLY_LOSS, ".4f", "global loss, first T/4"),
        "log-global-loss": Measure(_log(_GLOBAL_LOSS), ".3f", "log global loss, last T/10"),
        "log-global-loss-early": Measure(_log(_EARLY_LOSS), ".3f", "log global loss, first T/4"),
        "jain-of-losses": Measure(_summary("jain_of_losses"), ".3f", "Jain of local losses"),
        "worst-client-loss": Measure(_worst_client_loss, ".3f", "largest local loss"),
        "test-accuracy": Measure(_summary("accuracy"), ".4f", "test accuracy"),
        "final-accuracy": Measure(
            _window("accuracy", 0.95, 1.0, 0.0), ".4f", "accuracy, last T/20"
        ),
        "early-accuracy": Measure(
            _window("accuracy", 0.0, 0.25, 0.0), ".4f", "accuracy, first T/4"
        ),
        "final-hold-out": Measure(
            _window("holdout_accuracy", 0.95, 1.0, 0.0), ".4f", "hold-out accuracy, last T/20"
        ),
        "early-hold-out": Measure(
            _window("holdout_accuracy", 0.0, 0.25, 0.0), ".4f", "hold-out accuracy, first T/4"
        ),
        "cohort-mean": Measure(_cohort_mean, ".2f", "mean cohort"),
    }
)

#: Times to an accuracy, by the beginning of their name; the rest is the accuracy, as a share.
_TIMES: Mapping[str, tuple[Callable[[str, float], Callable[[Cell], float]], str, str]] = (
    MappingProxyType(
        {
            "rounds-to-hold-out-": (
                _rounds_to,
                "holdout_accuracy",
                "rounds to {:.0%} on the hold-out",
            ),
            "rounds-to-": (_rounds_to, "accuracy", "rounds to {:.0%}"),
            "time-to-": (_time_to, "accuracy", "time to {:.0%}, s"),
        }
    )
)


def measure_named(name: str) -> Measure:
    """Return a measure by its name.

    Args:
        name: A name of ``MEASURES``, or a time to an accuracy: ``rounds-to-0.75``,
            ``rounds-to-hold-out-0.75``, ``time-to-0.75``.

    >>> measure_named("rounds-to-0.75").what
    'rounds to 75%'
    """
    if name in MEASURES:
        return MEASURES[name]
    for start, (compute, curve, what) in _TIMES.items():
        level = name.removeprefix(start)
        if level != name and re.fullmatch(r"0?\.\d+", level):
            share = float(level)
            return Measure(compute(curve, share), ".0f", what.format(share), is_time=True)
    known = (*MEASURES, *(f"{start}0.8" for start in _TIMES))
    raise InvalidInput(f"unknown measure {name!r}.{nearest(name, known)}", field="measure")
