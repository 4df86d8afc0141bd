"""Ways to divide a dataset: iid, by label, in shards, by owner, by Dirichlet or power law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from turnout.core import require
from turnout.core.domains import (
    CheckedFields,
    Count,
    Flag,
    Fraction,
    Positive,
    check_fields,
    choice,
)
from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray, IntArray
from turnout.data.base import Assignment, Dataset, Partition

# These functions give the rows of a pool of examples to clients. All are vectorised over clients.
# They loop over labels, or over passes through a pool.


def equal_offsets(n_rows: int, n_parts: int) -> IntArray:
    """Return (n_parts + 1,) borders of parts whose sizes differ by at most one row.

    Args:
        n_rows: Rows to cut.
        n_parts: How many parts to cut them into.

    """
    return np.arange(n_parts + 1, dtype=np.int64) * n_rows // n_parts


def offsets_of(counts: IntArray) -> IntArray:
    """Return (n + 1,) where the rows of each client begin.

    Args:
        counts: (n,) how many rows each client has.

    """
    return np.concatenate(([0], np.cumsum(counts)))


def rank_within(group: Array, rng: np.random.Generator) -> IntArray:
    """Return (N,) the place of each row in a random order of its group, from 0.

    Args:
        group: (N,) the number of each row's group.
        rng: Draws the order.

    """
    order = np.lexsort((rng.random(group.size), group))
    ordered = group[order]
    rank = np.empty(group.size, dtype=np.int64)
    rank[order] = np.arange(group.size) - np.searchsorted(ordered, ordered)
    return rank


def whole(amounts: FloatArray, totals: IntArray) -> IntArray:
    """Round amounts to integers whose rows have given sums; largest remainders are rounded up.

    Args:
        amounts: (n, c) numbers >= 0.
        totals: (n,) the sum of each row, already an integer up to rounding errors.

    >>> whole(np.array([[1.5, 2.25, 0.25]]), np.array([4])).tolist()
    [[2, 2, 0]]

    """
    counts = np.floor(amounts).astype(np.int64)
    missing = totals - counts.sum(axis=1)
    rank = np.argsort(np.argsort(counts - amounts, axis=1, kind="stable"), axis=1, kind="stable")
    counts += rank < missing[:, None]
    return counts


def deal(pool: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return (sum of counts,) rows of a pool, client after client.

    The pool is shuffled and given out. When it is empty it is filled and shuffled again, so a row
    goes to a second client only after every row went to a first. No client gets a row twice.

    Args:
        pool: The row numbers to give out.
        counts: (n,) how many rows each client gets, at most the size of the pool.
        rng: Draws the order.

    """
    if counts.size and counts.max() > pool.size:
        raise InvalidInput(
            f"counts: a client asks for {counts.max()} examples, but there are only {pool.size}."
        )
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    dealt = np.empty(total, dtype=np.int64)
    for start in range(0, total, max(pool.size, 1)):
        order = rng.permutation(pool)
        last = int(np.searchsorted(ends, start, side="right"))  # the client that continues here
        held = dealt[int(ends[last] - counts[last]) : start]
        if held.size:  # what it lacks comes first, from rows that it does not hold yet
            first = np.flatnonzero(~np.isin(order, held))[: int(ends[last]) - start]
            order = np.concatenate((order[first], np.delete(order, first)))
        dealt[start : start + pool.size] = order[: total - start]
    return dealt


