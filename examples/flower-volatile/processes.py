"""Processes that are certain to end: whatever they start, detach or leave behind ends with them.

Every process carries a mark in its environment, which its children inherit. On Linux the marks are
read from /proc; elsewhere processes are found by their group only.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

__all__ = ["Processes", "program", "wait_until"]

_MARK = "TURNOUT_PROCESS"
_POLITE_S = 10.0  # between a polite and a hard end
_HARD_S = 20.0  # for the system to bury the dead

T = TypeVar("T")


class Processes:
    """Named processes, each with a log in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owner = secrets.token_hex(8)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process; its output goes to the end of ``<name>.log``."""
        if self.is_running(name):
            raise RuntimeError(f"{name} is running already")
        with self._log_of(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [program(command[0]), *command[1:]],
                env={**environment, _MARK: f"{self._owner}:{name}"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self, name: str) -> bool:
        """Whether the process of that name is there."""
        return name in self._running and self._running[name].poll() is None

    def exit_code(self, name: str, limit_s: float) -> int:
        """Wait until a process has ended by itself and return its exit code."""
        return self._running[name].wait(timeout=limit_s)

    def end(self, name: str) -> None:
        """End a process politely, then kill what is left of it."""
        process = self._running[name]
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_POLITE_S)
        self.kill(name)

    def kill(self, name: str) -> None:
        """SIGKILL a process with everything it started, as a power cut would."""
        process = self._running[name]
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_HARD_S)

        def is_empty() -> bool:
            left = list(self.of(name))
            for pid in left:
                kill(pid)
            return not left

        wait_until(is_empty, _HARD_S, f"the processes of {name} to end")

    def end_all(self, last: str) -> None:
        """End everything, ``last`` at the end."""
        names = sorted(self._running, key=lambda name: name == last)
        for name in names:
            if name != last:
                self._running[name].terminate()
        for name in names:
            self.end(name)

    def of(self, name: str = "") -> Iterator[int]:
        """Yield the ids of the processes that belong to a name, or to any."""
        mark = f"{_MARK}={self._owner}:{name}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if mark in variables or (not name and any(v.startswith(mark) for v in variables)):
                    yield int(entry.name)

    def log(self, name: str) -> str:
        """Return what a process has written so far."""
        path = self._log_of(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def _log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def wait_until(
    condition: Callable[[], T | None],
    limit_s: float,
    what: str,
    check: Callable[[], None] = lambda: None,
    pause_s: float = 0.1,
) -> T:
    """Poll until the condition is truthy and return it; ``check`` may raise on the way."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        check()
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(pause_s)
    return found


def program(name: str) -> str:
    """Return the path of a program that is installed beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RuntimeError(f"{name} is not installed: pip install 'turnout[flower]'")
    return str(path)


def command_of(pid: int) -> str:
    """Return the command line of a process, empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def kill(pid: int) -> None:
    """SIGKILL one process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
