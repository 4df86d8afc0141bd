"""The log is the federation: another process that plays it, or starts from a snapshot, is equal."""

import random
from threading import Event

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import delete, select, update

from tests.serve.conftest import client_of, create
from turnout.live.checkpoint import read_checkpoint
from turnout.serve import store as store_module
from turnout.serve.database import EVENT, FEDERATION, ROUND, SNAPSHOT
from turnout.serve.federation import LiveFederation, content_of
from turnout.serve.problems import Diverged
from turnout.serve.schemas import Definition
from turnout.serve.store import Store

SELECTORS = ("e3cs", "oort", "pace")


def play(http, path, rng, n_steps):
    """Do all kinds of things to a federation, late and failing clients among them."""
    t, clients, missing = None, [], []
    for step in range(n_steps):
        if rng.random() < 0.1:
            ids = [f"c{rng.randrange(10 + step)}"]
            columns = {"num_samples": [rng.randint(1, 99)]}
            http.put(f"{path}/clients", json={"clients": ids, "columns": columns})
        if rng.random() < 0.05:
            http.post(f"{path}/clients/withdraw", json={"clients": [f"c{rng.randrange(10)}"]})
        if t is None:
            answer = http.post(f"{path}/rounds")
            if answer.status_code == 409:  # too many are late
                http.put(f"{path}/clients", json={"clients": [f"new{step}"]})
                continue
            t, clients = answer.json()["round"], answer.json()["clients"]
            missing = rng.sample(clients, len(clients))
        elif missing and rng.random() < 0.9:
            outcome = {
                "client": missing.pop(),
                "status": rng.choice(["completed", "completed", "failed", "silent"]),
                "seconds": rng.choice([None, rng.random()]),
                "metrics": {name: rng.random() for name in ("loss", "loss_rms", "loss_std")},
            }
            answer = http.post(f"{path}/rounds/{t}/outcomes", json={"outcomes": [outcome]})
            assert answer.status_code == 200, answer.text
            t = None if answer.json()["state"] == "closed" else t
        else:
            assert http.post(f"{path}/rounds/{t}/close").status_code == 200
            t = None
    if t is not None:
        http.post(f"{path}/rounds/{t}/close")


def state_of(store, name="demo"):
    with store.read(name) as tx:
        return tx.federation.seq, content_of(tx.federation.checkpoint())


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("saves", [False, True])
def test_a_second_process_is_equal(http, portal, engine, selector, saves, monkeypatch):
    monkeypatch.setattr(store_module, "_LEAST_S", 0.0 if saves else 1e9)
    monkeypatch.setattr(store_module, "_WORTH", 0.0)
    path = create(http, selector=selector)
    rng = random.Random(selector)
    play(http, path, rng, 40)
    first = http.app.state.store
    first.snapshots.wait()
    second = Store(engine)
    assert state_of(second) == state_of(first)
    play(client_of(engine, portal), path, rng, 15)  # a third goes on
    play(http, path, rng, 15)  # the first has to catch up
    first.snapshots.wait()
    assert state_of(second) == state_of(first) == state_of(Store(engine))
    with engine.begin() as connection:
        assert len(connection.execute(select(SNAPSHOT.c.seq)).all()) == (2 if saves else 0)


def test_rounds_are_traced_where_they_happen_and_not_when_they_are_played_again(
    http, demo, engine, monkeypatch
):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    for t in range(2):
        http.post(f"{demo}/rounds")
        http.post(f"{demo}/rounds/{t}/close")
    spans = exporter.get_finished_spans()
    rounds = [span for span in spans if span.name == "turnout.round"]
    assert [span.attributes["turnout.round"] for span in rounds] == [0, 1]
    assert {span.name for span in spans if span.parent} == {"turnout.choose", "turnout.learn"}
    exporter.clear()
    assert state_of(Store(engine)) == state_of(http.app.state.store)
    assert exporter.get_finished_spans() == ()