def deal_labels(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return rows, client after client, so that client i has ``counts[i, c]`` of label c.

    Each label is a pool of its own, given out as by ``deal``.

    Args:
        labels: (N,) the label of each row.
        counts: (n, classes) how many rows of each label a client gets.
        rng: Draws the order.

    """
    wanted = [(label, column) for label, column in enumerate(counts.T) if column.any()]
    rows = [deal(np.flatnonzero(labels == label), column, rng) for label, column in wanted]
    owners = [np.repeat(np.arange(column.size), column) for _, column in wanted]
    return np.concatenate(rows)[np.argsort(np.concatenate(owners), kind="stable")]


def deal_once(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return rows as ``deal_labels`` does, but give no row to two clients.

    Where a label runs out, randomly drawn clients get rows of the remaining labels instead. Every
    client keeps its size.

    Args:
        labels: (N,) the label of each row.
        counts: (n, classes) how many rows of each label a client asks for; their sum is at most N.
        rng: Draws the order, and the clients that are served first.

    """
    rows, owners, unserved, unused = [], [], [], []
    for label in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == label))
        claims = rng.permutation(np.repeat(np.arange(counts.shape[0]), counts[:, label]))
        n_served = min(pool.size, claims.size)
        rows.append(pool[:n_served])
        owners.append(claims[:n_served])
        unused.append(pool[n_served:])
        unserved.append(claims[n_served:])
    waiting = np.concatenate(unserved)
    rows.append(rng.permutation(np.concatenate(unused))[: waiting.size])
    owners.append(waiting)
    return np.concatenate(rows)[np.argsort(np.concatenate(owners), kind="stable")]


@dataclass(frozen=True, slots=True)
class Iid(CheckedFields, Partition):
    """Every client draws from the same examples.

    No client has an example twice. An example goes to a second client only after every example
    went to a first, so with enough examples no two clients share one.

    Args:
        samples: Number of examples of each client. Default: all examples are divided equally, and
            sizes differ by at most one.

    """

    samples: Count | None = None

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Give out shuffled examples."""
        n_rows = len(dataset.y)
        if self.samples is None:
            return rng.permutation(n_rows), equal_offsets(n_rows, n_clients)
        counts = np.full(n_clients, examples_each(self.samples, n_rows, n_clients))
        return deal(np.arange(n_rows), counts, rng), offsets_of(counts)


@dataclass(frozen=True, slots=True)
class PrimaryLabel(CheckedFields, Partition):
    """Each client has one primary label, as in E3CS: arXiv Sec. VI, journal Sec. VI-A.

    The label is drawn uniformly and independently for each client. The other examples of the
    client are drawn uniformly from those with any other label. The papers do not say whether
    clients may hold the same example. Here an example goes to a second client only after all
    examples of its label went to a first. No client has an example twice.

    Args:
        share: Share of the primary label among a client's examples, alpha in the papers, inside
            [0, 1]. The papers use 0.8; 1 gives clients with a single label.
        samples: Number of examples of each client. Default: all examples divided by the number of
            clients.

    """

    share: Fraction = 0.8
    samples: Count | None = None

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Draw the labels, then the number of examples of each label, then the examples."""
        labels, of_label = labels_of(dataset, self)
        size = examples_each(self.samples, labels.size, n_clients)
        occurring = np.flatnonzero(of_label)
        primary = occurring[rng.integers(occurring.size, size=n_clients)]
        n_primary = round(self.share * size)
        self._check_room(of_label, primary, n_primary, size)
        counts = _others(of_label, primary, size - n_primary, rng)
        counts[np.arange(n_clients), primary] = n_primary
        return deal_labels(labels, counts, rng), size * np.arange(n_clients + 1)

    def _check_room(self, of_label: IntArray, primary: IntArray, n_primary: int, size: int) -> None:
        room = of_label[primary]
        if room.min() < n_primary:
            label = int(primary[np.argmin(room)])
            raise InvalidInput(
                f"samples: a client asks for {n_primary} examples of label {label}, but there are "
                f"only {room.min()}. Set samples to at most {int(room.min() / self.share)} (now "
                f"{size}) or lower share (now {self.share})."
            )
        others = int(of_label.sum() - room.max())
        if others < size - n_primary:
            raise InvalidInput(
                f"samples: a client asks for {size - n_primary} examples of other labels than "
                f"its own, but there are only {others}. Lower samples (now {size}) or raise share."
            )


