"""What is computed when a run ends: the curves that ``selections.npz`` holds beside the choices."""

from __future__ import annotations

from turnout.runs.run import Run
from turnout.types import Array, FloatArray

#: The rate that backlogs are counted at for a selector that promises none: beta of RBCS-F.
REFERENCE_RATE = 0.15


def backlog_rate(promised: float | None) -> float:
    """Return the rate that backlogs are counted at.

    Args:
        promised: The share of rounds that the selector promises every client, if it promises one.
    """
    return REFERENCE_RATE if promised is None else promised


def curves_at_end(
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
