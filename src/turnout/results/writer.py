"""The writer of a cell's folder: the log of rounds, checkpoints, and how to resume from one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from turnout.core.files import write_atomically, write_npz
from turnout.core.types import Array, BoolArray, FloatArray
from turnout.results import files
from turnout.results.files import DamagedFile, drop_previous, go_back, remove_leftovers
from turnout.results.metrics import RunningRegret
from turnout.results.run import Collector, RoundRow, Run

_NOTHING: Mapping[str, Array] = MappingProxyType({})
#: How the names of what the running regret remembers begin in ``progress.npz``.
_REGRET = "regret."
#: The digest of ``rounds.jsonl`` there.
_LOG_DIGEST = "cell.log_digest"
_STARTED_AGAIN = "its checkpoint was torn, so it was started again."
_WENT_BACK = "its last checkpoint was torn, so it went on from the one before."


class RoundLog:
    """``rounds.jsonl``: lines are added at its end, and the last one may be written again.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last_at = 0  # bytes before the last line

    @property
    def n_bytes(self) -> int:
        """Size of the file; -1 if there is none."""
        return self.path.stat().st_size if self.path.exists() else -1

    @property
    def digest(self) -> str:
        """The digest of all lines; empty if there is no file."""
        return files.digest_of(self.path)

    def begin(self, lines: Sequence[str] = ()) -> None:
        """Start the file anew.

        Args:
            lines: The lines to start with.
        """
        content = _encoded(lines)
        write_atomically(self.path, content)
        self._last_at = len(content) - len(_encoded(lines[-1:]))

    def append(self, lines: Sequence[str]) -> None:
        """Add lines at the end.

        Args:
            lines: The lines, without their ends.
        """
        with self.path.open("ab") as log:
            log.write(_encoded(lines))
            self._last_at = log.tell() - len(_encoded(lines[-1:]))

    def sync(self) -> None:
        """Wait until the lines are on the disk, where they survive a power cut."""
        if self.path.exists():
            with self.path.open("rb+") as log:
                os.fsync(log.fileno())

    def replace_last(self, line: str) -> None:
        """Write the last line again.

        Args:
            line: What it says now.
        """
        with self.path.open("rb+") as log:
            log.seek(self._last_at)
            log.write(_encoded([line]))
            log.truncate()

    def cut(self, n_bytes: int, digest: str | None) -> bool:
        """Forget everything behind a place.

        Args:
            n_bytes: Size of what is kept.
            digest: What its digest was; None = not known.

        Returns:
            Whether what is kept is as it was.
        """
        if self.n_bytes < n_bytes:
            return False
        with self.path.open("rb+") as log:
            log.truncate(n_bytes)
        return digest is None or digest == self.digest


