"""Servers under load: killed, cut off, slow, without room. Nothing is lost or counted twice.

A caller plays rounds and repeats each request until it is answered. In the end every round that was
answered is in the database, every client of it counts once, and the cohorts are those of an offline
replay. ``benchmarks/faults.py`` counts the faults.
"""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time

import httpx
import numpy as np
import psycopg
import pytest
from sqlalchemy import func, select

import turnout
from tests.serve.processes import PATIENCE_S, Network, Postgresql, Relay, Server
from turnout.experiment.engine import RoundEngine
from turnout.serve import open_database
from turnout.serve.database import ROUND
from turnout.serve.store import Store
from turnout.worlds import FixedDeadline

pytestmark = pytest.mark.slow
N_CLIENTS, COHORT = 10, 5


class Load:
    """A caller in a thread of its own, which takes the next server if one does not answer."""

    def __init__(self, urls, *, enter=lambda: None, timeout_s=5.0, headers=None, **settings):
        self.answered, self.reported = {}, set()
        self.n_unanswered = 0  #: requests that got no answer, or an error of the server
        self._urls, self._ends, self._failures = urls, threading.Event(), []
        self._options = {"timeout": timeout_s, "headers": headers or {}}
        self._enter, self._settings = enter, settings
        self._clients = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._enter()
            self._clients = [httpx.Client(base_url=url, **self._options) for url in self._urls]
            body = {"name": "demo", "selector": "e3cs", "cohort_size": COHORT, "seed": 1}
            body |= self._settings
            self._insist("POST", "/federations", json=body, fine=(201, 409))
            body = {"clients": [f"c{i}" for i in range(N_CLIENTS)]}
            self._insist("PUT", "/federations/demo/clients", json=body)
            t = 0
            while not self._ends.is_set():
                self._play(t)
                t += 1
        except BaseException as error:
            self._failures.append(error)
        for client in self._clients:
            client.close()

    def _play(self, t):
        path = "/federations/demo/rounds"
        headers = {"Idempotency-Key": f"round-{t}"}
        clients = self._insist("POST", path, headers=headers).json()["clients"]
        assert self.answered.setdefault(t, clients) == clients
        for client in clients:
            body = {"outcomes": [{"client": client, "seconds": 1.0}]}
            answer = self._insist("POST", f"{path}/{t}/outcomes", json=body).json()
            assert answer["new"] + answer["repeated"] == 1
            self.reported.add((t, client))

    def _insist(self, method, path, fine=(200, 201), **content):
        """Send until there is an answer; a server that cannot reach its database says so."""
        ends, place = time.monotonic() + PATIENCE_S, 0
        while time.monotonic() < ends:
            with contextlib.suppress(httpx.TransportError):
                answer = self._clients[place].request(method, path, **content)
                if answer.status_code in fine:
                    return answer
                assert answer.status_code >= 500, answer.text  # never a wrong answer
            self.n_unanswered += 1
            place = (place + 1) % len(self._clients)
            time.sleep(0.02)
        raise AssertionError(f"{method} {path} was not answered in {PATIENCE_S:g} s")

    def wait_for(self, n_more):
        """Wait until more reports are answered."""
        wanted, ends = len(self.reported) + n_more, time.monotonic() + PATIENCE_S
        while len(self.reported) < wanted and not self._failures:
            assert time.monotonic() < ends, "no request is answered"
            time.sleep(0.01)
        assert self._failures == []

    def end(self):
        """Finish the round, and stop."""
        self._ends.set()
        self._thread.join(2 * PATIENCE_S)
        assert self._failures == []
        assert not self._thread.is_alive()


def replayed(n_rounds):
    """Return the cohorts of the same history without a server."""
    engine = RoundEngine(turnout.make("e3cs"), FixedDeadline(3600.0), cohort_size=COHORT, seed=1)
    engine.resize(N_CLIENTS)
    cohorts, nobody = [], np.ones(COHORT, dtype=np.bool_)
    for t in range(n_rounds):
        ctx = turnout.RoundContext(t, COHORT, np.ones(N_CLIENTS, dtype=np.bool_), 3600.0)
        selection = engine.select(ctx)
        cohorts.append([f"c{i}" for i in selection.clients])
        closed = engine.close(np.ones(COHORT), nobody, reports_failure=False)
        outcome = turnout.Outcome(closed.status, closed.duration)
        engine.learn(selection, closed, outcome, ctx.deadline)
    return cohorts


def assert_whole(url, load):
    """Nothing is lost, nothing is there twice, and the cohorts are those of the replay."""
    engine = open_database(url)
    with Store(engine).read("demo") as tx:
        columns = tx.federation.session.journal.columns()
        ids = tx.federation.members.roster.ids
        n_rounds = tx.connection.execute(select(func.count()).select_from(ROUND)).scalar()
    engine.dispose()
    cohorts = [load.answered[t] for t in range(len(load.answered))]
    assert [ids[i] for i in columns["clients"]] == [client for each in cohorts for client in each]
    assert not columns["status"].any()
    assert len(load.reported) == columns["clients"].size
    assert n_rounds == len(cohorts)
    assert cohorts == replayed(len(cohorts))


@pytest.fixture(scope="module")
def postgres():
    with Postgresql() as database:
        yield database


@pytest.fixture
def fresh(postgres, request):
    """The URL of an empty database."""
    name = f"faults_{abs(hash(request.node.name))}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.url.replace("/postgres", f"/{name}")


