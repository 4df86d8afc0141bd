"""What a round costs with SelectingStrategy against plain FedAvg, on Flower's simulation engine.

Both run in the same simulation and take turns, a round of one, then a round of the other, so that
other load on the machine slows both. Clients do almost nothing; with real training our share of a
round is smaller. The first rounds, in which nodes send their ids, are not counted. Both check for
replies at the same interval. Target: less than 5 % of a plain round.

    python benchmarks/flower.py [--nodes 100 1000] [--rounds 60] [--weights 10] [--poll 0.1]
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
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

from turnout.core.types import FloatArray
from turnout.live.flower import SelectingStrategy
from turnout.live.flower.client import describe
from turnout.worlds import FixedDeadline

#: Rounds at the beginning that are not counted.
WARM_UP = 3


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


class Turns:
    """Lets strategies in threads of their own run one round each, one after the other."""

    def __init__(self, n: int) -> None:
        self.costs: list[list[tuple[float, float]]] = [[] for _ in range(n)]
        self._n = n
        self._turn = 0
        self._change = threading.Condition()

    def run(self, player: int, strategy: Strategy, grid: Grid, options: argparse.Namespace) -> None:
        """Play one strategy to its end, in turn."""
        begun = (0.0, 0.0)

        def after_a_round(server_round: int, arrays: ArrayRecord) -> None:
            nonlocal begun
            if server_round:
                wall, cpu = time.perf_counter(), time.thread_time()
                self.costs[player].append((wall - begun[0], cpu - begun[1]))
                self._pass_on()
            if server_round < options.rounds:
                self._wait_for(player)
                begun = time.perf_counter(), time.thread_time()

        arrays = ArrayRecord([np.zeros(options.weights, dtype=np.float32)])
        strategy.start(grid, arrays, options.rounds, timeout=600.0, evaluate_fn=after_a_round)

    def _wait_for(self, player: int) -> None:
        with self._change:
            self._change.wait_for(lambda: self._turn == player)

    def _pass_on(self) -> None:
        with self._change:
            self._turn = (self._turn + 1) % self._n
            self._change.notify_all()


def compare(n_nodes: int, options: argparse.Namespace) -> FloatArray:
    """Return (strategies, rounds, 2): wall and server CPU seconds of FedAvg and of ours."""
    turns = Turns(2)
    poll_s, cohort = options.poll, options.cohort

    def plain() -> Strategy:
        share = (cohort + 0.5) / n_nodes
        return FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=n_nodes)

    def ours() -> Strategy:
        inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=n_nodes)
        policy = FixedDeadline(600.0)
        return SelectingStrategy(
            inner, options.selector, cohort_size=cohort, policy=policy, poll_s=poll_s, ask_s=300.0
        )

    makers: list[Callable[[], Strategy]] = [plain, ours]
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = poll_s  # type: ignore[attr-defined]  # the in-memory grid's own
        players = [
            threading.Thread(target=turns.run, args=(i, make(), grid, options))
            for i, make in enumerate(makers)
        ]
        for player in players:
            player.start()
        for player in players:
            player.join()

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "log_to_driver": False, "include_dashboard": False},
    }
    run_simulation(server, client_app(), n_nodes, backend_config=backend)  # type: ignore[arg-type]
    return np.array(turns.costs)[:, WARM_UP:]


def report(costs: FloatArray) -> None:
    """Print the medians, and the difference between rounds that followed each other."""
    for name, rounds in zip(("FedAvg", "SelectingStrategy"), costs, strict=True):
        wall, cpu = 1e3 * np.median(rounds, axis=0)
        print(f"  {name:<18} {len(rounds)} rounds, median {wall:6.1f} ms, server CPU {cpu:5.1f} ms")
    extra = 1e3 * (costs[1] - costs[0])
    base = 1e3 * float(np.median(costs[0, :, 0]))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(extra), size=(2000, len(extra)))
    for i, name in enumerate(("wall", "server CPU")):
        low, high = np.quantile(np.median(extra[drawn, i], axis=1), [0.025, 0.975])
        middle = float(np.median(extra[:, i]))
        print(
            f"  {name}: {middle:+.1f} ms a round, {100 * middle / base:+.1f} % of a plain round "
            f"(95 % interval {100 * low / base:+.1f} to {100 * high / base:+.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each strategy")
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--weights", type=int, default=10)
    parser.add_argument("--selector", default="e3cs")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between two checks")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for n_nodes in options.nodes:
        what = f"{options.weights:,} weights, a check every {options.poll:g} s"
        print(f"{n_nodes:,} nodes, cohort {options.cohort}, {what}", flush=True)
        report(compare(n_nodes, options))


if __name__ == "__main__":
    main()
