"""The speed of ``turnout serve`` over HTTP: enrolling clients, selecting, reporting.

The server is a process with a SQLite file. Every choice is on the disk before the response, so the
time of one such write is measured in the same run. A caller waits for every response; a round has
100 clients. The selector alone is measured in the same run, alternating with the server, so that
ratios depend little on how busy the machine is. Needs Linux. Then eight federations play at once,
each with a caller of its own. Every request has a token. Part of ``make bench``.

Goals: a million clients are enrolled in under a minute. With 100,000 clients, 99 of 100 choices
take at most five times as long as the selector's own select and observe, in the median.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

import turnout

SIZES = (10_000, 100_000, 1_000_000)
N_AT_ONCE, SIZE_AT_ONCE = 8, 10_000
COHORT = 100
CHUNK = 250_000
SELECTOR = "e3cs"
HEADINGS = (
    "clients", "register, s", "choose, ms: p50", "p99", "report, ms: p50", "p99",
    "processor, ms: choose p50", "p99", "report p50", "p99", "selector alone, ms: p50", "p99",
    "p99 of choose / p50 alone", "processor: p99 / p50 alone", "synced write, ms: p50", "p99",
    "memory, MB",
)  # fmt: skip


class Server:
    """A server process, and a connection to it."""

    def __init__(self, database: str) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = str(sock.getsockname()[1])
        command = [sys.executable, "-m", "turnout", "serve", "--database", database]
        made = [*command, "token", "benchmark", "--scope", "admin"]
        token = subprocess.run(made, capture_output=True, text=True, check=True).stdout.strip()
        self._process = subprocess.Popen(
            [*command, "--port", port],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{port}"
        self._http = httpx.Client(base_url=url, headers=headers, timeout=600.0)

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
        """Return how much processor time the threads of the server have used."""
        threads = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9

    def memory_mb(self) -> float:
        """Return how much memory the server holds."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

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


def remote_round(server: Server, path: str) -> tuple[float, float, float, float]:
    """Run a round; return the seconds of selecting and of reporting, then their processor time."""
    used, started = server.processor_s(), time.perf_counter()
    chosen = server.send("POST", f"{path}/rounds", {})
    choosing, middle = time.perf_counter() - started, server.processor_s()
    outcomes = [{"client": client, "seconds": 1.0} for client in chosen["clients"]]
    started = time.perf_counter()
    server.send("POST", f"{path}/rounds/{chosen['round']}/outcomes", {"outcomes": outcomes})
    reporting = time.perf_counter() - started
    return choosing, reporting, middle - used, server.processor_s() - middle


def synced_write(file: BinaryIO) -> float:
    """Return the seconds of a small write that is on the disk, which every choice contains."""
    started = time.perf_counter()
    file.write(bytes(16_384))
    file.flush()
    os.fdatasync(file.fileno())
    return time.perf_counter() - started


def direct_round(selector: turnout.Selector, t: int) -> float:
    """Run a round without a server; return the seconds of selecting and learning."""
    ctx = turnout.RoundContext(t, COHORT, np.ones(selector.n_clients, dtype=np.bool_))
    outcome = turnout.Outcome(np.zeros(COHORT, dtype=np.int8), np.ones(COHORT))
    started = time.perf_counter()
    selector.observe(selector.select(ctx, turnout.stream(1, turnout.Purpose.SELECT, t)), outcome)
    return time.perf_counter() - started


def new_federation(server: Server, name: str, n_clients: int) -> tuple[str, float]:
    """Make a federation with clients; return its path and the seconds of enrolling them."""
    body = {"name": name, "selector": SELECTOR, "cohort_size": COHORT}
    server.send("POST", "/federations", body)
    path = f"/federations/{name}"
    return path, register(server, path, n_clients)


def measure(server: Server, n_clients: int, n_rounds: int, folder: str) -> list[str]:
    """Return a row of the first table."""
    memory = server.memory_mb()
    path, registering = new_federation(server, f"n{n_clients}", n_clients)
    selector = turnout.make(SELECTOR)
    selector.prepare(n_clients, seed=1)
    remote_round(server, path)
    direct_round(selector, 0)
    times, alone, disk = [], [], []
    with tempfile.TemporaryFile(dir=folder) as file:
        for t in range(1, n_rounds + 1):
            times.append(remote_round(server, path))
            alone.append(direct_round(selector, t))
            disk.append(synced_write(file))
    choosing, reporting, *used = np.array(times).T
    choose, report, own, synced, thought, learned = (
        1e3 * np.quantile(x, (0.5, 0.99)) for x in (choosing, reporting, alone, disk, *used)
    )
    ratios = (choose[1] / own[0], thought[1] / own[0])
    numbers = [registering, *choose, *report, *thought, *learned, *own, *ratios, *synced]
    numbers.append(server.memory_mb() - memory)
    return [f"{n_clients:,}", *(f"{number:,.1f}" for number in numbers)]


def at_once(server: Server, n_rounds: int) -> list[str]:
    """Return what eight federations see that play at once."""
    memory = server.memory_mb()
    paths = [new_federation(server, f"f{i}", SIZE_AT_ONCE)[0] for i in range(N_AT_ONCE)]
    started = time.perf_counter()
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        plays = pool.map(lambda path: [remote_round(server, path) for _ in range(n_rounds)], paths)
        times = np.array(list(plays)).reshape(-1, 4)[:, :2]
    seconds = time.perf_counter() - started
    choose, report = (1e3 * np.quantile(x, (0.5, 0.99)) for x in times.T)
    each = (server.memory_mb() - memory) / N_AT_ONCE
    numbers = [N_AT_ONCE * n_rounds / seconds, *choose, *report, each]
    return [f"{number:,.1f}" for number in numbers]


def new_table(title: str, headings: Sequence[str]) -> Table:
    """Return a table without rows."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="default: a new SQLite file")
    parser.add_argument("--folder", help="where the SQLite file is; default: the temporary folder")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    table = new_table(f"turnout serve, {SELECTOR}, {COHORT} clients per round", HEADINGS)
    title = f"{N_AT_ONCE} federations of {SIZE_AT_ONCE:,} clients at once"
    headings = ("rounds/s", *HEADINGS[2:6], "memory of each, MB")
    together = new_table(title, headings)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        server = Server(options.database or f"sqlite:///{folder}/turnout.db")
        try:
            server.wait()
            for n_clients in SIZES:
                table.add_row(*measure(server, n_clients, options.rounds, folder))
            together.add_row(*at_once(server, options.rounds // N_AT_ONCE))
        finally:
            server.kill()
    console = Console(width=200)
    console.print(table)
    console.print(together)
    console.print(f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors.")


if __name__ == "__main__":
    main()
