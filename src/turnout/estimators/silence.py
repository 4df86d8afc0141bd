"""Clients that stopped answering lose what attracts a selector to them.

A selector that estimates a client by its reports learns nothing from silence, so the estimate of a
client that died stays as good as it was. Here every request that stays unanswered is counted, and
after ``patience`` of them in a row each further one halves the client's score. So after
``patience`` + k requests 2^-k of it is left, however large it was. An answer restores it at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from turnout import require
from turnout.types import BoolArray, FloatArray, IntArray


def check_patience(patience: int | None) -> None:
    """Raise ``InvalidInput`` unless the patience is None or an integer >= 0.

    Args:
        patience: Requests in a row that a client may leave unanswered; None = any number.
    """
    if patience is not None:
        require.integer("patience", patience, minimum=0)


def count_unanswered(unanswered: IntArray, clients: IntArray, answered: BoolArray) -> None:
    """Count a request to each client, in place; an answer sets the count back to 0.

    Args:
        unanswered: (n,) requests in a row without an answer, of everyone.
        clients: (s,) who was asked.
        answered: (s,) whose answer can be used.
    """
    unanswered[clients] = np.where(answered, 0, unanswered[clients] + 1)


def below_everyone(score: FloatArray) -> float:
    """Return a base for scores of any sign: as far below the lowest as the highest is above it.

    Args:
        score: (p,) the scores.
    """
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
    if patience is None or not score.size or unanswered.max() <= patience:
        return score
    lost = np.flatnonzero(unanswered > patience)
    halvings = (unanswered[lost] - patience).astype(np.intc)
    least = base(score)
    changed = score.copy()
    changed[lost] = np.minimum(score[lost], least + np.ldexp(score[lost] - least, -halvings))
    return changed
