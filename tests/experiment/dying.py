"""Children of this process that die at their n-th operation on files, or at any moment.

What is counted: writes, fsyncs, renames, links, removals, new and removed folders, truncations. A
write that dies has written half. With ``power`` the computer goes down too: of every file only what
was synced is left.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Functions of ``os`` that change files.
OPERATIONS = ("fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")
OPERATIONS += ("truncate", "ftruncate", "write")

_PLAIN_OPEN, _PLAIN_TRUNCATE = io.open, os.truncate
_PLAIN_FSYNC = os.fsync


class Dying:
    """Counts operations on files, and dies at one of them.

    Args:
        at: The number of the operation, from 1; 0 never dies.
        power: Whether what was not synced is lost.
    """

    def __init__(self, at: int = 0, *, power: bool = False) -> None:
        self.at, self.power = at, power
        self.n_done = 0
        self._synced: dict[tuple[int, int], int] = {}  # bytes that survive, by file

    def install(self) -> None:
        """Count from now on, in this process."""
        for name in OPERATIONS:
            setattr(os, name, self._counted(getattr(os, name)))
        io.open = builtins.open = self._opened  # type: ignore[assignment]

    def step(self) -> bool:
        """Count an operation, and return whether it is the last."""
        self.n_done += 1
        return self.n_done == self.at

    def die(self) -> None:
        """End as by a kill."""
        for path in Path.cwd().rglob("*") if self.power else ():
            if path.is_file():
                state = path.stat()
                kept = self._synced.get((state.st_dev, state.st_ino), state.st_size)
                if state.st_size > kept:
                    _PLAIN_TRUNCATE(path, kept)
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, handle: int, *, is_synced: bool) -> None:
        """Take note of a file that is written, or that was synced."""
        state = os.fstat(handle)
        key = (state.st_dev, state.st_ino)
        if is_synced or key not in self._synced or state.st_size < self._synced[key]:
            self._synced[key] = state.st_size

    def _counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self.step():
                self.die()
            if plain is _PLAIN_FSYNC:
                self.note(arguments[0], is_synced=True)
            return plain(*arguments, **named)

        return counted

    def _opened(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return _PLAIN_OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.dying = self
        self.note(raw.fileno(), is_synced=False)
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)


class _Raw(io.FileIO):
    """A file whose writes are counted."""

    dying: Dying

    def write(self, data: Any) -> int:
        if self.dying.step():
            super().write(memoryview(data)[: len(data) // 2])
            self.dying.die()
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        if self.dying.step():
            self.dying.die()
        kept = super().truncate(size)
        self.dying.note(self.fileno(), is_synced=False)
        return kept


def forked(work: Callable[[], int], folder: Path, dying: Dying | None = None) -> int:
    """Start work in a child whose working folder is ``folder``; return its id.

    The child ends with the number that the work returns. The file ``counted`` beside the folder
    says how many operations there were.
    """
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.chdir(folder)
        if dying is not None:
            dying.install()
        code = work()
        if dying is not None:
            counted = os.open(folder.with_suffix(".counted"), os.O_WRONLY | os.O_CREAT)
            os.pwrite(counted, str(dying.n_done).encode(), 0)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child, and return its exit code; minus the signal if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
