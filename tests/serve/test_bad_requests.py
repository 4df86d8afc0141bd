"""What is refused: its status, a document that names field and fix, and nothing changed."""

import contextlib
import json
import random
import shutil
import sqlite3

import pytest
from sqlalchemy import delete

from tests.serve.conftest import client_of, create
from turnout.live import LiveSettings
from turnout.serve import DatabaseError, open_database, rounds
from turnout.serve.auth import MAX_BODY, make_token
from turnout.serve.database import TOKEN, writing
from turnout.serve.schemas import Definition


def everything(http):
    """Return the whole database, and the state that the server has in memory."""
    path = http.app.state.store.engine.url.database
    with sqlite3.connect(path) as connection:
        tables = ("federation", "event", "round", "snapshot", "token")
        content = {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in tables
        }
    connection.close()
    federations = http.app.state.store._federations
    return content, {
        number: (one.seq, one.outcomes, one.cohort) for number, one in federations.items()
    }


@pytest.fixture(scope="module")
def http(empty, portal, tmp_path_factory):
    """One server for all: whatever is refused changes nothing."""
    path = shutil.copy(empty, tmp_path_factory.mktemp("bad"))
    engine = open_database(f"sqlite:///{path}")
    yield client_of(engine, portal)
    engine.dispose()


@pytest.fixture(scope="module")
def running(http):
    """A federation with a closed round and an open one."""
    demo = create(http)
    for t in range(2):
        clients = http.post(f"{demo}/rounds", headers={"Idempotency-Key": f"k{t}"}).json()[
            "clients"
        ]
        sent = clients if t == 0 else clients[:2]
        outcomes = [{"client": client, "seconds": 1.0} for client in sent]
        http.post(f"{demo}/rounds/{t}/outcomes", json={"outcomes": outcomes})
    numbers = {"clients": ["7", -9, "07", "x7"]}  # these differ
    assert http.put(f"{demo}/clients", json=numbers).json()["new"] == 4
    assert http.put(f"{demo}/clients", json=numbers).json()["known"] == 4
    everyone = [f"c{i}" for i in range(10)]
    return demo, clients, [client for client in everyone if client not in clients]


def outcome(client, **more):
    return {"outcomes": [{"client": client, "seconds": 1.0, **more}]}


CREATE = {"name": "new", "selector": "e3cs", "cohort_size": 5}
NAN = float("nan")

