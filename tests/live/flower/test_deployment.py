"""A real SuperLink and three real SuperNodes, with TLS and authentication, and accidents.

The deployment starts once. Nodes are the example's clients, with a task that makes the model tell
who was averaged: client i adds 10^i. Deadlines are long, because every message starts a process.
"""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from tests.live.flower.example import finished_run, load, recorded, tiny_app
from turnout import Status
from turnout.experiment import simulate
from turnout.worlds import Environment, Reliable

pytestmark = pytest.mark.deployment

NAMES = ("node-0", "node-1", "node-2")
DEADLINE = 30.0  # seconds, in rounds that somebody misses
AMPLE = 180.0  # seconds, in rounds that everybody is in time for
LIMIT_S = 300.0  # against hanging; nothing is expected to take so long
ASK_EVERY_S = 20.0  # whether a run has failed
COMPLETED, LATE, FAILED, SILENT = Status

wait_until = load("processes").wait_until


class Federation:
    """The deployment, and runs on it that keep their records apart."""

    def __init__(self, deployment, app, folder):
        self.deployment, self.app, self.folder = deployment, app, folder
        self._numbers = itertools.count()

    def start(self, name):
        place = {"partition-id": NAMES.index(name), "num-partitions": len(NAMES)}
        self.deployment.keep_node(name, place)

    def wait_for(self, *names, before=()):
        """Wait until nodes are online, by another start than the one before."""

        known = dict(before)

        def are_back():
            online = self.deployment.online()
            return all(name in online and online[name] != known.get(name) for name in names)

        wait_until(are_back, LIMIT_S, f"{names} to be online", pause_s=2.0)

    def submit(self, **settings):
        number = next(self._numbers)
        config = {
            "selector": "random",
            "cohort-size": 3,
            "deadline": AMPLE,
            "wait-for-nodes": AMPLE,
            "records": str(self.folder / f"runs-{number}"),
            "checkpoint": str(self.folder / f"checkpoint-{number}.npz"),
        }
        config |= {name.replace("_", "-"): value for name, value in settings.items()}
        return Submitted(self, config)


