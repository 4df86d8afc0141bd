"""FedCor: clients whose losses fall together, found by a Gaussian process over loss changes.

Paper:      M. Tang, X. Ning, Y. Wang, J. Sun, Y. Wang, H. Li, Y. Chen, FedCor: Correlation-Based
            Active Client Selection Strategy for Heterogeneous Federated Learning, CVPR 2022,
            arXiv:2103.13822. We read the abstract and, line by line, the authors' code
            (Yoruko-Tang/FedCor), but not the whole text.
Setting:    All clients are polled for their loss before and after each measured round. The server
            knows num_samples. No horizon is needed.
Idea:       A round that trains one client also changes the losses of clients with similar data. The
            changes of all losses in a round are one sample of a Gaussian process over the clients,
            in which each client is a point of a low-dimensional space. Take the client whose
            training should lower the losses of all clients the most, condition the process on it,
            and repeat, so that the next one adds something else.
Symbols:    embedding_ = x_k, covariance = Sigma, sigma = root of its diagonal, share = p_i,
            annealing_ = alpha_k, anneal = beta, interval = Delta t, fading = gamma, change_ = loss
            changes, noise = sigma_n, dimension = d.
Equations:  Those of the authors' code, which names the paper's symbols. select: the largest alpha_k
            / sigma_k sum_i p_i Sigma_ik, then Sigma - Sigma_k Sigma_k^T / Sigma_kk, with Sigma = X
            X^T + sigma_n^2 I. observe: X by gradient ascent (Adam) on the log marginal likelihood
            of the samples, each weighted by gamma to the power of its age in rounds; alpha_k is
            multiplied by beta whenever k is chosen, and is 1 again after each training.
Deviations: 1. After the warm-up, the paper measures every Delta t rounds by training a random
            cohort whose model is thrown away. Here every ``interval``-th round itself has a random
            cohort, since a selector cannot order training for nothing. A larger interval wastes
            less.
            2. The change of a round is known when the next one begins, so the process is trained
            one round later. ``warmup`` + 1 rounds are random, as in the authors' code; the first
            training has the samples of ``warmup`` rounds, theirs of one more.
            3. The code keeps the samples of the last 100 rounds (500 for CIFAR-10), about 25 of
            them. Here the last ``samples`` of them are kept.
            4. Clients that do not answer a poll are left out of that sample's likelihood. A client
            of which nothing was measured keeps its first random x_k. A round in which no client
            completed is not a sample.
            5. The authors' first code had a mean of 0, and trained after every round of the
            warm-up. The later one subtracts the weighted mean of each client's changes, and trains
            once, when the warm-up ends. centered=False is the mean of the former, True of the
            latter and the default. Training is always that of the latter.
            6. Loss changes are cut at 100, so that one impossible report cannot fill the process.
            7. After ``patience`` requests in a row that a client did not complete, each further one
            lowers its score, until it is below all others (turnout.sampling.running).
            patience=None turns this off.
            8. The covariance of the linear kernel has rank d plus noise. So the inverse and the
            conditioning are computed in d dimensions; the result is the same. The code also has a
            squared exponential kernel with a length scale, a free covariance matrix, and
            leave-one-out training; its experiments use neither, and they are not here.
            9. Unknown data sizes (NaN) count as the mean size. Unavailable clients are not chosen,
            but their loss counts.
            Defaults are those of the authors' experiments with Fashion-MNIST. With CIFAR-10 they
            had warmup=20, interval=50 and fading=0.99.
Limits:     All clients evaluate the model twice for each measured round, and in every round of the
            warm-up. Correlations from a few samples are rough. The selector trusts the answers.
            Federations of more than 10,000 clients are refused.
Cost:       select O(m n d); training O(samples n d^2) for each iteration, every interval-th round;
            state (8d + 9 samples + 25) n bytes. Polls n clients 2 / interval times a round. With
            10,000 clients, a cohort of 100 and 16 samples, a choice takes 0.08 s on one core, the
            first training 13 s and a later one 1.3 s.
Checked:    By hand, against full covariance matrices, against numerical gradients and against the
            closed form of probabilistic PCA, in tests/selectors/test_fedcor.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

import numpy as np

from turnout.core.domains import Count, Flag, Fraction, Index, Positive, integer, number
from turnout.core.errors import InvalidInput
from turnout.core.registry import register
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import (
    LARGEST_REPORT,
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.sampling import known_weights, top_m, uniform_draw
from turnout.sampling.running import below_everyone, count_unanswered, lowered

#: Most clients that are polled and fitted.
MOST_CLIENTS = 10_000

#: Largest change of a loss that is believed.
LARGEST_CHANGE = 100.0

#: How many times as many steps the first training has.
FIRST_TRAINING = 10

#: Least noise; below it, inverse matrices would be rounding error.
LEAST_NOISE = 1e-4

#: Round of samples that were not taken.
NEVER = -2

#: Decay of the first and second moment of the gradient, and the least second moment (Adam).
FIRST_DECAY, SECOND_DECAY, LEAST_MOMENT = 0.9, 0.999, 1e-8


@register("fedcor")
class FedCor(Selector):
    """Take the clients whose training should lower the losses of all clients the most.

    Args:
        warmup: Rounds with random cohorts that the process is first trained on.
        interval: Rounds between two measurements after that; Delta t in the paper. A measured round
            has a random cohort (deviation 1).
        anneal: Factor on the score of a client whenever it is chosen, until the next training; beta
            in the paper. 1 never lowers it, and the same clients are chosen over and over.
        dimension: Numbers of the point of a client; d in the paper.
        fading: Weight of a sample for each round of its age; gamma in the paper.
        samples: How many measured rounds are remembered.
        centered: Whether the mean change of each client is subtracted (deviation 5).
        noise: Standard deviation of the noise of a loss change; sigma_n in the paper.
        iterations: Steps of a training; the first one has ten times as many.
        learning_rate: Length of these steps.
        patience: How many requests in a row a client may leave unanswered before each further one
            lowers its score (deviation 7). None never lowers it. Keep 5.
    """

    whole_cohorts = "it measures what whole rounds do to the losses"
    needs_columns = frozenset({"num_samples"})
    expected_check_failures = MappingProxyType(
        {"vectorised": "all clients are polled and fitted, so more than 10,000 are refused"}
    )

    state_ranges = MappingProxyType(
        {
            "change_": Range(-LARGEST_CHANGE, LARGEST_CHANGE),
            "sample_round_": Range(NEVER),
            "loss_": Range(0.0, LARGEST_REPORT),
            "measured_": Range(NEVER),
            "annealing_": Range(0.0, 1.0),
            "unanswered_": NOT_NEGATIVE,
        }
    )

    def __init__(
        self,
        *,
        warmup: Count = 15,
        interval: Annotated[int, integer(2)] = 10,
        anneal: Fraction = 0.9,
        dimension: Count = 15,
        fading: Fraction = 0.95,
        samples: Count = 25,
        centered: Flag = True,
        noise: Annotated[float, number(minimum=LEAST_NOISE)] = 0.01,
        iterations: Count = 100,
        learning_rate: Positive = 0.01,
        patience: Index | None = 5,
    ) -> None:
        self.warmup = warmup
        self.interval = interval
        self.anneal = anneal
        self.dimension = dimension
        self.fading = fading
        self.samples = samples
        self.centered = centered
        self.noise = noise
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Nothing has been measured yet."""
        super().reset(n_clients)
        if n_clients > MOST_CLIENTS:
            raise InvalidInput(
                f"n_clients must be at most {MOST_CLIENTS} for FedCor, got {n_clients}: it polls "
                "all clients. Use rpow-d or ucb-cs in larger federations.",
                field="n_clients",
            )
        self.change_ = np.zeros((n_clients, self.samples))
        self.is_measured_ = np.zeros((n_clients, self.samples), dtype=np.bool_)
        self.sample_round_ = np.full(self.samples, NEVER)
        self.loss_ = np.zeros(n_clients)  # before the round ``measured_``
        self.has_loss_ = np.zeros(n_clients, dtype=np.bool_)
        self.measured_ = NEVER
        self.is_trained_ = False
        self.annealing_ = np.ones(n_clients)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)
        self.randomize(stream(0, Purpose.INIT))

    def randomize(self, rng: np.random.Generator) -> None:
        """Draw points of length 1 on average."""
        shape = (self.n_clients, self.dimension)
        self.embedding_ = rng.standard_normal(shape) / np.sqrt(self.dimension)

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Ask all clients before and after a measured round."""
        is_after = self.measured_ == ctx.round - 1
        return ctx.pool if self._is_random(ctx.round) or is_after else None

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take a random cohort in measured rounds, the best by the process in others."""
        is_random = self._is_random(ctx.round)
        if is_random:
            chosen = uniform_draw(ctx.pool.size, ctx.size, rng)
        else:
            chosen = np.sort(self._expected_best(ctx, rng))
        nobody = np.zeros(0, dtype=np.int64), np.zeros(0)
        polled, loss = nobody if ctx.polled is None else ctx.answers()
        answered = ~np.isnan(loss)
        memo: dict[str, Array] = {
            "polled": polled[answered],
            "loss": loss[answered],
            "is_random": np.array(is_random),
        }
        return Selection(ctx.round, ctx.pool[chosen], memo=memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Take the loss changes of the last round as a sample, and train on it."""
        polled, loss = selection.recall("polled"), selection.recall("loss")
        is_random = bool(selection.recall("is_random"))
        count_unanswered(self.unanswered_, selection.clients, outcome.completed)
        is_sample = self.measured_ == selection.round - 1 and self._add_sample(polled, loss)
        self.measured_ = NEVER
        if is_random and polled.size and outcome.completed.any():
            self.has_loss_ = np.zeros(self.n_clients, dtype=np.bool_)
            self.has_loss_[polled] = True
            self.loss_[polled] = loss
            self.measured_ = selection.round
        if is_sample and selection.round >= self.warmup:
            self._train()
            self.annealing_ = np.ones(self.n_clients)
        elif not is_random:
            self.annealing_[selection.clients] *= self.anneal

    def _is_random(self, round: int) -> bool:
        return not self.is_trained_ or round % self.interval == 0

    def _add_sample(self, polled: IntArray, loss: FloatArray) -> bool:
        """Store the changes since the round ``measured_`` in place of the oldest sample."""
        known = self.has_loss_[polled]
        if not known.any():
            return False
        clients = polled[known]
        change = loss[known] - self.loss_[clients]
        slot = int(np.argmin(self.sample_round_))
        self.change_[:, slot] = 0.0
        self.is_measured_[:, slot] = False
        self.change_[clients, slot] = np.clip(change, -LARGEST_CHANGE, LARGEST_CHANGE)
        self.is_measured_[clients, slot] = True
        self.sample_round_[slot] = self.measured_
        return True

    def _train(self) -> None:
        taken = np.flatnonzero(self.sample_round_ > NEVER)
        rounds = self.sample_round_[taken]
        weight = self.fading ** (rounds.max() - rounds).astype(np.float64)
        is_measured = self.is_measured_[:, taken]
        change = self.change_[:, taken]
        if self.centered:
            total = np.maximum(is_measured @ weight, np.finfo(np.float64).tiny)
            change = np.where(is_measured, change - (change @ weight / total)[:, None], 0.0)
        n_steps = self.iterations if self.is_trained_ else FIRST_TRAINING * self.iterations
        self.embedding_ = fitted(
            self.embedding_, change, is_measured, weight, self.noise, n_steps, self.learning_rate
        )
        self.is_trained_ = True

    def _expected_best(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray:
        """Return (m,) positions in the pool, the best first."""
        size = known_weights(ctx.column("num_samples"))
        share = size / max(float(size.sum()), np.finfo(np.float64).tiny)
        toward = self.embedding_.T @ share  # sum_i p_i x_i of those not chosen
        x, p = ctx.of_pool(self.embedding_), ctx.of_pool(share)
        scaled, variance = x.copy(), np.square(x).sum(axis=1) + self.noise**2  # P x_k, sigma_k^2
        unanswered, chosen = ctx.of_pool(self.unanswered_), np.zeros(ctx.size, dtype=np.int64)
        for place in range(ctx.size):
            score = ctx.of_pool(self.annealing_) / np.sqrt(variance)
            score *= scaled @ toward + p * self.noise**2
            score = lowered(score, unanswered, self.patience, below_everyone)
            score[chosen[:place]] = -np.inf
            best = int(top_m(score, 1, rng).chosen[0])
            chosen[place] = best
            toward = toward - p[best] * x[best]
            with_best = x @ scaled[best]  # covariance with the chosen one
            scaled = scaled - np.outer(with_best / variance[best], scaled[best])
            variance = variance - np.square(with_best) / variance[best]
            variance = np.maximum(variance, self.noise**2)  # rounding
        return chosen


def log_likelihood(
    embedding: FloatArray,
    change: FloatArray,
    is_measured: BoolArray,
    weight: FloatArray,
    noise: float,
) -> tuple[float, FloatArray]:
    """Return the weighted log marginal likelihood of the samples, and its gradient (n, d).

    A sample is normal with mean 0 and covariance X X^T + noise^2 I, over the measured clients.

    Args:
        embedding: (n, d) X.
        change: (n, s) the samples, 0 where nothing was measured.
        is_measured: (n, s) what was measured.
        weight: (s,) weights of the samples.
        noise: Standard deviation of the noise.
    """
    n, d = embedding.shape
    x, seen = embedding, is_measured.astype(np.float64)
    squares = (x[:, :, None] * x[:, None, :]).reshape(n, d * d)
    inner = (seen.T @ squares).reshape(-1, d, d) + noise**2 * np.eye(d)  # noise^2 I + X^T X
    inverse = np.linalg.inv(inner)
    mapped = np.einsum("sde,es->ds", inverse, x.T @ change)
    alpha = (change - seen * (x @ mapped)) / noise**2  # K^-1 y
    counts = seen.sum(axis=0)
    log_determinant = np.linalg.slogdet(inner)[1] + 2.0 * (counts - d) * np.log(noise)
    value = -0.5 * ((change * alpha).sum(axis=0) + log_determinant + counts * np.log(2.0 * np.pi))
    spread = ((seen * weight) @ inverse.reshape(-1, d * d)).reshape(n, d, d)
    gradient = (alpha * weight) @ (alpha.T @ x) - np.einsum("nd,nde->ne", x, spread)
    return float(weight @ value), gradient


def fitted(
    embedding: FloatArray,
    change: FloatArray,
    is_measured: BoolArray,
    weight: FloatArray,
    noise: float,
    n_steps: int,
    learning_rate: float,
) -> FloatArray:
    """Return (n, d) the embedding after steps of Adam uphill on the log marginal likelihood.

    Args:
        embedding: (n, d) where to start.
        change: (n, s) the samples, 0 where nothing was measured.
        is_measured: (n, s) what was measured.
        weight: (s,) weights of the samples.
        noise: Standard deviation of the noise.
        n_steps: How many steps.
        learning_rate: Their length.
    """
    x = embedding.copy()
    first, second = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, n_steps + 1):
        _, gradient = log_likelihood(x, change, is_measured, weight, noise)
        first += (1.0 - FIRST_DECAY) * (gradient - first)
        second += (1.0 - SECOND_DECAY) * (np.square(gradient) - second)
        size = np.sqrt(second / (1.0 - SECOND_DECAY**step)) + LEAST_MOMENT
        x += learning_rate * first / (1.0 - FIRST_DECAY**step) / size
    return x
