"""Flower's simulation engine with Ray, in a process of its own: ``python -m`` this, with a name.

The results go to a JSON file. Ray leaves threads and handles behind, which tests must not inherit.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

APPS = Path(__file__).parent / "apps"
ROOT = Path(__file__).parents[3]
N_NODES = 8
BACKEND = {
    "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "log_to_driver": False, "include_dashboard": False},
}


def in_a_process(name, folder):
    """Run a scenario of this module in its own process, and return its result."""
    command = [sys.executable, "-m", __name__, name, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # Ray's workers import from here, too
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, check=False, cwd=ROOT, env=env
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / f"{name}.json").read_text())


def client_app():
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from turnout.live.flower.client import LossReport, describe

    app = ClientApp()

    def partition(context):
        return int(context.node_config["partition-id"])

    describe(
        app,
        stable_id=lambda message, context: f"client-{partition(context):03d}",
        num_examples=lambda message, context: partition(context) + 1,
        loss=lambda message, context: float(partition(context)),
    )

    @app.train()
    def train(message, context):
        report, number = LossReport(), partition(context)
        if number == 3:
            raise RuntimeError("broken client")
        if number == 5 and message.content["config"].get("sleepy"):
            time.sleep(20.0)
        arrays = [array + number for array in message.content["arrays"].to_numpy_ndarrays()]
        report.add(1.0 + number, n=4)
        metrics = MetricRecord({"num-examples": number + 1, **report.metrics()})
        content = {"arrays": ArrayRecord(arrays), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def simulated(main, client):
    """Run ``main(grid, context)`` as a ServerApp, and return what it returns."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, kept = ServerApp(), []

    @server.main()
    def run(grid, context):
        kept.append(main(grid, context))

    run_simulation(server, client, N_NODES, backend_config=BACKEND)
    (found,) = kept
    return found


def selecting(selector, inner=None, **given):
    from flwr.serverapp.strategy import FedAvg

    from turnout.live.flower import SelectingStrategy
    from turnout.worlds import FixedDeadline

    # A busy machine needs minutes to start Ray; nothing here waits for any of these limits.
    patient = {"policy": FixedDeadline(600.0), "start_s": 900.0, "wait_for_nodes_s": 300.0}
    given = {"cohort_size": 4, "seed": 7} | patient | given
    return SelectingStrategy(inner or FedAvg(fraction_evaluate=0.0), selector, **given)


def zeros():
    from flwr.app import ArrayRecord

    return ArrayRecord([np.zeros(3)])


def told(strategy, result):
    """Return cohorts, outcomes and model as plain data."""
    from tests.live.flower.fake import cohorts, outcomes, value_of

    ended = [outcomes(strategy, t) for t in range(strategy.run.n_rounds)]
    return {"cohorts": cohorts(strategy), "ended": ended, "model": value_of(result.arrays)}


def selectors(grid):
    found = {}
    for name in ("e3cs", "ucb-cs", "pow-d"):
        strategy = selecting(name)
        found[name] = told(strategy, strategy.start(grid, zeros(), num_rounds=3))
    return found


def resumed(grid, folder):
    from flwr.serverapp.strategy import FedAdam

    def adam():
        return FedAdam(fraction_evaluate=0.0, beta_1=0.9, beta_2=0.9)

    for n_rounds in (1, 3):  # the second start goes on after the first
        strategy = selecting("e3cs", adam(), checkpoint=folder / "run.npz")
        parts = told(strategy, strategy.start(grid, zeros(), num_rounds=n_rounds))
    whole = selecting("e3cs", adam())
    return [parts, told(whole, whole.start(grid, zeros(), num_rounds=3))]


def late(grid):
    from flwr.app import ConfigRecord

    from turnout.worlds import FirstK

    policy = FirstK(count=N_NODES - 2, seconds=300.0)
    strategy = selecting("random", cohort_size=N_NODES, policy=policy)
    config = ConfigRecord({"sleepy": True})
    started = time.monotonic()
    result = strategy.start(grid, zeros(), num_rounds=2, train_config=config)
    return told(strategy, result) | {"seconds": time.monotonic() - started}


def first(folder):
    def main(grid, context):
        nodes = sorted(str(node) for node in grid.get_node_ids())
        return {"selectors": selectors(grid), "resumed": resumed(grid, folder), "nodes": nodes}

    return simulated(main, client_app())


def second(folder):
    def main(grid, context):
        nodes = sorted(str(node) for node in grid.get_node_ids())
        return {"selectors": selectors(grid), "late": late(grid), "nodes": nodes}

    return simulated(main, client_app())


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"flower_app_{name}", APPS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def overlapping(folder):
    from turnout.worlds import Buffered

    def main(grid, context):
        for n_rounds in (3, 6):  # the second start goes on with the work in flight of the first
            strategy = selecting("e3cs", schedule=Buffered(3, 5), checkpoint=folder / "overlap.npz")
            result = strategy.start(grid, zeros(), num_rounds=n_rounds)
        run, columns = strategy.run, ("clients", "status", "choice", "staleness", "offsets")
        found = {name: getattr(run, name).tolist() for name in columns}
        return (
            found
            | {"model": result.arrays.to_numpy_ndarrays()[0].tolist()}
            | {"ids": list(strategy.roster.ids), "kept": run.measured["models_kept"].tolist()}
        )

    return simulated(main, client_app())


def quickstart(folder):
    os.chdir(folder)

    def main(grid, context):
        found = {}
        for name in ("plain_server", "selecting_server"):
            loaded(name).main(grid, context)
            found[name] = np.load("final_model.npy").tolist()
        return found

    return simulated(main, loaded("selecting_client").app)


if __name__ == "__main__":
    os.environ.update(
        FLWR_TELEMETRY_ENABLED="0",
        FLWR_DISABLE_UPDATE_CHECK="1",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    )
    scenario, target = sys.argv[1], Path(sys.argv[2])
    answer = globals()[scenario](target)
    (target / f"{scenario}.json").write_text(json.dumps(answer))
