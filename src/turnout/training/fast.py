"""The fast trainer: clients side by side, one tile of them on each core.

It uses the same mini-batches as the reference and gives the same numbers to float tolerance. Tests
compare the two. ``best_trainer`` takes the faster of the two for a module.
"""

from __future__ import annotations

import logging
import time
from functools import partial

import numpy as np

from turnout.core.errors import InvalidInput, MissingExtra

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.core import require
from turnout.core.types import IntArray
from turnout.data.base import FederatedData
from turnout.training.base import Updates
from turnout.training.engine import Engine, Losses, StepRule, Task, cut, spread
from turnout.training.functional import Copies, Functional, OneByOne, is_noisy, why_not
from turnout.training.layers import Chain, Unreadable, read_layer_plans
from turnout.training.local import LOSSES, LocalWork
from turnout.training.lstm import Text
from turnout.training.models import Model
from turnout.training.modules import NextWord
from turnout.training.reference import ReferenceTrainer, Scorer, TorchTrainer, finished, one_by_one

_log = logging.getLogger(__name__)

#: Clients that train once with each trainer to see which is faster, and how much faster the
#: reference must be to be taken.
TRIED, CLEARLY = 6, 1.2

#: Which trainer was faster, by model, data, local work and device: measured once in a process.
_faster: dict[str, str] = {}

# The engine of a model is the fastest one that gives the numbers of the reference.


def engine_for(reference: ReferenceTrainer, batch_size: int) -> tuple[Engine, str]:
    """Return the engine for a module, and why no faster one fits (or an empty string).

    Args:
        reference: The reference trainer of the module.
        batch_size: Examples of the largest mini-batch.

    """
    module, data = reference.module, reference.data
    if reference.local.loss != LOSSES[0]:
        engine = OneByOne if is_noisy(module, data) else Copies
        return engine(reference), f"its loss is {reference.local.loss}"
    if type(module) is NextWord:
        return Text(module, data), ""
    if reference.buffers:
        engine = OneByOne if is_noisy(module, data) else Copies
        return engine(reference), f"it changes buffers while it trains: {reference.buffers[0]}"
    try:
        return Chain(read_layer_plans(module, data.example_shape), module, data, batch_size), ""
    except Unreadable as error:
        why = str(error)
    if is_noisy(module, data):
        return OneByOne(reference), f"{why}; it draws random numbers while it trains"
    refusal = why_not(module, data)
    if not refusal:
        return Functional(module, data), why
    return Copies(reference), f"{why}; {refusal}"


