"""Real servers: killed at any moment they lose nothing, and rounds have one owner."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest
from fastapi import Response
from sqlalchemy import func, select

from tests.serve.conftest import create
from tests.serve.processes import Server, postgresql, servers
from turnout.serve import federations, open_database
from turnout.serve.auth import Grant, declare_tokens
from turnout.serve.database import METADATA, ROUND, SNAPSHOT, writing
from turnout.serve.federation import content_of
from turnout.serve.schemas import Definition, Enrolment
from turnout.serve.store import Store, save

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database():
    with postgresql() as url:
        yield url


def insist(send, *args, **kwargs):
    """Send until there is an answer; every request of the API may be repeated."""
    while True:
        try:
            answer = send(*args, **kwargs)
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            assert answer.is_success, answer.text
            return answer.json()


def work(http, path, answered, ends):
    """Play rounds until told to end, and note what was answered."""
    t = 0
    while not ends.is_set():
        headers = {"Idempotency-Key": f"round-{t}"}
        clients = insist(http.post, f"{path}/rounds", headers=headers)["clients"]
        answered.setdefault(t, clients)
        assert answered[t] == clients
        for client in clients:
            body = {"outcomes": [{"client": client, "seconds": 1.0, "metrics": {"loss": 0.5}}]}
            answer = insist(http.post, f"{path}/rounds/{t}/outcomes", json=body)
            assert answer["new"] + answer["repeated"] == 1
        t += 1


def test_killed_at_any_moment(tmp_path):
    url = f"sqlite:///{tmp_path}/turnout.db"
    rng = random.Random(time.time_ns())
    server = Server(url)
    server.wait()
    answered, ends, failures = {}, threading.Event(), []
    with httpx.Client(base_url=server.url, timeout=60.0) as http:
        path = create(http)

        def run():
            try:
                work(http, path, answered, ends)
            except BaseException as error:
                failures.append(error)

        worker = threading.Thread(target=run)
        worker.start()
        for _ in range(2):
            n_before = len(answered)
            while len(answered) <= n_before and worker.is_alive():
                time.sleep(0.01)
            time.sleep(rng.random() / 10)
            server.kill()
            server.start()
        server.wait()
        ends.set()
        worker.join()
        assert failures == []
        described = insist(http.get, path)
    server.kill()
    assert described["n_rounds"] == len(answered) >= 2
    engine = open_database(url)
    with Store(engine).read("demo") as tx:
        columns = tx.federation.session.journal.columns()
        ids = tx.federation.members.roster.ids
        chosen = [ids[i] for i in columns["clients"]]
        assert chosen == [client for t in range(len(answered)) for client in answered[t]]
        assert not columns["status"].any()  # every report that was answered counts
        n_rounds = tx.connection.execute(select(func.count()).select_from(ROUND)).scalar()
        assert n_rounds == len(answered)
    engine.dispose()


def test_two_servers_on_one_postgresql_choose_each_round_once(database):
    n_rounds, n_threads = 12, 6
    with servers(database, 2) as running, ThreadPoolExecutor(n_threads) as pool:
        clients = [httpx.Client(base_url=server.url, timeout=60.0) for server in running]
        path = create(clients[0], n_clients=20)
        for t in range(n_rounds):
            sides = [clients[i % 2] for i in range(n_threads)]
            asked = pool.map(
                lambda http, t=t: http.post(f"{path}/rounds", json={"round": t}), sides
            )
            answers = list(asked)
            assert sorted(a.status_code for a in answers) == [200] * (n_threads - 1) + [201]
            chosen = [answer.json()["clients"] for answer in answers]
            assert all(one == chosen[0] for one in chosen)
            bodies = [{"outcomes": [{"client": c, "seconds": 1.0}]} for c in chosen[0]]
            where = f"{path}/rounds/{t}/outcomes"
            sent = pool.map(
                lambda pair, where=where: pair[0].post(where, json=pair[1]),
                [(http, body) for body in bodies for http in clients],  # each report to both
            )
            assert sum(answer.json()["new"] for answer in sent) == len(chosen[0])
        described = [http.get(path).json() for http in clients]
        states = [http.get(f"{path}/state").content for http in clients]
        for http in clients:
            http.close()
    assert described[0] == described[1]
    assert described[0]["n_rounds"] == n_rounds
    assert states[0] == states[1]


def test_a_snapshot_on_its_way_stops_no_writer(database):
    """It is long at a million clients; only who deletes the federation waits for its end."""
    store = Store(open_database(database))
    large = Definition(name="large", selector="random", cohort_size=1)
    federations.create_federation(store, large, Response())
    federations.enrol_clients(store, "large", Enrolment(clients=["a"]))
    with store.read("large") as tx:
        number, content = tx.federation.id, content_of(tx.federation.checkpoint())
    with ThreadPoolExecutor(2) as pool:
        with writing(store.engine) as connection:
            save(connection, number, 1, content)  # not committed yet
            more = pool.submit(federations.enrol_clients, store, "large", Enrolment(clients=["b"]))
            assert more.result(60)["n_clients"] == 2
            gone = pool.submit(federations.delete_federation, store, "large")
            time.sleep(0.3)
            assert not gone.done()
        gone.result(60)
    assert "large" not in federations.list_federations(store, Grant("admin"))["federations"]
    with store.engine.begin() as connection:
        left = select(SNAPSHOT.c.seq).where(SNAPSHOT.c.federation_id == number)
        assert connection.execute(left).all() == []
    store.engine.dispose()


def test_nul_in_a_path_is_a_problem_of_the_request(database):
    """PostgreSQL cannot look for such a text; whoever sends it has made the mistake."""
    with servers(database, 1) as (server,), httpx.Client(base_url=server.url) as http:
        assert http.get("/federations/a%00b").status_code == 422
        assert http.delete("/federations/a%00b/tokens/c").status_code == 422
        assert http.get("/federations/ab").status_code == 404


def test_servers_that_start_at_once_make_the_tables_once(database, tmp_path):
    """All four wait at one gate; the database is new, so whoever is first makes the tables."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE DATABASE fresh")
    fresh, gate = database.replace("/postgres", "/fresh"), threading.Barrier(4)

    (tmp_path / "tokens").write_text("operator admin " + "0" * 32)

    def start(_):
        gate.wait()
        engine = open_database(fresh)
        with writing(engine) as connection:  # and its tokens
            declare_tokens(connection, tmp_path / "tokens")
        engine.dispose()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    with psycopg.connect(fresh) as connection:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        tables = sorted(name for (name,) in connection.execute(query))
        versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert tables == sorted([*METADATA.tables, "alembic_version"])
    assert versions == [("v3",)]


