"""The server: FedAvg as Flower has it, with the clients chosen by turnout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_volatile import task
from turnout.experiment.config import world_of
from turnout.live import VirtualWorld
from turnout.live.flower import SelectingStrategy
from turnout.worlds import Buffered, FirstK, FixedDeadline, OverSelect, RoundPolicy, WorkSchedule

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, or those that are left after a crash."""
    settings = context.run_config
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0),
        settings["selector"],
        cohort_size=settings["cohort-size"],
        policy=policy(settings),
        schedule=schedule(settings),
        seed=settings["seed"],
        checkpoint=settings["checkpoint"] or None,
        records=settings["records"] or None,
        world=world(settings),
        wait_for_clients_s=settings["wait-for-nodes"],
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial_weights(settings["seed"])),
        num_rounds=settings["num-rounds"],
        evaluate_fn=evaluate,
    )
    for round, metrics in sorted(result.evaluate_metrics_serverapp.items()):
        print(f"round {round}: accuracy {metrics['accuracy']:.3f}", flush=True)


def policy(settings: Mapping[str, Any]) -> RoundPolicy:
    """Return when a round ends."""
    if settings["over-select"] > 1.0:
        return OverSelect(FirstK(seconds=settings["deadline"]), settings["over-select"])
    return FixedDeadline(settings["deadline"])


def schedule(settings: Mapping[str, Any]) -> WorkSchedule | None:
    """Return when clients get work, if rounds are to overlap."""
    if not settings["buffer"]:
        return None
    return Buffered(size=settings["buffer"], concurrency=settings["concurrency"])


def world(settings: Mapping[str, Any]) -> VirtualWorld | None:
    """Return the virtual world, if one is wanted; its clients are named as they name themselves."""
    if not settings["world"]:
        return None
    n_clients = settings["num-clients"]
    played = world_of(settings["world"], n_clients, settings["seed"])
    return VirtualWorld(played, ids=[f"client-{i:03d}" for i in range(n_clients)])


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model on the server."""
    return MetricRecord(task.test(arrays.to_numpy_ndarrays()))
