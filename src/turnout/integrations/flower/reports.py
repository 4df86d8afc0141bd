"""What clients report in a round, as the selector sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from turnout.integrations.flower import keys
from turnout.integrations.flower.base import World
from turnout.integrations.flower.errors import MissingMetric
from turnout.integrations.flower.replies import Checked
from turnout.policies import Closed
from turnout.selector import Selector
from turnout.types import FloatArray, IntArray, Status

__all__ = ["Reports"]

#: Name, among the metrics that were seen, of the weight that averaging strategies need.
_WEIGHT = "weight"


@dataclass
class Reports:
    """Reads durations and metrics from replies, or from the world that stands in for them."""

    selector: Selector
    weight_key: str | None
    durations: Literal["server", "client"]
    metric_keys: Mapping[str, str]
    world: World | None
    seen: set[str] = field(default_factory=set)  #: what clients have reported at least once

    def __post_init__(self) -> None:
        #: Whether the world makes up what clients report.
        self.is_virtual = self.world is not None and self.world.metrics(0) is not None
        names = () if self.is_virtual else sorted(self.selector.needs_metrics)
        #: The metrics that clients must report, and their keys.
        self.needed = {name: keys.metric_key(name, self.metric_keys) for name in names}

    def check(self, replies: Sequence[Checked]) -> None:
        """Raise if clients answer and a metric that is needed was never among the answers."""
        weight = {} if self.weight_key is None else {_WEIGHT: self.weight_key}
        for name, key in (self.needed | weight).items():
            if any(key in one.metrics for one in replies):
                self.seen.add(name)
            elif replies and name not in self.seen:
                who = "the inner strategy" if name == _WEIGHT else type(self.selector).__name__
                raise MissingMetric(f"{who} needs {key!r}, and no reply has it: {_how(name, key)}.")

    def read(
        self, t: int, clients: IntArray, closed: Closed, replies: Mapping[int, Checked]
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return (s,) durations and metrics of the chosen; only those in time report."""
        in_time = closed.status == Status.COMPLETED
        sound = {i: reply for i, reply in replies.items() if in_time[i]}
        duration = closed.duration.copy()
        if self.durations == "client" and self.world is None:
            for i, reply in sound.items():
                own = reply.number(keys.DURATION)
                duration[i] = own if own >= 0.0 else duration[i]
        if self.is_virtual and self.world is not None:
            return duration, {
                name: np.where(in_time, values[clients], math.nan)
                for name, values in (self.world.metrics(t) or {}).items()
                if name in self.selector.needs_metrics
            }
        metrics = {name: np.full(clients.size, math.nan) for name in self.needed}
        for name, key in self.needed.items():
            for i, reply in sound.items():
                metrics[name][i] = reply.number(key)
        return duration, metrics


def _how(name: str, key: str) -> str:
    if name == _WEIGHT:
        return f'reply with MetricRecord({{"{key}": len(train_set), ...}}) on the client'
    return (
        "on the client, make report = LossReport() before the training, call report.add(loss, "
        'n=len(batch)) for each mini-batch, and reply with MetricRecord({"num-examples": ..., '
        "**report.metrics()}); it is in turnout.integrations.flower.client. Or name a key of your "
        f"own: SelectingStrategy(..., metric_keys={{{name!r}: ...}})"
    )
