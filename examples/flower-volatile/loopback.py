"""A Flower deployment on this machine: one SuperLink and its SuperNodes, TLS and authentication.

Everything lives in one folder: certificates, keys, Flower's own files, logs. Telemetry, the update
check and installs at run time are off.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from certificates import make_certificates, make_key
from processes import Processes, command_of, kill, program, wait_until

__all__ = ["Loopback"]

#: Nothing leaves this machine.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
#: One thread per client process, quick pick-up of work, logs without delay.
BRISK = {
    "OMP_NUM_THREADS": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}

_CONNECTION = "loopback"  # its name in Flower's config.toml
_LINK = "superlink"
_START_S = 120.0  # for a process to come up on a busy machine
_COMMAND_S = 120.0  # for one call of the flwr command
_RESTART_S = 3.0  # between two starts of a node that is kept up


class Loopback:
    """A SuperLink and SuperNodes; leaving the ``with`` block ends them all, also after an error.

    With ``simulation=True`` the SuperLink runs apps on the simulation engine, without TLS and
    without SuperNodes of its own.
    """

    def __init__(self, folder: Path, *, simulation: bool = False) -> None:
        self.folder = folder.resolve()
        self.simulation = simulation
        self.port = free_port()
        self._keys = self.folder / "keys"
        self._home = self.folder / "flwr-home"
        self._node_ids: dict[str, str] = {}
        self._kept: dict[str, threading.Event] = {}
        self._lock = threading.Lock()  # nothing is started while it is being ended
        for path in (self._keys, self._home, self.folder / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        self.processes = Processes(self.folder / "logs")
        if not simulation:
            make_certificates(self._keys)
        self._write_connection()

    def __enter__(self) -> Self:
        """Start the SuperLink."""
        try:
            self.start_link()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self.close()

    def close(self) -> None:
        """End all processes, first politely, then hard."""
        for name in list(self._kept):
            self._let_go(name)
        self.processes.end_all(last=_LINK)

    # SuperLink

    def start_link(self) -> None:
        """Start the SuperLink, or start it again on the database it had; wait until it serves."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        if self.simulation:
            command += ["--insecure", "--simulation"]
        else:
            command += ["--ssl-ca-certfile", str(self._keys / "ca.pem")]
            command += ["--ssl-certfile", str(self._keys / "server.pem")]
            command += ["--ssl-keyfile", str(self._keys / "server.key"), "--enable-supernode-auth"]
        self.processes.start(_LINK, command, self._environment(self._home))

        def check() -> None:
            if not self.processes.is_running(_LINK):
                raise RuntimeError(f"the SuperLink ended:\n{self.processes.log(_LINK)[-2000:]}")

        wait_until(self._is_serving, _START_S, "the SuperLink to serve", check)

    def kill_link(self) -> None:
        """SIGKILL the SuperLink and the ServerApps it runs, as a power cut would."""
        self.processes.kill(_LINK)

    def kill_server_app(self) -> None:
        """SIGKILL the ServerApps that are running; the SuperLink lives on."""
        apps = [pid for pid in self.processes.of(_LINK) if "flwr-serverapp" in command_of(pid)]
        if not apps:
            raise RuntimeError("no ServerApp is running")
        for pid in apps:
            kill(pid)

    # SuperNodes

    def register(self, name: str) -> None:
        """Make a key for a node and tell the SuperLink about it."""
        public = str(make_key(self._keys / name).with_suffix(".pub"))
        answer = self.flwr("supernode", "register", public, _CONNECTION, "--name", name)
        self._node_ids[name] = str(answer["node-id"])

    def start_node(self, name: str, config: Mapping[str, Any]) -> None:
        """Start a SuperNode with the key of that name, registered or not."""
        key = make_key(self._keys / name)
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self._keys / "ca.pem")]
        command += ["--auth-supernode-private-key", str(key), "--node-config", _pairs(config)]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        home = self.folder / f"flwr-home-{name}"
        home.mkdir(exist_ok=True)
        self.processes.start(name, command, self._environment(home))

    def keep_node(self, name: str, config: Mapping[str, Any]) -> None:
        """Start a SuperNode and start it again whenever it ends, as a service manager would.

        The SuperLink refuses a key that it still counts as online, which after a SIGKILL takes up
        to a minute, so a restart may need several attempts.
        """
        ended = self._kept[name] = threading.Event()
        self.start_node(name, config)

        def keep() -> None:
            while not ended.wait(_RESTART_S):
                with self._lock:
                    if not ended.is_set() and not self.processes.is_running(name):
                        self.start_node(name, config)

        threading.Thread(target=keep, daemon=True).start()

    def kill_node(self, name: str) -> None:
        """SIGKILL a SuperNode with everything it runs, as a power cut would."""
        self.processes.kill(name)

    def stop_node(self, name: str) -> None:
        """End a SuperNode politely, for good: it takes leave of the SuperLink."""
        self._let_go(name)
        self.processes.end(name)

    def online(self) -> dict[str, str]:
        """Return the registered nodes that the SuperLink counts as online, and since when.

        A node that was killed counts as online for up to a minute.
        """
        nodes = self.flwr("supernode", "list", _CONNECTION)["nodes"]
        since = {node["node-id"]: node["online-at"] for node in nodes if node["status"] == "online"}
        return {name: since[key] for name, key in self._node_ids.items() if key in since}

    def _let_go(self, name: str) -> None:
        with self._lock:
            if name in self._kept:
                self._kept.pop(name).set()

    # runs

    def run(self, app: Path, config: Mapping[str, Any], *options: str) -> str:
        """Submit an app, as ``flwr run`` does, and return the id of the run."""
        given = ("--run-config", _pairs(config)) if config else ()
        return str(self.flwr("run", str(app), _CONNECTION, *given, *options)["run-id"])

    def status(self, run_id: str) -> str:
        """Return the status of a run, such as ``running`` or ``finished:completed``."""
        return str(self.flwr("list", _CONNECTION, "--run-id", run_id)["runs"][0]["status"])

    def wait(self, run_id: str, limit_s: float) -> str:
        """Wait until a run is over and return its status."""

        def ended() -> str | None:
            status = self.status(run_id)
            return status if status.startswith("finished") else None

        return wait_until(ended, limit_s, f"run {run_id} to end", pause_s=3.0)

    def stop_run(self, run_id: str) -> None:
        """Stop a run that is still going."""
        self.flwr("stop", run_id, _CONNECTION)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Call the ``flwr`` command and return its answer."""
        done = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"],
            env=self._environment(self._home),
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        answer = _json(done.stdout)
        if done.returncode or not answer.get("success"):
            raise RuntimeError(f"flwr {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
        return answer

    def _environment(self, home: Path) -> dict[str, str]:
        programs = str(Path(sys.executable).parent)
        path = os.pathsep.join((programs, os.environ.get("PATH", "")))
        return {**os.environ, **QUIET, **BRISK, "FLWR_HOME": str(home), "PATH": path}

    def _is_serving(self) -> bool:
        url = f"127.0.0.1:{self.port}/health"
        with suppress(OSError):
            if self.simulation:
                with urllib.request.urlopen(f"http://{url}", timeout=5) as answer:
                    return bool(answer.status == 200)
            trust = ssl.create_default_context(cafile=str(self._keys / "ca.pem"))
            with urllib.request.urlopen(f"https://{url}", timeout=5, context=trust) as answer:
                return bool(answer.status == 200)
        return False

    def _write_connection(self) -> None:
        certificate = json.dumps(str(self._keys / "ca.pem"))
        trust = "insecure = true" if self.simulation else f"root-certificates = {certificate}"
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n'
            f'[superlink.{_CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pairs(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


def _json(text: str) -> dict[str, Any]:
    with suppress(json.JSONDecodeError):
        answer = json.loads(text)
        if isinstance(answer, dict):
            return answer
    return {}
