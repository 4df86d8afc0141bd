"""The ledger behind ``guarded``'s limits: how often each client was chosen, when last, its energy.

The arrays are accounts as in ``_accounts``: ``select`` sees every round chosen before it, whether
its feedback came or not. What a restart forgets is counted against everyone. ``known_until_`` is
the first round that the ledger does not know. A ledger counts at least what really happened in the
rounds before that one, so of two ledgers of one history the larger entries are right as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from turnout.core.participation import KNOWN, NEXT, TIMES, Participation
from turnout.core.stateful import NOT_NEGATIVE
from turnout.core.types import Array, BoolArray, FloatArray, RoundContext, Selection
from turnout.selectors._accounts import Accounts, Ledger, charged

#: The accounts of the limits on participation.
INVITATIONS = (TIMES, NEXT, KNOWN)
#: The accounts of the budgets: joules charged to each client, and to all.
ENERGY, ENERGY_OF_ALL = "energy_", "energy_of_all_"
BUDGETS = (ENERGY, ENERGY_OF_ALL)
#: The column with the joules that the round would take each client.
COST = "energy_j"


class Invitations(Accounts):
    """Accounts with limits on participation; without limits they are plain accounts."""

    state_ranges = MappingProxyType(
        {**Accounts.state_ranges, **dict.fromkeys((*INVITATIONS, *BUDGETS), NOT_NEGATIVE)}
    )

    min_gap: int
    max_times: int | None
    max_energy_j: float
    total_energy_j: float
    _since: float  #: the first round that was chosen here since the state was loaded

    @property
    def participation(self) -> Participation:  # type: ignore[override]  # from parameters
        """The limits."""
        return Participation(self.min_gap, self.max_times)

    @property
    def accounts(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on parameters
        """The names of the accounts; a selector without limits keeps none for them."""
        limits = INVITATIONS if self.participation.is_limited else ()
        return (*Accounts.accounts, *limits, *(BUDGETS if self.has_budget else ()))

    @property
    def has_budget(self) -> bool:
        """Whether energy is limited."""
        return min(self.max_energy_j, self.total_energy_j) < math.inf

    @property
    def excludes(self) -> bool:  # type: ignore[override]  # depends on parameters
        """Whether a limit or a budget may exclude an available client."""
        return self.participation.is_limited or self.has_budget

    def reset(self, n_clients: int) -> None:
        """Nobody was chosen yet."""
        super().reset(n_clients)
        self._since = 0.0
        if self.participation.is_limited:
            setattr(self, TIMES, np.zeros(n_clients))
            setattr(self, NEXT, np.zeros(n_clients))
            setattr(self, KNOWN, np.zeros(1))
        if self.has_budget:
            setattr(self, ENERGY, np.zeros(n_clients))
            setattr(self, ENERGY_OF_ALL, np.zeros(1))

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a saved one; rounds that it does not know may have been chosen."""
        super().load_state(state)
        self._since = math.inf

    def continue_at(self, round: int) -> None:
        """Take note that the state has every round before this one.

        Args:
            round: The round that comes next.
        """
        if self.participation.is_limited:
            known = self._own_ledger().accounts[KNOWN]
            np.maximum(known, round, out=known)

    def _eligible(self, ctx: RoundContext) -> RoundContext:
        """Return the context without clients that limits or budgets exclude from the round."""
        may = ctx.available
        if self.participation.is_limited:
            may = may & self._may_take_part(ctx)
        if self.has_budget:
            may = may & self._can_pay(ctx)
        return ctx if may is ctx.available else dataclasses.replace(ctx, available=may)

    def _can_pay(self, ctx: RoundContext) -> BoolArray:
        """Return (n,) whose budget has the energy of the round; unknown energy is too much.

        A whole cohort of such clients fits into what is left for all.
        """
        accounts, cost = self._ledger(ctx.round).accounts, ctx.column(COST)
        left = self.total_energy_j - accounts[ENERGY_OF_ALL][0]
        fits = (cost >= 0.0) & (ctx.cohort_size * cost <= left)
        return np.asarray(fits & (accounts[ENERGY] + cost <= self.max_energy_j))

    def _may_take_part(self, ctx: RoundContext) -> BoolArray:
        """Return (n,) whom the limits on participation allow."""
        limits = self.participation
        accounts = _copies(self._ledger(ctx.round).accounts)
        self._charge_unknown(accounts, ctx.round, self._n_unknown(ctx.round))
        gap = ctx.round + 1 - accounts[NEXT]
        may = (accounts[NEXT] == 0) | (gap >= limits.min_gap)
        if limits.max_times is not None:
            may &= accounts[TIMES] < limits.max_times
        return np.asarray(may)

    def _n_unknown(self, round: int) -> int:
        """Return how many rounds before this one are neither in the ledger nor chosen here."""
        if not self.participation.is_limited:
            return 0
        known = float(self._ledger(round).accounts[KNOWN][0])
        return max(0, int(min(self._since, round) - known))

    def _ledger(self, round: int) -> Ledger:
        """Return the accounts before a round; what was in flight may get lost."""
        was_ahead = self._ahead is not None
        ledger = super()._ledger(round)
        if was_ahead and self._ahead is None:
            self._since = math.inf  # the numbers of the rounds went back
        return ledger

    def _noted(self, selection: Selection) -> Selection:
        """Remember from which round on all choices were made here."""
        self._since = min(self._since, selection.round)
        return super()._noted(selection)

    def _settle(self, selection: Selection) -> None:
        """Charge a round to the state; the ledger never counts less than before."""
        own = self._own_ledger().accounts
        before = {name: own[name].copy() for name in self.accounts[len(Accounts.accounts) :]}
        super()._settle(selection)
        for name, values in before.items():
            np.maximum(own[name], values, out=own[name])
        if self.participation.is_limited and own[KNOWN][0] <= selection.round:
            self._since = math.inf  # it was counted in accounts that are gone

    def _charge(self, accounts: Mapping[str, FloatArray], selection: Selection) -> Array:
        """Count who was chosen, and what was not known when they were."""
        was_there = super()._charge(accounts, selection)
        if self.has_budget:
            cost = selection.recall(COST)
            accounts[ENERGY][charged(selection)] += cost
            accounts[ENERGY_OF_ALL] += cost.sum()
        if not self.participation.is_limited:
            return was_there
        t, clients = selection.round, charged(selection)
        self._charge_unknown(accounts, t, int(selection.recall("n_unknown")))
        accounts[TIMES][clients] += 1.0
        accounts[NEXT][clients] = np.maximum(accounts[NEXT][clients], t + 1.0)
        np.maximum(accounts[KNOWN], t + 1.0, out=accounts[KNOWN])
        return was_there

    def _charge_unknown(
        self, accounts: Mapping[str, FloatArray], round: int, n_unknown: int
    ) -> None:
        """Count unknown rounds before a round against everyone, as often as the gap allows."""
        if n_unknown:
            accounts[TIMES][:] += math.ceil(n_unknown / self.min_gap)
            np.maximum(accounts[NEXT], round, out=accounts[NEXT])


def _copies(accounts: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    return {name: accounts[name].copy() for name in INVITATIONS}
