"""Accounts of fair shares: places that clients are owed, and caps. ``guarded`` has the proofs.

``owed_`` is q and ``tokens_`` is c of Eqs. (1) and (2) there. ``lot_`` breaks ties.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.stateful import Range
from turnout.core.types import Array, BoolArray, IntArray, RoundContext, Selection
from turnout.sampling import kth_largest

#: A whole place, up to the rounding errors of sums.
A_PLACE = 1.0 - 1e-9
#: Tokens of a round that fill any bucket, whatever was taken from it.
PLENTY = 2.0


class Accounts(Selector):
    """A selector that keeps a floor and a cap on what each client gets.

    ``select`` gives a place to everyone in ``_reserved`` and fills the others from ``_allowed``.
    Its memo holds ``_account_memo``, and ``observe`` calls ``_charge``. Then Eqs. (3) to (6) of
    ``guarded`` hold, whatever the selector does with the other places.
    """

    state_ranges = MappingProxyType({"tokens_": Range(most=1.0), "lot_": Range(0.0, 1.0)})

    floor: float
    cap: float

    def reset(self, n_clients: int) -> None:
        """Nobody is behind, everyone may be chosen; ``randomize`` draws the lots again."""
        super().reset(n_clients)
        self.tokens_ = np.ones(n_clients)
        self._draw_lots(stream(0, Purpose.INIT))

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
        due = self.owed_ + self.floor * fair_share(ctx)
        return self._furthest_behind(np.flatnonzero(ctx.available & (due >= A_PLACE)), ctx.size)

    def _allowed(self, ctx: RoundContext, reserved: IntArray) -> BoolArray:
        """Return (n,) which clients may have one of the other places."""
        due = self.tokens_ + self._new_tokens(fair_share(ctx))
        allowed: BoolArray = ctx.available & (due >= A_PLACE)
        allowed[reserved] = False
        return allowed

    def _account_memo(self, ctx: RoundContext, is_reserved: BoolArray) -> dict[str, Array]:
        """Return the part of the memo that ``_charge`` needs."""
        return {
            "available": np.packbits(ctx.available),
            "share": np.array(fair_share(ctx)),
            "is_reserved": is_reserved,
        }

    def _charge(self, selection: Selection) -> None:
        """Charge a round to every client that was available."""
        is_reserved, clients = selection.recall("is_reserved"), selection.clients
        share = float(selection.recall("share"))
        was_there = np.unpackbits(selection.recall("available"))[: self.n_clients]
        # Clients that joined after the selection are not in its memo, and so are not charged.
        self.owed_[: was_there.size] += self.floor * share * was_there
        self.tokens_[: was_there.size] += self._new_tokens(share) * was_there
        owed, tokens = self.owed_[clients], self.tokens_[clients]
        most = np.maximum(owed, tokens)
        least = np.where(most >= A_PLACE, 0.0, most - 1.0)  # below 0 only if feedback was late
        # A reserved place is paid from ``owed_`` in full and takes ``tokens_`` no lower than
        # ``least``. For any other place it is the other way round.
        kept = np.where(is_reserved, -np.inf, np.minimum(owed, least))
        self.owed_[clients] = np.maximum(owed - 1.0, kept)  # Eq. (1)
        kept = np.where(is_reserved, np.minimum(tokens, least), -np.inf)
        self.tokens_[clients] = np.maximum(tokens - 1.0, kept)
        np.minimum(self.tokens_, 1.0, out=self.tokens_)  # Eq. (2)

    def _new_tokens(self, share: float) -> float:
        """Return the tokens of a round."""
        return min(self.cap * share, PLENTY)

    def _furthest_behind(self, clients: IntArray, size: int) -> IntArray:
        """Return the clients that are owed most, at most ``size``; higher lots win ties."""
        if clients.size <= size:
            return clients
        owed = self.owed_[clients]
        border = kth_largest(owed, size)
        ahead, tied = clients[owed > border], clients[owed == border]
        n_left_out = tied.size - (size - ahead.size)
        by_lot = np.argpartition(self.lot_[tied], n_left_out - 1) if n_left_out else slice(None)
        return np.sort(np.concatenate((ahead, tied[by_lot][n_left_out:])))

    def _draw_lots(self, rng: np.random.Generator) -> None:
        """Draw the order of ties; it also spreads the first claims over the first rounds."""
        self.lot_ = rng.random(self.n_clients)
        self.owed_ = self.lot_ * (self.floor > 0.0)


def fair_share(ctx: RoundContext) -> float:
    """Return the places of the round per available client; 1 if no client is available.

    Args:
        ctx: The round.
    """
    return ctx.size / ctx.pool.size if ctx.pool.size else 1.0
