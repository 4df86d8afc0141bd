"""The files of a run folder: their names, how one is written and read, and the lock of a folder."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import shutil
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turnout.core.errors import TurnoutError
from turnout.core.files import (
    TEMPORARY,
    UNREADABLE,
    read_bytes,
    read_npz,
    try_lock,
    write_atomically,
    writing_to,
)
from turnout.core.plain import finite
from turnout.core.types import Array

#: Version of the run folder's format; a larger number was written by a newer turnout.
FORMAT = 1

#: What a cell was run with, and by what.
CONFIG, VERSIONS = "config.json", "versions.json"
#: One line per round; every choice in columns; the numbers that a run is judged by, written last.
ROUNDS, SELECTIONS, SUMMARY = "rounds.jsonl", "selections.npz", "summary.json"
#: The last checkpoint: the selector, and everything else that the next round depends on.
STATE, PROGRESS = "state.npz", "progress.npz"
#: Only with training: the global model of the last checkpoint, every client's scores at the end.
MODEL, CLIENT_SCORES = "model.npz", "client_scores.npz"
#: The traceback of a run that failed.
ERROR = "error.txt"
#: Only of live runs: the stable id of each client; what became of the chosen of each round, by
#: name; the round that is open; what an operator should look at.
ROSTER, ANSWERS, OPEN, ALERTS = "roster.json", "answers.jsonl", "open.jsonl", "alerts.jsonl"
RECEIPTS = "receipts.jsonl"
#: In the folder above the cells: the settings of the whole experiment.
EXPERIMENT = "experiment.json"
#: Beside it, where the experiment is a point of a sweep: the value of each key that was swept.
SWEEP = "sweep.json"

#: Longest text of an error that is repeated in a message.
_LONGEST_REASON = 120


class FolderError(TurnoutError, ValueError):
    """A run folder is damaged, or belongs to another experiment."""


class DamagedFile(FolderError):
    """A file of a run folder cannot be used.

    Args:
        path: The file.
        fault: What is wrong, as it follows the file's name: ``" is missing"``.

    """

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path}{fault}; delete the folder {path.parent} and run again.")
        self.brief = f"{path.name}{fault}"  #: for a reader who sees the folder's name already


def slug(label: str) -> str:
    """Return a label as the name of a folder.

    Args:
        label: The label of a selector.

    >>> slug("RBCS-F(50)")
    'rbcs-f-50'
    """
    return re.sub(r"[^a-z0-9._-]+", "-", label.lower()).strip("-.") or "selector"


def cell_folder(root: Path, label: str, seed: int) -> Path:
    """Return the folder of a cell.

    Args:
        root: The folder of the experiment.
        label: The label of the selector.
        seed: The seed.
    """
    return root / slug(label) / f"seed-{seed}"


def check_folder(folder: Path) -> None:
    """Refuse a folder with pipes or devices, which would block a writer or never end.

    Args:
        folder: The folder of an experiment or of a cell; it need not exist.

    Raises:
        FolderError: There is one; the message names it.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise FolderError(f"{path} is not a file: delete it, or use another folder.")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: The file.

    Raises:
        DamagedFile: If it is missing or holds anything else.

    """
    content = _content(path)
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, f" is not readable JSON ({_reason(error)})") from error
    if not isinstance(table, dict):
        raise DamagedFile(path, f" holds a {type(table).__name__}, not an object")
    return table


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of a file with one per line, and how many lines hold none.

    Args:
        path: The file.

    Raises:
        DamagedFile: If it is missing or cannot be opened.

    """
    objects: list[dict[str, Any]] = []
    lines = [line for line in _content(path).splitlines() if line.strip()]
    for line in lines:
        try:
            table = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(table, dict):
            objects.append(table)
    return objects, len(lines) - len(objects)


