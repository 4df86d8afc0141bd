"""Shadows over HTTP: they choose beside the selector in charge, and change nothing."""

import json
import random

import pytest
from sqlalchemy import select, update

from tests.serve.conftest import client_of, create
from tests.serve.test_replay import play, state_of
from turnout.serve import store as store_module
from turnout.serve.database import FEDERATION, writing
from turnout.serve.store import Store

SHADOW = ["pace", "e3cs:quota=0.5", "oort"]
LABELS = ["pace", "e3cs quota=0.5", "oort"]


def rounds_of(http, path):
    return http.get(f"{path}/rounds?limit=1000").json()["rounds"]


def without_times(rounds):
    return [{k: v for k, v in each.items() if not k.endswith("_at")} for each in rounds]


def test_the_rounds_are_those_of_a_federation_without_shadows(http):
    paths = [create(http, name, shadow=shadow) for name, shadow in (("a", SHADOW), ("b", []))]
    for path in paths:
        for t in range(6):
            clients = http.post(f"{path}/rounds").json()["clients"]
            body = [{"client": c, "seconds": 1.0, "metrics": {"loss": 0.5}} for c in clients]
            http.post(f"{path}/rounds/{t}/outcomes", json={"outcomes": body})
    with_shadows, without = (without_times(rounds_of(http, path)) for path in paths)
    assert with_shadows == without
    shadows = http.get(f"{paths[0]}/shadows").json()
    assert [each["selector"] for each in shadows["shadows"]] == LABELS
    assert all(each["is_on"] and each["rounds"] == 6 for each in shadows["shadows"])
    assert 0.0 < shadows["shadows"][1]["agreement"] < 1.0
    assert "num_samples" in shadows["columns"]
    assert "loss_rms" in shadows["metrics"]
    assert http.get(f"{paths[1]}/shadows").json()["shadows"] == []


@pytest.mark.parametrize("saves", [False, True])
def test_shadows_survive_a_kill_and_a_snapshot(http, engine, saves, monkeypatch):
    monkeypatch.setattr(store_module, "_LEAST_S", 0.0 if saves else 1e9)
    monkeypatch.setattr(store_module, "_WORTH", 0.0)
    path = create(http, shadow=SHADOW)
    rng = random.Random(3)
    play(http, path, rng, 30)
    http.app.state.store.snapshots.wait()
    assert state_of(Store(engine)) == state_of(http.app.state.store)  # bytes, shadows included
    later = client_of(engine, http.portal)  # the first is gone
    play(later, path, rng, 20)
    later.app.state.store.snapshots.wait()
    assert state_of(Store(engine)) == state_of(later.app.state.store)
    n_rounds = len(rounds_of(later, path))
    found = later.get(f"{path}/shadows").json()["shadows"]
    assert [each["rounds"] for each in found] == [n_rounds] * len(SHADOW)


def test_shadows_move_with_the_state(http):
    path = create(http, shadow=SHADOW)
    play(http, path, random.Random(5), 30)
    state = http.get(f"{path}/state").content
    copy = create(http, "copy", n_clients=0, shadow=SHADOW)
    assert http.put(f"{copy}/state", content=state).status_code == 200
    assert http.get(f"{copy}/shadows").json() == http.get(f"{path}/shadows").json()
    other = create(http, "other", n_clients=0, shadow=["random"])  # it begins now
    assert http.put(f"{other}/state", content=state).status_code == 200
    assert [x["rounds"] for x in http.get(f"{other}/shadows").json()["shadows"]] == [0]


def test_a_shadow_that_raises_ends_no_round(http, demo, monkeypatch):
    path = create(http, "odd", shadow=["random", "e3cs"])
    store = http.app.state.store
    with store.read("odd") as tx:
        broken = tx.federation.session.shadows._all[0].selector
    monkeypatch.setattr(broken, "select", lambda *_: 1 / 0)
    clients = http.post(f"{path}/rounds").json()["clients"]
    body = {"outcomes": [{"client": c, "seconds": 1.0} for c in clients]}
    assert http.post(f"{path}/rounds/0/outcomes", json=body).json()["state"] == "closed"
    assert [x["is_on"] for x in http.get(f"{path}/shadows").json()["shadows"]] == [False, True]


@pytest.mark.parametrize(
    ("shadow", "told"),
    [
        (["pcae"], "shadow must be a name, got 'pcae'. Did you mean 'pace'?"),
        (["tests.live.test_shadows:Breaks"], "shadow must be a name"),
        (["mine=os:system"], "shadow must be a name"),
        (["pow-d"], "which a shadow cannot do"),
        (["pace", "pace"], "occurs twice"),
        (["e3cs:eta=abc"], "eta"),
        (["random", "e3cs:quota=2"], "quota"),
        (["e3cs:eta=[.1,.2,.3,.4,.5],quota=[.1,.2,.3]"], "at most 8 selectors"),
        (["hics-fl:n_classes=1000000000"], "shadow"),
        (["e3cs:quota"], "shadow"),
        ("pace", "shadow"),
        (["pace"] * 9, "shadow"),
        ([""], "shadow"),
    ],
)
def test_shadows_that_cannot_be_are_refused(http, shadow, told):
    body = {"name": "x", "selector": "random", "cohort_size": 2, "shadow": shadow}
    refused = http.post("/federations", json=body)
    assert refused.status_code == 422, refused.text
    assert told in refused.json()["detail"]
    assert refused.json()["field"].startswith("shadow")
    assert http.get("/federations").json()["federations"] == []


def test_a_federation_of_an_earlier_version_has_no_shadows(http, demo, engine):
    with writing(engine) as connection:
        known = json.loads(connection.execute(select(FEDERATION.c.definition)).scalar())
        assert known.pop("shadow") == []
        connection.execute(update(FEDERATION).values(definition=json.dumps(known)))
    body = {"name": "demo", "selector": "e3cs", "cohort_size": 5, "seed": 1}
    again = client_of(engine, http.portal).post("/federations", json=body)
    assert again.status_code == 200
    assert again.json()["shadow"] == []
