"""Pace: short rounds that learn much, with a guaranteed share for everyone.

Paper:      There is none: objective and solver are those of RBCS-F (arXiv:2011.01783, Eq. (21)),
            the loss as utility is that of Oort, the guarantee is that of ``guarded``.
Setting:    The server sees who succeeds and how long they take, and uses their loss if they report
            it. It uses the columns context (n, d) and num_samples if it knows them. No horizon and
            no polls are needed. Fairness is guaranteed.
Idea:       A round is as long as its slowest client. So slow clients cost little when they are
            chosen together, and when their moment is good. Each round minimises

                V x predicted time of the slowest - sum of (queue + w x utility x reliability)

            over cohorts. In each round a client's queue grows by ``share`` of its fair share, and
            it falls when the client is chosen. A growing queue waits for a cheap moment. If none
            comes, the floor reserves a place, and equally slow clients can then join at no cost.
Symbols:    haste = h, share = sigma, utility = w, memory = tau, f = fair share of a round (cohort /
            available), queue_ = Z, answers_ = r, pace_ = logarithm of time / base, loss_ = u.
Equations:  (1) V = h m (1 - late_), with times in units of the pool's mean: no unit to tune. late_
            is the share of the chosen that came too late: what a policy cuts off costs no time.
            (2) Z <- max(0, Z + sigma f - x). (3) time = base x exp(pace), base = c'theta by one
            ridge regression for all clients where there is a context c, else the mean time.
            (4) utility = loss / typical loss x data / typical data, each at most CLIP.
            Every estimate is a mean that fades with exp(-1 / tau) a round and is shrunk to the
            population's (turnout.sampling.running): the unknown are typical, and what has changed
            is noticed within tau rounds.
            (5) With ``alert``: times fade with a client's own replies, and time = base x mean of
            time / base. y = log(time / base) of a reply is compared with the expected one, x, both
            counted from the usual client's. Over the last rounds, B = sum x y / sum x^2 is about 1
            if the expected times are right and 0 if they mean nothing. Its standard error is
            s / sqrt(sum x^2), where s^2 is the usual (y - x)^2. If 1 - B > LOST and 1 - B is more
            than CERTAIN standard errors, LEFT of all observed times is kept.
            (7) With ``doubt``: a round in which all replied and that took longer than FALSE times
            the slowest claim had a false claim in it. Its clients are doubted from then on. The
            time of a doubted client is at least that of the shortest such round that it was in,
            because no client is slower than its round, and its loss is at most the typical one.
            select: ``guarded``'s reserved places, then the minimum of the objective for the others.
            (6) Where rounds overlap, in place of the objective: the free places go to the clients
            with the largest queue + w x utility x reliability x (1 + time / mean)^-1/2 - h x time /
            mean, with the mean over everyone who can be reached. See *Rounds that overlap*.
            observe: Eqs. (1) and (2) of ``guarded``, then Eq. (2) and the means here. Accounts and
            queues count a round from the next choice on, with or without its feedback.
Deviations: none.
Limits:     A late or silent client counts as taking at least as long as the slowest client that
            answered. Nothing more is learned about its time. Predicted times are relative: a heavy
            tail that hits everyone alike is not predicted. A queue is a promise on average. The
            floor is a promise for every history, by (3) of ``guarded``: a client gets at least
            ``floor`` times its fair share, less at most 1 + floor (n - 1) places, and less at most
            1 + floor if all clients are always available. Feedback may be late or lost. After a
            restart with R rounds in flight it may be floor R places less, by (5) there. Where
            rounds overlap, each choice is a round of this promise, and a client at work counts as
            not available. The floor counts places, not answers: where the slow are cut off, they
            may have their places and still be never heard. A time is what the server believes.
            Where it believes clients' own clocks, false times are taken for true unless ``doubt``
            is set. That needs the length of the round by the server's clock and rounds in which all
            reply. Clients that lie about losses alone gain at most CLIP.
Cost:       O(n log n) select, O(n) observe, state (8 x 12 + 2) n bytes.
Checked:    the objective against brute force, the means by hand: tests/selectors/test_pace.py. The
            guarantee over adversarial histories: tests/selectors/test_guarded_histories.py. Time
            and fairness in nine tasks: turnout arena.

Rounds that overlap. No round waits for its slowest client, so the objective above has no meaning. A
client costs the seconds for which it holds its place. Say that a place that is given to client i is
held for time_i and brings gain_i, and is then given again. Over a long time it brings sum gain /
sum time, the reward of a renewal process. The best rate lambda is the one for which the maximum of
gain_i - lambda time_i is 0: a client that does better than that would raise the rate. So each free
place goes to the client with the largest gain_i - lambda time_i, and k free places to the k
largest, because no client changes what another one costs. lambda = h / mean: in a synchronous round
of clients of the mean time, Eq. (1) also charges h for each place. A long job is stale when it
ends. About one aggregation falls into the time of the mean client if the buffer is as large as
the concurrency, so its staleness is time / mean, and FedBuff's weight (1 + staleness)^-1/2 falls on
the utility, but not on the queue, which counts places. A smaller buffer makes all answers
staler than that. A choice for some places is this part of a round: means fade by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import numpy as np

from turnout.core.domains import Count, Flag, Fraction, NonNegative, number
from turnout.core.registry import register
from turnout.core.stateful import LARGEST_STATE, NOT_NEGATIVE
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    Outcome,
    RoundContext,
    Selection,
    Status,
)
from turnout.sampling import bottleneck_limit, top_m
from turnout.sampling.linear import known_context
from turnout.sampling.ranking import median
from turnout.sampling.running import add_observations, fade, no_observations, shrunk_mean
from turnout.selectors._accounts import Accounts, charged

#: Observations that the population's mean is worth: of times as logarithms and as ratios, of
#: answers, of losses.
TIME_PRIOR, RATIO_PRIOR, ANSWER_PRIOR, LOSS_PRIOR = 2.0, 1.0, 1.0, 0.5
#: With ``alert``: own replies after which 1 / e of a time is left, how many times as long as other
#: means the base lasts, and how many faded replies make a client known.
REPLIES, LASTING, KNOWN = 20.0, 2.0, 0.5
#: Rounds after which 1 / e of a comparison is left, which part of the slope must be missing, by how
#: many standard errors, from how many rounds on, and what is left of the times then.
COMPARED, LOST, CERTAIN, USUAL_AFTER, LEFT = 3.0, 0.6, 4.0, 5, 0.1
#: How far a ratio is believed in a comparison, and how many clients say what is usual, about.
FAR, SAMPLE = 8.0, 4096
#: With ``doubt``: how many times the slowest claim a round takes if somebody's claim is false, and
#: by how much the shortest round of a client is forgotten with each reply.
FALSE, LOOSER = 1.25, 1.03
#: How many times the typical loss, or amount of data, is believed: a liar gains this much.
CLIP = 2.0
#: How far a single time may be from what was expected before it counts as that far.
TAIL = 8.0
#: Regularisation of the regression, relative to the contexts.
RIDGE = 1e-6
_LATE, _FAILED = np.int8(Status.LATE), np.int8(Status.FAILED)
#: Seconds that a client takes at least; a damaged state may say less.
SHORTEST = 1e-100


@register("pace")
class Pace(Accounts):
    """Queues for fairness, predicted times for speed, losses for progress.

    Args:
        floor: Share of its fair share that each client gets at least, in the long run: it may be
            1 + floor (n - 1) places behind, and 1 + floor if all clients are always available. This
            holds for every history, also if feedback is late or lost. Keep 0.5.
        share: Share of its fair share that a client's queue asks for, when the moment is good. It
            should be above the floor. Try 0.7 first; 1 makes everyone equal.
        haste: What the mean client's time costs against a place in the queue. 0 ignores times. Keep
            1.
        utility: What a typical client's loss is worth against a place in the queue. 0 ignores
            losses, data and answers. Try 0.5 first.
        memory: Rounds after which 1 / e of an observation is left. Try 50 first; a smaller value
            notices changes sooner and knows less.
        dimension: Number of features in the column context, if there is one.
        alert: Whether times are means that fade with a client's own replies and are forgotten at
            once when they no longer agree with what was expected. False lets logarithms of times
            fade with rounds.
        doubt: Whether clients whose claims of time contradict the server's clock are doubted.
            Without such claims it changes nothing.
    """

    uses_columns = frozenset({"context", "num_samples"})
    optional_metrics = MappingProxyType(
        {"loss_rms": "it goes by times, answers and queues, and all losses count as equal"}
    )
    accounts = (*Accounts.accounts, "queue_")
    state_ranges = MappingProxyType({**Accounts.state_ranges, "shortest_": NOT_NEGATIVE})
    later_state = Accounts.later_state | {
        *("agreement_", "spread_", "error_", "n_compared_", "shortest_", "is_doubted_")
    }

    memo_by_client = Accounts.memo_by_client | {"base", "context", "time"}
    cap = math.inf

    def __init__(
        self,
        *,
        floor: Fraction = 0.5,
        share: Fraction = 0.7,
        haste: NonNegative = 1.0,
        utility: NonNegative = 0.5,
        memory: Annotated[float, number(above=1.0)] = 50.0,
        dimension: Count = 3,
        alert: Flag = False,
        doubt: Flag = False,
    ) -> None:
        self.floor = floor
        self.share = share
        self.haste = haste
        self.utility = utility
        self.memory = memory
        self.dimension = dimension
        self.alert = alert
        self.doubt = doubt

    @property
    def needs_metrics(self) -> frozenset[str]:  # type: ignore[override]  # depends on a parameter
        """The loss, unless it counts for nothing."""
        return frozenset({"loss_rms"} if self.utility > 0.0 else ())

    def reset(self, n_clients: int) -> None:
        """Empty queues, and nothing is known of anyone."""
        super().reset(n_clients)
        self.queue_ = np.zeros(n_clients)
        self.pace_ = no_observations(n_clients)
        self.answers_ = no_observations(n_clients)
        self.loss_ = no_observations(n_clients)
        self.gram_ = np.zeros((self.dimension, self.dimension))
        self.moment_ = np.zeros(self.dimension)
        self.mean_time_ = self.n_times_ = 0.0
        self.late_ = 0.0
        self.agreement_ = self.spread_ = self.error_ = self.n_compared_ = 0.0
        self.shortest_ = np.full(n_clients, LARGEST_STATE)  # not in such a round yet
        self.is_doubted_ = np.zeros(n_clients, dtype=np.bool_)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Reserve what is owed, and minimise the objective over the other places."""
        reserved = self._reserved(ctx)
        others = np.flatnonzero(self._allowed(ctx, reserved))
        n_places = min(ctx.size - reserved.size, others.size)
        context = known_context(ctx, self.dimension) if "context" in ctx.columns else None
        base = self._base(ctx, context)
        time = self._expected(ctx, base)
        np.minimum(time, ctx.deadline, out=time)
        of_others = others if others.size < ctx.n_clients else slice(None)  # without a copy
        worth = self._worth(ctx)
        worth *= self.utility
        queue = self._ledger(ctx.round).accounts["queue_"]
        chosen = reserved
        if n_places and ctx.busy is not None:
            mean = max(float(time[ctx.available | ctx.busy].mean()), SHORTEST)
            of_each = time[of_others] / mean, worth[of_others], queue[of_others]
            score = place_score(*of_each, self.haste)
            chosen = others[top_m(score, n_places, rng).chosen]  # Eq. (6)
            if reserved.size:
                chosen = np.sort(np.concatenate((reserved, chosen)))
        elif n_places:
            slowest = time[reserved].max(initial=0.0)
            cost = np.maximum(time[of_others], slowest)  # the slowest counts
            gain = (worth + queue)[of_others]
            mean = max(float(ctx.of_pool(time).mean()), SHORTEST)
            price = self.haste * n_places * (1.0 - self.late_) / mean  # Eq. (1)
            limit = bottleneck_limit(cost, gain, n_places, price)
            ranking = top_m(np.where(cost <= limit, gain, -np.inf), n_places, rng)
            chosen = np.sort(np.concatenate((reserved, others[ranking.chosen])))
        is_reserved = np.zeros(chosen.size, dtype=np.bool_)
        if reserved.size:
            is_reserved[np.searchsorted(chosen, reserved)] = True
        memo = {"base": base[chosen], "time": time[chosen]}
        if ctx.busy is not None:
            memo["part"] = np.array(_part_of_round(ctx))
        if context is not None:
            memo["context"] = context[chosen]
        memo |= self._account_memo(ctx, is_reserved)
        return self._noted(Selection(ctx.round, chosen, memo=memo))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Charge the round, and let every mean fade before it learns."""
        self._settle(selection)
        clients = selection.clients
        memory = self.memory / float(selection.memo.get("part", 1.0))
        for record in (self.answers_, self.loss_, *(() if self.alert else (self.pace_,))):
            fade(record, memory)
        self.answers_[0, clients] += outcome.completed
        self.answers_[1, clients] += 1.0
        if self.utility > 0.0:
            add_observations(self.loss_, clients, outcome.metric("loss_rms"))
        if clients.size:
            late = np.count_nonzero(outcome.status == _LATE) / clients.size
            self.late_ += (late - self.late_) / memory
        self._learn_times(selection, outcome, memory)

    def _charge(self, accounts: Mapping[str, FloatArray], selection: Selection) -> Array:
        """Advance the queues too."""
        was_there = super()._charge(accounts, selection)
        queue = accounts["queue_"]
        queue[: was_there.size] += self.share * float(selection.recall("share")) * was_there
        queue[charged(selection)] -= 1.0
        np.maximum(queue, 0.0, out=queue)  # Eq. (2)
        return was_there

    def _learn_times(self, selection: Selection, outcome: Outcome, memory: float) -> None:
        """Update the mean time, the regression and the pace of the chosen."""
        seconds = self._believed(selection, outcome)
        is_timed = ~np.isnan(seconds) & (outcome.status <= _LATE)
        if not is_timed.any():
            return
        known = self.mean_time_ if self.n_times_ else float(np.median(seconds[is_timed]))
        clipped = np.clip(seconds, known / TAIL, known * TAIL)
        keep = math.exp(-1.0 / (LASTING * memory if self.alert else memory))
        self.n_times_ = keep * self.n_times_ + 1.0
        self.mean_time_ = known + (float(clipped[is_timed].mean()) - known) / self.n_times_
        if "context" in selection.memo:
            c = selection.recall("context")[is_timed]
            self.gram_ = keep * self.gram_ + c.T @ c
            self.moment_ = keep * self.moment_ + c.T @ clipped[is_timed]
        base, time = selection.recall("base"), selection.recall("time")
        is_censored = ~is_timed & (outcome.status != _FAILED)
        at_least = np.maximum(seconds[is_timed].max(), time)
        seconds = np.where(is_censored, at_least, np.where(is_timed, seconds, np.nan))
        if self.alert:
            self._compare(selection, seconds / base, time / base, is_timed, memory)
        else:
            pace = np.log(np.clip(seconds / base, 1.0 / TAIL, TAIL))
            add_observations(self.pace_, selection.clients, pace)

    def _believed(self, selection: Selection, outcome: Outcome) -> FloatArray:
        """Return (s,) the times of the chosen, NaN if unknown, of the doubted by Eq. (7)."""
        seconds = np.where(outcome.duration > 0.0, outcome.duration, np.nan)
        if not self.doubt:
            return seconds
        clients, length = selection.clients, outcome.length_s
        slowest = float(seconds.max(initial=0.0))
        if outcome.completed.all() and not math.isnan(slowest + length):
            self.shortest_[clients] = np.minimum(LOOSER * self.shortest_[clients], length)
            self.is_doubted_[clients] |= length > FALSE * slowest
        at_least = np.where(self.is_doubted_[clients], self.shortest_[clients], 0.0)
        return np.maximum(seconds, at_least)

    def _compare(
        self,
        selection: Selection,
        found: FloatArray,
        expected: FloatArray,
        is_timed: BoolArray,
        memory: float,
    ) -> None:
        """Learn times as means of ratios to the base, Eq. (5); forget if they came out wrong."""
        clients = selection.clients
        is_known = is_timed & (self.pace_[1, clients] > KNOWN)
        sample = self.pace_[:, :: 1 + self.n_clients // SAMPLE]
        sums, replies = sample[:, sample[1] > KNOWN]
        usual = float(np.log(np.maximum(sums / replies, 1.0 / FAR)).mean()) if sums.size else 0.0
        x = np.log(expected[is_known]) - usual
        y = np.log(np.clip(found[is_known], 1.0 / FAR, FAR)) - usual
        keep = math.exp(-self.memory / (COMPARED * memory))  # a choice may be part of a round
        self.agreement_ = keep * self.agreement_ + float(x @ y)
        self.spread_ = keep * self.spread_ + float(x @ x)
        missing = self.spread_ - self.agreement_  # spread x (1 - slope)
        is_far = missing**2 > CERTAIN**2 * self.error_ * self.spread_
        if self.n_compared_ >= USUAL_AFTER and missing > LOST * self.spread_ and is_far:
            self.pace_ *= LEFT
            self.agreement_ = self.spread_ = self.error_ = self.n_compared_ = 0.0
            self.shortest_[:], self.is_doubted_[:] = LARGEST_STATE, False
        elif x.size:
            self.n_compared_ = min(self.n_compared_ + 1.0, REPLIES)
            error = float(np.square(y - x).mean())
            self.error_ += (error - self.error_) / self.n_compared_
        seen = clients[~np.isnan(found)]
        self.pace_[:, seen] *= math.exp(-1.0 / REPLIES)
        add_observations(self.pace_, clients, np.minimum(found, TAIL * expected))

    def _base(self, ctx: RoundContext, context: FloatArray | None) -> FloatArray:
        """Return (n,) what a client of ordinary pace would take now."""
        mean = self.mean_time_ if self.n_times_ else 1.0
        if context is None or not self.gram_.any():
            return np.full(ctx.n_clients, mean)
        gram = self.gram_.copy()
        gram.ravel()[:: self.dimension + 1] += RIDGE * np.trace(gram) / self.dimension
        theta = np.linalg.solve(gram, self.moment_)
        predicted: FloatArray = context @ theta
        np.maximum(predicted, mean / TAIL, out=predicted)
        return np.minimum(predicted, mean * TAIL, out=predicted)

    def _expected(self, ctx: RoundContext, base: FloatArray) -> FloatArray:
        """Return (n,) the time that each client is expected to take, Eq. (3)."""
        if self.alert:
            return np.maximum(shrunk_mean(self.pace_, 1.0, RATIO_PRIOR) * base, SHORTEST)
        time = shrunk_mean(self.pace_, 0.0, TIME_PRIOR)
        return np.multiply(np.exp(time, out=time), base, out=time)

    def _worth(self, ctx: RoundContext) -> FloatArray:
        """Return (n,) utility times reliability; 1 for a typical client that always answers."""
        n_answers, n_asked = self.answers_.sum(axis=1)
        worth = shrunk_mean(self.answers_, (n_answers + 1.0) / (n_asked + 1.0), ANSWER_PRIOR)
        is_known = self.loss_[1] > 0.0
        sums, counts = self.loss_ if is_known.all() else self.loss_[:, is_known]
        typical = _median(sums / counts)
        if typical > 0.0:
            relative = shrunk_mean(self.loss_, typical, LOSS_PRIOR)
            relative /= typical
            most = np.where(self.is_doubted_, 1.0, CLIP) if self.is_doubted_.any() else CLIP
            worth *= np.minimum(relative, most, out=relative)
        if "num_samples" in ctx.columns:
            worth *= typical_share(np.array(ctx.column("num_samples"), dtype=np.float64), CLIP)
        return worth


def typical_share(amount: FloatArray, most: float) -> FloatArray:
    """Return amounts over the median, in place: at most ``most``, and 1 where one is not known.

    Args:
        amount: (n,) the amounts, NaN = unknown; it is changed.
        most: The largest share.
    """
    unknown = np.isnan(amount)
    typical = _median(amount[~unknown] if unknown.any() else amount)
    if not typical > 0.0:
        return np.ones(amount.size)
    amount /= typical
    amount[unknown] = 1.0
    return np.minimum(amount, most, out=amount)


def place_score(time: FloatArray, worth: FloatArray, queue: FloatArray, haste: float) -> FloatArray:
    """Return (k,) Eq. (6): what a client brings, less what its place costs.

    Args:
        time: (k,) predicted times, relative to the mean.
        worth: (k,) utility x reliability, times its weight.
        queue: (k,) the queues.
        haste: What the mean time costs.
    """
    return queue + worth / np.sqrt(1.0 + time) - haste * time


def _part_of_round(ctx: RoundContext) -> float:
    """Return which part of the places at work is chosen now, above 0."""
    n_busy = 0 if ctx.busy is None else int(np.count_nonzero(ctx.busy))
    return ctx.cohort_size / (n_busy + ctx.cohort_size)


def _median(values: FloatArray) -> float:
    """Return the median, 0 of nothing."""
    return median(values) if values.size else 0.0