@contextlib.contextmanager
def running(url, count=1, **options):
    """Start servers, and kill them in the end."""
    started = [Server(url, **options) for _ in range(count)]
    try:
        for server in started:
            if not options:
                server.wait()
        yield started
    finally:
        for server in started:
            server.kill()


def kill_at_random(servers, load, n_kills, rng):
    """Kill one of the servers at a random moment, again and again, and start it again."""
    for _ in range(n_kills):
        load.wait_for(rng.randint(1, 3))
        time.sleep(rng.random() / 20)
        server = rng.choice(servers)
        server.kill()
        server.start()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kills_at_random_moments_lose_nothing(kind, tmp_path, fresh, n_tries):
    url = f"sqlite:///{tmp_path}/turnout.db" if kind == "sqlite" else fresh
    with running(url) as servers:
        load = Load([server.url for server in servers])
        kill_at_random(servers, load, n_tries(2, 100), random.Random(3))
        load.end()
    assert load.n_unanswered > 0
    assert_whole(url, load)


def test_one_of_two_servers_is_killed(fresh, n_tries):
    with running(fresh, 2) as servers:
        load = Load([server.url for server in servers])
        kill_at_random(servers, load, n_tries(2, 100), random.Random(5))
        load.end()
    assert_whole(fresh, load)


#: Sets the clock of a process by as many seconds as a file says, whenever it looks at it.
OWN_CLOCK = """
import os, time
real, place = time.time, os.environ["TURNOUT_TEST_CLOCK"]
time.time = lambda: real() + float(open(place).read() or 0.0)
"""


@pytest.mark.parametrize("first", [3600.0, -3600.0])
def test_the_clock_of_the_server_is_set_by_an_hour(first, tmp_path, n_tries):
    """And back again, and each time the server is killed and starts with the other clock."""
    (tmp_path / "sitecustomize.py").write_text(OWN_CLOCK)
    offset, ahead = tmp_path / "offset", tmp_path / "ahead"
    offset.write_text("0")
    paths = os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])))
    own = {**os.environ, "PYTHONPATH": paths, "TURNOUT_TEST_CLOCK": str(offset)}
    url = f"sqlite:///{tmp_path}/turnout.db"
    with running(url, env=own) as (server,):
        server.wait()
        # With less than an hour, the jump would end the round that is open, as the runbook says.
        policy = {"kind": "fixed-deadline", "seconds": 1e5}
        load = Load([server.url], policy=policy, limit_s=1e6)
        for number in range(n_tries(2, 20)):
            load.wait_for(6)
            ahead.write_text(str(first if number % 2 == 0 else 0.0))
            ahead.replace(offset)
            load.wait_for(6)
            server.kill()
            server.start()
        load.wait_for(6)
        load.end()
    assert_whole(url, load)


def test_the_database_is_stopped_under_load(postgres, fresh, n_tries):
    """By SIGQUIT, which is a crash that it recovers from, and by SIGINT."""
    with running(fresh) as (server,):
        load = Load([server.url])
        for number in range(n_tries(2, 30)):
            load.wait_for(4)
            postgres.stop((signal.SIGQUIT, signal.SIGINT)[number % 2])
            time.sleep(0.2)
            postgres.start()
        load.wait_for(4)
        load.end()
    assert load.n_unanswered > 0
    assert_whole(fresh, load)


def test_a_slow_database_costs_time_only(fresh, n_tries):
    """Each packet comes 20 ms later, in both directions."""
    address = ("127.0.0.1", int(fresh.rpartition(":")[2].partition("/")[0]))
    relay = Relay(address, delay_s=0.02)
    slow = fresh.replace(f":{address[1]}/", f":{relay.port}/")
    with running(slow) as (server,):
        load = Load([server.url], timeout_s=60.0)
        load.wait_for(n_tries(6, 300))
        load.end()
    relay.close()
    assert_whole(fresh, load)


def test_a_full_disk_under_load(tmp_path, n_tries):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "turnout-test", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small disk")
    try:
        url, filler = f"sqlite:///{disk}/turnout.db", disk / "filler"
        with running(url) as (server,):
            load = Load([server.url])
            for _ in range(n_tries(1, 20)):
                load.wait_for(6)
                with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                    while file.write(b"x" * 4096):
                        pass
                time.sleep(0.5)
                filler.unlink()
            load.wait_for(6)
            load.end()
        assert load.n_unanswered > 0
        assert_whole(url, load)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def network():
    if not Network.is_allowed():
        pytest.skip("no right to make network namespaces")
    made = Network(2)
    yield made
    made.close()


@pytest.mark.parametrize("where", ["clients", "database"])
def test_the_network_is_cut(where, network, n_tries):
    """The server is in a namespace of its own, with one cable to clients and one to its database.

    For 1 s, and with ``--long`` for 10 and 60 s as well. Connections stay open and hear nothing.
    """
    with Postgresql(network.outside(1)) as database:
        inside = ("ip", "netns", "exec", network.name)
        with running(database.url, inside=inside) as (server,):
            relay = Relay(
                ("127.0.0.1", server.port), address=network.inside(0), enter=network.enter
            )
            headers = {"Host": f"127.0.0.1:{server.port}"}
            load = Load([f"http://{network.inside(0)}:{relay.port}"], headers=headers)
            load.wait_for(6)
            for seconds in (1, 10, 60)[: n_tries(1, 3)]:
                network.cut(0 if where == "clients" else 1, seconds)
                load.wait_for(6)
            load.end()
            relay.close()
        assert_whole(database.url, load)
