"""RBCS-F: fast rounds with a guaranteed rate of participation for everyone.

Paper:      T. Huang, W. Lin, W. Wu, L. He, K. Li, A. Y. Zomaya, An Efficiency-boosting Client
            Selection Scheme for Federated Learning with Fairness Guarantee, IEEE TPDS 2021,
            arXiv:2011.01783.
Setting:    The server measures how long the chosen clients take. It knows context (n, d), in the
            paper [1/mu, s, M/B]. No horizon and no polls are needed. Queues make it fair in the
            long run.
Idea:       A virtual queue per client grows by beta a round and shrinks when the client is chosen.
            A ridge regression per client predicts how long the client will take, at the optimistic
            end. Each round weighs the time of the slowest chosen client, times V, against the
            queues that are served.
Symbols:    rate = beta, penalty = V, ridge = lambda, explore = alpha_t, queue_ = Z_{t,n},
            inverse_ = H^-1_{t,n}, theta_ = theta hat_{t,n}, time = tau bar_{t,n}.
Equations:  select: Eqs. (18), (19), P4 = Eq. (21), Alg. 1. observe: Eq. (6), Alg. 2 lines 14-16.
Deviations: 1. Optimistic times are clipped at 0 as in Eq. (19); Alg. 2 line 9 does not clip.
            clip=False restores the algorithm, with the slowest of the chosen as in Eq. (1); read
            literally, P4 takes the maximum over everyone, where negative times count as 0 anyway.
            2. The paper's Table 2 does not give alpha_t. The default is the constant 0.1.
            turnout.core.schedules.Lemma1 is the schedule of Lemma 1, and any other schedule works
            too.
            3. P4 is solved exactly in one sweep instead of the O(N^2) Alg. 1; ties between queues
            are broken at random, and ties between optima by the smaller limit, never by index.
            4. The indicator s in the context: the text defines it as "has participated in the last
            round" and then charges cold start to those who have not. Contexts come from the
            environment; ours set s = 1 for a client that did not take part.
            5. A chosen client whose duration is unknown (failed, silent) is served by its queue and
            counts as taking until the deadline or, without one, the median of its cohort; otherwise
            silent clients would look fast forever.
            6. Unknown or impossible contexts (NaN, beyond 1e30) count as the median of the others';
            zeros would predict that the client takes no time.
            7. Deviation 5 forgets as slowly as it learned. After ``patience`` requests without an
            answer (turnout.sampling.running) a client is taken to be nearly as slow as the slowest
            5 %. Its queue still serves it at the guaranteed rate; patience=None turns this rule
            off.
Limits:     If rate times n exceeds the cohort, or the mean cohort that availability leaves, no
            schedule can keep the promise: the selector warns, and the queues grow. It assumes that
            durations are linear in the context. The rate is reached late: P4 serves a cohort of
            slow clients only when their queues together exceed V times the extra time that they
            take. So a queue grows to about Z = V x spread / m, spread = slowest - fastest time. A
            slow client is served first after Z / beta rounds, and after T rounds its rate is beta -
            Z / T: within 10 % of the promise after 10 Z / beta. ``rounds_to_rate`` predicts it.
            After 30 rounds a warning gives the prediction if it is above 1,000 rounds. ``guarded``
            with floor = beta n / m makes the same promise and does not wait. Late clients must
            report a duration, or their slowness stays unknown. A client that claims to take forever
            is never chosen, whatever its queue.
Cost:       O(n log n) select, O(n) observe (the queues), state (8 d^2 + 8 d + 16) n bytes:
            112 n for d = 3.
Checked:    by hand, P4 against brute force and Alg. 1, the regression against a direct solve:
            tests/selectors/test_rbcs_f.py. Figs. 2-4: turnout reproduce rbcs-f.
"""

from __future__ import annotations

import math
import warnings
from types import MappingProxyType

import numpy as np

from turnout.core.domains import Count, Flag, Fraction, Index, NonNegative, Positive
from turnout.core.registry import register
from turnout.core.schedules import ScheduledNonNegative, at_round
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE
from turnout.core.types import BoolArray, FloatArray, Outcome, RoundContext, Selection, Status
from turnout.sampling import bottleneck_limit, top_m
from turnout.sampling.linear import (
    check_ridge,
    known_context,
    rank_one_update,
    ridge_start,
    ridge_width,
)
from turnout.sampling.running import count_unanswered, lowered

#: Slack of the test whether the guaranteed rates fit the cohort, for products that round up.
RATE_TOLERANCE = 1e-9

#: Share of the pool that a client which stopped answering is as slow as.
SLOWEST = 0.05

