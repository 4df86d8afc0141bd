"""A live run as who operates it sees it: clients by name, what became of them, who had to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from turnout import metrics
from turnout.guarantee import fair_share
from turnout.results.groups import WorldGroup
from turnout.runs.answers import Answers, Notice, read_alerts, read_answers
from turnout.runs.cell import Cell
from turnout.runs.run import Run
from turnout.runs.settings import CellSettings
from turnout.types import Array, BoolArray, FloatArray, IntArray, Status


class Seen(IntEnum):
    """What a round was for a client; the first four are those of ``Status``."""

    IN_TIME = Status.COMPLETED
    LATE = Status.LATE
    FAILED = Status.FAILED
    SILENT = Status.SILENT
    BUSY = 4
    AWAY = 5
    NOT_CHOSEN = 6

    @property
    def words(self) -> str:
        """As people say it."""
        return "not there" if self is Seen.AWAY else self.name.lower().replace("_", " ")


#: What may become of a chosen client, in the order of the columns of ``LiveRun.counts``.
ENDS = (Seen.IN_TIME, Seen.LATE, Seen.FAILED, Seen.SILENT)


class Complaint(NamedTuple):
    """Why a client gave no usable answer, and how often.

    Attributes:
        client: Its name.
        what: late, failed or silent.
        reason: As it was recorded; who is late or silent gave none.
        times: How often.
        last: The last round in which it happened, counted from 1.
    """

    client: str
    what: str
    reason: str
    times: int
    last: int


class Shares(NamedTuple):
    """How often clients were chosen, against their fair share while they could be.

    Attributes:
        free: (n,) rounds in which each could be chosen.
        chosen: (n,) how often it was.
        fair: (n,) its fair share of the places of these rounds.
        n_rounds: Rounds of which this is known.
    """

    free: IntArray
    chosen: IntArray
    fair: FloatArray
    n_rounds: int

    @property
    def ratio(self) -> FloatArray:
        """(n,) chosen over fair share: 1 = just its share; NaN for who could never be chosen."""
        return np.where(self.fair > 0, self.chosen / np.where(self.fair > 0, self.fair, 1), np.nan)

    @property
    def jain(self) -> float:
        """Jain's index of the ratios of those who could be chosen: 1 = all got their share."""
        ratio = self.ratio[np.isfinite(self.ratio)]
        return metrics.jain_of_counts(ratio) if ratio.any() else np.nan


