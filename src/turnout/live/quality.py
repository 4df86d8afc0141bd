"""Signs that a model is being ruined: updates far larger than usual, and quality that is lost.

One reply of 1e30 ruins an average, and also a median of two. The server measures how far each
reply is from the model that it sent. What is usual is a median with one vote for each client, so
it holds while fewer than half of them lie. A client votes with its last update, but with no more
than the largest one that is accepted: if all updates grow, the usual size follows within rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from turnout.core.errors import StateFileError
from turnout.core.types import Array, FloatArray, IntArray

#: An update this many times as large as usual is refused.
REFUSED = 1000.0
#: So is one whose square no longer fits into 32 bits, whatever the others sent.
LARGEST = 1e19
#: Fewer sizes say nothing: among four, one wrong size is not the lower one in the middle.
_FEWEST = 4

#: A model that never gained this much accuracy has none to lose.
_LEAST_GAIN = 0.1
#: A loss of this many times the lowest one means that the model is of no use.
_HUGE = 100.0


class UpdateSizes:
    """The sizes of updates that are usual in a federation."""

    def __init__(self) -> None:
        self._votes = np.zeros(0)  # NaN = none

    def compare(self, clients: IntArray, sizes: FloatArray) -> FloatArray:
        """Return (s,) sizes as multiples of the usual one, and let the clients vote.

        With four sizes in a round, these decide. With fewer, the last sizes of all clients do. A
        multiple is NaN if nothing is known, and infinite if the size is impossible.

        Args:
            clients: (s,) who has sent an update.
            sizes: (s,) the Euclidean norms of their updates, NaN = not known.
        """
        self.grow(int(clients.max(initial=-1)) + 1)
        known = np.where(sizes > 0.0, np.minimum(sizes, LARGEST), np.nan)
        usual = _lower_median(known)
        if math.isnan(usual):
            votes = self._votes.copy()
            np.copyto(known, votes[clients], where=np.isnan(known))
            votes[clients] = known
            usual = _lower_median(votes)
        voting = sizes > 0.0
        most = LARGEST if math.isnan(usual) else REFUSED * usual
        self._votes[clients[voting]] = np.minimum(sizes[voting], most)
        return np.where(sizes > LARGEST, np.inf, sizes / usual)

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        more = max(0, n_clients - self._votes.size)
        self._votes = np.pad(self._votes, (0, more), constant_values=np.nan)

    def state(self) -> dict[str, Array]:
        """Return the votes."""
        return {"update": self._votes}

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Continue from saved votes; earlier versions saved none."""
        votes = state.get("update", np.zeros(0))
        if votes.dtype != np.float64 or votes.ndim != 1 or votes.size > n_clients:
            raise StateFileError(f"sizes must be numbers of {n_clients} clients.")
        self._votes = np.array(votes)
        self.grow(n_clients)


def squared_distance(new: Array, old: Array) -> float:
    """Return the squared Euclidean distance of two arrays of the same shape."""
    with np.errstate(over="ignore"):
        step = np.subtract(new, old, dtype=np.float64).ravel()
        return float(step @ step)


def _lower_median(sizes: FloatArray) -> float:
    known = sizes[~np.isnan(sizes)]
    if known.size < _FEWEST:
        return math.nan
    middle = (known.size - 1) // 2
    return float(np.partition(known, middle)[middle])


class Quality:
    """Follows accuracy and loss of the model, and says when they are lost.

    Accuracy is lost if, in several measurements in a row, the model has less than half of what it
    had gained: the best accuracy minus the lowest one before it. A loss is lost at once if it is
    not finite, or a hundred times the lowest one.

    Args:
        patience: Measurements in a row that show a loss of accuracy.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._round = -1  # of the last measurement
        self._lowest = self._base = self._best = math.nan
        self._n_worse = 0
        self._least_loss = math.nan
        self._is_told = False  # whether the loss was reported, and was not fine since

    def measured(self, round: int, values: Mapping[str, float]) -> str | None:
        """Return what is wrong with a model, in one sentence; None if nothing is new.

        Args:
            round: The round after which it was measured, from 0.
            values: Its accuracy, its loss, and others.
        """
        loss = self._of_loss(round, values["loss"]) if "loss" in values else None
        if "accuracy" not in values or round <= self._round:
            return loss
        self._round = round
        return loss or self._of_accuracy(round, values["accuracy"])

    def _of_accuracy(self, round: int, accuracy: float) -> str | None:
        self._lowest = np.fmin(self._lowest, accuracy)
        if math.isnan(self._best) or accuracy > self._best:
            self._best, self._base = accuracy, self._lowest
        gained = self._best - self._base
        is_worse = gained >= _LEAST_GAIN and not accuracy >= self._base + gained / 2.0
        self._n_worse = self._n_worse + 1 if is_worse else 0
        if self._n_worse != self._patience:
            return None
        return (
            f"the accuracy has fallen from {self._best:.3g} to {accuracy:.3g}, for "
            f"{self._n_worse} measurements in a row up to round {round + 1}."
        )

    def _of_loss(self, round: int, loss: float) -> str | None:
        is_fine = math.isfinite(loss) and not loss > _HUGE * max(self._least_loss, 0.0)
        was_told, self._is_told = self._is_told, not is_fine
        if is_fine:
            self._least_loss = float(np.fmin(self._least_loss, loss))
        if is_fine or was_told:
            return None
        before = "" if math.isnan(self._least_loss) else f", and was {self._least_loss:.3g} before"
        return f"the loss of the model is {loss:.3g} after round {round + 1}{before}."
