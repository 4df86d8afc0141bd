"""Work in free places over HTTP: the simulator's history, repetition, kills, and refusals."""

import json
import math
import random

import numpy as np
import pytest
from sqlalchemy import select

import turnout
from tests.live.test_overlap import (
    SCHEDULES,
    SEED,
    WORLD,
    N,
    Played,
    assert_same,
)
from tests.serve.conftest import client_of, create
from tests.serve.test_replay import state_of
from turnout.experiment.codec import encode
from turnout.serve import rounds, write_folder
from turnout.serve import store as store_module
from turnout.serve.client import Places
from turnout.serve.database import CHOICE, EVENT, ROUND
from turnout.serve.store import Store

ROUNDS = 15
BUFFERED = {"kind": "buffered", "size": 3, "concurrency": 6}


@pytest.fixture
def now(monkeypatch):
    """The server's clock, in seconds, which the test moves."""

    class Now:
        s = 0.0

        def time(self):
            return self.s

        def perf_counter(self):
            return 0.0

    now = Now()
    monkeypatch.setattr(store_module, "time", now)
    return now


def places(http, path, choice=None, **body):
    if choice is None:
        choice = http.get(f"{path}/places").json()["next_choice"]
    answer = http.post(f"{path}/places", json={"choice": choice, **body})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def report(http, path, choice, client, status="completed", code=200, **more):
    outcome = {"client": client, "status": status, "seconds": 1.0} | more
    answer = http.post(f"{path}/places/{choice}/outcomes", json={"outcomes": [outcome]})
    assert answer.status_code == code, answer.text
    return answer.json()


class Served(Played):
    """Lets what a world decides happen over HTTP, on a server that is killed now and then."""

    def __init__(self, http, engine, path, now, environment, kills):
        with http.app.state.store.read("demo") as tx:
            super().__init__(tx.federation.session, environment)
        self.http, self.engine, self.path, self.now = http, engine, path, now
        self.kills = random.Random(7) if kills else None
        self.n_rounds = 0

    def send(self, method, path, body=None):
        """Send a request; without a response, it is repeated on another server."""
        answer = self.http.request(method, f"{self.path}{path}", json=body)
        assert answer.is_success, answer.text
        if self.kills is not None and self.kills.random() < 0.06:
            self.http = client_of(self.engine, self.http.portal)
            if method != "get":
                again = self.http.request(method, f"{self.path}{path}", json=body)
                assert again.is_success, again.text
                for name in ("clients", "choice", "model", "probability"):
                    assert again.json().get(name) == answer.json().get(name)
        return answer.json()

    def fill(self):
        there = self.send("get", "/places")
        if not there["places"]:
            return
        t = there["next_choice"]
        busy = np.zeros(N, dtype=np.bool_)
        busy[[int(each["client"][-2:]) for each in there["work"]]] = True
        ctx = self.environment.context(t, 1, self.history, columns=self.wanted, busy=busy)
        names = [f"client-{i:02d}" for i in range(N)]
        columns = {name: np.asarray(x, dtype=float).tolist() for name, x in ctx.columns.items()}
        if columns:
            self.send("put", "/clients", {"clients": names, "columns": columns})
        free = [names[i] for i in np.flatnonzero(ctx.available)]
        given = self.send("post", "/places", {"choice": t, "available": free})
        if not given["clients"]:
            return
        fate = self.environment.fate(t, self.history)
        clients = np.array([int(name[-2:]) for name in given["clients"]])
        self.history.record(clients)
        reports = self.environment.reports(t, clients, dict.fromkeys(self.metrics))
        for i, client in enumerate(clients.tolist()):
            seconds = float(fate.duration[client])
            metrics = {name: float(values[i]) for name, values in reports.items()}
            status = "completed" if fate.survived[client] else "failed"
            outcome = {"client": names[client], "status": status, "seconds": seconds}
            outcome |= {"metrics": metrics} if status == "completed" else {"reason": "crashed"}
            self.due.append((self.at + seconds, t, client, outcome))
        self.due.sort(key=lambda one: one[:3])

    def round(self):
        """Play until one more round is closed; return its document."""
        while True:
            self.now.s = self.at
            rounds.close_overdue(self.http.app.state.store, self.at)
            while self.due and self.due[0][0] <= self.at and self.is_open():
                _, choice, _, outcome = self.due.pop(0)
                self.send("post", f"/places/{choice}/outcomes", {"outcomes": [outcome]})
            if not self.is_open():
                self.n_rounds += 1
                return self.send("get", f"/rounds/{self.n_rounds - 1}")
            self.fill()
            ends = self.send("get", "/places")["closes_at"]
            ends = math.inf if ends is None else ends
            self.at = min(ends, self.due[0][0] if self.due else math.inf)

    def is_open(self):
        return self.send("get", "/places")["version"] == self.n_rounds


