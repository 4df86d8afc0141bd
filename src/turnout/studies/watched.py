"""Clients whose utilities are looked at before they train.

NCCB and k-LinUCB learn utilities and are judged by accuracy. If accuracy shows no gain, either they
did not find the useful clients, or useful clients do not help. This says which of the two.

>>> from turnout.training import Training
>>> Training(participants="turnout.studies.watched:Watched").participants
'turnout.studies.watched:Watched'
"""

from __future__ import annotations

import math

import numpy as np

from turnout.core.types import BoolArray, FloatArray, Selection
from turnout.training import Federation
from turnout.training.federation import Trained


class Watched(Federation):
    """A federation that measures the utility of the chosen clients, among all of them.

    The utility of a client is its number of examples times the mean loss of the global model on
    them. (NCCB, Eq. (2), has the root mean square of the losses of its examples for the mean.) It
    is looked at before the first round and then every ``evaluate_clients_every`` rounds, before
    the chosen clients train. ``measure`` then also returns:

    - ``chosen_utility``: the mean utility of the chosen; 0 is that of all clients, 1 that of the
      best cohort of this size;
    - ``utility_regret``: which share of the best cohort's utility was missed, by NCCB's Eq. (3):
      1 - U(B) / U(B*), where U is the root of the sum of squares.
    """

    def reset(self) -> None:
        """Go back to the first global model; nothing was looked at."""
        super().reset()
        self._found: dict[str, float] = {}

    def work(self, selection: Selection, is_completed: BoolArray) -> Trained:
        """Look at the utilities if it is time, then train."""
        self._found = {}
        if selection.round % self.training.evaluate_clients_every == 0 and selection.clients.size:
            utility = self.data.num_samples * self.client_scores().loss
            self._found = compared(utility, utility[selection.clients])
        return super().work(selection, is_completed)

    def measure(self, round: int, is_last: bool) -> dict[str, float]:
        """Return how good the model is, and how useful the chosen clients were."""
        return super().measure(round, is_last) | self._found


def compared(utility: FloatArray, chosen: FloatArray) -> dict[str, float]:
    """Return how the utility of the chosen compares with those of all; empty if all are alike.

    Args:
        utility: (n,) utility of each client; NaN without examples.
        chosen: (m,) utility of those that were chosen.

    >>> compared(np.array([1.0, 2.0, 3.0, 6.0]), np.array([3.0]))
    {'chosen_utility': 0.0, 'utility_regret': 0.5}
    """
    known, chosen = utility[np.isfinite(utility)], chosen[np.isfinite(chosen)]
    if not chosen.size:
        return {}
    best = np.sort(known)[-chosen.size :]
    span = float(best.mean() - known.mean())
    if not 0.0 < span < math.inf:
        return {}
    missed = 1.0 - float(np.linalg.norm(chosen) / np.linalg.norm(best))
    return {
        "chosen_utility": float(chosen.mean() - known.mean()) / span,
        "utility_regret": missed,
    }
