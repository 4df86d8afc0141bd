"""Oort (OSDI 2021) Algorithm 1, one client at a time, and the law of successive draws."""

from __future__ import annotations

import itertools
import math


def successive_inclusion(weights: list[float], m: int) -> list[float]:
    """Chance of each to be among m drawn one after the other in proportion to what is left.

    Enumerates all ordered outcomes; zero weights are drawn only when nothing else is left.
    """
    n = len(weights)
    inclusion = [0.0] * n
    for order in itertools.permutations(range(n), m):
        chance = 1.0
        left = set(range(n))
        for i in order:
            total = sum(weights[j] for j in left)
            chance *= weights[i] / total if total > 0 else 1.0 / len(left)
            left.remove(i)
        for i in order:
            inclusion[i] += chance
    return inclusion


def quantile_without_interpolation(values: list[float], share: float) -> float:
    """The paper does not say which quantile: from below, as numpy's method "lower"."""
    ordered = sorted(values)
    return ordered[math.floor(share * (len(ordered) - 1))]


class SlowOort:
    def __init__(
        self,
        *,
        explore: float = 0.9,
        explore_decay: float = 0.98,
        explore_min: float = 0.2,
        penalty: float = 2.0,
        cutoff: float = 0.95,
        window: int = 20,
        preferred_duration: float | None = None,
        max_participation: int | None = None,
        normalize: bool = True,
    ) -> None:
        self.explore = explore
        self.explore_decay = explore_decay
        self.explore_min = explore_min
        self.penalty = penalty
        self.cutoff = cutoff
        self.window = window
        self.preferred_duration = preferred_duration
        self.max_participation = max_participation
        self.normalize = normalize
        self.utility: dict[int, float] = {}  # U; its keys are E, the explored clients
        self.last: dict[int, int] = {}  # L, rounds from 1
        self.duration: dict[int, float] = {}  # D, where known
        self.times: dict[int, int] = {}
        self.collected: list[float] = []  # statistical utility per round
        self.pace = 0

    def epsilon(self, round_index: int) -> float:
        return max(self.explore * self.explore_decay**round_index, self.explore_min)

    def preferred(self) -> float:  # T
        if self.preferred_duration is not None:
            return self.preferred_duration * (1 + self.pace)
        if not self.duration:
            return math.inf
        share = min(1.0, 0.3 + 0.05 * self.pace)
        return quantile_without_interpolation(list(self.duration.values()), share)

    def excluded(self, i: int) -> bool:
        return self.max_participation is not None and (
            self.times.get(i, 0) >= self.max_participation
        )

    def scores(self, tried: list[int], round_index: int) -> dict[int, float]:
        r = round_index + 1
        utilities = [self.utility[i] for i in tried]
        clip = quantile_without_interpolation(utilities, 0.95) if len(tried) > 2 else math.inf
        clipped = {i: min(self.utility[i], clip) for i in tried}
        low, high = min(clipped.values()), max(clipped.values())
        preferred = self.preferred()
        result = {}
        for i in tried:
            u = clipped[i]
            if self.normalize and high > low:
                u = (u - low) / (high - low)
            elif self.normalize:
                u = 0.0
            u += math.sqrt(0.1 * math.log(r) / self.last[i])  # temporal uncertainty
            if i in self.duration and preferred < self.duration[i]:
                u *= (preferred / self.duration[i]) ** self.penalty  # system utility
            result[i] = u
        return result

    def admitted(self, scores: dict[int, float], size: int) -> list[int]:
        ordered = sorted(scores.values(), reverse=True)
        cut = self.cutoff * ordered[size - 1]
        return sorted(i for i, score in scores.items() if score >= cut)

    def feedback(
        self,
        round_index: int,
        clients: list[int],
        sizes: list[float],
        rms: list[float],
        durations: list[float],
    ) -> None:
        collected = 0.0
        for i, size, loss, seconds in zip(clients, sizes, rms, durations, strict=True):
            self.utility.setdefault(i, 0.0)  # explored, also without an answer
            if not math.isnan(loss):
                self.utility[i] = size * loss  # |B| sqrt(mean loss^2)
                collected += self.utility[i]
            self.last[i] = round_index + 1
            self.times[i] = self.times.get(i, 0) + 1
            if not math.isnan(seconds):
                self.duration[i] = seconds
        self.collected.append(collected)
        done, w = len(self.collected), self.window
        if done >= 2 * w and done % w == 0:  # pacer, once per window
            before = sum(self.collected[done - 2 * w : done - w])
            latest = sum(self.collected[done - w :])
            if before > latest:
                self.pace += 1


class SlowFedScale:
    """The scores, the preferred duration and the pacer of the authors' code, one client at a time.

    ``reward`` and ``duration`` of a client that was not tried are its size and expected duration.
    """

    def __init__(self, sizes: list[float], expected: list[float], window: int) -> None:
        self.reward, self.duration = list(sizes), list(expected)
        self.last: dict[int, int] = {}
        self.window, self.threshold = window, 30.0
        self.history = [0.0]  # mean utility of the exploited, an empty round first

    def preferred(self) -> float:
        if self.threshold >= 100.0:
            return math.inf
        ordered = sorted(self.duration)
        return ordered[min(int(len(ordered) * self.threshold / 100.0), len(ordered) - 1)]

    def scores(self, pool: list[int], round_index: int) -> dict[int, float]:
        ordered = sorted(self.reward[i] for i in pool if self.reward[i] > 0)
        clip = ordered[min(int(len(ordered) * 0.9), len(ordered) - 1)]
        low = 0.999 * ordered[0]
        width = max(ordered[-1] - low, 1e-4)
        result = {}
        for i in pool:
            if i in self.last:
                score = (min(self.reward[i], clip) - low) / width
                score += math.sqrt(0.1 * math.log(round_index + 1) / self.last[i])
                if self.duration[i] > self.preferred():
                    score *= (self.preferred() / self.duration[i]) ** 2
                result[i] = abs(score)
        return result

    def feedback(
        self, t: int, exploited: list[int], reported: dict[int, tuple[float, float]]
    ) -> None:
        for i, (utility, seconds) in reported.items():
            self.reward[i], self.duration[i], self.last[i] = utility, seconds, t + 1
        useful = [self.reward[i] for i in exploited if i in reported]
        self.history.append(sum(useful) / len(useful) if useful else 0.0)
        done, w = len(self.history), self.window
        if done >= 2 * w and done % w == 0:
            before, latest = sum(self.history[-2 * w : -w]), sum(self.history[-w:])
            if abs(latest - before) <= 0.1 * before:
                self.threshold = min(100.0, self.threshold + 5.0)
            elif abs(latest - before) >= 5.0 * before:
                self.threshold = max(5.0, self.threshold - 5.0)
