"""Who did what: request ids, lines of the log, and the audit log."""

import json
import logging

import pytest

from tests.serve.conftest import LOCAL, create
from turnout.serve.auth import make_token, revoke_token
from turnout.serve.database import writing
from turnout.serve.logs import CALLER, Caller, _Json, _Text, list_audit


def audit(engine, **which):
    with engine.begin() as connection:
        return list(reversed(list_audit(connection, **which)))


def told(engine, *names, **which):
    return [tuple(entry[name] for name in names) for entry in audit(engine, **which)]


@pytest.fixture
def trainer(demo, engine):
    with writing(engine) as connection:
        token = make_token(connection, "trainer", "admin", None)
    return {"Authorization": f"Bearer {token}", "X-Request-ID": "run-7"}


def test_a_change_is_noted_with_token_action_federation_and_version(http, demo, engine, trainer):
    chosen = http.post(f"{demo}/rounds", headers=trainer).json()["clients"]
    body = {"outcomes": [{"client": client, "seconds": 1.0} for client in chosen]}
    for _ in range(2):  # the second time nothing changes
        http.post(f"{demo}/rounds/0/outcomes", json=body, headers=trainer)
    http.get(f"{demo}/state", headers=trainer)
    http.post(f"{demo}/tokens", json={"name": "phone", "scope": "read"}, headers=trainer)
    http.delete(f"{demo}/tokens/phone", headers=trainer)
    version = http.get(demo, headers=trainer).json()["version"]
    http.delete(demo, headers=trainer)
    everything = audit(engine)
    rows = [(e["actor"], e["action"], e["version"], e["round"], e["subject"]) for e in everything]
    assert rows == [
        ("(no token)", "created", 0, None, None),
        ("(no token)", "enrolled", 1, None, None),
        ("(command line)", "made-token", None, None, "trainer (admin)"),
        ("trainer", "opened", 2, 0, None),
        ("trainer", "reported", 3, 0, None),
        ("trainer", "closed", 4, 0, None),
        ("trainer", "exported", 4, None, None),
        ("trainer", "made-token", None, None, "phone (read)"),
        ("trainer", "revoked-token", None, None, "phone"),
        ("trainer", "deleted", version, None, None),
    ]
    assert {(e["request_id"], e["address"]) for e in everything[3:]} == {("run-7", "127.0.0.1")}
    assert {e["federation"] for e in everything} == {"demo", None}  # it outlives its federation


def test_what_is_refused_or_fails_is_not_noted(http, demo, engine, trainer, monkeypatch):
    before = audit(engine)
    assert http.post(f"{demo}/rounds").status_code == 401
    assert http.post(f"{demo}/rounds", json={"round": 9}, headers=trainer).status_code == 409

    def fail(*_):
        raise RuntimeError("on the way")

    monkeypatch.setattr("turnout.serve.rounds._record", fail)
    with pytest.raises(RuntimeError):
        http.post(f"{demo}/rounds", headers=trainer)
    assert audit(engine) == before


def test_the_audit_of_a_token_that_is_gone_keeps_its_name(http, demo, engine, trainer):
    http.post(f"{demo}/rounds", headers=trainer)
    with writing(engine) as connection:
        revoke_token(connection, "trainer")
    create_again = told(engine, "actor", "action", federation="demo")
    assert ("trainer", "opened") in create_again


@pytest.mark.parametrize("sent", ["run-7", "a.b:c_d-1", "x" * 64])
def test_a_caller_may_choose_the_id_of_a_request(http, demo, sent):
    assert http.get(demo, headers={"X-Request-ID": sent}).headers["X-Request-ID"] == sent


@pytest.mark.parametrize("sent", ["", "a b", "a\tb", "x" * 65, "ü".encode(), 'x","token":"root'])
def test_other_ids_are_replaced(http, demo, sent):
    answers = [http.get(demo, headers={"X-Request-ID": sent}) for _ in range(2)]
    ids = {answer.headers["X-Request-ID"] for answer in answers}
    assert len(ids) == 2
    assert all(len(one) == 16 for one in ids)


def test_a_request_is_one_line_with_its_id_also_if_it_fails(http, demo, trainer, monkeypatch):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(_Json().format(record)))
    access = logging.getLogger("turnout.access")
    monkeypatch.setattr(access, "handlers", [handler])
    level = access.level
    access.setLevel(logging.INFO)
    http.get(demo, headers=trainer)
    http.get(f"{demo}%0Aforged", headers=trainer)
    http.get("/health")

    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("turnout.serve.federations._counts", fail)
    with pytest.raises(RuntimeError):
        http.get(demo, headers=trainer)
    access.setLevel(level)
    shown = [(line["path"], line["status"], line["token"]) for line in lines]
    assert shown == [
        (demo, 200, "trainer"),
        (f"{demo}\nforged", 404, "trainer"),
        (demo, 500, "trainer"),
    ]
    assert {line["request_id"] for line in lines} == {"run-7"}
    assert "\n" not in lines[1]["message"]


def test_a_line_is_json_or_text(monkeypatch):
    reset = CALLER.set(Caller("trainer", "run-7", "10.0.0.1"))
    try:
        raise ValueError("odd")
    except ValueError as error:
        record = logging.LogRecord("turnout.serve", logging.ERROR, "x", 1, "a %s", ("ü\n",), None)
        record.exc_info = (ValueError, error, error.__traceback__)
        text = _Json().format(record)
        line = json.loads(text)
        assert "\n" not in text
        assert (line["message"], line["level"], line["request_id"]) == ("a ü\n", "error", "run-7")
        assert "ValueError: odd" in line["traceback"]
    finally:
        CALLER.reset(reset)
    plain = logging.LogRecord("turnout.serve", logging.INFO, "x", 1, "started", (), None)
    assert json.loads(_Json().format(plain)).keys() == {"time", "level", "logger", "message"}
    text = _Text("%(levelname)s %(who)s%(message)s").format(plain)
    assert text == "INFO started"


def test_overdue_rounds_are_closed_by_the_server(engine, portal):
    from fastapi.testclient import TestClient

    from turnout.serve import app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "_CHECK_S", 0.02)
        with TestClient(app.create_app(engine, no_auth=True), **LOCAL) as http:
            path = create(http, policy={"kind": "fixed-deadline", "seconds": 0.01})
            http.post(f"{path}/rounds")
            while http.get(f"{path}/rounds/0").json()["state"] == "open":
                pass
    assert ("(server)", "closed") in told(engine, "actor", "action")


def test_a_database_that_is_away_is_one_line_until_it_is_back(engine, monkeypatch, caplog):
    """The check for overdue rounds is made every second, for hours if need be."""
    from fastapi.testclient import TestClient
    from sqlalchemy.exc import OperationalError

    from turnout.serve import app

    calls, away = [], OperationalError("SELECT", {}, Exception("away"))

    def close(*_):
        calls.append(1)
        if 3 < len(calls) < 9:
            raise away
        return 0

    monkeypatch.setattr(app, "_CHECK_S", 0.01)
    monkeypatch.setattr(app.rounds, "close_overdue", close)
    with TestClient(app.create_app(engine, no_auth=True), **LOCAL):
        while len(calls) < 12:
            pass
    said = [(one.levelname, one.getMessage().partition(":")[0]) for one in caplog.records]
    assert said == [
        ("ERROR", "overdue rounds cannot be closed"),
        ("WARNING", "overdue rounds can be closed again"),
    ]
    assert all(one.exc_info is None for one in caplog.records)
