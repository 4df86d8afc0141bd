"""What the papers' figures are judged by: one number per run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout import metrics
from turnout.experiment import Cell
from turnout.types import FloatArray, IntArray

__all__ = ["MEASURES", "Measure", "success_per_round"]


class Measure(NamedTuple):
    """A number of a run, and how it is written."""

    compute: Callable[[Cell], float]
    form: str
    what: str


def success_per_round(cell: Cell) -> FloatArray:
    """Return (T,) the share of the chosen that answered in each round."""
    run = cell.run
    answered = np.diff(run.cep, prepend=0)
    share: FloatArray = answered / np.maximum(np.diff(run.offsets), 1)
    return share


def _cep_first_quarter(cell: Cell) -> float:
    run = cell.run
    return float(run.cep[max(run.n_rounds // 4, 1) - 1])


def _success_last_quarter(cell: Cell) -> float:
    share = success_per_round(cell)
    return float(share[-max(share.size // 4, 1) :].mean())


def _by_class(cell: Cell) -> list[IntArray]:
    """Return the selection counts of each class, in the order of success rates."""
    counts, classes = cell.run.counts, cell.columns["class_of"]
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
    backlog = cell.columns["backlog_mean"]
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
    return float(np.argmax(cell.columns["backlog_mean"] >= level) + 1)


def _shortfall_fall(cell: Cell) -> float:
    """Return longest queue / rounds at T/2, minus the same at T."""
    longest = cell.columns["backlog_max"]
    half = max(longest.size // 2, 1)
    return float(longest[half - 1] / half - longest[-1] / longest.size)


def _cohort_offset(cell: Cell) -> float:
    """Return how far the mean cohort is from 8, in standard deviations between rounds."""
    sizes = np.diff(cell.run.offsets)
    spread = float(sizes.std())
    return abs(float(sizes.mean()) - 8.0) / spread if spread > 0.0 else math.inf


def _cohort_mean(cell: Cell) -> float:
    return float(np.diff(cell.run.offsets).mean())


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
        "cohort-offset": Measure(_cohort_offset, ".2f", "deviations of the cohort size from 8"),
        "cohort-mean": Measure(_cohort_mean, ".2f", "mean cohort"),
    }
)
