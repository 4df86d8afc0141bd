"""What the metrics of a cell are computed from, with or without training."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.runs.facts import Facts, Need
from turnout.runs.run import Run
from turnout.training import Federation
from turnout.types import Array


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
