"""What a run comes to: the numbers of ``summary.json`` and the curves of ``selections.npz``."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout import metrics
from turnout.environments import Always, Environment
from turnout.schedules import at_round
from turnout.selector import Selector
from turnout.selectors.e3cs import E3CS
from turnout.simulate import Run
from turnout.types import Array, FloatArray

__all__ = ["BACKLOG_RATE", "curves", "quotas", "regret_bound", "summarize"]

#: Guaranteed rate that backlogs are counted for: beta of RBCS-F.
BACKLOG_RATE = 0.15


def quotas(selector: Selector, start: int, stop: int) -> FloatArray:
    """Return the fairness quota that each round's regret is measured at; 0 without one."""
    quota = getattr(selector, "quota", 0.0)
    when = range(start, stop)
    return np.array([at_round("quota", quota, t, maximum=1.0) for t in when], dtype=np.float64)


def regret_bound(selector: Selector, run: Run, world: Environment) -> FloatArray | None:
    """Return E3CS Theorem 1's bound after each round, where the theorem speaks."""
    if not isinstance(selector, E3CS) or not isinstance(world.availability, Always):
        return None
    eta = None if selector.eta == "theorem-1" else float(selector.eta)
    share = quotas(selector, 0, run.n_rounds)
    k = min(run.cohort_size, run.n_clients)
    return metrics.theorem1_bound(share, run.n_rounds, k, run.n_clients, eta)


def curves(run: Run, regret: FloatArray, bound: FloatArray | None) -> dict[str, Array]:
    """Return the columns that are computed at the end of a run."""
    backlog = run.backlog(BACKLOG_RATE)
    made = {"regret": regret, "backlog_mean": backlog.mean, "backlog_max": backlog.largest}
    return made if bound is None else made | {"bound": bound}


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
