"""E3CS read straight from the papers, slow and exact: raw weights, alpha by iterating the cases.

Equation numbers are those of the arXiv form; the journal form has the same allocation (its
Eqs. (17)-(23)) and another estimate (its Eq. (15)). Weights are 60-digit decimals, the allocation
is done in fractions, so that nothing overflows and every comparison is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal
from fractions import Fraction
from itertools import permutations

DIGITS = Context(prec=60, Emin=-(10**17), Emax=10**17)


def prob_alloc(k: int, sigma: Fraction, weights: list[Fraction]) -> tuple[list[Fraction], set[int]]:
    """Alg. 2: the probabilities and the overflow set S_t."""
    n = len(weights)
    residual = k - n * sigma
    total = sum(weights)
    if sigma + residual * max(weights) / total > 1:  # line 1
        alpha = find_alpha(k, sigma, weights)  # line 2
        cap = (1 - sigma) * alpha
        overflow = {i for i, w in enumerate(weights) if w > cap}  # line 3
        capped = [min(w, cap) for w in weights]  # line 4
        total = sum(capped)
        return [sigma + residual * w / total for w in capped], overflow  # line 5
    return [sigma + residual * w / total for w in weights], set()  # lines 7-8


def find_alpha(k: int, sigma: Fraction, weights: list[Fraction]) -> Fraction:
    """Eq. (18): try case after case until the premise holds."""
    n = len(weights)
    psi = sorted(w / (1 - sigma) for w in weights)
    for v in range(1, n):  # case v: psi_(v) <= alpha < psi_(v+1)
        below = sum(w for w in weights if w / (1 - sigma) <= psi[v - 1])
        divisor = k - n * sigma - (n - v) * (1 - sigma)
        if divisor <= 0:
            continue
        alpha = below / divisor
        if psi[v - 1] <= alpha < psi[v]:
            return alpha
    raise AssertionError("no case of Eq. (18) holds")


def loss_estimate(chosen: bool, p: Fraction, x: int) -> Fraction:
    """arXiv Eq. (10)."""
    return 1 - Fraction(int(chosen)) / p * (1 - x)


def gain_estimate(chosen: bool, p: Fraction, x: int) -> Fraction:
    """Journal Eq. (15)."""
    return Fraction(int(chosen)) / p * x


ESTIMATES = {"loss": loss_estimate, "gain": gain_estimate}


class SlowE3CS:
    """Alg. 1 for one client after the other.

    Availability is not in the papers: the round is played among the available, and whoever is
    absent counts as not chosen.
    """

    def __init__(self, n_clients: int, eta: Fraction, estimate: str, share: float = 0.0) -> None:
        self.eta = eta
        self.share = Decimal(share)
        self.estimate = ESTIMATES[estimate]
        self.weights = [Decimal(1)] * n_clients  # line 1

    def allocate(
        self, pool: list[int], k: int, sigma: Fraction
    ) -> tuple[dict[int, Fraction], set[int]]:
        """Line 3, among the pool."""
        p, overflow = prob_alloc(k, sigma, [Fraction(self.weights[i]) for i in pool])
        return dict(zip(pool, p, strict=True)), {pool[j] for j in overflow}

    def update(self, pool: list[int], k: int, sigma: Fraction, success: dict[int, int]) -> None:
        """Lines 14-15 (arXiv), 10-11 (journal); ``success`` holds x of the chosen."""
        p, overflow = self.allocate(pool, k, sigma)
        rate = (k - len(pool) * sigma) * self.eta / len(pool)
        for i in range(len(self.weights)):
            if i in overflow:
                continue
            chosen = i in success
            xhat = self.estimate(chosen, p.get(i, Fraction(1)), success.get(i, 0))
            exponent = rate * xhat
            step = DIGITS.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
            self.weights[i] = DIGITS.multiply(self.weights[i], DIGITS.exp(step))
        self.give()

    def give(self) -> None:
        """Fixed share: every client gives a part of its weight to all, one after the other."""
        gift = [DIGITS.multiply(self.share, w) for w in self.weights]
        self.weights = [DIGITS.subtract(w, g) for w, g in zip(self.weights, gift, strict=True)]
        for g in gift:
            part = DIGITS.divide(g, Decimal(len(gift)))
            self.weights = [DIGITS.add(w, part) for w in self.weights]

    def adopt(self, log_weights: Iterable[float]) -> None:
        """Go on from other weights."""
        self.weights = [DIGITS.exp(Decimal(float(value))) for value in log_weights]

    def log_ratios(self) -> list[float]:
        """ln(w_i / w_0) of every client."""
        first = self.weights[0]
        return [float(DIGITS.ln(DIGITS.divide(w, first))) for w in self.weights]


def successive_sampling(weights: list[float], size: int) -> dict[tuple[int, ...], float]:
    """The law of multinomialNR: every set with its chance, by enumerating all orders."""
    law: dict[tuple[int, ...], float] = {}
    for order in permutations(range(len(weights)), size):
        left, chance = sum(weights), 1.0
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        members = tuple(sorted(order))
        law[members] = law.get(members, 0.0) + chance
    return law
