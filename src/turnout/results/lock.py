"""One process at a time writes a run folder; the lock file names it.

The operating system releases the lock when the process ends, for whatever reason. The text of
the lock file is for people: it names the process to wait for, or whose folder was taken over.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from turnout.core.errors import OutputError
from turnout.core.files import try_lock
from turnout.results.files import FolderError, check_folder

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = _taken(folder, part)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error}.") from error
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
