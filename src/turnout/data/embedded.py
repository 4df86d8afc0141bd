"""Datasets that need no download: scikit-learn's digits and Synthetic(alpha, beta)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from turnout.core.domains import CheckedFields, Count, NonNegative, integer, number
from turnout.core.names import import_extra
from turnout.core.types import Array, BoolArray, FloatArray, IntArray
from turnout.data.base import Dataset, Draw, Source
from turnout.data.partitions import rank_within

#: Rows that are generated at a time.
_CHUNK = 4096


#: Leaves something to train on and something to test.
TestShare = Annotated[float, number(above=0.0, below=1.0)]


@dataclass(frozen=True, slots=True)
class Digits(CheckedFields, Source):
    """1,797 handwritten digits of 8x8 grey pixels, from scikit-learn.

    Args:
        test_share: Share of each digit's examples that is kept for the test, inside (0, 1). The
            seed chooses them.

    """

    test_share: TestShare = 0.2

    def load(self, seed: int) -> Dataset:
        """Return the digits."""
        advice = "Digits needs scikit-learn: pip install 'turnout[torch]' (or scikit-learn)."
        digits = import_extra("sklearn.datasets", advice).load_digits()
        x = digits.images.astype(np.uint8)[:, None]
        y = digits.target.astype(np.int64)
        is_test = held_back(y, self.test_share, Draw.CONTENT.rng(seed))
        return Dataset("digits", *parts(x, y, is_test), 10, scale=1.0 / 16.0)


@dataclass(frozen=True, slots=True)
class Synthetic(CheckedFields, Source):
    """Synthetic(alpha, beta) of the FedProx paper: each client has its own linear model.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    Client k has a model ``y = argmax(softmax(W x + b))`` with ``W, b ~ N(u_k, 1)`` and inputs
    ``x ~ N(v_k, Sigma)``, ``v_k ~ N(B_k, 1)``, ``Sigma_jj = j ** -1.2``; ``u_k ~ N(0, alpha)``,
    ``B_k ~ N(0, beta)``. As in the authors' generator, alpha and beta are standard deviations and
    sizes are ``50 + lognormal(4, 2)``. The group of an example is its client: divide the data with
    ``Natural()``.

    As published, alpha changes nothing: ``u_k`` is added to the scores of all classes alike, and
    the largest stays the largest. Models differ between clients through the 1 in ``N(u_k, 1)``.

    Args:
        alpha: Spread of ``u_k``, >= 0. Kept because the dataset is named after it; it has no
            effect.
        beta: How much the clients' inputs differ, >= 0. Try 0 and 1.
        n_clients: Number of clients whose data is generated.
        dimension: Number of input features.
        n_classes: Number of classes.
        test_share: Share of each client's examples that is kept for the test, inside (0, 1).

    """

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    n_clients: Count = 30
    dimension: Count = 60
    n_classes: Annotated[int, integer(2)] = 10
    test_share: TestShare = 0.1

    def load(self, seed: int) -> Dataset:
        """Generate the examples."""
        rng = Draw.CONTENT.rng(seed)
        client = np.repeat(np.arange(self.n_clients), client_sizes(self.n_clients, rng))
        u = rng.normal(0.0, self.alpha, self.n_clients)
        centre = rng.normal(0.0, self.beta, self.n_clients)[:, None]  # B_k
        v = centre + rng.standard_normal((self.n_clients, self.dimension))
        shape = (self.n_classes, self.n_clients, self.dimension)
        weight = u[:, None] + rng.standard_normal(shape)  # W_k
        bias = u + rng.standard_normal((self.n_classes, self.n_clients))  # b_k
        deviation = np.arange(1, self.dimension + 1) ** -0.6  # root of Sigma
        x = np.empty((client.size, self.dimension), dtype=np.float32)
        y = np.empty(client.size, dtype=np.int64)
        for start in range(0, client.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            owner = client[part]
            drawn = v[owner] + deviation * rng.standard_normal((owner.size, self.dimension))
            x[part] = drawn
            y[part] = _labels(drawn, owner, weight, bias)
        is_test = held_back(client, self.test_share, rng)
        name = f"synthetic({self.alpha:g}, {self.beta:g})"
        return Dataset(name, *parts(x, y, is_test), self.n_classes, group=client[~is_test])


def client_sizes(n_clients: int, rng: np.random.Generator) -> IntArray:
    """Return (n,) sizes with a heavy tail, as the authors of Synthetic draw them.

    Args:
        n_clients: How many sizes to draw.
        rng: Draws them.

    """
    return 50 + rng.lognormal(4.0, 2.0, n_clients).astype(np.int64)


def _labels(x: FloatArray, owner: IntArray, weight: FloatArray, bias: FloatArray) -> IntArray:
    """Return the class with the largest score; softmax would not change the order."""
    scores = [
        np.einsum("ij,ij->i", x, of_class[owner]) + offset[owner]
        for of_class, offset in zip(weight, bias, strict=True)
    ]
    best: IntArray = np.argmax(scores, axis=0)
    return best


def held_back(group: Array, share: float, rng: np.random.Generator) -> BoolArray:
    """Return (N,) which examples are kept for the test: a share of each group, never all of it.

    Args:
        group: (N,) the number of each example's group, for example its label or its author.
        share: Share of each group, inside (0, 1).
        rng: Chooses the examples.

    """
    size = np.bincount(group)
    n_test = np.minimum(np.rint(share * size), size - 1)
    return rank_within(group, rng) < np.take(n_test, group)


def parts(x: Array, y: Array, is_test: BoolArray) -> tuple[Array, Array, Array, Array]:
    """Return x and y of the training examples, then those of the test examples.

    Args:
        x: (N, ...) all examples.
        y: (N, ...) their labels.
        is_test: (N,) which examples are for the test.

    """
    return x[~is_test], y[~is_test], x[is_test], y[is_test]
