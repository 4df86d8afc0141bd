"""HiCS-FL: groups by the label balance that the last bias shows, balanced ones first.

Paper:      H. Chen, H. Vikalo, Heterogeneity-Guided Client Sampling: Towards Fast and Efficient
            Non-IID Federated Learning, NeurIPS 2024 (first: Accelerating Non-IID Federated Learning
            via Heterogeneity-Guided Client Sampling, arXiv:2310.00198). We read the whole text and,
            line by line, the authors' code (CityChan/HiCS-FL).
Setting:    The chosen clients report the change of the model's last bias (bias_update), one number
            per class. The server uses num_samples if it knows it. The annealing needs a horizon. No
            polls are needed.
Idea:       In classification with cross-entropy, the change of the last bias follows a client's
            labels. Its softmax estimates how balanced they are. Clients are grouped by direction
            and balance, groups are drawn by a softmax over their mean balance, which flattens over
            the rounds, and clients of a group by their data.
Symbols:    bias_ = Delta b, balance = H-hat, temperature = T, weight_of_balance = lambda,
            groups = M, gamma = gamma_0, horizon = T (rounds), share = p_k, cohort_size = K.
Equations:  select: Alg. 1 lines 3-12, Eqs. (7), (9), (10), gamma_t = gamma_0 (1 - t / T).
            observe: Alg. 1 line 18.
Deviations: 1. Eq. (7) has a temperature of its own for each data set, because Delta b grows with
            the step size. With temperature=None, the default, it is half the mean size of the
            largest change of a client. A number restores the paper.
            2. Alg. 1 visits all clients in the first N / K rounds. Here clients that were never
            asked come first in any round, so that clients that join are visited too (Sec. 4.4).
            3. The paper does not say how groups are formed from the distances of Eq. (9). Here the
            two closest are merged by their mean distance until M are left
            (turnout.sampling.linkage). The authors' code takes the rows of the matrix of distances
            for points, and merges by Ward's rule: of_rows=True. The groups are then more even, and
            little else changes: with 50 clients, ten for each Dir(alpha) with alpha = 0.01, 0.1,
            0.5, 1 and 10, the largest of 10 groups had 12 clients instead of 16, and the ten most
            balanced clients got 33 % of the places instead of 31 %.
            4. In federations of more than ``candidates`` known clients, a random part of this size,
            drawn anew in each round, can be chosen. With more than 250 clients, 250 of them form
            the groups, and the others join the nearest one. candidates=None lets everyone be
            chosen, for O(n M C).
            5. Without a horizon, gamma stays at gamma_0.
            6. The authors' code draws clients of a group with equal chances (by_data=False). Both
            forms give models equal weights. So train with MeanReturned("equal"): by data, large
            clients would count twice, in the draw and in the mean.
            7. The authors' code differs from the text in three more points that are not parameters
            here: it computes balance from the weights of the last layer instead of its bias, keeps
            the first report of each client where clients differ in alpha, and uses clustered
            sampling instead in rounds in which the balances vary by more than 0.1.
            8. A client that was asked and has never answered has no direction and the mean balance.
            After ``patience`` unanswered requests in a row, each further one halves a client's
            chance (turnout.sampling.running). patience=None turns this off.
Limits:     The bias shows labels only if the last layer has one and the loss is cross-entropy. The
            number of classes must be set. A group of one balanced client is drawn very often.
Cost:       select O(n + c M C), for c = candidates, plus the groups, O(250^2); observe O(m). State
            (8 C + 9) n bytes.
Checked:    By hand, against a slow implementation and by frequencies, in
            tests/selectors/test_hics_fl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from turnout.core.domains import Count, Flag, Index, NonNegative, Positive
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import (
    LARGEST_REPORT,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.sampling import (
    known_weights,
    multinomial_without_replacement,
    random_part,
    uniform_draw,
)
from turnout.sampling.linkage import row_distances, similar_groups
from turnout.sampling.running import count_unanswered, lowered

#: Clients that form the groups; distances between more would take too long.
MOST_GROUPED = 250

#: Least size of a client, probability, length and temperature.
LEAST = np.finfo(float).tiny

#: Candidates for each place of the cohort, at least.
PER_PLACE = 20


@register("hics-fl")
class HiCSFL(Selector):
    """Draw groups of clients by how balanced their labels seem, then clients within them.

    Args:
        classes: The number of classes, which is the length of the model's last bias.
        groups: How many groups are formed; M in the paper, as many as the cohort has clients.
        gamma: How much balance counts at the start; gamma_0 in the paper. 0 draws all groups alike.
        horizon: Rounds after which balance counts nothing; None keeps gamma. Set it to the length
            of the training.
        weight_of_balance: How much a difference in balance counts beside the angle in the distance
            of two clients; lambda in the paper. Keep 10.
        temperature: Divides the changes of the bias in Eq. (7); None follows their size.
        candidates: Most clients that can be chosen in a round (deviation 4), but at least twenty
            times the cohort. None lets everyone be chosen.
        of_rows: Whether clients are compared by their distances to all others, as in the authors'
            code (deviation 3). Keep False.
        by_data: Whether the chance of a client in its group is in proportion to its data, as in
            the paper; otherwise all have the same (deviation 6). Keep True.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its chance (deviation 8). None never lowers it. Keep 5.
    """

    needs_metrics = frozenset({"bias_update"})
    uses_columns = frozenset({"num_samples"})

    expected_check_failures = MappingProxyType(
        {
            "learns": "it prefers clients with balanced labels, and in the federation of the check "
            "the good clients have the least balanced biases"
        }
    )
    state_ranges = MappingProxyType(
        {"bias_": Range(-LARGEST_REPORT, LARGEST_REPORT), "unanswered_": NOT_NEGATIVE}
    )

    def __init__(
        self,
        *,
        classes: Count = 10,
        groups: Count = 10,
        gamma: NonNegative = 4.0,
        horizon: Count | None = None,
        weight_of_balance: NonNegative = 10.0,
        temperature: Positive | None = None,
        candidates: Count | None = 2000,
        of_rows: Flag = False,
        by_data: Flag = True,
        patience: Index | None = 5,
    ) -> None:
        self.classes = classes
        self.groups = groups
        self.gamma = gamma
        self.horizon = horizon
        self.weight_of_balance = weight_of_balance
        self.temperature = temperature
        self.candidates = candidates
        self.of_rows = of_rows
        self.by_data = by_data
        self.patience = patience

    @property
    def metric_sizes(self) -> Mapping[str, int]:  # type: ignore[override]  # depends on a parameter
        """One number per class."""
        return {"bias_update": self.classes}

    def reset(self, n_clients: int) -> None:
        """No client was asked yet."""
        super().reset(n_clients)
        self.bias_ = np.zeros((n_clients, self.classes))
        self.was_asked_ = np.zeros(n_clients, dtype=np.bool_)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Visit new clients first; then draw by group and data."""
        pool = ctx.pool
        new = np.flatnonzero(~self.was_asked_[pool])
        chosen = new[uniform_draw(new.size, min(new.size, ctx.size), rng)]
        if chosen.size < ctx.size:
            old = self._candidates(np.flatnonzero(self.was_asked_[pool]), ctx.size, rng)
            weight = self._weight(ctx, pool[old], rng)
            drawn = multinomial_without_replacement(weight, ctx.size - chosen.size, rng)
            chosen = np.concatenate((chosen, old[drawn]))
        return Selection(ctx.round, pool[np.sort(chosen)])

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Remember the change of the bias of the chosen; Alg. 1 line 18."""
        chosen, sent = selection.clients, outcome.metric("bias_update", self.classes)
        answered = ~np.isnan(sent[:, 0])  # a vector is whole or missing
        count_unanswered(self.unanswered_, chosen, answered)
        self.bias_[chosen[answered]] = sent[answered]
        self.was_asked_[chosen] = True

    def _candidates(self, old: IntArray, size: int, rng: np.random.Generator) -> IntArray:
        """Return the clients that can be chosen in this round; deviation 4."""
        most = old.size if self.candidates is None else max(self.candidates, PER_PLACE * size)
        return random_part(old, most, rng)

    def _weight(self, ctx: RoundContext, clients: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return the chance of each of some clients in one draw; Eq. (10)."""
        size = np.ones(clients.size)
        if self.by_data and "num_samples" in ctx.columns:
            size = np.maximum(known_weights(ctx.column("num_samples"))[clients], LEAST)
        share = size / size.max(initial=1.0)
        direction, balance = described(self.bias_[clients], self.temperature)
        group = self._groups(direction, balance, rng)
        n_members = np.bincount(group, minlength=self.groups)
        mean = np.bincount(group, balance, minlength=self.groups) / np.maximum(n_members, 1)
        left = 1.0 if self.horizon is None else max(0.0, 1.0 - ctx.round / self.horizon)
        chance = np.exp(self.gamma * left * (mean - mean.max(initial=0.0)))  # pi, unscaled
        data = np.bincount(group, share, minlength=self.groups)
        weight = chance[group] * share / data[group]
        return lowered(weight, self.unanswered_[clients], self.patience)

    def _groups(
        self, direction: FloatArray, balance: FloatArray, rng: np.random.Generator
    ) -> IntArray:
        """Return the group of each client by Eq. (9), from 0."""
        factor, n = self.weight_of_balance, balance.size
        if n <= MOST_GROUPED:
            far = distances(direction, balance, direction, balance, factor)
            if self.of_rows:
                return similar_groups(row_distances(far), self.groups, "ward")
            return similar_groups(far, self.groups)
        some = np.sort(rng.choice(n, MOST_GROUPED, replace=False))
        group = self._groups(direction[some], balance[some], rng)
        n_members = np.bincount(group)
        centre = np.zeros((n_members.size, direction.shape[1]))
        np.add.at(centre, group, direction[some])
        centre /= np.maximum(np.linalg.norm(centre, axis=1, keepdims=True), LEAST)
        level = np.bincount(group, balance[some]) / n_members
        nearest: IntArray = distances(direction, balance, centre, level, factor).argmin(axis=1)
        return nearest


