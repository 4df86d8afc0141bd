"""Engines train many clients at once: tiles of clients, stacked weights, and worker threads.

An engine trains the clients of a tile and scores examples. ``fast.engine_for`` picks an engine for
a model.
"""

from __future__ import annotations

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.data.base import FederatedData
from turnout.training.local import BatchPlan

# A tile is a set of clients that train side by side on one core.
#
# Its clients are sorted by steps, the most first, so the clients that are still training are
# always the first ones. Shorter mini-batches are filled with an example that does not
# count.

#: A client whose mini-batches are below this share of the largest in a tile goes to another tile.
LEAST_SHARE = 0.5

#: Cohorts up to this share of the largest tile are not cut: their kernels are so short that threads
#: would wait for Python's lock longer than they compute.
LITTLE = 1 / 16


@dataclass(frozen=True, slots=True)
class Tile:
    """The mini-batches of g clients.

    Args:
        rows: (g, steps, width) the row of each example in the data.
        size: (g, steps) examples of each mini-batch; 0 after a client's last step.
        noise_seed: (g,) seed of noise inside the model.

    """

    rows: IntArray
    size: IntArray
    noise_seed: IntArray

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return int(self.size.shape[0])

    @property
    def n_steps(self) -> int:
        """Steps of the client with the most."""
        return int(self.size.shape[1])

    @property
    def counts(self) -> BoolArray:
        """(g, steps, width) whether an example counts."""
        counts: BoolArray = np.arange(self.rows.shape[2]) < self.size[:, :, None]
        return counts


