"""What happened so far: the rounds in columns, and the metrics that strategies aggregated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from turnout.policies import Closed
from turnout.runs.columns import Collector, RoundRow
from turnout.runs.run import Run
from turnout.types import Array, BoolArray, FloatArray, Selection

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
        self._rounds = Collector()

    @property
    def n_rounds(self) -> int:
        """Rounds that are done."""
        return self._rounds.n_rounds

    @property
    def last(self) -> frozenset[int]:
        """Who was chosen in the last round."""
        n_rounds = self.n_rounds
        return frozenset(self._rounds.clients_of(n_rounds - 1).tolist() if n_rounds else ())

    @property
    def run(self) -> Run:
        """The rounds as a run."""
        return Run.from_columns(self.n_clients, self.cohort_size, self.columns())

    def add(
        self, selection: Selection, closed: Closed, duration: FloatArray, available: BoolArray
    ) -> None:
        """Add a round."""
        status, spent, length_s = closed.status, closed.spent, closed.length_s
        chosen, chance = selection.clients, selection.probability
        row = RoundRow(chosen, status, duration, spent, chance, length_s, available)
        self._rounds.add(row)

    def columns(self) -> dict[str, Array]:
        """Return all columns, with the offsets of the rounds."""
        return self._rounds.columns()

    def lines(self, start: int = 0) -> list[str]:
        """Return the rounds from ``start`` on as they stand in ``rounds.jsonl``."""
        return self._rounds.lines(start, self.n_rounds)

    def restore(self, columns: Mapping[str, Array], metrics: Mapping[str, Any]) -> None:
        """Go back to saved columns and metrics."""
        self._rounds = Collector.from_columns(columns)
        self.metrics = {
            name: {int(t): MetricRecord(record) for t, record in metrics[name].items()}
            for name in _HISTORIES
        }
        for server_round in range(1, self.n_rounds + 1):
            self._rounds.measured[server_round - 1] = self._measured(server_round)

    def note(self, kind: str, server_round: int, metrics: MetricRecord | None) -> bool:
        """Keep aggregated metrics of a round; return whether there were any."""
        if metrics is None:
            return False
        self.metrics[kind][server_round] = metrics
        if 1 <= server_round <= self.n_rounds:
            self._rounds.measured[server_round - 1] = self._measured(server_round)
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

    def _measured(self, server_round: int) -> dict[str, float]:
        """Return the single numbers that were measured in a round, the server's own first."""
        nothing = MetricRecord()
        server = _numbers(self.metrics[BY_SERVER].get(server_round, nothing))
        clients = _numbers(self.metrics[BY_CLIENTS].get(server_round, nothing))
        training = _numbers(self.metrics[IN_TRAINING].get(server_round, nothing))
        measured = {f"train_{name.removeprefix('train_')}": x for name, x in training.items()}
        measured |= clients | server
        for name, others in _ALIASES.items():
            alias = next((other for other in others if other in measured), None)
            if name not in measured and alias is not None:
                measured[name] = measured.pop(alias)
        return measured


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name.replace("-", "_"): float(value)
        for name, value in record.items()
        if isinstance(value, int | float)
    }
