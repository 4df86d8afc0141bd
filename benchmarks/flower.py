"""What a round costs with SelectingStrategy against plain FedAvg, on Flower's simulation engine.

Both run in the same simulation, some rounds of one, then of the other, so that they share the
machine's weather. Clients do next to nothing: with real training the share is smaller. Rounds are
timed from evaluation to evaluation, without the first of each part, in which nodes say who they
are. Both look for replies at the same interval.

    python benchmarks/flower.py [--nodes 100 1000] [--rounds 12] [--parts 4] [--weights 10]
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import time
from collections.abc import Callable

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from turnout.integrations.flower import SelectingStrategy
from turnout.integrations.flower.client import describe
from turnout.policies import FixedDeadline

#: Wall seconds and server CPU seconds of one round.
Cost = tuple[float, float]


def client_app() -> ClientApp:
    app = ClientApp()
    describe(
        app,
        stable_id=lambda message, context: int(context.node_config["partition-id"]),
        num_examples=10,
    )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord(message.content.array_records["arrays"].to_numpy_ndarrays())
        metrics = MetricRecord({"num-examples": 10, "loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def timed(strategy: Strategy, grid: Grid, weights: int, n_rounds: int) -> list[Cost]:
    """Return what each round after the first took."""
    marks: list[tuple[float, float]] = []

    def mark(server_round: int, arrays: ArrayRecord) -> None:
        marks.append((time.perf_counter(), time.thread_time()))

    arrays = ArrayRecord([np.zeros(weights, dtype=np.float32)])
    strategy.start(grid, arrays, num_rounds=n_rounds, timeout=600.0, evaluate_fn=mark)
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(marks[1:])]


def compare(n_nodes: int, options: argparse.Namespace) -> dict[str, list[list[Cost]]]:
    """Return the costs of the rounds of each part, by strategy."""
    costs: dict[str, list[list[Cost]]] = {"FedAvg": [], "SelectingStrategy": []}
    poll_s, cohort = options.poll, options.cohort

    def plain() -> Strategy:
        share = (cohort + 0.5) / n_nodes
        return FedAvg(fraction_train=share, fraction_evaluate=0.0, min_train_nodes=cohort)

    def ours() -> Strategy:
        inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=n_nodes)
        policy = FixedDeadline(600.0)
        return SelectingStrategy(
            inner, options.selector, cohort_size=cohort, policy=policy, poll_s=poll_s, ask_s=300.0
        )

    makers: dict[str, Callable[[], Strategy]] = {"FedAvg": plain, "SelectingStrategy": ours}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = poll_s  # type: ignore[attr-defined]  # the in-memory grid's own
        for part in range(options.parts):
            order = list(makers) if part % 2 == 0 else list(makers)[::-1]
            for name in order:
                cost = timed(makers[name](), grid, options.weights, options.rounds)
                costs[name].append(cost)

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "log_to_driver": False, "include_dashboard": False},
    }
    run_simulation(server, client_app(), n_nodes, backend_config=backend)  # type: ignore[arg-type]
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each part")
    parser.add_argument("--parts", type=int, default=4, help="parts of each strategy")
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--weights", type=int, default=10)
    parser.add_argument("--selector", default="e3cs")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between two looks")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for n_nodes in options.nodes:
        print(f"{n_nodes} nodes, cohort {options.cohort}, {options.weights} weights")
        report(compare(n_nodes, options))


def report(costs: dict[str, list[list[Cost]]]) -> None:
    """Print the medians of all rounds, and the ratio of parts that ran next to each other."""
    for name, parts in costs.items():
        rounds = np.concatenate([np.array(part) for part in parts])
        wall, cpu = 1e3 * np.median(rounds, axis=0)
        print(f"  {name:<18} {len(rounds):>4} rounds, median {wall:7.1f} ms, CPU {cpu:5.1f} ms")
    plain, ours = (
        np.array([np.mean(part, axis=0) for part in costs[name]])
        for name in ("FedAvg", "SelectingStrategy")
    )
    ratio = 100.0 * (ours[:, 0] / plain[:, 0] - 1.0)
    error = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else np.nan
    extra = 1e3 * float(np.mean(ours[:, 1] - plain[:, 1]))
    share = extra / (1e3 * float(plain[:, 0].mean()))
    print(f"  wall time of a round: {ratio.mean():+.1f} % (standard error {error:.1f})")
    print(f"  server CPU: {extra:+.1f} ms a round, {100 * share:+.1f} % of a plain round")


if __name__ == "__main__":
    main()