@pytest.mark.parametrize(
    ("selector", "schedule", "kills"),
    [
        ("random", "buffered", False),
        ("e3cs", "buffered", True),
        ("e3cs", "constant", False),
        ("random", "periods", True),
    ],
)
def test_the_history_is_that_of_the_simulator(http, engine, now, selector, schedule, kills):
    body = {"cohort_size": 5, "seed": SEED, "bounds": False, "limit_s": 1e6}
    body["schedule"] = encode(SCHEDULES[schedule])
    path = create(http, n_clients=0, selector=selector, **body)
    names = [f"client-{i:02d}" for i in range(N)]
    http.put(f"{path}/clients", json={"clients": names})
    served = Served(http, engine, path, now, WORLD, kills)
    chosen = turnout.make(selector)
    served.wanted, served.metrics = chosen.needs_columns, chosen.needs_metrics
    closed = [served.round() for _ in range(ROUNDS)]
    world = turnout.simulate(
        selector,
        WORLD,
        cohort_size=5,
        n_rounds=ROUNDS,
        seed=SEED,
        schedule=SCHEDULES[schedule],
    )
    with Store(engine).read("demo") as tx:
        run = tx.federation.session.journal.run
        assert tx.federation.work.n_jumps == 0
    assert_same(run.first(ROUNDS), world)
    for t, each in enumerate(closed):
        mine = slice(world.offsets[t], world.offsets[t + 1])
        assert [int(c[-2:]) for c in each["clients"]] == world.clients[mine].tolist()
        assert each["choice"] == world.choice[mine].tolist()
        assert [t - m for m in each["model"]] == world.staleness[mine].tolist()
        counted = [s == "completed" for s in each["result"]["status"]]
        assert [w is not None for w in each["weight"]] == counted


@pytest.fixture
def work(http, now):
    """A federation with six places and buffers of three."""
    return create(http, schedule=BUFFERED, selector="random", limit_s=100)


def test_a_choice_can_be_repeated(http, work):
    first = http.post(f"{work}/places", json={"choice": 0}, headers={"Idempotency-Key": "a"})
    assert (first.status_code, len(first.json()["clients"])) == (201, 6)
    for again in (
        http.post(f"{work}/places", json={"choice": 0}),
        http.post(f"{work}/places", headers={"Idempotency-Key": "a"}),
    ):
        assert again.status_code == 200
        assert again.json() == first.json()
    nobody = places(http, work, 1)
    assert (nobody["clients"], nobody["next_choice"]) == ([], 1)
    report(http, work, 0, first.json()["clients"][0])
    assert len(places(http, work, 1)["clients"]) == 1
    reused = http.post(f"{work}/places", json={"choice": 5}, headers={"Idempotency-Key": "a"})
    assert (reused.status_code, reused.json()["type"]) == (409, "urn:turnout:key-reused")
    for body, kind in (({}, "name-the-choice"), ({"choice": 7}, "wrong-choice")):
        refused = http.post(f"{work}/places", json=body)
        assert refused.json()["type"] == f"urn:turnout:{kind}"


def test_reports_are_counted_once_and_late_ones_are_refused_and_recorded(http, work, now, engine):
    clients = places(http, work, 0)["clients"]
    assert report(http, work, 0, clients[0])["new"] == 1
    again = report(http, work, 0, clients[0])
    assert (again["new"], again["repeated"], again["refused"]) == (0, 1, {})
    other = report(http, work, 0, clients[0], seconds=2.0)
    assert other["refused"] == {clients[0]: "it belongs to no work in flight"}
    assert report(http, work, 0, clients[0], seconds=2.0)["repeated"] == 1  # it is recorded
    now.s = 101.0
    assert rounds.close_overdue(http.app.state.store, now.s) == 1  # five are given up
    late = report(http, work, 0, clients[1])
    assert late["refused"] == {clients[1]: "it belongs to no work in flight"}
    second = places(http, work, 1)["clients"]
    both = next(client for client in clients[2:] if client in second)
    earlier = report(http, work, 0, both)
    assert earlier["refused"] == {both: "it belongs to an earlier choice"}
    assert report(http, work, 1, both)["refused"] == {}
    counts = {"no work in flight": 2, "an earlier choice": 1}
    assert http.get(f"{work}/places").json()["refused"] == counts
    assert client_of(engine, http.portal).get(f"{work}/places").json()["refused"] == counts
    closed = http.get(f"{work}/rounds/0").json()
    assert sorted(closed["result"]["status"]) == [
        "completed",
        "late",
        "late",
        "late",
        "late",
        "late",
    ]