@dataclass(frozen=True, slots=True)
class Shards(CheckedFields, Partition):
    """Sorted by label and cut into equal shards, a few for each client (McMahan et al. 2017).

    Every example goes to exactly one client. Sizes of shards differ by at most one.

    Args:
        per_client: Number of shards of each client, at least 1. With the paper's 2 most clients
            have two labels; more shards make clients more alike.

    """

    per_client: Count = 2

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Give out shuffled shards."""
        labels, _ = labels_of(dataset, self)
        n_shards = n_clients * self.per_client
        if n_shards > labels.size:
            raise InvalidInput(
                f"per_client: {n_clients} clients x {self.per_client} shards are more than the "
                f"{labels.size} examples, so a client would have no data. Lower per_client "
                "or n_clients."
            )
        by_label = np.lexsort((rng.random(labels.size), labels))
        border = equal_offsets(labels.size, n_shards)
        dealt = rng.permutation(n_shards)
        length = np.diff(border)[dealt]
        first = offsets_of(length)
        rows = np.repeat(border[dealt] - first[:-1], length) + np.arange(labels.size)
        return by_label[rows], first[:: self.per_client]


@dataclass(frozen=True, slots=True)
class Natural(Partition):
    """One client for each writer, author or role.

    Equal bounds give clients of equal size, as in NCCB.

    Args:
        min_samples: Groups with fewer examples are left out, at least 1. Try 50 for FEMNIST.
        max_samples: From larger groups this many examples are drawn at random. Default: no limit.
        choose: Which groups become clients where there are more groups than clients:
            ``"random"`` or ``"largest"``.

    """

    min_samples: Count = 1
    max_samples: int | None = None
    choose: Annotated[str, choice("random", "largest")] = "random"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_samples is not None:
            require.integer("max_samples", self.max_samples, minimum=self.min_samples)

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Choose groups. Clients are in the order of their groups."""
        if dataset.group is None:
            raise InvalidInput(
                f"Natural needs examples that belong to someone, and {dataset.name} does not say "
                "whose they are. Set group of your own source (array-file, csv-file, examples or "
                "Arrays), take a source with groups (femnist, blog-authors, synthetic ...) or "
                "another partition.",
                field="group",
            )
        size = np.bincount(dataset.group)
        large = np.flatnonzero(size >= self.min_samples)
        if large.size < n_clients:
            raise InvalidInput(
                f"n_clients is {n_clients}, but {dataset.name} has {large.size} groups of at "
                f"least {self.min_samples} examples; lower n_clients or min_samples, or take a "
                "source with more groups."
            )
        shuffled = rng.permutation(large)
        if self.choose == "largest":
            shuffled = shuffled[np.argsort(-size[shuffled], kind="stable")]
        group, chosen = dataset.group, np.sort(shuffled[:n_clients])
        rows = np.flatnonzero(np.isin(group, chosen))
        if self.max_samples is not None:
            rows = rows[rank_within(group[rows], rng) < self.max_samples]
        rows = rows[np.argsort(group[rows], kind="stable")]
        return rows, np.append(np.searchsorted(group[rows], chosen), rows.size)


def labels_of(dataset: Dataset, partition: Partition) -> tuple[IntArray, IntArray]:
    """Return (N,) the labels and (C,) how many there are of each.

    A text is refused: it has a label at each position.

    Args:
        dataset: The examples.
        partition: Named in the error.

    """
    if dataset.is_text:
        raise InvalidInput(
            f"{type(partition).__name__} divides by label, and {dataset.name} is text with a label "
            "at each word. Use Natural, Iid or PowerLaw without alpha."
        )
    if dataset.has_targets:
        raise InvalidInput(
            f"{type(partition).__name__} divides by label, and {dataset.name} has targets of a "
            "regression. Use Natural, Iid or PowerLaw without alpha."
        )
    return dataset.y, np.bincount(dataset.y, minlength=dataset.n_classes)


