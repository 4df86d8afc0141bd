"""Who may do what: scopes, federations, loopback without a token, pages of other sites."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from tests.serve.conftest import LOCAL, create
from turnout.core.errors import InvalidInput
from turnout.serve.app import check, create_app
from turnout.serve.auth import list_tokens, make_token, revoke_token
from turnout.serve.database import TOKEN, writing


@pytest.fixture
def tokens(http, engine):
    """A token of each scope for one federation, and the server's own."""
    for name in ("demo", "other"):
        create(http, name=name)
    with writing(engine) as connection:
        made = {
            scope: make_token(connection, scope, scope, "demo")
            for scope in ("read", "select", "admin")
        }
        return made | {"server": make_token(connection, "server", "admin", None)}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


REQUESTS = {
    "read": [("get", ""), ("get", "/rounds"), ("get", "/fairness"), ("get", "/clients")],
    "select": [("post", "/rounds"), ("post", "/rounds/0/close"), ("post", "/poll")],
    "admin": [("get", "/state"), ("delete", "/tokens/read")],
}
ORDER = list(REQUESTS)


@pytest.mark.parametrize("scope", [*ORDER, "server"])
def test_a_token_allows_its_scope_and_those_below(http, tokens, scope):
    rank = ORDER.index(scope) if scope in ORDER else 2
    for needed, requests in REQUESTS.items():
        for method, path in requests:
            answer = http.request(method, f"/federations/demo{path}", headers=bearer(tokens[scope]))
            if ORDER.index(needed) <= rank:
                assert answer.is_success, answer.text
            else:
                assert answer.status_code == 403
                assert needed in answer.json()["fix"]


def test_a_token_is_for_one_federation(http, tokens):
    for path in ("/federations/other", "/federations/none"):  # and does not tell which exist
        answer = http.get(path, headers=bearer(tokens["admin"]))
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:turnout:wrong-scope")
    listed = http.get("/federations", headers=bearer(tokens["read"])).json()
    assert listed == {"federations": ["demo"]}
    listed = http.get("/federations", headers=bearer(tokens["server"])).json()
    assert listed == {"federations": ["demo", "other"]}
    body = {"name": "new", "selector": "random", "cohort_size": 1}
    assert http.post("/federations", json=body, headers=bearer(tokens["admin"])).status_code == 403
    assert http.post("/federations", json=body, headers=bearer(tokens["server"])).status_code == 201


