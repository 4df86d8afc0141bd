"""Ridge regression by recursive least squares, one model per client or one for all.

The inverse of ``H = ridge I + sum c c'`` and the coefficients are kept up to date by rank-one
updates (Sherman-Morrison), so no matrix is inverted in a round. In all arrays the last axis is the
client, so that one coefficient of a million clients is contiguous in memory.
"""

from __future__ import annotations

import numpy as np

from turnout.errors import InvalidInput, StateFileError
from turnout.types import FloatArray

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
