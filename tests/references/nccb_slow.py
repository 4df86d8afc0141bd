"""NCCB as the paper writes it: doubled inputs, full gradients, the whole matrix Z, no tricks.

Alg. 1 and Eqs. (9)-(14) of Cao et al., with the readings listed in the selector's
docstring. Gradients of all weights come one input at a time from torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

FloatArray = np.ndarray


class SlowNCCB:
    def __init__(
        self,
        *,
        weights: Sequence[FloatArray],  # W_1 (w, 2d), ..., W_L (1, w) at theta_0
        centroids: FloatArray,
        threshold: int,
        ridge: float,
        explore: float,
        steps: int,
        learning_rate: float,
        memory: int | None,
        bonus: str,
        standardize: bool,
    ) -> None:
        self.start = [torch.tensor(w, dtype=torch.float64) for w in weights]
        self.weights = [w.clone() for w in self.start]
        self.width = weights[0].shape[0]
        self.centroids = centroids
        self.count = [0] * len(centroids)
        self.threshold, self.ridge, self.explore = threshold, ridge, explore
        self.steps, self.learning_rate = steps, learning_rate
        self.memory, self.bonus, self.standardize = memory, bonus, standardize
        self.played: list[FloatArray] = []  # gradients
        self.replay: list[tuple[FloatArray, float]] = []  # x, reward

    def cluster_of(self, x: FloatArray) -> int:
        return int(np.argmin([round(float(np.sum((x - c) ** 2)), 9) for c in self.centroids]))

    def value(self, weights: Sequence[Tensor], x: FloatArray) -> Tensor:
        h = torch.tensor(np.concatenate((x, x)) / math.sqrt(2.0))  # ours: doubled features
        for w in weights[:-1]:
            h = torch.relu(w @ h)
        return math.sqrt(self.width) * (weights[-1] @ h)[0]  # Eq. (9)

    def gradient(self, x: FloatArray) -> FloatArray:
        weights = [w.clone().requires_grad_() for w in self.weights]
        parts = torch.autograd.grad(self.value(weights, x), weights)
        return np.concatenate([part.numpy().ravel() for part in parts])

    def matrix(self) -> FloatArray:
        all_of_them = self.memory is None or self.bonus == "diagonal"
        kept = self.played if all_of_them else self.played[-self.memory :]
        n_weights = sum(w.numel() for w in self.start)
        z = self.ridge * np.eye(n_weights)
        for g in kept:
            z = z + np.outer(g, g) / self.width  # Eq. (14)
        return np.diag(np.diag(z)) if self.bonus == "diagonal" else z

    def bounds(self, xs: FloatArray) -> FloatArray:
        inverse = np.linalg.inv(self.matrix())
        result = []
        for x in xs:
            g = self.gradient(x)
            f = float(self.value(self.weights, x))
            result.append(f + self.explore * math.sqrt(g @ inverse @ g / self.width))  # Eq. (13)
        return np.array(result)

    def allows(self, xs: FloatArray, pool: Sequence[int], chosen: Sequence[int], m: int) -> bool:
        """Can Alg. 1, lines 7-21, have chosen these clients?"""
        cluster = {i: self.cluster_of(xs[i]) for i in pool}
        unexplored = {c for c in cluster.values() if self.count[c] <= self.threshold}  # line 7
        if len(unexplored) >= m:  # lines 8-12
            picked = [cluster[i] for i in chosen]
            return len(set(picked)) == m and set(picked) <= unexplored
        u = dict(zip(pool, self.bounds(xs[list(pool)]), strict=True))
        left_out = max((u[i] for i in pool if i not in chosen), default=-math.inf)
        members = [[i for i in chosen if cluster[i] == c] for c in unexplored]
        for explored in itertools.product(*members):  # one of each unexplored cluster
            best = [u[i] for i in chosen if i not in explored]  # lines 17-20
            if min(best, default=math.inf) >= left_out - 1e-7:
                return True
        return False

    def learn(self, xs: FloatArray, rewards: Sequence[float], *, one_by_one: bool) -> None:
        for x in xs:
            self.count[self.cluster_of(x)] += 1  # line 24
        rewards = [0.0 if math.isnan(r) else r for r in rewards]  # ours: no report, no reward
        news = list(zip(xs, rewards, strict=True))
        for part in [[new] for new in news] if one_by_one else [news]:
            if part:
                self.played += [self.gradient(x) for x, _ in part]
                self.replay += part
                self.train()

    def latest(self) -> list[tuple[FloatArray, float]]:
        return self.replay if self.memory is None else self.replay[-self.memory :]

    def train(self) -> None:
        raw = np.array([r for _, r in self.latest()])
        target = raw
        if self.standardize:
            deviation = raw.std()
            target = np.clip((raw - raw.mean()) / (deviation if deviation > 0 else 1.0), -10, 10)
        xs = [x for x, _ in self.latest()]
        total = sum(float(np.sum(self.gradient(x) ** 2)) / self.width for x in xs)
        step = self.learning_rate / (self.width * (self.ridge + total))
        loss, slope = self.loss(self.weights, xs, target)
        for _ in range(self.steps):
            trial = [w - step * s for w, s in zip(self.weights, slope, strict=True)]
            trial_loss, trial_slope = self.loss(trial, xs, target)
            if trial_loss <= loss:
                self.weights, loss, slope = trial, trial_loss, trial_slope
            else:
                step /= 2

    def loss(
        self, weights: Sequence[Tensor], xs: Sequence[FloatArray], target: FloatArray
    ) -> tuple[float, Sequence[Tensor]]:
        weights = [w.detach().clone().requires_grad_() for w in weights]
        loss = torch.zeros((), dtype=torch.float64)
        for x, r in zip(xs, target, strict=True):
            loss = loss + (self.value(weights, x) - r) ** 2 / 2
        for w, w0 in zip(weights, self.start, strict=True):
            loss = loss + self.width * self.ridge * ((w - w0) ** 2).sum() / 2  # Eq. (10)
        return float(loss.detach()), torch.autograd.grad(loss, weights)


def doubled(flat: FloatArray, dimension: int, width: int, depth: int) -> list[FloatArray]:
    """Return theta_0 with the block-diagonal W_1 of Eq. (11), from weights whose W_1 is merged."""
    half = width // 2
    first = flat[: width * dimension].reshape(width, dimension)
    w = first[:half] * math.sqrt(2.0)
    zero = np.zeros_like(w)
    weights = [np.block([[w, zero], [zero, w]])]
    rest = flat[width * dimension :]
    for _ in range(depth - 2):
        weights.append(rest[: width * width].reshape(width, width))
        rest = rest[width * width :]
    return [*weights, rest.reshape(1, width)]
