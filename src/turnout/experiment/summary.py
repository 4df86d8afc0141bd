"""What a run comes to: the numbers of ``summary.json`` and the curves of ``selections.npz``."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout import metrics
from turnout.runs.run import Run
from turnout.training import Federation
from turnout.types import Array, FloatArray

__all__ = [
    "REFERENCE_RATE",
    "backlog_rate",
    "curves",
    "summarize",
    "summarize_training",
    "to_target",
]

#: The rate that backlogs are counted at for a selector that promises none: beta of RBCS-F.
REFERENCE_RATE = 0.15


def backlog_rate(promised: float | None) -> float:
    """Return the rate that backlogs are counted at.

    Args:
        promised: The share of rounds that the selector promises every client, if it promises one.
    """
    return REFERENCE_RATE if promised is None else promised


def curves(
    run: Run, rate: float, regret: FloatArray, bound: FloatArray | None = None
) -> dict[str, Array]:
    """Return the columns that are computed at the end of a run.

    Args:
        run: The run.
        rate: The rate that backlogs are counted at.
        regret: (T,) the regret after each round.
        bound: (T,) the selector's bound on it.
    """
    backlog = run.backlog(rate)
    at_end = {"regret": regret, "backlog_mean": backlog.mean, "backlog_max": backlog.largest}
    return at_end if bound is None else at_end | {"bound": bound}


def summarize(run: Run, made: dict[str, Array], seconds: float) -> dict[str, Any]:
    """Return the numbers a run is judged by; what is not defined is NaN."""
    counts = run.counts
    bound = made.get("bound")
    return {
        "success_ratio": run.success_ratio,
        "cep": int(run.cep[-1]),
        "regret": float(made["regret"][-1]),
        "regret_bound": float("nan") if bound is None else float(bound[-1]),
        "jain_of_counts": metrics.jain_of_counts(counts),
        "gini_of_counts": metrics.gini_of_counts(counts),
        "minimum_rate": metrics.minimum_rate(counts, run.n_rounds),
        "round_time_s": float(run.length_s.mean()),
        "total_time_s": float(run.length_s.sum()),
        "wasted_s": run.wasted_s,
        "backlog_per_round": float(made["backlog_max"][-1]) / run.n_rounds,
        "seconds": seconds,
    }


def summarize_training(run: Run, federation: Federation, n_rounds: int) -> dict[str, Any]:
    """Return the numbers of a trained model; ``rounds_run`` is less than planned if it stopped."""
    curve = run.measured.get("accuracy", np.zeros(0))
    names = (*_FINAL, *_POOLED) if federation.data.has_holdout else _FINAL
    final = {name: _last(run.measured.get(name)) for name in names}
    reached: dict[str, float] = {}
    for target in federation.training.target_accuracy:
        for_rounds, for_time = to_target(target)
        reached[for_rounds] = run.rounds_to(target) if curve.size else float("nan")
        reached[for_time] = run.time_to(target) if curve.size else float("nan")
    return {
        **final,
        "best_accuracy": float(np.fmax.reduce(curve, initial=-np.inf)),
        **reached,
        "rounds_run": run.n_rounds,
        "stopped_at_target": federation.is_done and run.n_rounds < n_rounds,
        "broken_answers": federation.n_broken,
    }


def to_target(target: float) -> tuple[str, str]:
    """Return the names of the rounds and of the time to an accuracy in ``summary.json``.

    >>> to_target(0.9)
    ('rounds_to_0.9', 'time_to_0.9_s')
    """
    return f"rounds_to_{target:g}", f"time_to_{target:g}_s"


#: What is reported as it was when it was last measured.
_FINAL = ("accuracy", "loss", "train_loss", "local_loss", "jain_of_losses", "worst_accuracy")
#: The same, in runs in which clients hold out examples.
_POOLED = ("holdout_accuracy", "holdout_loss")


def _last(values: FloatArray | None) -> float:
    known = np.zeros(0) if values is None else values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")
