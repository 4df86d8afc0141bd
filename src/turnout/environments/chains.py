"""Sticky two-state chains, such as spells of failure: the state in any round, in any order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from turnout.environments.base import Moment, Volatility, WorldStream, frozen
from turnout.types import BoolArray, FloatArray


def chain_state(
    moment: Moment, rate: FloatArray, stickiness: float, model: Volatility, level: int
) -> BoolArray:
    """Return the state of each chain in a round.

    The state of a chain is what it drew when it last drew. So look back from the round until every
    chain has drawn, or until the round that was asked for last. Its answer is kept for speed only:
    states are a function of seed and round, whatever was asked before.

    Args:
        moment: The round.
        rate: (c,) long-run share of rounds in which each chain is True.
        stickiness: Chance that a chain keeps its state for another round instead of drawing anew.
        model: The model that the chains belong to.
        level: The model's level, 0 if it wraps no other.
    """
    last = _last_answer(model, moment.n_clients, moment.seed)
    last_round, last_state = last[0]
    state = np.zeros(rate.size, dtype=np.bool_)
    is_open = np.ones(rate.size, dtype=np.bool_)
    for round in range(moment.round, -1, -1):
        if round == last_round:
            state[is_open] = last_state[is_open]
            break
        at = Moment(round, moment.n_clients, moment.seed, moment.history)
        keep, chance = at.uniforms(WorldStream.VOLATILITY, level, shape=(2, rate.size))
        draws = is_open & (keep >= stickiness) if round else is_open
        state[draws] = chance[draws] < rate[draws]
        is_open &= ~draws
        if not is_open.any():
            break
    last[0] = (moment.round, frozen(state))
    return state


@lru_cache(maxsize=16)
def _last_answer(model: Volatility, n_clients: int, seed: int) -> list[tuple[int, BoolArray]]:
    """Return a list of one pair, the last round asked for and its states; -1 = none yet."""
    return [(-1, np.zeros(0, dtype=np.bool_))]
