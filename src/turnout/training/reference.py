"""The reference trainer: one client after the other, with autograd and ``torch.optim``.

It is simple on purpose. Fast trainers are tested against it.
"""

from __future__ import annotations

from turnout.errors import MissingExtra

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.training.base import Updates
from turnout.training.modules import (
    input_tensor,
    label_losses,
    label_tensor,
    load_weights,
    read_weights,
    seeded,
)
from turnout.training.reports import ClientLosses, collect
from turnout.training.torch_trainer import TorchTrainer
from turnout.types import IntArray


class ReferenceTrainer(TorchTrainer):
    """Trains one client after the other in plain PyTorch; see ``TorchTrainer`` for arguments."""

    def train(self, weights: Tensor, clients: IntArray, round: int) -> Updates:
        """Let each client train, starting from the global model."""
        clients = self.checked_clients(clients)
        weights = weights.to(self.device)
        local = torch.empty(clients.size, self.n_weights, device=self.device)
        reports = []
        for row, client in enumerate(clients):
            reports.append(self._train_client(weights, int(client), round))
            local[row] = read_weights(self.module, self.buffers)
        return collect(weights, local, self.data.num_samples[clients], reports)

    def _train_client(self, weights: Tensor, client: int, round: int) -> ClientLosses:
        x, y = self._examples(client)
        plan = self.plan(client, round)
        load_weights(self.module, weights, self.buffers)
        optimizer = self._optimizer(round)
        start = [weight.detach().clone() for weight in self.module.parameters()]
        report = ClientLosses()
        self.module.train()
        with seeded(plan.noise_seed, self.device):
            for step in range(plan.n_steps):
                batch = torch.from_numpy(plan.order[plan.bounds[step] : plan.bounds[step + 1]])
                losses = label_losses(self.module(x[batch]), y[batch])
                loss = losses.sum() / max(1, losses.numel())
                optimizer.zero_grad()
                torch.autograd.backward(loss + self._proximal_term(start))
                optimizer.step()
                report.add(loss.item(), losses.detach())
        return report

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
