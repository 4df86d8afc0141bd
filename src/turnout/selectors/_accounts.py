"""Accounts of fair shares: places that clients are owed, and caps. ``guarded`` has the proofs.

``owed_`` is q and ``tokens_`` is c of Eqs. (1) and (2) there. ``lot_`` breaks ties.

A charge reads nothing that clients report. So a round counts as answered for the accounts as soon
as a later round is chosen, whether its feedback is late or lost. ``select`` may not write the
state, so it notes its selection outside of it, in ``_latest``. If that has no feedback yet when the
next round is chosen, the new selection takes along the accounts of its moment, ``_ahead``, in which
every earlier round is charged. Its feedback brings them into the state. ``n_charged_`` counts the
rounds of the accounts. A selection whose number is below it has been charged already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE, Range
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    RoundContext,
    Selection,
)
from turnout.sampling import kth_largest

#: A whole place, up to the rounding errors of sums.
A_PLACE = 1.0 - 1e-9
#: Tokens of a round that fill any bucket, whatever was taken from it.
PLENTY = 2.0
#: The names in the memo of those who were chosen, and who had a reserved place, in a part.
CHARGED, CHARGED_RESERVED = "charged", "charged_reserved"


class Ledger(NamedTuple):
    """The accounts at one moment.

    Attributes:
        accounts: (n,) each, by the name of the account.
        n_charged: Rounds that are charged.
        round: The last of them; -1 if it does not matter.
    """

    accounts: Mapping[str, FloatArray]
    n_charged: int
    round: int = -1


class Accounts(Selector):
    """A selector that keeps a floor and a cap on what each client gets.

    ``select`` gives a place to everyone in ``_reserved`` and fills the others from ``_allowed``.
    Its memo holds ``_account_memo``, and it returns its selection through ``_noted``. ``observe``
    calls ``_settle``. Then Eqs. (3) to (5) of ``guarded`` hold, whatever the selector does with the
    other places.
    """

    state_ranges = MappingProxyType(
        {"tokens_": Range(most=1.0), "lot_": Range(0.0, 1.0), "n_charged_": NOT_NEGATIVE}
    )
    later_state = frozenset({"n_charged_"})
    memo_by_client = frozenset({"is_reserved"})
    #: The learned attributes that ``_charge`` changes.
    accounts: ClassVar[tuple[str, ...]] = ("owed_", "tokens_")

    floor: float
    cap: float
    _latest: Selection | None  #: the last selection, while it has no feedback
    _ahead: Ledger | None  #: the accounts by which it was chosen, if they are not the state's

    def reset(self, n_clients: int) -> None:
        """Nobody is behind, everyone may be chosen; ``randomize`` draws the lots again."""
        super().reset(n_clients)
        self.tokens_ = np.ones(n_clients)
        self.n_charged_ = 0
        self._draw_lots(stream(0, Purpose.INIT))
        self._forget()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a saved one; what was in flight is forgotten."""
        super().load_state(state)
        self._forget()

    def resume(self, waiting: Sequence[Selection]) -> None:
        """Note the last selection again, if it waits, with the accounts by which it was chosen.

        Args:
            waiting: The selections without feedback, oldest first.
        """
        self._forget()
        last = waiting[-1] if waiting else None
        if last is None or int(last.memo.get("number", -1)) < self.n_charged_:
            return  # a later one has brought its charge along
        self._latest = last
        own = self._own_ledger()
        if own.accounts.keys() <= last.memo.keys():
            self._ahead = own._replace(
                accounts=_copies(own.accounts), n_charged=int(last.memo["number"])
            )
            for name, values in self._ahead.accounts.items():
                brought = last.memo[name]
                values[: brought.size] = brought

    def grow(self, n_clients: int) -> None:
        """Make room for more clients; what is in flight stays noted."""
        super().grow(n_clients)
        if self._ahead is not None:
            grown = _copies(self._own_ledger().accounts)
            for name, values in self._ahead.accounts.items():
                grown[name][: values.size] = values
            self._ahead = self._ahead._replace(accounts=grown)

    def randomize(self, rng: np.random.Generator) -> None:
        """Redraw the lots."""
        self._draw_lots(rng)

    def promised_share(self, round: int) -> float:
        """Return the floor, or the quota if it is more.

        Args:
            round: The round, counted from 0.
        """
        return max(self.floor, self.quota_at(round))

    def _reserved(self, ctx: RoundContext) -> IntArray:
        """Return the clients that are owed a place, ascending; at most those furthest behind."""
        owed = self._ledger(ctx.round).accounts["owed_"]
        due = owed + self._credit(ctx)
        candidates = np.flatnonzero(ctx.available & (due >= A_PLACE))
        return self._furthest_behind(candidates, owed, ctx.size)

    def _credit(self, ctx: RoundContext) -> float | FloatArray:
        """Return the places that a round owes each available client, one number or (n,)."""
        return self.floor * fair_share(ctx)

    def _allowed(self, ctx: RoundContext, reserved: IntArray) -> BoolArray:
        """Return (n,) which clients may have one of the other places."""
        tokens = self._ledger(ctx.round).accounts["tokens_"]
        due = tokens + self._new_tokens(fair_share(ctx))
        allowed: BoolArray = ctx.available & (due >= A_PLACE)
        allowed[reserved] = False
        return allowed

    def _ledger(self, round: int) -> Ledger:
        """Return the accounts before a round: every earlier one is charged, answered or not.

        A round that was chosen before this one but has a later number was only a preview.
        """
        latest = self._latest
        if latest is not None and latest.round != round:
            if latest.round < round:
                before = self._ahead or self._own_ledger()
                accounts = _copies(before.accounts)
                self._charge(accounts, latest)
                self._ahead = Ledger(accounts, before.n_charged + _counts(latest), latest.round)
            self._latest = None
        if self._ahead is not None and self._ahead.round >= round:
            self._ahead = None  # the numbers of the rounds went back
        return self._ahead or self._own_ledger()

    def _account_memo(self, ctx: RoundContext, is_reserved: BoolArray) -> dict[str, Array]:
        """Return the part of the memo that ``_settle`` needs."""
        ledger = self._ledger(ctx.round)
        memo = {
            "available": np.packbits(ctx.available),
            "share": np.array(fair_share(ctx)),
            "is_reserved": is_reserved,
            "number": np.array(ledger.n_charged),
        }
        credit = self._credit(ctx)
        if isinstance(credit, np.ndarray):  # otherwise it follows from the share
            memo["credit"] = credit
        return memo if self._ahead is None else {**memo, **ledger.accounts}

    def part(self, selection: Selection, kept: BoolArray, chance: FloatArray) -> Selection:
        """Return the part; the accounts are charged as ``select`` chose."""
        part = super().part(selection, kept, chance)
        whole = {CHARGED: selection.clients, CHARGED_RESERVED: selection.recall("is_reserved")}
        return Selection(part.round, part.clients, part.probability, {**part.memo, **whole})

    def _noted(self, selection: Selection) -> Selection:
        """Remember a selection until its feedback comes; a new one for its round replaces it."""
        self._latest = selection
        return selection

    def _settle(self, selection: Selection) -> None:
        """Charge a round to the state, unless a later one has brought its charge along."""
        is_latest = self._latest is not None and self._latest.round == selection.round
        number = int(selection.memo.get("number", self.n_charged_))  # older versions had none
        if number >= self.n_charged_:
            own = self._own_ledger()
            if self._latest is not None and not is_latest and self._ahead is None:
                # It is from before a restart: the last selection was made without it.
                self._ahead = own._replace(accounts=_copies(own.accounts))
            for name in own.accounts.keys() & selection.memo.keys():
                brought = selection.memo[name]
                own.accounts[name][: brought.size] = brought
            self._charge(own.accounts, selection)
            self.n_charged_ = number + _counts(selection)
        if is_latest:
            self._forget()  # the state has every round now

    def _charge(self, accounts: Mapping[str, FloatArray], selection: Selection) -> Array:
        """Charge a round to every client that was available, in place; return who was."""
        is_reserved = selection.memo.get(CHARGED_RESERVED, selection.recall("is_reserved"))
        clients = charged(selection)
        share = float(selection.recall("share"))
        all_owed, all_tokens = accounts["owed_"], accounts["tokens_"]
        was_there = self._was_there(selection)
        credit = selection.memo.get("credit", self.floor * share)
        all_owed[: was_there.size] += credit * was_there
        all_tokens[: was_there.size] += self._new_tokens(share) * was_there
        owed, tokens = all_owed[clients], all_tokens[clients]
        most = np.maximum(owed, tokens)
        least = np.where(most >= A_PLACE, 0.0, most - 1.0)  # below 0 only if a round is missing
        # A reserved place is paid from ``owed_`` in full and takes ``tokens_`` no lower than
        # ``least``. For any other place it is the other way round.
        kept = np.where(is_reserved, -np.inf, np.minimum(owed, least))
        all_owed[clients] = np.maximum(owed - 1.0, kept)  # Eq. (1)
        kept = np.where(is_reserved, np.minimum(tokens, least), -np.inf)
        all_tokens[clients] = np.maximum(tokens - 1.0, kept)
        np.minimum(all_tokens, 1.0, out=all_tokens)  # Eq. (2)
        return was_there

    def _was_there(self, selection: Selection) -> Array:
        """Return who was available, without clients that joined after the selection."""
        return np.unpackbits(selection.recall("available"))[: self.n_clients]

    def _own_ledger(self) -> Ledger:
        """Return the accounts of the state."""
        return Ledger({name: getattr(self, name) for name in self.accounts}, self.n_charged_)

    def _forget(self) -> None:
        """Nothing is in flight."""
        self._latest = self._ahead = None

    def _new_tokens(self, share: float) -> float:
        """Return the tokens of a round."""
        return min(self.cap * share, PLENTY)

    def _furthest_behind(self, clients: IntArray, owed: FloatArray, size: int) -> IntArray:
        """Return the clients that are owed most, at most ``size``; higher lots win ties."""
        if clients.size <= size:
            return clients
        owed = owed[clients]
        border = kth_largest(owed, size)
        ahead, tied = clients[owed > border], clients[owed == border]
        n_left_out = tied.size - (size - ahead.size)
        by_lot = np.argpartition(self.lot_[tied], n_left_out - 1) if n_left_out else slice(None)
        return np.sort(np.concatenate((ahead, tied[by_lot][n_left_out:])))

    def _draw_lots(self, rng: np.random.Generator) -> None:
        """Draw the order of ties; it also spreads the first claims over the first rounds."""
        self.lot_ = rng.random(self.n_clients)
        self.owed_ = self.lot_ * (self.floor > 0.0)


def charged(selection: Selection) -> IntArray:
    """Return who was chosen, also if the selection is a part.

    Args:
        selection: A selection of a selector with accounts.
    """
    return selection.memo.get(CHARGED, selection.clients)


def _counts(selection: Selection) -> int:
    """Return 1 for a round, 0 if no client was available in it: it charges nothing."""
    return int(selection.recall("available").any())


def _copies(accounts: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    return {name: values.copy() for name, values in accounts.items()}


def fair_share(ctx: RoundContext) -> float:
    """Return the places of the round per available client; 1 if no client is available.

    Args:
        ctx: The round.
    """
    return ctx.size / ctx.pool.size if ctx.pool.size else 1.0
