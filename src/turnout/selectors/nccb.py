"""NCCB: clusters first, then the largest neural upper confidence bounds on utility.

Paper:      H. Cao, Q. Pan, Y. Zhu, J. Liu, Birds of a Feather Help: Context-aware Client Selection
            for Efficient Federated Learning; the bound is NeuralUCB (D. Zhou, L. Li, Q. Gu, ICML
            2020).
Setting:    The chosen clients report their RMS loss. The server knows num_samples and features (n,
            d), in the paper 64 SimHash bits made on the client (turnout.data.features). No horizon
            and no polls are needed. It needs torch and scikit-learn: pip install 'turnout[torch]'.
Idea:       Clients with similar features have similar utility |D| sqrt(mean loss^2). Group them
            into clusters. While a cluster has been played at most ``threshold`` times, play a
            random member of it. Fill the cohort with the largest optimistic predictions of a small
            network.
Symbols:    clusters = c, threshold = k, width = w, depth = L, ridge = lambda, explore = gamma,
            ctx.size = m, count_ = Ct, weights_ = theta_t, start_ = theta_0, evidence_ = what Z is
            made of, unexplored = C_un.
Equations:  select: Alg. 1 lines 7-21, Eqs. (9), (13). observe: Eqs. (2), (14), (10), lines 23-24.
            Initial weights: Eqs. (11), (12).
Deviations: 1. The factor sqrt(m) of Eq. (9) is sqrt(width), as in NeuralUCB. Features are scaled to
            length 1 and doubled, [x, x] / sqrt(2), so that f = 0 at theta_0; the first block of Eq.
            (11) is therefore (w/2, d). Unknown or impossible features count as the median of the
            others'. With length 1 a common scale is lost: where it matters, add a constant column
            to the features.
            2. The paper trains on the whole history at every reward. Here each round takes
            ``steps`` gradient steps from the present weights, over the latest ``memory`` rewards.
            memory=None, train_per_reward=True and more steps restore the paper.
            3. bonus="exact" is Z as published, through the Gram matrix of the remembered gradients
            (Woodbury), each taken at the weights it was observed with. With memory=None that is all
            of them; otherwise arms not played for long become uncertain again. bonus="diagonal"
            keeps the diagonal of Z only, of the whole history: use it beyond 1e4 clients. The text
            adds the gradient "after each training". Here it is taken before, as in NeuralUCB.
            4. Rewards are standardised by the mean and deviation of the remembered ones and cut at
            10 deviations, because they differ by orders of magnitude and may be hostile;
            standardize=False restores raw rewards.
            5. Cluster method and number are not stated: k-means on the vectors of length 1, fitted
            once before round 0. Later and changed clients belong to the nearest centroid.
            6. Only clusters with an available client count as unexplored, and the cohort is always
            full. A client that reports nothing has the reward 0, so that silent clients do not stay
            attractive.
            7. Line 18 takes the argmax of U_i over j; the intended symbol is U_j. Bounds closer
            than a billionth of the largest are tied, and ties are broken at random.
            8. One network for all cannot tell a dead client from living ones with the same
            features. So after ``patience`` unanswered requests in a row, each further one lowers
            its bound, until it is below all others (turnout.sampling.running); patience=None
            restores the paper.
            Defaults: threshold is the paper's best on Yelp; the others are ours.
Limits:     It needs features that say something about utility. With random bits it is an expensive
            random draw. The first rounds explore the clusters, whatever they yield. It trusts
            reported losses up to the cut.
Cost:       select O(n H^2 + n H (d + L w)) exact, O(n w (d + L w)) diagonal, H = memory; observe
            O(steps H w (d + L w)). State 8 H (d + 2 L w) + 8n bytes exact.
Checked:    By hand and against Alg. 1 with the full matrix Z, in tests/selectors/test_nccb.py.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from turnout.core import require
from turnout.core.domains import Count, Domain, Flag, Index, Positive, integer, number
from turnout.core.errors import InvalidInput, StateFileError
from turnout.core.registry import register
from turnout.core.rng import Purpose, stream
from turnout.core.schedules import ScheduledNonNegative, at_round
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import FloatArray, IntArray, Outcome, RoundContext, Selection
from turnout.sampling import known_weights, top_m, uniform_draw
from turnout.sampling.linear import k_means, known_features, nearest_centroid, unit_rows
from turnout.sampling.running import (
    Moments,
    below_everyone,
    count_unanswered,
    lowered,
)

if TYPE_CHECKING:
    from turnout.sampling.neural import Network

#: Standardised rewards are cut here.
LARGEST_TARGET = 10.0

#: Smallest ridge; below it the bonus would be rounding error.
SMALLEST_RIDGE = 1e-9

#: Bounds that differ by less than this share of the largest are tied.
TIE = 1e-9

#: Coordinates of vectors of length 1, rounded.
UNIT = Range(-1.0 - 1e-9, 1.0 + 1e-9)


def _check_width(field: str, value: Any) -> None:
    if require.integer(field, value, minimum=2) % 2:
        raise require.wrong(field, "be even", got=f"{value}: theta_0 has two halves")


@register("nccb")
class NCCB(Selector):
    """Explore every cluster, then rank by a neural upper confidence bound.

    Args:
        clusters: Number of groups of similar clients; c in the paper, which does not state it. Try
            the number of kinds of clients that you expect.
        threshold: A cluster is explored first until it was played more often than this; k in the
            paper. 10 was its best on Yelp. Lower it for short runs.
        width: Units per hidden layer; w in the paper. Keep 32.
        depth: Number of weight matrices; L in the paper. Keep 2.
        ridge: Strength of the regularisation; lambda in the paper. Keep 1.
        explore: Width of the confidence bound; gamma in the paper. 0 trusts the network. Try 1
            first.
        bonus: Which form of the matrix Z gives the confidence bound. "exact" is the published one;
            use "diagonal" beyond 10,000 clients.
        memory: How many of the latest rewards are remembered. None keeps all, as the paper does,
            and grows without bound. Try 192 first.
        steps: Gradient steps per training. Try 10 first.
        learning_rate: Length of a gradient step, in units of the largest safe one. Keep 1.
        train_per_reward: Whether to train after every single reward, as the paper does, or once a
            round. Keep False: it is faster by the size of the cohort.
        standardize: Whether rewards are scaled by the mean and deviation of the remembered ones.
            False is the published form. Keep True.
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its score (deviation 8). None never lowers it. Keep 5.
    """

    memo_by_client = frozenset({"features", "num_samples"})
    needs_columns = frozenset({"features", "num_samples"})
    needs_metrics = frozenset({"loss_rms"})

    later_state = frozenset({"unanswered_"})
    state_ranges = MappingProxyType(
        {
            "count_": NOT_NEGATIVE,
            "unanswered_": NOT_NEGATIVE,
            "init_seed_": NOT_NEGATIVE,
            "centroids_": UNIT,
            "features_": UNIT,
            "reward_": NOT_NEGATIVE,
        }
    )

    def __init__(
        self,
        *,
        clusters: Count = 10,
        threshold: Index = 10,
        width: Annotated[int, Domain(_check_width, "even integer >= 2")] = 32,
        depth: Annotated[int, integer(2)] = 2,
        ridge: Annotated[float, number(minimum=SMALLEST_RIDGE)] = 1.0,
        explore: ScheduledNonNegative = 1.0,
        bonus: Literal["exact", "diagonal"] = "exact",
        memory: Count | None = 192,
        steps: Count = 10,
        learning_rate: Positive = 1.0,
        train_per_reward: Flag = False,
        standardize: Flag = True,
        patience: Index | None = 5,
    ) -> None:
        self.clusters = clusters
        self.threshold = threshold
        self.width = width
        self.depth = depth
        self.ridge = ridge
        self.explore = explore
        self.bonus = bonus
        self.memory = memory
        self.steps = steps
        self.learning_rate = learning_rate
        self.train_per_reward = train_per_reward
        self.standardize = standardize
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Counters at 0 (Alg. 1, line 3); the rest takes its shape from the first feedback."""
        super().reset(n_clients)
        self._network(dimension=1)  # fails here, before round 0, when torch is missing
        self.count_ = np.zeros(self.clusters, dtype=np.int64)
        self.centroids_ = np.zeros((0, 0))
        self.start_ = np.zeros(0)
        self.weights_ = np.zeros(0)
        self.evidence_ = np.zeros((0, 0))
        self.features_ = np.zeros((0, 0))
        self.reward_ = np.zeros(0)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)
        self.randomize(stream(0, Purpose.INIT))

    def randomize(self, rng: np.random.Generator) -> None:
        """Draw the seed of theta_0 and of the clustering (Alg. 1, lines 2 and 4)."""
        self.init_seed_ = int(rng.integers(2**63))

    def check_state(self) -> None:
        """Network, replay and evidence fit each other."""
        n_clusters, n_features = self.centroids_.shape
        network = self._network(n_features)
        n_weights = network.n_weights if n_features else 0
        n_factors = network.n_factors if self.bonus == "exact" else n_weights
        n_seen = self.evidence_.shape[0] if self.bonus == "exact" else self.reward_.size
        wanted = {
            "start_": (n_weights,),
            "weights_": (n_weights,),
            "reward_": (n_seen,),
            "features_": (n_seen, n_features),
            "evidence_": (self.evidence_.shape[0], n_factors if self.evidence_.size else 0),
        }
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape or n_clusters > self.clusters:
                raise StateFileError(f"{name} and centroids_ do not fit: {name} must be {shape}.")

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Play unexplored clusters, then the largest upper confidence bounds."""
        everyone = np.ones(ctx.n_clients, dtype=np.bool_)
        x_all = unit_rows(known_features(dataclasses.replace(ctx, available=everyone, busy=None)))
        self._check_dimension(x_all.shape[1])
        centroids, memo = self.centroids_, {}
        if not centroids.size:
            centroids = k_means(x_all, self.clusters, self.init_seed_)  # Alg. 1, line 2
            memo["centroids"] = centroids
        x = ctx.of_pool(x_all)
        explored = self._explore(nearest_centroid(x, centroids), ctx.size, rng)
        chosen = explored
        if explored.size < ctx.size:  # Alg. 1, line 13
            bound = self._bounds(x, ctx.round)
            bound = lowered(bound, ctx.of_pool(self.unanswered_), self.patience, below_everyone)
            bound[explored] = -np.inf
            best = top_m(bound, ctx.size - explored.size, rng).chosen  # lines 17-20
            chosen = np.sort(np.concatenate((explored, best)))
        clients = ctx.pool[chosen]
        memo |= {
            "features": x[chosen],
            "num_samples": known_weights(ctx.column("num_samples"))[clients],
        }
        return Selection(ctx.round, clients, memo=memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Count the plays of each cluster and train on the rewards."""
        x = selection.recall("features")
        self._check_dimension(x.shape[1])
        if not self.centroids_.size:
            self.centroids_ = np.array(selection.recall("centroids"))
            self.start_ = self._network(x.shape[1]).initial(self.init_seed_)
            self.weights_ = self.start_.copy()
            self.features_ = np.zeros((0, x.shape[1]))
        cluster = nearest_centroid(x, self.centroids_)
        self.count_ += np.bincount(cluster, minlength=self.clusters)  # Alg. 1, line 24
        loss = outcome.metric("loss_rms")
        count_unanswered(self.unanswered_, selection.clients, ~np.isnan(loss))
        reward = np.nan_to_num(selection.recall("num_samples") * loss)  # Eq. (2), 0 if silent
        n_trainings = reward.size if self.train_per_reward else min(1, reward.size)
        for part in np.array_split(np.arange(reward.size), n_trainings) if n_trainings else ():
            self._learn(x[part], reward[part])

    def _explore(self, cluster: IntArray, size: int, rng: np.random.Generator) -> IntArray:
        """Return positions of one random member of each unexplored cluster (lines 7-12)."""
        members = np.bincount(cluster, minlength=self.clusters)
        unexplored = np.flatnonzero((self.count_ <= self.threshold) & (members > 0))  # line 7
        n_played = min(size, unexplored.size)
        played = unexplored[uniform_draw(unexplored.size, n_played, rng)]  # line 8
        if not n_played:
            return played
        by_cluster = np.argsort(cluster, kind="stable")
        first = np.cumsum(members) - members
        return np.sort(by_cluster[first[played] + rng.integers(members[played])])  # line 10

    def _bounds(self, x: FloatArray, round: int) -> FloatArray:
        """Return U of Eq. (13), rounded so that equal clients are tied."""
        from turnout.sampling import neural

        network = self._network(x.shape[1])
        bound = neural.upper_bounds(
            network,
            self.weights_ if self.weights_.size else network.initial(self.init_seed_),
            self.evidence_,
            x,
            ridge=self.ridge,
            explore=at_round("explore", self.explore, round),
            bonus=self.bonus,
        )
        step = TIE * float(np.abs(bound).max())
        return np.round(bound / step) if step > 0.0 else bound

    def _learn(self, x: FloatArray, reward: FloatArray) -> None:
        """Add observations to Z and to the replay, then train (line 23)."""
        from turnout.sampling import neural

        network = self._network(x.shape[1])
        self.evidence_ = neural.remember(
            network, self.weights_, self.evidence_, x, bonus=self.bonus, memory=self.memory
        )
        latest = slice(0 if self.memory is None else -self.memory, None)
        self.features_ = np.concatenate((self.features_, x))[latest].copy()
        self.reward_ = np.concatenate((self.reward_, reward))[latest].copy()
        self.weights_ = neural.train(
            network,
            self.weights_,
            self.start_,
            self.features_,
            self._targets(),
            ridge=self.ridge,
            learning_rate=self.learning_rate,
            steps=self.steps,
        )

    def _targets(self) -> FloatArray:
        if not self.standardize:
            return self.reward_
        moments = Moments().updated(self.reward_)
        target = (self.reward_ - moments.mean) / moments.scale
        return np.clip(target, -LARGEST_TARGET, LARGEST_TARGET)

    def _network(self, dimension: int) -> Network:
        from turnout.sampling import neural  # needs torch: not at the top

        return neural.Network(dimension, self.width, self.depth)

    def _check_dimension(self, dimension: int) -> None:
        if dimension == 0:
            raise InvalidInput("columns['features'] must have at least one feature, got 0.")
        if self.centroids_.size and self.centroids_.shape[1] != dimension:
            raise InvalidInput(
                f"columns['features'] must have {self.centroids_.shape[1]} features as in earlier "
                f"rounds, got {dimension}."
            )
