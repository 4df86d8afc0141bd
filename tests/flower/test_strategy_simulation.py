"""On the real package: Flower's simulation engine with Ray, small and without sleeping for time."""

import difflib
import importlib.util
import os
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum
from flwr.simulation import run_simulation

import turnout
from tests.flower.fake import cohorts, outcomes, value_of
from turnout import Status
from turnout.integrations.flower import SelectingStrategy
from turnout.integrations.flower.client import LossReport, describe
from turnout.policies import FirstK, FixedDeadline

#: Ray leaves handles of /dev/null to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*/dev/null:pytest.PytestUnraisableExceptionWarning"),
]

APPS = Path(__file__).parent / "apps"
HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "flower-selection.md"
N_NODES = 8
BACKEND = {
    "client_resources": {"num_cpus": 0.5, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "log_to_driver": False, "include_dashboard": False},
}


def changed_lines(name):
    """Return the lines of the difference that were added or removed."""
    plain = (APPS / f"plain_{name}.py").read_text().splitlines()
    ours = (APPS / f"selecting_{name}.py").read_text().splitlines()
    marks = ("+ ", "- ")
    return [line for line in difflib.ndiff(plain, ours) if line.startswith(marks)]


def test_at_most_five_lines_of_an_existing_app_change():
    added = [[line for line in changed_lines(name) if line[0] == "+"] for name in ("server", "client")]
    assert [len(lines) for lines in added] == [2, 2]  # one of the server's replaces a line


def test_the_how_to_shows_exactly_this_difference():
    page = HOWTO.read_text()
    for name in ("server", "client"):
        for line in changed_lines(name):
            assert f"{line[0]}{line[2:]}" in page.splitlines()


def client_app():
    app = ClientApp()

    def partition(context):
        return int(context.node_config["partition-id"])

    describe(
        app,
        stable_id=lambda message, context: f"client-{partition(context):03d}",
        num_examples=lambda message, context: partition(context) + 1,
        context=lambda message, context: [1.0, float(message.content["config"]["took-part"])],
        loss=lambda message, context: float(partition(context)),
    )

    @app.train()
    def train(message, context):
        report, number = LossReport(), partition(context)
        if number == 3:
            raise RuntimeError("broken client")
        if number == 5 and message.content["config"].get("sleepy"):
            time.sleep(15.0)
        arrays = [array + number for array in message.content["arrays"].to_numpy_ndarrays()]
        report.add(1.0 + number, n=4)
        metrics = MetricRecord({"num-examples": number + 1, **report.metrics()})
        content = {"arrays": ArrayRecord(arrays), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def simulated(main, client=None):
    """Run ``main(grid)`` as a ServerApp, and return what it returns."""
    server, kept = ServerApp(), []

    @server.main()
    def run(grid, context):
        kept.append(main(grid))

    run_simulation(server, client or client_app(), N_NODES, backend_config=BACKEND)
    (found,) = kept
    return found


def selecting(selector, inner=None, **given):
    given = {"cohort_size": 4, "policy": FixedDeadline(60.0), "seed": 7} | given
    return SelectingStrategy(inner or FedAvg(fraction_evaluate=0.0), selector, **given)


def runs(folder):
    """Return a ServerApp's main: several strategies one after the other on the same grid."""

    def main(grid):
        zeros, found = ArrayRecord([np.zeros(3)]), {}
        for name in ("e3cs", "ucb-cs", "pow-d"):
            strategy = selecting(name)
            strategy.start(grid, zeros, num_rounds=3)
            found[name] = (cohorts(strategy), [outcomes(strategy, t) for t in range(3)])
        strategy = selecting(turnout.make("rbcs-f", rate=0.2, dimension=2))
        strategy.start(grid, zeros, num_rounds=3)
        found["rbcs-f"] = (cohorts(strategy), [outcomes(strategy, t) for t in range(3)])
        krum = Krum(num_malicious_nodes=0, fraction_evaluate=0.0)
        robust = selecting("random", krum).start(grid, zeros, num_rounds=2)
        found["krum"] = value_of(robust.arrays)
        for n_rounds in (2, 4):  # the second start goes on after the first
            adam = FedAdam(fraction_evaluate=0.0, beta_1=0.9, beta_2=0.9)
            strategy = selecting("e3cs", adam, checkpoint=folder / "run.npz")
            resumed = strategy.start(grid, zeros, num_rounds=n_rounds)
        whole = selecting("e3cs", FedAdam(fraction_evaluate=0.0, beta_1=0.9, beta_2=0.9))
        at_once = whole.start(grid, zeros, num_rounds=4)
        found["resumed"] = (cohorts(strategy), value_of(resumed.arrays))
        found["at once"] = (cohorts(whole), value_of(at_once.arrays))
        found["nodes"] = sorted(grid.get_node_ids())
        return found

    return main


def test_simulated_federations_are_reproducible_whatever_the_node_ids(tmp_path):
    first = simulated(runs(tmp_path))
    (tmp_path / "run.npz").unlink()
    second = simulated(runs(tmp_path))
    assert set(first.pop("nodes")).isdisjoint(second.pop("nodes"))
    assert first == second
    assert first["resumed"] == first["at once"]
    for name in ("e3cs", "ucb-cs", "pow-d", "rbcs-f"):
        chosen, ended = first[name]
        assert {len(one) for one in chosen} == {4}
        for one in ended:
            for client, status in one.items():
                is_broken = client == "client-003"
                assert status == (Status.FAILED if is_broken else Status.COMPLETED)
    assert any("client-003" in one for one in first["ucb-cs"][0])
    assert first["pow-d"][0][0] == sorted(first["pow-d"][0][0])


def test_a_late_client_is_left_behind_and_an_app_changed_in_five_lines_runs(tmp_path):
    def main(grid):
        from flwr.app import ConfigRecord

        strategy = selecting(
            "random", cohort_size=N_NODES, policy=FirstK(count=N_NODES - 2, seconds=120.0)
        )
        started = time.monotonic()
        config = ConfigRecord({"sleepy": True})
        strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=2, train_config=config)
        took = time.monotonic() - started
        return [outcomes(strategy, t) for t in range(2)], took

    ended, took = simulated(main)
    assert ended[0]["client-005"] == Status.LATE
    assert ended[0]["client-003"] == Status.FAILED
    assert sum(status == Status.COMPLETED for status in ended[0].values()) == N_NODES - 2
    assert "client-005" not in ended[1]  # it is still at it
    assert took < 120.0  # nobody waited for the deadline
    assert "client-000" in ended[1]


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"flower_app_{name}", APPS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_quickstart_runs_before_and_after(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = loaded("selecting_client").app
    server = ServerApp()

    @server.main()
    def both(grid, context):
        for name in ("plain_server", "selecting_server"):
            loaded(name).main(grid, context)
            os.replace("final_model.npy", f"{name}.npy")

    run_simulation(server, client, N_NODES, backend_config=BACKEND)
    models = [np.load(f"{name}.npy") for name in ("plain_server", "selecting_server")]
    assert all(np.isfinite(one).all() and np.abs(one).max() > 0.0 for one in models)
