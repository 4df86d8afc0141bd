"""k-LinUCB: the k largest linear upper confidence bounds on utility.

Paper:      L. Li, W. Chu, J. Langford, R. E. Schapire, A Contextual-Bandit Approach to Personalized
            News Article Recommendation, WWW 2010; with the reward and the top-k choice of
            NCCB (H. Cao, Q. Pan, Y. Zhu, J. Liu, Birds of a Feather Help), its linear baseline.
Setting:    The chosen clients report their RMS loss. The server knows features (n, d) and
            num_samples. No polls are needed.
Idea:       Assume that the reward |D| sqrt(mean loss^2) is linear in the client's features, with
            one set of coefficients for all clients. Take the k clients with the largest optimistic
            prediction.
Symbols:    ridge = lambda, explore = alpha, inverse_ = A^-1, reward_sum_ = sum x r.
Equations:  select: x'theta + alpha sqrt(x' A^-1 x), LinUCB Alg. 1 line 8. observe: lines 12-13.
Deviations: 1. Rewards are standardised by their running mean and deviation, because they differ by
            orders of magnitude between tasks; standardize=False restores raw rewards.
            2. Unknown features (NaN) and impossible ones (beyond 1e30) count as the median of the
            others'. Rows longer than 1e6 are shortened to that length.
            3. A chosen client that reports nothing has the reward 0. Otherwise silent clients would
            stay uncertain, and so attractive, forever.
            4. One regression for all cannot tell a dead client from living ones with the same
            features. So after ``patience`` unanswered requests in a row, each further one lowers
            its index, until it is below all others (turnout.sampling.running); patience=None
            restores the paper.
Limits:     It is misled when utility is not linear in the features. Clients with the same features
            have the same rank and are chosen together. With standardize=False the bonus has the
            unit of the reward: raise explore with it, or newcomers are never tried.
Cost:       O(n d^2) select, O(m d^2) observe, state 8 d^2 + 8n bytes.
Checked:    Against a direct solve, in tests/selectors/test_k_linucb.py.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from turnout.core.domains import Flag, Index, NonNegative, Positive
from turnout.core.errors import InvalidInput, StateFileError
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE
from turnout.core.types import FloatArray, Outcome, RoundContext, Selection
from turnout.sampling import known_weights, top_m
from turnout.sampling.linear import check_ridge, known_features
from turnout.sampling.running import (
    Moments,
    below_everyone,
    count_unanswered,
    lowered,
)


@register("k-linucb")
class KLinUCB(Selector):
    """One ridge regression of utility on features; the k most promising clients.

    Args:
        explore: Width of the confidence bound; alpha in the paper. 0 trusts the regression. Try 1
            first; with standardize=False it has the unit of the reward.
        ridge: Strength of the regularisation; lambda, 1 in the paper. Keep 1.
        standardize: Whether rewards are scaled by their running mean and deviation. False is the
            published form. Keep True.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its score (deviation 4). None never lowers it. Keep 5.
    """

    memo_by_client = frozenset({"features", "num_samples"})
    needs_columns = frozenset({"features", "num_samples"})
    needs_metrics = frozenset({"loss_rms"})
    reports_probability = True

    later_state = frozenset({"unanswered_"})
    state_ranges = MappingProxyType({"unanswered_": NOT_NEGATIVE})

    def __init__(
        self,
        *,
        explore: NonNegative = 1.0,
        ridge: Positive = 1.0,
        standardize: Flag = True,
        patience: Index | None = 5,
    ) -> None:
        self.explore = explore
        self.ridge = ridge
        self.standardize = standardize
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Empty sums; they take the features' dimension from the first feedback."""
        super().reset(n_clients)
        self.inverse_ = np.zeros((0, 0))
        self.reward_sum_ = np.zeros(0)
        self.feature_sum_ = np.zeros(0)
        self.moments_ = np.zeros(3)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)

    def check_state(self) -> None:
        """All sums have the same dimension, the matrix is an inverse, and moments are moments."""
        dimension = self.reward_sum_.size
        if self.inverse_.shape != (dimension, dimension) or self.feature_sum_.size != dimension:
            raise StateFileError("inverse_, reward_sum_ and feature_sum_ differ in dimension.")
        check_ridge("inverse_", self.inverse_[:, :, None], self.ridge)
        for moment in self.moments_[[0, 2]]:
            NOT_NEGATIVE.check("moments_", moment)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take the k largest x'theta + alpha sqrt(x' A^-1 x)."""
        x = known_features(ctx)
        inverse = self._inverse(x.shape[1])
        moments = Moments(*self.moments_)
        centre, scale = (moments.mean, moments.scale) if self.standardize else (0.0, 1.0)
        index = np.zeros(x.shape[0])
        if self.reward_sum_.size:
            theta = inverse @ ((self.reward_sum_ - centre * self.feature_sum_) / scale)
            index += x @ theta
        index += self.explore * np.sqrt(np.maximum(np.einsum("nd,nd->n", x @ inverse, x), 0.0))
        index = lowered(index, ctx.of_pool(self.unanswered_), self.patience, below_everyone)
        ranking = top_m(index, ctx.size, rng)
        chosen = ctx.pool[ranking.chosen]
        samples = known_weights(ctx.column("num_samples"))[chosen]
        memo = {"features": x[ranking.chosen], "num_samples": samples}
        return Selection(ctx.round, chosen, ranking.probability, memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Add the rewards to the regression; no report, no reward."""
        loss = outcome.metric("loss_rms")
        count_unanswered(self.unanswered_, selection.clients, ~np.isnan(loss))
        reward = np.nan_to_num(selection.recall("num_samples") * loss)
        x = selection.recall("features")
        inverse = self._inverse(x.shape[1])
        gain = np.linalg.solve(np.eye(x.shape[0]) + x @ inverse @ x.T, x @ inverse)
        self.inverse_ = inverse - (x @ inverse).T @ gain  # Woodbury: A <- A + x x'
        if self.reward_sum_.size == 0:
            self.reward_sum_, self.feature_sum_ = np.zeros(x.shape[1]), np.zeros(x.shape[1])
        self.reward_sum_ = self.reward_sum_ + reward @ x
        self.feature_sum_ = self.feature_sum_ + x.sum(axis=0)
        self.moments_ = np.array(Moments(*self.moments_).updated(reward))

    def _inverse(self, dimension: int) -> FloatArray:
        if self.inverse_.size == 0:
            return np.eye(dimension) / self.ridge
        if self.inverse_.shape[0] != dimension:
            raise InvalidInput(
                f"columns['features'] must have {self.inverse_.shape[0]} features as in earlier "
                f"rounds, got {dimension}."
            )
        return self.inverse_
