"""The clients' features, with unknown values and extreme sizes removed."""

from __future__ import annotations

import numpy as np

from turnout.errors import InvalidInput
from turnout.types import LARGEST_REPORT, FloatArray, RoundContext

#: Rows of features are shortened to this length: beyond it the ridge is lost to rounding.
LONGEST_FEATURES = 1e6


def typical_if_unknown(features: FloatArray) -> FloatArray:
    """Return features in which unknown and impossible values are the median of the others.

    A fixed value such as 0 would tell a regression something, for example that the client takes no
    time. The median says nothing, and one liar does not move it. It is 0 if nobody's is known.

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
