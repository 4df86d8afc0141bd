"""Scores of a module, computed by several threads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from turnout.training.batched.engine import Engine
from turnout.training.batched.threads import spread

__all__ = ["Shared"]


class Shared(nn.Module):
    """A module whose answers are computed by an engine, a part of the examples in each thread."""

    def __init__(self, module: nn.Module, engine: Engine, threads: int) -> None:
        super().__init__()
        self.module = module
        self.engine = engine
        self.threads = threads

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module would return."""
        if x.device.type != "cpu" or not self.engine.is_shareable:
            return self.engine.scores(x)
        parts = torch.split(x, -(-x.shape[0] // self.threads))
        return torch.cat(spread(self._answer, parts, self.threads))

    def _answer(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.engine.scores(x)
