"""TiFL: clients in tiers of similar speed, one tier for each round.

Paper:      Z. Chai, A. Ali, S. Zawad, S. Truex, A. Anwar, N. Baracaldo, Y. Zhou, H. Ludwig, F. Yan,
            Y. Cheng, TiFL: A Tier-based Federated Learning System, HPDC 2020, arXiv:2001.09249. We
            read the abstract and, line by line, three public implementations by others
            (bacox/fltk, FLGo and dream-lab/flotilla), but not the whole text. So no equation is
            cited by its number.
Setting:    The server measures how long the chosen clients take. Where tiers adapt, the clients
            report their loss. No polls are needed.
Idea:       A round is as long as its slowest client. So clients are sorted by response time and cut
            into tiers, a tier is drawn for each round, and the cohort comes from that tier alone.
            The static form draws tiers with fixed probabilities. The adaptive form more often draws
            tiers on whose data the model is worse. It gives each tier a number of credits, and a
            round costs its tier one, so that slow tiers cannot take all the time.
Symbols:    seconds_ = mean response latency, chance_ = Probs, credits_ = Credits_t, interval = I,
            tiers = T (m in the paper's tiering), cohort_size = |C|.
Equations:  select: the tiering and the draw of the adaptive tier selection algorithm. observe: its
            test every I rounds and ChangeProbs.
Deviations: 1. Before training, the paper lets all clients run a profiling phase. Here each client
            is profiled by taking part: as long as there are available clients with fewer than
            ``profiling`` requests, they are chosen first.
            2. The paper leaves out clients that do not answer within its limit. Here a client that
            has never answered, or has missed more than ``patience`` requests in a row, counts as
            the slowest.
            3. Tiers follow the running mean of all times, so they are cut again in every round. The
            paper profiles again from time to time.
            4. Tiers adapt by the losses that clients last reported, because the server has no test
            data of each tier. A higher loss stands for a lower accuracy.
            5. We do not know the paper's ChangeProbs. In public implementations, a tier's chance is
            proportional to its rank. In fltk and FLGo the tier with the highest loss has weight T
            and the best has 1, as with the default least=1. In Flotilla they have T - 1 and 0:
            least=0. With 5 tiers, the worst is then drawn in 40 % of the rounds instead of 33 %,
            and the best never, so its data are not trained on until the order changes. All three
            rank only tiers that have credits left; here all are ranked, and those without credits
            are not drawn.
            6. A tier with fewer available clients than places is filled up from the nearest tiers.
            7. When all credits are used up, every tier gets new ones. The paper's credits last for
            the whole training; fltk gives each tier rounds / T, rounded up, and FLGo can give more
            to faster tiers.
            8. The paper changes the chances only if the tier that was drawn last is no better than
            at the look before. The three public implementations change them at every look:
            always=True. The first look changes them in both, since there is none before it. In
            simulations of 300 rounds (world unequal, ten seeds), chances changed 6 times instead of
            26, and the rounds took as long.
Limits:     Tiers that are seldom drawn keep old losses. Where speed and labels go together, fast
            tiers bias the model; the adaptive form was made against that. While new clients are
            profiled, and while a tier has no credits or a chance of 0, some clients cannot be
            chosen, so a mean by inverse probability is biased in these rounds.
Cost:       O(n log n) select, O(m) observe, state 41n bytes.
Checked:    By hand, against a slow implementation and by frequencies, in
            tests/selectors/test_tifl.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from turnout.core.arrays import numbers
from turnout.core.domains import Count, Flag, Index, NonNegative
from turnout.core.errors import InvalidInput
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import (
    LARGEST_REPORT,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.sampling import uniform_draw
from turnout.sampling.running import count_unanswered

#: Tier of a cohort that was chosen to be profiled.
PROFILED = -1


@register("tifl")
class TiFL(Selector):
    """Draw a tier of clients with similar times, then the cohort from it.

    Args:
        tiers: How many tiers there are. Try 5, as the paper does.
        probabilities (list of numbers or None): The chance of each tier, the fastest first; None
            gives all the same. The paper's static policies for 5 tiers are fast (1, 0, 0, 0, 0),
            random (0.7, 0.1, 0.1, 0.05, 0.05), uniform (0.2 each) and slow (0, 0, 0, 0, 1).
        interval: Rounds between two looks at the losses of the tiers; I in the paper. None keeps
            the probabilities (the static form). Try 10.
        credits: Rounds that each tier may take; None is no limit. The paper divides all rounds.
        least: Weight of the tier with the lowest loss when the chances change; each tier above it
            in loss has one more (deviation 5). Keep 1; with 0 the best tier is not drawn.
        always: Whether chances follow the losses at every look, as in public implementations. False
            changes them only if the tier drawn last got no better (deviation 8). Keep False.
        profiling: Requests to each client before tiers are used; 0 starts at once, with all clients
            in the middle.
        patience: Requests in a row that a client may leave unanswered; with one more it counts as
            the slowest (deviation 2). None never changes its time. Keep 5.
    """

    reports_probability = True

    state_ranges = MappingProxyType(
        {
            "seconds_": Range(0.0, LARGEST_REPORT),
            "asked_": NOT_NEGATIVE,
            "answers_": NOT_NEGATIVE,
            "unanswered_": NOT_NEGATIVE,
            "loss_": Range(0.0, LARGEST_REPORT),
            "chance_": Range(0.0, 1.0),
            "credits_": NOT_NEGATIVE,
            "level_": Range(0.0, LARGEST_REPORT),
            "rounds_": NOT_NEGATIVE,
        }
    )

    def __init__(
        self,
        *,
        tiers: Count = 5,
        probabilities: Sequence[float] | None = None,
        interval: Count | None = 10,
        credits: Count | None = None,
        least: NonNegative = 1.0,
        always: Flag = False,
        profiling: Index = 1,
        patience: Index | None = 5,
    ) -> None:
        self.tiers = tiers
        self.probabilities = probabilities
        self.interval = interval
        self.credits = credits
        self.least = least
        self.always = always
        self.profiling = profiling
        self.patience = patience

    def check_parameters(self) -> None:
        """There is a probability for each tier."""
        super().check_parameters()
        if self.probabilities is None:
            return
        given = numbers("probabilities", self.probabilities)
        if given.shape != (self.tiers,) or given.min() < 0.0 or not abs(given.sum() - 1.0) <= 1e-6:
            raise InvalidInput(
                f"probabilities must be {self.tiers} numbers >= 0 that sum to 1, one for each "
                f"tier, got {self.probabilities!r}.",
                field="probabilities",
            )

    @property
    def needs_metrics(self) -> frozenset[str]:  # type: ignore[override]  # depends on a parameter
        """Losses, where tiers adapt."""
        return frozenset() if self.interval is None else frozenset({"loss"})

    def reset(self, n_clients: int) -> None:
        """No client has been timed yet."""
        super().reset(n_clients)
        self.seconds_ = np.zeros(n_clients)  # mean of the answers
        self.asked_ = np.zeros(n_clients, dtype=np.int64)
        self.answers_ = np.zeros(n_clients, dtype=np.int64)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)  # in a row
        self.loss_ = np.zeros(n_clients)
        self.has_loss_ = np.zeros(n_clients, dtype=np.bool_)
        self.chance_ = np.full(self.tiers, 1.0 / self.tiers)
        if self.probabilities is not None:
            self.chance_[:] = self.probabilities
        self.credits_ = np.full(self.tiers, 0 if self.credits is None else self.credits)
        self.level_ = np.zeros(self.tiers)  # losses of the tiers at the last look
        self.rounds_ = 0

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Profile the clients that are new; otherwise draw a tier and a cohort of it."""
        is_new = ctx.of_pool(self.asked_) < self.profiling
        if is_new.any():
            return self._profile(ctx, is_new, rng)
        tier, chance = ctx.of_pool(self._tiers()), self._chances()
        n_members = np.bincount(tier, minlength=self.tiers)
        taken = [places(n_members, t, ctx.size) for t in range(self.tiers)]
        given = chance @ (np.stack(taken) / np.maximum(n_members, 1))
        drawn = int(rng.choice(self.tiers, p=chance))
        parts = []
        for t in _nearest(drawn, self.tiers):
            if taken[drawn][t]:
                members = np.flatnonzero(tier == t)
                parts.append(members[uniform_draw(members.size, int(taken[drawn][t]), rng)])
        chosen = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *parts]))
        memo = {"tier": np.array(drawn)}
        return Selection(ctx.round, ctx.pool[chosen], given[tier[chosen]], memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Time the chosen; every ``interval`` rounds look at the losses of the tiers."""
        chosen, loss = selection.clients, outcome.metric("loss")
        self.asked_[chosen] += 1
        timed = outcome.completed & ~np.isnan(outcome.duration)
        count_unanswered(self.unanswered_, chosen, timed)
        who = chosen[timed]
        self.answers_[who] += 1
        self.seconds_[who] += (outcome.duration[timed] - self.seconds_[who]) / self.answers_[who]
        told = ~np.isnan(loss)
        self.loss_[chosen[told]] = loss[told]
        self.has_loss_[chosen[told]] = True
        self.rounds_ += 1
        drawn = int(selection.recall("tier"))
        if drawn == PROFILED:
            return
        if self.credits is not None:
            self.credits_[drawn] = max(0, self.credits_[drawn] - 1)
        if self.interval is not None and self.rounds_ % self.interval == 0:
            level = self._levels()
            is_stuck = level[drawn] >= self.level_[drawn] > 0.0
            if self.always or is_stuck or not self.level_.any():
                rank = np.argsort(np.argsort(level, kind="stable"), kind="stable")
                weight = rank + self.least
                self.chance_ = weight / weight.sum() if weight.any() else np.ones(self.tiers)
            self.level_ = level
        if self.credits is not None and not (self.credits_ * self.chance_).any():
            self.credits_[:] = self.credits  # new chances may also leave no tier to draw

    def _profile(self, ctx: RoundContext, is_new: BoolArray, rng: np.random.Generator) -> Selection:
        """Choose new clients first, then anybody."""
        new, old = np.flatnonzero(is_new), np.flatnonzero(~is_new)
        n_new = min(new.size, ctx.size)
        n_old = ctx.size - n_new
        chosen = np.concatenate(
            (new[uniform_draw(new.size, n_new, rng)], old[uniform_draw(old.size, n_old, rng)])
        )
        chance = np.where(is_new, n_new / new.size, n_old / max(1, old.size))
        chosen.sort()
        memo = {"tier": np.array(PROFILED)}
        return Selection(ctx.round, ctx.pool[chosen], chance[chosen], memo)

    def _tiers(self) -> IntArray:
        """Return (n,) the tier of every client, 0 the fastest."""
        answered = self.answers_ > 0
        slowest = float(self.seconds_.max(initial=0.0))
        seconds = self.seconds_.copy()
        if answered.any() and not answered.all():
            seconds[~answered] = np.median(self.seconds_[answered])
        is_lost = (self.asked_ > 0) & ~answered
        if self.patience is not None:
            is_lost |= self.unanswered_ > self.patience
        seconds[is_lost] = 2.0 * slowest
        border = -(-np.arange(self.tiers + 1) * self.n_clients // self.tiers)  # first places
        order = np.argpartition(seconds, np.minimum(border[:-1], seconds.size - 1))
        tier = np.empty(self.n_clients, dtype=np.int64)
        tier[order] = np.repeat(np.arange(self.tiers), np.diff(border))
        return tier

    def _chances(self) -> FloatArray:
        """Return (T,) the chance of each tier among those that have credits left."""
        chance: FloatArray = self.chance_.copy()
        if self.credits is not None:
            chance[self.credits_ == 0] = 0.0
        chance /= chance.sum()
        return chance

    def _levels(self) -> FloatArray:
        """Return (T,) the mean of the losses that clients of each tier last reported."""
        tier, known = self._tiers(), self.has_loss_
        n_known = np.bincount(tier[known], minlength=self.tiers)
        total = np.bincount(tier[known], self.loss_[known], minlength=self.tiers)
        usual = float(self.loss_[known].mean()) if known.any() else 0.0
        return np.where(n_known > 0, total / np.maximum(n_known, 1), usual)


def _nearest(drawn: int, n_tiers: int) -> list[int]:
    """Return all tiers, those nearest to the drawn one first."""
    return sorted(range(n_tiers), key=lambda other: (abs(other - drawn), other))


def places(n_members: IntArray, drawn: int, size: int) -> IntArray:
    """Return (T,) how many places each tier gets when a tier is drawn.

    Args:
        n_members: (T,) available clients of each tier.
        drawn: The tier that is drawn.
        size: How many clients are chosen.
    """
    given = np.zeros_like(n_members)
    for t in _nearest(drawn, n_members.size):
        given[t] = min(size, int(n_members[t]))
        size -= int(given[t])
    return given
