"""Rounds over HTTP: chosen once, reported safely, closed once."""

import time

import numpy as np
import pytest
from anyio import to_thread
from fastapi.testclient import TestClient
from sqlalchemy import event

import turnout
from tests.serve.conftest import LOCAL, client_of, create
from turnout.serve import create_app, rounds, store
from turnout.serve.auth import make_token
from turnout.serve.database import writing
from turnout.serve.schemas import CountsDocument, ProblemDocument, ReportDocument, RoundDocument


def opened(http, path, **more):
    answer = http.post(f"{path}/rounds", **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def outcomes(clients, **more):
    return {"outcomes": [{"client": client, "seconds": 1.0, **more} for client in clients]}


def report(http, path, t, clients, **more):
    answer = http.post(f"{path}/rounds/{t}/outcomes", json=outcomes(clients, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def at(monkeypatch):
    """The time, which stands still unless a test moves it."""
    now = [1.8e9]
    monkeypatch.setattr(store.time, "time", lambda: now[0])
    return now


def test_a_round_from_choice_to_end(http, demo):
    chosen = opened(http, demo)
    assert (chosen["round"], chosen["state"]) == (0, "open")
    assert chosen["probability"] == [0.5] * 5
    first = report(http, demo, 0, chosen["clients"][:4])
    assert (first["new"], first["missing"], first["state"]) == (4, 1, "open")
    assert http.get(f"{demo}/rounds/0").json()["reported"] == chosen["clients"][:4]
    last = report(http, demo, 0, chosen["clients"][4:])
    assert (last["new"], last["missing"], last["state"]) == (1, 0, "closed")
    ended = http.get(f"{demo}/rounds/0").json()
    assert ended["result"]["counts"] == {"completed": 5, "late": 0, "failed": 0, "silent": 0}
    assert ended["result"]["length_s"] == 1.0
    assert opened(http, demo)["round"] == 1


def test_a_choice_takes_few_queries_and_threads(http, demo, engine, monkeypatch):
    """These are most of what a choice costs beside the selector, see ``docs/speed.md``."""
    with writing(engine) as connection:
        token = make_token(connection, "trainer", "select", None)
    queries, threads, run = [], [], to_thread.run_sync
    event.listen(engine, "before_cursor_execute", lambda *told: queries.append(told[2].split()[0]))
    monkeypatch.setattr(
        to_thread, "run_sync", lambda f, *a, **k: threads.append(f) or run(f, *a, **k)
    )
    answer = http.post(f"{demo}/rounds", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 201
    assert len(threads) == 2  # one knows the token, and one chooses and writes the response
    assert queries == [
        *("BEGIN", "SELECT"),  # the token
        *("BEGIN", "SELECT", "INSERT", "INSERT", "INSERT", "UPDATE"),  # audit, event, round
    ]


def test_a_choice_reads_only_the_columns_that_the_selector_wants(http, demo):
    """There may be 64 of a million clients."""
    (federation,) = http.app.state.store._federations.values()
    federation.members.columns._values["num_samples"] = np.array([object()] * 10)  # cannot be read
    assert http.post(f"{demo}/rounds").status_code == 201


def test_the_choice_is_that_of_the_selector(http, demo):
    """With the same seed and the same outcomes, the server chooses as the library does."""
    local = turnout.make("e3cs")
    local.prepare(10, seed=1)
    for t in range(8):
        ctx = turnout.RoundContext(t, 5, np.ones(10, dtype=bool), 3600.0)
        selection = local.select(ctx, turnout.stream(1, turnout.Purpose.SELECT, t))
        chosen = opened(http, demo)
        assert chosen["clients"] == [f"c{i}" for i in selection.clients]
        assert chosen["probability"] == selection.probability.tolist()
        failed = [t % 2 == 1 and i % 3 == 0 for i in selection.clients]
        for client, has_failed in zip(chosen["clients"], failed, strict=True):
            report(http, demo, t, [client], status="failed" if has_failed else "completed")
        status = np.where(failed, turnout.Status.FAILED, turnout.Status.COMPLETED)
        local.observe(selection, turnout.Outcome(status, np.ones(5)))


@pytest.mark.parametrize("more", [{"headers": {"Idempotency-Key": "a"}}, {"json": {"round": 0}}])
def test_a_repeated_request_gets_the_same_round(http, demo, more):
    chosen = opened(http, demo, **more)
    again = http.post(f"{demo}/rounds", **more)
    assert (again.status_code, again.json()) == (200, chosen)
    report(http, demo, 0, chosen["clients"])
    opened(http, demo)
    later = http.post(f"{demo}/rounds", **more)  # even when the next one is open
    assert (later.status_code, later.json()["clients"]) == (200, chosen["clients"])
    assert later.json()["state"] == "closed"
    assert http.get(demo).json()["n_rounds"] == 1


def test_without_a_key_the_open_round_is_returned(http, demo):
    chosen = opened(http, demo)
    again = http.post(f"{demo}/rounds")
    assert (again.status_code, again.json()) == (200, chosen)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"headers": {"Idempotency-Key": "b"}}, "round-open"),
        ({"json": {"round": 1}}, "round-open"),
        ({"headers": {"Idempotency-Key": "a"}, "json": {"round": 1}}, "key-reused"),
    ],
)
def test_another_round_is_not_opened_beside_the_open_one(http, demo, more, kind):
    opened(http, demo, headers={"Idempotency-Key": "a"})
    answer = http.post(f"{demo}/rounds", **more)
    assert (answer.status_code, answer.json()["type"]) == (409, f"urn:turnout:{kind}")