def described(bias: FloatArray, temperature: float | None) -> tuple[FloatArray, FloatArray]:
    """Return the direction (n, C) of each change and the balance (n,) of Eq. (7).

    Args:
        bias: (n, C) changes of the last bias; zeros for a client that never answered.
        temperature: T; None is half the mean of the largest change of each client.
    """
    largest = np.abs(bias).max(axis=1)
    known = largest > 0.0
    scaled = bias / np.where(known, largest, 1.0)[:, None]
    length = np.linalg.norm(scaled, axis=1)
    direction = scaled / np.where(known, length, 1.0)[:, None]
    heat = temperature
    if heat is None:
        heat = 0.5 * float(largest[known].mean()) if known.any() else 1.0
    gap = bias - bias.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        logit = gap / max(heat, LEAST)  # at most 0; minus infinity is no chance
    p = np.exp(logit)
    p /= p.sum(axis=1, keepdims=True)
    balance = -np.sum(p * np.log(np.maximum(p, LEAST)), axis=1)  # Eq. (7)
    usual = float(balance[known].mean()) if known.any() else 0.0
    return direction, np.where(known, balance, usual)


def distances(
    direction: FloatArray,
    balance: FloatArray,
    others: FloatArray,
    their_balance: FloatArray,
    factor: float,
) -> FloatArray:
    """Return (n, k) the distances of Eq. (9).

    Args:
        direction: (n, C) of length 1, or zeros.
        balance: (n,) of Eq. (7).
        others: (k, C) the directions of the others.
        their_balance: (k,) their balance.
        factor: lambda.
    """
    angle = np.arccos(np.clip(direction @ others.T, -1.0, 1.0))
    found: FloatArray = angle + factor * np.abs(balance[:, None] - their_balance)
    if direction is others:
        np.fill_diagonal(found, 0.0)
    return found
