from __future__ import annotations

import numpy as np

from turnout.data.base import PADDING, FederatedData


def federation(
    sizes=(12, 7, 20),
    shape=(3,),
    n_classes=4,
    seed=0,
    *,
    holdout=0,
    n_test=24,
    scale=1.0,
    shift=0.0,
):
    """Examples whose class is written into them: a model can learn it."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n_classes, *shape))

    def some(n):
        y = rng.integers(n_classes, size=n)
        return (centre[y] + 0.3 * rng.normal(size=(n, *shape))).astype(np.float32), y

    n = len(sizes)
    x, y = some(sum(sizes))
    x_holdout, y_holdout = some(n * holdout)
    x_test, y_test = some(n_test)
    return FederatedData(
        "toy",
        x,
        y,
        np.concatenate([[0], np.cumsum(sizes)]),
        x_holdout,
        y_holdout,
        np.arange(n + 1) * holdout,
        x_test,
        y_test,
        n_classes,
        scale,
        shift,
    )


def texts(sizes=(6, 9), length=5, n_words=7, seed=0):
    """Texts that count upwards, some of them cut short."""
    rng = np.random.default_rng(seed)

    def some(n):
        words = (rng.integers(n_words, size=(n, 1)) + np.arange(length + 1)) % n_words
        y = words[:, 1:].copy()
        y[np.arange(length) >= rng.integers(2, length + 1, size=(n, 1))] = PADDING
        return words[:, :-1].astype(np.int32), y.astype(np.int32)

    x, y = some(sum(sizes))
    x_test, y_test = some(10)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    none = np.zeros(len(sizes) + 1, dtype=np.int64)
    return FederatedData("texts", x, y, offsets, x[:0], y[:0], none, x_test, y_test, n_words)
