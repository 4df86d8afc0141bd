"""The speed of ``turnout serve`` over HTTP: enrolling clients, selecting, reporting.

The server is a process with a SQLite file. One caller waits for every response; a round has 100
clients. The selector alone is measured in the same run, alternating with the server. Processor time
depends little on how busy the machine is; measuring it needs Linux. Target: a million clients are
enrolled in under a minute. Part of ``make bench``.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

import turnout

SIZES = (1_000, 100_000, 1_000_000)
COHORT = 100
CHUNK = 250_000
SELECTOR = "e3cs"
HEADINGS = (
    "clients", "register, s", "of it processor", "rounds/s", "choose, ms", "report, ms",
    "server, processor ms/round", "selector alone", "ratio",
)  # fmt: skip


class Server:
    """A server process, and a connection to it."""

    def __init__(self, database: str) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = str(sock.getsockname()[1])
        command = [sys.executable, "-m", "turnout", "serve", "--database", database]
        self._process = subprocess.Popen(
            [*command, "--port", port, "--no-auth"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600.0)

    def wait(self) -> None:
        """Wait until it responds."""
        while True:
            try:
                self._http.get("/health")
                return
            except httpx.TransportError:
                time.sleep(0.05)

    def send(self, method: str, path: str, body: object) -> dict[str, Any]:
        """Return the content of the response to a request."""
        response = self._http.request(method, path, json=body)
        response.raise_for_status()
        content: dict[str, Any] = response.json()
        return content

    def processor_s(self) -> float:
        """Return how much processor time the server has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Stop it."""
        self._http.close()
        self._process.kill()
        self._process.wait()


def register(server: Server, path: str, n_clients: int) -> float:
    """Enrol clients; return the seconds that it took."""
    started = time.perf_counter()
    for first in range(0, n_clients, CHUNK):
        clients = [f"client-{i}" for i in range(first, min(first + CHUNK, n_clients))]
        body = {"clients": clients, "columns": {"num_samples": [50] * len(clients)}}
        server.send("PUT", f"{path}/clients", body)
    return time.perf_counter() - started


def remote_round(server: Server, path: str) -> tuple[float, float]:
    """Run a round; return the seconds of selecting and of reporting."""
    started = time.perf_counter()
    chosen = server.send("POST", f"{path}/rounds", {})
    choosing = time.perf_counter() - started
    outcomes = [{"client": client, "seconds": 1.0} for client in chosen["clients"]]
    started = time.perf_counter()
    server.send("POST", f"{path}/rounds/{chosen['round']}/outcomes", {"outcomes": outcomes})
    return choosing, time.perf_counter() - started


def direct_round(selector: turnout.Selector, t: int) -> float:
    """Run a round without a server; return the processor time of selecting and learning."""
    ctx = turnout.RoundContext(t, COHORT, np.ones(selector.n_clients, dtype=np.bool_))
    outcome = turnout.Outcome(np.zeros(COHORT, dtype=np.int8), np.ones(COHORT))
    started = time.process_time()
    selector.observe(selector.select(ctx, turnout.stream(1, turnout.Purpose.SELECT, t)), outcome)
    return time.process_time() - started


def measure(server: Server, n_clients: int, n_rounds: int) -> list[str]:
    body = {"name": f"n{n_clients}", "selector": SELECTOR, "cohort_size": COHORT}
    server.send("POST", "/federations", body)
    path = f"/federations/n{n_clients}"
    before = server.processor_s()
    registering = register(server, path, n_clients)
    of_it = server.processor_s() - before
    selector = turnout.make(SELECTOR)
    selector.prepare(n_clients, seed=1)
    remote_round(server, path)
    direct_round(selector, 0)
    before, times, alone = server.processor_s(), [], 0.0
    for t in range(1, n_rounds + 1):
        times.append(remote_round(server, path))
        alone += direct_round(selector, t)
    used = server.processor_s() - before
    choose, report = np.median(np.array(times), axis=0)
    rate = n_rounds / float(np.sum(times))
    per_round = [1e3 * choose, 1e3 * report, 1e3 * used / n_rounds, 1e3 * alone / n_rounds]
    numbers = [registering, of_it, rate, *per_round, used / alone]
    return [f"{n_clients:,}", *(f"{number:,.1f}" for number in numbers)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="default: a new SQLite file")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    table = Table(title=f"turnout serve, {SELECTOR}, {COHORT} clients per round")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.database or f"sqlite:///{folder}/turnout.db")
        try:
            server.wait()
            for n_clients in SIZES:
                table.add_row(*measure(server, n_clients, options.rounds))
        finally:
            server.kill()
    console = Console(width=140)
    console.print(table)
    console.print(f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors.")


if __name__ == "__main__":
    main()
