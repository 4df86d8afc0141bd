"""What happened so far: the rounds in columns, and the metrics that were aggregated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from turnout.runs.columns import Collector, RoundRow
from turnout.runs.run import Run
from turnout.session.round import Ended
from turnout.types import Array, BoolArray, FloatArray, Selection, Status

#: Where aggregated metrics come from; checkpoints have them under these names.
IN_TRAINING = "train_metrics_clientapp"
BY_CLIENTS = "evaluate_metrics_clientapp"
BY_SERVER = "evaluate_metrics_serverapp"
HISTORIES = (IN_TRAINING, BY_CLIENTS, BY_SERVER)

#: Names that applications use for what a report calls accuracy and loss.
_ALIASES = {
    "accuracy": ("eval_acc", "eval_accuracy", "acc", "test_accuracy"),
    "loss": ("eval_loss", "test_loss"),
}
_NOTHING: Mapping[str, Any] = {}
#: Is told what was measured after a round, counted from 0; again whenever more is known.
OnMeasured = Callable[[int, Mapping[str, float]], None]


class Journal:
    """The rounds of a run, as far as it is done. Metrics count rounds from 1, 0 is the start."""

    def __init__(self, cohort_size: int, on_measured: OnMeasured | None = None) -> None:
        self.cohort_size = cohort_size
        self._on_measured = on_measured
        self.n_clients = 1  #: at least one, also while nobody has come
        self.metrics: dict[str, dict[int, Mapping[str, Any]]] = {name: {} for name in HISTORIES}
        self.void: set[int] = set()  #: rounds with answers, but too few to be used; from 1
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
        self,
        selection: Selection,
        ended: Ended,
        duration: FloatArray,
        available: BoolArray,
    ) -> None:
        """Add a round."""
        status, spent, length_s = ended.closed.status, ended.closed.spent, ended.closed.length_s
        chosen, chance = selection.clients, selection.probability
        row = RoundRow(chosen, status, duration, spent, chance, length_s, available)
        self._rounds.add(row)
        if ended.is_void and np.any(status == Status.COMPLETED):
            self.void.add(self.n_rounds)
            self._measure(self.n_rounds)

    def n_last_below(self, min_answers: int) -> int:
        """Return how many rounds in a row, up to the last, had fewer answers than these."""
        columns = self.columns()
        completed = np.concatenate([[0], np.cumsum(columns["status"] == Status.COMPLETED)])
        answers = np.diff(completed[columns["offsets"]])
        enough = np.flatnonzero(answers >= min_answers)
        return int(answers.size - (enough[-1] + 1 if enough.size else 0))

    def columns(self) -> dict[str, Array]:
        """Return all columns, with the offsets of the rounds."""
        return self._rounds.columns()

    def lines(self, start: int = 0) -> list[str]:
        """Return the rounds from ``start`` on as they stand in ``rounds.jsonl``."""
        return self._rounds.lines(start, self.n_rounds)

    def restore(
        self, columns: Mapping[str, Array], metrics: Mapping[str, Any], void: set[int]
    ) -> None:
        """Go back to saved columns and metrics."""
        self._rounds = Collector.from_columns(columns)
        self.void = void
        self.metrics = {
            name: {int(t): record for t, record in metrics[name].items()} for name in HISTORIES
        }
        for number in range(1, self.n_rounds + 1):
            self._measure(number)

    def note(self, kind: str, number: int, metrics: Mapping[str, Any] | None) -> bool:
        """Keep aggregated metrics of a round; return whether there were any."""
        if metrics is None:
            return False
        self.metrics[kind][number] = dict(metrics)
        if 1 <= number <= self.n_rounds:
            self._measure(number)
            if self._on_measured is not None:
                self._on_measured(number - 1, self._rounds.measured[number - 1])
        return True

    def _measure(self, number: int) -> None:
        """Keep the single numbers that were measured in a round, the server's own first."""
        server, clients, training = (
            _numbers(self.metrics[kind].get(number, _NOTHING))
            for kind in (BY_SERVER, BY_CLIENTS, IN_TRAINING)
        )
        measured = {f"train_{name.removeprefix('train_')}": x for name, x in training.items()}
        measured |= clients | server
        for name, others in _ALIASES.items():
            alias = next((other for other in others if other in measured), None)
            if name not in measured and alias is not None:
                measured[name] = measured.pop(alias)
        if number in self.void:
            measured["void"] = 1.0
        self._rounds.measured[number - 1] = measured


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name.replace("-", "_"): float(value)
        for name, value in record.items()
        if isinstance(value, int | float)
    }