def test_reports_may_be_repeated_but_not_changed(http, demo):
    clients = opened(http, demo)["clients"]
    report(http, demo, 0, clients[:2])
    again = report(http, demo, 0, clients[:3])
    assert (again["new"], again["repeated"], again["missing"]) == (1, 2, 2)
    changed = http.post(f"{demo}/rounds/0/outcomes", json=outcomes(clients[:1], status="failed"))
    assert (changed.status_code, changed.json()["field"]) == (409, "outcomes")
    assert http.get(f"{demo}/rounds/0").json()["reported"] == clients[:3]


def test_late_reports_free_a_client_and_count_no_more(http, demo):
    clients = opened(http, demo)["clients"]
    report(http, demo, 0, clients[1:])
    ended = http.post(f"{demo}/rounds/0/close").json()
    assert ended["result"]["status"] == ["late"] + ["completed"] * 4
    assert http.get(demo).json()["n_free"] == 9  # the late one is still working
    late = report(http, demo, 0, clients[:1])
    assert (late["new"], late["counted"], late["missing"]) == (1, 0, 0)
    assert report(http, demo, 0, clients)["repeated"] == 5
    assert http.get(demo).json()["n_free"] == 10
    changed = http.post(f"{demo}/rounds/0/outcomes", json=outcomes(clients[:1], status="failed"))
    assert changed.status_code == 409
    assert http.post(f"{demo}/rounds/0/close").json() == ended


def test_a_round_ends_at_its_deadline(http, at):
    path = create(http, policy={"kind": "fixed-deadline", "seconds": 60.0})
    chosen = opened(http, path)
    assert chosen["closes_at"] == at[0] + 60.0
    report(http, path, 0, chosen["clients"][:3])
    at[0] += 59.0
    assert rounds.close_overdue(http.app.state.store, at[0]) == 0
    at[0] += 2.0
    assert rounds.close_overdue(http.app.state.store, at[0]) == 1
    ended = http.get(f"{path}/rounds/0").json()
    assert ended["result"]["counts"] == {"completed": 3, "late": 2, "failed": 0, "silent": 0}
    assert ended["result"]["length_s"] == 60.0


def test_the_seconds_of_a_client_judge_only_that_client(http, at):
    path = create(http, policy={"kind": "fixed-deadline", "seconds": 300.0})
    chosen = opened(http, path)["clients"]
    body = outcomes(chosen[:1])
    body["outcomes"][0]["seconds"] = 301.0
    first = http.post(f"{path}/rounds/0/outcomes", json=body).json()
    assert (first["new"], first["missing"], first["state"]) == (1, 4, "open")
    assert rounds.close_overdue(http.app.state.store, at[0]) == 0
    at[0] += 299.0
    assert report(http, path, 0, chosen[1:4])["state"] == "open"
    at[0] += 1.0  # the server's clock ends the round
    assert rounds.close_overdue(http.app.state.store, at[0]) == 1
    ended = http.get(f"{path}/rounds/0").json()["result"]
    assert ended["status"] == ["late"] + ["completed"] * 3 + ["late"]
    assert not ended["void"]


def test_first_k_waits_for_an_answer_that_is_in_time(http, at):
    path = create(http, policy={"kind": "first-k", "count": 2, "seconds": 300.0})
    chosen = opened(http, path)["clients"]
    late = outcomes(chosen[:1])
    late["outcomes"][0]["seconds"] = 301.0
    assert http.post(f"{path}/rounds/0/outcomes", json=late).json()["state"] == "open"
    assert report(http, path, 0, chosen[1:2])["state"] == "open"
    assert report(http, path, 0, chosen[2:3])["state"] == "closed"
    ended = http.get(f"{path}/rounds/0").json()["result"]
    assert ended["status"] == ["late", "completed", "completed", "late", "late"]


