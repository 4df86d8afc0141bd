"""Ridge regression by recursive least squares, one model per client or one for all.

The inverse of ``H = ridge I + sum c c'`` and the coefficients are kept up to date by rank-one
updates (Sherman-Morrison), so nothing is inverted per round. Arrays put the clients last, so that
each coefficient of a million clients is contiguous.
"""

from __future__ import annotations

import numpy as np

from turnout.types import FloatArray

__all__ = ["rank_one_update", "ridge_start", "ridge_width"]


def ridge_start(dimension: int, ridge: float, n_models: int) -> tuple[FloatArray, FloatArray]:
    """Return the inverse (d, d, n) and the coefficients (d, n) before any observation."""
    inverse = np.zeros((dimension, dimension, n_models))
    inverse[np.arange(dimension), np.arange(dimension)] = 1.0 / ridge
    return inverse, np.zeros((dimension, n_models))


def ridge_width(inverse: FloatArray, context: FloatArray) -> FloatArray:
    """Return ``sqrt(c' H^-1 c)`` per model, for contexts (d, n)."""
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
    """Return both arrays after one observation (context (d, n), target (n,)) of every model."""
    projected = np.einsum("ijn,jn->in", inverse, context)
    scale = 1.0 + np.einsum("in,in->n", context, projected)
    updated = inverse - projected[:, None] * projected[None, :] / scale
    error = target - np.einsum("in,in->n", context, coefficients)
    return updated, coefficients + projected * (error / scale)
