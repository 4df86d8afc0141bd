"""A weight array of several clients, and the rule of a step.

The rule is that of ``torch.optim.SGD`` with FedProx's pull: the gradient plus
``weight_decay * w + proximal * (w - w_global)``, through momentum if there is any. Or it is that of
``torch.optim.Adam``, on the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam

#: Adam's rates of the mean gradient and of its square, and what keeps a division by 0 away.
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