def test_old_alerts_are_not_logged_again_by_a_server_that_starts(http, demo, engine, caplog):
    http.post(f"{demo}/rounds")
    http.post(f"{demo}/rounds/0/close")  # nobody has answered
    assert "alert: Round 1 is void" in caplog.text
    caplog.clear()
    later = client_of(engine, http.portal)
    assert later.get(demo).json()["n_rounds"] == 1
    assert caplog.text == ""
    clients = later.post(f"{demo}/rounds").json()["clients"]
    outcomes = [{"client": client, "seconds": 1.0} for client in clients]
    later.post(f"{demo}/rounds/1/outcomes", json={"outcomes": outcomes})
    later.post(f"{demo}/rounds")
    later.post(f"{demo}/rounds/2/close")
    assert "alert: Round 3 is void" in caplog.text  # which is news


def test_a_failure_in_the_middle_changes_nothing(http, demo, engine, monkeypatch):
    play(http, demo, random.Random(1), 20)
    before = state_of(Store(engine))
    add = store_module.Transaction.add

    def fails(work, content):
        add(work, content)
        raise OSError("the disk is full")

    monkeypatch.setattr(store_module.Transaction, "add", fails)
    http_of_failure = client_of(engine, http.portal)
    http_of_failure.app.state.store = http.app.state.store
    with pytest.raises(OSError, match="disk is full"):
        http_of_failure.post(f"{demo}/rounds")
    monkeypatch.undo()
    assert state_of(http.app.state.store) == before
    assert http.post(f"{demo}/rounds").status_code == 201


