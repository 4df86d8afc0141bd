"""The fast trainer: clients side by side, one tile of them on each core.

It uses the same mini-batches as the reference and gives the same numbers to float tolerance. Tests
compare the two. ``best_trainer`` takes the faster of the two for a module.
"""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput, MissingExtra

try:
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.core.types import IntArray
from turnout.data.base import FederatedData
from turnout.training.base import Updates
from turnout.training.engine import Engine, Losses, StepRule, Task, cut, losses_of, spread
from turnout.training.layers import Chain, Unreadable, read_layer_plans
from turnout.training.local import LOSSES, LocalWork
from turnout.training.lstm import Text
from turnout.training.models import Model
from turnout.training.modules import NextWord, input_tensor, label_tensor
from turnout.training.reference import (
    ReferenceTrainer,
    Scorer,
    TorchTrainer,
    finished,
    one_by_one,
)

#: Gradients and losses of a group of clients, from their weights, examples and labels.
Gradients = Callable[[list[Tensor], Tensor, Tensor], tuple[Sequence[Tensor], Tensor]]

#: Bytes of weights in a tile, at most.
TILE_BYTES = 1 << 24

#: Number of examples on which the engine is tried, and how much gradients may differ.
PROBE, TOLERANCE = 3, 1e-4


class Functional(Engine):
    """Trains the clients of a tile with one call of the module per step."""

    name: ClassVar[str] = "vmap"

    def limit(self) -> int:
        """Return how many clients fit into the memory of a tile."""
        return max(1, TILE_BYTES // sum(weight.nbytes for weight in self.module.parameters()))

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        tile = task.tile()
        gradients = _gradients(self.module)
        weights = task.stacked([weight.shape for weight in self.module.parameters()])
        losses = torch.zeros(tile.rows.shape, device=task.weights.device)
        for step in range(tile.n_steps):
            size = tile.size[: np.count_nonzero(tile.size[:, step]), step]
            moves = [torch.empty_like(weight.value[: size.size]) for weight in weights]
            for n in np.unique(size):
                group = np.flatnonzero(size == n)
                x, y = self._examples(tile.rows[group, step, :n], losses.device)
                steps, loss = gradients([weight.value[group] for weight in weights], x, y)
                losses[group, step, :n] = loss
                for move, gradient in zip(moves, steps, strict=True):
                    move[group] = gradient
            for weight, move in zip(weights, moves, strict=True):
                weight.first(size.size).descend(move)
        task.finish(weights)
        return losses_of(losses, tile)

    def _examples(self, rows: IntArray, device: torch.device) -> tuple[Tensor, Tensor]:
        x = input_tensor(self.data, self.data.x[rows], device)
        return x, label_tensor(self.data.y[rows], device)


def _gradients(module: nn.Module) -> Gradients:
    """Return the function that maps (a, ...) weights, (a, n, ...) examples to gradients."""
    own = copy.deepcopy(module).train()  # its weights are swapped while it is called
    names = [name for name, _ in own.named_parameters()]

    def loss(weights: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores = functional_call(own, dict(zip(names, weights, strict=True)), (x,))
        losses = cross_entropy(scores, y, reduction="none")
        return losses.mean(), losses

    gradients: Gradients = vmap(grad(loss, has_aux=True), randomness="error")
    return gradients


def why_not(module: nn.Module, data: FederatedData) -> str:
    """Return why this engine cannot train a module, or an empty string.

    Two clients with different weights must get the gradients that autograd gives to each.

    Args:
        module: The module.
        data: The examples that it is tried on.

    """
    if data.is_text:
        return "texts have a label at each position"
    device = next(module.parameters()).device
    weights = [torch.stack([weight, 1.01 * weight]).detach() for weight in module.parameters()]
    n = min(PROBE, data.x.shape[0])
    x = input_tensor(data, data.x[:n], device).expand(2, n, *data.example_shape)
    y = label_tensor(data.y[:n], device).expand(2, n)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch warns if it would be slow
            by_vmap, _ = _gradients(module)(weights, x, y)
            by_autograd = [
                _by_autograd(module, [weight[i] for weight in weights], x[i], y[i]) for i in (0, 1)
            ]
    except Exception as error:  # a user's module may fail in any way
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    ours = torch.cat([part.flatten(1) for part in by_vmap], dim=1)
    theirs = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in by_autograd])
    if not torch.allclose(ours, theirs, rtol=0.0, atol=TOLERANCE * float(theirs.abs().max())):
        return "torch.func gives other gradients than autograd"
    return ""


def _by_autograd(module: nn.Module, weights: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    own = copy.deepcopy(module).train()
    with torch.no_grad():
        for weight, value in zip(own.parameters(), weights, strict=True):
            weight.copy_(value)
    loss = cross_entropy(own(x), y)
    return list(torch.autograd.grad(loss, list(own.parameters())))


# Where ``torch.func`` cannot train a module, the reference trainer trains copies of it.

#: Clients that one copy trains.
CLIENTS = 4


class Copies(Engine):
    """Trains one client in each thread, with autograd.

    Args:
        reference: The reference trainer of the module.

    """

    name: ClassVar[str] = "one client per thread"

    def __init__(self, reference: ReferenceTrainer) -> None:
        super().__init__(reference.module, reference.data)
        self.reference = reference

    def limit(self) -> int:
        """Return how many clients share a copy, one after the other."""
        return CLIENTS

    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""
        own = copy.copy(self.reference)
        own.module = copy.deepcopy(self.module)
        updates = own.train(task.weights, task.clients, task.round, task.draws)
        for out, weights in zip(task.out, updates.weights, strict=True):
            out.copy_(weights)
        return Losses(updates.loss, updates.loss_std, updates.loss_rms)


class OneByOne(Copies):
    """``Copies`` without threads, because all threads share the generator of a module's noise."""

    name: ClassVar[str] = "one client after the other"
    is_serial: ClassVar[bool] = True


def is_noisy(module: nn.Module, data: FederatedData) -> bool:
    """Whether a module draws random numbers while it trains, as dropout does.

    Args:
        module: The module.
        data: The examples that it is tried on.

    """
    device = next(module.parameters()).device
    x = input_tensor(data, data.x[:2], device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copy.deepcopy(module).train()(x)
        return not torch.equal(before, torch.get_rng_state())


# The trainer --------------------------------------------------------------------------------------


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
