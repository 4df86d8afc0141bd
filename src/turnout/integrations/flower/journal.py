"""What happened so far: the rounds in columns, and the metrics that strategies aggregated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from turnout.policies import Closed
from turnout.runs.columns import PER_CHOICE, PER_ROUND
from turnout.simulate import Run
from turnout.types import Array, FloatArray, Selection, Status

__all__ = ["BY_CLIENTS", "BY_SERVER", "IN_TRAINING", "Journal"]

#: Where Flower's ``Result`` keeps metrics by round.
IN_TRAINING = "train_metrics_clientapp"
BY_CLIENTS = "evaluate_metrics_clientapp"
BY_SERVER = "evaluate_metrics_serverapp"
_HISTORIES = (IN_TRAINING, BY_CLIENTS, BY_SERVER)

#: Names that examples of Flower use for what a report calls accuracy and loss.
_ALIASES = {
    "accuracy": ("eval_acc", "eval_accuracy", "acc", "test_accuracy"),
    "loss": ("eval_loss", "test_loss"),
}


class Journal:
    """The rounds of a run, as far as it is done."""

    def __init__(self, cohort_size: int) -> None:
        self.cohort_size = cohort_size
        self.n_clients = 1  #: at least one, also while nobody has come
        self.metrics: dict[str, dict[int, MetricRecord]] = {name: {} for name in _HISTORIES}
        self._columns: dict[str, list[Array]] = {name: [] for name in (*PER_CHOICE, *PER_ROUND)}
        self._sizes: list[int] = []

    @property
    def n_rounds(self) -> int:
        """Rounds that are done."""
        return len(self._sizes)

    @property
    def last(self) -> frozenset[int]:
        """Who was chosen in the last round."""
        return frozenset(self._columns["clients"][-1].tolist()) if self._sizes else frozenset()

    @property
    def run(self) -> Run:
        """The rounds as a run."""
        columns: dict[str, Any] = self.columns()
        return Run(self.n_clients, self.cohort_size, **columns)

    def add(
        self, selection: Selection, closed: Closed, duration: FloatArray, n_available: int
    ) -> None:
        """Add a round."""
        chosen, chance = selection.clients, selection.probability
        added: dict[str, Any] = {
            "clients": chosen,
            "status": closed.status,
            "duration": duration,
            "spent": closed.spent,
            "probability": np.full(chosen.size, np.nan) if chance is None else chance,
            "length_s": [closed.length_s],
            "n_available": [n_available],
        }
        kinds = {**PER_CHOICE, **PER_ROUND}
        for name, values in added.items():
            self._columns[name].append(np.asarray(values, dtype=kinds[name]))
        self._sizes.append(chosen.size)

    def columns(self) -> dict[str, Array]:
        """Return all columns, with the offsets of the rounds."""
        kinds = {**PER_CHOICE, **PER_ROUND}
        made: dict[str, Array] = {
            name: np.concatenate(parts) if parts else np.zeros(0, kinds[name])
            for name, parts in self._columns.items()
        }
        made["offsets"] = np.concatenate(([0], np.cumsum(self._sizes, dtype=np.int64)))
        return made

    def restore(self, columns: Mapping[str, Array], metrics: Mapping[str, Any]) -> None:
        """Go back to saved columns and metrics."""
        bounds = columns["offsets"][1:-1]
        self._sizes = np.diff(columns["offsets"]).tolist()
        for name in PER_CHOICE:
            self._columns[name] = np.split(columns[name], bounds) if self._sizes else []
        for name in PER_ROUND:
            self._columns[name] = [columns[name][t : t + 1] for t in range(len(self._sizes))]
        self.metrics = {
            name: {int(t): MetricRecord(record) for t, record in metrics[name].items()}
            for name in _HISTORIES
        }

    def note(self, kind: str, server_round: int, metrics: MetricRecord | None) -> bool:
        """Keep aggregated metrics of a round; return whether there were any."""
        if metrics is None:
            return False
        self.metrics[kind][server_round] = metrics
        return True

    def plain_metrics(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the aggregated metrics as plain data."""
        return {
            kind: {server_round: dict(record) for server_round, record in by_round.items()}
            for kind, by_round in self.metrics.items()
        }

    def complete(self, result: Result) -> None:
        """Put the metrics of all rounds into a result, also those from before a restart."""
        for name in _HISTORIES:
            setattr(result, name, dict(sorted(self.metrics[name].items())))

    def line(self, t: int) -> dict[str, float | None]:
        """Return round ``t`` (from 0) as it stands in ``rounds.jsonl``."""
        columns = {name: parts[t] for name, parts in self._columns.items()}
        status, spent = columns["status"], columns["spent"]
        counts = np.bincount(status, minlength=len(Status)).tolist()
        wasted = float(spent[status != Status.COMPLETED].sum())
        found: dict[str, float | None] = {
            "round": t,
            "available": int(columns["n_available"][0]),
            "chosen": self._sizes[t],
            **{member.name.lower(): counts[member] for member in Status},
            "length_s": float(columns["length_s"][0]),
            "wasted_s": wasted,
        }
        measured = self._measured(t + 1)
        return found | {
            name: value if math.isfinite(value) else None
            for name, value in measured.items()
            if name not in found
        }

    def _measured(self, server_round: int) -> dict[str, float]:
        """Return the single numbers that were measured in a round, the server's own first."""
        nothing = MetricRecord()
        server = _numbers(self.metrics[BY_SERVER].get(server_round, nothing))
        clients = _numbers(self.metrics[BY_CLIENTS].get(server_round, nothing))
        training = _numbers(self.metrics[IN_TRAINING].get(server_round, nothing))
        found = {f"train_{name.removeprefix('train_')}": x for name, x in training.items()}
        found |= clients | server
        for name, others in _ALIASES.items():
            known = next((other for other in others if other in found), None)
            if name not in found and known is not None:
                found[name] = found.pop(known)
        return found


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in record.items():
        if isinstance(value, int | float):
            found[name.replace("-", "_")] = float(value)
    return found
