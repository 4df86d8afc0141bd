"""Groups of similar clients, by merging the two closest groups again and again.

Agglomerative clustering with the chain of nearest neighbours: O(n^2) time and memory. It gives the
groups of ``scipy.cluster.hierarchy`` without needing it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, IntArray

#: The distance of a merged group (a, b) to all others, from theirs, from each other's and sizes.
Rule = Callable[[FloatArray, FloatArray, float, float, float, FloatArray], FloatArray]


def _average(
    a: FloatArray, b: FloatArray, ab: float, n_a: float, n_b: float, n: FloatArray
) -> FloatArray:
    return (n_a * a + n_b * b) / (n_a + n_b)


def _ward(
    a: FloatArray, b: FloatArray, ab: float, n_a: float, n_b: float, n: FloatArray
) -> FloatArray:
    square = (n_a + n) * (a * a) + (n_b + n) * (b * b) - n * ab**2
    merged: FloatArray = np.sqrt(np.maximum(square, 0.0) / (n_a + n_b + n))
    return merged


def _complete(
    a: FloatArray, b: FloatArray, ab: float, n_a: float, n_b: float, n: FloatArray
) -> FloatArray:
    return np.maximum(a, b)


#: How the distance between two groups follows from those of their members.
RULES: dict[str, Rule] = {"average": _average, "ward": _ward, "complete": _complete}


def row_distances(distance: FloatArray) -> FloatArray:
    """Return (n, n) Euclidean distances between the rows of a symmetric matrix.

    Two positions are then close if they are as far from all others. ``scipy.cluster.hierarchy``
    takes the rows for points, too, where a square matrix is given to it.

    Args:
        distance: (n, n) symmetric.
    """
    squares = np.square(distance).sum(axis=1)
    square = squares[:, None] + squares - 2.0 * distance @ distance
    between: FloatArray = np.sqrt(np.maximum(square, 0.0))
    np.fill_diagonal(between, 0.0)
    return between


def similar_groups(distance: FloatArray, n_groups: int, rule: str = "average") -> IntArray:
    """Return (n,) the group of each position, from 0, in the order of their first members.

    Args:
        distance: (n, n) symmetric distances, >= 0.
        n_groups: How many groups to form; with fewer positions, each is a group of its own.
        rule: A name of ``RULES``.

    >>> x = np.array([0.0, 0.1, 5.0, 5.2, 9.0])
    >>> similar_groups(np.abs(x[:, None] - x), 3)
    array([0, 0, 1, 1, 2])
    """
    n_groups = require.integer("n_groups", n_groups, minimum=1)
    merges = _merges(distance, rule)
    merges = merges[np.argsort(merges[:, 2], kind="stable")]
    kept = merges[: max(0, distance.shape[0] - n_groups)]
    return _joined(kept, np.zeros(distance.shape[0]), 0.0)


def light_groups(
    distance: FloatArray, weight: FloatArray, most: float, rule: str = "ward"
) -> IntArray:
    """Return (n,) the largest groups of the tree whose weights are at most ``most``, from 0.

    Args:
        distance: (n, n) symmetric distances, >= 0.
        weight: (n,) the weight of each position; a position that is heavier stands alone.
        most: The largest weight of a group.
        rule: A name of ``RULES``.

    >>> x = np.array([0.0, 0.1, 0.3, 5.0])
    >>> light_groups(np.abs(x[:, None] - x), np.ones(4), 2.0)
    array([0, 0, 1, 2])
    """
    return _joined(_merges(distance, rule), weight, most)


def _joined(merges: FloatArray, weight: FloatArray, most: float) -> IntArray:
    """Return the groups that some merges leave; one that is too heavy, and all above it, fail."""
    parent, total = list(range(weight.size)), weight.astype(np.float64).tolist()
    is_closed = [False] * weight.size

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for i, j in merges[:, :2].astype(np.int64).tolist():
        first, second = sorted((root(i), root(j)))
        if is_closed[first] or is_closed[second] or total[first] + total[second] > most:
            is_closed[first] = is_closed[second] = True
            continue
        parent[second] = first
        total[first] += total[second]
    roots = np.array([root(i) for i in range(weight.size)], dtype=np.int64)
    return np.unique(roots, return_inverse=True)[1].reshape(-1)


def _merges(distance: FloatArray, name: str) -> FloatArray:
    """Return (n - 1, 3) a member of each of two merged groups, and how far apart they were."""
    rule = RULES[require.choice("rule", name, tuple(RULES))]
    if distance.ndim != 2 or distance.shape[0] != distance.shape[1]:
        raise InvalidInput(f"distance must be (n, n), got {distance.shape}.", field="distance")
    n = distance.shape[0]
    if not np.isfinite(distance).all():  # the chain below would never end
        raise InvalidInput("distance must be finite.", field="distance")
    between = distance.astype(np.float64, copy=True)
    np.fill_diagonal(between, np.inf)  # as far as a group that was merged into another one
    size, is_open = np.ones(n), np.ones(n, dtype=np.bool_)
    merges = np.zeros((max(0, n - 1), 3))
    chain: list[int] = []
    for step in range(n - 1):
        if not chain:
            chain.append(int(is_open.argmax()))
        while True:
            row = between[chain[-1]]
            nearest = int(row.argmin())
            if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
                break  # the last two are each other's nearest
            chain.append(nearest)
        a, b = chain.pop(), chain.pop()
        far = float(between[a, b])
        merges[step] = a, b, far
        merged = rule(between[a], between[b], far, float(size[a]), float(size[b]), size)
        merged[b] = np.inf
        between[a] = between[:, a] = merged  # stays infinite to merged groups and to itself
        between[b] = between[:, b] = np.inf
        size[a] += size[b]
        is_open[b] = False
    return merges