def test_the_next_round_closes_one_whose_time_is_over(http, at):
    path = create(http, policy={"kind": "fixed-deadline", "seconds": 60.0})
    chosen = opened(http, path)
    at[0] += 61.0
    following = opened(http, path)
    assert following["round"] == 1
    assert following["n_free"] == 5  # the others are late
    assert not set(following["clients"]) & set(chosen["clients"])


def test_first_k_ends_with_enough_answers(http):
    path = create(http, policy={"kind": "over-select", "factor": 1.6, "inner": "first-k"})
    chosen = opened(http, path)
    assert len(chosen["clients"]) == 8
    assert report(http, path, 0, chosen["clients"][:4])["state"] == "open"
    assert report(http, path, 0, chosen["clients"][4:5])["state"] == "closed"


def test_a_withdrawn_client_is_silent_and_chosen_no_more(http, demo):
    clients = opened(http, demo)["clients"]
    answer = http.post(f"{demo}/clients/withdraw", json={"clients": clients[:1]})
    assert answer.json()["n_present"] == 9
    report(http, demo, 0, clients[1:])
    ended = http.post(f"{demo}/rounds/0/close").json()
    assert ended["result"]["status"][0] == "silent"
    for t in range(1, 12):
        chosen = opened(http, demo)["clients"]
        assert clients[0] not in chosen
        report(http, demo, t, chosen)
    http.put(f"{demo}/clients", json={"clients": clients[:1]})
    assert http.get(demo).json()["n_present"] == 10
    assert http.get(demo).json()["n_clients"] == 10


def test_quorum(http):
    quorum = {"min_answers": 2, "min_free": 4, "max_empty_rounds": 2}
    path = create(http, n_clients=5, quorum=quorum)
    for t in range(2):
        clients = opened(http, path)["clients"]
        report(http, path, t, clients[:1])
        assert http.post(f"{path}/rounds/{t}/close").json()["result"]["void"]
        report(http, path, t, clients)
    stopped = http.post(f"{path}/rounds")
    assert (stopped.status_code, stopped.json()["field"]) == (409, "quorum")
    assert opened(http, path, json={"go_on": True})["round"] == 2
    clients = http.get(f"{path}/rounds/2").json()["clients"]
    report(http, path, 2, clients)
    http.post(f"{path}/clients/withdraw", json={"clients": clients[:2]})
    too_few = http.post(f"{path}/rounds")
    assert (too_few.status_code, too_few.json()["type"]) == (409, "urn:turnout:too-few-free")
    assert too_few.headers["Retry-After"] == "1"


def test_who_is_available_can_be_told(http, demo):
    chosen = opened(http, demo, json={"available": ["c1", "c3", "c5"]})
    assert chosen["clients"] == ["c1", "c3", "c5"]
    report(http, demo, 0, chosen["clients"])
    bits = "gEA="  # 1000 0000 0100 0000: the first and the last
    assert opened(http, demo, json={"available": {"bits": bits}})["clients"] == ["c0", "c9"]


def test_a_selector_that_polls(http):
    path = create(http, selector="pow-d", parameters={"candidates": 8}, bounds=False)
    early = http.post(f"{path}/rounds")
    assert (early.status_code, early.json()["type"]) == (409, "urn:turnout:poll-first")
    polled = http.post(f"{path}/poll").json()["clients"]
    assert len(polled) == 8
    wrong = {"losses": {"clients": polled[1:], "losses": [1.0] * 7}}
    assert http.post(f"{path}/rounds", json=wrong).status_code == 422
    losses = [float(i) for i in range(7)] + [None]
    chosen = opened(http, path, json={"losses": {"clients": polled, "losses": losses}})
    assert set(chosen["clients"]) == set(polled[2:7])


def test_a_poll_leaves_no_trace(http, demo):
    before = http.get(demo).json()
    assert http.post(f"{demo}/poll", json={"available": ["c1", "c2"]}).json()["clients"] == []
    assert http.get(demo).json() == before


