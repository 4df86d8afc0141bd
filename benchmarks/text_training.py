"""Speed of training a next-word LSTM: a plain PyTorch loop against our fast trainer.

The job is a round of the preset ``nccb``: clients of 100 sequences of 20 words, two LSTM layers of
200, batches of 40, one of its five epochs. Ten clients instead of its five, so that two threads
have the same to do. The words are artificial, by Zipf's law. *Sentences* end as those of the blog
authors do: on average they fill 11 of the 20 places, and a word in seven is not in the vocabulary,
so it is no label. *Full* sequences have a label at each place::

    python benchmarks/text_training.py
    python benchmarks/text_training.py --vocabulary 10000 --clients 5 20 --repeats 5

Each is measured on one thread, as the runs of a grid have it, and on all; all take turns in one
run. Target: twice as fast as the loop with the same number of threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from turnout.data.base import PADDING, FederatedData
from turnout.training.aggregate import aggregate
from turnout.training.fast import FastTrainer
from turnout.training.local import LocalWork, client_plan
from turnout.training.models import StackedLstm
from turnout.training.modules import load_weights, read_weights

#: A trainer and its number of threads.
Who = tuple[str, int]

SAMPLES, LENGTH, BATCH, LR, SEED = 100, 20, 40, 0.002, 0
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
TEXTS = ("sentences", "full")
#: Of blog authors with 2,000 words: 11.2 places up to the last label, 9.6 labels.
SHORTEST, UNKNOWN = 3, 0.14


def make_data(n_words: int, texts: str, n_clients: int) -> FederatedData:
    """Return sequences of words; the label of a word is the next one."""
    rng = np.random.default_rng(SEED)
    chance = 1.0 / np.arange(1, n_words + 1)
    words = rng.choice(n_words, (n_clients * SAMPLES, LENGTH + 1), p=chance / chance.sum())
    x, y = words[:, :-1], words[:, 1:].copy()
    if texts == "sentences":
        length = rng.integers(SHORTEST, LENGTH, n_clients * SAMPLES, endpoint=True)
        y[np.arange(LENGTH) >= length[:, None]] = PADDING
        y[rng.random(y.shape) < UNKNOWN] = PADDING
    offsets, none = np.arange(n_clients + 1) * SAMPLES, np.zeros(n_clients + 1, dtype=np.int64)
    return FederatedData("words", x, y, offsets, x[:0], y[:0], none, x[:10], y[:10], n_words)


def plain_round(data: FederatedData, module: torch.nn.Module, rule: str, weights: Tensor) -> Tensor:
    """Return the mean of the clients' models, each trained as one would write it."""
    models = []
    for client in range(data.n_clients):
        load_weights(module, weights)
        optimizer = OPTIMIZERS[rule](module.parameters(), lr=LR)
        rows = client_plan(SAMPLES, BATCH, -(-SAMPLES // BATCH), SEED, 0, client).order
        for batch in np.array_split(rows, range(BATCH, SAMPLES, BATCH)):
            x = torch.from_numpy(data.x[client * SAMPLES + batch])
            y = torch.from_numpy(data.y[client * SAMPLES + batch])
            optimizer.zero_grad()
            loss = cross_entropy(module(x).flatten(0, 1), y.flatten(), ignore_index=PADDING)
            torch.autograd.backward(loss)
            optimizer.step()
        models.append(read_weights(module))
    return torch.stack(models).mean(dim=0)


def fast_round(trainer: FastTrainer, weights: Tensor, n_clients: int) -> Tensor:
    """Return the same from our trainer."""
    updates = trainer.train(weights, np.arange(n_clients), 0)
    return aggregate(weights, updates.weights, np.full(n_clients, 1 / n_clients))


def compare(
    n_words: int, texts: str, rule: str, n_clients: int, repeats: int
) -> tuple[dict[Who, list[float]], float]:
    """Return the seconds of the rounds of each, and how far their models are apart."""
    data = make_data(n_words, texts, n_clients)
    local = LocalWork(epochs=1, batch_size=BATCH, lr=LR, optimizer=rule)
    module = StackedLstm().build(data)
    rounds: dict[Who, Callable[[], Tensor]] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        trainer = FastTrainer(data, StackedLstm(), local, SEED, threads=threads)
        weights = trainer.initial_weights()
        rounds["plain loop", threads] = partial(plain_round, data, module, rule, weights)
        rounds["turnout fast", threads] = partial(fast_round, trainer, weights, n_clients)
    seconds: dict[Who, list[float]] = {who: [] for who in rounds}
    models: dict[Who, Tensor] = {}
    for _ in range(1 + repeats):  # the first is to warm up
        for who, one_round in rounds.items():
            torch.set_num_threads(who[1])
            start = time.perf_counter()
            models[who] = one_round()
            seconds[who].append(time.perf_counter() - start)
    first, *_, last = models.values()
    return {who: times[1:] for who, times in seconds.items()}, float((first - last).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title=f"seconds an epoch, median of {arguments.repeats}, lowest in brackets")
    for heading in ("texts", "rule"):
        table.add_column(heading)
    columns = "clients", "words", "threads", "plain loop", "turnout fast", "faster by", "differ by"
    for heading in columns:
        table.add_column(heading, justify="right")
    jobs = product(arguments.clients, arguments.vocabulary, TEXTS, OPTIMIZERS)
    for n_clients, n_words, texts, rule in jobs:
        seconds, far = compare(n_words, texts, rule, n_clients, arguments.repeats)
        for threads in sorted({threads for _, threads in seconds}):
            plain, fast = (seconds[name, threads] for name in ("plain loop", "turnout fast"))
            faster = statistics.median(plain) / statistics.median(fast)
            cells = [
                f"{statistics.median(times):.2f} ({min(times):.2f})" for times in (plain, fast)
            ]
            cells += [f"{faster:.2f}x", f"{far:.1e}"]
            table.add_row(texts, rule, f"{n_clients}", f"{n_words:,}", f"{threads}", *cells)
        table.add_section()
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
