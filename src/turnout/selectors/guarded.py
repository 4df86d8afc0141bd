"""Guarded: any selector, with a floor, a cap and hard limits on what each client gets.

Paper:      There is none: deficit queues served largest first, and token buckets.
Setting:    It needs what the inner selector needs. The guarantee uses nothing that clients report.
Idea:       The fair share of a round is size / available for each available client. A client that
            is a whole place behind ``floor`` times its fair share gets a reserved place, those
            furthest behind first. A client that has had ``cap`` times its share is excluded from
            the round. The inner selector fills the other places from the remaining clients and sees
            no others. With floor=0 and cap=inf the inner selector chooses alone, bit for bit.
            ``min_gap`` and ``max_times`` limit participation, as differential privacy with
            correlated noise needs it (DP-FTRL; arXiv:2306.08153, arXiv:2408.08868). They come
            first: a client that they exclude counts as not available, for everything here.
Symbols:    phi = floor, kappa = cap, f_t = size / available of round t. Of a client in a window W
            of rounds: S = sum of f_t while it was available, X = times chosen. owed_ = q, tokens_ =
            c, lot_ = who goes first of equals. b = min_gap, k = max_times; of a client, invited_ =
            times chosen, after_invited_ = the round after the last of them, 0 = never;
            known_until_ = the first round that these do not know.
Equations:  (1) q <- max(0, q + phi f_t - x). (2) c <- min(1, c + kappa f_t - x), where a reserved
            place takes c no lower than 0. A place is reserved if q + phi f_t >= 1, and a client is
            out if c + kappa f_t < 1.
            (3) Over every window of every history, whatever the inner selector and the clients do,
            and whether feedback comes at once, late, out of order or never: X >= phi S - D, D = 1 +
            phi (n - 1); D = 1 + phi if all n clients are always available. (4) Likewise X <= kappa
            S + max(1, q at the start of W): one place more than the cap, or what the floor owed it.
            So X / S is at least phi - e where S >= D / e. No selector has a D below phi (n - 1) /
            2: offer two clients at a time that are equally far behind, and keep back whoever was
            passed over.
            (5) A restart from a state file forgets rounds: those that were chosen after the latest
            round whose feedback is in the file. If these are R rounds of W, (3) holds with D + phi
            R and (4) with R places more.
            (9) Two rounds i < j that choose the same client have j - i >= b, and there are at most
            k of them. (10) The column energy_j, summed over the rounds that choose a client, is at
            most max_energy_j, and over all clients at most total_energy_j. Both are without a
            slack, for every history: whatever feedback and clients do, and after restarts.
            "Available" in (3) and (4) then means: and not excluded by (9) or (10).
            (11) With ``answers`` the floor is on replies: X >= U - D, U = sum of u while the client
            was available, D = 1 + 2 c (n - 1), c = the largest u of anyone; (4) holds as it stands.
            u = f_t min(phi R / r, kappa), at most 1, takes the place of phi f_t in (1). r is the
            client's column success_rate and R the mean of that column over the available clients.
            If the u of a round sum to more than its places, all of them are scaled down to that
            sum. Where r is not known or below 1e-6, u = phi f_t. A client whose chance to reply is
            at least r in every round, whatever happened before, is expected to give at least r (U -
            D) replies in a window that was fixed in advance. That is phi times an equal share of
            the replies that a uniform draw is expected to get, sum of f_t R, less r D, wherever u
            was neither bounded nor scaled. Of its first x places it replies to at least r x -
            sqrt(x log(1 / d) / 2) with probability 1 - d.
Deviations: none.
Limits:     If more clients are owed a place than there are places, those furthest behind are served
            and the inner selector does not choose. D accounts for this. If too few clients are
            below their cap, the cohort is smaller than asked, even empty. The inner selector only
            learns from its own choices. It is not told what reserved clients do, because its
            estimates belong to its own draw. It learns when feedback comes, and nothing from lost
            feedback: (3) and (4) are about places, not about what is learned. A round that is
            chosen and never played counts as played, once a round with a later number is chosen.
            Rounds need numbers of their own. A client counts for (9) when it is chosen, whether it
            answers or not: who has work may always send it. A client that the inner selector draws
            twice counts once under (9), in the round and in the mean. After a restart (9) holds as
            long as rounds that were forgotten get no second cohort under their old numbers, and
            (10) with the energy of forgotten rounds more. Energy is charged when a client is
            chosen, as announced: announce what a round takes at most. Who announces none is
            excluded, and so is whoever is one of a cohort that would not fit into what is left for
            all if everyone needed as much. With (9) or (10) no share is promised to alerts, because
            excluded clients are there and get nothing.
            With ``answers``, nothing is promised about places alone, and a wrong success_rate makes
            a wrong promise: give what the server knows, not what clients claim. It is no floor on
            replies where clients are late because of others, as with first-k.
            What is proven about regret is at the end.
Cost:       O(n) select and observe besides the inner selector's, state 24n bytes, n / 8 bytes in
            each selection, and 16n more if an earlier round had no feedback when it was made. Each
            with limits: 16n more.
Checked:    windows recomputed by brute force over random and adversarial histories, feedback at
            once, late, out of order and lost, clients that join, restarts, and the adversary of
            (3), against a slow reference: tests/selectors/test_guarded_histories.py. (9) over the
            same histories, pair by pair: tests/selectors/test_participation.py.

Proof of (3). By (1), q after W is at least phi S - X, so it is enough that q <= D. Claim: the q of
any k clients sum to at most b(k) = d(1) + ... + d(k), d(j) = 1 + phi (n - j); k = 1 is (3). A
client starts with q < 1. In a round with at most ``size`` clients owed a place, all of them are
served: whoever was available ends below 1 or below where it was, and d >= 1. Otherwise exactly
s = size places go to clients with q + phi f >= 1. Let K be k clients, l of them available and
passed over, r served, p = s - r >= 1 served but not in K (if p = 0, K gains at most phi s and
loses s). Those p are at least as far behind as the mean of the l, so the claim for k + p clients
bounds the l, and with b(k - l) for the rest, the q of K sum after the round to at most
(p b(k - l) + l b(k + p)) / (l + p) + phi s (r + l) / N - r. With N >= s + l the last two terms
are at most phi p l / (l + p). This is at most b(k) if the mean of d over k - l + 1 .. k exceeds
its mean over k + 1 .. k + p by phi, and it does by phi (l + p) / 2. If all n are always available,
all are credited alike: whoever is served ahead of a waiting client falls behind it, so it waits
for at most n - 1 places, in which its q grows by less than phi.

Proof of (11). As that of (3), with d(j) = 1 + 2 c (n - j). Available clients that are not owed a
place end below 1 <= d, so leave them out of K. If p >= 1, the l were owed a place as well, and the
p have the larger q. The available clients of K gain at most c l + c r and lose r, so they rise by
at most c l, as c <= 1. The mean of d over k - l + 1 .. k exceeds its mean over k + 1 .. k + p by
c (l + p), and p l / (l + p) times that is p c l >= c l. If p = 0, K gains at most the sum of all u,
which is at most s, and loses s. For (4): a charge gives q at most kappa f. The sum of reply - r
over the places of a client is a submartingale with steps of at most 1 (Azuma and Hoeffding).

Proof of (4). Tokens of a round beyond 2 are not counted, so take kappa f <= 2. Let h = max(q, c). A
charge raises h by at most kappa f - x: what (1) and (2) leave to q or c at least, 0, is not above
h. So X - kappa S <= h at the start of W - h at its end, and at the start h <= max(1, q). Let W end
with a round that chose the client and had kappa f < 1, for others do not raise X - kappa S. Then c
or q was at least 1 - kappa f, and h >= 0 after it.

Late and lost feedback. Charges need who was available and who was chosen, and nothing of the
outcome. ``select`` remembers its last selection until the feedback comes. If the next round is
chosen before that, ``select`` charges the remembered round to a copy of the accounts, chooses by
the copy, and puts it into the new selection. So it sees the accounts as if all feedback had come at
once, and the proofs above hold word for word. ``observe`` takes the accounts that the selection
brings and charges its round. Every selection has the number of rounds charged before it. If a later
one has been observed, its accounts had this round in them, and it is not charged again. A selector
that learned of its rounds by their feedback alone could not promise this: if of L rounds nothing is
known, it passes over the same of two clients L + 1 times, and the adversary above makes D at least
(L + 1) phi (n - 1) / 2.

Proof of (5). The accounts of any selection are those of some rounds, charged in order, of which
every one was chosen by the accounts of those before it. To these rounds (3) and (4) apply. Of the
others, each adds at most phi f <= phi to phi S - X, and at most 1 to X - kappa S. They are at most
R: the rounds that the file does not know, or, if late feedback of the last of them brings them
back, as many of those that were chosen since. This assumes that the selector is not told of a round
if it lacks an earlier one that was answered, as it may if the file is older than that answer.

Proof of (9). A ledger (invited_, after_invited_, known_until_) is sound if it counts at least the
choices of all rounds before known_until_. ``select`` adds the rounds that it neither finds there
nor chose itself: as if everyone had been chosen in the last of them, and as often as b allows in
all. So it excludes whoever (9) excludes. The ledger it passes on has its own round too, and is
sound. ``observe`` puts a sound ledger in place of a sound one and keeps the larger entries, and the
larger of two sound entries is sound. The exclusion is part of the pattern of availability, for all
of which (3) to (5) are proven.

Rounds that overlap. A client at work cannot be chosen, so it is not available, and each choice is a
round of the proofs above: its places are the free ones. Nothing in them says why a client is not
available, or when feedback comes. So (3) and (4) hold for windows of choices as they stand, with S
counted over the choices that find the client free. (12) Let every free client be available and at
most c be at work, and let phi (n - 1) / (n - c + 1) + phi c / n <= 1. Then (3) holds with
D = 1 + phi (n - 1) / (n - c + 1), which is near 1 + phi if n is large against c. Proof: it is
enough that q <= D. While client i is owed a place and passed over, it is free, all places go to
clients that are owed one and have at least its q, and it is credited phi s / N for s places, where
N >= n - c + s clients are free. By induction every q so far is at most D, and that of i is at least
1 - phi f, with f <= c / n. So whoever is served ahead of i is less than 1 ahead of it, falls behind
it, and stays there: it is credited as i is when it is free, and not at all when it is at work. At
most n - 1 places are given before i is served, and each adds at most phi / (n - c + 1). In seconds
nothing is promised: a client whose work lasts for L choices of fair share f is not credited for
them, so it gets X >= (phi S' - D) / (1 + phi f L) of the S' that counts all choices.

Regret. Let all n clients be available, with k places in each of T rounds and a reward in [0, 1] for
each place. (6) At most phi k T + n places are reserved: the q sum to at most n at first, a round
adds phi k, a reserved place takes 1, and no q falls below 0. (7) If there is no cap, the regret
against the best fixed k clients is at most phi k T + n and the regret of the inner selector in its
own places: if r places are reserved, at least k - r of the best are offered to it. (8) Every
selector with (3) has a regret of at least phi k (1 - k / n) T - (n - k) D where k clients always
earn 1 and the others 0. So a regret that grows with T is the price of any floor, and the reserved
places cost at most n / (n - k) times the least price. Open: the inner selector's part of (7).
Regret bounds such as that of E3CS are for a fixed set of clients, and here the set that is offered
depends on the past. Also open: whether the regret against the best shares between floor and cap
grows slower than T. So ``regret_bound`` returns None unless floor = 0, cap = inf, and (9) and (10)
are off.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from turnout.core.domains import Count, Flag, Fraction, PositiveOrInfinite, number
from turnout.core.errors import InvalidInput
from turnout.core.participation import CHANCE_BOUND
from turnout.core.registry import make, register
from turnout.core.selector import Selector
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    PollData,
    RoundContext,
    Selection,
)
from turnout.selectors._invitations import COST, Invitations

#: The column with each client's chance to reply.
RELIABILITY = "success_rate"
#: Whoever replies less often is owed as many places as without this column.
LEAST_RELIABILITY = 1e-6
#: How the names of the inner selector's state and memo begin.
INNER = "inner."


@register("guarded")
class Guarded(Invitations):
    """An inner selector between a floor and a cap, with limits on participation.

    Args:
        inner (name of a selector): The selector that fills the places that are not reserved.
        floor: Share of its fair share that each client gets at least, up to the places D of (3). 0
            reserves nothing, 1 makes everyone equal. Try 0.5 first.
        cap: Multiple of its fair share that each client gets at most. Try 2 first; a cap close to 1
            can leave places empty.
        inner_parameters (table or None): Parameters of the inner selector; None keeps its defaults.
        min_gap: Minimum separation b: a client that is chosen in round t is not chosen again before
            round t + b. 1 allows two rounds in a row. Take the bands of the noise matrix.
        max_times: Maximum participation k: rounds in which a client is chosen at most, in the whole
            life of the state. None is no limit.
        max_energy_j: Joules that a client spends at most, by the column energy_j. Keep inf for no
            limit.
        total_energy_j: Joules that all clients spend at most, by that column. Keep inf for no
            limit.
        answers: Whether the floor is on replies instead of places, by the column success_rate: a
            client that replies half as often is owed twice the places, up to the cap.
    """

    expected_check_failures: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"learns": "the inner selector learns, and by default it is random"}
    )

    memo_by_client = Invitations.memo_by_client | {"multiplicity"}

    def __init__(
        self,
        *,
        inner: str = "random",
        floor: Fraction = 0.5,
        cap: Annotated[float, number(minimum=1.0, or_infinite=True)] = 2.0,
        inner_parameters: Mapping[str, Any] | None = None,
        min_gap: Count = 1,
        max_times: Count | None = None,
        max_energy_j: PositiveOrInfinite = math.inf,
        total_energy_j: PositiveOrInfinite = math.inf,
        answers: Flag = False,
    ) -> None:
        self.inner = inner
        self.floor = floor
        self.cap = cap
        self.inner_parameters = inner_parameters
        self.min_gap = min_gap
        self.max_times = max_times
        self.max_energy_j = max_energy_j
        self.total_energy_j = total_energy_j
        self.answers = answers

    def check_parameters(self) -> None:
        """Check everything about the inner selector."""
        super().check_parameters()
        if not isinstance(self.inner_parameters, Mapping | None):
            raise InvalidInput(
                f"inner_parameters must be a table or None, got {self.inner_parameters!r}.",
                field="inner_parameters",
            )
        if self._make_inner().excludes:
            raise InvalidInput(
                "inner has limits or budgets of its own, which reserved places would break: give "
                "them to the outer selector.",
                field="inner",
            )

    def reset(self, n_clients: int) -> None:
        """Reset the inner selector too."""
        super().reset(n_clients)
        self._inner = self._make_inner()
        self._inner.reset(n_clients)

    def randomize(self, rng: np.random.Generator) -> None:
        """Redraw the inner selector's random state, then the lots."""
        self._inner.randomize(rng)
        super().randomize(rng)

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Let the inner selector ask among the clients that it may choose."""
        _, inner_ctx = self._plan(self._eligible(ctx))
        return None if inner_ctx is None else self._inner.poll(inner_ctx, rng)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Reserve places for those who are owed one, and let the inner selector fill the rest."""
        ctx = self._eligible(ctx)
        reserved, inner_ctx = self._plan(ctx)
        nothing = np.zeros(0) if self.reports_probability else None
        choice = Selection(ctx.round, reserved[:0], nothing)
        if inner_ctx is not None:
            choice = self._inner.select(inner_ctx, rng)
        clients = np.concatenate((reserved, choice.clients))
        order = np.argsort(clients)
        cost = {COST: ctx.column(COST)[clients[order]]} if self.has_budget else {}
        memo = {
            **self._account_memo(ctx, (np.arange(clients.size) < reserved.size)[order]),
            "asked_inner": np.array(inner_ctx is not None),
            **cost,
            **{f"{INNER}{name}": values for name, values in choice.memo.items()},
        }
        once = np.ones(reserved.size)
        if self.participation.is_limited:
            memo |= self._limit_memo(ctx, reserved, inner_ctx)
        elif "multiplicity" in choice.memo:
            times = np.concatenate((once.astype(np.int64), choice.times))
            memo["multiplicity"] = times[order]
        chance = choice.probability
        if chance is not None:
            chance = np.concatenate((once, chance))[order]
        return self._noted(Selection(ctx.round, clients[order], chance, memo))

    def chances(self, ctx: RoundContext) -> FloatArray | None:
        """Return 1 for a reserved place, and the inner selector's chances for the others."""
        return self._chances(ctx.n_clients, *self._plan(self._eligible(ctx)))

    def _chances(
        self, n_clients: int, reserved: IntArray, inner_ctx: RoundContext | None
    ) -> FloatArray | None:
        """Return the chances of everyone under a plan."""
        if inner_ctx is None:
            chance = np.zeros(n_clients)
        elif (found := self._inner.chances(inner_ctx)) is not None:
            chance = found
        else:
            return None
        chance[reserved] = 1.0
        return chance

    def part(self, selection: Selection, kept: BoolArray, chance: FloatArray) -> Selection:
        """Return the part, with the part of the inner selector's choice."""
        part = super().part(selection, kept, chance)
        if not selection.recall("asked_inner"):
            return part
        is_inner = ~selection.recall("is_reserved")
        inner = self._inner.part(_own(selection, is_inner), kept[is_inner], chance[is_inner[kept]])
        memo = {**part.memo, **{f"{INNER}{name}": x for name, x in inner.memo.items()}}
        return Selection(part.round, part.clients, part.probability, memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Charge the round to everyone who was available, and tell the inner selector its part."""
        self._settle(selection)
        if selection.recall("asked_inner"):
            self._inner.observe(*_part(selection, outcome, ~selection.recall("is_reserved")))

    def quota_at(self, round: int) -> float:
        """Return the larger of the floor on places and the inner selector's quota."""
        return max(0.0 if self.answers else self.floor, self._chooser.quota_at(round))

    def guaranteed_rate(self) -> float | None:
        """Return the inner selector's, none with limits; the floor depends on who is available."""
        return None if self.excludes else self._chooser.guaranteed_rate()

    def promised_share(self, round: int) -> float:
        """Return the share of places that is promised; 0 with limits, which may exclude anyone.

        Args:
            round: The round, counted from 0.
        """
        if self.excludes or self.answers:
            return 0.0
        return super().promised_share(round)

    def regret_bound(self, n_rounds: int, cohort_size: int, n_clients: int) -> FloatArray | None:
        """Return the inner selector's while it chooses alone; there is none otherwise."""
        is_free = self.cap == math.inf and not self.excludes
        is_alone = self.floor == 0.0 and is_free
        return self._chooser.regret_bound(n_rounds, cohort_size, n_clients) if is_alone else None

    @property
    def polls(self) -> bool:
        """Whether the inner selector does."""
        return self._chooser.polls

    @property
    def needs_columns(self) -> frozenset[str]:  # type: ignore[override]  # the inner selector's
        """What the inner selector needs, what a round costs for a budget, and who replies."""
        own = {COST: self.has_budget, RELIABILITY: self.answers and self.floor > 0.0}
        return self._chooser.needs_columns | {name for name, is_needed in own.items() if is_needed}

    @property
    def uses_columns(self) -> frozenset[str]:  # type: ignore[override]  # the inner selector's
        """What the inner selector uses."""
        return self._chooser.uses_columns

    @property
    def needs_metrics(self) -> frozenset[str]:  # type: ignore[override]  # the inner selector's
        """What the inner selector learns from."""
        return self._chooser.needs_metrics

    @property
    def optional_metrics(self) -> Mapping[str, str]:  # type: ignore[override]  # the inner's
        """What the inner selector can do without."""
        return self._chooser.optional_metrics

    @property
    def metric_sizes(self) -> Mapping[str, int]:  # type: ignore[override]  # the inner's
        """How long the vectors are that the inner selector learns from."""
        return self._chooser.metric_sizes

    @property
    def reports_probability(self) -> bool:  # type: ignore[override]  # the inner selector's
        """A reserved place is certain; for the rest, the inner selector knows or not."""
        return self._chooser.reports_probability

    @property
    def poll_data(self) -> PollData:  # type: ignore[override]  # the inner's
        """What the inner selector polls."""
        return self._chooser.poll_data

    @property
    def whole_cohorts(self) -> str:  # type: ignore[override]  # the inner selector's
        """Whether the inner selector needs whole cohorts, and why."""
        return self._chooser.whole_cohorts

    @property
    def may_underfill(self) -> bool:  # type: ignore[override]  # depends on a parameter
        """A cap or a limit may leave too few clients."""
        may_exclude = self.cap < math.inf or self.excludes
        return may_exclude or self._chooser.may_underfill

    def state(self) -> dict[str, Array]:
        """Return a copy of the accounts and of the inner selector's state."""
        learned = self._inner.state()
        del learned["n_clients_"]  # as our own
        return super().state() | {f"{INNER}{name}": values for name, values in learned.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a saved one; nothing changes if it does not fit."""
        own = {name: values for name, values in state.items() if not name.startswith(INNER)}
        inner = self._make_inner()
        inner.reset(self.n_clients)
        inner.load_state({"n_clients_": np.array(self.n_clients)} | _without_prefix(state))
        super().load_state(own)
        self._inner = inner

    def resume(self, waiting: Sequence[Selection]) -> None:
        """Tell the inner selector too, of its own choices."""
        super().resume(waiting)
        asked = [selection for selection in waiting if selection.recall("asked_inner")]
        self._inner.resume([_own(each, ~each.recall("is_reserved")) for each in asked])

    def grow(self, n_clients: int) -> None:
        """Make room for more clients, in the inner selector too."""
        super().grow(n_clients)
        self._inner.grow(n_clients)

    def _credit(self, ctx: RoundContext) -> float | FloatArray:
        """Return phi f, or (n,) u of Eq. (11) for a floor on replies."""
        plain = super()._credit(ctx)
        if not (self.answers and self.floor > 0.0 and ctx.pool.size):
            return plain
        rate = ctx.column(RELIABILITY)
        is_known = ctx.available & (rate >= LEAST_RELIABILITY)  # False for NaN
        if not is_known.any():
            return plain
        share = plain / self.floor
        factor = np.full(ctx.n_clients, self.floor)
        np.divide(self.floor * float(rate[is_known].mean()), rate, out=factor, where=is_known)
        credit: FloatArray = np.minimum(share * np.minimum(factor, self.cap), 1.0) * ctx.available
        return credit * min(1.0, ctx.size / float(credit.sum()))

    def _plan(self, ctx: RoundContext) -> tuple[IntArray, RoundContext | None]:
        """Return who has a reserved place, and the inner selector's context if it has a place."""
        reserved = self._reserved(ctx)
        n_places = ctx.cohort_size - reserved.size
        if n_places == 0:
            return reserved, None
        allowed = self._allowed(ctx, reserved)
        if np.count_nonzero(allowed) == ctx.pool.size:
            return reserved, ctx
        return reserved, dataclasses.replace(ctx, available=allowed, cohort_size=n_places)

    def _limit_memo(
        self, ctx: RoundContext, reserved: IntArray, inner_ctx: RoundContext | None
    ) -> dict[str, Array]:
        """Return the part of the memo that the limits need, and the largest chance of anyone."""
        memo = {"n_unknown": np.array(self._n_unknown(ctx.round))}
        chance = self._chances(ctx.n_clients, reserved, inner_ctx)
        return memo if chance is None else {**memo, CHANCE_BOUND: np.array(chance.max(initial=0.0))}

    @property
    def _chooser(self) -> Selector:
        """The inner selector, a fresh one before ``reset``."""
        return self._inner if "_inner" in vars(self) else self._make_inner()

    def _make_inner(self) -> Selector:
        return make(self.inner, **(self.inner_parameters or {}))


def _part(selection: Selection, outcome: Outcome, mine: Array) -> tuple[Selection, Outcome]:
    """Return the inner selector's own choice, and what came of it."""
    own = _own(selection, mine)
    metrics = {name: values[mine] for name, values in outcome.metrics.items()}
    return own, Outcome(outcome.status[mine], outcome.duration[mine], metrics)


def _own(selection: Selection, mine: Array) -> Selection:
    """Return the inner selector's own choice."""
    chance = selection.probability
    return Selection(
        selection.round,
        selection.clients[mine],
        None if chance is None else chance[mine],
        _without_prefix(selection.memo),
    )


def _without_prefix(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return what belongs to the inner selector, under its own names."""
    return {name[len(INNER) :]: arrays[name] for name in arrays if name.startswith(INNER)}
