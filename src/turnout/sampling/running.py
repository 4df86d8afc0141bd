"""Running estimates: moments, means that forget, and clients that stopped answering."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.arrays import check_vector, vector
from turnout.core.errors import InvalidInput
from turnout.core.types import BoolArray, FloatArray, IntArray


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations (Chan's parallel form of Welford's method).

    Args:
        n: Number of values so far.
        mean: Their mean.
        squares: Sum of their squared deviations from the mean.
    """

    n: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def scale(self) -> float:
        """The standard deviation, 1 while it is 0 or unknown."""
        deviation = math.sqrt(self.squares / self.n) if self.n else 0.0
        return deviation if deviation > 0.0 else 1.0

    def updated(self, values: FloatArray) -> Moments:
        """Return the moments after more numbers.

        Args:
            values: (k,) the numbers.
        """
        if values.size == 0:
            return self
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        n = self.n + values.size
        gap = mean - self.mean
        return Moments(
            n,
            self.mean + gap * values.size / n,
            self.squares + squares + gap * gap * self.n * values.size / n,
        )


# Means that forget: every observation counts less with each round.
#
# A record is an array (2, n): row 0 is the faded sum of each client's observations, row 1 their
# faded number. A client's mean is shrunk to what is typical, as if that had been observed too. So a
# client that was never seen is typical, and one that was last seen long ago becomes typical again.


def no_observations(n_clients: int) -> FloatArray:
    """Return (2, n) the record before any observation.

    Args:
        n_clients: n.
    """
    return np.zeros((2, n_clients))


def fade(record: FloatArray, memory: float) -> None:
    """Let a round pass, in place.

    Args:
        record: (2, n) the record.
        memory: Rounds after which 1 / e of an observation is left, above 1.
    """
    record *= np.exp(-1.0 / memory)


def add_observations(record: FloatArray, clients: IntArray, values: FloatArray) -> None:
    """Add an observation of some clients, in place.

    Args:
        record: (2, n) the record.
        clients: (s,) the observed clients, each once.
        values: (s,) what was observed; NaN is no observation.
    """
    seen = ~np.isnan(values)
    record[0, clients[seen]] += values[seen]
    record[1, clients[seen]] += 1.0


def shrunk_mean(record: FloatArray, typical: float, strength: float) -> FloatArray:
    """Return (n,) each client's mean, shrunk to what is typical.

    Args:
        record: (2, n) the record.
        typical: What an unknown client is taken to be.
        strength: How many observations that is worth, above 0.
    """
    mean: FloatArray = record[0] + strength * typical
    mean /= record[1] + strength
    return mean


# Clients that stopped answering lose their score.
#
# A selector that estimates a client by its reports learns nothing from silence, so the estimate of
# a client that died stays as good as it was. Here every unanswered request is counted. After
# ``patience`` of them in a row, each further one halves the client's score: after ``patience`` + k
# requests 2^-k of it is left, however large it was. An answer restores the score at once.


def count_unanswered(unanswered: IntArray, clients: IntArray, answered: BoolArray) -> None:
    """Count a request to each client, in place; an answer sets the count back to 0.

    Args:
        unanswered: (n,) requests in a row without an answer, of everyone.
        clients: (s,) the clients that were asked.
        answered: (s,) which answers can be used.
    """
    check_vector("unanswered", unanswered)
    check_vector("answered", answered)
    clients = vector("clients", clients, np.int64, answered.size)
    if clients.size and not 0 <= clients.min() <= clients.max() < unanswered.size:
        raise require.wrong("clients", f"lie in 0 .. {unanswered.size - 1}", clients)
    unanswered[clients] = np.where(answered, 0, unanswered[clients] + 1)


def below_everyone(score: FloatArray) -> float:
    """Return a base for scores of any sign: as far below the lowest as the highest is above it.

    Args:
        score: (p,) the scores, at least one.
    """
    check_vector("score", score)
    if not score.size:
        raise InvalidInput("score must not be empty.", field="score")
    return 2.0 * float(score.min()) - float(score.max())


def lowered(
    score: FloatArray,
    unanswered: IntArray,
    patience: int | None,
    base: Callable[[FloatArray], float] = lambda score: 0.0,
) -> FloatArray:
    """Return scores in which clients that stopped answering have come closer to the base.

    Args:
        score: (p,) what the clients of the pool are ranked by, larger is better; infinite for
            clients that were never asked.
        unanswered: (p,) requests in a row without an answer.
        patience: How many of them are free; None leaves all scores as they are.
        base: What scores are counted from, given all of them: 0 if they cannot be negative. A
            score below it stays.
    """
    check_vector("score", score)
    check_vector("unanswered", unanswered, score.size)
    if patience is not None:
        patience = require.integer("patience", patience, minimum=0)
    if patience is None or not score.size or unanswered.max() <= patience:
        return score
    lost = np.flatnonzero(unanswered > patience)
    halvings = (unanswered[lost] - patience).astype(np.intc)
    least = base(score)
    changed = score.copy()
    # ldexp halves exactly, also where 2.0**-halvings would underflow.
    changed[lost] = np.minimum(score[lost], least + np.ldexp(score[lost] - least, -halvings))
    return changed
