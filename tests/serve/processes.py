"""Servers and a PostgreSQL of their own, as processes."""

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

#: Far more seconds than anything here takes.
PATIENCE_S = 120.0


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """``turnout serve`` on a port of its own; it can be killed and started again."""

    def __init__(self, database, *options, verify=None, no_auth=True, **more):
        self.port = free_port()
        self.url = f"{'http' if verify is None else 'https'}://127.0.0.1:{self.port}"
        self._verify = verify is None or verify
        self._command = [sys.executable, "-m", "turnout", "serve", "--database", database]
        self._command += ["--port", str(self.port), *["--no-auth"] * no_auth, *options]
        self._more = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | more
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._command, text=True, **self._more)
        self._outputs = [self._process.stdout, self._process.stderr]

    def wait(self):
        """Wait until it answers."""
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            assert self._process.poll() is None, self._process.stderr.read()
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/ready", verify=self._verify).raise_for_status()
            time.sleep(0.05)
        raise AssertionError("the server does not answer")

    def kill(self):
        self.signal(signal.SIGKILL)
        self.end()

    def signal(self, number=signal.SIGTERM):
        self._process.send_signal(number)

    def end(self):
        """Wait for the end; return how it ended, and what it said on both outputs."""
        said = ["" if out is None else out.read() for out in self._outputs]
        for out in self._outputs:
            if out is not None:
                out.close()
        return self._process.wait(PATIENCE_S), *said


@contextlib.contextmanager
def servers(database, count):
    """Start several servers on one database, and kill them in the end."""
    started = [Server(database) for _ in range(count)]
    try:
        for server in started:
            server.wait()
        yield started
    finally:
        for server in started:
            server.kill()


@contextlib.contextmanager
def postgresql():
    """Start Debian's PostgreSQL in a folder of its own, and yield its URL.

    It refuses to run as root, who becomes the user that Debian made for it.
    """
    binaries = max(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    user = "postgres" if os.getuid() == 0 else getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="turnout-pg-"))
    port = free_port()
    run_as = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    options = {"stdout": subprocess.DEVNULL, "cwd": "/"} | (run_as if os.getuid() == 0 else {})
    shutil.chown(folder, user)
    initdb = [binaries / "initdb", "-D", folder / "data", "-U", "turnout", "-A", "trust", "-N"]
    subprocess.run([*initdb, "-E", "UTF8", "--locale=C"], check=True, **options)
    settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder}
    flags = [flag for name, value in settings.items() for flag in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [binaries / "postgres", "-D", folder / "data", *flags],
        stderr=subprocess.DEVNULL, **options,
    )  # fmt: skip
    try:
        ready = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        ends = time.monotonic() + PATIENCE_S
        while subprocess.run(ready).returncode != 0:
            assert process.poll() is None, "PostgreSQL does not start"
            assert time.monotonic() < ends, "PostgreSQL does not answer"
            time.sleep(0.05)
        yield f"postgresql://turnout@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)  # at once, without waiting for clients
        process.wait(PATIENCE_S)
        shutil.rmtree(folder)
