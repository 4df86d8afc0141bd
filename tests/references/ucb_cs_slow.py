"""UCB-CS straight from Eqs. (4)-(7) of arXiv:2012.08009, one client at a time.

The whole history is kept and every sum is recomputed with explicit powers of gamma. The exponent
t - t' counts rounds; the newest finished round has exponent 0.
"""

from __future__ import annotations

import math


class SlowUCBCS:
    def __init__(self, n_clients: int, discount: float) -> None:
        self.n_clients = n_clients
        self.discount = discount
        self.history: list[dict[int, float]] = []  # per round: client -> mean local loss
        self.sigma = 0.0

    def power(self, t_prime: int) -> float:
        t = len(self.history) - 1
        return self.discount ** (t - t_prime)

    def discounted_loss(self, k: int) -> float:  # Eq. (5)
        total = 0.0
        for t_prime, chosen in enumerate(self.history):
            if k in chosen:
                total += self.power(t_prime) * chosen[k]
        return total

    def discounted_count(self, k: int) -> float:  # Eq. (6)
        total = 0.0
        for t_prime, chosen in enumerate(self.history):
            if k in chosen:
                total += self.power(t_prime)
        return total

    def discounted_rounds(self) -> float:  # T_t(gamma) of Eq. (7)
        total = 0.0
        for t_prime in range(len(self.history)):
            total += self.power(t_prime)
        return total

    def ever_chosen(self, k: int) -> bool:
        return any(k in chosen for chosen in self.history)

    def mean(self, k: int) -> float:
        return self.discounted_loss(k) / self.discounted_count(k)

    def exploration(self, k: int) -> float:  # U_t of Eq. (7)
        log_t = math.log(self.discounted_rounds())
        return math.sqrt(2.0 * self.sigma**2 * log_t / self.discounted_count(k))

    def index(self, k: int, sizes: list[float]) -> float:  # Eq. (4)
        if not self.ever_chosen(k):
            return math.inf
        known = [size for size in sizes if not math.isnan(size)]
        mean_size = sum(known) / len(known) if known else 1.0
        filled = [mean_size if math.isnan(size) else size for size in sizes]
        p_k = filled[k] / sum(filled)
        return p_k * (self.mean(k) + self.exploration(k))

    def observe(self, clients: list[int], losses: list[float], spreads: list[float]) -> None:
        entry = {}
        for k, loss in zip(clients, losses, strict=True):
            if math.isnan(loss):  # tried without an answer: its own mean, 0 if it has none
                loss = self.mean(k) if self.ever_chosen(k) else 0.0
            entry[k] = loss
        self.history.append(entry)
        known = [spread for spread in spreads if not math.isnan(spread)]
        if known:  # sigma_t: the largest over the latest cohort
            self.sigma = max(known)
