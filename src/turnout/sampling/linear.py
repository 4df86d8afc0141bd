"""Ridge regression by recursive least squares, one model per client or one for all.

The inverse of ``H = ridge I + sum c c'`` and the coefficients are kept up to date by rank-one
updates (Sherman-Morrison), so no matrix is inverted in a round. In all
arrays the last axis is the client, so one coefficient of a million clients is contiguous in memory.
The file also prepares the features of clients and groups similar clients.
"""

from __future__ import annotations

import warnings

import numpy as np

from turnout.core.errors import InvalidInput, StateFileError
from turnout.core.names import import_extra
from turnout.core.types import LARGEST_REPORT, FloatArray, IntArray, RoundContext

#: What rounding may do to an inverse, relative to the one before any observation.
ROUNDING = 1e-6


def ridge_start(dimension: int, ridge: float, n_models: int) -> tuple[FloatArray, FloatArray]:
    """Return the inverse (d, d, n) and the coefficients (d, n) before any observation.

    Args:
        dimension: d, length of a context.
        ridge: Strength of the regularisation, above 0.
        n_models: n, number of models: one per client, or 1 for all.
    """
    try:
        inverse = np.zeros((dimension, dimension, n_models))
    except (ValueError, MemoryError) as error:
        raise InvalidInput(
            f"dimension = {dimension} is too large for {n_models} models.", field="dimension"
        ) from error
    inverse[np.arange(dimension), np.arange(dimension)] = 1.0 / ridge
    return inverse, np.zeros((dimension, n_models))


def check_ridge(name: str, inverse: FloatArray, ridge: float) -> None:
    """Raise ``StateFileError`` unless a saved inverse can be one: H is at least ``ridge I``.

    Args:
        name: Its name in the state.
        inverse: (d, d, n) H^-1 of each model.
        ridge: Strength of the regularisation, above 0.
    """
    slack = ROUNDING / ridge
    variance = np.einsum("iin->in", inverse)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    is_between = (variance >= -slack) & (variance <= 1.0 / ridge + slack)
    if not (is_between.all() and (np.abs(inverse) <= deviation[:, None] * deviation + slack).all()):
        raise StateFileError(f"{name} is not the inverse of a matrix above {ridge:g} I.")


def ridge_width(inverse: FloatArray, context: FloatArray) -> FloatArray:
    """Return (n,) ``sqrt(c' H^-1 c)``, how uncertain each model is about its context.

    Args:
        inverse: (d, d, n) H^-1 of each model.
        context: (d, n) context c of each model.
    """
    squared = np.zeros(context.shape[1])
    row, term = np.empty_like(squared), np.empty_like(squared)
    for i in range(context.shape[0]):  # c_i (H_ii c_i + 2 sum_{j<i} H_ij c_j), H is symmetric
        np.multiply(inverse[i, i], 0.5 * context[i], out=row)
        for j in range(i):
            row += np.multiply(inverse[i, j], context[j], out=term)
        squared += np.multiply(row, context[i], out=row)
    squared *= 2.0
    return np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)


def rank_one_update(
    inverse: FloatArray, coefficients: FloatArray, context: FloatArray, target: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return inverse and coefficients after every model has made one observation.

    Args:
        inverse: (d, d, n) H^-1 of each model.
        coefficients: (d, n) coefficients of each model.
        context: (d, n) context of each observation.
        target: (n,) value observed.
    """
    projected = np.einsum("ijn,jn->in", inverse, context)
    scale = 1.0 + np.einsum("in,in->n", context, projected)
    updated = inverse - projected[:, None] * projected[None, :] / scale
    error = target - np.einsum("in,in->n", context, coefficients)
    return updated, coefficients + projected * (error / scale)


# Features of clients, without unknown values and extreme sizes.

#: Rows of features are shortened to this length: beyond it the ridge is lost to rounding.
LONGEST_FEATURES = 1e6


def typical_if_unknown(features: FloatArray) -> FloatArray:
    """Return features in which unknown and impossible values are the median of the others.

    A fixed value such as 0 would tell a regression something, for example that the client takes no
    time. The median says nothing, and one liar does not move it. It is 0 if no value is known.

    Args:
        features: (n, d) one row per client.
    """
    if features.size == 0:
        return features
    if features.min() >= -LARGEST_REPORT and features.max() <= LARGEST_REPORT:
        return features
    is_known = np.abs(features) <= LARGEST_REPORT  # NaN is not
    filled = features.copy()
    for column, known in zip(filled.T, is_known.T, strict=True):
        column[~known] = np.median(column[known]) if known.any() else 0.0
    return filled


def known_context(ctx: RoundContext, dimension: int) -> FloatArray:
    """Return (n, d) the context of all clients; unknown values are typical of the others.

    Args:
        ctx: The round; it must have the column ``context``.
        dimension: The number of features that a selector was made for.

    Raises:
        InvalidInput: The column has another shape.
    """
    context = ctx.column("context")
    if context.ndim != 2 or context.shape[1] != dimension:
        raise InvalidInput(
            f"columns['context'] must have shape ({ctx.n_clients}, {dimension}), got "
            f"{context.shape}; set dimension= to the number of context features."
        )
    return typical_if_unknown(np.asarray(context, dtype=np.float64))


def known_features(ctx: RoundContext) -> FloatArray:
    """Return (p, d) the features of the available clients; unknown ones are typical of the others.

    Args:
        ctx: The round; it must have the column ``features``.
    """
    features = np.asarray(ctx.of_pool(ctx.column("features")), dtype=np.float64)
    if features.ndim == 1:
        features = features[:, np.newaxis]
    largest = np.abs(features).max(initial=0.0)
    if largest * np.sqrt(features.shape[1]) <= LONGEST_FEATURES:
        return features
    features = typical_if_unknown(features)
    length = np.sqrt(np.square(features).sum(axis=1, keepdims=True))
    shortened: FloatArray = features * np.minimum(1.0, LONGEST_FEATURES / np.maximum(length, 1.0))
    return shortened


def unit_rows(x: FloatArray) -> FloatArray:
    """Return the rows scaled to length 1; rows of zeros stay zero.

    Args:
        x: (n, d) the rows.
    """
    largest = np.abs(x).max(axis=1, initial=0.0, keepdims=True)
    scaled: FloatArray = np.zeros_like(x)
    np.divide(x, largest, out=scaled, where=largest > 0.0)
    length = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    np.divide(scaled, length, out=scaled, where=length > 0.0)
    return scaled


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
