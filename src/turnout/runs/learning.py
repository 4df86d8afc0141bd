"""Metrics of learning: how good the trained model is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from turnout import metrics
from turnout.runs.facts import Facts, last_of, number_of
from turnout.runs.metric import Metric, Table

#: Metrics with a parameter: those of one target accuracy.
Family = Callable[[float], Iterable[Metric[Facts]]]

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


def _learned(*, key: str, **fields: Any) -> Metric[Facts]:
    """Return a metric of training: unless told otherwise the last value of its curve, in no table.

    Args:
        key: Its name, which is that of the curve too.
        **fields: The other fields of the metric.
    """
    usual: dict[str, Any] = {
        "group": "learning",
        "needs": "training",
        "tables": frozenset(),
        "compute": last_of(key),
    }
    return Metric(key=key, **usual | fields)


#: In the order in which they are written and shown; a function is a metric with a parameter.
LEARNING: tuple[Metric[Facts] | Family, ...] = (
    _learned(
        key="accuracy",
        title="Accuracy",
        heading="accuracy",
        meaning="Share of the test set that the global model gets right.",
        better="higher",
        decimals=4,
        tables=_ALL,
    ),
    _learned(
        key="loss",
        title="Loss",
        heading="loss",
        meaning="Mean loss of the global model on the test set.",
        better="lower",
        decimals=3,
        tables=_ALL,
    ),
    _learned(
        key="holdout_accuracy",
        title="Hold-out accuracy",
        meaning="Share of the examples that all clients hold out that the model gets right.",
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
        title="Local loss",
        meaning="Mean loss of the global model on all clients' own examples, weighted by data.",
        better="lower",
        tables=frozenset({"train"}),
    ),
    _learned(
        key="jain_of_losses",
        title="Jain of losses",
        heading="Jain, losses",
        meaning="How equal the clients' losses on their own examples are: 1 = all equal.",
        detail=(
            "It is Jain's index of the losses (UCB-CS, Eq. (3)): (sum of losses)^2 / (n * sum of "
            "squared losses). With n clients it is 1/n if one client has all the loss. An equally "
            "bad model for everybody scores 1, so read it beside the loss."
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
        title="Best accuracy",
        meaning="Highest accuracy on the test set that was measured on the way.",
        better="higher",
        decimals=4,
        tables=frozenset({"train"}),
        compute=lambda facts: max(facts.measured("accuracy").tolist(), default=math.nan),
    ),
    to_target,
    _learned(
        key="rounds_run",
        title="Rounds run",
        meaning="Rounds that were played: fewer than planned if the run stopped at its target.",
        unit="rounds",
        decimals=0,
        tables=frozenset({"train"}),
        compute=number_of("rounds_run"),
    ),
    _learned(
        key="stopped_at_target",
        title="Stopped at target",
        meaning="Whether the run ended early because it had reached its target accuracy.",
        decimals=0,
        compute=number_of("stopped_at_target"),
    ),
    _learned(
        key="broken_answers",
        title="Broken answers",
        meaning="Answers with a loss or weights that are not finite; they count as failed.",
        unit="answers",
        better="lower",
        decimals=0,
        compute=number_of("broken_answers"),
    ),
)
