"""Receipts over HTTP."""

import json

import pytest
from fastapi.testclient import TestClient

from tests.live.test_receipts import key as key
from tests.serve.conftest import LOCAL, create
from tests.serve.test_rounds import opened, outcomes, report
from turnout.live.receipts import check_receipt
from turnout.serve import create_app, rounds


@pytest.fixture
def signing(engine, portal, key):
    client = TestClient(create_app(engine, no_auth=True, receipt_key=key), **LOCAL)
    client.portal = portal
    return client


def receipts_of(http, path, client, **more):
    answer = http.get(f"{path}/receipts/{client}", params=more)
    assert answer.status_code == 200, answer.text
    return answer.json()["receipts"]


def test_every_counted_answer_has_a_receipt_and_no_other_has_one(signing):
    path = create(signing)
    public = signing.get("/receipts.pem").text
    counted = {f"c{i}": [] for i in range(10)}
    asked = {f"c{i}": [] for i in range(10)}
    for t in range(4):
        chosen = opened(signing, path)["clients"]
        report(signing, path, t, chosen[:1], status="failed", reason="no memory")
        report(signing, path, t, chosen[1:4], metrics={"loss": 0.5 + t})
        signing.post(f"{path}/rounds/{t}/close")
        report(signing, path, t, chosen[4:])  # too late
        for client in chosen:
            asked[client].append(t)
        for client in chosen[1:4]:
            counted[client].append(t)
    for client, rounds_counted in counted.items():
        told = [check_receipt(one, public) for one in receipts_of(signing, path, client)]
        assert [one["round"] for one in told] == asked[client][::-1]
        assert [one["round"] for one in told if one["counted"]] == rounds_counted[::-1]
        for one in told:
            assert (one["run"], one["client"]) == ("demo", client)
            ended = signing.get(f"{path}/rounds/{one['round']}").json()
            assert one["closed_at"] == pytest.approx(ended["closed_at"], abs=1e-3)
            assert one["status"] == ended["result"]["status"][ended["clients"].index(client)]
            if one["counted"]:  # what was reported, in full
                assert one["report"]["metrics"] == {"loss": 0.5 + one["round"]}
                assert one["seconds"] == one["report"]["seconds"] == 1.0
    opened(signing, path)  # an open round has counted nothing yet
    assert {one["round"] for c in counted for one in receipts_of(signing, path, c)} <= set(range(4))


def test_pages_ids_and_void_rounds(signing):
    path = create(signing, quorum={"min_answers": 2}, cohort_size=2, n_clients=0)
    clients = [7, "a/b", "-3x"]
    assert signing.put(f"{path}/clients", json={"clients": clients}).status_code == 200
    chosen = []
    for t in range(9):
        chosen.append(opened(signing, path)["clients"])
        signing.post(f"{path}/rounds/{t}/outcomes", json=outcomes(chosen[-1][:1]))
        signing.post(f"{path}/rounds/{t}/close")
    for client in clients:
        numbers = [t for t, one in enumerate(chosen) if client in one][::-1]
        told = receipts_of(signing, path, client)
        assert [one["round"] for one in told] == numbers
        assert {one["client"] for one in told} <= {client}
        assert not any('"counted":true' in one["statement"] for one in told)  # all void
        first = receipts_of(signing, path, client, limit=1)
        assert first == told[:1]
        if told:
            assert receipts_of(signing, path, client, before=told[0]["round"]) == told[1:]
    for unknown in ("8", "nobody", "-"):
        answer = signing.get(f"{path}/receipts/{unknown}")
        assert (answer.status_code, answer.json()["title"]) == (404, "Unknown client")
    assert signing.get(f"{path}/receipts/a%00b").status_code == 422


def test_a_federation_that_is_made_again_does_not_contradict_the_deleted_one(signing):
    told = []
    for status in ("completed", "failed"):
        path = create(signing)
        client = opened(signing, path)["clients"][0]
        report(signing, path, 0, [client], status=status)
        signing.post(f"{path}/rounds/0/close")
        answers = [receipts_of(signing, path, client) for _ in range(2)]
        assert answers[0] == answers[1]
        told.append(check_receipt(answers[0][0], signing.get("/receipts.pem").text))
        assert signing.delete(path).status_code < 300
    assert [one["run"] for one in told] == ["demo", "demo"]
    first, second = (one["run_began_at"] for one in told)
    assert first < told[0]["closed_at"] < second < told[1]["closed_at"]


def test_without_a_key_receipts_are_not_signed(http, demo):
    report(http, demo, 0, chosen := opened(http, demo)["clients"])
    (receipt,) = receipts_of(http, demo, chosen[0])
    assert receipt["signature"] is None
    answer = http.get("/receipts.pem")
    assert answer.status_code == 404
    assert "--receipt-key" in answer.json()["fix"]


def test_receipts_go_with_the_records_of_their_round(signing):
    path = create(signing)
    chosen = opened(signing, path)["clients"]
    report(signing, path, 0, chosen)
    rounds.forget_old(signing.app.state.store, 4e9)
    assert receipts_of(signing, path, chosen[0]) == []


def test_a_client_that_ends_two_works_in_one_round_has_a_receipt_for_each(signing):
    schedule = {"kind": "buffered", "size": 2, "concurrency": 2}
    path = create(signing, n_clients=2, schedule=schedule, cohort_size=2, selector="random")

    def work(choice, client, **outcome):
        signing.post(f"{path}/places", json={"choice": choice}).raise_for_status()
        body = {"outcomes": [{"client": client, "seconds": 1.0} | outcome]}
        answer = signing.post(f"{path}/places/{choice}/outcomes", json=body)
        return answer.raise_for_status().json()["closed"]

    assert work(0, "c0", status="failed", reason="no memory") == []
    assert work(1, "c0") == []
    assert work(2, "c0") == [0]
    told = [json.loads(one["statement"]) for one in receipts_of(signing, path, "c0")]
    assert [one["status"] for one in told] == ["failed", "completed", "completed"]