def examples_each(samples: int | None, n_rows: int, n_clients: int) -> int:
    """Return the number of examples of each client.

    Args:
        samples: The number that the user set, or None for an equal part of all.
        n_rows: Number of examples.
        n_clients: Number of clients.

    """
    size = n_rows // n_clients if samples is None else samples
    if size == 0:
        raise InvalidInput(
            f"n_clients: {n_clients} clients share {n_rows} examples, so a client would have no "
            "data. Lower n_clients or set samples."
        )
    if size > n_rows:
        raise InvalidInput(f"samples is {samples}, but there are only {n_rows} examples: lower it.")
    return size


def _others(
    of_label: IntArray, primary: IntArray, n_drawn: int, rng: np.random.Generator
) -> IntArray:
    """Draw without replacement from the other labels' examples; return the counts by label."""
    counts = np.zeros((primary.size, of_label.size), dtype=np.int64)
    left = np.full(primary.size, n_drawn)
    remaining = of_label.sum() - of_label[primary]
    for label, size in enumerate(of_label):
        here = np.where(primary == label, 0, size)
        remaining = remaining - here
        counts[:, label] = rng.hypergeometric(here, remaining, left)
        left = left - counts[:, label]
    return counts


# Labels in the order of clients, so that they coincide with the classes of a world.


@dataclass(frozen=True, slots=True)
class LabelOrder(CheckedFields, Partition):
    """Neighbouring clients hold the same labels: the first clients the first labels.

    The classes of a world are neighbours too. So the slow or unreliable clients hold labels that
    the others lack, which is where selection hurts. Every example goes to one client. Sizes of
    clients differ by at most two.

    Args:
        share: Share of the examples that are given out in the order of their labels, inside
            [0, 1]. The others are given out at random. Try 0.8; 0 makes all clients alike.

    """

    share: Fraction = 0.8

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Give out a part by label and the rest at random."""
        labels, _ = labels_of(dataset, self)
        order = rng.permutation(labels.size)
        ordered, others = np.split(order, [round(self.share * labels.size)])
        ordered = ordered[np.argsort(labels[ordered], kind="stable")]
        sizes = [np.diff(equal_offsets(part.size, n_clients)) for part in (ordered, others)]
        owner = np.repeat(np.tile(np.arange(n_clients), 2), np.concatenate(sizes))
        rows = np.concatenate((ordered, others))[np.argsort(owner, kind="stable")]
        return rows, np.searchsorted(np.sort(owner), np.arange(n_clients + 1))


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
    samples: Count | None = None
    equal_sizes: Flag = True
    min_samples: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.samples is not None and not self.equal_sizes:
            raise InvalidInput(
                "samples needs equal_sizes=True: leave it out or set both.", field="samples"
            )

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Draw proportions, then the examples."""
        labels, of_label = labels_of(dataset, self)
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
        if (counts > of_label).any():
            label = int(np.argmax((counts - of_label).max(axis=0)))
            raise InvalidInput(
                f"samples: a client asks for {counts[:, label].max()} examples of label {label}, "
                f"but there are only {of_label[label]}. Lower samples (now {self.samples}) or "
                "raise alpha."
            )
        return deal_labels(labels, counts, rng), offsets_of(sizes)

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

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Draw sizes, then the examples."""
        n_rows = len(dataset.y)
        sizes = self.sizes(n_rows, n_clients, rng)
        if self.alpha is None:
            return rng.permutation(n_rows), offsets_of(sizes)
        labels, of_label = labels_of(dataset, self)
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
        log_weight = -np.log1p(-rng.random(n_clients)) / self.exponent  # of 1 / u ** (1 / exponent)
        # In logarithms, because u ** (1 / exponent) underflows for small exponents.
        weight = np.exp(log_weight - log_weight.max())
        extra = whole((spare * weight / weight.sum())[None, :], np.array([spare]))
        return self.min_samples + extra.ravel()


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
    # ln Gamma(a) = ln Gamma(a + 1) + ln(U) / a, which does not underflow for small a.
    log_draw = np.log(gamma) + np.log1p(-rng.random(shape)) / concentration
    draw = np.exp(log_draw - log_draw.max(axis=1, keepdims=True))
    share: FloatArray = draw / draw.sum(axis=1, keepdims=True)
    return share
