"""What the records of a federation say, in columns: the runs of one federation as one log."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.types import BoolArray, FloatArray, IntArray, Status
from turnout.results import read_cells
from turnout.results.answers import LiveAnswers, read_answers
from turnout.results.reader import Cell
from turnout.results.run import Run
from turnout.worlds import SyntheticLoss

#: Fewer rounds than these say too little to be fitted at all.
LEAST_ROUNDS = 5
#: A client that has answered may have taken longer than the round by this factor: clocks differ.
_LONGEST = 1.5


#: Answers in time that everyone's share of known seconds is worth.
_SHARE_PRIOR = 2.0
#: What kinds of runs have no records by name.
_SIMULATED = ("simulation", "training")
#: The columns of a log, one entry per choice.
_COLUMNS = ("clients", "rounds", "status", "seconds", "limit", "warm", "loss", "examples")


class RunLog(NamedTuple):
    """One run of the federation.

    Attributes:
        cell: The run as it was read.
        run: Its choices.
        client_of: Which client of the log each client of the run is.
        first: The round of the log in which the run begins.
        answers: The records by name of a live run.
        has_own_time: Whether no other run of the log saw the same rounds.
    """

    cell: Cell
    run: Run
    client_of: IntArray
    first: int
    answers: LiveAnswers | None
    has_own_time: bool

    def presence(self) -> Iterator[tuple[int, BoolArray, BoolArray]]:
        """Yield round, (n,) who could have been chosen, (n,) of whom it is known whether or not."""
        n = self.client_of.size
        for t in range(self.run.n_rounds):
            yield t, self.run.available_in(t)[:n], self.known_in(t)

    def known_in(self, round: int) -> BoolArray:
        """Return (n,) of whom a round shows whether they were there.

        Args:
            round: The round of this run, from 0.
        """
        known = np.ones(self.client_of.size, dtype=np.bool_)
        if self.answers is not None and round < self.answers.n_rounds:
            busy = self.answers.busy[round]
            known[busy[busy < known.size]] = False  # with work of an earlier round: it may be there
        return known


@dataclass(frozen=True)
class Log:
    """The records of one federation; a choice is one client in one round.

    Attributes:
        names: (n,) the clients.
        records: The runs.
        n_rounds: Rounds from the first to the last.
        clients: (choices,) the chosen clients.
        rounds: (choices,) in which round.
        status: (choices,) int8 of ``Status``.
        seconds: (choices,) until the answer; NaN = not known.
        limit: (choices,) seconds after which the client had not answered yet; NaN = not known.
        warm: (choices,) whether the client took part in the round before.
        loss: (choices,) the reported loss; NaN = none.
        examples: (choices,) the reported number of examples; NaN = none.
        notes: What a reader must know about the records.
    """

    names: tuple[str, ...]
    records: tuple[RunLog, ...]
    n_rounds: int
    clients: IntArray
    rounds: IntArray
    status: IntArray
    seconds: FloatArray
    limit: FloatArray
    warm: BoolArray
    loss: FloatArray
    examples: FloatArray
    notes: tuple[str, ...]

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def last(self) -> RunLog:
        """The run that ends last."""
        return max(self.records, key=lambda each: each.first + each.run.n_rounds)

    def first(self, n_rounds: int) -> Log:
        """Return the log of the first rounds.

        Args:
            n_rounds: Rounds to keep.
        """
        kept = self.rounds < n_rounds
        records = tuple(
            record._replace(run=record.run.first(min(record.run.n_rounds, n_rounds - record.first)))
            for record in self.records
            if record.first < n_rounds
        )
        values: dict[str, Any] = {name: getattr(self, name)[kept] for name in _COLUMNS}
        return replace(self, records=records, n_rounds=n_rounds, **values)


def read_log(runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Log:
    """Return the log of run folders of one federation.

    Args:
        runs: Folders of cells, of experiments, or anything above them.

    Raises:
        InvalidInput: There are no records that can be used, their rounds overlap, or they are of
            several federations.
    """
    if isinstance(runs, str | os.PathLike):
        runs = [runs]
    cells, problems = read_cells(runs)
    notes = [str(problem) for problem in problems]
    usable = [cell for cell in cells if cell.choices is not None and cell.n_rounds]
    if not usable:
        reason = notes[0].rstrip(".") if notes else "there are no run folders with rounds in them"
        raise InvalidInput(f"runs must hold recorded rounds: {reason}.", field="runs")
    return log_of(usable, notes)


def log_of(cells: Sequence[Cell], notes: Sequence[str] = ()) -> Log:
    """Return the log of cells of one federation.

    Args:
        cells: The cells, each with rounds.
        notes: What is known about them already.

    Raises:
        InvalidInput: Their rounds overlap, they are of several federations, or hold too few
            rounds.
    """
    found = list(notes)
    _check_synchronous(cells)
    _check_same_federation(cells)
    _check_distinct(cells)
    versions = sorted({str(cell.versions.get("turnout", "unknown")) for cell in cells})
    if len(versions) > 1:
        found.append(f"the records were written by turnout {' and '.join(versions)}.")
    answers = [read_answers(cell.path) if cell.is_live else None for cell in cells]
    for cell, names in zip(cells, answers, strict=True):
        found += _gaps(cell, names)
    index: dict[str, int] = {}
    records: list[RunLog] = []
    first = 0
    for cell, names in sorted(zip(cells, answers, strict=True), key=_began):
        client_of = _clients(cell, names, index)
        is_new = names is not None or not records
        begin = first if names is not None else 0
        records.append(RunLog(cell, cell.run, client_of, begin, names, is_new))
        first = max(first, begin + cell.n_rounds)
    log = _columns(records, tuple(index), first, found)
    if log.n_rounds < LEAST_ROUNDS or not log.clients.size:
        raise InvalidInput(
            f"runs must hold at least {LEAST_ROUNDS} rounds with chosen clients, got "
            f"{log.n_rounds} rounds and {log.clients.size} choices: record more first.",
            field="runs",
        )
    return log


def _began(entry: tuple[Cell, LiveAnswers | None]) -> str:
    answers = entry[1]
    return answers.began[0] if answers is not None and answers.began else ""


def _check_synchronous(cells: Sequence[Cell]) -> None:
    """Refuse runs in which a client may work on when a round ends."""
    for cell in cells:
        if cell.run.overlaps:
            raise InvalidInput(
                f"runs must be synchronous, got {cell.path}: rounds of this run overlap, and fit "
                "and replay read synchronous rounds only.",
                field="runs",
            )


def _check_same_federation(cells: Sequence[Cell]) -> None:
    """Refuse simulated runs of several worlds: client 3 of one is not client 3 of the other."""
    kinds = {cell.is_live for cell in cells}
    if len(kinds) > 1:
        live = next(cell.path for cell in cells if cell.is_live)
        other = next(cell.path for cell in cells if not cell.is_live)
        raise InvalidInput(
            f"runs must be of one federation: {live} is of real clients, {other} is simulated. "
            "Fit each by itself.",
            field="runs",
        )
    if kinds == {True}:
        _check_same_names(cells)
        return
    worlds = {
        (c.settings.seed, str(sorted(c.settings.world.items())), c.settings.n_clients): c
        for c in reversed(cells)
    }
    if len(worlds) > 1:
        one, other = [cell.path for cell in worlds.values()][:2]
        raise InvalidInput(
            f"runs must be of one federation: {one} and {other} were simulated in different "
            "worlds. Every seed is a federation of its own; give runs of one seed and one world.",
            field="runs",
        )


def _check_same_names(cells: Sequence[Cell]) -> None:
    """Refuse live runs that have no client in common with the first one."""
    names = [(cell, read_answers(cell.path)) for cell in cells]
    known = set(names[0][1].names if names[0][1] else ())
    for cell, answers in names[1:]:
        own = set(answers.names if answers else ())
        if own and known and not own & known:
            raise InvalidInput(
                f"runs must be of one federation: no client of {cell.path} is in "
                f"{names[0][0].path}. If the clients were renamed, rename them in the checkpoint "
                "with turnout clients --rename, or fit each run by itself.",
                field="runs",
            )
        known |= own


def _check_distinct(cells: Sequence[Cell]) -> None:
    """Refuse a run and its copy: they would count as twice as many observations."""
    for one, other in combinations(cells, 2):
        n = min(one.n_rounds, other.n_rounds)
        a, b = one.run.first(n), other.run.first(n)
        is_same_kind = one.settings.label == other.settings.label
        if n < LEAST_ROUNDS or not (is_same_kind and a.clients.size):
            continue  # few rounds may be the same by chance, and others where everybody is chosen
        if all(
            np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True)
            for name in ("offsets", "clients", "status", "length_s", "duration")
        ):
            raise InvalidInput(
                f"runs must be different records, got the same rounds in {one.path} and "
                f"{other.path}: leave out one of them.",
                field="runs",
            )


def _gaps(cell: Cell, answers: LiveAnswers | None) -> Iterator[str]:
    """Yield what the records of a live run by name lack, and whether its clock went back."""
    n = 0 if answers is None else answers.n_rounds
    if cell.settings.kind not in _SIMULATED and n < cell.n_rounds:
        yield (
            f"{cell.path}: answers.jsonl has {n:,} of {cell.n_rounds:,} rounds. When the others "
            "began, and who still had work then, is not known."
        )
    if answers is None:
        return
    days = times_of_day(answers)
    known = np.flatnonzero(np.isfinite(days))
    back = np.flatnonzero(np.diff(days[known]) < 0.0)
    if back.size:
        yield (
            f"{cell.path}: the server's clock went back before round {known[back[0] + 1] + 1:,}, "
            "so times of day were not used."
        )


def _clients(cell: Cell, answers: LiveAnswers | None, index: dict[str, int]) -> IntArray:
    """Return which client of the log each client of a cell is; new names are added."""
    n = cell.settings.n_clients
    names = [str(i) for i in range(n)] if answers is None else list(answers.names)
    names += [f"client {i}" for i in range(len(names), n)]
    return np.array([index.setdefault(name, len(index)) for name in names[:n]], dtype=np.int64)


def _known_share(run: Run, done: BoolArray, usable: BoolArray) -> FloatArray:
    """Return (choices,) which part of its answers in time a client reports with their seconds.

    As many of its late answers are kept: with all of them, it would look slow. Seconds are mostly
    missing for some clients and not for some answers, so each client has a part of its own, drawn
    towards everyone's.
    """
    everyone = float(usable[done].mean()) if done.any() else 1.0
    n_done, n_usable = (
        np.bincount(run.clients[which], minlength=int(run.clients.max(initial=0)) + 1)
        for which in (done, done & usable)
    )
    share: FloatArray = (n_usable + _SHARE_PRIOR * everyone) / (n_done + _SHARE_PRIOR)
    return share[run.clients]


def _columns(
    records: Sequence[RunLog], names: tuple[str, ...], n_rounds: int, notes: list[str]
) -> Log:
    """Return the choices of all records, without what cannot be true."""
    parts: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    n_impossible = 0
    for record in records:
        run = record.run
        sizes = np.diff(run.offsets)
        rounds = np.repeat(np.arange(run.n_rounds), sizes)
        length = np.repeat(run.length_s, sizes)
        status = run.status.astype(np.int64)
        done = status == Status.COMPLETED
        is_known = np.isfinite(run.duration) & (run.duration > 0.0)
        impossible = impossible_in(run)
        n_impossible += int(impossible.sum())
        usable = is_known & ~impossible & (done | (status == Status.LATE))
        waited = np.where(np.isfinite(run.spent) & (run.spent > 0.0), run.spent, length)
        late = (status == Status.LATE) & ~usable
        late &= stream(0, Purpose.EVAL).random(late.size) < _known_share(run, done, usable)
        parts["clients"].append(record.client_of[run.clients])
        parts["rounds"].append(record.first + rounds)
        parts["status"].append(status)
        parts["seconds"].append(np.where(usable, run.duration, np.nan))
        parts["limit"].append(np.where(late & (waited > 0.0), waited, np.nan))
        parts["warm"].append(took_part_before(run))
        unknown = np.full(run.clients.size, np.nan)
        parts["loss"].append(_loss(run, unknown))
        parts["examples"].append(run.reported.get("num_samples", unknown))
    if n_impossible:
        notes.append(
            f"{n_impossible:,} durations cannot be true, because they are negative or longer than "
            "the round: a clock has jumped. They were left out."
        )
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    return Log(names, tuple(records), n_rounds, **columns, notes=tuple(notes))


def _loss(run: Run, unknown: FloatArray) -> FloatArray:
    """Return the reported losses; where only root mean squares were reported, what they stand for.

    The factor between them is that of the synthetic losses that a world makes of them again.
    """
    root = run.reported.get("loss_rms", unknown) / math.hypot(1.0, SyntheticLoss().batch_spread)
    loss = run.reported.get("loss", unknown)
    return np.where(np.isnan(loss), root, loss)


def impossible_in(run: Run) -> BoolArray:
    """Return (choices,) whose seconds cannot be true: negative, or longer than the round.

    Args:
        run: The recorded run.
    """
    longest = _LONGEST * np.repeat(run.length_s, np.diff(run.offsets)) + 1.0
    too_long = run.completed & ((run.duration > longest) | (run.spent > longest))
    return np.asarray((run.duration < 0.0) | (run.spent < 0.0) | too_long)


def took_part_before(run: Run) -> BoolArray:
    """Return (choices,) whether the client was chosen in the round before, too.

    Args:
        run: The recorded run.
    """
    rounds = np.repeat(np.arange(run.n_rounds), np.diff(run.offsets))
    key = rounds * run.n_clients + run.clients
    return np.isin(key - run.n_clients, key) & (rounds > 0)


def times_of_day(answers: LiveAnswers) -> FloatArray:
    """Return (T,) when each round began, in days since 1970; NaN = not written."""
    days = np.full(answers.n_rounds, np.nan)
    for t, text in enumerate(answers.began):
        try:
            days[t] = datetime.fromisoformat(text).timestamp() / 86_400.0
        except ValueError:
            continue
    return days


def settings_of(log: Log) -> Mapping[str, Any]:
    """Return the settings of the latest run of a log."""
    last = log.records[-1].cell.settings
    return {"cohort_size": last.cohort_size, "policy": dict(last.policy)}