#: A rate that is short by this share counts as reached. It warns if that takes more rounds.
NEARLY, LONG_WAIT = 0.1, 1000.0

#: Rounds before the mean cohort is trusted, and how far it may fall short by chance.
ROUNDS_TO_JUDGE, CHANCE = 30, 0.05

#: The name in the memo of those who were chosen, if the selection is a part.
SERVED = "served"


@register("rbcs-f")
class RBCSF(Selector):
    """Virtual queues for fairness, optimistic linear estimates for speed.

    Args:
        rate: Guaranteed share of rounds per client; beta in the paper. Not above cohort size /
            number of clients. Try half of that first.
        penalty: What a second of the round costs against the queues; V in the paper, which tries 1
            to 50. Larger is faster, and slower to keep the guarantee. Try 20 first.
        ridge: Strength of the regularisation; lambda in the paper, where it is 1. Keep 1.
        explore: Width of the confidence bound on times; alpha_t in the paper. Try 0.1 first;
            ``Lemma1`` is the paper's schedule.
        dimension: Number of features in the column context; d, 3 in the paper. Must fit the column.
        clip: Whether optimistic times below 0 count as 0, as in Eq. (19). False is Alg. 2 as
            printed, see deviation 1. Keep True.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its score (deviation 7). None never lowers it. Keep 5.
    """

    needs_columns = frozenset({"context"})
    reports_probability = True

    later_state = frozenset({"unanswered_", "n_rounds_", "n_served_"})
    state_ranges = MappingProxyType(
        {
            "queue_": NOT_NEGATIVE,
            "unanswered_": NOT_NEGATIVE,
            "n_rounds_": NOT_NEGATIVE,
            "n_served_": NOT_NEGATIVE,
        }
    )

    def __init__(
        self,
        *,
        rate: Fraction = 0.15,
        penalty: NonNegative = 20.0,
        ridge: Positive = 1.0,
        explore: ScheduledNonNegative = 0.1,
        dimension: Count = 3,
        clip: Flag = True,
        patience: Index | None = 5,
    ) -> None:
        self.rate = rate
        self.penalty = penalty
        self.ridge = ridge
        self.explore = explore
        self.dimension = dimension
        self.clip = clip
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Empty queues, H = lambda I, b = 0 (Alg. 2, lines 1-3)."""
        super().reset(n_clients)
        self.queue_ = np.zeros(n_clients)
        self.inverse_, self.theta_ = ridge_start(self.dimension, self.ridge, n_clients)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)
        self.n_rounds_ = self.n_served_ = 0

    def check_state(self) -> None:
        """Each client's matrix must be an inverse."""
        check_ridge("inverse_", self.inverse_, self.ridge)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Solve P4 for the optimistic times."""
        self._warn_if_infeasible(ctx)
        columns = np.array(known_context(ctx, self.dimension).T, order="C")
        deadline = {"deadline": np.array(ctx.deadline)}
        if ctx.size == 0:
            return Selection(ctx.round, ctx.pool, memo={"context": columns[:, :0]} | deadline)
        time = self._optimistic(ctx, columns)
        self._warn_if_late(time, ctx)
        queue = ctx.of_pool(self.queue_)
        limit = bottleneck_limit(time, queue, ctx.size, self.penalty)  # P4, Eq. (21)
        within = np.where(time <= limit, queue, -np.inf)
        ranking = top_m(within, ctx.size, rng)
        chosen = ctx.pool[ranking.chosen]
        memo = {"context": columns[:, chosen]} | deadline
        return Selection(ctx.round, chosen, ranking.probability, memo)

    def part(self, selection: Selection, kept: BoolArray, chance: FloatArray) -> Selection:
        """Return the part; the queues are served as ``select`` chose."""
        part = super().part(selection, kept, chance)
        context = selection.recall("context")[:, kept]
        memo = {**part.memo, "context": context, SERVED: selection.clients}
        return Selection(part.round, part.clients, part.probability, memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Advance every queue, and the regressions of the chosen."""
        c, deadline = selection.recall("context"), float(selection.recall("deadline"))
        count_unanswered(self.unanswered_, selection.clients, outcome.status <= Status.LATE)
        duration = _assumed(outcome.duration, deadline)
        timed = ~np.isnan(duration)
        clients = selection.clients[timed]
        inverse, theta = rank_one_update(
            self.inverse_[:, :, clients], self.theta_[:, clients], c[:, timed], duration[timed]
        )  # Alg. 2, lines 15-16
        self.inverse_[:, :, clients], self.theta_[:, clients] = inverse, theta
        self.n_rounds_ += 1
        chosen = selection.memo.get(SERVED, selection.clients)
        self.n_served_ += chosen.size
        served = np.zeros(self.n_clients)
        served[chosen] = 1.0
        self.queue_ = np.maximum(self.queue_ + self.rate - served, 0.0)  # Eq. (6)

    def guaranteed_rate(self) -> float:
        """Return beta."""
        return self.rate

    def rounds_to_rate(self, ctx: RoundContext) -> float:
        """Predict after how many rounds no client is short of the rate by more than 10 %.

        It is judged by the times that are predicted now, so some rounds of learning are needed.
        Rounds are counted from the first.

        Args:
            ctx: A round, such as the last one.
        """
        if ctx.size == 0:
            return math.inf
        columns = np.array(known_context(ctx, self.dimension).T, order="C")
        return self._wait(_spread(self._optimistic(ctx, columns)), ctx.size)

    def _optimistic(self, ctx: RoundContext, columns: FloatArray) -> FloatArray:
        """Return the times of the pool at the optimistic end."""
        c = ctx.of_pool(columns, axis=1)
        alpha = at_round("explore", self.explore, ctx.round)
        time = np.einsum("dn,dn->n", c, ctx.of_pool(self.theta_, axis=1))  # Alg. 2, line 8
        time -= alpha * ridge_width(ctx.of_pool(self.inverse_, axis=2), c)  # Eq. (19)
        if self.clip:
            np.maximum(time, 0.0, out=time)
        return -lowered(-time, ctx.of_pool(self.unanswered_), self.patience, _nearly_slowest)

    def _wait(self, spread: float, size: int) -> float:
        """Return the rounds until a queue of Z is a tenth of what was promised."""
        backlog = self.penalty * spread / size
        return backlog / (NEARLY * self.rate) if self.rate else 0.0

    def _warn_if_infeasible(self, ctx: RoundContext) -> None:
        needed = self.rate * ctx.n_clients
        if needed > ctx.cohort_size * (1.0 + RATE_TOLERANCE):
            places = f"cohort_size is {ctx.cohort_size}"
            advice = "Lower rate or raise cohort_size"
        elif self.n_rounds_ >= ROUNDS_TO_JUDGE and needed > self._mean_cohort() * (1.0 + CHANCE):
            places = f"so few clients are available that a cohort has {self._mean_cohort():.3g}"
            advice = "Lower rate"
        else:
            return
        warnings.warn(
            f"rate = {self.rate} for {ctx.n_clients} clients needs {needed:g} places a round, but "
            f"{places}: queues will grow without bound. {advice}.",
            stacklevel=4,  # the caller of select
        )

    def _warn_if_late(self, time: FloatArray, ctx: RoundContext) -> None:
        """Warn once if the rate will come late; a place behind is not late."""
        if self.n_rounds_ != ROUNDS_TO_JUDGE or self.rate == 0.0:
            return
        spread = _spread(time)
        wait = self._wait(spread, ctx.size)
        backlog = NEARLY * self.rate * wait
        if wait > LONG_WAIT and backlog > 1.0:
            warnings.warn(
                f"penalty = {self.penalty:g} and times that differ by {_roughly(spread)} s: queues "
                f"will grow to about {_roughly(backlog)} places, and slow clients come within "
                f"{NEARLY:.0%} of rate = {self.rate:g} after about {_roughly(wait)} rounds. Lower "
                f"penalty, which is per second, or put 'guarded' around it.",
                stacklevel=4,  # the caller of select
            )

    def _mean_cohort(self) -> float:
        return self.n_served_ / self.n_rounds_


def _spread(time: FloatArray) -> float:
    """Return by how much times differ; a few odd ones do not count."""
    return float(np.ptp(np.quantile(time, (SLOWEST, 1.0 - SLOWEST))))


def _roughly(value: float) -> str:
    """Return one digit of a number: a prediction, and the same text for similar runs."""
    return f"{float(f'{value:.1g}'):,g}"


def _nearly_slowest(speed: FloatArray) -> float:
    """Return the border of the slowest 5 %, which one liar cannot move."""
    return float(np.quantile(speed, SLOWEST, method="higher"))


def _assumed(duration: FloatArray, deadline: float) -> FloatArray:
    """Return durations with unknown ones at the deadline, or at the median of the known."""
    unknown = np.isnan(duration)
    if not unknown.any() or (math.isinf(deadline) and unknown.all()):
        return duration
    stand_in = float(np.median(duration[~unknown])) if math.isinf(deadline) else deadline
    return np.where(unknown, stand_in, duration)
