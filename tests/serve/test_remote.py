"""``turnout.Remote``: a federation of a server in the place of a selector chooses the same."""

import sys

import numpy as np
import pytest

import turnout
from tests.serve.conftest import create
from turnout.core.errors import MissingExtra
from turnout.results.callbacks import Callback
from turnout.serve import client as following
from turnout.serve.client import RemoteError, ServerConnection, follow
from turnout.worlds import FirstK, FixedDeadline, e3cs_world, rbcs_f_world

#: Selectors and what they are given: draws, rankings, polls, queues, contexts, repeated draws.
SELECTORS = {
    "e3cs": {"quota": turnout.StepAfter(3, before=0.0, after=0.5)},
    "oort": {},
    "pace": {},
    "pow-d": {"candidates": 12},
    "rbcs-f": {"rate": 0.05},
    "fedcs": {},
    "data-weighted": {},
    "guarded": {"inner": "ucb-cs"},
}


@pytest.fixture
def remote(http):
    """Makes remotes that speak to the server in this process."""

    def made(**parameters):
        remote = turnout.Remote(url="http://127.0.0.1:8717", federation="sim", **parameters)
        remote._server = ServerConnection(remote.url, None, 0.0)
        remote._server.client = http
        return remote

    return made


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("selector", SELECTORS)
def test_a_simulation_chooses_the_same(remote, selector):
    parameters = SELECTORS[selector]
    world = rbcs_f_world(30, seed=4) if selector == "rbcs-f" else e3cs_world(30, seed=4)
    policy = FirstK(share=0.8, seconds=40.0) if selector == "oort" else FixedDeadline(30.0)
    settings = {"cohort_size": 6, "n_rounds": 12, "policy": policy}
    local = turnout.simulate(turnout.make(selector, **parameters), world, **settings)
    away = turnout.simulate(
        remote(selector=selector, selector_parameters=parameters), world, **settings
    )
    np.testing.assert_array_equal(away.clients, local.clients)
    np.testing.assert_array_equal(away.status, local.status)
    np.testing.assert_allclose(away.probability, local.probability, equal_nan=True)
    assert away.n_rounds == 12


def test_rounds_without_anybody(remote):
    one = remote(selector="random")
    one.prepare(5, seed=3)
    nobody = turnout.RoundContext(0, 2, np.zeros(5, dtype=bool))
    rng = turnout.stream(3, turnout.Purpose.SELECT)
    selection = one.select(nobody, rng)
    assert selection.clients.size == 0
    one.observe(selection, turnout.Outcome([], []))
    everyone = turnout.RoundContext(1, 2, np.ones(5, dtype=bool))
    chosen = one.select(everyone, rng)
    assert one.select(everyone, rng).clients.tolist() == chosen.clients.tolist()  # the same again
    one.observe(chosen, turnout.Outcome([0, 3], [1.0, np.nan]))
    one.grow(8)
    late = turnout.RoundContext(2, 8, np.ones(8, dtype=bool))
    assert one.select(late, rng).clients.tolist() == list(range(8))


def test_a_federation_that_exists_is_used(http, remote):
    create(http, name="sim", n_clients=0, policy="reported", selector="ucb-cs", bounds=False)
    one = remote()
    assert one.needs_columns == turnout.make("ucb-cs").needs_columns
    one.reset(4)
    with pytest.raises(RemoteError, match=r"no clients, got 'reported' and 4.*replace=True"):
        remote().reset(4)
    remote(selector="random", replace=True).reset(3)
    assert http.get("/federations/sim").json()["n_clients"] == 3


def test_what_the_server_refuses_is_told(http, remote):
    with pytest.raises(RemoteError, match="selector must be a name") as error:
        remote(selector="nothing").reset(3)
    assert error.value.status == 422
    one = remote(selector="random")
    one.reset(3)
    with pytest.raises(RemoteError, match="round must be 0, which comes next, got 4") as error:
        one.select(turnout.RoundContext(4, 1, np.ones(3, dtype=bool)), np.random.default_rng(0))
    assert error.value.status == 409


def test_a_server_that_is_not_there(monkeypatch):
    away = turnout.Remote(url="http://127.0.0.1:1", federation="x", selector="random", patience_s=0)
    with pytest.raises(RemoteError, match=r"does not respond.*is the server running"):
        away.reset(3)
    secret = turnout.Remote(url="http://127.0.0.1:1", federation="x", token="turnout_secret")
    assert "secret" not in repr(secret)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnout\[remote\]'"):
        secret.reset(3)


class Notes(Callback):
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def start(self, settings):
        self.told.append(dict(settings))

    def round(self, round, values):
        self.told.append((round, dict(values)))

    def end(self):
        self.told.append("end")


@pytest.fixture
def followed(http, monkeypatch):
    """Lets ``follow`` speak to the server in this process."""

    def connected(url, token, patience_s):
        connection = ServerConnection(url, token, 0.0)
        connection.client = http
        return connection

    monkeypatch.setattr(following, "ServerConnection", connected)


def test_trackers_follow_the_rounds_of_a_server(http, demo, followed, monkeypatch):
    def play(t):
        clients = http.post(f"{demo}/rounds").json()["clients"]
        outcomes = [{"client": client, "seconds": 2.0} for client in clients]
        outcomes[0]["status"] = "failed"
        http.post(f"{demo}/rounds/{t}/outcomes", json={"outcomes": outcomes})

    play(0)
    http.post(f"{demo}/rounds")  # open, and closed while the trackers wait
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 1:
            http.post(f"{demo}/rounds/1/close")
        elif len(waits) == 2:
            play(2)

    monkeypatch.setattr(following.time, "sleep", sleep)
    notes = Notes()
    assert follow("http://127.0.0.1:8717", "demo", [notes], n_rounds=3, poll_s=0.5) == 3
    assert waits == [0.5, 0.5]
    about, first, second, third, end = notes.told
    assert (about["name"], about["selector"], end) == ("demo", "e3cs", "end")
    assert [first[0], second[0], third[0]] == [0, 1, 2]
    assert first[1] == {
        "completed": 4.0, "late": 0.0, "failed": 1.0, "silent": 0.0, "chosen": 5.0, "free": 10.0,
        "train_s": 2.0, "void": 0.0, "alerts": 0.0,
    }  # fmt: skip
    assert (second[1]["late"], second[1]["void"]) == (5.0, 1.0)
    later = Notes()
    assert follow("http://127.0.0.1:8717", "demo", [later], start=2, n_rounds=1) == 3
    assert [told[0] for told in later.told[1:-1]] == [2]


def test_trackers_end_when_the_federation_is_gone(http, demo, followed, monkeypatch):
    notes = Notes()
    monkeypatch.setattr(following.time, "sleep", lambda seconds: http.delete(demo))
    with pytest.raises(RemoteError, match="there is no federation 'demo'") as error:
        follow("http://127.0.0.1:8717", "demo", [notes])
    assert error.value.status == 404
    assert notes.told[-1] == "end"
    with pytest.raises(RemoteError, match="there is no federation 'other'"):
        follow("http://127.0.0.1:8717", "other", [notes])
    assert notes.told.count("end") == 1