class CellWriter:
    """Writes the rounds of one cell; ``checkpoint`` saves what ``resume`` goes back to.

    Args:
        path: The folder of the cell.
        n_clients: Size of the federation.
        cohort_size: Answers wanted per round.
        quota_at: The share of the cohort that the selector gives by equal chances in a round.
        parts: Names of the files that their owners write before a checkpoint.
    """

    def __init__(
        self,
        path: Path,
        n_clients: int,
        cohort_size: int,
        quota_at: Callable[[int], float],
        parts: Sequence[str],
    ) -> None:
        self.rounds = Collector()
        self._path = path
        self._log = RoundLog(path / files.ROUNDS)
        self._quota_at = quota_at
        self._parts = tuple(parts)
        self._running = RunningRegret(n_clients, cohort_size)
        self._regret: list[FloatArray] = [np.zeros(0)]
        self._fates: list[BoolArray | None] = []

    @property
    def n_pending(self) -> int:
        """Rounds that are not in the log yet."""
        return len(self._fates)

    @property
    def regret(self) -> FloatArray:
        """(T,) the regret after each round in the log."""
        self._regret = [np.concatenate(self._regret)]
        return self._regret[0]

    def add(self, row: RoundRow, in_time: BoolArray | None) -> None:
        """Take in a round; ``flush`` writes it.

        Args:
            row: What is recorded of it.
            in_time: (n,) who would have answered in time; None where rounds overlap. Then there is
                no regret.
        """
        self.rounds.add(row)
        self._fates.append(in_time)

    def flush(self) -> None:
        """Write the pending rounds into the log."""
        if not self._fates:
            return
        stop = self.rounds.n_rounds
        pending = range(stop - self.n_pending, stop)
        if self._fates[0] is None:
            self._log.append(self.rounds.lines(pending.start, stop))
            self._regret.append(np.full(len(pending), np.nan))
            self._fates = []
            return
        fates = np.array(self._fates)
        chosen = (self.rounds.clients_of(t) for t in pending)
        gained = np.array(
            [fate[clients].sum() for fate, clients in zip(fates, chosen, strict=True)]
        )
        quota = np.array([self._quota_at(t) for t in pending])
        regret = self._running.add(fates, gained, quota)
        self._log.append(self.rounds.lines(pending.start, stop, {"regret": regret}))
        self._regret.append(regret)
        self._fates = []

    def checkpoint(self, state: Mapping[str, Array], more: Mapping[str, Array] = _NOTHING) -> None:
        """Save all rounds, and everything that the next one depends on.

        ``progress.npz`` is written last and holds digests of the other files, so that a checkpoint
        torn by a crash is noticed.

        Args:
            state: What the caller needs to resume, by name.
            more: Further columns of ``selections.npz``.
        """
        self.flush()
        self._log.sync()
        columns = self.rounds.columns() | {"regret": self.regret} | dict(more)
        write_npz(self._path / files.SELECTIONS, columns)
        own = {
            "cell.round": np.array(self.rounds.n_rounds),
            "cell.log_bytes": np.array(self._log.n_bytes),
            _LOG_DIGEST: np.array(self._log.digest),
            "cell.digests": np.array(self._digests()),
        }
        own |= {f"{_REGRET}{name}": value for name, value in self._running.state().items()}
        write_npz(self._path / files.PROGRESS, {**state, **own})

    def resume(self) -> tuple[dict[str, Array] | None, str]:
        """Go back to the last checkpoint that is whole.

        Returns:
            The state that was saved there, None to start at the first round; and what there is to
            say about it.

        Raises:
            DamagedFile: If a file of the checkpoint cannot be read.
            KeyError: If an array is missing in one.
        """
        remove_leftovers(self._path)
        saved, note = self._last_whole()
        if saved is None:
            (self._path / files.PROGRESS).unlink(missing_ok=True)
            drop_previous(self._path)
            self._log.begin()
            return None, note
        columns = files.read_arrays(self._path / files.SELECTIONS)
        self.rounds = Collector.from_columns(columns)
        self._regret = [columns["regret"]]
        remembered = {name: saved[f"{_REGRET}{name}"] for name in self._running.state()}
        self._running.load_state(remembered)
        digest = str(saved[_LOG_DIGEST]) if _LOG_DIGEST in saved else None
        if not self._log.cut(int(saved["cell.log_bytes"]), digest):
            more = {} if np.isnan(self.regret).any() else {"regret": self.regret}
            self._log.begin(self.rounds.lines(0, self.rounds.n_rounds, more))
            note = f"{note} its {files.ROUNDS} was damaged and was written again.".strip()
        return saved, note

    def _last_whole(self) -> tuple[dict[str, Array] | None, str]:
        """Return the last checkpoint that is whole, and what happened to a later one."""
        if not (self._path / files.PROGRESS).exists():
            return None, ""
        try:
            saved = self._whole()
        except DamagedFile:
            if not go_back(self._path):
                raise
            saved = None
        if saved is not None:
            return saved, ""
        saved = self._whole() if go_back(self._path) else None
        return saved, _STARTED_AGAIN if saved is None else _WENT_BACK

    def _whole(self) -> dict[str, Array] | None:
        """Return the last checkpoint, unless a file of it is another one."""
        saved = files.read_arrays(self._path / files.PROGRESS)
        return saved if list(saved["cell.digests"]) == self._digests() else None

    def _digests(self) -> list[str]:
        names = (files.SELECTIONS, *self._parts)
        return [files.digest_of(self._path / name) for name in names]


def _encoded(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


# --------------------------------------------------------------------------------------------------
# What is computed when a run ends: the curves that ``selections.npz`` holds beside the choices.
# --------------------------------------------------------------------------------------------------

#: The rate that backlogs are counted at for a selector that promises none: beta of RBCS-F.
REFERENCE_RATE = 0.15


def backlog_rate(promised: float | None) -> float:
    """Return the rate that backlogs are counted at.

    Args:
        promised: The share of rounds that the selector promises every client, if it promises one.
    """
    return REFERENCE_RATE if promised is None else promised


def curves_at_end(
    run: Run, rate: float, regret: FloatArray, bound: FloatArray | None = None
) -> dict[str, Array]:
    """Return the columns that are computed at the end of a run.

    Args:
        run: The run.
        rate: The rate that backlogs are counted at.
        regret: (T,) the regret after each round.
        bound: (T,) the selector's bound on it.
    """
    backlog = run.backlog(rate)
    at_end = {"regret": regret, "backlog_mean": backlog.mean, "backlog_max": backlog.largest}
    return at_end if bound is None else at_end | {"bound": bound}