#: Method, path below the federation (or from the root), body, status, field.
CASES = {
    "unknown federation": ("post", "/federations/nobody/rounds", {}, 404, "name"),
    "unknown path": ("get", "/nowhere", None, 404, None),
    "unknown method": ("patch", "/federations", {}, 405, None),
    "unknown id": ("post", "rounds/1/outcomes", outcome("stranger"), 404, "outcomes"),
    "id of another type": ("post", "rounds/1/outcomes", outcome(1), 404, "outcomes"),
    "round never opened": ("post", "rounds/2/outcomes", outcome("c1"), 404, "round"),
    "round never opened, closed": ("post", "rounds/7/close", None, 404, "round"),
    "no such round": ("get", "rounds/9", None, 404, "round"),
    "round is no number": ("post", "rounds/x/outcomes", outcome("c1"), 422, "number"),
    "round is too large": ("get", f"rounds/{2**40}", None, 422, "number"),
    "negative round": ("post", "rounds", {"round": -1}, 422, "round"),
    "round to come": ("post", "rounds", {"round": 5}, 409, "round"),
    "unknown key": ("post", "rounds", {"cohort": 3}, 422, "cohort"),
    "size is the policy's": ("put", "clients", {"clients": []}, 422, "clients"),
    "same id twice": ("put", "clients", {"clients": ["a", "a"]}, 422, "clients"),
    "same text twice": ("put", "clients", {"clients": ["a", 7, "7"]}, 422, "clients"),
    "same text as before": ("put", "clients", {"clients": ["8", 7]}, 422, "clients"),
    "same number as before": ("put", "clients", {"clients": ["-9"]}, 422, "clients"),
    "id is a list": ("put", "clients", {"clients": [["a"]]}, 422, "clients.0"),
    "id is empty": ("put", "clients", {"clients": [""]}, 422, "clients.0"),
    "id is true": ("put", "clients", {"clients": [True]}, 422, "clients.0"),
    "id is too long": ("put", "clients", {"clients": ["x" * 257]}, 422, "clients.0"),
    "column is short": (
        "put", "clients", {"clients": ["a", "b"], "columns": {"f": [1]}}, 422, "columns.f",
    ),
    "column is ragged": (
        "put", "clients", {"clients": ["a", "b"], "columns": {"f": [[1], [1, 2]]}}, 422,
        "columns.f",
    ),
    "column of another shape": (
        "put", "clients", {"clients": ["a"], "columns": {"num_samples": [[1]]}}, 422,
        "columns.num_samples",
    ),
    "negative samples": (
        "put", "clients", {"clients": ["a", "b"], "columns": {"num_samples": [5, -1]}}, 422,
        "columns.num_samples",
    ),
    "impossible rate": (
        "put", "clients", {"clients": ["a"], "columns": {"success_rate": [1.5]}}, 422,
        "columns.success_rate",
    ),
    "number too large": (
        "put", "clients", {"clients": ["a"], "columns": {"f": [[0.0, -1e31]]}}, 422, "columns.f",
    ),
    "column of texts": (
        "put", "clients", {"clients": ["a"], "columns": {"f": ["1"]}}, 422, "columns.f.0",
    ),
    "stranger withdrawn": ("post", "clients/withdraw", {"clients": ["zz"]}, 404, "clients"),
    "body is a list": ("post", "rounds/1/outcomes", [], 422, "body"),
    "no body": ("post", "rounds/1/outcomes", None, 422, "body"),
    "nothing reported": ("post", "rounds/1/outcomes", {"outcomes": []}, 422, "outcomes"),
    "unknown status": (
        "post", "rounds/1/outcomes", outcome("c1", status="dead"), 422, "outcomes.0.status",
    ),
    "negative seconds": (
        "post", "rounds/1/outcomes", outcome("c1", seconds=-1), 422, "outcomes.0.seconds",
    ),
    "name is taken": ("post", "/federations", CREATE | {"name": "demo"}, 409, "name"),
    "name is odd": ("post", "/federations", CREATE | {"name": "../x"}, 422, "name"),
    "unknown selector": ("post", "/federations", CREATE | {"selector": "e3c"}, 422, "selector"),
    "selector is code": (
        "post", "/federations", CREATE | {"selector": "os:system"}, 422, "selector",
    ),
    "unknown parameter": (
        "post", "/federations", CREATE | {"parameters": {"etaa": 1}}, 422, None,
    ),
    "parameter out of range": (
        "post", "/federations", CREATE | {"parameters": {"quota": 7}}, 422, "quota",
    ),
    "state too large": (
        "post", "/federations",
        CREATE | {"selector": "pace", "parameters": {"dimension": 10_000}}, 422, "parameters",
    ),
    "state impossible": (
        "post", "/federations",
        CREATE | {"selector": "pace", "parameters": {"dimension": 10**9}}, 422, "parameters",
    ),
    "state beyond numpy": (
        "post", "/federations",
        CREATE | {"selector": "pace", "parameters": {"dimension": 10**18}}, 422, "parameters",
    ),
    "cohort beyond all clients": (
        "post", "/federations", CREATE | {"cohort_size": 10**18}, 422, "cohort_size",
    ),
    "no cohort": ("post", "/federations", CREATE | {"cohort_size": 0}, 422, "cohort_size"),
    "unknown policy": (
        "post", "/federations", CREATE | {"policy": {"kind": "x"}}, 422, "policy.kind",
    ),
    "quorum above cohort": (
        "post", "/federations", CREATE | {"quorum": {"min_answers": 9}}, 422, "min_answers",
    ),
    "unknown bound": ("post", "/federations", CREATE | {"bounds": {"x": True}}, 422, "bounds"),
    "guard out of range": (
        "post", "/federations", CREATE | {"guard": {"floor": 2.0}}, 422, "floor",
    ),
    "NUL in a name": ("get", "/federations/a%00b", None, 422, "name"),
    "NUL in a name to create": ("post", "/federations", CREATE | {"name": "a\x00"}, 422, "name"),
    "NUL in a token": ("delete", "tokens/a%00b", None, 422, "token"),
    "bad scope": ("post", "tokens", {"name": "t", "scope": "root"}, 422, "scope"),
    "unknown token": ("delete", "tokens/none", None, 404, "token"),
    "state while a round is open": ("get", "state", None, 409, "round"),
    "import over rounds": ("put", "state", {}, 409, "name"),
    "negative offset": ("get", "clients?offset=-1", None, 422, "offset"),
    "no clients wanted": ("get", "clients?limit=0", None, 422, "limit"),
    "limit too large": ("get", "rounds?limit=100000", None, 422, "limit"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused_and_unchanged(http, running, case):
    path, _, _ = running
    before = everything(http)
    method, where, body, status, field = CASES[case]
    url = where if where.startswith("/") else f"{path}/{where}"
    answer = http.request(method, url, json=body)
    check_problem(answer, status, field)
    assert everything(http) == before


def check_problem(answer, status, field):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["field"] == field
    assert document["type"].startswith("urn:turnout:")
    assert len(document["detail"]) > 5
    assert len(document["fix"]) > 5


def test_reports_that_are_refused_change_nothing(http, running):
    path, chosen, others = running
    before = everything(http)
    where = f"{path}/rounds/1/outcomes"
    refused = [
        (outcome(others[0]), 422),  # not chosen
        (outcome(chosen[0], status="failed"), 409),  # other content than before
        ({"outcomes": [outcome(chosen[2])["outcomes"][0], outcome(others[0])["outcomes"][0]]}, 422),
        ({"outcomes": outcome(chosen[2])["outcomes"] * 2}, 422),
        (outcome(chosen[2], status="late"), 422),  # the policy decides
    ]
    for body, status in refused:
        check_problem(http.post(where, json=body), status, answer_field(body))
    assert everything(http) == before
    check_problem(http.post(f"{path}/rounds/0/outcomes", json=outcome("c0", reason="x")),
                  *answer_of(http, path, "c0"))  # fmt: skip
    assert everything(http) == before


def answer_field(body):
    return "status" if body["outcomes"][0].get("status") == "late" else "outcomes"


def answer_of(http, path, client):
    was_chosen = client in http.get(f"{path}/rounds/0").json()["clients"]
    return (409 if was_chosen else 422), "outcomes"


def test_a_selector_gets_what_it_needs(http):
    path = create(http, name="oort", selector="oort", n_clients=0)
    check_problem(http.post(f"{path}/rounds"), 409, "clients")
    http.put(f"{path}/clients", json={"clients": ["a", "b"], "columns": {"num_samples": [5, 6]}})
    chosen = http.post(f"{path}/rounds").json()["clients"]
    where = f"{path}/rounds/0/outcomes"
    before = everything(http)
    check_problem(http.post(where, json=outcome(chosen[0])), 422, "metrics")
    assert everything(http) == before
    both = [{"client": c, "metrics": {"loss_rms": 1.0}} for c in chosen[:1]]
    both += [{"client": c, "metrics": {"loss-rms": None}} for c in chosen[1:]]
    assert http.post(where, json={"outcomes": both}).json()["state"] == "closed"


def test_what_a_report_says_in_vain_is_told(http):
    path = create(http, name="vain", selector="oort")
    clients = http.post(f"{path}/rounds").json()["clients"]
    odd = [{"loss_rms": -1.0}, {"loss_rms": 1e308}, {"loss_rms": [1.0] * 999}]
    odd += [{"loss_rms": None}, {"loss_rms": 1.0, "num_samples": -3}]
    told = [{"client": c, "metrics": m} for c, m in zip(clients, odd, strict=True)]
    answer = http.post(f"{path}/rounds/0/outcomes", json={"outcomes": told}).json()
    assert answer["state"] == "closed"
    said = [answer["ignored"].get(client) for client in clients]
    assert said[:2] == [
        "loss_rms -1.0 cannot be, and counts as unknown",
        "loss_rms 1e+308 cannot be, and counts as unknown",
    ]
    assert said[2].startswith("loss_rms [1.0, 1.0, ")
    assert len(said[2]) < 90
    assert said[3:] == [None, "num_samples is a column: send it with PUT .../clients"]


@pytest.mark.parametrize("number", ["NaN", "1e999", "[1.0, NaN]"])
def test_a_report_without_a_number_may_be_repeated(http, portal, number):
    """The log of events has null for it, as a server has that replays the log."""
    path = create(http, name=f"none-{len(number)}")
    chosen = http.post(f"{path}/rounds").json()["clients"]
    again = client_of(http.app.state.store.engine, portal)
    body = f'{{"outcomes": [{{"client": "{chosen[0]}", "metrics": {{"loss": {number}}}}}]}}'
    json = {"Content-Type": "application/json"}
    for server, n_new in ((http, 1), (http, 0), (again, 0)):
        answer = server.post(f"{path}/rounds/0/outcomes", content=body, headers=json)
        assert answer.status_code == 200, answer.text
        assert answer.json()["new"] == n_new


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"kind": "over-select", "factor": 1e300}, "policy"),
        ({"kind": "over-select-by-success", "factor": 1e12}, "policy"),
        ({"kind": "fixed-deadline", "seconds": 1e100}, "policy"),
        ({"kind": "first-k", "seconds": 10**400}, "policy"),
    ],
)
def test_a_policy_under_which_no_round_opens_is_refused(http, policy, field):
    body = {"name": "huge", "selector": "random", "cohort_size": 2, "policy": policy}
    check_problem(http.post("/federations", json=body), 422, field)