class Submitted:
    """A run, and how far it is."""

    def __init__(self, federation, config):
        self.federation, self.config = federation, config
        self.submit()

    def submit(self):
        self.id = self.federation.deployment.run(self.federation.app, self.config)

    @property
    def rounds(self):
        return recorded(self.config["records"])

    def wait_for_round(self, t):
        wait_until(lambda: t in self.rounds, LIMIT_S, f"round {t}")

    def wait_for_sleep(self, client, server_round):
        log = self.federation.deployment.processes.log
        line = f"fault: client {client} sleep in round {server_round}"
        wait_until(lambda: line in log(NAMES[client]), LIMIT_S, line)

    def finish(self):
        """Wait for the end, mostly by looking for files: asking Flower is slow."""
        deployment, records = self.federation.deployment, Path(self.config["records"])
        asked = time.monotonic()

        def check():
            nonlocal asked
            if time.monotonic() - asked > ASK_EVERY_S:
                assert not deployment.status(self.id).startswith("finished:failed")
                asked = time.monotonic()

        wait_until(lambda: [*records.glob("*/*/summary.json")], LIMIT_S, "the run to end", check)
        assert deployment.wait(self.id, LIMIT_S) == "finished:completed"
        return finished_run(records)

    def models(self):
        """Return the model after each round, which is recorded as its loss."""
        rounds = self.rounds
        assert sorted(rounds) == list(range(self.config["num-rounds"]))
        return [rounds[t]["loss"] for t in sorted(rounds)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    app = tiny_app(folder)
    with load("loopback").Loopback(folder / "deployment") as deployment:
        made = Federation(deployment, app, folder)
        for name in NAMES:
            deployment.register(name)
            made.start(name)
        made.wait_for(*NAMES)
        yield made
    assert list(deployment.processes.of()) == []  # nothing is left running


def statuses(run, t):
    """Return the status of each chosen client of round t."""
    part = slice(run.offsets[t], run.offsets[t + 1])
    return dict(zip(run.clients[part].tolist(), run.status[part].tolist(), strict=True))


def expected_models(run):
    """Return the model after each round, if exactly those who completed were averaged."""
    model, models = 0.0, []
    for t in range(run.n_rounds):
        added = [10.0**i for i, status in statuses(run, t).items() if status == COMPLETED]
        model += sum(added) / len(added) if added else 0.0
        models.append(model)
    return pytest.approx(models, rel=1e-9)


def test_an_unregistered_key_is_refused(federation):
    deployment = federation.deployment
    deployment.start_node("stranger", {"partition-id": 0, "num-partitions": 3})
    assert deployment.processes.exit_code("stranger", LIMIT_S) != 0
    assert "Exit Code: 305" in deployment.processes.log("stranger")
    assert len(deployment.flwr("supernode", "list", "loopback")["nodes"]) == len(NAMES)


def test_an_error_and_a_late_reply_cost_their_senders_only(federation):
    faults = f"0:crash@1 1:sleep{DEADLINE + 5:.0f}@1"
    run = federation.submit(num_rounds=3, deadline=DEADLINE, faults=faults)
    done = run.finish()
    assert statuses(done, 0) == {0: FAILED, 1: LATE, 2: COMPLETED}
    assert done.length_s[0] == pytest.approx(DEADLINE)
    assert statuses(done, 1) == {0: COMPLETED, 2: COMPLETED}  # client 1 is busy
    assert done.n_available.tolist()[:2] == [3, 2]
    assert run.models() == expected_models(done)  # its late reply is in none of them


def test_a_node_that_dies_in_a_round_costs_one_answer(federation):
    deployment = federation.deployment
    before = deployment.online()
    run = federation.submit(
        num_rounds=2, deadline=DEADLINE, wait_for_nodes=1.0, faults="2:sleep600@1 1:sleep600@2"
    )
    run.wait_for_sleep(2, 1)
    deployment.kill_node("node-2")
    run.wait_for_sleep(1, 2)
    deployment.stop_node("node-1")
    try:
        done = run.finish()
    finally:
        federation.start("node-1")
    first = statuses(done, 0)
    assert first.pop(2) in (LATE, SILENT)  # Flower takes up to a minute to notice
    assert first == {0: COMPLETED, 1: COMPLETED}
    assert statuses(done, 1) == {0: COMPLETED, 1: SILENT}  # who takes leave is noticed at once
    assert run.models() == expected_models(done)
    federation.wait_for("node-1", "node-2", before=before)  # both come back


def kill_server_app(run):
    run.federation.deployment.kill_server_app()
    run.federation.deployment.stop_run(run.id)


def kill_link(run):
    run.federation.deployment.kill_link()
    run.federation.deployment.start_link()


@pytest.mark.parametrize("accident", [kill_server_app, kill_link])
def test_a_killed_server_resumes_with_nothing_lost(federation, accident):
    run = federation.submit(num_rounds=3, cohort_size=2, seed=7)
    run.wait_for_round(0)
    accident(run)
    assert len(run.rounds) < 3
    run.submit()
    done = run.finish()
    world = Environment(len(NAMES), volatility=Reliable())
    whole = simulate("random", world, cohort_size=2, n_rounds=3, seed=7)
    np.testing.assert_array_equal(done.clients, whole.clients)  # as if nothing had happened
    assert (done.status == COMPLETED).all()
    assert run.models() == expected_models(done)


def test_rounds_go_on_when_all_nodes_are_gone(federation):
    run = federation.submit(num_rounds=3, wait_for_nodes=2.0)
    run.wait_for_round(0)
    for name in NAMES:
        federation.deployment.stop_node(name)
    done = run.finish()
    assert statuses(done, 2) == {}
    assert done.n_available[2] == 0
    assert run.models() == expected_models(done)
