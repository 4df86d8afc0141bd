"""A live run as its operator sees it: clients by name, their answers, waits and fair shares.

``LiveRun`` has the numbers. ``LiveView`` has the texts and drawings of the one view that the
terminal, the report and ``turnout watch`` show.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from turnout.core.plain import finite
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, Status
from turnout.report.figure import (
    Axis,
    Bars,
    Chart,
    Guide,
    Heatmap,
    Line,
    Mark,
    Panel,
    stacked,
)
from turnout.results import metrics
from turnout.results.answers import LiveAnswers, Notice, read_alerts, read_answers
from turnout.results.groups import WorldGroup
from turnout.results.guarantee import fair_share
from turnout.results.reader import Cell
from turnout.results.run import Run
from turnout.results.settings import CellSettings
from turnout.results.shadows import Shadowed, read_shadows

# The numbers --------------------------------------------------------------------------------------


_GREYS = {"AWAY": "page", "NOT_CHOSEN": "grid"}


class Seen(IntEnum):
    """What happened to a client in a round; the first four are those of ``Status``."""

    IN_TIME = Status.COMPLETED
    LATE = Status.LATE
    FAILED = Status.FAILED
    SILENT = Status.SILENT
    BUSY = 4
    AWAY = 5
    NOT_CHOSEN = 6

    @property
    def words(self) -> str:
        """The name that people read."""
        return "not there" if self is Seen.AWAY else self.name.lower().replace("_", " ")

    @property
    def colour(self) -> str:
        """The name of its colour."""
        return _GREYS.get(self.name, self.name.lower().replace("_", "-"))


#: What can happen to a chosen client, in the order of the columns of ``LiveRun.counts``.
ENDS = (Seen.IN_TIME, Seen.LATE, Seen.FAILED, Seen.SILENT)


class Complaint(NamedTuple):
    """Why a client gave no usable answer, and how often.

    Attributes:
        client: The client's name.
        what: late, failed or silent.
        reason: The recorded reason; late and silent clients gave none.
        times: How often it happened.
        last: The last round in which it happened, counted from 1.
    """

    client: str
    what: str
    reason: str
    times: int
    last: int


class Shares(NamedTuple):
    """How often clients were chosen, compared with their fair share while they were available.

    Attributes:
        free: (n,) rounds in which each client could be chosen.
        chosen: (n,) how often it was chosen.
        fair: (n,) its fair share of the places of these rounds.
    """

    free: IntArray
    chosen: IntArray
    fair: FloatArray

    @property
    def ratio(self) -> FloatArray:
        """(n,) chosen over fair share: 1 = exactly its share; NaN = it could never be chosen."""
        return np.where(self.fair > 0, self.chosen / np.where(self.fair > 0, self.fair, 1), np.nan)

    @property
    def jain(self) -> float:
        """Jain's index of the ratios of clients that could be chosen: 1 = all got their share."""
        ratio = self.ratio[np.isfinite(self.ratio)]
        return metrics.jain_of_counts(ratio) if ratio.any() else np.nan


