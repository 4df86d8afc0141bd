"""REFL: clients that will soon be gone come first, and clients that answered rest.

Paper:      A. M. Abdelmoniem, A. N. Sahu, M. Canini, S. A. Fahmy, REFL: Resource-Efficient
            Federated Learning, EuroSys 2023, arXiv:2111.01108. We read the abstract and, line by
            line, the authors' code (ahmedcs/REFL) with the settings of its experiments, but not the
            whole text.
Setting:    The server sees who answers. It uses the chance that a client will still be available in
            the next round (availability_forecast), which it knows before the round or estimates.
Idea:       Selection by speed chooses the same clients again and again, and the model never learns
            from the data of the others. REFL reverses the order: each client forecasts whether it
            will be available in the next round, and those who are least likely to be are chosen.
            Clients that have answered rest for some rounds. So the work of clients goes into as
            many different data as possible.
Symbols:    availability_forecast = the chance reported for the slot [mu, 2 mu], mu being the usual
            length of a round; rest = rounds of the pause after an answer.
Equations:  select: intelligent participant selection (IPS). The paper's aggregation of stale
            updates (SAA) is not part of a selector: train with the schedule
            Synchronous(late="use", staleness=DeviationWeight()) of turnout.worlds.
Deviations: 1. A server without the column estimates it: the share of rounds after which an
            available client was available again, shrunk to that of all clients. The paper's
            clients forecast.
            2. Resting clients are chosen after all others, so that the cohort is full. The paper's
            clients do not check in. The code counts from the choice, so that with 5 a client rests
            for four rounds, and puts a random client in its place.
            3. A client that has not answered ``patience`` requests in a row gradually loses its
            rank. ``patience=None`` restores the paper, where silent clients are asked for ever.
            4. rule="ranked" follows descriptions of the text. The code knows only whether a client
            will be there (rule="split"), and prefers those who stay for this round and leave in the
            next. With yes-or-no forecasts both are the same.
            5. The cohort is as large as asked for. The paper's optional adaptive target subtracts
            the stragglers whose updates are still expected.
Limits:     If all clients are present all the time, it is a random draw with pauses. Clients that
            fail because they leave are chosen first. Their work is wasted if late updates do not
            count.
Cost:       O(n) select, O(n) observe, state 33n bytes.
Checked:    By hand and against a slow implementation, in tests/selectors/test_refl.py; the
            aggregation in tests/training/test_versions.py and tests/experiment/test_overlap.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np

from turnout.core.domains import Index, choice
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import Array, BoolArray, FloatArray, Outcome, RoundContext, Selection
from turnout.sampling import top_m, top_m_chances
from turnout.sampling.running import count_unanswered, lowered

#: A resting client ranks below all others, whose scores are inside [0, 1].
RESTING = -2.0

#: The estimate starts as if everyone had been seen so often to do what is usual.
STRENGTH = 1.0


@register("refl")
class REFL(Selector):
    """The clients that will hardly be available in the next round, unless they have just answered.

    Args:
        rest: Rounds that a client rests after an answer; 0 lets nobody rest. Keep 5.
        rule: ``"ranked"`` takes the least likely first, as the text. ``"split"`` is the authors'
            code: those who expect to be gone come before the others, in random order.
        patience: Requests in a row that a client may leave unanswered before it loses its rank
            (deviation 3). None never changes it. Keep 5.
    """

    uses_columns = frozenset({"availability_forecast"})
    reports_probability = True

    expected_check_failures: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"learns": "made for rare clients, not for good ones"}
    )
    state_ranges = MappingProxyType(
        {
            "stays_": NOT_NEGATIVE,
            "chances_": NOT_NEGATIVE,
            "seen_round_": Range(-1.0),
            "answer_round_": Range(-1.0),
            "unanswered_": NOT_NEGATIVE,
        }
    )

    def __init__(
        self,
        *,
        rest: Index = 5,
        rule: Annotated[str, choice("ranked", "split")] = "ranked",
        patience: Index | None = 5,
    ) -> None:
        self.rest = rest
        self.rule = rule
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Nobody has been seen, nobody rests."""
        super().reset(n_clients)
        self.was_available_ = np.zeros(n_clients, dtype=np.bool_)  # in the latest round seen
        self.seen_round_ = -1
        self.stays_ = np.zeros(n_clients)  # times that a client was available twice in a row
        self.chances_ = np.zeros(n_clients)  # times that it could have been
        self.answer_round_ = np.full(n_clients, -1, dtype=np.int64)
        self.unanswered_ = np.zeros(n_clients, dtype=np.int64)  # in a row

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take the clients with the lowest forecast."""
        ranking = top_m(self._score(ctx), ctx.size, rng)
        memo: dict[str, Array] = {}
        if "availability_forecast" not in ctx.columns:
            memo["available"] = ctx.available if ctx.busy is None else ctx.available | ctx.busy
        return Selection(ctx.round, ctx.pool[ranking.chosen], ranking.probability, memo)

    def chances(self, ctx: RoundContext) -> FloatArray:
        """Return 1 for the lowest forecasts, and equal chances for drawn places."""
        return ctx.of_everyone(top_m_chances(self._score(ctx), ctx.size))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Let those who answered rest, and remember who was there."""
        chosen, t = selection.clients, selection.round
        answered = outcome.completed
        count_unanswered(self.unanswered_, chosen, answered)
        who = chosen[answered]
        self.answer_round_[who] = np.maximum(self.answer_round_[who], t)
        if "available" in selection.memo:
            self._see(selection.recall("available"), t)

    def _see(self, available: BoolArray, t: int) -> None:
        """Count who stayed; rounds that come out of order tell nothing."""
        if t <= self.seen_round_:
            return
        now = np.zeros(self.n_clients, dtype=np.bool_)
        now[: available.size] = available  # others have joined since
        if t == self.seen_round_ + 1:
            self.chances_ += self.was_available_
            self.stays_ += self.was_available_ & now
        self.was_available_, self.seen_round_ = now, t

    def _score(self, ctx: RoundContext) -> FloatArray:
        """Return (p,) the rank of the available clients, higher first."""
        forecast = self._estimate(ctx)
        if "availability_forecast" in ctx.columns:
            told = ctx.of_pool(ctx.column("availability_forecast"))
            forecast = np.where(np.isnan(told), forecast, told)
        score = (forecast < 0.5).astype(np.float64) if self.rule == "split" else 1.0 - forecast
        score = lowered(score, ctx.of_pool(self.unanswered_), self.patience)
        last = ctx.of_pool(self.answer_round_)
        is_resting = (last >= 0) & (ctx.round - last <= self.rest)
        return np.where(is_resting, RESTING + score, score)

    def _estimate(self, ctx: RoundContext) -> FloatArray:
        """Return (p,) the chance to be available again, from what was seen."""
        total = self.chances_.sum()
        usual = self.stays_.sum() / total if total else 1.0
        stays, chances = ctx.of_pool(self.stays_), ctx.of_pool(self.chances_)
        estimate: FloatArray = (stays + STRENGTH * usual) / (chances + STRENGTH)
        return estimate
