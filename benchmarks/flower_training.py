"""The job of ``training.py`` in Flower's simulation with two actors; prints seconds per round.

Run by ``training.py`` as a process of its own::

    python benchmarks/flower_training.py mlp --rounds 10

Each actor loads the data once and uses one core. Rounds are timed on the server, from the choice of
clients to the new model, without evaluation. The first rounds, in which actors start, are left out.
"""

from __future__ import annotations

import os

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import argparse
import json
import logging
import time
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from training_job import CLIENTS, COHORT, MODELS, SAMPLES, loaded, make_data, order, train_plain

WARM_UP = 3


def client_app(model: str, momentum: float) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        x, y, module = loaded(model)
        client = int(context.node_config["partition-id"])
        round = int(str(message.content.config_records["config"]["server-round"]))
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        rows = slice(client * SAMPLES, (client + 1) * SAMPLES)
        loss = train_plain(module, x[rows], y[rows], order(client, round), momentum)
        reply = RecordDict()
        reply["arrays"] = ArrayRecord(dict(module.state_dict()))
        reply["metrics"] = MetricRecord({"loss": loss, "num-examples": SAMPLES})
        return Message(reply, reply_to=message)

    return app


class Timed(FedAvg):
    """FedAvg that notes how long its rounds take."""

    def __init__(self) -> None:
        super().__init__(
            fraction_train=COHORT / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=COHORT,
            min_available_nodes=CLIENTS,
        )
        self.seconds: list[float] = []

    def configure_train(self, *arguments: Any, **keywords: Any) -> Iterable[Message]:
        """Start the clock."""
        self.start_time = time.perf_counter()
        return super().configure_train(*arguments, **keywords)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Stop the clock; a client that failed spoils the measurement."""
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self.start_time)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != COHORT:
            raise RuntimeError(f"{COHORT} clients were asked, {len(replies)} answered: {failed}")
        return result


def server_app(model: str, rounds: int, strategy: Timed) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        module = MODELS[model].build(make_data(n_clients=1))
        strategy.start(grid, ArrayRecord(module.state_dict()), num_rounds=rounds)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--momentum", type=float, default=0.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    strategy = Timed()
    run_simulation(
        server_app(arguments.model, WARM_UP + arguments.rounds, strategy),
        client_app(arguments.model, arguments.momentum),
        CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "log_to_driver": False},
        },
    )
    print(json.dumps(strategy.seconds[WARM_UP:]))


if __name__ == "__main__":
    main()