def test_one_report_can_close_a_round_and_count_in_the_next(http, work):
    clients = places(http, work, 0)["clients"]
    body = {"outcomes": [{"client": client, "seconds": 1.0} for client in clients[:4]]}
    answer = http.post(f"{work}/places/0/outcomes", json=body).json()
    assert (answer["new"], answer["closed"], answer["version"]) == (4, [0], 1)
    first = http.get(f"{work}/rounds/0").json()
    assert first["clients"] == clients[:3]
    assert first["weight"] == [1.0, 1.0, 1.0]
    open_now = http.get(f"{work}/rounds/1").json()
    assert (open_now["state"], open_now["clients"]) == ("open", [])
    for client in clients[4:]:
        report(http, work, 0, client)
    second = http.get(f"{work}/rounds/1").json()
    assert second["clients"] == clients[3:]
    assert second["weight"] == pytest.approx([2**-0.5] * 3)  # they worked on model 0
    assert http.get(f"{work}/places").json()["versions"] == [2]


def test_work_in_flight_survives_a_kill_and_a_snapshot(http, work, engine, now, monkeypatch):
    monkeypatch.setattr(store_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(store_module, "_WORTH", 0.0)
    rng, due = random.Random(2), []
    for step in range(60):
        now.s += rng.random()
        given = places(http, work)
        due += [(given["choice"], client) for client in given["clients"]]
        if due and rng.random() < 0.8:
            choice, client = due.pop(rng.randrange(len(due)))
            report(http, work, choice, client, rng.choice(["completed", "completed", "failed"]))
        if step % 7 == 0:
            http.app.state.store.snapshots.wait()
            later = client_of(engine, http.portal)
            assert later.get(f"{work}/places").json() == http.get(f"{work}/places").json()
            if later.get(work).json()["n_rounds"]:  # until then, counts by client have no size
                assert state_of(Store(engine)) == state_of(http.app.state.store)
            http = later
    assert http.get(work).json()["n_rounds"] > 5


def test_a_clock_that_is_set_back_moves_nothing(http, work, now, engine):
    now.s = 50.0
    clients = places(http, work, 0)["clients"]
    now.s = 20.0
    report(http, work, 0, clients[0], seconds=None)
    flights = http.get(f"{work}/places").json()["work"]
    assert {flight["began_at"] for flight in flights} == {50.0}
    now.s = 149.0
    assert rounds.close_overdue(http.app.state.store, now.s) == 0
    now.s = 150.0
    assert rounds.close_overdue(http.app.state.store, now.s) == 1
    assert state_of(Store(engine)) == state_of(http.app.state.store)


def test_who_is_withdrawn_is_silent_in_the_end(http, work, now):
    clients = places(http, work, 0)["clients"]
    http.post(f"{work}/clients/withdraw", json={"clients": clients[:1]})
    now.s = 100.0
    rounds.close_overdue(http.app.state.store, now.s)
    status = http.get(f"{work}/rounds/0").json()["result"]["status"]
    assert status == ["silent", "late", "late", "late", "late", "late"]
    assert http.get(work).json()["open_round"] is None


def test_old_choices_are_forgotten_and_state_moves(http, work, now, engine, tmp_path):
    for t in range(3):
        given = places(http, work, t)
        for client in given["clients"][:3]:
            report(http, work, t, client)
    store = http.app.state.store
    assert rounds.forget_old(store, 5.0) == 3
    with engine.begin() as connection:
        assert connection.execute(select(CHOICE.c.number)).scalars().all() == [0, 1, 2]
    before = http.get(f"{work}/places").json()
    assert client_of(engine, http.portal).get(f"{work}/places").json() == before
    state = http.get(f"{work}/state").content
    copy = create(http, "copy", 0, schedule=BUFFERED, selector="random", limit_s=100)
    assert http.put(f"{copy}/state", content=state).status_code == 200
    assert http.get(f"{copy}/places").json()["work"] == before["work"]
    now.s = 200.0
    rounds.close_overdue(store, now.s)
    places(http, work)
    assert rounds.forget_old(store, 250.0) == 1
    with engine.begin() as connection:
        assert connection.execute(select(CHOICE.c.number)).scalars().all() == [3]
    unknown = report(http, work, 0, given["clients"][0], code=404)
    assert unknown["type"] == "urn:turnout:unknown-choice"


def test_the_client_in_python(http, work):
    places = Places("http://127.0.0.1:8717", "demo")
    places._server.client = http
    models, version, n_done = {0: "model 0"}, 0, 0
    given = [places.fill()]
    while version < 5:
        first = given.pop(0)
        assert first["model"] in models
        for client in first["clients"]:
            said = places.report(first["choice"], [{"client": client, "seconds": 1.0}])
            for t in said["closed"]:
                closed = places.round(t)
                used = [w for w in closed["weight"] if w is not None]
                assert len(used) == BUFFERED["size"]
                n_done += len(used)
                version = t + 1
                models[version] = f"model {version}"
            models = {v: model for v, model in models.items() if v in said["versions"]}
            given.append(places.fill())
    assert version == said["version"]
    assert n_done == 15
    assert 1 <= len(models) <= 4
    restarted = Places("http://127.0.0.1:8717", "demo")
    restarted._server.client = http
    there = restarted.at_work()
    assert len(there["work"]) == BUFFERED["concurrency"]
    assert restarted.fill()["clients"] == []


def test_it_is_deleted_as_a_whole(http, work, engine):
    places(http, work, 0)
    assert http.delete(work).status_code == 204
    with engine.begin() as connection:
        for table in (CHOICE, ROUND, EVENT):
            assert connection.execute(select(table)).first() is None


def test_receipts_and_a_run_folder(http, work, tmp_path):
    clients = places(http, work, 0)["clients"]
    for client in clients:
        report(http, work, 0, client)
    receipts = http.get(f"{work}/receipts/{clients[4]}").json()["receipts"]
    statement = json.loads(receipts[0]["statement"])
    assert (statement["round"], statement["status"]) == (1, "completed")
    assert write_folder(http.app.state.store, "demo", tmp_path / "runs") == 2
    (cell,), problems = turnout.results.read_cells([tmp_path / "runs"])
    assert not problems
    assert cell.run.staleness.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"schedule": {"kind": "buffered", "size": 9, "concurrency": 3}}, "concurrency must be"),
        ({"schedule": {"kind": "semi-synchronous", "period_s": 0}}, "period_s must be"),
        ({"schedule": {"kind": "bufered"}}, "buffered"),
        (
            {"schedule": {"kind": "buffered", "size": 10**18, "concurrency": 10**18}},
            "below 2147483",
        ),
        ({"schedule": BUFFERED, "policy": "reported"}, "does not go with it"),
        ({"schedule": BUFFERED, "policy": {"kind": "first-k"}}, "policy must be FixedDeadline"),
        ({"schedule": BUFFERED, "shadow": ["pace"]}, "needs synchronous rounds"),
        ({"schedule": BUFFERED, "selector": "divfl"}, "divfl"),
    ],
)
def test_what_cannot_be_is_refused(http, body, told):
    body = {"name": "x", "selector": "random", "cohort_size": 4, **body}
    refused = http.post("/federations", json=body)
    assert refused.status_code == 422, refused.text
    assert told.lower() in refused.json()["detail"].lower()