def test_a_snapshot_that_fails_fails_no_request(http, demo, engine, monkeypatch):
    monkeypatch.setattr(store_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(store_module, "_WORTH", 0.0)

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(store_module, "save", fails)
    play(http, demo, random.Random(1), 20)
    http.app.state.store.snapshots.wait()
    with engine.begin() as connection:
        assert connection.execute(select(SNAPSHOT)).all() == []
    assert state_of(Store(engine)) == state_of(http.app.state.store)


@pytest.fixture
def held(http, monkeypatch):
    """Snapshots that are taken at once, and written when the event is set."""
    monkeypatch.setattr(store_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(store_module, "_WORTH", 0.0)
    go, arrived = Event(), Event()

    def content(saved):
        arrived.set()
        assert go.wait(60)
        return content_of(saved)

    monkeypatch.setattr(store_module, "content_of", content)
    yield go, arrived
    go.set()
    http.app.state.store.snapshots.wait()


def test_requests_do_not_wait_for_a_snapshot(http, demo, engine, held):
    """What happens while it is written is not in it, and not lost."""
    go, arrived = held
    http.put(f"{demo}/clients", json={"clients": ["first"]})
    assert arrived.wait(60)
    before = http.app.state.store
    for i in range(5):
        answer = http.put(f"{demo}/clients", json={"clients": [f"more-{i}"]})
        assert answer.status_code == 200
    play(http, demo, random.Random(3), 12)
    go.set()
    before.snapshots.wait()
    with engine.begin() as connection:
        ((seq, body),) = connection.execute(select(SNAPSHOT.c.seq, SNAPSHOT.c.body)).all()
    assert read_checkpoint(body, "serve").roster.count("more-") == 0
    assert seq < http.get(demo).json()["version"]
    assert state_of(Store(engine)) == state_of(before)


def test_a_snapshot_of_a_federation_that_was_replaced_is_not_kept(http, demo, engine, held):
    go, arrived = held
    http.put(f"{demo}/clients", json={"clients": ["first"]})
    assert arrived.wait(60)
    assert http.delete(demo).status_code == 204
    create(http, n_clients=0)  # SQLite gives it the same number
    go.set()
    http.app.state.store.snapshots.wait()
    with engine.begin() as connection:
        assert connection.execute(select(SNAPSHOT)).all() == []
    assert http.get(demo).json()["n_clients"] == 0


def test_a_server_that_would_choose_others_refuses(http, demo, engine):
    chosen = http.post(f"{demo}/rounds").json()["clients"]
    other = [f"c{i}" for i in range(10) if f"c{i}" not in chosen]
    with engine.begin() as connection:
        text = connection.execute(select(ROUND.c.chosen)).scalar_one()
        for old, new in zip(chosen, other, strict=True):
            text = text.replace(f'"{old}"', f'"{new}"')
        connection.execute(update(ROUND).values(chosen=text))
    with pytest.raises(Diverged, match="other clients for round 0"), Store(engine).read("demo"):
        pass
    answer = client_of(engine, http.portal).get(demo)
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:turnout:diverged")
    create(http, name="other")
    text = client_of(engine, http.portal).get("/metrics").text  # of those that can be loaded
    assert 'run="other"' in text
    assert 'run="demo"' not in text


def test_export_and_import(http, demo):
    play(http, demo, random.Random(2), 40)
    content = http.get(f"{demo}/state").content
    copy = create(http, name="copy", n_clients=0)
    answer = http.put(f"{copy}/state", content=content)
    assert answer.status_code == 200, answer.text
    assert answer.json()["n_rounds"] == http.get(demo).json()["n_rounds"] > 5
    for _ in range(5):
        chosen = [http.post(f"{path}/rounds").json() for path in (demo, copy)]
        assert chosen[0]["clients"] == chosen[1]["clients"]
        assert chosen[0]["probability"] == chosen[1]["probability"]
        t = chosen[0]["round"]
        outcomes = [{"client": client, "seconds": 1.0} for client in chosen[0]["clients"]]
        for path in (demo, copy):
            http.post(f"{path}/rounds/{t}/outcomes", json={"outcomes": outcomes})


@pytest.mark.parametrize("damage", ["cut", "other selector", "nonsense"])
def test_a_damaged_or_foreign_state_is_refused(http, demo, damage):
    content = http.get(f"{demo}/state").content
    content = {"cut": content[:-200], "nonsense": b"PK" * 50}.get(damage, content)
    selector = "oort" if damage == "other selector" else "e3cs"
    copy = create(http, name="copy", n_clients=0, selector=selector)
    answer = http.put(f"{copy}/state", content=content)
    assert answer.status_code == 422
    assert "checkpoint" in answer.json()["detail"]
    assert http.get(copy).json()["version"] == 0


def test_the_log_never_goes_back_in_time(http, demo, engine, monkeypatch):
    http.post(f"{demo}/rounds")
    monkeypatch.setattr(store_module.time, "time", lambda: 5.0)
    http.post(f"{demo}/rounds/0/close")
    with engine.begin() as connection:
        times = connection.execute(select(EVENT.c.at).order_by(EVENT.c.seq)).scalars().all()
    assert times == sorted(times)
    assert state_of(Store(engine))[0] == 3


def test_another_server_notices_that_a_federation_was_replaced(http, demo, engine):
    """SQLite gives the number of a deleted row to the next one."""
    play(http, demo, random.Random(3), 20)
    other = Store(engine)
    state_of(other)
    http.delete(demo)
    create(http, n_clients=3)
    with other.read("demo") as tx:
        assert (len(tx.federation.members.roster), tx.federation.session.round) == (3, 0)


def test_a_database_that_was_set_back_is_followed(http, demo, engine):
    """As after the restore of a backup."""
    http.post(f"{demo}/rounds")
    with engine.begin() as connection:
        connection.execute(delete(EVENT).where(EVENT.c.seq == 2))
        connection.execute(delete(ROUND))
        connection.execute(update(FEDERATION).values(seq=1))
    assert http.get(demo).json()["open_round"] is None
    assert http.post(f"{demo}/rounds").status_code == 201


def test_federations_do_not_share_a_policy():
    definition = {"name": "a", "selector": "random", "cohort_size": 1, "policy": "reported"}
    one, other = (LiveFederation(Definition(**definition)) for _ in range(2))
    assert one.reported is not other.reported
