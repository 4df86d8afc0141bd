"""Ways to divide a dataset: iid, by primary label, in shards, by owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from turnout import require
from turnout.data.assign import deal, deal_labels, equal_offsets, offsets_of, rank_within
from turnout.data.base import Dataset, Partition
from turnout.domains import CheckedFields, Count, Fraction, check_fields, choice
from turnout.errors import InvalidInput
from turnout.types import IntArray


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

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
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

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Draw the labels, then the number of examples of each label, then the examples."""
        labels = labels_of(dataset, self)
        size = examples_each(self.samples, labels.size, n_clients)
        of_label = np.bincount(labels, minlength=dataset.n_classes)
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

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Give out shuffled shards."""
        labels = labels_of(dataset, self)
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

    def assign(
        self, dataset: Dataset, n_clients: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
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
        chosen = np.sort(shuffled[:n_clients])
        return self._rows(dataset.group, chosen, rng)

    def _rows(
        self, group: IntArray, chosen: IntArray, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        rows = np.flatnonzero(np.isin(group, chosen))
        if self.max_samples is not None:
            rows = rows[rank_within(group[rows], rng) < self.max_samples]
        rows = rows[np.argsort(group[rows], kind="stable")]
        return rows, np.append(np.searchsorted(group[rows], chosen), rows.size)


def labels_of(dataset: Dataset, partition: Partition) -> IntArray:
    """Return (N,) the labels. A text is refused: it has a label at each position.

    Args:
        dataset: The examples.
        partition: Named in the error.

    """
    if dataset.is_text:
        raise InvalidInput(
            f"{type(partition).__name__} divides by label, and {dataset.name} is text with a label "
            "at each word. Use Natural, Iid or PowerLaw without alpha."
        )
    return dataset.y


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
    clients = np.arange(primary.size)
    counts = np.zeros((primary.size, of_label.size), dtype=np.int64)
    left = np.full(primary.size, n_drawn)
    remaining = of_label.sum() - of_label[primary]
    for label in range(of_label.size):
        here = np.where(primary == label, 0, of_label[label])
        remaining = remaining - here
        counts[clients, label] = rng.hypergeometric(here, remaining, left)
        left = left - counts[clients, label]
    return counts
