"""What clients report of their updates, computed only where a selector asks for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from turnout.core.arrays import UPDATE_METRICS
from turnout.core.errors import InvalidInput, MissingMetric
from turnout.core.sketch import FOLD, mixing, signs
from turnout.core.types import FloatArray
from turnout.training.base import Trainer

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