@dataclass(frozen=True)
class LiveRun:
    """The records of a live run.

    Attributes:
        settings: What it was run with.
        answers: What became of the chosen, by client.
        run: The choices and who could be chosen, as far as they were written.
        alerts: What it warned of, in order.
        is_simulated: Whether nobody was there: clients have no names, and nobody waited.
    """

    settings: CellSettings
    answers: Answers
    run: Run | None
    alerts: Sequence[Notice] = ()
    is_simulated: bool = False

    @classmethod
    def of(cls, cell: Cell) -> LiveRun | None:
        """Return the live run that a cell is; None for a simulation, also for one by a framework.

        Args:
            cell: A cell, read back.

        Raises:
            DamagedFile: If the answers cannot be read at all.
        """
        answers = read_answers(cell.path) if cell.is_live else None
        if answers is None:
            return None
        return cls(cell.settings, answers, cell.choices, read_alerts(cell.path))

    @classmethod
    def simulated(cls, cell: Cell) -> LiveRun | None:
        """Return a simulation as if it were live; None while its choices are not written.

        Args:
            cell: A cell, read back.
        """
        run = cell.choices
        if run is None or not run.n_rounds:
            return None
        n_rounds = run.n_rounds
        answers = Answers(
            names=tuple(f"client {i}" for i in range(run.n_clients)),
            began=("",) * n_rounds,
            wall_s=np.full(n_rounds, np.nan),
            length_s=run.length_s,
            is_void=np.zeros(n_rounds, dtype=np.bool_),
            busy=(np.zeros(0, dtype=np.int64),) * n_rounds,
            round_of=np.repeat(np.arange(n_rounds), np.diff(run.offsets)),
            clients=run.clients,
            status=run.status,
            seconds=run.duration,
            reasons={},
        )
        return cls(cell.settings, answers, run, is_simulated=True)

    @property
    def n_rounds(self) -> int:
        """Rounds that have ended."""
        return self.answers.n_rounds

    @cached_property
    def names(self) -> tuple[str, ...]:
        """(n,) the clients; one whose name is not written yet goes by its index."""
        names = self.answers.names
        n_clients = 0 if self.run is None else self.run.n_clients
        return (*names, *(f"client {i}" for i in range(len(names), n_clients)))

    @property
    def min_answers(self) -> int:
        """Answers that a round needs."""
        number = self.settings.quorum.get("min_answers")
        return number if type(number) is int and number > 0 else 1

    @cached_property
    def counts(self) -> IntArray:
        """(n, 4) how often each client was in time, late, failed and silent."""
        places = self.answers.clients * len(ENDS) + self.answers.status
        n = len(self.names)
        return np.bincount(places, minlength=n * len(ENDS)).reshape(n, len(ENDS))

    @cached_property
    def per_round(self) -> IntArray:
        """(T, 4) how many of the chosen were in time, late, failed and silent."""
        places = self.answers.round_of * len(ENDS) + self.answers.status
        return np.bincount(places, minlength=self.n_rounds * len(ENDS)).reshape(-1, len(ENDS))

    @property
    def trouble(self) -> IntArray:
        """(n,) how often each client gave no answer in time."""
        return np.asarray(self.counts[:, 1:].sum(axis=1))

    @property
    def waited_s(self) -> FloatArray:
        """(T,) seconds of each round in which nobody trained: for clients, answers, the server."""
        return np.maximum(self.answers.wall_s - self.answers.length_s, 0.0)

    @cached_property
    def shares(self) -> Shares | None:
        """Choices against fair shares; None while it is not known who could be chosen."""
        run = self.run
        if run is None or not run.n_rounds or not run.knows_available:
            return None
        free, fair = np.zeros(run.n_clients, dtype=np.int64), np.zeros(run.n_clients)
        for t in range(run.n_rounds):
            share = fair_share(run, t)
            fair += share
            free += share > 0
        room = (0, len(self.names) - run.n_clients)
        columns = (np.pad(free, room), np.pad(run.counts, room), np.pad(fair, room))
        return Shares(*columns, run.n_rounds)

    @cached_property
    def complaints(self) -> list[Complaint]:
        """Who gave no usable answer, why and how often: the most frequent first."""
        answers = self.answers
        counted: Counter[tuple[int, int, str]] = Counter()
        last: dict[tuple[int, int, str], int] = {}
        for i in np.flatnonzero(answers.status != Status.COMPLETED).tolist():
            reason = answers.reasons.get(i, "no answer in time")
            key = (int(answers.clients[i]), int(answers.status[i]), reason)
            counted[key] += 1
            last[key] = int(answers.round_of[i]) + 1
        found = [
            Complaint(self.names[client], Seen(status).words, reason, count, last[key])
            for key, count in counted.items()
            for client, status, reason in [key]
        ]
        return sorted(found, key=lambda one: (-one.times, -one.last, one.client, one.reason))

    def median_s(self, client: int) -> float:
        """Return the usual seconds of a client's answers in time; NaN if there is none.

        Args:
            client: Its index.
        """
        answers = self.answers
        is_its = (answers.clients == client) & (answers.status == Status.COMPLETED)
        seconds = answers.seconds[is_its & np.isfinite(answers.seconds)]
        return float(np.median(seconds)) if seconds.size else np.nan

    def worst_first(self) -> IntArray:
        """Return all clients: those with most trouble first, then the least chosen."""
        shares = self.shares
        ratio = np.zeros(len(self.names)) if shares is None else np.nan_to_num(shares.ratio, nan=9)
        return np.lexsort((ratio, -self.trouble))

    def seen(self, clients: Sequence[int] | IntArray, first: int = 0) -> Array:
        """Return what the rounds from ``first`` on were for some clients.

        Args:
            clients: Their indices.
            first: The first round that counts, from 0.

        Returns:
            (clients, rounds) int8 of ``Seen``. Who could be chosen is not known of the newest
            rounds of a running run; there, who was not chosen counts as such.
        """
        answers, rows = self.answers, np.asarray(clients, dtype=np.int64)
        table = np.full((rows.size, self.n_rounds - first), Seen.NOT_CHOSEN, dtype=np.int8)
        row_of = np.full(len(self.names), -1)
        row_of[rows] = np.arange(rows.size)
        for t in range(first, self.n_rounds):
            table[~self._is_free(t, rows), t - first] = Seen.AWAY
            busy = row_of[answers.busy[t]]
            table[busy[busy >= 0], t - first] = Seen.BUSY
        row, column = row_of[answers.clients], answers.round_of - first
        is_shown = (row >= 0) & (column >= 0)
        table[row[is_shown], column[is_shown]] = answers.status[is_shown]
        return table

    def _is_free(self, t: int, clients: IntArray) -> BoolArray:
        run = self.run
        if run is None or t >= run.n_rounds or not run.knows_available:
            return np.ones(clients.size, dtype=np.bool_)
        there = np.pad(run.available_in(t), (0, len(self.names) - run.n_clients))
        return np.asarray(there[clients])


class NamedRun(NamedTuple):
    """A live run of a world.

    Attributes:
        label: The selector's name in the world.
        title: What the run is called: its label, with the seed if there are several.
        run: The run.
    """

    label: str
    title: str
    run: LiveRun


def live_runs(world: WorldGroup) -> list[NamedRun]:
    """Return the live runs of a world that have begun.

    Args:
        world: Cells that compare; none count as live if some are not.
    """
    return [
        NamedRun(variant.name, f"{variant.name}{', seed ' + str(seed) if several else ''}", run)
        for variant in (world.variants if world.is_live else ())
        for several in [len(variant.cells) > 1]
        for seed, cell in zip(variant.seeds, variant.cells, strict=True)
        if (run := LiveRun.of(cell)) is not None and run.n_rounds
    ]
