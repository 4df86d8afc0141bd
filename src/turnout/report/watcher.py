"""Looks at run folders again and again, and reads only what has changed."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from turnout.results import files
from turnout.results.answers import read_open
from turnout.results.groups import plan_of
from turnout.results.reader import Cell, Problem, cell_folders, read_cells

#: Name, size, time of change and kind of each file of a folder.
_Print = tuple[tuple[str, int, int, int], ...]


class State(Enum):
    """The state of a watched folder."""

    ABSENT = "waiting for the folder"
    EMPTY = "waiting for a run"
    GONE = "the folder is gone"
    NO_FOLDER = "not a folder"
    RUNNING = "running"
    STALLED = "no news"
    FAILED = "failed"
    ENDED = "ended"


class WatchedRun(NamedTuple):
    """One run, as its folder is now.

    Attributes:
        key: Its folder below the watched one.
        cell: Its content; None if it cannot be read.
        news_at: When one of its files changed last, in seconds since 1970.
        due_at: When the next change is expected: at the end of the open round, else the last news.
        has_failed: Whether it left a traceback.
        problems: The damages of its files.
    """

    key: str
    cell: Cell | None
    news_at: float
    due_at: float
    has_failed: bool
    problems: list[Problem]

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or failed."""
        return self.has_failed or (self.cell is not None and self.cell.is_complete)


@dataclass(frozen=True, slots=True)
class Look:
    """All watched runs at one moment.

    Attributes:
        state: The state of the folder.
        runs: The runs by their folders, in the order of the experiment.
        n_planned: Planned runs, as far as they are known.
        news_at: When a file changed last, in seconds since 1970; 0 = there is none.
        version: Differs whenever anything else differs.
    """

    state: State
    runs: Mapping[str, WatchedRun] = field(default_factory=dict)
    n_planned: int = 0
    news_at: float = 0.0
    version: str = ""


class Watcher:
    """Looks at a folder that may not exist yet.

    Args:
        path: Experiment folder, cell folder or anything above them.
        stalled_s: Seconds without news after which a run counts as stalled.
    """

    def __init__(self, path: Path, stalled_s: float) -> None:
        self.path, self.stalled_s = path, stalled_s
        self._known: dict[str, tuple[_Print, WatchedRun]] = {}
        self._was_there = False

    def look(self) -> Look:
        """Return the runs as they are now."""
        if not self.path.is_dir():
            was_there = State.GONE if self._was_there else State.ABSENT
            return _nothing(State.NO_FOLDER if self.path.exists() else was_there)
        self._was_there = True
        try:
            found = {
                str(folder.relative_to(self.path)): folder for folder in cell_folders(self.path)
            }
        except (OSError, ValueError):  # it went away meanwhile
            return _nothing(State.GONE)
        self._known = {key: self._reread(key, folder) for key, folder in found.items()}
        if not self._known:
            return _nothing(State.EMPTY)
        labels, n_planned = self._plan(found.values())
        runs = _ordered([watched for _, watched in self._known.values()], labels)
        news_at = max(watched.news_at for watched in runs.values())
        state = self._state(runs, n_planned)
        prints = [(key, each) for key, (each, _) in self._known.items()]
        digest = hashlib.sha256(repr((state, n_planned, prints)).encode()).hexdigest()
        return Look(state, runs, n_planned, news_at, digest[:16])

    def _plan(self, folders: Iterable[Path]) -> tuple[list[str], int]:
        """Return the selectors of the experiments that are watched, in order, and all runs."""
        n_found = Counter(folder.parent.parent for folder in folders)
        labels: list[str] = []
        n_planned = 0
        for experiment, n_there in n_found.items():
            is_whole = experiment == self.path or self.path in experiment.parents
            listed, n_runs = plan_of(experiment) if is_whole else ([], 0)
            labels += listed
            n_planned += max(n_runs, n_there)
        return list(dict.fromkeys(labels)), n_planned

    def _state(self, runs: Mapping[str, WatchedRun], n_planned: int) -> State:
        if len(runs) >= n_planned and all(watched.is_over for watched in runs.values()):
            is_sound = not any(watched.has_failed for watched in runs.values())
            return State.ENDED if is_sound else State.FAILED
        due_at = max(watched.due_at for watched in runs.values())
        return State.STALLED if time.time() > due_at + self.stalled_s else State.RUNNING

    def _reread(self, key: str, folder: Path) -> tuple[_Print, WatchedRun]:
        """Return the run of a folder; it is read again only if a file has changed."""
        now = _print(folder)
        known = self._known.get(key)
        if known is not None and known[0] == now:
            return known
        cells, problems = read_cells([folder]) if now else ([], [])
        damages = [problem for problem in problems if problem.kind == "damaged"]
        news_at = max((changed for _, _, changed, _ in now), default=0) / 1e9
        has_failed = any(name == files.ERROR for name, *_ in now)
        has_failed = has_failed and not (cells and cells[0].is_complete)
        due_at = max(news_at, _round_ends_at(folder))
        return now, WatchedRun(
            key, cells[0] if cells else None, news_at, due_at, has_failed, damages
        )


def _nothing(state: State) -> Look:
    return Look(state, version=state.name)


def _print(folder: Path) -> _Print:
    """Return the fingerprint of a folder's files; empty if the folder is gone."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in shown]
    except OSError:
        return ()
    kinds = ((name, about, stat.S_IFMT(about.st_mode)) for name, about in found)
    return tuple(sorted((name, a.st_size, a.st_mtime_ns, kind) for name, a, kind in kinds))


def _round_ends_at(folder: Path) -> float:
    """Return when the open round of a live run ends at the latest; 0 if that is not known."""
    opened = read_open(folder)
    if opened is None or opened.deadline_s is None or opened.began_at is None:
        return 0.0
    return opened.began_at + opened.deadline_s


def _ordered(runs: list[WatchedRun], labels: list[str]) -> dict[str, WatchedRun]:
    """Return the runs by key: in the order of the plan, then by seed."""
    rank = {label: number for number, label in enumerate(labels)}

    def place(watched: WatchedRun) -> tuple[int, str, int]:
        if watched.cell is None:
            return len(rank), watched.key, 0
        settings = watched.cell.settings
        return rank.get(settings.label, len(rank)), settings.label, settings.seed

    return {watched.key: watched for watched in sorted(runs, key=place)}
