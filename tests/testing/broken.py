"""One correct selector of an outsider, and many that each break one rule of the contract."""

from __future__ import annotations

import numpy as np

from turnout import Outcome, RoundContext, Selection, Selector
from turnout.core.types import FloatArray, IntArray
from turnout.sampling import top_m, uniform_draw


class StickToWinners(Selector):
    """Stay with whoever answered last time.

    Paper:      none.
    Setting:    feedback is success or failure of the chosen.
    Idea:       whoever completed is tried again, everyone else after that.
    Symbols:    won_ = 1 if the last answer came in time.
    Equations:  none.
    Deviations: none.
    Limits:     whoever was lucky once keeps its place.
    Cost:       O(n) select, O(m) observe, state 8n bytes.
    Checked:    by the contract.
    """

    def reset(self, n_clients: int) -> None:
        super().reset(n_clients)
        self.won_ = np.zeros(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        ranked = top_m(ctx.of_pool(self.won_), ctx.size, rng)
        return Selection(ctx.round, ctx.pool[ranked.chosen], ranked.probability)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        self.won_[selection.clients] = outcome.completed


class Uniform(Selector):
    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        return Selection(ctx.round, ctx.pool[uniform_draw(ctx.pool.size, ctx.size, rng)])


# 1 parameters


class TakesByPosition(Uniform):
    def __init__(self, eta: float = 0.5) -> None:
        self.eta = eta


class ConvertsParameter(Uniform):
    def __init__(self, *, eta: object = "0.5") -> None:
        self.eta = float(str(eta))


class WorksInConstructor(Uniform):
    def __init__(self, *, eta: float = 0.5) -> None:
        self.eta = eta
        self.step = eta / 2.0


class ForgetsSuperReset(StickToWinners):
    def reset(self, n_clients: int) -> None:
        self.won_ = np.zeros(n_clients)


class KeepsItsPast(StickToWinners):
    def reset(self, n_clients: int) -> None:
        past = vars(self).get("won_")
        super().reset(n_clients)
        self.won_ = self.won_ if past is None else past


# 2 selection


class DrawsTwice(Uniform):
    def select(self, ctx, rng):
        return Selection(ctx.round, np.sort(rng.choice(ctx.pool, ctx.size)))


class IgnoresAvailability(Uniform):
    def select(self, ctx, rng):
        return Selection(ctx.round, uniform_draw(ctx.n_clients, ctx.size, rng))


class Underfills(Uniform):
    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: (ctx.size + 1) // 2])


class DeclaresChances(Uniform):
    reports_probability = True

    def select(self, ctx, rng):
        return Selection(ctx.round, super().select(ctx, rng).clients)


class Overfills(Uniform):
    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool)


class CountsItsOwnRounds(Uniform):
    def select(self, ctx, rng):
        return Selection(0, ctx.pool[: ctx.size])


class ReturnsAnArray(Uniform):
    def select(self, ctx, rng):
        return ctx.pool[: ctx.size]


class PollsTheAbsent(Uniform):
    def poll(self, ctx, rng):
        return np.arange(ctx.n_clients)


# 3 edge rounds


class NeedsSomebody(Uniform):
    def select(self, ctx, rng):
        score = rng.random(ctx.pool.size)
        return Selection(ctx.round, ctx.pool[np.sort(np.argsort(score / score.max())[: ctx.size])])


class TrustsColumns(Uniform):
    needs_columns = frozenset({"num_samples"})

    def select(self, ctx, rng):
        size = ctx.of_pool(ctx.column("num_samples"))
        return Selection(ctx.round, ctx.pool[top_m(size, ctx.size, rng).chosen])


class TrustsPolls(Uniform):
    def poll(self, ctx, rng) -> IntArray:
        return ctx.pool

    def select(self, ctx, rng):
        polled, loss = ctx.answers()
        best = np.argsort(-loss)[: ctx.size]
        chosen = polled[best] if np.isfinite(loss[best]).any() else polled[:0]
        return Selection(ctx.round, np.sort(chosen))


# 4 select keeps state


class MutatesInSelect(StickToWinners):
    def select(self, ctx, rng):
        self.won_ *= 0.9
        self.won_ += 0.1
        return super().select(ctx, rng)


class MutatesInPoll(StickToWinners):
    def poll(self, ctx, rng):
        self.won_ += 1.0
        return None


class GlobalNumpy(Uniform):
    def select(self, ctx, rng):
        drawn = np.random.permutation(ctx.pool.size)[: ctx.size]  # noqa: NPY002
        return Selection(ctx.round, ctx.pool[np.sort(drawn)])


