"""Cohorts cut into tiles: clients that train side by side on one core.

The clients of a tile stand in order of their steps, the most first, so that those still at work are
always the first few. Shorter mini-batches are filled up with an example of their own that counts
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.training.batches import BatchPlan
from turnout.types import BoolArray, IntArray

__all__ = ["Tile", "cut", "stack"]

#: Clients whose mini-batches are below this share of the largest in a tile go to another one.
LEAST_SHARE = 0.5

#: Cohorts up to this share of the largest tile are not cut: threads whose kernels are that short
#: wait for Python's lock longer than they compute.
LITTLE = 1 / 16


@dataclass(frozen=True, slots=True)
class Tile:
    """The mini-batches of g clients."""

    rows: IntArray  #: (g, steps, width) row of the data behind each example
    size: IntArray  #: (g, steps) examples of each mini-batch; 0 once a client is done
    noise_seed: IntArray  #: (g,) seed of noise inside the model

    @property
    def n_clients(self) -> int:
        """How many clients."""
        return int(self.size.shape[0])

    @property
    def n_steps(self) -> int:
        """Steps of the longest client."""
        return int(self.size.shape[1])

    @property
    def counts(self) -> BoolArray:
        """(g, steps, width) whether an example counts."""
        counts: BoolArray = np.arange(self.rows.shape[2]) < self.size[:, :, None]
        return counts


def cut(plans: Sequence[BatchPlan], limit: int, threads: int) -> list[IntArray]:
    """Return the positions of the clients of each tile, at most ``limit``, the most steps first.

    Clients of a tile have mini-batches of similar size. Little work is one tile; otherwise it is
    dealt out in turns, so that every thread gets about as much.
    """
    width = np.array([np.diff(plan.bounds).max() for plan in plans], dtype=np.int64)
    steps = np.array([plan.n_steps for plan in plans], dtype=np.int64)
    tiles: list[IntArray] = []
    left = np.lexsort((-width, -steps))
    while left.size:
        is_similar = width[left] >= LEAST_SHARE * width[left].max()
        group, left = left[is_similar], left[~is_similar]
        if group.size == len(plans) <= max(1, LITTLE * limit):
            return [group]
        n_tiles = -(-group.size // limit)
        n_tiles = min(group.size, -(-n_tiles // threads) * threads)
        tiles += [group[i::n_tiles] for i in range(n_tiles)]
    return tiles


def stack(plans: Sequence[BatchPlan], first_rows: IntArray) -> Tile:
    """Return the tile of clients whose examples begin at ``first_rows`` of the data."""
    sizes = [np.diff(plan.bounds) for plan in plans]
    width = max(int(size.max()) for size in sizes)
    shape = len(plans), plans[0].n_steps
    rows = np.zeros((*shape, width), dtype=np.int64)
    size = np.zeros(shape, dtype=np.int64)
    for i, plan in enumerate(plans):
        place = np.minimum(np.arange(width), sizes[i][:, None] - 1)
        rows[i, : plan.n_steps] = first_rows[i] + plan.order[plan.bounds[:-1, None] + place]
        size[i, : plan.n_steps] = sizes[i]
    return Tile(rows, size, np.array([plan.noise_seed for plan in plans]))