def cut(plans: Sequence[BatchPlan], limit: int, threads: int) -> list[IntArray]:
    """Return the positions of the clients of each tile, those with the most steps first.

    Clients of a tile have mini-batches of similar size. A small cohort is one tile. Otherwise
    clients go to the tiles in turns, so that every thread gets about as much work.

    Args:
        plans: The mini-batches of each client.
        limit: Most clients of a tile.
        threads: How many tiles are trained at once.

    """
    width = np.array([np.diff(plan.bounds).max() for plan in plans], dtype=np.int64)
    steps = np.array([plan.n_steps for plan in plans], dtype=np.int64)
    tiles: list[IntArray] = []
    left = np.lexsort((-width, -steps))
    while left.size:
        is_similar = width[left] >= LEAST_SHARE * width[left].max()
        group, left = left[is_similar], left[~is_similar]
        if group.size == len(plans) <= max(1, LITTLE * limit):
            return [group]
        n_tiles = -(-group.size // limit)
        n_tiles = min(group.size, -(-n_tiles // threads) * threads)
        tiles += [group[i::n_tiles] for i in range(n_tiles)]
    return tiles


def stack(plans: Sequence[BatchPlan], first_rows: IntArray) -> Tile:
    """Return a tile.

    Args:
        plans: The mini-batches of each client, those with the most steps first.
        first_rows: (g,) where the examples of each client begin in the data.

    """
    sizes = [np.diff(plan.bounds) for plan in plans]
    width = max(int(size.max()) for size in sizes)
    shape = len(plans), plans[0].n_steps
    rows = np.zeros((*shape, width), dtype=np.int64)
    size = np.zeros(shape, dtype=np.int64)
    for i, plan in enumerate(plans):
        place = np.minimum(np.arange(width), sizes[i][:, None] - 1)
        rows[i, : plan.n_steps] = first_rows[i] + plan.order[plan.bounds[:-1, None] + place]
        size[i, : plan.n_steps] = sizes[i]
    return Tile(rows, size, np.array([plan.noise_seed for plan in plans]))


# One weight array of several clients, and the rule of a step.
#
# The rule is that of ``torch.optim.SGD`` with FedProx's pull: the gradient plus ``weight_decay * w
# + proximal * (w - w_global)``, through momentum if there is any. Or it is that of
# ``torch.optim.Adam``, on the same gradient.

#: Adam's rates of the mean gradient and of its square, and a constant against division by 0.
MEAN_RATE, SQUARE_RATE, SMALLEST = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True)
class StepRule:
    """How a step changes the weights.

    Args:
        lr: Step size.
        momentum: Momentum of SGD.
        proximal: Coefficient of FedProx.
        weight_decay: Adds ``weight_decay * w`` to the gradient.
        is_adam: Whether the rule is that of Adam.

    """

    lr: float
    momentum: float = 0.0
    proximal: float = 0.0
    weight_decay: float = 0.0
    is_adam: bool = False

    @property
    def decay(self) -> float:
        """Share of the weights that is added to the gradient."""
        return self.weight_decay + self.proximal


@dataclass(slots=True)
class Stacked:
    """The same weight array of several clients.

    Args:
        start: (...) the array in the global model.
        value: (a, ...) the arrays of the clients; steps change them.
        rule: How a step changes them.
        velocity: (a, ...) sum of past gradients with momentum, their mean with Adam. Default: zero.
        square: (a, ...) mean of their squares, with Adam only. Default: zero.
        n_steps: () the number of steps that Adam took; views share it. Default: zero.

    """

    start: Tensor
    value: Tensor
    rule: StepRule
    velocity: Tensor | None = None
    square: Tensor | None = None
    n_steps: Tensor | None = None

    def __post_init__(self) -> None:
        if self.velocity is None and (self.rule.momentum or self.rule.is_adam):
            self.velocity = torch.zeros_like(self.value)
        if self.square is None and self.rule.is_adam:
            self.square = torch.zeros_like(self.value)
        if self.n_steps is None and self.rule.is_adam:
            self.n_steps = torch.zeros((), device=self.value.device)

    @classmethod
    def copies(cls, start: Tensor, n_clients: int, rule: StepRule) -> Stacked:
        """Return ``n_clients`` copies of a weight array."""
        return cls(start, start.expand(n_clients, *start.shape).clone(), rule)

    def first(self, a: int) -> Stacked:
        """Return the weights of the first ``a`` clients: the same memory, not copies."""
        velocity = None if self.velocity is None else self.velocity[:a]
        square = None if self.square is None else self.square[:a]
        return Stacked(self.start, self.value[:a], self.rule, velocity, square, self.n_steps)

    def descend(self, gradient: Tensor) -> None:
        """Take a step along the gradients, (a, ...)."""
        if self.velocity is not None and self.square is not None and self.n_steps is not None:
            self._adam(gradient, self.velocity, self.square, self.n_steps)
        elif self.velocity is None:
            if self.rule.decay:
                self.value.mul_(1.0 - self.rule.lr * self.rule.decay)
                self._pull()
            self.value.sub_(gradient, alpha=self.rule.lr)
        else:
            self.velocity.mul_(self.rule.momentum).add_(gradient)
            self._follow(self.velocity)

    def descend_product(self, left: Tensor, right: Tensor) -> None:
        """Take a step along the gradient ``left @ right`` of matrices, which SGD never stores."""
        if self.square is not None:
            self.descend(torch.bmm(left, right))
        elif self.velocity is None:
            keep = 1.0 - self.rule.lr * self.rule.decay
            self.value.baddbmm_(left, right, beta=keep, alpha=-self.rule.lr)
            self._pull()
        else:
            self.velocity.baddbmm_(left, right, beta=self.rule.momentum)
            self._follow(self.velocity)

    def _pull(self) -> None:
        if self.rule.proximal:
            self.value.add_(self.start, alpha=self.rule.lr * self.rule.proximal)

    def _follow(self, velocity: Tensor) -> None:
        if self.rule.decay:
            velocity.add_(self.value, alpha=self.rule.decay)
        if self.rule.proximal:
            velocity.sub_(self.start, alpha=self.rule.proximal)
        self.value.sub_(velocity, alpha=self.rule.lr)

    def _adam(self, gradient: Tensor, mean: Tensor, square: Tensor, n_steps: Tensor) -> None:
        if self.rule.decay:
            gradient = gradient.add(self.value, alpha=self.rule.decay)
        if self.rule.proximal:
            gradient = gradient.sub(self.start, alpha=self.rule.proximal)
        adam(  # all of it in one pass over the memory
            [self.value],
            [gradient.contiguous()],  # the kernel does not look at strides
            [mean],
            [square],
            [],
            [n_steps],
            fused=True,
            amsgrad=False,
            beta1=MEAN_RATE,
            beta2=SQUARE_RATE,
            lr=self.rule.lr,
            weight_decay=0.0,
            eps=SMALLEST,
            maximize=False,
        )


class Losses(NamedTuple):
    """What each client of a tile reports; see ``base.Updates``.

    Args:
        mean: (g,) mean loss of the mini-batches.
        std: (g,) their standard deviation.
        rms: (g,) root mean square of the losses of single labels.

    """

    mean: FloatArray
    std: FloatArray
    rms: FloatArray


@dataclass(frozen=True)
class Task:
    """A tile of g clients to train.

    Args:
        weights: (P,) the global model.
        clients: (g,) the clients, those with the most steps first.
        round: Number of the round.
        plans: The mini-batches of each client.
        first_rows: (g,) where the examples of each client begin.
        rule: How a step changes the weights.
        out: g vectors (P,) that receive the local models.
        draws: (g,) the rounds that key their mini-batches; None = ``round``.

    """

    weights: Tensor
    clients: IntArray
    round: int
    plans: Sequence[BatchPlan]
    first_rows: IntArray
    rule: StepRule
    out: Sequence[Tensor]
    draws: IntArray | None = None

    def tile(self) -> Tile:
        """Return the mini-batches of all clients side by side."""
        return stack(self.plans, self.first_rows)

    def stacked(self, shapes: Sequence[torch.Size]) -> list[Stacked]:
        """Return every weight array of all clients; a single client uses the memory of ``out``."""
        sizes = [shape.numel() for shape in shapes]
        starts = [
            start.view(shape)
            for start, shape in zip(torch.split(self.weights, sizes), shapes, strict=True)
        ]
        if len(self.out) > 1:
            return [Stacked.copies(start, len(self.out), self.rule) for start in starts]
        values = torch.split(self.out[0].copy_(self.weights), sizes)
        return [
            Stacked(start, value.view(1, *start.shape), self.rule)
            for start, value in zip(starts, values, strict=True)
        ]

    def finish(self, stacked: Sequence[Stacked]) -> None:
        """Write the models to ``out``."""
        if len(self.out) > 1:
            for i, out in enumerate(self.out):
                torch.cat([weight.value[i].flatten() for weight in stacked], out=out)


class Engine(ABC):
    """Trains tiles of clients. Several threads use an engine at once.

    Args:
        module: The module.
        data: The examples of all clients.

    """

    name: ClassVar[str]
    is_serial: ClassVar[bool] = False  #: whether tiles must be trained one after the other
    is_shareable: ClassVar[bool] = False  #: whether several threads may ask for scores at once

    def __init__(self, module: nn.Module, data: FederatedData) -> None:
        self.module = module
        self.data = data

    @abstractmethod
    def limit(self) -> int:
        """Return how many clients a tile may hold."""

    @abstractmethod
    def train(self, task: Task) -> Losses:
        """Train the clients of a tile and write their models to ``task.out``."""

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the module for examples."""
        scores: Tensor = self.module(x)
        return scores


def losses_of(losses: Tensor, tile: Tile) -> Losses:
    """Return the reports of the clients of a tile.

    Args:
        losses: (g, steps, width) the loss of each example.
        tile: Says which examples count.

    """
    each = np.where(tile.counts, losses.cpu().numpy(), 0.0)
    at_work = tile.size > 0
    n_steps = at_work.sum(1)
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # losses that are not finite are marked later
        batch = each.sum(2) / np.maximum(tile.size, 1)
        mean = batch.sum(1) / n_steps
        spread = np.where(at_work, batch - mean[:, None], 0.0)
        std = np.sqrt((spread**2).sum(1) / n_steps)
        rms = np.sqrt((each**2).sum((1, 2)) / tile.size.sum(1))
    return Losses(mean, std, rms)


# Worker threads, one per core.
#
# PyTorch releases Python's lock inside its kernels. So two threads, each running kernels on one
# core, keep two cores busy. Kernels that share their own work among cores wait for each other many
# times per mini-batch, each time for a core that another process may use. These threads wait once
# per tile of clients.

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed by threads of one core each.

    A single item is computed in the calling thread, by one core as well.

    Args:
        function: What is computed.
        items: For what.
        threads: How many threads.

    """
    items = list(items)
    if len(items) == 1:
        with _one_core():
            return [function(items[0])]
    return list(_pool(threads, os.getpid()).map(function, items))


@contextmanager
def _one_core() -> Iterator[None]:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return the workers of this process; a forked child has none of its parent's threads."""
    threads_before = torch.get_num_threads()
    are_ready = threading.Barrier(threads + 1)

    def use_one_core() -> None:
        torch.get_num_threads()  # the first call in a thread would undo the setting
        torch.set_num_threads(1)
        are_ready.wait()

    pool = ThreadPoolExecutor(threads, f"turnout-{process}", initializer=use_one_core)
    for _ in range(threads):  # no worker is idle before all are ready, so each call starts one
        pool.submit(int)
    are_ready.wait()
    torch.set_num_threads(threads_before)  # the call in a worker also set it for new threads
    return pool
