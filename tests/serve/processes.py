"""Servers and a PostgreSQL of their own, as processes."""

import contextlib
import ctypes
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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

    def __init__(self, database, *options, verify=None, no_auth=True, inside=(), **more):
        self.port = free_port()
        self.url = f"{'http' if verify is None else 'https'}://127.0.0.1:{self.port}"
        self._verify = verify is None or verify
        self._command = [*inside, sys.executable, "-m", "turnout", "serve", "--database", database]
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
def postgresql(address="127.0.0.1"):
    """Start Debian's PostgreSQL in a folder of its own, and yield its URL."""
    with Postgresql(address) as database:
        yield database.url


class Postgresql:
    """Debian's PostgreSQL in a folder of its own; it can be stopped and started again.

    It refuses to run as root, who becomes the user that Debian made for it.
    """

    def __init__(self, address="127.0.0.1"):
        self._binaries = max(
            Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
        )
        user = "postgres" if os.getuid() == 0 else getpass.getuser()
        self._folder = folder = Path(tempfile.mkdtemp(prefix="turnout-pg-"))
        self._address, self._port = address, free_port()
        run_as = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        self._options = {"stdout": subprocess.DEVNULL, "cwd": "/"}
        self._options |= run_as if os.getuid() == 0 else {}
        shutil.chown(folder, user)
        initdb = [self._binaries / "initdb", "-D", folder / "data", "-U", "turnout", "-A", "trust"]
        subprocess.run([*initdb, "-N", "-E", "UTF8", "--locale=C"], check=True, **self._options)
        with (folder / "data" / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {address.rpartition('.')[0]}.0/24 trust\n")
        self.url = f"postgresql://turnout@{address}:{self._port}/postgres"

    def start(self):
        """Start it, and wait until it answers."""
        settings = {"port": self._port, "listen_addresses": self._address}
        settings["unix_socket_directories"] = self._folder
        flags = [flag for name, value in settings.items() for flag in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self._folder / "data", *flags],
            stderr=subprocess.DEVNULL, **self._options,
        )  # fmt: skip
        ready = [self._binaries / "pg_isready", "-q", "-h", self._address, "-p", str(self._port)]
        ends = time.monotonic() + PATIENCE_S
        while subprocess.run(ready).returncode != 0:
            assert self._process.poll() is None, "PostgreSQL does not start"
            assert time.monotonic() < ends, "PostgreSQL does not answer"
            time.sleep(0.05)

    def stop(self, number=signal.SIGINT):
        """Stop it without waiting for clients; SIGQUIT is a crash that it must recover from."""
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        if self._process.poll() is None:
            self.stop()
        shutil.rmtree(self._folder)


class Relay:
    """Passes TCP on, with a delay; ``enter`` is called in each of its threads."""

    def __init__(self, target, *, address="127.0.0.1", delay_s=0.0, enter=lambda: None):
        self._target, self.delay_s, self._enter = target, delay_s, enter
        self._listener, self._open, opened = None, [], threading.Event()

        def accept():
            enter()
            self._listener = socket.create_server((address, 0))
            opened.set()
            with contextlib.suppress(OSError):
                while True:
                    self._spawn(self._join, self._listener.accept()[0])

        self._spawn(accept)
        assert opened.wait(PATIENCE_S)
        self.port = self._listener.getsockname()[1]

    def _spawn(self, work, *arguments):
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _join(self, near):
        self._enter()
        self._open.append(near)
        try:
            far = socket.create_connection(self._target, PATIENCE_S)
        except OSError:
            near.close()
            return
        self._open.append(far)
        self._spawn(self._pass_on, near, far)
        self._spawn(self._pass_on, far, near)

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                time.sleep(self.delay_s)
                sink.sendall(content)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self):
        """Stop, and close whatever is still open."""
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Network:
    """A network namespace of its own, joined to this one by cables that can be cut."""

    def __init__(self, n_cables):
        self.name = f"turnout-{os.getpid()}"
        self._run("ip", "netns", "add", self.name)
        self.cables = [f"tt{os.getpid() % 100000}{'ab'[i]}" for i in range(n_cables)]
        try:
            self._run("ip", "-n", self.name, "link", "set", "lo", "up")
            for i, cable in enumerate(self.cables):
                add = ("ip", "link", "add", cable, "type", "veth", "peer", "name", f"{cable}x")
                self._run(*add, "netns", self.name)
                self._run("ip", "addr", "add", f"{self.outside(i)}/24", "dev", cable)
                inside = ("ip", "-n", self.name)
                self._run(*inside, "addr", "add", f"{self.inside(i)}/24", "dev", f"{cable}x")
                self._run(*inside, "link", "set", f"{cable}x", "up")
                self._run("ip", "link", "set", cable, "up")
        except BaseException:
            self.close()
            raise

    def outside(self, cable):
        return f"10.213.{cable}.1"

    def inside(self, cable):
        return f"10.213.{cable}.2"

    def cut(self, cable, seconds):
        """Lose every packet for a while; connections stay open."""
        self._run("ip", "link", "set", self.cables[cable], "down")
        time.sleep(seconds)
        self._run("ip", "link", "set", self.cables[cable], "up")

    def enter(self):
        """Move the calling thread into the namespace: sockets that it opens are there."""
        with open(f"/var/run/netns/{self.name}") as file:  # its number is needed
            assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000) == 0

    def close(self):
        for cable in self.cables:
            subprocess.run(["ip", "link", "del", cable], capture_output=True)
        self._run("ip", "netns", "del", self.name)

    @staticmethod
    def is_allowed():
        """Whether this process may make namespaces."""
        name = f"turnout-try-{os.getpid()}"
        if os.getuid() != 0 or shutil.which("ip") is None:
            return False
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
        return made and subprocess.run(["ip", "netns", "del", name]).returncode == 0

    @staticmethod
    def _run(*command):
        subprocess.run(command, check=True)
