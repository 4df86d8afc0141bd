"""Groups of similar clients: k-means on their features, and the nearest centroid afterwards."""

from __future__ import annotations

import warnings

import numpy as np

from turnout.names import import_extra
from turnout.types import FloatArray, IntArray

#: Most distinct vectors that k-means is fitted to; of more, this many are drawn at random.
MOST_FITTED = 5_000

#: How often k-means is started; the best result is kept.
N_STARTS = 3

#: Decimals at which two centroids are equally near.
TIE_DECIMALS = 9


def k_means(vectors: FloatArray, n_clusters: int, seed: int) -> FloatArray:
    """Return centroids (k, d), at most ``n_clusters`` and at most one per distinct vector.

    Equal vectors are joined and sorted first, so the order of the clients does not matter.

    Args:
        vectors: (n, d) one row per client, of length 1 or less.
        n_clusters: Number of clusters wanted, at least 1.
        seed: Seed of the starts.
    """
    rows, counts = _distinct(vectors)
    if rows.shape[0] <= n_clusters:
        return rows
    if rows.shape[0] > MOST_FITTED:
        rng = np.random.default_rng(seed)
        drawn = np.sort(rng.choice(rows.shape[0], MOST_FITTED, replace=False, shuffle=False))
        rows, counts = rows[drawn], counts[drawn]
    advice = "nccb needs scikit-learn: pip install 'turnout[torch]'"
    cluster, threads = (import_extra(name, advice) for name in ("sklearn.cluster", "threadpoolctl"))
    model = cluster.KMeans(n_clusters, n_init=N_STARTS, random_state=seed % 2**32)
    with threads.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly equal vectors may leave a cluster empty
        model.fit(rows, sample_weight=counts)
    return np.array(model.cluster_centers_, dtype=np.float64)


def nearest_centroid(vectors: FloatArray, centroids: FloatArray) -> IntArray:
    """Return (n,) the index of the nearest centroid; of equally near ones, the first.

    Args:
        vectors: (n, d) one row per client.
        centroids: (k, d) as ``k_means`` returns them.
    """
    closeness = 2.0 * vectors @ centroids.T - np.square(centroids).sum(axis=1)
    return np.asarray(np.argmax(np.round(closeness, TIE_DECIMALS), axis=1), dtype=np.int64)


def _distinct(vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct rows in a fixed order, and how often each occurs."""
    rows = np.ascontiguousarray(vectors + 0.0)  # no negative zeros
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    return rows[first], counts.astype(np.float64)