def test_two_servers_keep_clients_at_work_and_one_is_killed(database):
    rng, due, given, closed = random.Random(5), [], {}, []
    schedule = {"kind": "buffered", "size": 3, "concurrency": 6}
    with servers(database, 2) as (first, second):
        callers = [httpx.Client(base_url=one.url, timeout=60.0) for one in (first, second)]
        path = create(callers[0], "flights", selector="e3cs", schedule=schedule)
        for step in range(40):
            if step == 20:
                first.kill()  # -9, with six clients at work
                first.start()
                first.wait()
            http = callers[step % 2]
            choice = insist(http.get, f"{path}/places")["next_choice"]
            asked = [insist(one.post, f"{path}/places", json={"choice": choice}) for one in callers]
            if asked[0]["clients"]:
                assert asked[0]["clients"] == asked[1]["clients"]  # one choice, on both
                given[choice] = asked[0]["clients"]
                due += [(choice, client) for client in given[choice]]
            choice, client = due.pop(rng.randrange(len(due)))
            body = {"outcomes": [{"client": client, "seconds": 1.0}]}
            said = [insist(x.post, f"{path}/places/{choice}/outcomes", json=body) for x in callers]
            assert [(each["new"], each["repeated"]) for each in said] == [(1, 0), (0, 1)]
            closed += said[0]["closed"]
        documents = [insist(http.get, f"{path}/places") for http in callers]
        assert documents[0] == documents[1]
        assert documents[0]["refused"] == {}
        assert len(documents[0]["work"]) == len(due)
        assert closed == list(range(len(closed)))
        rounds = [insist(callers[0].get, f"{path}/rounds/{t}") for t in closed]
        counted = [x for each in rounds for x in zip(each["choice"], each["clients"], strict=True)]
        assert len(counted) == len(set(counted)) == 3 * len(closed)  # nothing counted twice
        for http in callers:
            http.close()