class HidesState(StickToWinners):
    def observe(self, selection, outcome):
        super().observe(selection, outcome)
        self.favourite = 11

    def select(self, ctx, rng):
        score = ctx.of_pool(self.won_).copy()
        score[ctx.pool == vars(self).get("favourite", -1)] = 9.0
        return Selection(ctx.round, ctx.pool[top_m(score, ctx.size, rng).chosen])


class TakesAnyContext(Uniform):
    pass


def _unguarded_select(self, ctx, rng):
    return Selection(ctx.round, ctx.pool[uniform_draw(ctx.pool.size, ctx.size, rng)])


TakesAnyContext.select = _unguarded_select


# 5 inputs untouched


class WritesToColumns(Uniform):
    needs_columns = frozenset({"num_samples"})

    def select(self, ctx, rng):
        size = ctx.column("num_samples")
        size += 1
        return super().select(ctx, rng)


class WritesToOutcome(StickToWinners):
    def observe(self, selection, outcome):
        outcome.duration[:] = 0.0
        super().observe(selection, outcome)


class KeepsAReference(StickToWinners):
    def reset(self, n_clients):
        super().reset(n_clients)
        self.durations_ = np.zeros(0)

    def observe(self, selection, outcome):
        super().observe(selection, outcome)
        self.durations_ = outcome.status


# 6 probability


class WrongProbability(StickToWinners):
    def select(self, ctx, rng):
        chosen = super().select(ctx, rng).clients
        return Selection(ctx.round, chosen, np.full(chosen.size, ctx.size / max(1, ctx.pool.size)))


class TargetsAsProbability(Uniform):
    """Draws with ``choice(p=...)`` and reports m p, the mistake of many papers."""

    def select(self, ctx, rng):
        weight = 1.0 + np.arange(ctx.pool.size) % 3
        p = weight / weight.sum()
        drawn = np.sort(rng.choice(ctx.pool.size, ctx.size, replace=False, p=p))
        return Selection(ctx.round, ctx.pool[drawn], ctx.size * p[drawn])


class ChangingProbability(Uniform):
    def select(self, ctx, rng):
        chosen = super().select(ctx, rng).clients
        return Selection(ctx.round, chosen, 1.0 - 0.5 * rng.random(chosen.size))


class OtherChances(StickToWinners):
    def chances(self, ctx):
        return ctx.of_everyone(np.full(ctx.pool.size, 1.0 / ctx.n_clients))


# 7 observe survives


class NaNIntoState(StickToWinners):
    needs_metrics = frozenset({"loss"})

    def observe(self, selection, outcome):
        self.won_[selection.clients] = np.nan_to_num(outcome.metric("loss"))
        self.won_[selection.clients] += outcome.metric("loss") - outcome.metric("loss")


class DividesByDuration(StickToWinners):
    def observe(self, selection, outcome):
        with np.errstate(divide="ignore"):
            speed = 1.0 / np.nan_to_num(outcome.duration, nan=1.0)
        self.won_[selection.clients] = speed


class Overflows(StickToWinners):
    needs_metrics = frozenset({"loss"})

    def observe(self, selection, outcome):
        self.won_[selection.clients] = np.exp(np.nan_to_num(outcome.metric("loss")))


class TakesAnyOutcome(StickToWinners):
    pass


def _unguarded_observe(self, selection, outcome):
    return None


TakesAnyOutcome.observe = _unguarded_observe


# 8 late feedback


class RemembersLastPull(StickToWinners):
    def select(self, ctx, rng):
        selection = super().select(ctx, rng)
        self._last = selection.clients
        return selection

    def observe(self, selection, outcome):
        last = vars(self).get("_last", selection.clients)
        self.won_[last] = outcome.completed.mean() if outcome.completed.size else 0.0


class SelectionSharesState(StickToWinners):
    def select(self, ctx, rng):
        chosen = super().select(ctx, rng).clients
        return Selection(ctx.round, chosen, memo={"won": self.won_})


# 9 save and load


class AllocatesInObserve(StickToWinners):
    def observe(self, selection, outcome):
        super().observe(selection, outcome)
        self.total_ = float(self.won_.sum())


class CountsOutsideState(StickToWinners):
    def observe(self, selection, outcome):
        self.seen = vars(self).get("seen", 0) + 1
        self.won_[selection.clients] = self.seen * outcome.completed


# 10 grow


