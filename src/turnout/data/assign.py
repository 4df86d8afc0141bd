"""Dealing examples to clients: pools of rows in, one row list per client out.

All functions are vectorised over clients; they loop over labels or over passes through a pool.
"""

from __future__ import annotations

import numpy as np

from turnout.errors import InvalidInput
from turnout.types import Array, FloatArray, IntArray

__all__ = [
    "deal",
    "deal_labels",
    "deal_once",
    "equal_offsets",
    "offsets_of",
    "rank_within",
    "whole",
]


def equal_offsets(n_rows: int, n_parts: int) -> IntArray:
    """Return (n_parts + 1,) borders of parts whose sizes differ by at most one."""
    return np.arange(n_parts + 1, dtype=np.int64) * n_rows // n_parts


def offsets_of(counts: IntArray) -> IntArray:
    """Return (n + 1,) where each client's rows begin."""
    return np.concatenate(([0], np.cumsum(counts)))


def rank_within(group: Array, rng: np.random.Generator) -> IntArray:
    """Return (N,) the place of each row in a random order of its group, from 0."""
    order = np.lexsort((rng.random(group.size), group))
    ordered = group[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: group.size]
    start = np.flatnonzero(is_first)
    place = np.arange(group.size) - np.repeat(start, np.diff(start, append=group.size))
    rank = np.empty(group.size, dtype=np.int64)
    rank[order] = place
    return rank


def whole(amounts: FloatArray, totals: IntArray) -> IntArray:
    """Round rows of amounts (n, c) to integers that sum to ``totals``: largest remainders first.

    >>> whole(np.array([[1.5, 2.25, 0.25]]), np.array([4])).tolist()
    [[2, 2, 0]]
    """
    counts = np.floor(amounts).astype(np.int64)
    missing = totals - counts.sum(axis=1)
    rank = np.argsort(np.argsort(counts - amounts, axis=1, kind="stable"), axis=1, kind="stable")
    counts += rank < missing[:, None]
    return counts


def deal(pool: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return (sum of counts,) rows of a pool, client after client.

    The pool is shuffled and dealt. When it runs out it is shuffled anew, so a row goes to a second
    client only after every row went to one. No client gets a row twice.
    """
    if counts.size and counts.max() > pool.size:
        raise InvalidInput(f"a client asks for {counts.max()} of {pool.size} examples.")
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    dealt = np.empty(total, dtype=np.int64)
    for start in range(0, total, max(pool.size, 1)):
        order = rng.permutation(pool)
        last = int(np.searchsorted(ends, start, side="right"))  # the client that goes on here
        held = dealt[int(ends[last] - counts[last]) : start]
        if held.size:
            order = _first_others(order, held, int(ends[last]) - start)
        dealt[start : start + pool.size] = order[: total - start]
    return dealt


def _first_others(order: IntArray, held: IntArray, n_first: int) -> IntArray:
    """Reorder so that the first rows are none of those held; the rest keeps its order."""
    first = np.flatnonzero(~np.isin(order, held))[:n_first]
    return np.concatenate((order[first], np.delete(order, first)))


def deal_labels(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return rows, client after client, so that client i has ``counts[i, c]`` of label c.

    Each label is a pool of its own, dealt as ``deal`` does.
    """
    rows, owners = [], []
    for label in range(counts.shape[1]):
        wanted = counts[:, label]
        if wanted.any():
            rows.append(deal(np.flatnonzero(labels == label), wanted, rng))
            owners.append(np.repeat(np.arange(wanted.size), wanted))
    return np.concatenate(rows)[np.argsort(np.concatenate(owners), kind="stable")]


def deal_once(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Like ``deal_labels``, but no row goes to two clients; the counts may ask for all rows.

    Where a label runs out, clients drawn at random get rows of the labels that are left instead:
    everyone keeps its size.
    """
    rows, owners, unserved, unused = [], [], [], []
    for label in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == label))
        claims = rng.permutation(np.repeat(np.arange(counts.shape[0]), counts[:, label]))
        n_served = min(pool.size, claims.size)
        rows.append(pool[:n_served])
        owners.append(claims[:n_served])
        unused.append(pool[n_served:])
        unserved.append(claims[n_served:])
    waiting = np.concatenate(unserved)
    rows.append(rng.permutation(np.concatenate(unused))[: waiting.size])
    owners.append(waiting)
    return np.concatenate(rows)[np.argsort(np.concatenate(owners), kind="stable")]
