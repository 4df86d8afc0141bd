"""The rounds of a live run: one from the selection to its end, and the journal of all.

What a client sends takes four forms on its way through a round:

1. the message of the framework: Flower's ``Message``, NVFlare's ``FLModel``, an HTTP body;
2. a ``Reply`` of ``turnout.live.transport``, which says what came of the request and when;
3. the ``Closed`` of the round policy, and the ``Outcome`` that the selector learns from;
4. the ``ClosedRound``, which is recorded as a row of the run.

``Kind`` in ``turnout.live.transport`` has the table of what becomes which status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from turnout.core.participation import CHANCE_BOUND
from turnout.core.types import Array, BoolArray, FloatArray, RoundContext, Selection, Status
from turnout.experiment.engine import RoundEngine
from turnout.live.alerts import Alert
from turnout.live.transport import Address, Kind, Reply, no_answer
from turnout.results.run import Collector, RoundRow, Run
from turnout.worlds import Answers, Closed

#: Kinds that tell the server at once that a client has failed.
REPORTED_FAILURES = frozenset({Kind.FAILED, Kind.GARBLED})

#: The origins of aggregated metrics; checkpoints store them under these names.
IN_TRAINING = "train_metrics_clientapp"
BY_CLIENTS = "evaluate_metrics_clientapp"
BY_SERVER = "evaluate_metrics_serverapp"
HISTORIES = (IN_TRAINING, BY_CLIENTS, BY_SERVER)

#: Names that applications use for what a report calls accuracy and loss.
_ALIASES = {
    "accuracy": ("eval_acc", "eval_accuracy", "acc", "test_accuracy"),
    "loss": ("eval_loss", "test_loss"),
}
#: The number of models that are kept for clients at work, where rounds overlap.
MODELS_KEPT = "models_kept"
#: In rounds that overlap, as far as there were any: replies to no work in flight, which do not
#: count, and how often the clock of the computer was set back.
REFUSED_REPLIES, CLOCK_JUMPS = "refused_replies", "clock_jumps"
#: What the server knows of a round from its beginning, whatever is measured later.
_OF_SERVER = (CHANCE_BOUND, MODELS_KEPT, REFUSED_REPLIES, CLOCK_JUMPS)
#: Called with the metrics of a round, counted from 0; again when more are known.
OnMeasured = Callable[[int, Mapping[str, float]], None]

#: Returns which replies cannot be used together with the others, by position, and why.
Reject = Callable[[Sequence[Reply]], Mapping[int, str]]


class Cohort(NamedTuple):
    """The clients of a round, in the order of the selection.

    Attributes:
        round: The round, counted from 0.
        ids: (s,) stable ids.
        addresses: (s,) where they are connected.
        is_asked: (s,) who gets work: everyone, but in a virtual world only who answers in time.
        deadline: Seconds that they have.
        probability: (s,) their inclusion probabilities; None if the selector does not report them.
        n_free: How many could have been chosen.
        times: (s,) how often each was drawn; empty if no client was chosen.
        version: The model that they get, by the number of aggregations before it, where rounds
            overlap. ``round`` is then the number of the choice.
    """

    round: int
    ids: tuple[Hashable, ...] = ()
    addresses: tuple[Address, ...] = ()
    is_asked: tuple[bool, ...] = ()
    deadline: float = math.inf
    probability: FloatArray | None = None
    n_free: int = 0
    times: tuple[int, ...] = ()
    version: int = 0


class ClosedRound(NamedTuple):
    """How a round ended, in the order of the selection.

    Attributes:
        round: The round, counted from 0.
        ids: (s,) stable ids.
        closed: Statuses, durations and the length of the round.
        reasons: Why there is no usable answer, by position.
        answers: The contents of the replies that count, in order; a reply that counts twice occurs
            twice.
        is_void: Whether there were too few answers; then none counts.
        began_at: When the server began to look for clients, in seconds since 1970.
        closed_at: When the round was closed.
        alerts: The alerts that the round caused.
        weights: The believed weight of each answer; NaN if it has none.
        sizes: How many times as large as usual its update was, by position, where it is known.
        n_wanted: How many clients were to be selected, if enough had been free.
        taken: Versions, staleness and factors of the ``answers``, in their order, where rounds
            overlap; None otherwise.
        staleness: (s,) aggregations since each client got its model; empty in synchronous rounds.
    """

    round: int
    ids: tuple[Hashable, ...]
    closed: Closed
    reasons: Mapping[int, str]
    answers: tuple[Any, ...]
    is_void: bool
    began_at: float
    closed_at: float
    alerts: tuple[Alert, ...] = ()
    weights: tuple[float, ...] = ()
    sizes: Mapping[int, float] = MappingProxyType({})
    n_wanted: int = 0
    taken: Answers | None = None
    staleness: tuple[int, ...] = ()


@dataclass
class OpenRound:
    """A round in progress: replies come in, and the policy says when it is over.

    Args:
        engine: Closes the round.
        context: What the selector knew.
        selection: Whom it chose.
        ids: (s,) their stable ids.
        addresses: (s,) where they are connected.
        foreseen: How the round will end, in a virtual world; None in the real one.
    """

    engine: RoundEngine
    context: RoundContext
    selection: Selection
    ids: tuple[Hashable, ...]
    addresses: tuple[Address, ...]
    foreseen: Closed | None
    answers: dict[int, Reply] = field(default_factory=dict)  #: usable ones, by position
    reasons: dict[int, str] = field(default_factory=dict)  #: why there is none, by position

    def __post_init__(self) -> None:
        """Wait for everyone."""
        n = len(self.ids)
        self.position = {client: i for i, client in enumerate(self.ids)}
        self._duration = np.full(n, np.nan)
        self._has_replied = np.zeros(n, dtype=np.bool_)
        self._survived = np.ones(n, dtype=np.bool_)
        self._reported = np.zeros(n, dtype=np.bool_)  # who reported its own failure

    @property
    def cohort(self) -> Cohort:
        """The clients that are to work."""
        is_asked = np.ones(len(self.ids), dtype=np.bool_)
        if self.foreseen is not None:
            is_asked = self.foreseen.status == Status.COMPLETED
        return Cohort(
            self.context.round,
            self.ids,
            self.addresses,
            tuple(is_asked.tolist()),
            self.context.deadline,
            self.selection.probability,
            self.context.pool.size,
            tuple(self.selection.times.tolist()),
        )

    @property
    def is_waiting(self) -> bool:
        """Whether a client has not replied yet."""
        return not self._has_replied.all()

    def receive(self, client: Hashable, reply: Reply) -> bool:
        """Add the reply of a chosen client; return whether it counts: only its first one does.

        Args:
            client: Its stable id.
            reply: The result of its work.
        """
        i = self.position[client]
        if self._has_replied[i]:
            return False
        self._duration[i], self._has_replied[i] = reply.seconds, True
        if reply.kind is Kind.ANSWERED:
            self.answers[i] = reply
        else:
            self._survived[i], self._reported[i] = False, reply.kind in REPORTED_FAILURES
            self._lose(i, reply.reason or reply.kind.value)
        return True

    def closes_at(self) -> float:
        """Return when the round is over, in seconds after sending, as far as is known."""
        # A client that still works will reply later than all others.
        duration = np.where(self._has_replied, self._duration, np.inf)
        engine = self.engine
        end = engine.policy.end(duration, self._survived, engine.cohort_size, engine.observed)
        return min(self.context.deadline, end.at)

    def close(self, present: Collection[Address], length_s: float | None, ends: float) -> Closed:
        """Return which clients completed, were late, failed or were silent.

        Args:
            present: Who is still connected.
            length_s: How long the round took; None: until the last reply, or until its end if a
                client has not replied.
            ends: The end of the round, in seconds after sending.
        """
        if self.foreseen is not None:  # a client without an answer has failed
            status = self.foreseen.status.copy()
            in_time = np.flatnonzero(status == Status.COMPLETED).tolist()
            status[[i for i in in_time if i not in self.answers]] = Status.FAILED
            return self.foreseen._replace(status=status)
        if length_s is None:
            last = float(np.fmax.reduce(self._duration, initial=0.0))
            length_s = ends if self.is_waiting else min(ends, last)
        gone: BoolArray = np.array([at not in present for at in self.addresses], dtype=np.bool_)
        survived = self._survived & (self._has_replied | ~gone)
        is_known = self._has_replied & (survived | self._reported)
        duration = np.where(is_known, self._duration, np.nan)
        closed = self.engine.close(duration, survived, self._reported)
        spent = np.where(np.isnan(duration), length_s, np.fmin(duration, length_s))
        return closed._replace(length_s=length_s, spent=spent)

    def completed(self, closed: Closed) -> dict[int, Reply]:
        """Return the replies that came in time, by position.

        Args:
            closed: How the round ended.
        """
        in_time = np.flatnonzero(closed.status == Status.COMPLETED).tolist()
        return {i: self.answers[i] for i in in_time}

    def drop(self, closed: Closed, faults: Mapping[int, str]) -> Closed:
        """Return the same round with rejected replies as failures.

        Args:
            closed: How the round ended.
            faults: Why a reply is rejected, by position.
        """
        status = closed.status.copy()
        for i, fault in faults.items():
            status[i] = Status.FAILED
            del self.answers[i]
            self._lose(i, f"reply dropped, {fault}")
        return closed._replace(status=status)

    def _lose(self, i: int, reason: str) -> None:
        self.reasons[i] = no_answer(self.ids[i], reason)


class Journal:
    """The rounds of a run so far, in columns, with aggregated metrics.

    Metrics count rounds from 1; 0 is the start.
    """

    def __init__(self, cohort_size: int, on_measured: OnMeasured | None = None) -> None:
        self.cohort_size = cohort_size
        self._on_measured = on_measured
        self.n_clients = 1  #: at least one, also before the first client connects
        self.metrics: dict[str, dict[int, Mapping[str, Any]]] = {name: {} for name in HISTORIES}
        self.void: set[int] = set()  #: rounds with answers, but too few to be used; from 1
        self._rounds = Collector()
        #: Further columns of ``selections.npz``.
        self.more_columns: Callable[[], Mapping[str, Array]] = dict

    @property
    def n_rounds(self) -> int:
        """Rounds that are done."""
        return self._rounds.n_rounds

    @property
    def last(self) -> frozenset[int]:
        """The clients that were chosen in the last round."""
        n_rounds = self.n_rounds
        return frozenset(self._rounds.clients_of(n_rounds - 1).tolist() if n_rounds else ())

    @property
    def run(self) -> Run:
        """The rounds as a run."""
        return Run.from_columns(self.n_clients, self.cohort_size, self.columns())

    def add(self, row: RoundRow, *, is_void: bool) -> None:
        """Add a round; it is void if it had too few answers."""
        self._rounds.add(row)
        if is_void and np.any(row.status == Status.COMPLETED):
            self.void.add(self.n_rounds)
            self._measure(self.n_rounds)

    def n_last_below(self, min_answers: int) -> int:
        """Return how many consecutive rounds, up to the last, had fewer answers than these."""
        return self._rounds.n_last_below(min_answers)

    def part(self, name: str, round: int) -> Array:
        """Return a column of the choices of one round, such as ``status``."""
        return self._rounds.part(name, round)

    def columns(self) -> dict[str, Array]:
        """Return all columns, with the offsets of the rounds."""
        return self._rounds.columns()

    def lines(self, start: int = 0) -> list[str]:
        """Return the rounds from ``start`` on as they stand in ``rounds.jsonl``."""
        return self._rounds.lines(start, self.n_rounds)

    def restore(
        self, columns: Mapping[str, Array], metrics: Mapping[str, Any], void: set[int]
    ) -> None:
        """Continue from saved columns and metrics."""
        self._rounds = Collector.from_columns(columns)
        self.void = void
        self.metrics = {
            name: {int(t): record for t, record in metrics[name].items()} for name in HISTORIES
        }
        for number in range(1, self.n_rounds + 1):
            self._measure(number)

    def note(self, kind: str, number: int, metrics: Mapping[str, Any] | None) -> bool:
        """Store aggregated metrics of a round; return whether there were any."""
        if metrics is None:
            return False
        self.metrics[kind][number] = dict(metrics)
        if 1 <= number <= self.n_rounds:
            self._measure(number)
            if self._on_measured is not None:
                self._on_measured(number - 1, self._rounds.measured[number - 1])
        return True

    def _measure(self, number: int) -> None:
        """Store the single numbers of a round; the server's own come first."""
        server, clients, training = (
            _numbers(self.metrics[kind].get(number, {}))
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
        before = self._rounds.measured[number - 1]
        measured |= {name: before[name] for name in _OF_SERVER if name in before}
        self._rounds.measured[number - 1] = measured


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name.replace("-", "_"): float(value)
        for name, value in record.items()
        if isinstance(value, int | float)
    }
