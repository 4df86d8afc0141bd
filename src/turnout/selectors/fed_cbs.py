"""Fed-CBS: clients drawn one after the other, so that their labels together are balanced.

Paper:      J. Zhang, A. Li, M. Tang, J. Sun, X. Chen, F. Zhang, C. Chen, Y. Chen, H. Li, Fed-CBS: A
            Heterogeneity-Aware Client Sampling Mechanism for Federated Learning via Class-Imbalance
            Reduction, ICML 2023, arXiv:2209.15245. We read the abstract, two summaries and, line by
            line, the code of a co-author (Yoruko-Tang/FedProphet) and of others (ispras/FedXplore),
            but not the whole text. So no equation is cited by its number.
Setting:    The server knows label_counts, one number per class. No reports, no horizon and no polls
            are needed.
Idea:       A cohort in whose data some labels are more frequent pulls the model toward them. Its
            imbalance (QCID) is the squared distance between the label shares of all its data and
            equal shares. Clients are drawn one after the other. A draw prefers clients that make
            the imbalance of the cohort so far small, and later draws do so more strongly. The first
            draw also prefers clients that were seldom chosen.
Symbols:    label_counts = q_n alpha_n, cohort_size = M, power = beta_1 (beta_m = m power),
            exploration = lambda, count_ = T_n, round + 1 = k, classes = B.
Equations:  select: QCID = sum_b (share of label b - 1 / B)^2. Weights of the first draw:
            QCID^-beta_1 + lambda sqrt(3 ln k / (2 T_n)). Weights of draw m: QCID^-beta_m of the
            clients drawn so far and the candidate. observe: T_n.
Deviations: 1. The paper computes inner products of label counts under encryption, so that the
            server sees no counts. Here the server reads the counts themselves.
            2. The second draw divides its weights by the weight of the first draw. With
            divisor="first", the default, that is the weight of the client that was drawn first. It
            is the same for all candidates, and the weights of all draws multiply to QCID^-beta_M of
            the cohort. A co-author's code has no bonus in the divisor, which gives the same
            chances. FedXplore, by others, takes the bonus of each candidate there:
            divisor="candidate". Then the second draw avoids clients that were seldom chosen.
            3. The co-author's code takes the client with the largest first weight instead of
            drawing one (first="best"), draws six cohorts and keeps the most balanced one
            (cohorts=6), raises the power in equal steps to 10 whatever the size of the cohort
            (last_power=10), and has exploration=1. With 100 clients, 10 classes, cohorts of 10 and
            label shares from Dir(0.1), five seeds of 100 rounds gave a mean QCID of 0.0011 instead
            of 0.0027 with the defaults (random: 0.043). The price is variety: one client took part
            in every round (37 in 100 with the defaults), and 17 of the 100 clients in none.
            4. A QCID below 1e-6 counts as 1e-6, because its inverse has no bound.
            5. T_n starts at 1, as in both public codes. The bonus of a client that was never
            chosen would be infinite.
            6. With more than 2,000 available clients, the cohort is drawn from 2,000 of them (or
            twice the cohort), which are drawn anew in each round.
            7. Clients with unknown or impossible counts count as the mean client. Clients without
            data are chosen only when the others run out.
            8. After ``patience`` unanswered requests in a row, each further one halves a client's
            weight in every draw. patience=None turns this off.
Limits:     Clients may claim false counts, and true ones tell the server about private data. A
            client with balanced labels is drawn first in most rounds. Draws are not taken back: in
            the example of the paper's Fig. 3, the balanced cohort comes in only 2 of 27 rounds, and
            with cohorts=6 in 10 of 27. Large cohorts are slow, see Cost.
Cost:       O(n C + m (m + 2000) C) select with C classes, times ``cohorts``; O(m) observe, state
            16n bytes.
Checked:    By hand, with the example of the paper's Fig. 3, and against exact probabilities of all
            cohorts, in tests/selectors/test_fed_cbs.py.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Literal

import numpy as np

from turnout.core.domains import Count, Index, NonNegative, Positive
from turnout.core.errors import InvalidInput
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE
from turnout.core.types import (
    LARGEST_REPORT,
    Array,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.sampling import random_part, top_m, uniform_draw
from turnout.sampling.running import count_unanswered

#: Clients that are compared in each draw but the first; more would take too long.
MOST_COMPARED = 2_000
#: Imbalance below which a cohort counts as balanced.
BALANCED = 1e-6
#: A client with fewer examples has none.
LEAST_DATA = 1.0 / LARGEST_REPORT


@register("fed-cbs")
class FedCBS(Selector):
    """Draw clients one after the other whose labels together are balanced.

    Args:
        power: How strongly the first draw prefers balance; beta_1 in the paper, 1. Draw m has m
            times this power, as in the paper's experiments.
        exploration: How much clients that were seldom chosen are preferred in the first draw;
            lambda in the paper, 10. 0 turns it off.
        divisor: Whose bonus divides the weights of the second draw (deviation 2). Keep "first".
        last_power: Power of the last draw, to which it grows in equal steps. None is ``power``
            times the number of the draw, as in the paper's experiments. Keep None.
        first: ``"drawn"`` draws the first client, ``"best"`` takes the one with the largest weight
            (deviation 3). Keep "drawn".
        cohorts: How many cohorts are drawn, of which the most balanced one is chosen. Start with 1;
            6 balances better, and takes six times as long.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its weight (deviation 8). None never lowers it. Keep 5.
    """

    whole_cohorts = "it balances the labels of a cohort"
    needs_columns = frozenset({"label_counts"})

    state_ranges = MappingProxyType({"count_": NOT_NEGATIVE, "unanswered_": NOT_NEGATIVE})

    def __init__(
        self,
        *,
        power: Positive = 1.0,
        exploration: NonNegative = 10.0,
        divisor: Literal["first", "candidate"] = "first",
        last_power: Positive | None = None,
        first: Literal["drawn", "best"] = "drawn",
        cohorts: Count = 1,
        patience: Index | None = 5,
    ) -> None:
        self.power = power
        self.exploration = exploration
        self.divisor = divisor
        self.last_power = last_power
        self.first = first
        self.cohorts = cohorts
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """No client was chosen yet."""
        super().reset(n_clients)
        self.count_ = np.zeros(n_clients, dtype=np.int64)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw clients with data; take others only where places are left."""
        column = label_counts(ctx)
        if ctx.size == ctx.pool.size:
            return Selection(ctx.round, ctx.pool)
        with np.errstate(invalid="ignore", over="ignore"):
            total = ctx.of_pool(column @ np.ones(column.shape[1]))
        is_empty = (total >= 0.0) & (total < LEAST_DATA)
        full, empty = ctx.pool[~is_empty], ctx.pool[is_empty]
        size = min(ctx.size, full.size)
        extra = empty[uniform_draw(empty.size, ctx.size - size, rng)]
        full = random_part(full, max(MOST_COMPARED, 2 * size), rng)
        counts = known_counts(column[full])
        drawn = [self._draw(counts, full, size, ctx.round, rng) for _ in range(self.cohorts)]
        best, _ = min(drawn, key=lambda each: each[1])
        return Selection(ctx.round, np.sort(np.concatenate((full[best], extra))))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Count the requests, and those without an answer."""
        self.count_[selection.clients] += 1
        count_unanswered(self.unanswered_, selection.clients, outcome.completed)

    def _draw(
        self,
        counts: FloatArray,
        clients: IntArray,
        size: int,
        round: int,
        rng: np.random.Generator,
    ) -> tuple[IntArray, float]:
        """Return positions of a cohort, and the logarithm of its QCID; the loop is over it."""
        lost, bonus = self._log_loss(clients), self._log_bonus(clients, round)
        by_class = np.ascontiguousarray(counts.T)  # products with it are twice as fast
        total, square = counts.sum(axis=1), np.einsum("ij,ij->i", counts, counts)
        classes = counts.shape[1]
        group, group_total, group_square = np.zeros(classes), 0.0, 0.0
        chosen: list[int] = []
        powers = self.power * np.arange(1.0, size + 1.0)
        if self.last_power is not None:
            powers = np.linspace(self.power, self.last_power, size)
        left = 0.0
        for m, power in enumerate(powers, start=1):
            joint = square + 2.0 * (group @ by_class) + group_square
            imbalance = log_imbalance(joint, total + group_total, classes)
            weight = -power * imbalance
            if m == 1:
                alone = weight
                weight = np.logaddexp(weight, bonus)
            elif m == 2 and self.divisor == "candidate":
                weight -= np.logaddexp(alone[chosen[0]], bonus)
            weight += lost
            weight[chosen] = -np.inf
            if m == 1 and self.first == "best":
                x = int(top_m(weight, 1, rng).chosen[0])
            else:
                x = draw_one(weight, rng)
            chosen.append(x)
            left = float(imbalance[x])
            group += counts[x]
            group_total += float(total[x])
            group_square = float(group @ group)
        return np.array(chosen, dtype=np.int64), left

    def _log_bonus(self, clients: IntArray, round: int) -> FloatArray:
        """Return the logarithm of lambda sqrt(3 ln k / (2 T_n)); -inf where it is 0."""
        scale = self.exploration * math.sqrt(1.5 * math.log(round + 1))
        if scale == 0.0:
            return np.full(clients.size, -np.inf)
        return np.asarray(math.log(scale) - 0.5 * np.log(self.count_[clients] + 1.0))

    def _log_loss(self, clients: IntArray) -> FloatArray:
        """Return the logarithm of what silence has left of each weight: halves, without end."""
        if self.patience is None:
            return np.zeros(clients.size)
        return -math.log(2.0) * np.maximum(self.unanswered_[clients] - self.patience, 0)


def label_counts(ctx: RoundContext) -> Array:
    """Return the column of label counts, or say what is wrong with it.

    Args:
        ctx: The round.
    """
    column = ctx.column("label_counts")
    if column.ndim != 2 or column.shape[1] == 0:
        raise InvalidInput(
            "columns['label_counts'] must have one row per client and one number per class, got "
            f"shape {column.shape}; give an array (n_clients, n_classes).",
            field="columns",
        )
    return column


def known_counts(counts: Array) -> FloatArray:
    """Return label counts, those of the mean client in place of unknown ones.

    Args:
        counts: (p, classes) how many examples of each label clients say they have. A row that is
            not inside [0, 1e30] is unknown, and so is one with NaN.
    """
    known = ((counts >= 0.0) & (counts <= LARGEST_REPORT)).all(axis=1)
    filled = counts.astype(np.float64)
    if not known.all():
        filled[~known] = filled[known].mean(axis=0) if known.any() else 1.0
    return filled


def log_imbalance(square: FloatArray, total: FloatArray, classes: int) -> FloatArray:
    """Return the logarithm of QCID, at least that of 1e-6.

    Args:
        square: (p,) the sum of the squared label counts of each set of clients.
        total: (p,) its number of examples, above 0.
        classes: B.
    """
    return np.log(np.maximum(square / np.square(total) - 1.0 / classes, BALANCED))


def draw_one(log_weight: FloatArray, rng: np.random.Generator) -> int:
    """Return a position, drawn in proportion to weights.

    Args:
        log_weight: (p,) logarithms of the weights, -inf for 0; at least one is finite.
        rng: Generator of the draw.
    """
    ends = np.cumsum(np.exp(log_weight - log_weight.max()))
    return int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