def test_the_two_kinds_of_federations_have_their_own_requests(http, demo):
    other = create(http, "work", schedule=BUFFERED)
    for path, kind in ((other, "has-schedule"), (demo, "no-schedule")):
        requests = {
            "has-schedule": [("rounds", {}), ("rounds/0/close", None)],
            "no-schedule": [("places", {"choice": 0})],
        }[kind]
        for request, body in requests:
            refused = http.post(f"{path}/{request}", json=body)
            assert (refused.status_code, refused.json()["type"]) == (409, f"urn:turnout:{kind}")
    assert report(http, other, 0, "c1", code=404)["type"] == "urn:turnout:unknown-choice"
    given = places(http, other, 0)["clients"]
    odd = next(f"c{i}" for i in range(10) if f"c{i}" not in given)
    assert report(http, other, 0, odd, code=422)["type"] == "urn:turnout:not-chosen"
    assert report(http, other, 0, "nobody", code=404)["type"] == "urn:turnout:unknown-client"


def test_a_round_says_how_often_each_answer_counts(http):
    schedule = {"kind": "buffered", "size": 2, "concurrency": 6}
    drawn = {"selector": "data-weighted", "parameters": {"replacement": True}}
    path = create(http, n_clients=6, schedule=schedule, **drawn)
    given = places(http, path, 0)
    times = dict(zip(given["clients"], given["times"], strict=True))
    assert sum(times.values()) == 6
    for client in sorted(times, key=times.get)[-2:]:  # drawn most often
        report(http, path, 0, client)
    ended = http.get(f"{path}/rounds/0").json()
    assert dict(zip(ended["clients"], ended["times"], strict=True)).items() <= times.items()
    assert max(ended["times"]) > 1