def test_vectors_are_lists_and_odd_ones_do_no_harm(http):
    parameters = {"by": "similarity", "sketch_size": 3}
    path = create(http, name="kinds", selector="clustered", parameters=parameters, n_clients=0)
    clients, sizes = ["a", "b", "c", "d"], {"num_samples": [5, 5, 5, 5]}
    http.put(f"{path}/clients", json={"clients": clients, "columns": sizes})
    sent = [[1.0, 2.0, 3.0], [1.0, None, 3.0], None, [1e300, 2.0, 3.0]]
    for t in range(3):
        chosen = http.post(f"{path}/rounds").json()["clients"]
        body = [
            {"client": c, "seconds": 1.0, "metrics": {"update_sketch": sent[clients.index(c)]}}
            for c in chosen
        ]
        answer = http.post(f"{path}/rounds/{t}/outcomes", json={"outcomes": body})
        assert answer.json()["state"] == "closed", answer.text
    long = [{"client": "a", "metrics": {"update_sketch": [0.0] * 10_001}}]
    http.post(f"{path}/rounds")
    wrong = http.post(f"{path}/rounds/3/outcomes", json={"outcomes": long})
    check_problem(wrong, 422, "outcomes.0.metrics.update_sketch")


def test_sketches_of_another_length_or_seed_are_refused_with_both_named(http):
    parameters = {"by": "similarity", "sketch_size": 3}
    path = create(http, name="odd", selector="clustered", parameters=parameters, n_clients=0)
    http.put(f"{path}/clients", json={"clients": ["a"], "columns": {"num_samples": [5]}})
    http.post(f"{path}/rounds")
    before = everything(http)
    for sent, described in (
        ({"update_sketch": [1.0]}, "'update_sketch' with 1 numbers"),
        ({"update_sketch": 7.0}, "'update_sketch' with 1 numbers"),
        (
            {"update_sketch": [1.0, 2.0, 3.0], "update_sketch_seed": 5},
            "'update_sketch' of seed 5 with 3 numbers",
        ),
    ):
        body = {"outcomes": [{"client": "a", "seconds": 1.0, "metrics": sent}]}
        wrong = http.post(f"{path}/rounds/0/outcomes", json=body)
        check_problem(wrong, 422, "metrics")
        detail = wrong.json()["detail"]
        assert "needs 'update_sketch' of seed 0 with 3 numbers" in detail
        assert f"'a' sent {described}" in detail
    assert everything(http) == before