def test_records(http, demo):
    for t in range(6):
        report(http, demo, t, opened(http, demo)["clients"])
    latest = http.get(f"{demo}/rounds", params={"limit": 2, "before": 5}).json()["rounds"]
    assert [one["round"] for one in latest] == [4, 3]
    counts = http.get(f"{demo}/clients").json()
    assert sum(counts["chosen"]) == sum(counts["completed"]) == 30
    for offset, limit in ((0, 4), (4, 4), (8, 4), (10, 4)):
        part = http.get(f"{demo}/clients", params={"offset": offset, "limit": limit}).json()
        assert part == {key: all_[offset : offset + limit] for key, all_ in counts.items()}
    rest = http.get(f"{demo}/clients?offset=7").json()
    assert rest["clients"] == ["c7", "c8", "c9"]
    fair = http.get(f"{demo}/fairness").json()
    assert fair["choices"] == 30
    assert fair["deciles"][0] == min(counts["chosen"])
    assert dict(fair["most"])[fair["most"][0][0]] == max(counts["chosen"])
    assert 0.5 < fair["jain"] <= 1.0


def test_a_reason_stays_in_its_line_of_the_log(http, caplog):
    """Otherwise a client could write lines of its own."""
    path = create(http, n_clients=0, cohort_size=1)
    http.put(f"{path}/clients", json={"clients": ["a\nb"]})
    forged = "broken\r\n2026-01-01 ERROR turnout.serve: all tokens revoked\x1b[2J\u2028"
    for t in range(5):  # the last failures raise an alert, too
        (client,) = opened(http, path)["clients"]
        report(http, path, t, [client], status="failed", reason=forged)
    lines = [record.getMessage() for record in caplog.records]
    assert any("a\\nb: broken\\r\\n2026-01-01" in line for line in lines)
    assert any(line.startswith("alert: ") and "broken" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    stored = http.get(f"{path}/rounds/0").json()["result"]["reasons"]
    assert stored == {"a\nb": forged}


def test_metrics(http, demo):
    report(http, demo, 0, opened(http, demo)["clients"])
    clients = opened(http, demo)["clients"]
    report(http, demo, 1, clients[:1], status="failed")
    report(http, demo, 1, clients[1:])
    text = http.get("/metrics").text
    for line in (
        'turnout_rounds_total{run="demo"} 2.0',
        'turnout_chosen_total{run="demo",status="completed"} 9.0',
        'turnout_chosen_total{run="demo",status="failed"} 1.0',
        'turnout_clients{run="demo",state="known"} 10.0',
    ):
        assert line in text.splitlines()
    http.delete(demo)
    assert "demo" not in http.get("/metrics").text


def test_metrics_of_a_server_that_has_just_started(http, demo, engine):
    """It shows every federation before the first request to it, and counts from now on."""
    report(http, demo, 0, opened(http, demo)["clients"])
    create(http, name="new", n_clients=0)
    later = client_of(engine, http.portal)
    lines = later.get("/metrics").text.splitlines()
    for line in (
        'turnout_rounds_total{run="demo"} 0.0',
        'turnout_rounds_total{run="new"} 0.0',
        'turnout_round{run="demo"} 1.0',
        'turnout_clients{run="demo",state="free"} 10.0',
        'turnout_clients{run="new",state="known"} 0.0',
    ):
        assert line in lines
    report(later, demo, 1, opened(later, demo)["clients"])
    for server in (http, later):  # what another server has done is counted, too
        number = {http: "2.0", later: "1.0"}[server]
        text = server.get("/metrics").text
        assert f'turnout_rounds_total{{run="demo"}} {number}' in text.splitlines()


def test_a_running_server_closes_rounds_by_itself(engine):
    with TestClient(create_app(engine, no_auth=True), **LOCAL) as http:
        path = create(http, limit_s=0.05)
        opened(http, path)
        for _ in range(600):
            if http.get(f"{path}/rounds/0").json()["state"] == "closed":
                break
            time.sleep(0.1)
        assert http.get(f"{path}/rounds/0").json()["result"]["counts"]["late"] == 5


def test_answers_are_as_the_api_description_says(http, demo):
    description = http.get("/openapi.json").json()
    paths = description["paths"]
    assert "/federations/{name}/rounds/{number}/outcomes" in paths
    for operations in paths.values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status in ("401", "404", "409", "422"):
                    assert list(answer["content"]) == ["application/problem+json"]
    refused = http.get("/federations/none").json()
    assert refused == ProblemDocument.model_validate(refused).model_dump()
    RoundDocument.model_validate(opened(http, demo))
    clients = http.get(f"{demo}/rounds/0").json()["clients"]
    ReportDocument.model_validate(report(http, demo, 0, clients))
    RoundDocument.model_validate(http.get(f"{demo}/rounds/0").json())
    CountsDocument.model_validate(http.get(demo).json())
