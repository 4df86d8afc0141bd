"""Short random projections of model updates: a few numbers whose products are those of the updates.

A sketch is a linear map of the P numbers of an update to d numbers, fixed by a seed. Clients that
know the seed sketch their updates by themselves, and the server compares clients without ever
holding their models. For two updates x and y, the product of the sketches is an unbiased estimate
of <x, y>, with a standard deviation of at most about |x| |y| sqrt(2 / d).

The map has two steps, so that it reads an update once and needs P signs instead of a P x d matrix.
The signs of the update are flipped at random, and the update is folded onto ``FOLD`` numbers by
adding every ``FOLD``-th one. A dense matrix of random signs then maps these to d numbers. ``FOLD``
is a prime, so the rows of a layer do not line up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array, FloatArray

#: Numbers that an update is folded onto.
FOLD = 1021

#: The seed that selectors expect. Sketches of different seeds cannot be compared.
SKETCH_SEED = 0


@lru_cache(maxsize=4)
def signs(n_weights: int, seed: int = SKETCH_SEED) -> Array:
    """Return (P,) random signs as float32, in the order of the weights.

    Args:
        n_weights: P.
        seed: The seed of the sketch.
    """
    drawn = stream(seed, Purpose.SKETCH, 0).integers(0, 2, n_weights, dtype=np.int8)
    return _frozen(np.float32(2) * drawn - np.float32(1))


@lru_cache(maxsize=4)
def mixing(size: int, seed: int = SKETCH_SEED) -> FloatArray:
    """Return (FOLD, d) random signs divided by sqrt(d).

    Args:
        size: d.
        seed: The seed of the sketch.
    """
    drawn = stream(seed, Purpose.SKETCH, 1).integers(0, 2, (FOLD, size), dtype=np.int8)
    return _frozen((2.0 * drawn - 1.0) / np.sqrt(size))


def sketch(update: Any, size: int, seed: int = SKETCH_SEED) -> FloatArray:
    """Return (d,) the sketch of an update.

    Args:
        update: (P,) the change of all weights, one after the other.
        size: d, the numbers of the sketch.
        seed: The seed of the sketch, the same for everyone.

    >>> x = np.linspace(-1.0, 1.0, 5000)
    >>> bool(abs(sketch(x, 256) @ sketch(x, 256) / (x @ x) - 1.0) < 0.2)
    True
    """
    require.integer("size", size, minimum=1)
    flat = np.asarray(update, dtype=np.float64)
    if flat.ndim != 1:
        raise InvalidInput(
            f"update must be one flat vector, got shape {flat.shape}; use flat_update(before, "
            "after) for lists of arrays.",
            field="update",
        )
    padded = np.zeros(-(-flat.size // FOLD) * FOLD)
    np.multiply(flat, signs(flat.size, seed), out=padded[: flat.size])
    folded: FloatArray = padded.reshape(-1, FOLD).sum(axis=0)
    return folded @ mixing(size, seed)


def flat_update(before: Iterable[Any], after: Iterable[Any]) -> FloatArray:
    """Return (P,) the change of all weights, one array after the other.

    Args:
        before: The arrays of the model that the client received.
        after: The arrays of the model that it trained, in the same order.
    """
    pairs = list(zip(map(_array, before), map(_array, after), strict=True))
    for i, (old, new) in enumerate(pairs):
        if old.shape != new.shape:
            raise InvalidInput(
                f"after[{i}] has shape {new.shape}, but before[{i}] has {old.shape}: give the "
                "arrays of both models in the same order.",
                field="after",
            )
    return np.concatenate([np.zeros(0), *((new - old).ravel() for old, new in pairs)])


def _array(values: Any) -> FloatArray:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    return np.asarray(values, dtype=np.float64)


def _frozen(values: Array) -> Array:
    values.setflags(write=False)
    return values
