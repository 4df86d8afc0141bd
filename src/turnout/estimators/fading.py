"""Means that forget: every observation counts less with each round that passes.

A record is an array (2, n): row 0 is the faded sum of each client's observations, row 1 their
faded number. A client's mean is shrunk to what is typical, as if that had been observed too. So a
client that was never seen is typical, and one that was last seen long ago becomes typical again.
"""

from __future__ import annotations

import numpy as np

from turnout.types import FloatArray, IntArray


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
        clients: (s,) who was observed, each once.
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
