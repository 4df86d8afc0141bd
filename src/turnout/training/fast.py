"""The fast trainer: clients side by side, one tile of them on each core.

Same mini-batches as the reference, same numbers to float tolerance; tested against it.
"""

from __future__ import annotations

from functools import partial

from turnout.errors import MissingExtra

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error

import numpy as np

from turnout import require
from turnout.data.base import FederatedData
from turnout.training.base import Updates
from turnout.training.batched.engine import Losses, Task
from turnout.training.batched.merged import engine_for
from turnout.training.batched.threads import spread
from turnout.training.batched.tiles import cut
from turnout.training.batched.weights import Rule
from turnout.training.local import LocalWork
from turnout.training.models import Model
from turnout.training.reference import ReferenceTrainer
from turnout.training.reports import finished
from turnout.training.scoring import Scorer, one_by_one
from turnout.training.torch_trainer import TorchTrainer
from turnout.types import IntArray

__all__ = ["FastTrainer"]


class FastTrainer(TorchTrainer):
    """Trains a cohort in tiles of clients on ``threads`` cores.

    ``how`` says which way the model is trained, ``why`` what forbade faster ones.
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
        wanted = torch.get_num_threads() if threads is None else threads
        wanted = require.integer("threads", wanted, minimum=1)
        self.threads = wanted if self.device.type == "cpu" else 1
        reference = ReferenceTrainer(data, self.module, local, seed, device)
        largest = int(data.num_samples.max())
        batch_size = largest if local.batch_size is None else min(local.batch_size, largest)
        self.engine, self.why = engine_for(reference, batch_size)
        self.module = reference.module
        is_shared = self.engine.is_shareable and self.device.type == "cpu"
        each = partial(spread, threads=self.threads) if is_shared else one_by_one
        self.scorer = Scorer(data, self.device, self.engine.scores, each)

    @property
    def how(self) -> str:
        """The way the model is trained."""
        return self.engine.name

    def train(self, weights: Tensor, clients: IntArray, round: int) -> Updates:
        """Let clients train from the global model; they start from the same weights."""
        clients = self.checked_clients(clients)
        weights = weights.detach().to(self.device)
        local = torch.empty(clients.size, self.n_weights, device=self.device)
        reports = np.zeros((3, clients.size))
        tiles, tasks = self._tasks(weights, clients, round, local)
        for tile, losses in zip(tiles, self._run(tasks), strict=True):
            reports[:, tile] = losses
        n_examples, (mean, std, rms) = self.data.num_samples[clients], reports
        return finished(weights, local, n_examples, mean, std, rms, self.steps[clients])

    def _tasks(
        self, weights: Tensor, clients: IntArray, round: int, local: Tensor
    ) -> tuple[list[IntArray], list[Task]]:
        plans = [self.plan(int(client), round) for client in clients]
        tiles = cut(plans, self.engine.limit(), self.threads)
        rule = Rule(
            self.local.lr_in(round),
            self.local.momentum,
            self.local.proximal,
            self.local.weight_decay,
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
            )
            for tile in tiles
        ]
        return tiles, tasks

    def _run(self, tasks: list[Task]) -> list[Losses]:
        if self.engine.is_serial or self.device.type != "cpu":
            return [self.engine.train(task) for task in tasks]
        with torch.random.fork_rng(devices=[]):  # engines may touch the generator of all threads
            return spread(self.engine.train, tasks, self.threads)
