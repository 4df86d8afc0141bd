"""What clients report in a round, as the selector sees it, and what they fail to report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turnout.errors import MissingColumn
from turnout.policies import Closed
from turnout.selector import Selector
from turnout.session import keys
from turnout.session.columns import Columns
from turnout.session.errors import MissingMetric
from turnout.session.hints import Hints
from turnout.session.port import Heard
from turnout.session.settings import Settings
from turnout.session.world import World
from turnout.types import LARGEST_REPORT, FloatArray, IntArray, Status

#: Name, among the metrics that were seen, of the weight that averaging needs.
_WEIGHT = "weight"
#: The same of the answers to a poll.
_POLLED = "polled-loss"
#: The same of any answer at all.
_ANSWER = "answer"
#: The column that answers fill, too.
_SIZE = "num_samples"


@dataclass
class Reports:
    """Reads durations and metrics from answers, or from the world that stands in for them."""

    settings: Settings
    selector: Selector
    world: World | None
    weight_key: str | None  #: key of the weight that whoever aggregates needs
    hints: Hints
    seen: set[str] = field(default_factory=set)  #: what clients have reported at least once

    def __post_init__(self) -> None:
        #: Whether the world makes up what clients report.
        self.is_virtual = self.world is not None and self.world.metrics(0) is not None
        names = () if self.is_virtual else sorted(self.selector.needs_metrics)
        #: The metrics that clients must report, and their keys.
        self.needed = {name: keys.metric_key(name, self.settings.metric_keys) for name in names}

    def check_columns(self, columns: Columns) -> None:
        """Raise if a needed column is empty, with everything else that clients must provide.

        The number of examples may come with the first answers, if the selector wants answers.
        """
        missing = columns.missing(self.selector.needs_columns)
        if self._may_wait():
            missing = [name for name in missing if name != _SIZE]
        if not missing:
            return
        names = " and ".join(f"the column {name!r}" for name in missing)
        more = [self.hints.columns(missing)]
        if self.selector.polls:
            more.append(self.hints.loss())
        if self.needed:
            more.append(self.hints.metrics(self.needed))
        raise MissingColumn(
            f"the selector needs {names}, and no client has sent it: {'. Also: '.join(more)}."
        )

    def columns(self, columns: Columns) -> dict[str, FloatArray]:
        """Return the columns for a context; the number of examples may be unknown at first."""
        wanted = self.selector.needs_columns | self.selector.uses_columns
        filled = columns.take(wanted)
        if _SIZE in self.selector.needs_columns and self._may_wait():
            filled.setdefault(_SIZE, columns.unknown())
        return filled

    def check_poll(self, losses: FloatArray, n_failed: int) -> None:
        """Raise if clients were polled, all have failed, and none ever answered."""
        if not np.isnan(losses).all():
            self.seen.add(_POLLED)
        elif losses.size and n_failed == losses.size and _POLLED not in self.seen:
            raise MissingMetric(
                f"{type(self.selector).__name__} polls clients for their loss, and none has an "
                f"answer: {self.hints.loss()}."
            )

    def check(self, answers: Sequence[Heard]) -> None:
        """Raise if clients answer and something needed was never among the answers: all of it."""
        weight = {} if self.weight_key is None else {_WEIGHT: self.weight_key}
        wanted = self.needed | weight
        self.seen |= {
            name for name, key in wanted.items() if any(key in heard.metrics for heard in answers)
        } | ({_ANSWER} if answers else set())
        missing = {name: key for name, key in wanted.items() if name not in self.seen}
        if not answers or not missing:
            return
        parts = []
        lacking = {name: key for name, key in missing.items() if name != _WEIGHT}
        if lacking:
            names = " and ".join(map(repr, lacking.values()))
            who = type(self.selector).__name__
            parts.append(
                f"{who} needs {names}, and no reply has it: {self.hints.metrics(lacking)}."
            )
        if _WEIGHT in missing:
            key = missing[_WEIGHT]
            parts.append(
                f"the inner strategy needs {key!r}, and no reply has it: {self.hints.weight(key)}."
            )
        raise MissingMetric(" ".join(parts))

    def read(
        self, t: int, clients: IntArray, closed: Closed, answers: Mapping[int, Heard]
    ) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return (s,) durations and metrics of the chosen; only those in time report."""
        in_time = closed.status == Status.COMPLETED
        sound = {i: heard.metrics for i, heard in answers.items() if in_time[i]}
        duration = closed.duration.copy()
        if self.settings.durations == "client" and self.world is None:
            for i, metrics in sound.items():
                own = number(metrics, keys.DURATION)
                duration[i] = own if own >= 0.0 else duration[i]
        if self.is_virtual and self.world is not None:
            return duration, {
                name: np.where(in_time, values[clients], math.nan)
                for name, values in (self.world.metrics(t) or {}).items()
                if name in self.selector.needs_metrics
            }
        reported = {name: np.full(clients.size, math.nan) for name in self.needed}
        for name, key in self.needed.items():
            for i, metrics in sound.items():
                reported[name][i] = number(metrics, key)
        return duration, reported

    def _may_wait(self) -> bool:
        """Return whether the number of examples may still come with the first answers."""
        wants_answers = bool(self.selector.needs_metrics) or self.selector.polls
        return wants_answers and self.world is None and _ANSWER not in self.seen


def number(metrics: Mapping[str, Any], key: str) -> float:
    """Return one number that a client sent; NaN if it is missing or impossible."""
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        amount = float(value)
    except OverflowError:
        return math.nan
    return amount if abs(amount) <= LARGEST_REPORT else math.nan
