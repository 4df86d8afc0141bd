"""Backups under load, restored into either database; and databases of the previous release."""

import gzip
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy import MetaData, create_engine, insert, select, text

from tests.serve.conftest import client_of, create
from tests.serve.processes import postgresql, servers
from tests.serve.test_processes import insist, work
from tests.serve.test_rounds import opened, report
from turnout.core.errors import InvalidInput, OutputError
from turnout.serve import DatabaseError, backup, federations, open_database, store
from turnout.serve.auth import make_token
from turnout.serve.backup import back_up, restore
from turnout.serve.database import FEDERATION, METADATA, _migrate, reading, writing
from turnout.serve.store import Store

#: Made by the code of 68fee22 over HTTP: two federations of eight clients, four rounds each with
#: failures, one open round with one report, snapshots, one token, and another that was revoked.
PREVIOUS = Path(__file__).parent / "previous"
TOLD = json.loads((PREVIOUS / "v1.json").read_text())


@pytest.fixture(scope="module")
def cluster():
    with postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def fresh(request, tmp_path):
    """Makes empty databases, and returns their URLs."""
    made = []

    def fresh():
        made.append(f"turnout_{len(made)}_{os.urandom(4).hex()}")
        if request.param == "sqlite":
            return f"sqlite:///{tmp_path}/{made[-1]}.db"
        cluster = request.getfixturevalue("cluster")
        with psycopg.connect(cluster, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {made[-1]}")
        return cluster.replace("/postgres", f"/{made[-1]}")

    return fresh


def rows(engine, but=()):
    with reading(engine) as connection:
        return {
            table.name: sorted(map(str, connection.execute(select(table)).all()))
            for table in METADATA.sorted_tables
            if table.name not in but
        }


def test_a_backup_has_everything_and_goes_into_either_database(fresh, tmp_path, portal):
    engine = open_database(fresh())
    http = client_of(engine, portal)
    path = create(http)
    for t in range(3):
        report(http, path, t, opened(http, path)["clients"])
    chosen = opened(http, path)["clients"]
    report(http, path, 3, chosen[:2])
    with writing(engine) as connection:
        token = make_token(connection, "operator", "admin", None)
    counts = back_up(engine, tmp_path / "b.db")
    assert counts == {"federation": 1, "round": 4, "token": 1}
    assert [p.name for p in tmp_path.glob("*b.db*")] == ["b.db"]
    assert stat.S_IMODE((tmp_path / "b.db").stat().st_mode) == 0o600  # it has digests of tokens
    into = open_database(fresh())
    assert restore(into, tmp_path / "b.db") == counts
    assert rows(into, but=("federation", "audit")) == rows(engine, but=("federation", "audit"))
    own = {"Authorization": f"Bearer {token}"}
    here, there = client_of(engine, portal), client_of(into, portal)
    for http in (here, there):
        http.headers.update(own)
    for where in ("", "/rounds", "/clients", "/fairness"):
        assert there.get(path + where).json() == here.get(path + where).json()
    for http in (here, there):  # and both go on in the same way
        report(http, path, 3, chosen[2:])
    assert opened(there, path)["clients"] == opened(here, path)["clients"]
    body = {"name": "new", "selector": "random", "cohort_size": 1}
    assert there.post("/federations", json=body).status_code == 201  # with a number of its own
    with writing(into) as connection:
        make_token(connection, "another", "read", None)
    engine.dispose()
    into.dispose()


@pytest.mark.slow
def test_a_backup_under_load_is_of_one_moment(fresh, tmp_path):
    """Rounds go on while backups are made. Each one is complete, and continues as it should."""
    url, n_backups = fresh(), 4
    here = open_database(url)
    with servers(url, 1) as (server,):
        ends, failures, answered = threading.Event(), [], [{}, {}]
        with httpx.Client(base_url=server.url, timeout=60.0) as http:
            paths = [create(http, name, n_clients=30) for name in ("one", "two")]

            def play(i):
                try:
                    work(http, paths[i], answered[i], ends)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=play, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for i in range(n_backups):
                n = len(answered[0])
                while len(answered[0]) < n + 2 and not failures:
                    ends.wait(0.01)
                file = tmp_path / f"{i}.db"
                if i:  # in this process, which takes no time to start
                    assert back_up(here, file)["federation"] == 2
                    continue
                command = [sys.executable, "-m", "turnout", "serve", "--database", url]
                said = subprocess.check_output([*command, "backup", str(file)], text=True)
                assert said.startswith("Backed up federations: 2, rounds: ")
            ends.set()
            for thread in threads:
                thread.join()
            assert failures == []
            states = [insist(http.get, path)["n_rounds"] for path in paths]
    here.dispose()
    n_rounds = []
    for i in range(n_backups):
        engine = open_database(fresh())
        restore(engine, tmp_path / f"{i}.db")
        for j, name in enumerate(("one", "two")):
            with Store(engine).read(name) as tx:  # replays the log, and checks every choice
                columns = tx.federation.session.journal.columns()
                ids = tx.federation.members.roster.ids
                n = tx.federation.session.round
                chosen = [ids[c] for c in columns["clients"]]
                assert chosen == [client for t in range(n) for client in answered[j][t]]
                n_rounds.append(n)
        engine.dispose()
    assert n_rounds[::2] == sorted(n_rounds[::2])
    assert 0 < n_rounds[0] < n_rounds[-2] <= states[0]


def test_a_backup_is_a_database_that_can_be_served(http, demo, engine, tmp_path, portal):
    chosen = opened(http, demo)["clients"]
    back_up(engine, tmp_path / "b.db")
    served = open_database(f"sqlite:///{tmp_path}/b.db")
    again = client_of(served, portal)
    assert again.get(f"{demo}/rounds/0").json()["clients"] == chosen
    served.dispose()


def test_a_server_with_copies_in_memory_follows_what_was_restored(http, demo, engine, tmp_path):
    """Its copy has as many events as the restored log has later, and other ones."""
    from sqlalchemy import delete

    back_up(engine, tmp_path / "b.db")
    http.put(f"{demo}/clients", json={"clients": ["lost"]})
    with writing(engine) as connection:
        for table in reversed(METADATA.sorted_tables):
            connection.execute(delete(table))
    restore(engine, tmp_path / "b.db")
    with Store(engine).write("demo") as tx:  # another server
        from turnout.serve.schemas import Enrolment

        tx.add(Enrolment(clients=["new"]))
    assert http.get(f"{demo}/clients").json()["clients"][-1] == "new"


def test_what_is_there_is_never_overwritten(http, demo, engine, tmp_path):
    back_up(engine, tmp_path / "b.db")
    content = (tmp_path / "b.db").read_bytes()
    with pytest.raises(InvalidInput, match="exists: choose another name"):
        back_up(engine, tmp_path / "b.db")
    before = rows(engine)
    with pytest.raises(InvalidInput, match=r"has federations or tokens.*Nothing was changed"):
        restore(engine, tmp_path / "b.db")
    assert rows(engine) == before
    assert (tmp_path / "b.db").read_bytes() == content
    with pytest.raises(OutputError, match="cannot be written"):
        back_up(engine, tmp_path / "none" / "b.db")
    with pytest.raises(InvalidInput, match="there is no file"):
        restore(engine, tmp_path / "none.db")
    (tmp_path / "text.db").write_text("this is no backup" * 100)
    other = open_database(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(DatabaseError):
        restore(other, tmp_path / "text.db")
    assert not any(rows(other).values())
    other.dispose()


def test_what_sqlite_has_beside_the_file_is_restored_too(http, demo, engine, tmp_path):
    """The file of a running server, with its -wal, instead of a backup."""
    opened(http, demo)
    here = tmp_path / "copied"
    here.mkdir()
    for path in tmp_path.glob("turnout.db*"):
        shutil.copy(path, here)
    (here / "turnout.db-shm").unlink()
    assert (here / "turnout.db-wal").stat().st_size
    files = {name: (here / name).read_bytes() for name in ("turnout.db", "turnout.db-wal")}
    (tmp_path / "link.db").symlink_to(here / "turnout.db")
    for i, path in enumerate((tmp_path / "turnout.db", here / "turnout.db", tmp_path / "link.db")):
        other = open_database(f"sqlite:///{tmp_path}/other{i}.db")
        assert restore(other, path) == {"federation": 1, "round": 1, "token": 0}
        assert rows(other, but=("federation", "audit")) == rows(engine, ("federation", "audit"))
        other.dispose()
    assert {name: (here / name).read_bytes() for name in files} == files


def test_a_file_with_half_a_transaction_is_refused(http, demo, engine, tmp_path):
    back_up(engine, tmp_path / "b.db")
    (tmp_path / "crashed").mkdir()
    with sqlite3.connect(tmp_path / "b.db") as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("UPDATE federation SET seq = seq + 1")
        connection.execute("CREATE TABLE filler AS SELECT zeroblob(1000000) AS body")
        for path in tmp_path.glob("b.db*"):
            shutil.copy(path, tmp_path / "crashed")
        connection.rollback()
    assert (tmp_path / "crashed" / "b.db-journal").stat().st_size
    other = open_database(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(DatabaseError, match="turnout serve backup"):
        restore(other, tmp_path / "crashed" / "b.db")
    assert not any(rows(other).values())
    other.dispose()


def test_another_backup_that_was_faster_is_kept(http, demo, engine, tmp_path, monkeypatch):
    def slow(*_):
        (tmp_path / "b.db").write_text("faster")

    monkeypatch.setattr(backup, "_copy", slow)
    with pytest.raises(InvalidInput, match="exists: choose another name"):
        back_up(engine, tmp_path / "b.db")
    assert [p.name for p in tmp_path.glob("*b.db*")] == ["b.db"]
    assert (tmp_path / "b.db").read_text() == "faster"


# --------------------------------------------------------------------------------------------------
# The previous release.
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def previous(tmp_path):
    path = tmp_path / "v1.db"
    path.write_bytes(gzip.decompress((PREVIOUS / "v1.db.gz").read_bytes()))
    return path


def moved_to(url, path):
    """Return a database of the previous release with the rows of that file."""
    if url.startswith("sqlite"):
        path.rename(url.removeprefix("sqlite:///"))
        return url
    there = url.replace("postgresql:", "postgresql+psycopg:")
    source, target, metadata = create_engine(f"sqlite:///{path}"), create_engine(there), MetaData()
    metadata.reflect(source)
    old = {table.name: table for table in metadata.sorted_tables}
    with source.begin() as rows, target.begin() as connection:
        first_step(connection)
        for name in (t.name for t in METADATA.sorted_tables if t.name in old):
            found = [dict(row) for row in rows.execute(select(old[name])).mappings()]
            connection.execute(insert(METADATA.tables[name]), found)
            if "id" in old[name].c:
                last = f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), max(id)) FROM {name}"
                connection.execute(text(last))
    source.dispose()
    target.dispose()
    return url


def first_step(connection):
    from turnout.serve import database

    with pytest.MonkeyPatch.context() as patch:
        upgrade = database.command.upgrade
        patch.setattr(database.command, "upgrade", lambda config, _: upgrade(config, "v1"))
        _migrate(connection)
    assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "v1"


def test_a_database_of_the_previous_release_goes_on(fresh, previous, portal, monkeypatch):
    url = moved_to(fresh(), previous)
    command = [sys.executable, "-m", "turnout", "serve", "--database", url, "migrate"]
    said = subprocess.check_output(command, text=True)
    assert said == "The database has version v3; before: v1.\n"
    assert subprocess.check_output(command, text=True).endswith("before: v3.\n")
    engine = open_database(url)
    at = TOLD["phones"]["rounds"]["rounds"][0]["opened_at"]
    monkeypatch.setattr(store.time, "time", lambda: at + 5.0)
    http = client_of(engine, portal)
    with writing(engine) as connection:
        http.headers["Authorization"] = f"Bearer {make_token(connection, 'new', 'admin', None)}"
    for name in ("phones", "tablets"):
        path = f"/federations/{name}"
        described = http.get(path).json()
        told = dict(TOLD[name]["federation"])
        told["needs"] |= {"metrics": described["needs"]["metrics"]}  # loss-rms is loss_rms now
        assert {key: described[key] for key in told} == told
        assert http.get(f"{path}/rounds").json() == TOLD[name]["rounds"]
        assert http.get(f"{path}/clients").json() == TOLD[name]["clients"]
    own = {"Authorization": f"Bearer {TOLD['token']}"}  # made by the previous release
    assert http.post("/federations/phones/rounds/4/close", headers=own).status_code == 200
    chosen = http.post("/federations/phones/rounds", headers=own).json()["clients"]
    assert chosen == TOLD["phones"]["next"]  # as the previous release would have gone on
    engine.dispose()


def test_a_federation_of_the_previous_release_is_created_again(http, engine):
    """Its definition was stored before guards had limits."""
    body = {"name": "old", "selector": "random", "cohort_size": 2, "guard": {}}
    assert http.post("/federations", json=body).status_code == 201
    with writing(engine) as connection:
        stored = json.loads(connection.execute(select(FEDERATION.c.definition)).scalar())
        del stored["guard"]["min_gap"], stored["guard"]["max_times"]
        connection.execute(FEDERATION.update().values(definition=json.dumps(stored)))
    assert http.post("/federations", json=body).status_code == 200
    body["guard"] = {"max_times": 3}
    answer = http.post("/federations", json=body)
    assert answer.status_code == 409
    assert answer.json()["type"].endswith("name-taken")


def test_a_federation_that_is_there_is_not_checked_as_a_new_one(http, demo, monkeypatch):
    monkeypatch.setattr(federations, "check_new", lambda _: pytest.fail("it is there"))
    body = {"name": "demo", "selector": "e3cs", "cohort_size": 5, "seed": 1}
    assert http.post("/federations", json=body).status_code == 200


def test_a_backup_of_the_previous_release_is_restored_and_left_alone(fresh, previous):
    content = previous.read_bytes()
    engine = open_database(fresh())
    assert restore(engine, previous) == {"federation": 2, "round": 9, "token": 1}
    assert previous.read_bytes() == content
    store_ = Store(engine)
    for name in ("phones", "tablets"):
        with store_.read(name) as tx:
            assert tx.federation.seq == TOLD[name]["federation"]["version"]
    engine.dispose()
