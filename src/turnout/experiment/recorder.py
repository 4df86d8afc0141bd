"""Collects a run round by round: columns for the end, lines for the log on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.experiment.folder import MEASURED, PER_CHOICE, PER_ROUND, measured_of
from turnout.experiment.regret import RunningRegret
from turnout.experiment.summary import quotas
from turnout.selector import Selector
from turnout.simulate import RoundRecord, Run
from turnout.simulate.run import measured_columns
from turnout.types import Array, BoolArray, Status

__all__ = ["Recorder"]

_STATUSES = tuple(status.name.lower() for status in Status)


class Recorder:
    """Holds the columns of a run; ``take_batch`` closes the rounds since the last call."""

    def __init__(self, selector: Selector, n_clients: int, cohort_size: int) -> None:
        self.n_pending = 0  #: rounds since the last batch
        self._selector = selector
        self._n_clients = n_clients
        self._cohort_size = cohort_size
        self._regret = RunningRegret(n_clients, cohort_size)
        self._done: list[dict[str, Array]] = []
        self._measured: list[Mapping[str, float]] = []  # of all rounds, the pending ones included
        self._start_batch(0)

    def _start_batch(self, first_round: int) -> None:
        self.n_pending = 0
        self._first = first_round
        self._pending: dict[str, list[Any]] = {name: [] for name in (*PER_CHOICE, *PER_ROUND)}
        self._sizes: list[int] = []
        self._fates: list[BoolArray] = []

    def add(self, record: RoundRecord) -> None:
        """Take in one round."""
        chosen, chance = record.selection.clients, record.selection.probability
        pending = self._pending
        pending["clients"].append(chosen)
        pending["status"].append(record.outcome.status)
        pending["duration"].append(record.outcome.duration)
        pending["spent"].append(record.spent)
        pending["probability"].append(np.full(chosen.size, np.nan) if chance is None else chance)
        pending["length_s"].append(record.length_s)
        pending["n_available"].append(record.context.pool.size)
        self._measured.append(record.measured)
        self._sizes.append(chosen.size)
        self._fates.append(record.in_time)
        self.n_pending += 1

    def take_batch(self) -> list[str]:
        """Close the pending rounds and return a JSON line for each."""
        if not self.n_pending:
            return []
        sizes = np.array(self._sizes, dtype=np.int64)
        batch: dict[str, Array] = {
            name: np.concatenate(self._pending[name]).astype(kind, copy=False)
            for name, kind in PER_CHOICE.items()
        }
        batch |= {name: np.array(self._pending[name], kind) for name, kind in PER_ROUND.items()}
        batch["sizes"] = sizes
        rows = np.repeat(np.arange(sizes.size), sizes)  # the round of each choice
        fates = np.array(self._fates)
        gained = np.bincount(rows, fates[rows, batch["clients"]], minlength=sizes.size)
        quota = quotas(self._selector, self._first, self._first + sizes.size)
        batch["regret"] = self._regret.add(fates, gained, quota)
        self._done.append(batch)
        lines = _lines(batch, rows, self._first, self._measured[self._first :])
        self._start_batch(self._first + sizes.size)
        return lines

    def columns(self) -> dict[str, Array]:
        """Return the columns of all closed rounds, the regret after each included."""
        names = (*PER_CHOICE, *PER_ROUND, "sizes", "regret")
        whole = {name: np.concatenate([part[name] for part in self._done]) for name in names}
        self._done = [whole]
        made = {name: values for name, values in whole.items() if name != "sizes"}
        made["offsets"] = np.concatenate(([0], np.cumsum(whole["sizes"], dtype=np.int64)))
        measured = measured_columns(self._measured[: whole["sizes"].size])
        return made | {f"{MEASURED}{name}": values for name, values in measured.items()}

    def run(self) -> Run:
        """Return the closed rounds as a run."""
        columns = self.columns()
        given: dict[str, Any] = {name: columns[name] for name in (*PER_CHOICE, *PER_ROUND)}
        offsets, measured = columns["offsets"], measured_of(columns)
        return Run(self._n_clients, self._cohort_size, offsets, **given, measured=measured)

    def state(self) -> dict[str, Array]:
        """Return what ``restore`` needs beside the columns."""
        return self._regret.state()

    def restore(self, columns: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        """Continue behind the rounds that were saved."""
        names = (*PER_CHOICE, *PER_ROUND, "regret")
        whole = {name: columns[name] for name in names}
        whole["sizes"] = np.diff(columns["offsets"])
        self._regret.load_state(state)
        self._done = [whole]
        measured = measured_of(columns)
        self._measured = [
            {name: float(values[t]) for name, values in measured.items() if values[t] == values[t]}
            for t in range(whole["sizes"].size)
        ]
        self._start_batch(whole["sizes"].size)


def _lines(
    batch: Mapping[str, Array],
    rows: Array,
    first_round: int,
    measured: Sequence[Mapping[str, float]],
) -> list[str]:
    n_rounds = batch["sizes"].size
    status = batch["status"]
    counts = np.bincount(rows * len(_STATUSES) + status, minlength=n_rounds * len(_STATUSES))
    lost = np.where(status == Status.COMPLETED, 0.0, batch["spent"])
    columns = {
        "round": np.arange(first_round, first_round + n_rounds),
        "available": batch["n_available"],
        "chosen": batch["sizes"],
        **dict(zip(_STATUSES, counts.reshape(n_rounds, -1).T, strict=True)),
        "length_s": batch["length_s"],
        "wasted_s": np.bincount(rows, lost, minlength=n_rounds),
        "regret": batch["regret"],
    }
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        json.dumps({**dict(zip(columns, row, strict=True)), **found}, allow_nan=False)
        for row, found in zip(values, measured, strict=True)
    ]
