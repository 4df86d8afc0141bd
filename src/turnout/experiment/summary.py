"""What a run comes to: the numbers of ``summary.json`` and the curves of ``selections.npz``."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.runs.facts import Facts, Need
from turnout.runs.run import Run
from turnout.training import Federation
from turnout.types import Array, FloatArray

__all__ = [
    "REFERENCE_RATE",
    "backlog_rate",
    "curves",
    "facts_of",
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


def facts_of(
    run: Run,
    at_end: Mapping[str, Array],
    numbers: Mapping[str, float],
    federation: Federation | None,
) -> Facts:
    """Return what the metrics of a run are computed from.

    Args:
        run: The run.
        at_end: The curves that are computed at its end.
        numbers: Single numbers that nothing else tells, such as ``seconds``.
        federation: What trained a model; None in a simulation.
    """
    if federation is None:
        return Facts.of_run(run, at_end, numbers)
    has: frozenset[Need] = frozenset({"training"})
    has |= {"hold-out"} if federation.data.has_holdout else frozenset()
    counted = {"rounds_run": run.n_rounds, "broken_answers": federation.n_broken}
    targets = federation.training.target_accuracy
    return Facts.of_run(run, at_end, {**numbers, **counted}, targets=targets, has=has)
