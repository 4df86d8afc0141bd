"""Cohorts cut into tiles: clients that train side by side on one core.

The clients of a tile stand in order of their work, the longest first, so that those still at work
are always the first few. Shorter mini-batches are filled up with an example of their own that
counts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.training.batches import BatchPlan
from turnout.types import BoolArray, IntArray

__all__ = ["Tile", "cut", "stack"]

#: A client that does less than this share of the longest client's work goes to another tile.
LEAST_SHARE = 0.5


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
    """Return the positions of the clients of each tile.

    A tile holds at most ``limit`` clients of similar work. If possible every thread gets the same
    number of tiles.
    """
    if not plans:
        return []
    steps = np.array([plan.n_steps for plan in plans])
    work = np.array([plan.order.size for plan in plans])
    n_tiles = -(-len(plans) // limit)
    n_tiles = -(-n_tiles // threads) * threads
    size = -(-len(plans) // n_tiles)
    tiles: list[list[int]] = []
    for position in np.lexsort((np.arange(len(plans)), -work, -steps)):
        fits = tiles and len(tiles[-1]) < size
        if fits and work[position] >= LEAST_SHARE * work[tiles[-1][0]]:
            tiles[-1].append(int(position))
        else:
            tiles.append([int(position)])
    return [np.array(tile) for tile in tiles]


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
