"""What an operator's machines rely on: settings, probes, tokens from files, retention, the end."""

import contextlib
import json
import signal
import sqlite3
import subprocess
import threading
import time

import httpx
import numpy as np
import pytest
from sqlalchemy import create_engine, func, select
from typer.main import get_group
from typer.testing import CliRunner

from tests.serve.conftest import client_of, create
from tests.serve.processes import Server
from tests.serve.test_rounds import opened, report
from turnout.cli import app as command
from turnout.cli import serve as command_module
from turnout.core.errors import InvalidInput
from turnout.core.types import Status
from turnout.serve import create_app, open_database, rounds, store
from turnout.serve.auth import declare_tokens, list_tokens, revoke_token
from turnout.serve.database import AUDIT, EVENT, ROUND, reading, writing
from turnout.serve.federation import content_of
from turnout.serve.store import Store


def test_every_option_is_a_variable_of_the_same_name(monkeypatch):
    """Derived from the options, so that there is no second list that could differ."""
    monkeypatch.setattr("turnout.serve.open_database", lambda url: url)
    seen = {}
    monkeypatch.setattr("turnout.serve.run", lambda *a, **k: seen.update(k, place=a))
    values = {
        "DATABASE": "sqlite:///x.db", "HOST": "::1", "PORT": "9", "MAX_BODY": "3",
        "NO_AUTH": "1", "PLUGINS": "true", "KEEP_DAYS": "2.5", "GRACE": "7", "JSON_LOGS": "1",
        "CERTIFICATE": "c.pem", "KEY": "k.pem", "TOKEN_FILE": "t",
        "RECEIPT_KEY": "r.pem",
    }  # fmt: skip
    group = get_group(command_module.app)
    options = {one.name for one in group.params} - {"help"}
    assert {name.lower() for name in values} == options
    env = {f"TURNOUT_{name}": value for name, value in values.items()}
    monkeypatch.setenv("TURNOUT_NO_PLUGINS", "")
    result = CliRunner().invoke(command, ["serve"], env=env)
    assert result.exit_code == 0, result.output
    assert seen["place"] == ("sqlite:///x.db", "::1", 9)
    assert (seen["max_body"], seen["no_auth"], seen["keep_days"]) == (3 * 2**20, True, 2.5)
    assert (seen["grace_s"], seen["json_logs"], str(seen["token_file"])) == (7, True, "t")
    seen.clear()
    CliRunner().invoke(command, ["serve", "--port", "10"], env=env)  # an option wins
    assert seen["place"][2] == 10
    shown = CliRunner().invoke(command, ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert all(name in shown for name in env)


def test_a_variable_that_kubernetes_makes_for_a_service_is_an_error_that_shows_it():
    env = {"TURNOUT_PORT": "tcp://10.0.0.1:8717"}
    result = CliRunner().invoke(command, ["serve"], env=env | {"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "--port" in result.output
    assert "tcp://10.0.0.1:8717" in result.output


def test_alive_without_the_database_and_ready_only_with_it(http, demo, engine):
    assert http.get("/ready").json()["status"] == "ready"
    with contextlib.closing(sqlite3.connect(engine.url.database)) as connection, connection:
        connection.execute("ALTER TABLE alembic_version RENAME TO away")
    answer = http.get("/ready")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:turnout:database-failed")
    assert http.get("/health").json()["status"] == "ok"


SECRET = "0123456789abcdef0123456789abcdef"


def test_tokens_of_a_file_are_accepted_from_the_start(engine, portal, tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# of the cluster\n\noperator admin {SECRET}\nscraper read {SECRET}x\n")
    for _ in range(2):  # the server is started again
        with writing(engine) as connection:
            declare_tokens(connection, path)
            assert list_tokens(connection) == [
                ("operator", "admin", None),
                ("scraper", "read", None),
            ]
    http = client_of(engine, portal)
    own = {"Authorization": f"Bearer {SECRET}"}
    assert http.get("/federations", headers=own).status_code == 200
    path.write_text(f"operator admin {SECRET}y\n")  # rotated
    with writing(engine) as connection:
        declare_tokens(connection, path)
    assert http.get("/federations", headers=own).status_code == 401
    own = {"Authorization": f"Bearer {SECRET}y"}
    assert http.get("/federations", headers=own).status_code == 200
    with writing(engine) as connection:
        revoke_token(connection, "operator")
        with pytest.raises(InvalidInput, match="line 1: the token of 'operator' was revoked"):
            declare_tokens(connection, path)
    assert http.get("/federations", headers=own).status_code == 401


@pytest.mark.parametrize(
    "line", [f"a admin {SECRET} more", f"a root {SECRET}", "a admin short", f"admin {SECRET}"]
)
def test_a_wrong_file_of_tokens_is_refused_without_showing_one(engine, tmp_path, line):
    path = tmp_path / "tokens"
    path.write_text(line)
    with writing(engine) as connection, pytest.raises(InvalidInput, match="line 1") as error:
        declare_tokens(connection, path)
    assert SECRET not in str(error.value)
    with writing(engine) as connection, pytest.raises(InvalidInput, match="cannot be read"):
        declare_tokens(connection, tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"first read {SECRET}y", r"line 3: .*'first' .*line 1.*give every token its own name"),
        (f"first read {SECRET}x", r"line 3: .*'first' .*line 1"),
        *(
            (f"{name} read {SECRET}y", r"line 3: a name .*rename it")
            for name in ("a" * 300, "a" * 65, "Operator", "-a", "a/b", "\u00e9", "a\0")
        ),
    ],
)
def test_a_file_whose_names_are_wrong_changes_nothing(engine, tmp_path, line, message):
    path = tmp_path / "tokens"
    path.write_text(f"first read {SECRET}x\nsecond read {SECRET}\n{line}\n", encoding="utf-8")
    with writing(engine) as connection:
        for _ in range(2):  # at every start
            with pytest.raises(InvalidInput, match=message) as error:
                declare_tokens(connection, path)
            assert list_tokens(connection) == []
        assert SECRET not in str(error.value)


@pytest.fixture
def at(monkeypatch):
    now = [1.8e9]
    monkeypatch.setattr(store.time, "time", lambda: now[0])
    return now


DAY = 86_400.0


def played(http, path, t):
    report(http, path, t, opened(http, path)["clients"])


def count(engine, table):
    with reading(engine) as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar()


def test_old_rounds_are_forgotten_and_the_choices_go_on_as_before(http, demo, engine, at, portal):
    other = create(http, "other")  # the same, and nothing of it is forgotten
    for t in range(6):
        for path in (demo, other):
            played(http, path, t)
        at[0] += DAY
    before = {name: count(engine, table) for name, table in [("round", ROUND), ("event", EVENT)]}
    described = http.get(demo).json()
    open_one = opened(http, other)
    assert rounds.forget_old(http.app.state.store, at[0] - 2.5 * DAY) == 4  # the other has to wait
    http.app.state.store.when_idle.clear()  # for ever
    report(http, other, 6, open_one["clients"])
    kept = http.get(f"{demo}/rounds").json()["rounds"]
    assert [one["round"] for one in kept] == [5, 4]
    assert count(engine, ROUND) == before["round"] - 4 + 1
    assert count(engine, EVENT) < before["event"]
    old = http.get(f"{demo}/rounds/0")
    assert old.status_code == 404
    assert "--keep-days" in old.json()["detail"]
    assert "never opened" in http.get(f"{demo}/rounds/99").json()["detail"]
    assert http.get(demo).json() == described  # versions and counts go on
    fresh = client_of(engine, portal)  # a server that has only what is stored
    for t in (6, 7):
        if t == 7:
            other_round = opened(http, other)
        chosen = opened(fresh, demo)
        twin = other_round if t == 7 else open_one
        assert (chosen["round"], chosen["clients"]) == (t, twin["clients"])
        report(fresh, demo, t, chosen["clients"])
        if t == 7:
            report(http, other, t, twin["clients"])
    assert http.get(demo).json()["n_rounds"] == 8  # the first server follows
    with reading(engine) as connection:
        query = select(AUDIT.c.round).where(AUDIT.c.federation == "demo", AUDIT.c.round < 4)
        assert connection.execute(query).all() == []
        query = select(AUDIT.c.action).where(AUDIT.c.federation == "demo", AUDIT.c.round.is_(None))
        assert connection.execute(query).scalars().all() == ["created", "enrolled"]


@pytest.fixture
def hasty(engine):
    """The same database, where each statement sees what is committed by then, as PostgreSQL's."""
    url = engine.url.render_as_string(hide_password=False)
    hasty = create_engine(url, isolation_level="AUTOCOMMIT")
    yield hasty
    hasty.dispose()


@pytest.mark.parametrize("n_kept", [0, 2])
def test_what_another_server_deletes_while_a_copy_is_loaded_is_not_missed(
    http, demo, engine, at, hasty, monkeypatch, n_kept
):
    def grow():
        for _ in range(2):
            played(http, demo, http.get(demo).json()["n_rounds"])
            at[0] += DAY

    grow()
    rounds.forget_old(http.app.state.store, at[0])  # stores a snapshot
    grow()
    loaded, calls = Store._loaded, []

    def slow(self, connection, row):
        federation = loaded(self, connection, row)
        if self is second and not calls:
            calls.append(1)
            grow()
            rounds.forget_old(http.app.state.store, at[0] - (n_kept - 0.5) * DAY)
        return federation

    second = Store(hasty)
    monkeypatch.setattr(Store, "_loaded", slow)
    with second.read("demo") as tx:
        copy = tx.federation
    assert calls
    with http.app.state.store.read("demo") as tx:
        first = tx.federation
        assert copy.session.round in (4, 6)
        with second.read("demo") as tx:
            copy = tx.federation
    assert (copy.seq, copy.at, copy.session.round) == (first.seq, first.at, 6)
    for status in (None, Status.COMPLETED):
        assert (copy.selection_counts(status) == first.selection_counts(status)).all()
    arrays, expected = copy.checkpoint().arrays, first.checkpoint().arrays
    assert arrays.keys() == expected.keys()
    for owner, table in arrays.items():
        for name, values in table.items():
            np.testing.assert_array_equal(values, expected[owner][name], f"{owner}.{name}")


def test_a_log_with_holes_is_refused_unless_enrolments_were_compacted(http, demo, engine, portal):
    played(http, demo, 0)
    keeper = http.app.state.store
    for client in ("new", "newer"):  # two snapshots: the enrolments up to the first are deleted
        with keeper.write("demo") as tx:
            content = content_of(tx.federation.checkpoint())
            store.save(tx.connection, tx.federation.id, tx.federation.seq, content)
        http.put(f"{demo}/clients", json={"clients": [client]})
    described = http.get(demo).json()
    assert client_of(engine, portal).get(demo).json() == described
    http.put(f"{demo}/clients", json={"clients": ["newest"]})
    with writing(engine) as connection:
        last = described["version"]
        connection.execute(EVENT.delete().where(EVENT.c.seq == last))
    answer = client_of(engine, portal).get(demo)
    assert answer.status_code >= 400
    assert "lacks events" in answer.json()["detail"]


def test_a_server_that_keeps_days_forgets_by_itself(engine, monkeypatch):
    from fastapi.testclient import TestClient

    from tests.serve.conftest import LOCAL
    from turnout.serve import app

    monkeypatch.setattr(app, "_CHECK_S", 0.02)
    with TestClient(app.create_app(engine, no_auth=True, keep_days=1e-9), **LOCAL) as http:
        path = create(http)
        played(http, path, 0)
        monkeypatch.setattr(app.time, "monotonic", lambda base=time.monotonic: base() + 4000.0)
        while http.get(f"{path}/rounds").json()["rounds"]:
            time.sleep(0.01)
        played(http, path, 1)


def test_a_busy_federation_forgets_when_its_round_is_closed(http, demo, at):
    store = http.app.state.store
    played(http, demo, 0)
    at[0] += DAY
    open_one = opened(http, demo)
    assert rounds.forget_old(store, at[0] - 0.5 * DAY) == 0
    assert rounds.forget_waiting(store) == 0
    assert http.get(f"{demo}/rounds/0").status_code == 200
    report(http, demo, 1, open_one["clients"])  # and at once, whenever the next one is opened
    opened(http, demo)
    assert [one["round"] for one in http.get(f"{demo}/rounds").json()["rounds"]] == [2, 1]
    assert store.when_idle == {}


def test_what_waits_is_found_when_another_server_closes_the_round(http, demo, engine, at, portal):
    store, other = http.app.state.store, client_of(engine, portal)
    played(http, demo, 0)
    at[0] += DAY
    open_one = opened(http, demo)
    rounds.forget_old(store, at[0] - 0.5 * DAY)
    report(other, demo, 1, open_one["clients"])
    assert rounds.forget_waiting(store) == 1
    assert rounds.forget_waiting(store) == 0
    open_one = opened(http, demo)
    rounds.forget_old(store, at[0] + DAY)
    assert http.delete(demo).status_code == 204
    assert rounds.forget_waiting(store) == 0
    assert store.when_idle == {}


def test_a_federation_that_fails_does_not_keep_others_from_forgetting(
    http, demo, engine, at, monkeypatch, caplog
):
    other = create(http, "other")
    for path in (demo, other):
        played(http, path, 0)
    write = Store.write

    def fails(self, name):
        if name == "demo":
            raise RuntimeError("it is broken")
        return write(self, name)

    monkeypatch.setattr(Store, "write", fails)
    assert rounds.forget_old(http.app.state.store, at[0] + DAY) == 1
    assert "old rounds of federation demo cannot be deleted: it is broken" in caplog.text


def test_a_federation_that_fails_does_not_keep_others_from_closing(http, at, monkeypatch):
    terms = {"policy": {"kind": "fixed-deadline", "seconds": 60}}
    paths = [create(http, name, **terms) for name in ("one", "two")]
    for path in paths:
        opened(http, path)
    at[0] += DAY
    write = Store.write

    def fails(self, name):
        if name == "one":
            raise RuntimeError("it is broken")
        return write(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", fails)
        with pytest.raises(RuntimeError, match="it is broken"):
            rounds.close_overdue(http.app.state.store, at[0])
    states = [http.get(f"{path}/rounds/0").json()["state"] for path in paths]
    assert states == ["open", "closed"]


@pytest.mark.parametrize("days", ["nan", "inf", "0", "-0.0"])
def test_days_that_are_no_number_above_0_are_refused(engine, days):
    with pytest.raises(InvalidInput, match="--keep-days must be a number above 0"):
        create_app(engine, no_auth=True, keep_days=float(days))


@pytest.mark.slow
def test_a_signal_lets_requests_end_and_then_the_process(tmp_path):
    """A body is still on its way when the signal comes; its request is done and answered."""
    server = Server(f"sqlite:///{tmp_path}/turnout.db", "--json-logs", stdout=subprocess.PIPE)
    server.wait()
    with httpx.Client(base_url=server.url, timeout=60.0) as http:
        create(http, n_clients=0)
    arrives, go = threading.Event(), threading.Event()
    body = json.dumps({"clients": [f"c{i}" for i in range(1000)]}).encode()

    def slowly():
        yield body[:100]
        arrives.set()
        assert go.wait(60.0)
        yield body[100:]

    answers = []

    def send():
        headers = {"Content-Type": "application/json", "X-Request-ID": "last"}
        url = f"{server.url}/federations/demo/clients"
        answers.append(httpx.put(url, content=slowly(), headers=headers, timeout=60.0))

    sender = threading.Thread(target=send)
    sender.start()
    assert arrives.wait(60.0)
    time.sleep(0.3)
    server.signal()
    time.sleep(0.3)
    with pytest.raises(httpx.TransportError):  # no new ones
        httpx.get(f"{server.url}/health")
    go.set()
    sender.join()
    assert answers[0].json()["n_clients"] == 1000
    ended, out, err = server.end()
    assert ended in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in out.splitlines()]
    assert {"last"} == {line["request_id"] for line in lines if line["path"].endswith("/clients")}
    assert '"message": "Finished server process' in err


@pytest.mark.slow
def test_a_request_that_hangs_ends_with_the_time_that_was_given(tmp_path):
    """The database is locked by another program, and the request waits for it."""
    path = tmp_path / "turnout.db"
    server = Server(f"sqlite:///{path}", "--grace", "1")
    server.wait()
    with httpx.Client(base_url=server.url, timeout=60.0) as http:
        create(http)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")

        answers = []

        def send():
            with contextlib.suppress(httpx.TransportError):
                answers.append(httpx.post(f"{server.url}/federations/demo/rounds", timeout=None))

        sender = threading.Thread(target=send)
        sender.start()
        time.sleep(0.5)
        server.signal()
        assert server.end()[0] in (0, 1, -signal.SIGTERM)  # and the database is still locked
        sender.join()
    # Without a limit it would wait for the lock for a minute, and then answer 503.
    assert [answer.status_code for answer in answers] in ([], [500])
    engine = open_database(f"sqlite:///{path}")
    assert count(engine, ROUND) == 0
    engine.dispose()
