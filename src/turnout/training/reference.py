"""The reference trainer: one client after the other, with autograd and ``torch.optim``.

It is simple on purpose. Fast trainers are tested against it. ``TorchTrainer`` holds what all
trainers share: checks, mini-batches, the first model and evaluation.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from turnout.core.errors import MissingExtra

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.core import require
from turnout.core.arrays import LARGEST_REPORT, UPDATE_METRICS, client_indices
from turnout.core.errors import InvalidInput, MissingMetric
from turnout.core.names import import_object
from turnout.core.sketch import FOLD, mixing, signs
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, PollData
from turnout.data.base import PADDING, FederatedData
from turnout.training.base import ClientScores, LocalAlgorithm, ModelScores, Trainer, Updates
from turnout.training.local import LOSSES, BatchPlan, LocalWork, client_plan, polled_rows
from turnout.training.models import Model
from turnout.training.modules import (
    Loss,
    changing_buffers,
    check_batches,
    counted,
    device_named,
    initial_module,
    input_tensor,
    label_tensor,
    least_batch,
    load_weights,
    loss_named,
    read_weights,
    seeded,
)

# Loss and accuracy of a model on groups of examples, for all clients at once.

#: Most examples, and most scores, that are computed at a time.
ROWS, SCORES = 256, 1 << 21

#: Returns for some rows, (3, rows): sum of losses, number of right labels, number of labels.
ScoreRows = Callable[[IntArray], FloatArray]


def one_by_one(part: ScoreRows, items: list[IntArray]) -> list[FloatArray]:
    """Compute one part after the other.

    Args:
        part: Computes a part.
        items: The rows of each part.

    """
    return [part(item) for item in items]


def client_rows(offsets: IntArray, clients: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of some clients, and for each row the position of its client.

    Args:
        offsets: (n + 1,) where the rows of each client begin.
        clients: Which clients.

    """
    sizes = np.diff(offsets)[clients]
    group = np.repeat(np.arange(clients.size), sizes)
    shift = offsets[clients] - (np.cumsum(sizes) - sizes)
    return np.arange(group.size) + shift[group], group


