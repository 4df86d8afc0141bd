"""Work in flight, for rounds that overlap: who is at work, on which model, for which choice.

Simulation, Flower, NVFlare and HTTP use this bookkeeping through ``RoundEngine``. It has no clock
of its own: the host says when something happens. A host calls::

    engine = RoundEngine(selector, policy, cohort_size=10, seed=0, schedule=Buffered(10, 30))
    engine.resize(n_clients)
    flights = engine.in_flight
    engine.places()                          # how many clients may get work now
    ctx = engine.without_busy(ctx)           # those at work cannot be chosen
    selection = engine.select(ctx)           # as in a synchronous round
    engine.begin(selection, now)             # they get work on model ``flights.version``
    flights.refusal(client, choice)          # why an answer does not count, or None
    engine.end(where, outcome)               # outcomes of ``where = flights.where(clients)``
    flights.is_full                          # whether the buffer is complete
    answers, _ = engine.aggregate()          # who counts in the next model, and how much

``ctx.round`` is the number of the choice, ``flights.next_choice``. A round that ends by the clock
and not by answers calls ``aggregate`` when its time is over. ``engine.state()`` has everything that
is needed to continue with work in flight. The models themselves belong to the host: it keeps those
of ``flights.versions`` and may drop all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.plain import below
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    Selection,
    Status,
)
from turnout.worlds.overlap import Answers, WorkSchedule

#: What is known of a client at work. ``place`` is its position in the selection of its choice.
FLIGHT = np.dtype(
    [
        ("client", np.int64),
        ("choice", np.int64),
        ("place", np.int64),
        ("version", np.int64),
        ("began_s", np.float64),
        ("probability", np.float64),
        ("times", np.int64),
    ]
)
#: What is known of a client that was at work, in the round in which that ended.
ENDED = np.dtype(
    [
        *((name, FLIGHT[name]) for name in FLIGHT.names or ()),
        ("status", np.int8),
        ("duration", np.float64),
        ("spent", np.float64),
    ]
)
_COMPLETED = np.int8(Status.COMPLETED)
_DUE = -1  # the status of a client that is at work
_MEMO, _METRIC = "memo.", "metric."


@dataclass
class _Choice:
    """A selection whose outcome is not complete yet."""

    selection: Selection
    status: Array
    duration: FloatArray
    metrics: dict[str, FloatArray] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not np.any(self.status == _DUE)

    def add(self, places: IntArray, outcome: Outcome, rows: IntArray) -> None:
        """Take in the outcomes of some of its clients: rows of an outcome of several choices."""
        self.status[places] = outcome.status[rows]
        self.duration[places] = outcome.duration[rows]
        for name, values in outcome.metrics.items():
            if name not in self.metrics:
                self.metrics[name] = np.full((self.status.size, *values.shape[1:]), np.nan)
            self.metrics[name][places] = values[rows]

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.status, self.duration, self.metrics)


class InFlight:
    """Who is at work, the choices that wait for an outcome, and the answers of this round.

    Args:
        schedule: When clients get work and when a round ends.

    Attributes:
        flights: The clients at work, with the fields of ``FLIGHT``, in the order of their choices.
        ended: The clients whose work has ended in this round, with the fields of ``ENDED``.
        version: Aggregations so far: the number of the model that clients get now.
        n_choices: Choices so far: the number of the next one.
        n_refused: Answers that did not count, by the reason.
    """

    def __init__(self, schedule: WorkSchedule) -> None:
        self.schedule = schedule
        self.flights: Array = np.zeros(0, FLIGHT)
        self.ended: Array = np.zeros(0, ENDED)
        self.version = 0
        self.n_choices = 0
        self.n_refused: dict[str, int] = {}
        self._open: dict[int, _Choice] = {}

    @property
    def n_busy(self) -> int:
        """Clients that are at work."""
        return int(self.flights.size)

    @property
    def n_answers(self) -> int:
        """Answers of this round so far."""
        return int(np.count_nonzero(self.ended["status"] == _COMPLETED))

    @property
    def is_full(self) -> bool:
        """Whether there are as many answers as end a round."""
        return self.n_answers >= self.schedule.enough

    @property
    def versions(self) -> frozenset[int]:
        """The models that are in use: the newest, and those of answers that are due or waiting."""
        waits = self.ended[self.ended["status"] == _COMPLETED]
        used = np.concatenate((self.flights["version"], waits["version"]))
        return frozenset((self.version, *np.unique(used).tolist()))

    @property
    def next_choice(self) -> int:
        """The number of the next choice: that of the round if a round has one choice."""
        return self.n_choices if self.schedule.refills else self.version

    @property
    def waiting(self) -> tuple[Selection, ...]:
        """The selections without a complete outcome, oldest first."""
        return tuple(choice.selection for choice in self._open.values())

    def busy(self, n_clients: int) -> BoolArray:
        """Return (n,) who is at work.

        Args:
            n_clients: Size of the federation.
        """
        busy = np.zeros(n_clients, dtype=np.bool_)
        busy[self.flights["client"]] = True
        return busy

    def where(self, clients: IntArray) -> IntArray:
        """Return the rows of some clients in ``flights``; each must be at work.

        Args:
            clients: (s,) the clients.
        """
        order = np.argsort(self.flights["client"])
        rows: IntArray = order[np.searchsorted(self.flights["client"][order], clients)]
        return rows

    def refusal(self, client: int, choice: int | None = None) -> str | None:
        """Return why an answer of a client does not count, and count it; None if it does.

        Args:
            client: The client.
            choice: The choice that it answers; None = whichever it works for.
        """
        rows = np.flatnonzero(self.flights["client"] == client)
        if rows.size and choice in (None, int(self.flights["choice"][rows[0]])):
            return None
        reason = "an earlier choice" if rows.size else "no work in flight"
        self.n_refused[reason] = self.n_refused.get(reason, 0) + 1
        return reason

    def begin(self, selection: Selection, now_s: float) -> list[tuple[Selection, Outcome]]:
        """Note that the chosen clients are at work; return the selection if it is empty.

        Args:
            selection: Who was chosen.
            now_s: The time on the clock of the host.

        Raises:
            InvalidInput: One of them is at work already, or the number of the choice is not new.
        """
        clients = selection.clients
        if selection.round < self.n_choices:
            raise InvalidInput(
                f"round must be at least {self.n_choices}, got {selection.round}: every choice "
                "needs a number of its own.",
                field="round",
            )
        at_work = self.flights["client"]
        if clients.size and at_work.size:
            places = np.searchsorted(clients, at_work)  # a selection is in ascending order
            is_twice = bool((clients.take(places, mode="clip") == at_work).any())
        else:
            is_twice = False
        if is_twice:
            raise InvalidInput("clients must not be at work already.", field="clients")
        new = np.zeros(clients.size, FLIGHT)
        new["client"], new["choice"], new["place"] = clients, selection.round, np.arange(new.size)
        new["version"], new["began_s"], new["times"] = self.version, now_s, selection.times
        chance = selection.probability
        new["probability"] = np.nan if chance is None else chance
        self.flights = np.concatenate((self.flights, new), dtype=FLIGHT)
        self.n_choices = selection.round + 1
        size = clients.size
        self._open[selection.round] = _Choice(
            selection, np.full(size, _DUE, np.int8), np.full(size, np.nan)
        )
        return self._completed([selection.round])

    def end(
        self, rows: IntArray, outcome: Outcome, spent: FloatArray | None = None
    ) -> list[tuple[Selection, Outcome]]:
        """Take in what became of some clients; return the selections that are now complete.

        Args:
            rows: (s,) their rows in ``flights``, which are gone afterwards.
            outcome: Their outcomes, in the order of the rows.
            spent: (s,) seconds that their devices worked; None = their durations.
        """
        done = np.zeros(rows.size, ENDED)
        for name in FLIGHT.names or ():
            done[name] = self.flights[name][rows]
        done["status"], done["duration"] = outcome.status, outcome.duration
        done["spent"] = outcome.duration if spent is None else spent
        self.ended = np.concatenate((self.ended, done), dtype=ENDED)
        is_left = np.ones(self.flights.size, dtype=np.bool_)
        is_left[rows] = False
        self.flights = self.flights[is_left]
        if rows.size == 1:
            number = int(done["choice"][0])
            if self._open[number].status.size == 1:  # nothing to wait for, and nothing to gather
                return [(self._open.pop(number).selection, outcome)]
        numbers = sorted(set(done["choice"].tolist()))
        for number in numbers:
            mine = np.flatnonzero(done["choice"] == number)
            self._open[number].add(done["place"][mine], outcome, mine)
        return self._completed(numbers)

    def drop(self, rows: IntArray) -> None:
        """Let answers of this round count as failures after all.

        Args:
            rows: (s,) their rows in ``ended``.
        """
        self.ended["status"][rows] = Status.FAILED

    def take_in(self) -> tuple[Answers, Array]:
        """End the round: return the answers that make the next model, and everything that ended."""
        ended = self.ended
        counts = ended[ended["status"] == _COMPLETED]
        staleness = self.version - counts["version"]
        answers = Answers(
            counts["client"],
            counts["choice"],
            counts["version"],
            staleness,
            self.schedule.staleness.of(staleness),
            self.schedule.staleness,
            counts["probability"],
            counts["times"],
            self.schedule.mixes,
        )
        self.ended = np.zeros(0, ENDED)
        self.version += 1
        return answers, ended

    def _completed(self, numbers: list[int]) -> list[tuple[Selection, Outcome]]:
        """Forget the choices among these that are complete, and return them with their outcomes."""
        complete = [number for number in numbers if self._open[number].is_complete]
        choices = [self._open.pop(number) for number in complete]
        return [(choice.selection, choice.outcome) for choice in choices]

    def state(self) -> dict[str, Array]:
        """Return a copy of everything, as arrays."""
        state = {f"flights.{name}": self.flights[name].copy() for name in FLIGHT.names or ()}
        state |= {f"ended.{name}": self.ended[name].copy() for name in ENDED.names or ()}
        state |= {"version": np.array(self.version), "n_choices": np.array(self.n_choices)}
        state |= {f"refused.{why}": np.array(count) for why, count in self.n_refused.items()}
        for number, choice in self._open.items():
            selection = choice.selection
            parts = {"clients": selection.clients, "status": choice.status}
            parts |= {"duration": choice.duration}
            if selection.probability is not None:
                parts["probability"] = selection.probability
            parts |= {f"{_MEMO}{name}": values for name, values in selection.memo.items()}
            parts |= {f"{_METRIC}{name}": values for name, values in choice.metrics.items()}
            state |= {f"open.{number}.{name}": np.array(x) for name, x in parts.items()}
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state`` returned.

        Args:
            state: The arrays by name.

        Raises:
            KeyError: An array is missing.
        """
        self.flights = _records(state, "flights.", FLIGHT)
        self.ended = _records(state, "ended.", ENDED)
        self.version, self.n_choices = int(state["version"]), int(state["n_choices"])
        self.n_refused = {why: int(count) for why, count in below("refused.", state).items()}
        parts: dict[int, dict[str, Array]] = {}
        for name, values in below("open.", state).items():
            number, _, part = name.partition(".")
            parts.setdefault(int(number), {})[part] = values
        self._open = {number: _restored(number, parts[number]) for number in sorted(parts)}


def _restored(number: int, parts: Mapping[str, Array]) -> _Choice:
    memo = MappingProxyType(below(_MEMO, parts))
    selection = Selection(number, parts["clients"], parts.get("probability"), memo)
    metrics = {name: np.array(values) for name, values in below(_METRIC, parts).items()}
    return _Choice(selection, np.array(parts["status"]), np.array(parts["duration"]), metrics)


def _records(state: Mapping[str, Array], prefix: str, kind: np.dtype[np.void]) -> Array:
    values = {name: state[f"{prefix}{name}"] for name in kind.names or ()}
    records = np.zeros(next(iter(values.values())).size, kind)
    for name, column in values.items():
        records[name] = column
    return records
