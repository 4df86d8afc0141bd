"""Limits on participation over HTTP."""

from itertools import pairwise

from tests.serve.conftest import create
from turnout.serve.federation import LiveFederation
from turnout.serve.schemas import Definition


def test_a_server_keeps_the_limits_and_refuses_to_start(http):
    guard = {"floor": 0.5, "cap": 4, "min_gap": 3, "max_times": 4}
    path = create(http, "few", n_clients=5, cohort_size=2, guard=guard)
    refused = http.post(f"{path}/rounds")
    assert refused.status_code == 422, refused.text
    assert "n_clients at least 6" in refused.json()["detail"]
    http.put(f"{path}/clients", json={"clients": [f"c{i}" for i in range(8)]})
    rounds = []
    for t in range(9):
        clients = http.post(f"{path}/rounds").json()["clients"]
        rounds.append(clients)
        outcomes = [{"client": client, "status": "completed", "seconds": 1} for client in clients]
        http.post(f"{path}/rounds/{t}/outcomes", json={"outcomes": outcomes})
        http.post(f"{path}/rounds/{t}/close")
    assert sum(map(len, rounds)) > 12
    for client in {c for clients in rounds for c in clients}:
        mine = [t for t, clients in enumerate(rounds) if client in clients]
        assert len(mine) <= 4
        assert all(later - earlier >= 3 for earlier, later in pairwise(mine))


def test_a_federation_without_limits_is_the_same_to_older_snapshots():
    body = {"name": "x", "selector": "random", "cohort_size": 2, "guard": {"floor": 0.3, "cap": 2}}
    assert LiveFederation(Definition(**body))._identity["guard"] == {"floor": 0.3, "cap": 2.0}
    body["guard"]["min_gap"] = 2
    assert LiveFederation(Definition(**body))._identity["guard"]["min_gap"] == 2
