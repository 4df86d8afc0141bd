"""Collects a run round by round: columns for the end, lines for the log on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from turnout.experiment.summary import quotas
from turnout.runs.columns import Collector
from turnout.runs.regret import RunningRegret
from turnout.runs.run import Run
from turnout.selector import Selector
from turnout.simulate import RoundRecord
from turnout.types import Array, BoolArray, FloatArray

__all__ = ["Recorder"]


class Recorder:
    """Holds the columns of a run; ``take_batch`` closes the rounds since the last call."""

    def __init__(self, selector: Selector, n_clients: int, cohort_size: int) -> None:
        self._selector = selector
        self._n_clients = n_clients
        self._cohort_size = cohort_size
        self._rounds = Collector()
        self._running = RunningRegret(n_clients, cohort_size)
        self._regret: list[FloatArray] = [np.zeros(0)]
        self._fates: list[BoolArray] = []

    @property
    def n_pending(self) -> int:
        """Rounds since the last batch."""
        return len(self._fates)

    def add(self, record: RoundRecord) -> None:
        """Take in one round."""
        self._rounds.add(record.row)
        self._fates.append(record.in_time)

    def take_batch(self) -> list[str]:
        """Close the pending rounds and return a JSON line for each."""
        if not self._fates:
            return []
        stop = self._rounds.n_rounds
        start = stop - self.n_pending
        fates = np.array(self._fates)
        gained = np.array(
            [fate[self._rounds.clients_of(t)].sum() for t, fate in enumerate(fates, start)]
        )
        regret = self._running.add(fates, gained, quotas(self._selector, start, stop))
        self._regret.append(regret)
        self._fates = []
        return self._rounds.lines(start, stop, {"regret": regret})

    def columns(self) -> dict[str, Array]:
        """Return the columns of all closed rounds, the regret after each included."""
        return self._rounds.columns() | {"regret": np.concatenate(self._regret)}

    def run(self) -> Run:
        """Return the closed rounds as a run."""
        return Run.from_columns(self._n_clients, self._cohort_size, self._rounds.columns())

    def state(self) -> dict[str, Array]:
        """Return what ``restore`` needs beside the columns."""
        return self._running.state()

    def restore(self, columns: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        """Continue behind the rounds that were saved."""
        self._rounds = Collector.from_columns(columns)
        self._regret = [columns["regret"]]
        self._running.load_state(state)