def test_a_round_in_which_every_vector_is_unknown_closes(http):
    parameters = {"by": "similarity", "sketch_size": 3}
    path = create(http, name="mute", selector="clustered", parameters=parameters, n_clients=0)
    http.put(f"{path}/clients", json={"clients": ["a"], "columns": {"num_samples": [5]}})
    http.post(f"{path}/rounds")
    body = {"outcomes": [{"client": "a", "seconds": 1.0, "metrics": {"update_sketch": None}}]}
    answer = http.post(f"{path}/rounds/0/outcomes", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "closed"


def test_pace_can_do_without_losses(http):
    path = create(http, name="pace", selector="pace")
    assert http.get(path).json()["needs"]["metrics"] == ["loss_rms"]
    chosen = http.post(f"{path}/rounds").json()["clients"]
    plain = [{"client": c, "seconds": 1.0} for c in chosen]
    assert http.post(f"{path}/rounds/0/outcomes", json={"outcomes": plain}).json()["state"] == (
        "closed"
    )
    assert http.post(f"{path}/rounds").status_code == 201


def test_a_missing_column_is_named(http):
    path = create(http, name="rbcs", selector="rbcs-f")
    before = everything(http)
    answer = http.post(f"{path}/rounds")
    assert answer.status_code == 409
    assert "'context'" in answer.json()["detail"]
    assert "PUT .../clients" in answer.json()["detail"]
    assert everything(http)[0] == before[0]


TERMS = {
    "stranger available": ({"available": ["c1", "zz"]}, 404, "available"),
    "available twice": ({"available": ["c1", "c1"]}, 422, "available"),
    "too few bits": ({"available": {"bits": "gA=="}}, 422, "available"),
    "bits are no base64": ({"available": {"bits": "?"}}, 422, "available"),
    "the policy has a deadline": ({"deadline_s": 5.0}, 422, "deadline_s"),
    "the policy has a size": ({"cohort_size": 2}, 422, "cohort_size"),
    "no losses": ({}, 409, "losses"),
    "losses of others": ({"losses": {"clients": ["zz"], "losses": [1.0]}}, 422, "losses"),
    "too few losses": ({"losses": {"clients": ["c1", "c2"], "losses": [1.0]}}, 422, "losses"),
    "a loss is a text": ({"losses": {"clients": ["c1"], "losses": ["x"]}}, 422, "losses.losses.0"),
}


@pytest.fixture(scope="module")
def polling(http):
    """A federation whose selector wants to see losses; no round is open."""
    return create(http, name="polling", selector="pow-d", parameters={"candidates": 8})


@pytest.mark.parametrize("case", TERMS)
def test_rounds_that_cannot_be_opened_change_nothing(http, polling, case):
    terms, status, field = TERMS[case]
    before = everything(http)
    check_problem(http.post(f"{polling}/rounds", json=terms), status, field)
    assert everything(http) == before


@pytest.mark.parametrize("sent", [None, "Bearer turnout_wrong"])
def test_requests_without_a_good_token_change_nothing(http, running, sent):
    """Whatever they would do, had they one."""
    path, chosen, _ = running
    with writing(http.app.state.store.engine) as connection:
        make_token(connection, "operator", "admin", None)
    before = everything(http)
    headers = {} if sent is None else {"Authorization": sent}
    for method, where, body in [
        ("post", "/federations", CREATE),
        ("put", f"{path}/clients", {"clients": ["a"]}),
        ("post", f"{path}/rounds", {}),
        ("post", f"{path}/rounds/1/outcomes", outcome(chosen[2])),
        ("post", f"{path}/rounds/1/close", None),
        ("delete", path, None),
    ]:
        answer = http.request(method, where, json=body, headers=headers)
        check_problem(answer, 401, "Authorization")
    assert everything(http) == before
    with writing(http.app.state.store.engine) as connection:
        connection.execute(delete(TOKEN))  # open again, for the tests that follow


def test_a_database_that_a_newer_turnout_has_changed_is_left_alone(http, running):
    """Another server on the same database was upgraded, and brought its tables up to date."""
    path, chosen, _ = running
    database = http.app.state.store.engine.url.database
    step = "UPDATE alembic_version SET version_num = ?"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(step, ["v9"])
    before = everything(http)
    for method, where, body in [
        ("get", "/ready", None),
        ("get", path, None),
        ("post", "/federations", CREATE),
        ("post", f"{path}/rounds/1/outcomes", outcome(chosen[2])),
        ("post", f"{path}/rounds/1/close", None),
    ]:
        check_problem(http.request(method, where, json=body), 503, "database")
    with pytest.raises(DatabaseError, match="'v9', and this turnout knows up to 'v3'"):
        rounds.close_round(http.app.state.store, "demo", 1)  # as a thread of the server's own does
    assert everything(http) == before
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(step, ["v3"])
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000, b"", b"null", b"1e999"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
def test_bodies_that_are_no_json(http, running, content, kind):
    before = everything(http)
    where = f"{running[0]}/rounds/1/outcomes"
    answer = http.post(where, content=content, headers={"Content-Type": kind})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert everything(http) == before


def test_what_json_cannot_store_is_refused(http, running):
    """Python writes infinity into JSON, and would read null back from the database."""
    before = everything(http)
    content = json.dumps(CREATE | {"guard": {"cap": float("inf")}})
    answer = http.post("/federations", content=content, headers={"Content-Type": JSON})
    check_problem(answer, 422, "guard.cap")
    assert everything(http) == before


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_columns_have_numbers_or_null(http, running, number):
    before = everything(http)
    for column in ("[{}]", "[[0, {}]]"):
        content = f'{{"clients": ["a"], "columns": {{"f": {column.format(number)}}}}}'
        where = f"{running[0]}/clients"
        answer = http.put(where, content=content, headers={"Content-Type": JSON})
        check_problem(answer, 422, "columns.f.0")
    assert everything(http) == before


def test_the_definition_declares_what_live_settings_declare(http):
    """Its defaults and meanings are those of the settings; ``true`` stands for the bounds."""
    made = Definition(name="x", selector="random", cohort_size=10).model_dump(mode="json")
    settings = LiveSettings().table()
    shared = made.keys() & settings.keys()
    assert len(shared) == len(made) - 3  # name, selector and parameters are of a federation only
    assert LiveSettings.of({name: made[name] for name in shared}).table() == settings
    assert {name: made[name] for name in shared if made[name] != settings[name]} == {"bounds": True}
    described = http.get("/openapi.json").json()["components"]["schemas"]
    for name in ("GuardBody", "QuorumBody"):
        assert all(about["description"] for about in described[name]["properties"].values())
    assert described["Definition"]["required"] == ["cohort_size", "name", "selector"]


def test_oversize_bodies(http, running):
    before = everything(http)
    where = f"{running[0]}/clients"
    headers = {"Content-Type": "application/json"}

    def endless():
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    announced = http.put(
        where, content=b" ", headers=headers | {"Content-Length": f"{MAX_BODY + 1}"}
    )
    check_problem(announced, 413, "body")
    check_problem(http.put(where, content=endless(), headers=headers), 413, "body")
    assert everything(http) == before


def test_random_bodies_never_fail_the_server(engine, portal, n_tries):
    """Whatever is sent, the answer is a success or a problem document, never a 500."""
    rng = random.Random(1)
    http = client_of(engine, portal)
    path = create(http)
    http.post(f"{path}/rounds")
    routes = [
        ("post", "/federations"), ("put", f"{path}/clients"), ("post", f"{path}/rounds"),
        ("post", f"{path}/rounds/0/outcomes"), ("post", f"{path}/clients/withdraw"),
        ("post", f"{path}/poll"), ("post", f"{path}/tokens"), ("put", f"{path}/state"),
    ]  # fmt: skip
    n_refused = 0
    for _ in range(n_tries(150, 20_000)):
        method, where = rng.choice(routes)
        if where.endswith("/tokens"):  # a token that is made would lock the others out
            body = odd_value(rng, 0)
        else:
            body = {key: odd_value(rng, 0) for key in rng.sample(KEYS, rng.randint(0, 4))}
            body |= rng.choice([{}, CREATE])
        content = json.dumps(body).encode()
        answer = http.request(method, where, content=content, headers={"Content-Type": JSON})
        assert answer.status_code < 500, (where, content, answer.text)
        if answer.status_code >= 400:
            n_refused += 1
            assert answer.headers["content-type"] == "application/problem+json"
    assert n_refused > 100


JSON = "application/json"
KEYS = [
    "clients", "columns", "round", "available", "losses", "outcomes", "length_s", "name",
    "selector", "parameters", "cohort_size", "policy", "seed", "bounds", "guard",
    "quorum", "limit_s", "late_s", "deadline_s", "go_on",
]  # fmt: skip
ODD = [
    None, True, False, 0, -1, 1, 10**400, 2**63, 1e308, -0.0, NAN, float("inf"), "", "e3cs", "c1",
    "\x00", "\ud800", "x" * 300, "inf", "guarded", "reported", "first-k", [], {}, "oort", "pow-d",
]  # fmt: skip


def odd_value(rng, depth):
    what = rng.random()
    if depth < 3 and what < 0.25:
        return [odd_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if depth < 3 and what < 0.5:
        keys = [*KEYS, "kind", "client", "status", "metrics", "bits", "inner", "quota", "seconds"]
        return {rng.choice(keys): odd_value(rng, depth + 1) for _ in range(rng.randint(0, 4))}
    return rng.choice(ODD)


@pytest.mark.parametrize(
    ("selector", "parameters"),
    [
        *[("fedcor", {name: 10**9}) for name in ("dimension", "samples")],
        ("nccb", {"clusters": 10**9}),
        ("tifl", {"tiers": 10_001}),
        ("guarded", {"inner": "fedcor", "inner_parameters": {"dimension": 10**9}}),
        ("mix", {"members": {"fedcor:dimension=9": 10**9}}),
    ],
)
def test_a_size_that_would_take_all_memory_is_refused_before_it_is_tried(
    http, monkeypatch, selector, parameters
):
    """Making the arrays took minutes and gigabytes before they were found too large."""

    def reset(*_):
        raise AssertionError("it was tried")

    monkeypatch.setattr("turnout.core.selector.Selector.clone", reset)
    body = CREATE | {"selector": selector, "parameters": parameters}
    answer = http.post("/federations", json=body)
    check_problem(answer, 422, "parameters")
    assert "at most 10000 over HTTP" in answer.json()["detail"]