def read_rounds(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the objects of rounds 0, 1, ... up to the first gap, and how many lines hold none.

    A round that is written twice counts as it was written last.

    Args:
        path: A file with one object per line, each with its ``round``.

    Raises:
        DamagedFile: If it is missing or cannot be opened.

    """
    tables, n_unreadable = read_lines(path)
    by_round = {table["round"]: table for table in tables if type(table.get("round")) is int}
    n_unreadable += sum(type(table.get("round")) is not int for table in tables)
    n_rounds = next(t for t in itertools.count() if t not in by_round)
    return [by_round[t] for t in range(n_rounds)], n_unreadable


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an ``.npz``.

    Args:
        path: The file.

    Raises:
        DamagedFile: If it is missing or not complete.

    """
    try:
        return read_npz(path)
    except OSError as error:
        raise _unopened(path, error) from error
    except UNREADABLE as error:
        raise DamagedFile(path, f" is not a complete .npz ({_reason(error)})") from error


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; numbers that are not finite become null.

    Args:
        path: The file.
        table: Plain data, NumPy scalars included.

    """
    text = json.dumps(finite(table), indent=2, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def number(value: Any) -> float:
    """Return a JSON number as a float; NaN for null and for everything else.

    Args:
        value: A value of a file.

    """
    is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
    return float(value) if is_number else math.nan


def write_traceback(folder: Path, error: BaseException) -> None:
    """Write what has ended a run, with where it was raised.

    Args:
        folder: The folder of a cell.
        error: The error.
    """
    text = "".join(traceback.format_exception(error))
    write_atomically(folder / ERROR, text.encode("utf-8", "replace"))


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes; empty if there is none.

    Args:
        path: The file.

    Raises:
        DamagedFile: If it cannot be read.

    """
    return hashlib.sha256(_content(path)).hexdigest() if path.exists() else ""


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise _unopened(path, error) from error


def _unopened(path: Path, error: OSError) -> DamagedFile:
    if isinstance(error, FileNotFoundError):
        return DamagedFile(path, " is missing")
    return DamagedFile(path, f" cannot be read ({_reason(error)})")


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:_LONGEST_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --------------------------------------------------------------------------------------------------
# Two generations of a checkpoint, so that a crash while one is written leaves the other.
# --------------------------------------------------------------------------------------------------

#: How the names of the files of the generation before begin.
PREVIOUS = "previous-"
#: The files of a checkpoint, the one that makes it whole last.
_PARTS = (SELECTIONS, STATE, MODEL, PROGRESS)


def keep_previous(cell: Path) -> None:
    """Keep the checkpoint of a cell under other names, before the next one is written over it.

    Args:
        cell: The folder of the cell, with a whole checkpoint or none.
    """
    if (cell / PROGRESS).exists():
        for name in _PARTS:
            _put(cell / name, cell / f"{PREVIOUS}{name}")


def go_back(cell: Path) -> bool:
    """Put the checkpoint before the last in the place of the last.

    Args:
        cell: The folder of the cell.

    Returns:
        Whether there was one.
    """
    if not (cell / f"{PREVIOUS}{PROGRESS}").exists():
        return False
    for name in _PARTS:
        _put(cell / f"{PREVIOUS}{name}", cell / name)
    return True


def drop_previous(cell: Path) -> None:
    """Forget the checkpoint before the last.

    Args:
        cell: The folder of the cell.
    """
    for name in reversed(_PARTS):
        (cell / f"{PREVIOUS}{name}").unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing.

    Args:
        folder: The folder of a cell or of an experiment; no other process writes it.
    """
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def _put(source: Path, target: Path) -> None:
    """Give a file a second name, at once; a file system without links gets a copy."""
    if not source.exists():
        return
    name = target.with_name(f".{target.name}{TEMPORARY}")
    name.unlink(missing_ok=True)
    try:
        os.link(source, name)
    except OSError:
        shutil.copyfile(source, name)
    os.replace(name, target)
    name.unlink(missing_ok=True)  # of two names of one file POSIX keeps both


# --------------------------------------------------------------------------------------------------
# One process at a time writes a run folder; the lock file names it.
#
# The operating system releases the lock when the process ends, for whatever reason. The text of the
# lock file is for people: it names the process to wait for, or whose folder was taken over.
# --------------------------------------------------------------------------------------------------

_PREFIX, _SUFFIX = ".turnout", ".lock"
#: Bytes of a lock file that are read at most.
_LONGEST_OWNER = 1000


class FolderInUse(FolderError):
    """Another process writes the folder.

    Args:
        folder: The folder.
        owner: The process that writes it, in words.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        who = owner or "another process"
        super().__init__(f"{folder} is in use by {who}: wait until it ends, or use another folder.")


@contextlib.contextmanager
def locked(folder: Path, part: str = "") -> Iterator[tuple[str, ...]]:
    """Hold the lock of a folder, which is made if it is not there.

    Args:
        folder: The folder of an experiment.
        part: ``i/n`` for the cells of a shard: other shards of the same n may write beside it.
            Empty = all cells.

    Yields:
        Notes: which locks were left behind and are taken over.

    Raises:
        FolderInUse: If another process holds the lock; nothing was written.
        FolderError: If the folder holds a pipe or a device.
        OutputError: If the folder cannot be written.
    """
    is_new = not folder.exists()
    check_folder(folder)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = _taken(folder, part)
    try:
        left = [_owner_in(path), *_left_by_others(folder, part)]
        os.ftruncate(handle, 0)
        os.write(handle, _this_process().encode("utf-8", "replace"))
        yield tuple(f"{folder} was left behind by {who}: taken over." for who in left if who)
    finally:
        _release(handle, path)
        if is_new:
            with contextlib.suppress(OSError):  # something was written
                folder.rmdir()


def _this_process() -> str:
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    command = shlex.join([name, *sys.argv[1:]])
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {os.getpid()} on {socket.gethostname()} since {now} ({command})"


def _left_by_others(folder: Path, part: str) -> list[str]:
    """Return the owners of locks of other parts that were left behind; raise if one is held."""
    left = []
    _, _, count = part.partition("/")
    for path in sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}")):
        other = path.name[len(_PREFIX) : -len(_SUFFIX)].lstrip("-").replace("-of-", "/")
        if other == part or (part and other.partition("/")[2] == count):
            continue
        handle, _ = _taken(folder, other)
        left.append(_owner_in(path))
        _release(handle, path)
    return left


def _owner_in(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return " ".join(file.read(_LONGEST_OWNER).decode("utf-8", "replace").split())
    return ""


def _taken(folder: Path, part: str) -> tuple[int, Path]:
    """Return the open lock file of a part and its path; raise if another process holds it."""
    infix = f"-{part.replace('/', '-of-')}" if part else ""
    path = folder / f"{_PREFIX}{infix}{_SUFFIX}"
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if try_lock(handle) is False:
            os.close(handle)
            raise FolderInUse(folder, _owner_in(path))
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle, path
        os.close(handle)  # its owner deleted it meanwhile


def _release(handle: int, path: Path) -> None:
    os.ftruncate(handle, 0)
    with contextlib.suppress(OSError):  # Windows deletes no open file
        path.unlink()
    os.close(handle)
