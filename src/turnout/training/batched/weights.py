"""One weight array of several clients, and the rule that moves it.

The rule is that of ``torch.optim.SGD`` with FedProx's pull: the gradient plus
``weight_decay * w + proximal * (w - w_global)``, through momentum if there is any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Rule", "Stacked"]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a step moves the weights."""

    lr: float
    momentum: float = 0.0
    proximal: float = 0.0
    weight_decay: float = 0.0

    @property
    def decay(self) -> float:
        """Share of the weights that is added to the gradient."""
        return self.weight_decay + self.proximal


class Stacked:
    """The same weight array of g clients, (g, ...), in which the first few are still at work."""

    def __init__(self, start: Tensor, value: Tensor, rule: Rule) -> None:
        self.start = start  #: (...) in the global model
        self.value = value  #: (g, ...)
        self.rule = rule
        self.velocity = torch.zeros_like(value) if rule.momentum else None

    @classmethod
    def copies(cls, start: Tensor, n_clients: int, rule: Rule) -> Stacked:
        """Return ``n_clients`` copies of a weight array."""
        return cls(start, start.expand(n_clients, *start.shape).clone(), rule)

    def descend(self, gradient: Tensor) -> None:
        """Take a step of the first clients along their gradients, (a, ...)."""
        value = self.value[: gradient.shape[0]]
        if self.velocity is None:
            self._shrink(value)
            value.sub_(gradient, alpha=self.rule.lr)
        else:
            velocity = self.velocity[: gradient.shape[0]]
            velocity.mul_(self.rule.momentum).add_(gradient)
            self._follow(value, velocity)

    def descend_product(self, left: Tensor, right: Tensor) -> None:
        """Take a step along the gradient ``left @ right`` of matrices, which is never stored."""
        value = self.value[: left.shape[0]]
        if self.velocity is None:
            keep = 1.0 - self.rule.lr * self.rule.decay
            value.baddbmm_(left, right, beta=keep, alpha=-self.rule.lr)
            self._pull(value)
        else:
            velocity = self.velocity[: left.shape[0]]
            velocity.baddbmm_(left, right, beta=self.rule.momentum)
            self._follow(value, velocity)

    def _shrink(self, value: Tensor) -> None:
        if self.rule.decay:
            value.mul_(1.0 - self.rule.lr * self.rule.decay)
            self._pull(value)

    def _pull(self, value: Tensor) -> None:
        if self.rule.proximal:
            value.add_(self.start, alpha=self.rule.lr * self.rule.proximal)

    def _follow(self, value: Tensor, velocity: Tensor) -> None:
        if self.rule.decay:
            velocity.add_(value, alpha=self.rule.decay)
        if self.rule.proximal:
            velocity.sub_(self.start, alpha=self.rule.proximal)
        value.sub_(velocity, alpha=self.rule.lr)
