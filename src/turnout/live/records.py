"""The run folder of a live run, as ``turnout report`` reads it.

A live run folder has more than the files of every run. ``roster.json`` has the stable id of each
client, in the order of their indices. ``answers.jsonl`` has a line for each round with the status
of every chosen client, and ``alerts.jsonl`` a line for each alert. With a key, ``receipts.jsonl``
has a signed line for each chosen client. ``open.jsonl`` shows the open round for ``turnout watch``.
A run that was stopped has ``error.txt`` instead of a summary until it
resumes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.files import write_atomically, write_npz, writing_to
from turnout.core.roster import Roster
from turnout.core.types import IntArray, Status
from turnout.live.alerts import STOPPED, Alert
from turnout.live.members import Members
from turnout.live.receipts import Receipts
from turnout.live.round import ClosedRound, Cohort, Journal
from turnout.live.transport import Reply, clock
from turnout.results import files
from turnout.results.catalogue import summarize
from turnout.results.files import FolderError, cell_folder
from turnout.results.metric import Facts
from turnout.results.settings import versions
from turnout.results.writer import RoundLog, backlog_rate, curves_at_end

#: The choices are written again after so many seconds, and at the end.
_FLUSH_SECONDS = 5.0


def _refused(method: Callable[..., None]) -> Callable[..., None]:
    """Raise an error that names the folder if it cannot be written."""

    @functools.wraps(method)
    def written(self: Records, *arguments: Any, **named: Any) -> None:
        with writing_to(self.path):
            method(self, *arguments, **named)

    return written


class Records:
    """Writes a cell: one line per round, choices every few seconds, a summary at the end."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        config: dict[str, Any],
        classes: IntArray | None = None,
        guaranteed_rate: float | None = None,
        more_versions: Mapping[str, str] | None = None,
        receipts: Receipts | None = None,
    ) -> None:
        self.path = cell_folder(Path(root), config["label"], config["seed"])
        self._config = config
        self._classes = {} if classes is None or not classes.any() else {"class_of": classes}
        self._rate = backlog_rate(guaranteed_rate)
        #: Without a promised rate, queues mean nothing to an operator.
        self._left_out = {"regret"}
        if guaranteed_rate is None and not config["world"]:
            self._left_out |= {"backlog_mean", "backlog_max"}
        self._versions = dict(more_versions or {})
        self._started = clock.now()
        self._flushed = self._started - _FLUSH_SECONDS
        self._log = RoundLog(self.path / files.ROUNDS)
        self._open = self.path / files.OPEN
        self._answers = RoundLog(self.path / files.ANSWERS)
        self._alerts = RoundLog(self.path / files.ALERTS)
        self._by_round = [self._answers, self._alerts]
        self._receipts = receipts
        if receipts is not None:
            self._signed = RoundLog(self.path / files.RECEIPTS)
            self._by_round.append(self._signed)
        self._n_lines = self._n_known = 0
        self._is_open = False
        self._began: float | None = None  # the run's first round, in seconds since 1970
        self._busy: list[Hashable] = []  # when the cohort of the open round was chosen

    @_refused
    def open(self, journal: Journal, *, resumed: bool) -> None:
        """Create the folder, with the rounds that are done already."""
        if not resumed and self._log.n_bytes > 0:
            raise FolderError(
                f"{self.path} already holds a run: delete it, or give another folder or label; to "
                "resume that run, give its checkpoint."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        for path in (self.path / files.SUMMARY, self.path / files.ERROR, self._open):
            path.unlink(missing_ok=True)
        files.write_json(self.path / files.VERSIONS, versions() | self._versions)
        self._write_config(journal)
        self._log.begin(journal.lines())
        for log in self._by_round:
            log.begin(_lines_before(log.path, journal.n_rounds))
        self._began = _began_in(self._answers.path)
        self._n_lines = journal.n_rounds
        self._is_open = True

    @_refused
    def write_cohort(self, cohort: Cohort, members: Members) -> None:
        """Write who was chosen, before any work is sent."""
        self._busy = members.busy_ids()
        first = {
            "round": cohort.round,
            "began": stamp(clock.wall()),
            "deadline_s": cohort.deadline if math.isfinite(cohort.deadline) else None,
            "chosen": cohort.ids,
        }
        self._open.write_bytes(f"{json.dumps(first)}\n".encode())

    @_refused
    def write_reply(self, client: Hashable, reply: Reply) -> None:
        """Write that a client has replied in the open round."""
        with self._open.open("ab") as log:
            line = {"id": client, "heard": reply.reason or reply.kind.value}
            log.write(f"{json.dumps(line)}\n".encode())

    @_refused
    def write_answers(self, result: ClosedRound, roster: Roster) -> None:
        """Write the status of every chosen client of a round, and the alerts of the round."""
        if len(roster) > self._n_known:
            write_atomically(self.path / files.ROSTER, roster.to_json().encode())
            self._n_known = len(roster)
        self._answers.append([json.dumps(_answers(result) | {"busy": self._busy})])
        self._open.unlink(missing_ok=True)
        if result.alerts:
            at = stamp(result.closed_at)
            self._alerts.append([alert.line(at) for alert in result.alerts])
        if self._receipts is not None:
            self._signed.append(self._receipts_of(self._receipts, result))
        for log in self._by_round:
            log.sync()

    @_refused
    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Write alerts that came between two rounds."""
        at = stamp(clock.wall())
        self._alerts.append([alert.line(at) for alert in alerts])
        self._alerts.sync()

    @_refused
    def add(self, journal: Journal) -> None:
        """Write the last round; a line that was already written is replaced."""
        if self._config["n_clients"] != journal.n_clients:
            self._write_config(journal)
        if journal.n_rounds > self._n_lines:
            self._log.append(journal.lines(self._n_lines))
        else:
            self._log.replace_last(*journal.lines(journal.n_rounds - 1))
        self._n_lines = journal.n_rounds
        if clock.now() - self._flushed >= _FLUSH_SECONDS:
            self._write_choices(journal)

    @_refused
    def finish(self, journal: Journal) -> None:
        """Write the summary, which marks the run as complete."""
        if not journal.n_rounds:
            return
        run = journal.run
        at_end = curves_at_end(run, self._rate, np.full(run.n_rounds, np.nan))
        shown = {name: curve for name, curve in at_end.items() if name not in self._left_out}
        self._write_choices(journal, shown)
        self._log.sync()
        numbers = {"seconds": clock.now() - self._started, "backlog_rate": self._rate}
        summary = summarize(Facts.of_run(run, at_end, numbers))
        files.write_json(self.path / files.SUMMARY, summary)

    def fail(self, journal: Journal, error: BaseException) -> None:
        """Write why the run was stopped, if possible; the run stays incomplete.

        Args:
            journal: The rounds so far.
            error: What stopped it.
        """
        if not self._is_open:  # the folder may belong to another run
            return
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        last = max(0, journal.n_rounds - 1)
        stopped = Alert(last, STOPPED, None, f"the run was stopped: {reason}", {})
        with contextlib.suppress(OSError):
            files.write_traceback(self.path, error)
            self._open.unlink(missing_ok=True)
            self._alerts.append([stopped.line(stamp(clock.wall()))])
            self._alerts.sync()
            if journal.n_rounds:
                self._write_choices(journal)

    def _receipts_of(self, receipts: Receipts, result: ClosedRound) -> list[str]:
        """Return the lines of ``receipts.jsonl`` of a round: one for each chosen client."""
        lines = []
        if self._began is None:  # this is the first round
            self._began = _seconds(stamp(result.began_at))
        status, seconds = result.closed.status, result.closed.duration
        for client, code, took in zip(result.ids, status, seconds, strict=True):
            receipt = receipts.make(
                self._config["label"],
                result.round,
                client,
                run_began_at=self._began,
                status=Status(int(code)).name.lower(),
                is_void=result.is_void,
                seconds=float(took),
                closed_at=result.closed_at,
            )
            lines.append(json.dumps(receipt))
        return lines

    def _write_config(self, journal: Journal) -> None:
        self._config["n_clients"] = journal.n_clients
        files.write_json(self.path / files.CONFIG, self._config)

    def _write_choices(self, journal: Journal, more: dict[str, Any] | None = None) -> None:
        columns = {**journal.columns(), **journal.more_columns(), **self._classes, **(more or {})}
        write_npz(self.path / files.SELECTIONS, columns)
        self._flushed = clock.now()


def _answers(result: ClosedRound) -> dict[str, Any]:
    """Return a round as a line of ``answers.jsonl``; ``wall_s`` includes the waits before it.

    The ``seconds`` of a late client that has not replied are those that it had.
    """
    closed = result.closed
    is_late = (closed.status == Status.LATE) & np.isnan(closed.duration)
    seconds_of = np.where(is_late, closed.spent, closed.duration)
    chosen = [
        chosen_entry(
            client,
            Status(status).name.lower(),
            seconds,
            staleness=result.staleness[i] if result.staleness else None,
            reason=result.reasons.get(i),
        )
        for i, (client, status, seconds) in enumerate(
            zip(result.ids, closed.status.tolist(), seconds_of.tolist(), strict=True)
        )
    ]
    return {
        "round": result.round,
        "began": stamp(result.began_at),
        "closed": stamp(result.closed_at),
        "wall_s": round(result.closed_at - result.began_at, 3),
        "length_s": round(closed.length_s, 3),
        "void": result.is_void,
        "chosen": chosen,
    }


def chosen_entry(
    client: Hashable, status: str, seconds: float | None, **more: Any
) -> dict[str, Any]:
    """Return a chosen client as a line of ``answers.jsonl`` has it; None and NaN are left out.

    Args:
        client: The stable id.
        status: How the round ended for it.
        seconds: How long it took.
        **more: The staleness of its answer, and the reason why there is none.
    """
    took = None if seconds is None or math.isnan(seconds) else round(seconds, 3)
    entry = {"id": client, "status": status, "seconds": took}
    return {name: value for name, value in (entry | more).items() if value is not None}


def stamp(seconds: float) -> str:
    """Return a time as records have it.

    Args:
        seconds: Seconds since 1970.
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _seconds(stamp: str) -> float:
    """Return what ``_stamp`` was given, without what it cut off."""
    return datetime.fromisoformat(stamp).timestamp()


def _began_in(path: Path) -> float | None:
    """Return when the first round of ``answers.jsonl`` began; None without one that can be read."""
    try:
        with path.open(encoding="utf-8") as lines:
            return _seconds(json.loads(next(lines, ""))["began"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lines_before(path: Path, n_rounds: int) -> list[str]:
    """Return the lines of rounds that are done; a crash may have left lines of a later round."""
    if not n_rounds or not path.exists():
        return []
    return [line for line in path.read_text().splitlines() if _round_of(line) < n_rounds]


def _round_of(line: str) -> float:
    """Return the round that a line is about; infinity if a crash has torn the line."""
    try:
        return float(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return math.inf
