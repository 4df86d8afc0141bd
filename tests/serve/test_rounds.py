"""Rounds over HTTP: chosen once, reported safely, closed once."""

from tests.serve.conftest import create


def opened(http, path, **more):
    answer = http.post(f"{path}/rounds", **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def outcomes(clients, **more):
    return {"outcomes": [{"client": client, "seconds": 1.0, **more} for client in clients]}


def test_a_round_from_choice_to_end(http, demo):
    chosen = opened(http, demo)
    assert chosen["round"] == 0
    assert chosen["state"] == "open"
    assert len(chosen["clients"]) == len(chosen["probability"]) == 5
    assert chosen["probability"] == [0.5] * 5
    first = http.post(f"{demo}/rounds/0/outcomes", json=outcomes(chosen["clients"][:4])).json()
    assert (first["new"], first["missing"], first["state"]) == (4, 1, "open")
    last = http.post(f"{demo}/rounds/0/outcomes", json=outcomes(chosen["clients"][4:])).json()
    assert (last["new"], last["missing"], last["state"]) == (1, 0, "closed")
    ended = http.get(f"{demo}/rounds/0").json()
    assert ended["result"]["counts"] == {"completed": 5, "late": 0, "failed": 0, "silent": 0}
    assert opened(http, demo)["round"] == 1
