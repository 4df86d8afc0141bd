"""Give the rows of a pool of examples to clients.

All functions are vectorised over clients. They loop over labels, or over passes through a pool.
"""

from __future__ import annotations

import numpy as np

from turnout.errors import InvalidInput
from turnout.types import Array, FloatArray, IntArray


def equal_offsets(n_rows: int, n_parts: int) -> IntArray:
    """Return (n_parts + 1,) borders of parts whose sizes differ by at most one row.

    Args:
        n_rows: Rows to cut.
        n_parts: How many parts to cut them into.

    """
    return np.arange(n_parts + 1, dtype=np.int64) * n_rows // n_parts


def offsets_of(counts: IntArray) -> IntArray:
    """Return (n + 1,) where the rows of each client begin.

    Args:
        counts: (n,) how many rows each client has.

    """
    return np.concatenate(([0], np.cumsum(counts)))


def rank_within(group: Array, rng: np.random.Generator) -> IntArray:
    """Return (N,) the place of each row in a random order of its group, from 0.

    Args:
        group: (N,) the number of each row's group.
        rng: Draws the order.

    """
    order = np.lexsort((rng.random(group.size), group))
    ordered = group[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: group.size]
    start = np.flatnonzero(is_first)
    place = np.arange(group.size) - np.repeat(start, np.diff(start, append=group.size))
    rank = np.empty(group.size, dtype=np.int64)
    rank[order] = place
    return rank


def whole(amounts: FloatArray, totals: IntArray) -> IntArray:
    """Round amounts to integers whose rows have given sums; largest remainders are rounded up.

    Args:
        amounts: (n, c) numbers >= 0.
        totals: (n,) the sum of each row, already an integer up to rounding errors.

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

    The pool is shuffled and given out. When it is empty it is filled and shuffled again, so a row
    goes to a second client only after every row went to a first. No client gets a row twice.

    Args:
        pool: The row numbers to give out.
        counts: (n,) how many rows each client gets, at most the size of the pool.
        rng: Draws the order.

    """
    if counts.size and counts.max() > pool.size:
        raise InvalidInput(
            f"counts: a client asks for {counts.max()} examples, but there are only {pool.size}."
        )
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
    """Move ``n_first`` rows that are not in ``held`` to the front; the rest keeps its order."""
    first = np.flatnonzero(~np.isin(order, held))[:n_first]
    return np.concatenate((order[first], np.delete(order, first)))


def deal_labels(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return rows, client after client, so that client i has ``counts[i, c]`` of label c.

    Each label is a pool of its own, given out as by ``deal``.

    Args:
        labels: (N,) the label of each row.
        counts: (n, classes) how many rows of each label a client gets.
        rng: Draws the order.

    """
    rows, owners = [], []
    for label in range(counts.shape[1]):
        wanted = counts[:, label]
        if wanted.any():
            rows.append(deal(np.flatnonzero(labels == label), wanted, rng))
            owners.append(np.repeat(np.arange(wanted.size), wanted))
    return np.concatenate(rows)[np.argsort(np.concatenate(owners), kind="stable")]


def deal_once(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return rows as ``deal_labels`` does, but give no row to two clients.

    Where a label runs out, randomly drawn clients get rows of the remaining labels instead. Every
    client keeps its size.

    Args:
        labels: (N,) the label of each row.
        counts: (n, classes) how many rows of each label a client asks for; their sum is at most N.
        rng: Draws the order, and who is served first.

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
