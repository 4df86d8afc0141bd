"""Speed of federated training: a plain PyTorch loop, our trainers, Flower's simulation.

All do the same job, see ``training_job.py``. Everything is measured in one run. Rounds of the loop
and of the trainers take turns. Flower (a process of its own, two actors of one core each) runs once
before and once after them. Printed are medians of seconds per round, aggregation included::

    python benchmarks/training.py
    python benchmarks/training.py --models cnn --repeats 5 --no-flower
    python benchmarks/training.py --models mlp --repeats 9 --reports

Targets, as ratios: logistic 8, MLP 5, CNN 2.5 to Flower; 4, 3, 2 to the loop with its better number
of threads. Last line: memory above the data with 1,000 clients of 60 images.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from training_job import (
    COHORT,
    MODELS,
    SAMPLES,
    SEED,
    cohort,
    loaded,
    local_work,
    make_data,
    order,
    train_plain,
)

from turnout.training.aggregate import aggregate
from turnout.training.fast import FastTrainer, Functional
from turnout.training.modules import load_weights, read_weights
from turnout.training.reference import ReferenceTrainer, UpdateReports

#: How many times faster than Flower's simulation, and than the plain loop, we want to be.
TARGETS = {"logistic": (8.0, 4.0), "mlp": (5.0, 3.0), "cnn": (2.5, 2.0)}

#: A round: global weights and round in, global weights out.
Round = Callable[[Tensor, int], Tensor]


def plain_rounds(model: str, momentum: float, threads: int) -> Round:
    """FedAvg as one would write it: load the global model, train, add to the average."""
    x, y, module = loaded(model)
    module = copy.deepcopy(module)
    data = {
        client: (x[client * SAMPLES : (client + 1) * SAMPLES], y[client * SAMPLES :][:SAMPLES])
        for client in range(x.shape[0] // SAMPLES)
    }

    def one_round(weights: Tensor, round: int) -> Tensor:
        torch.set_num_threads(threads)
        load_weights(module, weights)
        start = {name: value.clone() for name, value in module.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in cohort(round):
            module.load_state_dict(start)
            train_plain(module, *data[client], order(int(client), round), momentum)
            for name, value in module.state_dict().items():
                mean[name].add_(value, alpha=1 / COHORT)
        module.load_state_dict(mean)
        return read_weights(module)

    return one_round


def trainer_rounds(trainer: ReferenceTrainer | FastTrainer, threads: int) -> Round:
    def one_round(weights: Tensor, round: int) -> Tensor:
        torch.set_num_threads(threads)
        updates = trainer.train(weights, cohort(round), round)
        return aggregate(weights, updates.weights, np.full(COHORT, 1 / COHORT))

    return one_round


def compare(model: str, momentum: float, repeats: int) -> dict[str, tuple[list[float], float]]:
    """Return for each trainer the seconds of its rounds, and how far it is from the loop."""
    data, local, cores = make_data(), local_work(momentum), os.cpu_count() or 1
    reference = ReferenceTrainer(data, MODELS[model], local, SEED)
    fast = FastTrainer(data, MODELS[model], local, SEED, threads=cores)
    by_torch_func = FastTrainer(data, MODELS[model], local, SEED, threads=cores)
    by_torch_func.engine = Functional(by_torch_func.module, data)
    rounds = {
        "plain loop, 1 thread": plain_rounds(model, momentum, 1),
        f"plain loop, {cores} threads": plain_rounds(model, momentum, cores),
        "turnout reference": trainer_rounds(reference, cores),
        "turnout fast": trainer_rounds(fast, cores),
        "turnout fast, gradients by torch.func": trainer_rounds(by_torch_func, cores),
    }
    weights = dict.fromkeys(rounds, fast.initial_weights())
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for round in range(1 + repeats):  # the first is to warm up
        for name, one_round in rounds.items():
            start = time.perf_counter()
            weights[name] = one_round(weights[name], round)
            seconds[name].append(time.perf_counter() - start)
    plain = next(iter(weights.values()))
    return {
        name: (seconds[name][1:], float((weights[name] - plain).abs().max())) for name in rounds
    }


def reports_share(model: str, repeats: int) -> list[float]:
    """Return the cost of norm and sketch in each round, as a share of the round without them.

    It is processor time on one thread, so that other work on the machine counts little.
    """
    torch.set_num_threads(1)
    trainer = FastTrainer(make_data(), MODELS[model], local_work(0.0), SEED, threads=1)
    reports = UpdateReports(trainer, {"update_norm": None, "update_sketch": 64})
    weights, shares = trainer.initial_weights(), []
    for round in range(1 + repeats):  # the first is to warm up
        start = time.process_time()
        updates = trainer.train(weights, cohort(round), round)
        after = aggregate(weights, updates.weights, np.full(COHORT, 1 / COHORT))
        trained = time.process_time()
        reports.of(weights, updates.weights)
        shares.append((time.process_time() - trained) / (trained - start))
        weights = after
    return shares[1:]


def flower_seconds(model: str, momentum: float, rounds: int) -> list[float]:
    """Return the seconds of rounds in Flower's simulation, run as a process of its own."""
    script = Path(__file__).with_name("flower_training.py")
    command = [sys.executable, str(script), model, f"--rounds={rounds}", f"--momentum={momentum}"]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"FLWR_HOME": home}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def peak_bytes() -> int:
    """Return the most memory that this process has ever used."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def bytes_now() -> int:
    """Return the memory that this process uses, or the most it has used where that is unknown."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return peak_bytes()
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_above_data(model: str) -> dict[str, int]:
    """Return bytes that rounds with 1,000 clients of 60 images and an evaluation of all take."""
    data = make_data(n_clients=1_000, samples=60)
    trainer = FastTrainer(data, MODELS[model], local_work(momentum=0.9), SEED)
    weights = trainer.initial_weights()
    before = bytes_now()
    for round in range(3):
        updates = trainer.train(weights, np.arange(0, 1_000, 50), round)
        weights = aggregate(weights, updates.weights, np.full(COHORT, 1 / COHORT))
    trainer.test(weights)
    trainer.test_clients(weights)
    return {"data": data.x.nbytes, "above": peak_bytes() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--no-flower", action="store_true")
    parser.add_argument("--reports", action="store_true", help="only the cost of norm and sketch")
    parser.add_argument("--memory-of", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(memory_above_data(arguments.memory_of)))
        return
    console = Console(width=110)
    if arguments.reports:
        for model in arguments.models:
            shares = reports_share(model, arguments.repeats)
            console.print(
                f"{model}: norm and sketch take {statistics.median(shares):.1%} of the processor "
                f"time of a round ({min(shares):.1%} to {max(shares):.1%})"
            )
        return
    table = Table(title=f"seconds a round, median of {arguments.repeats}, lowest in brackets")
    for heading in ("model", "who", "s/round", "fast is faster by", "weights differ by"):
        table.add_column(heading, justify="left" if heading in ("model", "who") else "right")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("training", total=len(arguments.models))
        for model in arguments.models:
            add_rows(table, model, arguments)
            progress.advance(task)
    console.print(table)
    memory = subprocess.run(
        [sys.executable, __file__, "--memory-of", arguments.models[-1]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    used = json.loads(memory.stdout)
    console.print(
        f"memory, {arguments.models[-1]}, 20 of 1,000 clients of 60 images: "
        f"{used['above'] / 2**20:,.0f} MiB above the data ({used['data'] / 2**20:,.0f} MiB)"
    )


def add_rows(table: Table, model: str, arguments: argparse.Namespace) -> None:
    flower: list[float] = []
    if not arguments.no_flower:
        flower += flower_seconds(model, arguments.momentum, arguments.repeats)
    results = compare(model, arguments.momentum, arguments.repeats)
    if not arguments.no_flower:
        flower += flower_seconds(model, arguments.momentum, arguments.repeats)
        results["Flower simulation, 2 actors"] = flower, float("nan")
    fast = statistics.median(results["turnout fast"][0])
    for name, (seconds, far) in results.items():
        median = statistics.median(seconds)
        cells = f"{median:.3f} ({min(seconds):.3f})", f"{median / fast:.1f}x", f"{far:.1e}"
        table.add_row(model, name, *cells)
    plain = min(statistics.median(results[name][0]) for name in results if name.startswith("plain"))
    to_flower, to_plain = TARGETS[model]
    reached = f"loop {plain / fast:.1f}x (target {to_plain:g}x)"
    if flower:
        reached += f", Flower {statistics.median(flower) / fast:.1f}x (target {to_flower:g}x)"
    table.add_row(model, f"[bold]{reached}[/bold]", end_section=True)


if __name__ == "__main__":
    main()
