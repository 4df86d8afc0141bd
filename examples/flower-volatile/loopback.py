"""A Flower deployment on this machine: one SuperLink and its SuperNodes, TLS and authentication.

Everything lives in one folder: certificates, keys, Flower's own files, logs. Every process carries
a mark in its environment, so that whatever a process starts, detaches or leaves behind is found and
ended with it (Linux; elsewhere by process group).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from certificates import make_certificates, make_key

__all__ = ["Loopback", "wait_until"]

#: Nothing leaves this machine: no telemetry, no update check, no installs at run time.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
#: One CPU thread per client process, quick pick-up of work, logs without delay.
BRISK = {
    "OMP_NUM_THREADS": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
#: Name of the connection in Flower's config.toml.
CONNECTION = "loopback"

_MARK = "TURNOUT_LOOPBACK"
_LINK = "superlink"
_START_S = 120.0  # for a process to come up on a busy machine
_COMMAND_S = 120.0  # for one call of the flwr command
_END_S = 10.0  # between a polite and a hard end

T = TypeVar("T")


class Loopback:
    """A SuperLink and SuperNodes; leaving the ``with`` block ends them all, also after an error.

    With ``simulation=True`` the SuperLink runs apps on the simulation engine, without TLS and
    without SuperNodes.
    """

    def __init__(self, folder: Path, *, simulation: bool = False) -> None:
        self.folder = folder.resolve()
        self.simulation = simulation
        self.port = free_port()
        self._mark = secrets.token_hex(8)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._node_ids: dict[str, str] = {}
        self._home = self.folder / "flwr-home"
        for name in (self._home, self.folder / "logs", self.folder / "keys"):
            name.mkdir(parents=True, exist_ok=True)
        if not simulation:
            make_certificates(self.folder / "keys")
        self._write_connection()

    def __enter__(self) -> Self:
        self.start_link()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- SuperLink ----------------------------------------------------------------------------

    def start_link(self) -> None:
        """Start the SuperLink, or start it again on the database it had, and wait until it serves."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        if self.simulation:
            command += ["--insecure", "--simulation"]
        else:
            keys = self.folder / "keys"
            command += ["--ssl-ca-certfile", str(keys / "ca.pem"), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(keys / "server.pem")]
            command += ["--ssl-keyfile", str(keys / "server.key")]
        self._start(_LINK, command)
        wait_until(self._is_serving, _START_S, "the SuperLink to serve", self._alive(_LINK))

    def kill_link(self) -> None:
        """SIGKILL the SuperLink and the ServerApps it runs, as a power cut would."""
        self._kill(_LINK)

    def kill_server_app(self) -> None:
        """SIGKILL the running ServerApp; the SuperLink lives on."""
        pids = [pid for pid in self._marked(_LINK) if "flwr-serverapp" in _command_of(pid)]
        if not pids:
            raise RuntimeError("no ServerApp is running")
        for pid in pids:
            _signal(pid, signal.SIGKILL)

    # ---- SuperNodes ---------------------------------------------------------------------------

    def register(self, name: str) -> None:
        """Make a key for a node and tell the SuperLink about it."""
        key = make_key(self.folder / "keys" / name)
        public = str(key.with_suffix(".pub"))
        given = ("supernode", "register", public, CONNECTION, "--name", name, "--format", "json")
        self._node_ids[name] = str(json.loads(self.flwr(*given))["node-id"])

    def start_node(self, name: str, config: Mapping[str, Any]) -> None:
        """Start a SuperNode with the key of that name, registered or not."""
        key = make_key(self.folder / "keys" / name)
        settings = " ".join(f"{option}={json.dumps(value)}" for option, value in config.items())
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self.folder / "keys" / "ca.pem")]
        command += ["--auth-supernode-private-key", str(key), "--node-config", settings]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        self._start(name, command)

    def kill_node(self, name: str) -> None:
        """SIGKILL a SuperNode with everything it runs, as a power cut would."""
        self._kill(name)

    def stop_node(self, name: str) -> None:
        """End a SuperNode politely; it takes leave of the SuperLink."""
        self._end(name)

    def is_running(self, name: str) -> bool:
        """Whether the process of that name is there."""
        return name in self._processes and self._processes[name].poll() is None

    def exit_code(self, name: str, limit_s: float = _START_S) -> int:
        """Wait until the process of that name has ended and return its exit code."""
        return self._processes[name].wait(timeout=limit_s)

    def online(self) -> list[str]:
        """Return the names of the nodes that the SuperLink counts as online."""
        listed = json.loads(self.flwr("supernode", "list", CONNECTION, "--format", "json"))
        online = {node["node-id"] for node in listed["nodes"] if node["status"] == "online"}
        return [name for name, node_id in self._node_ids.items() if node_id in online]

    # ---- runs ---------------------------------------------------------------------------------

    def run(self, app: Path, config: Mapping[str, Any]) -> str:
        """Submit an app, as ``flwr run`` does, and return the id of the run."""
        settings = " ".join(f"{option}={json.dumps(value)}" for option, value in config.items())
        given = ["--run-config", settings] if settings else []
        answer = self.flwr("run", str(app), CONNECTION, *given, "--format", "json")
        return str(json.loads(answer)["run-id"])

    def status(self, run_id: str) -> str:
        """Return the status of a run, such as ``running`` or ``finished:completed``."""
        given = ("list", CONNECTION, "--run-id", run_id, "--format", "json")
        return str(json.loads(self.flwr(*given))["runs"][0]["status"])

    def wait(self, run_id: str, limit_s: float) -> str:
        """Wait until a run is over and return its status."""

        def ended() -> str | None:
            status = self.status(run_id)
            return status if status.startswith("finished") else None

        return wait_until(ended, limit_s, f"run {run_id} to end", pause_s=1.0)

    def stop_run(self, run_id: str) -> None:
        """Stop a run that is still going."""
        self.flwr("stop", run_id, CONNECTION)

    def flwr(self, *arguments: str) -> str:
        """Call the ``flwr`` command and return what it prints."""
        command = [_program("flwr"), *arguments]
        done = subprocess.run(
            command,
            env=self._environment("flwr"),
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str) -> str:
        """Return what a process has written so far."""
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- processes ----------------------------------------------------------------------------

    def close(self) -> None:
        """End everything, first politely, then hard; nothing is left running."""
        for name in sorted(self._processes, key=lambda name: name == _LINK):
            if name != _LINK:
                self._processes[name].terminate()
        for name in sorted(self._processes, key=lambda name: name == _LINK):
            self._end(name)

    def marked(self) -> list[int]:
        """Return the ids of all processes that belong to this deployment."""
        return list(self._marked(""))

    def _start(self, name: str, command: Sequence[str]) -> None:
        if self.is_running(name):
            raise RuntimeError(f"{name} is running already")
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [_program(command[0]), *command[1:]],
                env=self._environment(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        process = self._processes[name]
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_S)
        self._kill(name)

    def _kill(self, name: str) -> None:
        """SIGKILL a process, its group, and all that carry its mark."""
        process = self._processes[name]
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_END_S)
        end = time.monotonic() + _END_S
        while (left := list(self._marked(name))) and time.monotonic() < end:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _marked(self, name: str) -> Iterator[int]:
        """Yield live processes that carry the mark of one process, or of any if name is empty."""
        wanted = f"{_MARK}={self._mark}:{name}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                marks = (entry / "environ").read_bytes().split(b"\0")
                has_mark = any(
                    mark == wanted or (not name and mark.startswith(wanted)) for mark in marks
                )
                if has_mark and int(entry.name) != os.getpid():
                    yield int(entry.name)

    def _environment(self, name: str) -> dict[str, str]:
        home = self._home if name in (_LINK, "flwr") else self.folder / f"flwr-home-{name}"
        home.mkdir(exist_ok=True)
        programs = str(Path(sys.executable).parent)
        return {
            **os.environ,
            **QUIET,
            **BRISK,
            "FLWR_HOME": str(home),
            "PATH": os.pathsep.join((programs, os.environ.get("PATH", ""))),
            _MARK: f"{self._mark}:{name}",
        }

    def _alive(self, name: str) -> Callable[[], None]:
        def check() -> None:
            if not self.is_running(name):
                raise RuntimeError(f"{name} ended early:\n{self.log(name)[-2000:]}")

        return check

    def _is_serving(self) -> bool:
        scheme = "http" if self.simulation else "https"
        context = None
        if not self.simulation:
            context = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.pem"))
        with suppress(OSError):
            url = f"{scheme}://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        return False

    def _write_connection(self) -> None:
        trust = (
            "insecure = true"
            if self.simulation
            else f"root-certificates = {json.dumps(str(self.folder / 'keys' / 'ca.pem'))}"
        )
        text = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        (self._home / "config.toml").write_text(text)


def wait_until(
    condition: Callable[[], T | None],
    limit_s: float,
    what: str,
    check: Callable[[], None] = lambda: None,
    pause_s: float = 0.2,
) -> T:
    """Poll until the condition is truthy and return it; ``check`` may raise on the way."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        check()
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(pause_s)
    return found


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str:
    """Return the path of a program that is installed beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RuntimeError(f"{name} is not installed: pip install 'turnout[flower]'")
    return str(path)


def _command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