class ForgetsWhenGrowing(StickToWinners):
    def grow(self, n_clients):
        if n_clients < self.n_clients:
            super().grow(n_clients)
        self.reset(n_clients)


class ShutsOutNewClients(StickToWinners):
    def grow(self, n_clients):
        n_old = self.n_clients
        super().grow(n_clients)
        self.won_[n_old:] = -1.0


class Shrinks(StickToWinners):
    def grow(self, n_clients):
        if n_clients > self.n_clients:
            super().grow(n_clients)


# 11 relabelling


class LowIndexFirst(StickToWinners):
    def select(self, ctx, rng):
        best = np.argsort(-ctx.of_pool(self.won_), kind="stable")[: ctx.size]
        return Selection(ctx.round, ctx.pool[np.sort(best)])


class LowIndexFirstLater(StickToWinners):
    def select(self, ctx, rng):
        score = ctx.of_pool(self.won_) - (ctx.round > 0) * 1e-6 * ctx.pool
        return Selection(ctx.round, ctx.pool[top_m(score, ctx.size, rng).chosen])


# 12 long run


class KeepsAHistory(StickToWinners):
    def reset(self, n_clients):
        super().reset(n_clients)
        self.history_ = np.zeros(0)

    def observe(self, selection, outcome):
        super().observe(selection, outcome)
        self.history_ = np.append(self.history_, selection.round)


class KeepsAHiddenHistory(StickToWinners):
    def observe(self, selection, outcome):
        super().observe(selection, outcome)
        vars(self).setdefault("_log", []).append(selection.round)


class DriftsToInfinity(StickToWinners):
    def observe(self, selection, outcome):
        self.won_[selection.clients] = np.abs(self.won_[selection.clients]) * 2.0 + 1.0


# 13 declarations


class PromisesEveryRound(Uniform):
    def guaranteed_rate(self) -> float:
        return 15.0


class QuotaInClients(Uniform):
    def quota_at(self, round: int) -> float:
        return 5.0


class BoundsTheEndOnly(Uniform):
    def regret_bound(self, n_rounds: int, cohort_size: int, n_clients: int) -> FloatArray:
        return np.array([float(n_rounds)])


class UndeclaredColumn(Uniform):
    def select(self, ctx, rng):
        ctx.column("num_samples")
        return super().select(ctx, rng)


class AsksForUndeclaredColumn(Uniform):
    def select(self, ctx, rng):
        if "num_samples" in ctx.columns:
            rng.random()
        return super().select(ctx, rng)


class GetsUndeclaredColumn(Uniform):
    def poll(self, ctx, rng):
        ctx.columns.get("num_samples")
        return None


class HidesUndeclaredColumn(Uniform):
    def select(self, ctx, rng):
        try:
            ctx.column("num_samples")
        except Exception:
            return super().select(ctx, rng)
        return super().select(ctx, rng)


class UndeclaredMetric(StickToWinners):
    def observe(self, selection, outcome):
        self.won_[selection.clients] = np.nan_to_num(outcome.metric("loss"))


class NeedsItsOptionalColumn(Uniform):
    uses_columns = frozenset({"num_samples"})

    def select(self, ctx, rng):
        ctx.column("num_samples")
        return super().select(ctx, rng)


class VagueAboutColumn(Uniform):
    needs_columns = frozenset({"num_samples"})


def _vague_select(self, ctx, rng):
    if "num_samples" not in ctx.columns:
        raise ValueError("bad context")
    return _unguarded_select(self, ctx, rng)


VagueAboutColumn.select = _vague_select


# 14 vectorised


class LoopsOverClients(Uniform):
    def select(self, ctx, rng):
        score = [rng.random() for _ in ctx.pool]
        return Selection(ctx.round, ctx.pool[top_m(np.array(score), ctx.size, rng).chosen])


class LoopsInObserve(StickToWinners):
    def observe(self, selection, outcome):
        for i in range(self.n_clients):
            self.won_[i] *= 0.9
        super().observe(selection, outcome)


# 15 learns


class LearnsNothing(StickToWinners):
    def observe(self, selection, outcome):
        self.won_[selection.clients] = 0.0


class PrefersLosers(StickToWinners):
    def observe(self, selection, outcome):
        self.won_[selection.clients] = ~outcome.completed


# 16 forgets_the_dead


class RemembersVictories(StickToWinners):
    def observe(self, selection, outcome):
        self.won_[selection.clients] += outcome.completed


# 17 docstring


class SaysNothing(Uniform):
    """Draws at random."""