@dataclass(frozen=True)
class Scorer:
    """Scores examples, a few at a time.

    Args:
        data: Says how examples become tensors.
        device: Where they are scored.
        answer: Returns the scores of examples by the current model.
        each: Computes all parts; it may compute several at once.
        loss: The loss of a label; None is the cross-entropy.

    """

    data: FederatedData
    device: torch.device
    answer: Callable[[Tensor], Tensor]
    each: Callable[[ScoreRows, list[IntArray]], list[FloatArray]] = one_by_one
    loss: Loss | None = None

    def of_groups(
        self, x: Array, y: IntArray, rows: IntArray, group: IntArray, n_groups: int
    ) -> ClientScores:
        """Return loss and accuracy over the rows of each group; NaN for a group without labels."""

        def part(some: IntArray) -> FloatArray:
            with torch.inference_mode():
                scores = self.answer(input_tensor(self.data, x[some], self.device))
                sums = _sums(scores, label_tensor(y[some], self.device), self.loss)
            array: FloatArray = sums.cpu().numpy()
            return array

        per_row = int(np.prod(y.shape[1:])) * self.data.n_classes
        at_a_time = max(1, min(ROWS, SCORES // per_row))
        parts = [rows[start : start + at_a_time] for start in range(0, rows.size, at_a_time)]
        nothing = np.zeros((3, 0))
        loss, correct, counted = np.concatenate([nothing, *self.each(part, parts)], axis=1)
        labels = np.bincount(group, counted, n_groups).astype(float)  # integers without any row
        labels[labels == 0] = np.nan
        return ClientScores(
            np.bincount(group, loss, n_groups) / labels,
            np.bincount(group, correct, n_groups) / labels,
        )


def at_worst(scores: ClientScores) -> ClientScores:
    """Return scores in which a model that diverged has the worst scores instead of none.

    A loss that is not finite, or above ``LARGEST_REPORT``, becomes ``LARGEST_REPORT`` with
    accuracy 0. Clients without labels have no accuracy. They stay NaN.

    Args:
        scores: The scores of each client.

    """
    is_lost = ~np.isnan(scores.accuracy) & ~(scores.loss <= LARGEST_REPORT)
    return ClientScores(
        np.where(is_lost, LARGEST_REPORT, scores.loss), np.where(is_lost, 0.0, scores.accuracy)
    )


def _sums(scores: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return for each row the sum of its losses, how many labels are right and how many count."""
    n = labels.shape[0]
    if labels.is_floating_point():  # no target is ever right
        assert loss is not None
        losses = loss(scores, labels).double()
        return torch.stack([losses, torch.zeros_like(losses), torch.ones_like(losses)])
    counts = labels.reshape(n, -1) != PADDING  # padding is never right
    right = (scores.reshape(*labels.shape, -1).argmax(dim=-1) == labels).reshape(n, -1)
    if loss is None:
        losses = torch.nn.functional.cross_entropy(
            scores.reshape(labels.numel(), -1),
            labels.reshape(-1),
            ignore_index=PADDING,
            reduction="none",
        ).reshape(n, -1)
    else:
        losses = torch.zeros(counts.shape, device=scores.device)
        losses[counts] = loss(*counted(scores, labels))
    return torch.stack([losses.double().sum(1), right.sum(1).double(), counts.sum(1).double()])


class TorchTrainer(ABC):
    """Base of the trainers on PyTorch; see ``base.Trainer``. It loads weights into one module.

    Args:
        data: The examples of all clients.
        model: What is trained: a recipe or a module.
        local: How long and by which rule a client trains.
        seed: Fixes the first model and all mini-batches.
        device: A device of PyTorch such as ``"cpu"`` or ``"cuda"``.

    """

    def __init__(
        self,
        data: FederatedData,
        model: Model | nn.Module,
        local: LocalWork,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        require.integer("seed", seed, minimum=0)
        _check_data(data, local)
        self.data = data
        self.model = model
        self.local = local
        self.seed = seed
        self.device = device_named(device)
        self.module = initial_module(model, data, seed).to(self.device)
        self.buffers = changing_buffers(self.module, data)  #: names; they follow the weights
        self.least_batch = least_batch(self.module, data)  #: examples of the smallest mini-batch
        check_batches(self.module, data, local.batch_size, self.least_batch)
        self.steps = local.steps_of(data.num_samples, seed)  #: (n,) SGD steps in a round
        self.loss = loss_named(local.loss, self.module, data)
        is_usual = local.loss == LOSSES[0]
        self.scorer = Scorer(data, self.device, self.module, loss=None if is_usual else self.loss)
        self._initial = read_weights(self.module, self.buffers)
        #: What clients do beside gradient steps, if anything.
        self.algorithm = _algorithm(local.algorithm) if local.algorithm else None
        if self.algorithm is not None:
            self.algorithm.reset(data.n_clients, self.n_weights - self.n_buffers)

    @property
    def n_weights(self) -> int:
        """Number of weights and changing buffers, P."""
        return self._initial.numel()

    @property
    def n_buffers(self) -> int:
        """How many of them, the last, are buffers."""
        return sum(self.module.get_buffer(name).numel() for name in self.buffers)

    def initial_weights(self) -> Tensor:
        """Return (P,) the first global model, fixed by the seed."""
        return self._initial.clone()

    @abstractmethod
    def train(
        self, weights: Tensor, clients: IntArray, round: int, draws: IntArray | None = None
    ) -> Updates:
        """Let each client train, starting from the global model."""

    def plans(self, clients: IntArray, round: int, draws: IntArray | None) -> list[BatchPlan]:
        """Return the mini-batches of clients in a round, or in a round of each client's own."""
        keys = [round] * clients.size if draws is None else draws.tolist()
        return [self.plan(client, key) for client, key in zip(clients.tolist(), keys, strict=True)]

    def plan(self, client: int, round: int) -> BatchPlan:
        """Return the mini-batches of a client in a round."""
        n = int(self.data.offsets[client + 1] - self.data.offsets[client])
        steps = int(self.steps[client])
        return client_plan(
            n, self.local.batch_size, steps, self.seed, round, client, self.least_batch
        )

    def polled_loss(
        self, weights: Tensor, clients: IntArray, round: int, data: PollData
    ) -> FloatArray:
        """Return the loss of the model on all of each client's data or on one mini-batch of it."""
        require.choice("data", data, get_args(PollData))
        clients = self.checked_clients(clients)
        rows, group = client_rows(self.data.offsets, clients)
        if data == "mini-batch" and clients.size:
            batches = [self._polled_batch(int(client), round) for client in clients]
            rows = np.concatenate(batches)
            group = np.repeat(np.arange(clients.size), [batch.size for batch in batches])
        self._use(weights)
        scores = self.scorer.of_groups(self.data.x, self.data.y, rows, group, clients.size)
        return np.where(np.isfinite(scores.loss), scores.loss, np.nan)

    def test(self, weights: Tensor) -> ModelScores:
        """Return loss and accuracy on the test set; NaN without one."""
        return self._score(weights, self.data.x_test, self.data.y_test)

    def test_holdout(self, weights: Tensor) -> ModelScores:
        """Return loss and accuracy on what all clients hold out, pooled; NaN without any."""
        return self._score(weights, self.data.x_holdout, self.data.y_holdout)

    def test_clients(self, weights: Tensor, clients: IntArray | None = None) -> ClientScores:
        """Return loss and accuracy on each client's hold-out, or its training data without one.

        If any client holds out examples, only hold-outs count: a client without any gets NaN.
        """
        everybody = np.arange(self.data.n_clients)
        clients = everybody if clients is None else self.checked_clients(clients)
        x, y, offsets = self.data.x, self.data.y, self.data.offsets
        if self.data.has_holdout:
            x, y = self.data.x_holdout, self.data.y_holdout
            offsets = self.data.holdout_offsets
        rows, group = client_rows(offsets, clients)
        self._use(weights)
        return self._public(self.scorer.of_groups(x, y, rows, group, clients.size))

    def module_with(self, weights: Tensor) -> nn.Module:
        """Return a copy of the module with some weights, for evaluation on the CPU."""
        module = copy.deepcopy(self.module).cpu()
        load_weights(module, weights.cpu(), self.buffers)
        return module.eval()

    def checked_clients(self, clients: IntArray) -> IntArray:
        """Return client indices, or raise an error that names one that does not exist."""
        return client_indices("clients", clients, self.data.n_clients)

    def _score(self, weights: Tensor, x: Array, y: IntArray) -> ModelScores:
        self._use(weights)
        rows = np.arange(x.shape[0])
        scores = self._public(self.scorer.of_groups(x, y, rows, np.zeros_like(rows), 1))
        return ModelScores(float(scores.loss[0]), float(scores.accuracy[0]))

    def _public(self, scores: ClientScores) -> ClientScores:
        """Return scores without those that say nothing: targets are never right."""
        scores = at_worst(scores)
        return (
            replace(scores, accuracy=scores.accuracy * np.nan) if self.data.has_targets else scores
        )

    def _use(self, weights: Tensor) -> None:
        load_weights(self.module, weights, self.buffers)
        self.module.eval()

    def _polled_batch(self, client: int, round: int) -> IntArray:
        first = int(self.data.offsets[client])
        n = int(self.data.offsets[client + 1]) - first
        return first + polled_rows(n, self.local.batch_size, self.seed, round, client)


def _check_data(data: FederatedData, local: LocalWork) -> None:
    counts = data.num_samples
    empty = np.flatnonzero(counts == 0)
    if empty.size:
        some = ", ".join(str(client) for client in empty[:5])
        raise InvalidInput(
            f"data: {empty.size} of {data.n_clients} clients have no training examples (clients "
            f"{some}{' ...' if empty.size > 5 else ''}). Use fewer clients, a milder partition "
            "or a smaller hold_out."
        )
    if local.batch_size is not None and local.batch_size > counts.max():
        raise InvalidInput(
            f"batch_size is {local.batch_size} but no client has more than {counts.max()} training "
            "examples. Use a smaller batch, fewer clients or a smaller hold_out, or "
            "batch_size=None for all of a client's data in one step."
        )
    _check_labels(data)


def _check_labels(data: FederatedData) -> None:
    if data.has_targets:
        return
    lowest = PADDING if data.is_text else 0
    for y in (data.y, data.y_holdout, data.y_test):
        if y.size and (y.min() < lowest or y.max() >= data.n_classes):
            raise InvalidInput(
                f"data: labels of {data.name} must be 0 .. {data.n_classes - 1} for its "
                f"{data.n_classes} classes, got {y.min()} .. {y.max()}."
            )
    for x in (data.x, data.x_holdout, data.x_test):
        if data.is_text and x.size and (x.min() < 0 or x.max() >= data.n_classes):
            raise InvalidInput(
                f"data: words of {data.name} must be 0 .. {data.n_classes - 1} for its vocabulary "
                f"of {data.n_classes}, got {x.min()} .. {x.max()}."
            )


# Reports of clients about their training. Numbers that are not finite are made harmless.


class ClientLosses:
    """Collects the losses of one client while it trains."""

    def __init__(self) -> None:
        self.batch_losses: list[float] = []
        self.squares = 0.0  # sum of squared losses of single labels
        self.n_labels = 0

    def add(self, loss: float, losses: Tensor) -> None:
        """Add a mini-batch: its mean loss and the losses of its labels."""
        self.batch_losses.append(loss)
        self.squares += float(losses.double().square().sum())
        self.n_labels += losses.numel()

    def summary(self) -> tuple[float, float, float]:
        """Return mean and deviation of the mini-batch losses, and the RMS loss of a label."""
        with np.errstate(invalid="ignore", over="ignore"):  # ``finished`` marks what is not finite
            mean, std = np.mean(self.batch_losses), np.std(self.batch_losses)
        return float(mean), float(std), (self.squares / max(1, self.n_labels)) ** 0.5


def finished(
    weights: Tensor,
    local: Tensor,
    num_examples: IntArray,
    loss: FloatArray,
    loss_std: FloatArray,
    loss_rms: FloatArray,
    steps: IntArray,
) -> Updates:
    """Return the updates of a cohort; make those that are not finite harmless.

    A client with a loss or a weight that is not finite gets NaN in its reports and the global model
    as its weights, so it cannot spoil an average.

    Args:
        weights: (P,) the global model.
        local: (s, P) the local models. Rows that are not finite are overwritten.
        num_examples: (s,) training examples of each client.
        loss: (s,) mean loss of each client's mini-batches.
        loss_std: (s,) their standard deviation.
        loss_rms: (s,) root mean square of the losses of single labels.
        steps: (s,) SGD steps of each client.

    """
    is_sound = _are_finite(local) & np.isfinite(loss)
    for row in np.flatnonzero(~is_sound):
        local[row] = weights
    mean, std, rms = (np.where(is_sound, values, np.nan) for values in (loss, loss_std, loss_rms))
    return Updates(local, num_examples, mean, std, rms, steps)


def _are_finite(rows: Tensor) -> BoolArray:
    """Return which rows are finite. The sum of a finite row may overflow, so look twice."""
    # One sum per row is faster than a test of each number.
    is_finite: BoolArray = torch.isfinite(rows.sum(dim=1)).cpu().numpy()
    for row in np.flatnonzero(~is_finite):
        is_finite[row] = bool(torch.isfinite(rows[row]).all())
    return is_finite


class ReferenceTrainer(TorchTrainer):
    """Trains one client after the other in plain PyTorch; see ``TorchTrainer`` for arguments.

    ``why`` is the reason against a faster trainer, if one was tried.
    """

    how, why = "reference", ""

    def train(
        self, weights: Tensor, clients: IntArray, round: int, draws: IntArray | None = None
    ) -> Updates:
        """Let each client train, starting from the global model."""
        clients = self.checked_clients(clients)
        weights = weights.to(self.device)
        local = torch.empty(clients.size, self.n_weights, device=self.device)
        reports = []
        for row, plan in enumerate(self.plans(clients, round, draws)):
            reports.append(self._train_client(weights, int(clients[row]), round, plan))
            local[row] = read_weights(self.module, self.buffers)
        n_examples, steps = self.data.num_samples[clients], self.steps[clients]
        if self.algorithm is not None:
            self.algorithm.end_round(clients)
        loss, std, rms = np.array([report.summary() for report in reports]).reshape(-1, 3).T
        return finished(weights, local, n_examples, loss, std, rms, steps)

    def _train_client(
        self, weights: Tensor, client: int, round: int, plan: BatchPlan
    ) -> ClientLosses:
        x, y = self._examples(client)
        load_weights(self.module, weights, self.buffers)
        optimizer = self._optimizer(round)
        start = [weight.detach().clone() for weight in self.module.parameters()]
        report = ClientLosses()
        self.module.train()
        with seeded(plan.noise_seed, self.device):
            for step in range(plan.n_steps):
                batch = torch.from_numpy(plan.order[plan.bounds[step] : plan.bounds[step + 1]])
                losses = self.loss(*counted(self.module(x[batch]), y[batch]))
                loss = losses.sum() / max(1, losses.numel())
                optimizer.zero_grad()
                torch.autograd.backward(loss + self._proximal_term(start))
                if self.algorithm is not None:
                    self._direct(self.algorithm, client, weights)
                optimizer.step()
                report.add(loss.item(), losses.detach())
        if self.algorithm is not None:
            end = read_weights(self.module)
            if torch.isfinite(end).all():
                lr = self.local.lr_in(round)
                self.algorithm.finish(client, weights[: end.numel()], end, plan.n_steps, lr)
        return report

    def _direct(self, algorithm: LocalAlgorithm, client: int, start: Tensor) -> None:
        """Let the algorithm change the gradient of a step."""
        with torch.no_grad():
            now = read_weights(self.module)
            arrays = [weight.grad for weight in self.module.parameters()]
            parts = [
                torch.zeros_like(weight) if grad is None else grad
                for weight, grad in zip(self.module.parameters(), arrays, strict=True)
            ]
            flat = torch.cat([part.reshape(-1) for part in parts])
            changed = algorithm.gradient(client, now, start[: now.numel()], flat)
            if not isinstance(changed, Tensor) or changed.shape != flat.shape:
                raise InvalidInput(
                    f"algorithm {self.local.algorithm}: gradient must return a tensor of shape "
                    f"{tuple(flat.shape)}, got {require.shown(changed)}.",
                    field="algorithm",
                )
            pieces = torch.split(changed, [part.numel() for part in parts])
            for weight, piece in zip(self.module.parameters(), pieces, strict=True):
                if weight.requires_grad and (weight.grad is not None or piece.any()):
                    weight.grad = piece.reshape(weight.shape).clone()

    def _optimizer(self, round: int) -> torch.optim.Optimizer:
        weights, local = self.module.parameters(), self.local
        lr, decay = local.lr_in(round), local.weight_decay
        if local.optimizer == "adam":
            return torch.optim.Adam(weights, lr, weight_decay=decay)
        return torch.optim.SGD(weights, lr, momentum=local.momentum, weight_decay=decay)

    def _proximal_term(self, start: list[Tensor]) -> Tensor | float:
        """Return FedProx's ``proximal / 2 * ||w - w_global||^2``."""
        if self.local.proximal == 0.0:
            return 0.0
        pairs = zip(self.module.parameters(), start, strict=True)
        distance = sum((now - then).square().sum() for now, then in pairs)
        return 0.5 * self.local.proximal * distance

    def _examples(self, client: int) -> tuple[Tensor, Tensor]:
        rows = slice(self.data.offsets[client], self.data.offsets[client + 1])
        x = input_tensor(self.data, self.data.x[rows], self.device)
        return x, label_tensor(self.data.y[rows], self.device)


# What clients report of their updates, computed only where a selector asks for it.

#: Weights that are looked at together: few enough for a core's cache, and no second copy of all
#: models is needed.
_NUMBERS = 250_000


class UpdateReports:
    """Computes the length, the sketch and the last bias of updates; buffers do not count.

    Args:
        trainer: The trainer of the model.
        asked: The length of the vectors of each metric; None for single numbers. Other metrics than
            ``UPDATE_METRICS`` are ignored.

    Raises:
        MissingMetric: The last bias of the model has another length than the selector asks for.
    """

    def __init__(self, trainer: Trainer, asked: Mapping[str, int | None]) -> None:
        self.asked = {name: asked[name] for name in UPDATE_METRICS if name in asked}
        for name, size in self.asked.items():
            if (size is None) != (name == "update_norm"):
                raise InvalidInput(
                    "metric_sizes of the selector must give the length of the vectors "
                    f"'update_sketch' and 'bias_update' and of nothing else, got {name!r}: {size}.",
                    field="metric_sizes",
                )
        self._n_weights = trainer.n_weights - trainer.n_buffers
        self._n_bias, n_mixed = self.asked.get("bias_update"), self.asked.get("update_sketch")
        if self._n_bias is not None and self._n_bias != (n_bias := _last_bias(trainer)):
            raise MissingMetric(
                f"the selector needs a 'bias_update' of {self._n_bias} numbers, but the last bias "
                f"of this model has {n_bias}: set the number of classes of the selector to it."
            )
        if n_mixed is not None:
            device = trainer.initial_weights().device
            self._signs = torch.tensor(signs(self._n_weights), device=device)
            self._mixing = torch.tensor(mixing(n_mixed), device=device)

    def of(self, start: Tensor, models: Tensor) -> dict[str, FloatArray]:
        """Return the reports of clients, (s,) or (s, d) each.

        Args:
            start: (P,) the global model.
            models: (s, P) what the clients made of it.
        """
        if not self.asked:
            return {}
        n_at_a_time, n_padding = max(1, _NUMBERS // self._n_weights), -self._n_weights % FOLD
        memory = models.new_zeros(n_at_a_time, self._n_weights + n_padding)
        parts = [self._part(start, some, memory) for some in torch.split(models, n_at_a_time)]
        return {
            name: torch.cat([part[name] for part in parts]).double().cpu().numpy()
            for name in self.asked
        }

    def _part(self, start: Tensor, models: Tensor, memory: Tensor) -> dict[str, Tensor]:
        n = self._n_weights
        padded = memory[: len(models)]
        update = torch.sub(models[:, :n], start[:n], out=padded[:, :n])
        part = {}
        if "update_norm" in self.asked:
            part["update_norm"] = torch.linalg.vector_norm(update, dim=1)
        if self._n_bias is not None:
            part["bias_update"] = update[:, -self._n_bias :].clone()
        if "update_sketch" in self.asked:
            update.mul_(self._signs)
            folded = padded.view(len(models), -1, FOLD).sum(dim=1).double()
            part["update_sketch"] = folded @ self._mixing
        return part


def _last_bias(trainer: Trainer) -> int:
    """Return the length of the last bias of the model; 0 if its last weights are no bias."""
    last = list(trainer.module_with(trainer.initial_weights()).parameters())[-1]
    return last.numel() if last.ndim == 1 else 0


def _algorithm(path: str) -> LocalAlgorithm:
    kind = import_object(path)
    if not (isinstance(kind, type) and issubclass(kind, LocalAlgorithm)):
        raise InvalidInput(
            f"algorithm must name a subclass of turnout.training.LocalAlgorithm, but {path} is "
            f"{require.shown(kind)}.",
            field="algorithm",
        )
    return kind()
