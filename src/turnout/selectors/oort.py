"""Oort: clients that are useful and fast, with bounded exploration of the others.

Paper:      F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury, Oort: Efficient Federated Learning via
            Guided Participant Selection, OSDI 2021, arXiv:2010.06081.
Setting:    The chosen clients report their RMS loss, and the server measures how long they take. It
            knows num_samples, and uses expected_duration to explore fast clients first. No polls
            are needed.
Idea:       The statistical utility of a client is |B| sqrt(mean loss^2). Scale it down for clients
            slower than the preferred duration T, add a bonus for clients not seen for long, and
            draw most of the cohort from the best scores, in proportion to them. The rest of the
            cohort explores clients that were never tried. A pacer allows longer rounds when the
            collected utility stalls.
Symbols:    utility_ = U(i), last_round_ = L(i) (from 1; 0 = never tried), duration_ = D(i),
            epsilon = exploration share, pace_ = pacer steps taken, penalty = alpha, cutoff = c,
            window = W.
Equations:  select: Alg. 1 (exploitation, cut-off, exploration), Eq. (1) utility and system penalty,
            Sec. 4.4 clipping and participation cap. observe: Alg. 1 UpdateWithFeedback, pacer.
Deviations: 1. normalize=True scales the clipped utilities to [0, 1] before the bonus is added; Alg.
            1 adds it to raw utilities, where it vanishes beside |B| = 500. normalize=False restores
            Alg. 1.
            2. preferred_duration=None takes T as the 30th percentile of the durations seen, plus 5
            points per pacer step. A number is Alg. 1: T starts there and grows by as much per pacer
            step.
            3. The pacer compares the last two windows once per window, not in every round.
            4. The bonus for staleness applies to every tried client at the time of choice; the
            public copies give it only when a client reports.
            5. A client that was tried and reported nothing has utility 0 and counts as tried.
            6. max_participation (off by default) excludes clients that were chosen that often. They
            fill places only when no other client is left; the public copies crash there.
            7. rules="fedscale" follows the authors' code (FedScale, thirdparty/oort) instead:
            utilities are scaled by their unclipped maximum and 0.999 x their minimum, over untried
            clients too, which count with their size; they are clipped at 90 %, its default of
            clip_bound, and not at the 95 % of the paper; T is a percentile over all registered
            clients (expected_duration for the untried), none at 100 %; the pacer relaxes when two
            windows of the exploited clients' mean utility differ by at most 10 %, tightens at 5
            times; at least 10 clients per place are admitted; untried clients are drawn by size and
            speed. There cutoff is 0.05 and explore_min 0.3. Bonus and cap stay as above.
            8. The paper's score is (1 - f) utility + f fairness. Here the fairness of a client is
            the largest score times one minus its number of choices over that of the most chosen
            client. This makes f free of units.
            9. Alg. 1 never lowers the utility of a client that stopped answering, so dead clients
            keep their places. Here, after ``patience`` unanswered requests in a row, each further
            one halves the client's score (turnout.sampling.running); patience=None restores Alg. 1.
Limits:     It trusts reported losses up to the clipping. Until the exploration share has fallen,
            most of the cohort consists of untried clients.
Cost:       O(n) select, O(m) observe, state 40n bytes.
Checked:    By hand and against slow implementations of Alg. 1 and of the code's rules, in
            tests/selectors/test_oort.py and tests/selectors/test_oort_rules.py.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Literal

import numpy as np

from turnout.core.domains import Count, Flag, Fraction, Index, NonNegative, Positive
from turnout.core.errors import InvalidInput
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import FloatArray, IntArray, Outcome, RoundContext, Selection
from turnout.sampling import known_weights, multinomial_without_replacement, uniform_draw
from turnout.sampling.running import count_unanswered, lowered
from turnout.selectors._oort_rules import FEWEST_STEPS, FedScaleRules, PaperRules

#: Weight of the bonus for staleness, sqrt(0.1 log R / L(i)) (Alg. 1).
STALENESS = 0.1

#: Duration of a client that has never reported one.
UNKNOWN = -1.0


@register("oort")
class Oort(Selector):
    """Guided participant selection: utility, speed, staleness and exploration.

    Args:
        explore: Share of the cohort that explores untried clients in round 0; epsilon in the paper.
            Keep 0.9.
        explore_decay: Factor on that share per round. Keep 0.98; lower it for runs of less than 100
            rounds.
        explore_min: The share never falls below this. Keep 0.2.
        penalty: How strongly slow clients are scaled down; alpha in the paper. 0 ignores speed. Try
            2 first.
        cutoff: Share of the border score that is still admitted to the draw; c in the paper. 1
            admits only the best. Keep 0.95.
        window: Rounds per step of the pacer; W in the paper. Keep 20.
        preferred_duration: Seconds a client may take before it is scaled down; T in the paper. None
            takes a percentile of the durations seen, see deviation 2. Start with None.
        max_participation: How often a client may be chosen. None sets no limit. Set it where
            clients may lie about their loss.
        normalize: Whether utilities are scaled to [0, 1] before the bonus for staleness is added.
            False is Alg. 1 as printed, see deviation 1. Keep True.
        fairness: How much being chosen seldom counts against utility; f in the paper. 1 chooses
            among tried clients by that alone. Start with 0.
        rules: Whose steps to take where the paper and the authors' code differ (deviation 7). Keep
            "paper".
        patience: How many requests in a row a client may leave unanswered before each further one
            halves its score (deviation 9). None never lowers it. Keep 5.
    """

    memo_by_client = frozenset({"is_exploited", "num_samples"})
    needs_columns = frozenset({"num_samples"})
    uses_columns = frozenset({"expected_duration"})
    needs_metrics = frozenset({"loss_rms"})

    later_state = frozenset({"unanswered_"})
    state_ranges = MappingProxyType(
        {
            "utility_": NOT_NEGATIVE,
            "duration_": Range(UNKNOWN),
            "last_round_": NOT_NEGATIVE,
            "n_chosen_": NOT_NEGATIVE,
            "unanswered_": NOT_NEGATIVE,
            "pace_": Range(FEWEST_STEPS),
            "n_rounds_": NOT_NEGATIVE,
            "this_window_": NOT_NEGATIVE,
            "last_window_": NOT_NEGATIVE,
        }
    )

    def __init__(
        self,
        *,
        explore: Fraction = 0.9,
        explore_decay: Fraction = 0.98,
        explore_min: Fraction = 0.2,
        penalty: NonNegative = 2.0,
        cutoff: Fraction = 0.95,
        window: Count = 20,
        preferred_duration: Positive | None = None,
        max_participation: Count | None = None,
        normalize: Flag = True,
        fairness: Fraction = 0.0,
        rules: Literal["paper", "fedscale"] = "paper",
        patience: Index | None = 5,
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
        self.fairness = fairness
        self.rules = rules
        self.patience = patience

    def check_parameters(self) -> None:
        """Refuse options that the authors' code does not have."""
        super().check_parameters()
        if self.rules == "fedscale" and (self.preferred_duration or not self.normalize):
            raise InvalidInput(
                "rules='fedscale' always normalizes and takes the preferred duration from a "
                f"percentile, got normalize={self.normalize} and preferred_duration="
                f"{self.preferred_duration}: leave both at their defaults or use rules='paper'.",
                field="rules",
            )

    def reset(self, n_clients: int) -> None:
        """Nobody has been tried."""
        super().reset(n_clients)
        self.utility_ = np.zeros(n_clients)
        self.duration_ = np.full(n_clients, UNKNOWN)
        self.last_round_ = np.zeros(n_clients)
        self.n_chosen_ = np.zeros(n_clients, dtype=np.int64)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)
        self.pace_ = 0
        self.n_rounds_ = 0
        self.this_window_ = 0.0
        self.last_window_ = 0.0

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Exploit the best tried clients, explore untried ones, fill up with the rest."""
        pool = ctx.pool
        last = ctx.of_pool(self.last_round_)
        is_open = last > 0.0
        untried = pool[~is_open]
        if self.max_participation is not None:
            is_open &= ctx.of_pool(self.n_chosen_) < self.max_participation
        tried = pool if is_open.all() else pool[is_open]
        shares = (self.explore, self.explore_decay, self.explore_min)
        n_exploit = min(tried.size, self._rules.n_exploit(ctx.size, *shares, ctx.round))
        n_explore = min(untried.size, ctx.size - n_exploit)
        n_exploit = min(tried.size, ctx.size - n_explore)
        chosen = [
            self._exploit(tried, n_exploit, ctx, rng),
            self._explore(untried, n_explore, ctx, rng),
        ]
        n_left = ctx.size - n_exploit - n_explore
        if n_left:  # only clients at their cap are left
            capped = np.flatnonzero((last > 0.0) & ~is_open)
            chosen.append(pool[capped[uniform_draw(capped.size, n_left, rng)]])
        together = np.concatenate(chosen)
        order = np.argsort(together)
        clients = together[order]
        memo = {
            "num_samples": known_weights(ctx.column("num_samples"))[clients],
            "is_exploited": order < n_exploit,
        }
        return Selection(ctx.round, clients, memo=memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Update utility, duration and last round of the chosen, and the pacer."""
        clients = selection.clients
        utility = selection.recall("num_samples") * outcome.metric("loss_rms")  # Eq. (1)
        reported = ~np.isnan(utility)
        is_newest = selection.round + 1 >= self.last_round_[clients]  # late feedback undoes nothing
        fresh = reported & is_newest
        count_unanswered(self.unanswered_, clients, reported)
        self.utility_[clients[fresh]] = utility[fresh]
        timed = is_newest & ~np.isnan(outcome.duration)
        self.duration_[clients[timed]] = outcome.duration[timed]
        self.last_round_[clients] = np.maximum(self.last_round_[clients], selection.round + 1)
        self.n_chosen_[clients] += 1
        self.n_rounds_ += 1
        self.this_window_ += self._rules.collected(utility, selection.recall("is_exploited"))
        n_seen = self.n_rounds_ + self._rules.rounds_before
        if n_seen % self.window == 0:  # pacer
            if n_seen > self.window:
                before, latest = self.last_window_, self.this_window_
                self.pace_ = self._rules.pacer_step(before, latest, self.pace_)
            self.last_window_, self.this_window_ = self.this_window_, 0.0

    @property
    def _rules(self) -> PaperRules:
        return FedScaleRules() if self.rules == "fedscale" else PaperRules(self.normalize)

    def _exploit(
        self, tried: IntArray, size: int, ctx: RoundContext, rng: np.random.Generator
    ) -> IntArray:
        """Admit the scores near the best ``size``, draw from them in proportion (Alg. 1)."""
        if size == 0:
            return tried[:0]
        score = self._scores(tried, ctx)
        admitted = self._rules.admitted(score, size, self.cutoff)
        return tried[admitted[multinomial_without_replacement(score[admitted], size, rng)]]

    def _scores(self, tried: IntArray, ctx: RoundContext) -> FloatArray:
        """Return utility with bonus for staleness and penalty for slowness."""
        rows = slice(None) if tried.size == self.n_clients else tried  # no copies if it is everyone
        duration = self._rules.durations(self.duration_, ctx.columns.get("expected_duration"))

        def sizes() -> FloatArray:
            is_untried = ctx.of_pool(self.last_round_) == 0.0
            untried: FloatArray = ctx.of_pool(known_weights(ctx.column("num_samples")))[is_untried]
            return untried

        score = self._rules.scaled(self.utility_[rows], sizes)
        score += _staleness(ctx.round, self.last_round_[rows])
        score *= self._slowness(duration[rows], self._preferred(duration))
        np.abs(score, out=score)  # below 0 only for utility 0 under the rules of the code
        if self.fairness:
            score = self._with_fairness(score, self.n_chosen_[rows])
        return lowered(score, self.unanswered_[rows], self.patience)

    def _with_fairness(self, score: FloatArray, n_chosen: IntArray) -> FloatArray:
        """Return (1 - f) score + f fairness, Sec. 4.4."""
        most = max(1, int(self.n_chosen_.max()))
        fairness = float(score.max()) * (1.0 - n_chosen / most)
        mixed: FloatArray = (1.0 - self.fairness) * score + self.fairness * fairness
        return mixed

    def _preferred(self, duration: FloatArray) -> float:
        """Return T; 0 while no duration is known."""
        if self.preferred_duration is not None:
            return self.preferred_duration * (1 + self.pace_)
        return self._rules.preferred(duration, self.pace_)

    def _slowness(self, duration: FloatArray, preferred: float) -> FloatArray | float:
        """Return (T / D(i))^alpha where D(i) is above T, else 1."""
        if not 0.0 < preferred < np.inf:
            return 1.0
        factor = np.maximum(duration, preferred)
        np.divide(preferred, factor, out=factor)
        factor **= self.penalty
        return factor

    def _explore(
        self, untried: IntArray, size: int, ctx: RoundContext, rng: np.random.Generator
    ) -> IntArray:
        """Draw untried clients."""
        if size == 0:
            return untried[:0]
        column = ctx.columns.get("expected_duration")

        def reward() -> FloatArray:
            duration = self._rules.durations(self.duration_, column)
            slowness = self._slowness(duration[untried], self._preferred(duration))
            scaled: FloatArray = known_weights(ctx.column("num_samples"))[untried] * slowness
            return scaled

        expected = None if column is None else column[untried]
        return untried[self._rules.explore(untried.size, size, expected, reward, rng)]


def _staleness(round: int, last_round: FloatArray) -> FloatArray:
    """Return the bonus of clients that were last chosen long ago (Alg. 1)."""
    bonus = np.maximum(last_round, 1.0)  # a damaged state may have less
    np.divide(STALENESS * math.log(round + 1), bonus, out=bonus)
    return np.sqrt(bonus, out=bonus)
