"""Cut cohorts into tiles: clients that train side by side on one core.

The clients of a tile are sorted by their steps, the most first, so the clients that are still at
work are always the first few. Shorter mini-batches are filled with an example that does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.training.batches import BatchPlan
from turnout.types import BoolArray, IntArray

#: A client whose mini-batches are below this share of the largest in a tile goes to another tile.
LEAST_SHARE = 0.5

#: Cohorts up to this share of the largest tile are not cut: their kernels are so short that threads
#: would wait for Python's lock longer than they compute.
LITTLE = 1 / 16


@dataclass(frozen=True, slots=True)
class Tile:
    """The mini-batches of g clients.

    Args:
        rows: (g, steps, width) the row of each example in the data.
        size: (g, steps) examples of each mini-batch; 0 after a client's last step.
        noise_seed: (g,) seed of noise inside the model.

    """

    rows: IntArray
    size: IntArray
    noise_seed: IntArray

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return int(self.size.shape[0])

    @property
    def n_steps(self) -> int:
        """Steps of the client with the most."""
        return int(self.size.shape[1])

    @property
    def counts(self) -> BoolArray:
        """(g, steps, width) whether an example counts."""
        counts: BoolArray = np.arange(self.rows.shape[2]) < self.size[:, :, None]
        return counts


def cut(plans: Sequence[BatchPlan], limit: int, threads: int) -> list[IntArray]:
    """Return the positions of the clients of each tile, those with the most steps first.

    Clients of a tile have mini-batches of similar size. A small cohort is one tile. Otherwise
    clients go to the tiles in turns, so that every thread gets about as much work.

    Args:
        plans: The mini-batches of each client.
        limit: Most clients of a tile.
        threads: How many tiles are trained at once.

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
    """Return a tile.

    Args:
        plans: The mini-batches of each client, those with the most steps first.
        first_rows: (g,) where the examples of each client begin in the data.

    """
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