@dataclass(frozen=True)
class LiveRun:
    """The records of a live run.

    Attributes:
        settings: The settings of the run.
        answers: What happened to the chosen clients.
        run: The choices and who could be chosen, as far as they are written.
        alerts: The alerts of the run, in order.
        is_simulated: Whether clients were simulated: they have no names, and nobody waited.
        shadows: What selectors that were not in charge would have chosen.
    """

    settings: CellSettings
    answers: LiveAnswers
    run: Run | None
    alerts: Sequence[Notice] = ()
    is_simulated: bool = False
    shadows: Sequence[Shadowed] = ()

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
        run = cell.choices
        shadows = () if run is None else tuple(read_shadows(cell.path, run).values())
        alerts = read_alerts(cell.path)
        return cls(cell.settings, answers, run, alerts, shadows=shadows)

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
        answers = LiveAnswers(
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
        """(n,) the clients; a client whose name is not written yet is called by its index."""
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
        return self._counted(self.answers.clients, len(self.names))

    @cached_property
    def per_round(self) -> IntArray:
        """(T, 4) how many of the chosen clients were in time, late, failed and silent."""
        return self._counted(self.answers.round_of, self.n_rounds)

    def _counted(self, row_of: IntArray, n_rows: int) -> IntArray:
        places = row_of * len(ENDS) + self.answers.status
        return np.bincount(places, minlength=n_rows * len(ENDS)).reshape(n_rows, len(ENDS))

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
        """Choices compared with fair shares; None while it is not known who could be chosen."""
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
        return Shares(*columns)

    @cached_property
    def complaints(self) -> list[Complaint]:
        """Which clients gave no usable answer, why and how often: the most frequent first."""
        answers = self.answers
        rounds: dict[tuple[int, int, str], list[int]] = {}
        for i in np.flatnonzero(answers.status != Status.COMPLETED).tolist():
            reason = answers.reasons.get(i, "no reply in time")
            key = (int(answers.clients[i]), int(answers.status[i]), reason)
            rounds.setdefault(key, []).append(int(answers.round_of[i]) + 1)
        found = [
            Complaint(self.names[client], Seen(status).words, reason, len(those), those[-1])
            for (client, status, reason), those in rounds.items()
        ]
        return sorted(found, key=lambda one: (-one.times, -one.last, one.client, one.reason))

    def median_s(self, client: int) -> float:
        """Return the median seconds of a client's answers in time; NaN if there is none.

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
        """Return what happened to some clients in each round from ``first`` on.

        Args:
            clients: Their indices.
            first: The first round that counts, from 0.

        Returns:
            (clients, rounds) int8 of ``Seen``. In the newest rounds of a running run it is not yet
            known who could be chosen; there, clients without a choice count as not chosen.
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


# The view -----------------------------------------------------------------------------------------

#: Clients that are shown one by one: where there are more, the worst and the best of them.
MOST_WORST, MOST_BEST = 25, 10
#: Rounds of the status map, lines of the table of reasons, and alerts that are shown.
MOST_COLUMNS, MOST_REASONS, MOST_ALERTS = 400, 25, 20
#: Bars of a figure over rounds; where there are more rounds, each bar is a mean over several.
MOST_BARS = 150
#: Runs of rounds that a sentence names.
_MOST_RANGES = 12
#: Edges of the bars of fair shares; 1 is exactly the fair share.
_EDGES = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, np.inf])
_NONE = "\N{EN DASH}"


class Fact(NamedTuple):
    """One number of the overview."""

    title: str
    text: str
    remark: str = ""


class ClientRow(NamedTuple):
    """A client in the table: texts."""

    name: str
    cells: list[str]
    is_rest: bool = False  #: whether it stands for all others


