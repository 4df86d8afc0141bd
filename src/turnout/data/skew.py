"""Ways to divide a dataset unevenly: Dirichlet label proportions, power-law sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout import require
from turnout.data.assign import deal_labels, deal_once, offsets_of, whole
from turnout.data.base import Dataset, Partition
from turnout.data.partitions import examples_each, labels_of
from turnout.domains import CheckedFields, Count, Flag, Positive, check_fields
from turnout.errors import InvalidInput
from turnout.types import FloatArray, IntArray

#: How often unequal sizes are drawn before the partition gives up.
_MOST_DRAWS = 100

#: How often proportions are fitted to the number of examples of each label.
_MOST_FITS = 100

#: Smaller concentrations are raised to this one: the draws are the same and nothing overflows.
_LEAST_CONCENTRATION = 1e-100


@dataclass(frozen=True, slots=True)
class Dirichlet(Partition):
    """Label proportions are drawn from a Dirichlet distribution.

    Equal sizes (Hsu et al. 2019, used by RBCS-F and UCB-CS): each client draws proportions
    ``q ~ Dir(alpha * C * prior)`` and gets ``q * samples`` examples, rounded to its exact size.
    ``prior`` is the share of each label and C the number of labels, so a balanced set has
    ``Dir(alpha * ones)`` as in RBCS-F; the alpha of Hsu et al., whose prior sums to one, is C times
    ours. With enough examples none goes to two clients: where the clients ask for too much of a
    label, all proportions are changed as little as is needed. When the clients together ask for
    more than there is, the proportions are exact, and an example goes to a second client only after
    all examples of its label went to a first.

    Unequal sizes (``equal_sizes=False``, the other reading of UCB-CS's Dir_K(alpha)): each label
    is divided among the clients by ``Dir(alpha * ones)`` over clients, every example once. The
    draw is repeated until every client has ``min_samples``.

    Args:
        alpha: Concentration, > 0. Small values are far from iid: 0.1 gives clients with one or two
            labels, 0.5 is a common choice, 100 is nearly iid.
        samples: Number of examples of each client. Default: all examples divided by the number of
            clients. Needs equal sizes.
        equal_sizes: Whether all clients have the same number of examples.
        min_samples: Smallest number of examples of a client with unequal sizes, at least 1.

    """

    alpha: Positive = 0.5
    samples: int | None = None
    equal_sizes: Flag = True
    min_samples: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.samples is not None:
            require.integer("samples", self.samples, minimum=1)
            if not self.equal_sizes:
                raise InvalidInput(
                    "samples needs equal_sizes=True: leave it out or set both.", field="samples"
                )

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Draw proportions, then the examples."""
        labels = labels_of(dataset, self)
        of_label = np.bincount(labels, minlength=dataset.n_classes)
        if not self.equal_sizes:
            counts = self._unequal(of_label, n_clients, rng)
            return deal_labels(labels, counts, rng), offsets_of(counts.sum(axis=1))
        size = examples_each(self.samples, labels.size, n_clients)
        sizes = np.full(n_clients, size)
        amounts = label_amounts(of_label, self.alpha, sizes, rng)
        if size * n_clients <= labels.size:
            counts = whole(fitted(amounts, of_label), sizes)
            return deal_once(labels, counts, rng), offsets_of(sizes)
        counts = whole(amounts, sizes)
        self._check_room(counts, of_label)
        return deal_labels(labels, counts, rng), offsets_of(sizes)

    def _check_room(self, counts: IntArray, of_label: IntArray) -> None:
        if (counts > of_label).any():
            label = int(np.argmax((counts - of_label).max(axis=0)))
            raise InvalidInput(
                f"samples: a client asks for {counts[:, label].max()} examples of label {label}, "
                f"but there are only {of_label[label]}. Lower samples (now {self.samples}) or "
                "raise alpha."
            )

    def _unequal(self, of_label: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        occurring = np.flatnonzero(of_label)
        counts = np.zeros((n_clients, of_label.size), dtype=np.int64)
        for _ in range(_MOST_DRAWS):
            share = proportions(np.full(n_clients, self.alpha), occurring.size, rng)
            exact = share * of_label[occurring, None]
            counts[:, occurring] = whole(exact, of_label[occurring]).T
            if counts.sum(axis=1).min() >= self.min_samples:
                return counts
        raise InvalidInput(
            f"alpha: {_MOST_DRAWS} draws all left a client with no data or fewer than "
            f"{self.min_samples} examples. Raise alpha (now {self.alpha}), lower n_clients (now "
            f"{n_clients}) or min_samples, or use equal_sizes=True."
        )


@dataclass(frozen=True, slots=True)
class PowerLaw(CheckedFields, Partition):
    """Client sizes have a heavy tail: P(size > s) falls as ``s ** -exponent``.

    Every example goes to exactly one client. Each client gets ``min_samples``; the rest is divided
    in proportion to Pareto draws.

    Args:
        exponent: Exponent of the tail, > 0. Smaller is more unequal; try 1.5 first.
        min_samples: Smallest number of examples of a client, at least 1.
        alpha: Concentration of the label proportions as in ``Dirichlet``. Default: examples are
            iid.

    """

    exponent: Positive = 1.5
    min_samples: Count = 1
    alpha: Positive | None = None

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Draw sizes, then the examples."""
        n_rows = len(dataset.y)
        sizes = self.sizes(n_rows, n_clients, rng)
        if self.alpha is None:
            return rng.permutation(n_rows), offsets_of(sizes)
        labels = labels_of(dataset, self)
        of_label = np.bincount(labels, minlength=dataset.n_classes)
        amounts = label_amounts(of_label, self.alpha, sizes, rng)
        return deal_once(labels, whole(fitted(amounts, of_label), sizes), rng), offsets_of(sizes)

    def sizes(self, n_rows: int, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Return (n,) sizes that sum to ``n_rows``.

        Args:
            n_rows: Number of examples.
            n_clients: Number of clients.
            rng: Draws the sizes.

        """
        spare = n_rows - n_clients * self.min_samples
        if spare < 0:
            raise InvalidInput(
                f"min_samples: {n_clients} clients x {self.min_samples} are more than the {n_rows} "
                "examples, so a client would have no data. Lower min_samples or n_clients."
            )
        weight = rng.random(n_clients)
        log_weight = -np.log1p(-weight) / self.exponent  # of 1 / u ** (1 / exponent)
        weight = np.exp(log_weight - log_weight.max())
        extra = whole((spare * weight / weight.sum())[None, :], np.array([spare]))
        sizes: IntArray = self.min_samples + extra[0]
        return sizes


def label_amounts(
    of_label: IntArray, alpha: float, sizes: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return (n, C) how many examples of each label a client should have, not rounded.

    Args:
        of_label: (C,) number of examples of each label.
        alpha: Concentration of the proportions that each client draws.
        sizes: (n,) number of examples of each client.
        rng: Draws the proportions.

    """
    occurring = np.flatnonzero(of_label)
    prior = of_label[occurring] / of_label.sum()
    share = proportions(alpha * occurring.size * prior, sizes.size, rng)
    amounts = np.zeros((sizes.size, of_label.size))
    amounts[:, occurring] = share * sizes[:, None]
    return amounts


def fitted(amounts: FloatArray, of_label: IntArray) -> FloatArray:
    """Change amounts until no label is asked for more often than it occurs; keep the row sums.

    Labels that are asked for too often are scaled down, then rows are scaled up again, in turns
    (iterative proportional fitting). Ratios between clients stay, so clients differ as much as
    they were drawn.

    Args:
        amounts: (n, C) how many examples of each label a client should have.
        of_label: (C,) number of examples of each label.

    """
    size = amounts.sum(axis=1, keepdims=True)
    for _ in range(_MOST_FITS):
        asked = amounts.sum(axis=0)
        if (asked <= of_label + 0.5).all():
            break
        amounts = amounts * np.minimum(1.0, of_label / np.maximum(asked, 1.0))
        amounts = amounts * (size / amounts.sum(axis=1, keepdims=True))
    return amounts


def proportions(concentration: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
    """Return (size, c) draws from a Dirichlet distribution.

    Gamma variables are drawn in log space: otherwise all entries of a row may underflow to 0 when
    concentrations are near 0.

    Args:
        concentration: (c,) parameters of the distribution, >= 0.
        size: How many draws.
        rng: Draws them.

    """
    concentration = np.maximum(concentration, _LEAST_CONCENTRATION)
    shape = (size, concentration.size)
    gamma = rng.gamma(concentration + 1.0, size=shape)
    log_draw = np.log(gamma) + np.log1p(-rng.random(shape)) / concentration
    draw = np.exp(log_draw - log_draw.max(axis=1, keepdims=True))
    share: FloatArray = draw / draw.sum(axis=1, keepdims=True)
    return share