@pytest.mark.parametrize("sent", [None, "Bearer turnout_wrong", "Basic x", "Bearer", "Bearer ü"])
def test_without_a_good_token_nothing_is_answered(http, tokens, sent):
    headers = {} if sent is None else {"Authorization": sent.encode()}
    answer = http.get("/federations/demo", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["field"] == "Authorization"
    assert http.get("/health").json()["status"] == "ok"


def test_tokens_are_made_and_revoked_over_http_and_kept_as_digests(http, tokens, engine):
    admin = bearer(tokens["admin"])
    body = {"name": "phone", "scope": "select"}
    made = http.post("/federations/demo/tokens", json=body, headers=admin).json()
    assert http.post("/federations/demo/tokens", json=body, headers=admin).status_code == 422
    mine = bearer(made["token"])
    assert http.get("/federations/demo", headers=mine).status_code == 200
    with engine.begin() as connection:
        kept = str(connection.execute(select(TOKEN)).all())
    assert made["token"] not in kept
    assert http.delete("/federations/demo/tokens/server", headers=admin).status_code == 404
    assert http.delete("/federations/demo/tokens/phone", headers=admin).status_code == 204
    assert http.get("/federations/demo", headers=mine).status_code == 401


def test_a_token_goes_with_its_federation(http, tokens):
    assert http.delete("/federations/demo", headers=bearer(tokens["admin"])).status_code == 204
    create_again = {"name": "demo", "selector": "random", "cohort_size": 1}
    http.post("/federations", json=create_again, headers=bearer(tokens["server"]))
    assert http.get("/federations/demo", headers=bearer(tokens["read"])).status_code == 401


@pytest.mark.parametrize("federation", [None, "demo"])
def test_the_server_stays_closed_when_the_last_token_is_gone(http, demo, engine, federation):
    assert http.get(demo).status_code == 200  # open: there never was a token
    with writing(engine) as connection:
        mine = bearer(make_token(connection, "only", "admin", federation))
    if federation is None:
        with writing(engine) as connection:
            assert revoke_token(connection, "only")
            assert not revoke_token(connection, "only")
    else:
        assert http.delete(demo, headers=mine).status_code == 204
    for headers in ({}, mine, bearer("revoked 1")):
        assert http.get("/federations", headers=headers).status_code == 401
    with writing(engine) as connection:
        assert list_tokens(connection) == []
        again = make_token(connection, "only", "admin", None)  # the name is free
    assert http.get("/federations", headers=bearer(again)).status_code == 200
    assert http.get("/federations", headers=mine).status_code == 401


@pytest.mark.parametrize(
    ("base_url", "client"),
    [
        ("http://127.0.0.1:8717", "192.168.1.7"),  # another machine
        ("http://attacker.example:8717", "127.0.0.1"),  # a name that points here
    ],
)
def test_without_tokens_only_this_machine_is_let_in(http, demo, base_url, client):
    assert http.get(demo).status_code == 200
    stranger = TestClient(http.app, base_url=base_url, client=(client, 50_000))
    stranger.portal = http.portal
    assert stranger.get(demo).status_code == 401
    passed_on = {"X-Forwarded-For": "127.0.0.1"}
    assert http.get(demo, headers=passed_on).status_code == 401


def test_pages_of_other_sites_are_refused(http, demo):
    answer = http.post(f"{demo}/rounds", headers={"Origin": "http://attacker.example"})
    assert (answer.status_code, answer.json()["field"]) == (403, "Origin")
    assert http.get(demo).json()["open_round"] is None
    own = {"Origin": "http://127.0.0.1:8717"}
    assert http.post(f"{demo}/rounds", headers=own).status_code == 201


def test_without_no_auth_this_machine_needs_a_token_too(engine, portal):
    http = TestClient(create_app(engine), **LOCAL)
    http.portal = portal
    assert http.get("/federations").status_code == 401
    assert http.get("/health").status_code == 200
    with writing(engine) as connection:
        mine = bearer(make_token(connection, "only", "admin", None))
    assert http.get("/federations", headers=mine).status_code == 200


def test_a_server_starts_with_a_token_or_with_no_auth_on_loopback(engine, tmp_path):
    for host in ("127.0.0.1", "::1", "localhost"):
        check(engine, host, no_auth=True)
        with pytest.raises(InvalidInput, match=r"turnout serve token.*--no-auth"):
            check(engine, host)
    with pytest.raises(InvalidInput, match="would admit others") as error:
        check(engine, "0.0.0.0", no_auth=True)
    assert error.value.field == "host"
    with pytest.raises(InvalidInput, match="turnout serve token"):
        check(engine, "0.0.0.0")
    with writing(engine) as connection:
        make_token(connection, "a", "admin", None)
    check(engine, "0.0.0.0")
    for _ in range(2):  # with a token, and when it is gone
        with pytest.raises(InvalidInput, match="has a token, or had one") as error:
            check(engine, "127.0.0.1", no_auth=True)
        assert error.value.field == "no_auth"
        with writing(engine) as connection:
            revoke_token(connection, "a")
    check(engine, "127.0.0.1")
    with pytest.raises(InvalidInput, match="belong together"):
        check(engine, "::1", tmp_path / "c.pem")
    with pytest.raises(InvalidInput, match=r"--certificate: there is no file"):
        check(engine, "::1", tmp_path / "c.pem", tmp_path / "k.pem")