@dataclass(frozen=True)
class LiveView:
    """Everything that is shown of a live run; each part is computed once, when it is asked for.

    Attributes:
        run: The run, at least one round of it.
        id: The name of its element in a page.
        name: The name of the run.
        label: The label of its selector.
        measured: (T,) curves to draw besides, such as the accuracy.
    """

    run: LiveRun
    id: str
    name: str
    label: str = ""
    measured: Sequence[Line] = ()

    @cached_property
    def facts(self) -> list[Fact]:
        """The overview of the run."""
        run = self.run
        totals, lengths = run.per_round.sum(axis=0), run.answers.length_s
        n_chosen, n_void = int(totals.sum()), int(run.answers.is_void.sum())
        troubles = ", ".join(f"{int(totals[kind]):,} {kind.words}" for kind in ENDS[1:])
        need = f"a round needs {run.min_answers:,} {'replies' if run.min_answers > 1 else 'reply'}"
        free = ""
        if run.run is not None and run.run.n_rounds:
            free = f"{run.run.n_available.mean():,.1f} free per round"
        found = [
            Fact("Rounds", f"{run.n_rounds:,} of {run.settings.n_rounds:,}"),
            Fact("Void rounds", "" if run.is_simulated else f"{n_void:,}", need),
            Fact("Replies in time", f"{int(totals[0]):,} of {n_chosen:,}", troubles),
            Fact("Clients seen", f"{len(run.names):,}", free),
            _time("Virtual time of a round" if run.is_simulated else "Training per round", lengths),
            _time("Wait per round", run.waited_s),
        ]
        return [fact for fact in found if fact.text]

    @property
    def alerts(self) -> list[Notice]:
        """The newest alerts, the newest first."""
        return list(self.run.alerts[: -MOST_ALERTS - 1 : -1])

    @property
    def complaints(self) -> list[Complaint]:
        """The most frequent reasons for missing answers."""
        return self.run.complaints[:MOST_REASONS]

    @property
    def void(self) -> str:
        """The rounds without enough answers."""
        return spelled(np.flatnonzero(self.run.answers.is_void) + 1)

    @cached_property
    def _shown(self) -> tuple[IntArray, int]:
        """The clients that are shown one by one, the worst first, and the number of the others."""
        run, order = self.run, self.run.worst_first()
        if order.size <= MOST_WORST + MOST_BEST:
            return order, 0
        rest = order[MOST_WORST:]
        best = rest[np.lexsort((rest, -run.counts[rest, 0], run.trouble[rest]))][:MOST_BEST]
        return np.concatenate((order[:MOST_WORST], best)), order.size - MOST_WORST - MOST_BEST

    @property
    def headings(self) -> list[str]:
        """The columns of the table of clients."""
        ends = [kind.words.capitalize() for kind in ENDS]
        shares = ["Free in rounds", "Fair share", "Got of it"] if self.run.shares else []
        return ["Chosen", *ends, "Usual reply", *shares]

    @cached_property
    def rows(self) -> list[ClientRow]:
        """The table of clients; clients that are not shown are summed in its last row."""
        run, (shown, n_rest) = self.run, self._shown
        rows = [
            ClientRow(run.names[client], _client_cells(run, [client], run.median_s(client)))
            for client in shown.tolist()
        ]
        if n_rest:
            rest = np.setdiff1d(np.arange(len(run.names)), shown)
            name = f"{n_rest:,} others together"
            rows.append(ClientRow(name, _client_cells(run, rest, math.nan), is_rest=True))
        return rows

    @property
    def fairness(self) -> str:
        """A few sentences on whether each client got its share while it was available."""
        shares, names = self.run.shares, self.run.names
        if shares is None or not np.isfinite(shares.ratio).any():
            return ""
        ratio = shares.ratio
        low, high = int(np.nanargmin(ratio)), int(np.nanargmax(ratio))
        never = int(np.count_nonzero((shares.chosen == 0) & (shares.fair > 0)))
        text = (
            f"Counted over the rounds in which a client was free. Least: {names[low]} with "
            f"{ratio[low]:.0%} of its fair share; most: {names[high]} with {ratio[high]:.0%}. "
            f"Jain's index of these parts is {shares.jain:.3f} (1 = all equal)."
        )
        return f"{text} Never chosen, though free: {never:,}." if never else text

    @cached_property
    def shadow_rows(self) -> list[list[str]]:
        """What selectors that were not in charge would have done, one row each."""
        return [
            [
                row["selector"],
                f"{row['rounds']:,}",
                _NONE if row["agreement"] is None else f"{row['agreement']:.0%}",
                _NONE if row["least_share"] is None else f"{row['least_share']:.2f}",
            ]
            for row in self._shadows
        ]

    @property
    def shadow_headings(self) -> list[str]:
        """The headings of ``shadow_rows``."""
        return ["Shadow", "Chose in rounds", "Same as in charge", "Least served"]

    @property
    def _shadows(self) -> list[dict[str, Any]]:
        run, none = self.run.run, math.nan
        found = []
        for each in self.run.shadows:
            same, least = (
                (none, none) if run is None else (each.agreement(run), each.least_share(run))
            )
            row = {"selector": each.label, "rounds": each.n_rounds}
            found.append(finite(row | {"agreement": same, "least_share": least}))
        return found

    @cached_property
    def charts(self) -> list[Chart]:
        """The figures of the run."""
        found = [_status(self.run, *self._shown)]
        for line in self.measured:
            words = line.name.replace("_", " ")
            title = f"{words.capitalize()} by round"
            found.append(_by_round(line.name, title, "", [line], Axis(words)))
        found.append(_answers(self.run))
        if np.isfinite(self.run.answers.wall_s).any():
            found.append(_waits(self.run))
        ratio = np.zeros(0) if self.run.shares is None else self.run.shares.ratio
        if np.isfinite(ratio).any():
            found.append(_fair_shares(ratio[np.isfinite(ratio)]))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the run for a program: every client and every reason."""
        run, shares = self.run, self.run.shares
        clients = []
        for i, client in enumerate(run.names):
            row: dict[str, Any] = {"client": client, "chosen": int(run.counts[i].sum())}
            row |= {kind.name.lower(): int(run.counts[i, kind]) for kind in ENDS}
            if shares is not None:
                row |= {"free_rounds": int(shares.free[i]), "fair_share": float(shares.fair[i])}
            clients.append(row)
        return {
            "seed": run.settings.seed,
            "n_rounds": run.n_rounds,
            "min_answers": run.min_answers,
            "void_rounds": (np.flatnonzero(run.answers.is_void) + 1).tolist(),
            "wall_s": finite(run.answers.wall_s),
            "training_s": finite(run.answers.length_s),
            "alerts": [alert._asdict() for alert in run.alerts],
            "clients": clients,
            "complaints": [complaint._asdict() for complaint in run.complaints],
            **({"shadows": self._shadows} if run.shadows else {}),
        }


def live_views(world: WorldGroup, id: str = "") -> list[LiveView]:
    """Return the live runs of a world that have begun.

    Args:
        world: Cells that compare; none count as live if some are not.
        id: The name of the world's element in a page.
    """
    found: list[LiveView] = []
    for variant in world.variants if world.is_live else ():
        for seed, cell in zip(variant.seeds, variant.cells, strict=True):
            run = LiveRun.of(cell)
            if run is not None and run.n_rounds:
                several = f", seed {seed}" if len(variant.cells) > 1 else ""
                name = f"{variant.name}{several}, as it ran"
                found.append(LiveView(run, f"{id}-live-{len(found)}", name, variant.name))
    return found


def seconds(value: float) -> str:
    """Return a time as people read it: ``0.4 s``, ``12 s``, ``4 min 10 s``, ``2 h 5 min``.

    Args:
        value: Seconds; NaN is a dash.
    """
    if not math.isfinite(value):
        return _NONE
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def spelled(numbers: Array) -> str:
    """Return numbers in words: ``3, 17-19, 41``; of many only the last.

    Args:
        numbers: Integers, ascending.
    """
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if numbers.size else []
    parts = [f"{run[0]}-{run[-1]}" if run.size > 1 else f"{run[0]}" for run in runs]
    cut = parts[-_MOST_RANGES:]
    return ", ".join(["…", *cut] if len(cut) < len(parts) else cut)


def _time(title: str, values: FloatArray) -> Fact:
    known = values[np.isfinite(values)]
    if not known.size:
        return Fact(title, "")
    longest = int(np.nanargmax(values))
    remark = f"longest {seconds(float(values[longest]))} in round {longest + 1:,}"
    return Fact(title, seconds(float(np.median(known))), remark)


def _client_cells(run: LiveRun, clients: Sequence[int] | IntArray, usual_s: float) -> list[str]:
    """Return the sums of one or several clients, and their part of their fair shares."""
    counts, shares = run.counts[clients].sum(axis=0), run.shares
    texts = [f"{counts.sum():,}", *(f"{count:,}" for count in counts), seconds(usual_s)]
    if shares is not None:
        fair, chosen = shares.fair[clients].sum(), shares.chosen[clients].sum()
        texts += [f"{shares.free[clients].sum():,}", f"{fair:,.1f}"]
        texts.append(f"{chosen / fair:.0%}" if fair else _NONE)
    return texts


# Its figures --------------------------------------------------------------------------------------


def _by_round(key: str, title: str, caption: str, marks: Sequence[Mark], y: Axis) -> Chart:
    return Chart(key, title, caption, [Panel(marks, Axis("round"), y)])


def _status(run: LiveRun, clients: IntArray, n_rest: int) -> Chart:
    """Return what happened to clients in the newest rounds, the first client on top."""
    first = max(0, run.n_rounds - MOST_COLUMNS)
    names = [run.names[client] for client in clients[::-1]]
    kinds = [(kind.words, kind.colour) for kind in Seen]
    seen = run.seen(clients[::-1], first)
    rounds = np.arange(first, run.n_rounds) + 1
    mark = Heatmap("", "grid", seen, "", x=rounds, rows=names, kinds=kinds)
    caption = ""
    if n_rest:
        caption = (
            f"The {MOST_WORST} clients with most trouble, then {MOST_BEST} of the best; "
            f"{n_rest:,} are not shown. "
        )
    if first:
        caption += f"The last {MOST_COLUMNS} of {run.n_rounds:,} rounds."
    y = Axis(ticks=dict(enumerate(names)), tick_size=9.0)
    panel = Panel([mark], Axis("round"), y, height=1.0 + 0.15 * len(names))
    return Chart("status", "Status by client and round", caption, [panel], is_wide=True)


def _stacked_by_round(run: LiveRun, parts: Sequence[tuple[str, str, Array]]) -> list[Bars]:
    """Return bars on top of each other: name, colour and (T,) height of each part."""
    n_rounds = run.n_rounds
    bin_of = np.arange(n_rounds) * min(n_rounds, MOST_BARS) // n_rounds
    starts = np.flatnonzero(np.diff(bin_of, prepend=-1))
    sizes = np.diff(starts, append=n_rounds)
    middles, widths = starts + (sizes + 1) / 2, 0.86 * sizes
    means = [np.add.reduceat(np.nan_to_num(y), starts) / sizes for _, _, y in parts]
    bars = [
        Bars(name, colour, middles, mean, width=widths)
        for (name, colour, _), mean in zip(parts, means, strict=True)
    ]
    return stacked(bars)


def _mean_note(run: LiveRun) -> str:
    several = math.ceil(run.n_rounds / MOST_BARS)
    return f" A bar is the mean of up to {several} rounds." if several > 1 else ""


def _answers(run: LiveRun) -> Chart:
    parts = [(kind.words, kind.colour, run.per_round[:, kind]) for kind in ENDS]
    marks: list[Mark] = [*_stacked_by_round(run, parts)]
    caption = f"What happened to the chosen clients.{_mean_note(run)}"
    if run.min_answers > 1 and not run.is_simulated:
        caption += f" Dashed: the {run.min_answers} replies in time that a round needs."
        marks.append(Guide("y", float(run.min_answers), "dash"))
    return _by_round("answers", "Replies by round", caption, marks, Axis("clients"))


def _waits(run: LiveRun) -> Chart:
    parts = [
        ("training", "training", run.answers.length_s),
        ("waiting", "waiting", run.waited_s),
    ]
    caption = (
        "Wall time of each round. Waiting is all time without training: until enough clients were "
        "connected, until they had replied to the server's queries, and while the server worked "
        f"before it closed the round.{_mean_note(run)}"
    )
    title, bars = "Training and waiting by round", _stacked_by_round(run, parts)
    return _by_round("waits", title, caption, bars, Axis("wall time", "s"))


def _fair_shares(ratio: FloatArray) -> Chart:
    """Return how many clients got how much of their fair share."""
    counts = np.histogram(ratio, _EDGES)[0].astype(float)
    words = [f"{low:.0%} to {high:.0%}" for low, high in itertools.pairwise(_EDGES[:-1])]
    words.append("200% and more")
    bars = Bars("", "part", words, counts)
    caption = (
        "100 % is exactly its share of the places of the rounds in which a client could be chosen."
    )
    panel = Panel([bars], Axis("part of the fair share"), Axis(unit="clients"))
    return Chart("shares", "Clients by their part of the fair share", caption, [panel])
