"""Randomness as an argument: one independent stream per (seed, purpose, round).

A resumed run repeats exactly without saving any generator, and asking one stream for more numbers
never shifts another.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput

__all__ = ["Purpose", "stream"]


class Purpose(IntEnum):
    """What a stream is for. Numbers are part of the result: never renumber, only append."""

    PARTITION = 0
    INIT = 1
    ENV = 2
    POLL = 3
    SELECT = 4
    TRAIN = 5
    EVAL = 6
    SKETCH = 7
    LABELS = 8
    SHADOW = 9


_PURPOSES = frozenset(Purpose)


def stream(
    seed: int, purpose: Purpose, round: int = 0, client: int | None = None
) -> np.random.Generator:
    """Return the generator of one purpose in one round.

    Args:
        seed: The seed of the run, from 0.
        purpose: What the numbers are for.
        round: The round, from 0.
        client: The client, for numbers that each client draws by itself.

    Returns:
        A new generator; the same arguments give the same numbers.

    >>> stream(7, Purpose.SELECT, 3).random() == stream(7, Purpose.SELECT, 3).random()
    True
    >>> stream(7, Purpose.SELECT, 3).random() == stream(7, Purpose.SELECT, 4).random()
    False
    """
    require.integer("seed", seed, minimum=0)
    require.integer("round", round, minimum=0)
    if purpose not in _PURPOSES:
        options = ", ".join(f"Purpose.{member.name}" for member in Purpose)
        raise InvalidInput(f"purpose must be one of {options}; got {purpose!r}.")
    key: tuple[int, ...] = (int(purpose), round)
    if client is not None:
        key += (require.integer("client", client, minimum=0),)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
