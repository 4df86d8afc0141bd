"""A volatile world played inside Flower: clients, strategy, and Flower's simulation of them.

``python -m tests.live.flower.volatile runs.npz random e3cs`` simulates one run per selector.
"""

import sys

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from turnout.live import VirtualWorld
from turnout.live.flower import SelectingStrategy
from turnout.live.flower.client import describe
from turnout.worlds import (
    Bernoulli,
    ByClass,
    Environment,
    FixedDeadline,
    HeavyTail,
    LinearContextual,
)

N, COHORT, ROUNDS, SEED = 12, 4, 10, 3
#: Clients come and go, crash, and are slow when they were not chosen in the last round.
WORLD = Environment(N, 5, Bernoulli(0.8), ByClass((0.4, 0.9)), HeavyTail(LinearContextual()))
POLICY = FixedDeadline(12.0)
COLUMNS = ("offsets", "clients", "status", "duration", "spent", "probability")
COLUMNS += ("length_s", "n_available")


def client(environment, *, raises=(), name="device-{}".format, vectors=None):
    """Clients whose reports are the environment's; one in ``raises`` fails whenever it trains.

    ``vectors`` are the lengths of the reports about updates that a selector needs.
    """
    app = ClientApp()

    def place(context):
        return int(context.node_config["partition-id"])

    def loss(message, context):
        config = message.content["config"]
        answers = environment.polled_loss(config["server-round"] - 1, config["poll-data"])
        return float(answers[place(context)])

    describe(app, stable_id=lambda message, context: name(place(context)), loss=loss)

    @app.train()
    def train(message, context):
        me = place(context)
        if me in raises:
            raise RuntimeError("broken")
        reported = environment.metrics(message.content["config"]["server-round"] - 1)
        metrics = {name.replace("_", "-"): float(values[me]) for name, values in reported.items()}
        round = message.content["config"]["server-round"] - 1
        about_updates = environment.reports(round, np.array([me]), vectors or {})
        metrics |= {name: values[0].tolist() for name, values in about_updates.items()}
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        content = {
            "arrays": ArrayRecord([weights + 1.0]),
            "metrics": MetricRecord({"num-examples": 10, **metrics}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def play(grid, selector, environment=WORLD, *, n_rounds=ROUNDS, **options):
    ids = [f"device-{i}" for i in range(environment.n_clients)]
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector,
        cohort_size=COHORT,
        seed=SEED,
        world=VirtualWorld(environment, ids),
        **options,
    )
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(2)]), num_rounds=n_rounds, timeout=60.0
    )
    return strategy.run


def main(path, selectors):
    """Simulate a run per selector with Flower's own engine, and save them."""
    from flwr.simulation import run_simulation

    runs = {}
    server_app = ServerApp()

    @server_app.main()
    def serve(grid, context):
        for selector in selectors:
            runs[selector] = play(grid, selector, policy=POLICY)

    run_simulation(
        server_app,
        client(WORLD),
        N,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "log_to_driver": False},
        },
    )
    columns = {f"{name}/{key}": getattr(runs[name], key) for name in runs for key in COLUMNS}
    np.savez(path, **columns)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