class FastTrainer(TorchTrainer):
    """Trains a cohort in tiles of clients, one tile on each core.

    ``how`` names the engine that trains the model, ``why`` the reason against a faster one.

    Args:
        data: The examples of all clients.
        model: What is trained: a recipe or a module.
        local: How long and by which rule a client trains.
        seed: Fixes the first model and all mini-batches.
        device: A device of PyTorch such as ``"cpu"`` or ``"cuda"``.
        threads: Cores to use on a CPU. Default: as many as PyTorch uses.

    """

    def __init__(
        self,
        data: FederatedData,
        model: Model | nn.Module,
        local: LocalWork,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        super().__init__(data, model, local, seed, device)
        if local.algorithm:
            raise InvalidInput(
                f"trainer 'batched' cannot run the algorithm {local.algorithm}: use 'reference' or "
                "'fast', which takes it.",
                field="trainer",
            )
        n_threads = torch.get_num_threads() if threads is None else threads
        n_threads = require.integer("threads", n_threads, minimum=1)
        self.threads = n_threads if self.device.type == "cpu" else 1
        reference = ReferenceTrainer(data, self.module, local, seed, device)
        largest = int(data.num_samples.max())
        batch_size = largest if local.batch_size is None else min(local.batch_size, largest)
        self.engine, self.why = engine_for(reference, batch_size)
        self.module = reference.module
        is_shared = self.engine.is_shareable and self.device.type == "cpu"
        each = partial(spread, threads=self.threads) if is_shared else one_by_one
        self.scorer = Scorer(data, self.device, self.engine.scores, each, self.scorer.loss)

    @property
    def how(self) -> str:
        """Name of the engine that trains the model."""
        return self.engine.name

    def train(
        self, weights: Tensor, clients: IntArray, round: int, draws: IntArray | None = None
    ) -> Updates:
        """Let each client train, starting from the global model."""
        clients = self.checked_clients(clients)
        weights = weights.detach().to(self.device)
        local = torch.empty(clients.size, self.n_weights, device=self.device)
        reports = np.zeros((3, clients.size))
        tiles, tasks = self._tasks(weights, clients, round, local, draws)
        for tile, losses in zip(tiles, self._run(tasks), strict=True):
            reports[:, tile] = losses
        n_examples, (mean, std, rms) = self.data.num_samples[clients], reports
        return finished(weights, local, n_examples, mean, std, rms, self.steps[clients])

    def _tasks(
        self,
        weights: Tensor,
        clients: IntArray,
        round: int,
        local: Tensor,
        draws: IntArray | None,
    ) -> tuple[list[IntArray], list[Task]]:
        plans = self.plans(clients, round, draws)
        tiles = cut(plans, self.engine.limit(), self.threads)
        rule = StepRule(
            self.local.lr_in(round),
            self.local.momentum,
            self.local.proximal,
            self.local.weight_decay,
            self.local.optimizer == "adam",
        )
        tasks = [
            Task(
                weights,
                clients[tile],
                round,
                [plans[i] for i in tile],
                self.data.offsets[clients[tile]],
                rule,
                [local[i] for i in tile],
                None if draws is None else draws[tile],
            )
            for tile in tiles
        ]
        return tiles, tasks

    def _run(self, tasks: list[Task]) -> list[Losses]:
        if self.engine.is_serial or self.device.type != "cpu":
            return [self.engine.train(task) for task in tasks]
        with torch.random.fork_rng(
            devices=[]
        ):  # engines may use the generator that all threads share
            return spread(self.engine.train, tasks, self.threads)


def best_trainer(
    data: FederatedData,
    model: Model | nn.Module,
    local: LocalWork,
    seed: int = 0,
    device: str = "cpu",
) -> TorchTrainer:
    """Return the trainer that is faster for a module.

    It is the fast trainer for modules that it computes layer by layer. For all others, some clients
    train a round with both. The reference is taken if it is clearly faster; the log says so.

    Args:
        data: The examples of all clients.
        model: What is trained: a recipe or a module.
        local: How long and by which rule a client trains.
        seed: Fixes the first model and all mini-batches.
        device: A device of PyTorch such as ``"cpu"`` or ``"cuda"``.

    """
    if local.algorithm:
        return ReferenceTrainer(data, model, local, seed, device)
    fast = FastTrainer(data, model, local, seed, device)
    if not fast.why:
        return fast
    key = repr((data.name, data.n_clients, repr(model), local, device, fast.threads))
    if key not in _faster:
        both = fast, ReferenceTrainer(data, model, local, seed, device)
        seconds = [_seconds(trainer) for trainer in both]
        is_slow = seconds[0] > CLEARLY * seconds[1]
        _faster[key] = "reference" if is_slow else "fast"
        _log.log(
            logging.WARNING if is_slow else logging.INFO,
            "%d clients took side by side %.2f s, the reference %.2f s; turnout uses the %s (%s).",
            *(min(TRIED, data.n_clients), *seconds, _faster[key], fast.why),
        )
    if _faster[key] == "fast":
        return fast
    reference = ReferenceTrainer(data, model, local, seed, device)
    reference.why = fast.why
    return reference


def _seconds(trainer: TorchTrainer) -> float:
    """Return how long some clients train; a first client warms up."""
    clients = np.arange(min(TRIED, trainer.data.n_clients))
    weights = trainer.initial_weights()
    trainer.train(weights, clients[:1], 0)
    start = time.perf_counter()
    trainer.train(weights, clients, 0)
    return time.perf_counter() - start
