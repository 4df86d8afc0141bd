"""Load a dataset and divide it among clients, and describe the division in numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray, IntArray
from turnout.data.base import Dataset, Draw, FederatedData, Partition, Source
from turnout.data.embedded import held_back
from turnout.data.features import ClientCode, mean_codes, mean_vectors, word_codes
from turnout.data.partitions import offsets_of

_CODE = ClientCode()

#: Share of the held-out examples that others may train on without a warning.
_MOST_SEEN = 0.1


def federate(
    source: Source,
    partition: Partition,
    n_clients: int,
    seed: int,
    hold_out: float = 0.0,
    code: ClientCode = _CODE,
) -> FederatedData:
    """Load a dataset and divide it among clients.

    The same arguments give the same data.

    Args:
        source: Where the examples come from.
        partition: How they are divided.
        n_clients: Number of clients, at least 1.
        seed: Fixes all random draws.
        hold_out: Share of its examples that each client keeps for its own evaluation, inside
            [0, 1). At least one example is left to train on. Try 0.1 to see how clients fare. A
            warning is given where clients share examples, and more than a tenth of what they keep
            is trained on by others.
        code: How each client's data becomes its code in ``features``.

    >>> from turnout.data import Iid, Synthetic
    >>> federate(Synthetic(), Iid(samples=50), n_clients=20, seed=0, hold_out=0.1).num_samples[:3]
    array([45, 45, 45])

    """
    require.instance("source", source, Source)
    return divide(source.load(seed), partition, n_clients, seed, hold_out, code)


def divide(
    dataset: Dataset,
    partition: Partition,
    n_clients: int,
    seed: int,
    hold_out: float = 0.0,
    code: ClientCode = _CODE,
) -> FederatedData:
    """Divide a dataset that is already loaded; otherwise like ``federate``.

    Args:
        dataset: The examples.
        partition: How they are divided.
        n_clients: Number of clients, at least 1.
        seed: Fixes all random draws.
        hold_out: Share of its examples that each client keeps for its own evaluation, in [0, 1).
        code: How each client's data becomes its code in ``features``.

    """
    require.instance("dataset", dataset, Dataset)
    require.instance("partition", partition, Partition)
    require.instance("code", code, ClientCode)
    require.integer("n_clients", n_clients, minimum=1)
    require.number("hold_out", hold_out, minimum=0.0, below=1.0)  # some examples are trained on
    rows, offsets = partition.assign(dataset, n_clients, Draw.DIVISION.rng(seed))
    _check_division(partition, dataset, n_clients, rows, offsets)
    kept, kept_offsets, held, held_offsets = _split(rows, offsets, hold_out, seed)
    _warn_if_seen(kept, held)
    x = dataset.x[kept]
    return FederatedData(
        name=dataset.name,
        x=x,
        y=dataset.y[kept],
        offsets=kept_offsets,
        x_holdout=dataset.x[held],
        y_holdout=dataset.y[held],
        holdout_offsets=held_offsets,
        x_test=dataset.x_test,
        y_test=dataset.y_test,
        n_classes=dataset.n_classes,
        scale=dataset.scale,
        shift=dataset.shift,
        features=_features(dataset, x, kept_offsets, code),
        client_names=_names(dataset, rows, offsets),
        words=dataset.words,
    )


def _check_division(
    partition: Partition, dataset: Dataset, n_clients: int, rows: IntArray, offsets: IntArray
) -> None:
    kind = type(partition).__name__
    size = np.diff(offsets)
    if offsets.shape != (n_clients + 1,) or offsets[0] != 0 or offsets[-1] != rows.size:
        raise InvalidInput(
            f"{kind}.assign must return offsets from 0 to the number of rows, one more than "
            f"clients ({n_clients}); got shape {offsets.shape}."
        )
    if size.min() < 1:
        empty = np.flatnonzero(size < 1)
        raise InvalidInput(
            f"n_clients: {kind} leaves {empty.size} of {n_clients} clients with no data (client "
            f"{empty[0]} is one). Lower n_clients or use more data."
        )
    if rows.min() < 0 or rows.max() >= len(dataset.y):
        raise InvalidInput(f"{kind}.assign must return rows inside 0 .. {len(dataset.y) - 1}.")


def _split(
    rows: IntArray, offsets: IntArray, share: float, seed: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return training rows and hold-out rows with their offsets."""
    size = np.diff(offsets)
    client = np.repeat(np.arange(size.size), size)
    is_held = held_back(client, share, Draw.HOLD_OUT.rng(seed))
    n_held = np.bincount(client[is_held], minlength=size.size)
    return rows[~is_held], offsets_of(size - n_held), rows[is_held], offsets_of(n_held)


def _warn_if_seen(kept: IntArray, held: IntArray) -> None:
    """Warn if clients share so many examples that the hold-out is no test of unseen ones."""
    seen = float(np.isin(held, kept).mean()) if held.size else 0.0
    if seen > _MOST_SEEN:
        warnings.warn(
            f"hold_out: {seen:.0%} of what clients hold out are training examples of others, "
            "because clients share examples. Accuracy there is not that of unseen examples: give "
            "each client fewer samples, or look at the test set.",
            stacklevel=3,  # the caller of divide
        )


def _features(dataset: Dataset, x: Array, offsets: IntArray, code: ClientCode) -> Array:
    if dataset.is_text:
        words = dataset.words or tuple(str(number) for number in range(dataset.n_classes))
        return word_codes(x, offsets, words, code)
    return mean_codes(mean_vectors(x, offsets) * dataset.scale + dataset.shift, code.bits)


def _names(dataset: Dataset, rows: IntArray, offsets: IntArray) -> tuple[str, ...]:
    """Return the group of each client, if every client is one group."""
    if dataset.group is None or not dataset.group_names:
        return ()
    group = dataset.group[rows]
    own = group[offsets[:-1]]
    is_one = np.array_equal(np.repeat(own, np.diff(offsets)), group)
    return tuple(dataset.group_names[number] for number in own) if is_one else ()


# The division of a dataset, in numbers.

#: Numbers that are processed at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Division:
    """How much each client has to train on, and of which labels.

    Args:
        sizes: (n,) number of examples of each client.
        label_counts: (n, classes) how many labels of each kind a client has; words for texts.
        skew: (n,) total variation distance between a client's labels and those of all clients:
            0 if they are the same, 1 if they have none in common.
        is_text: Whether labels are words.

    """

    sizes: IntArray
    label_counts: IntArray
    skew: FloatArray
    is_text: bool

    @property
    def n_labels(self) -> IntArray:
        """(n,) number of labels of each client; at least 1, to divide by."""
        n_labels: IntArray = np.maximum(self.label_counts.sum(axis=1), 1)
        return n_labels

    def shares(self, clients: IntArray) -> FloatArray:
        """Return (clients, classes) the share of each label among a client's labels."""
        shares: FloatArray = self.label_counts[clients] / self.n_labels[clients, None]
        return shares

    @property
    def order(self) -> IntArray:
        """(n,) all clients, similar ones side by side: by main label, or by size for texts."""
        if self.is_text:
            return np.argsort(-self.sizes, kind="stable")
        largest = self.label_counts.max(axis=1) / self.n_labels
        return np.lexsort((-largest, self.label_counts.argmax(axis=1)))

    @property
    def ordered_by(self) -> str:
        """The quantity by which ``order`` sorts."""
        return "size" if self.is_text else "main label"

    def sample(self, n_shown: int) -> IntArray:
        """Return at most ``n_shown`` clients, taken evenly from ``order``."""
        n = self.sizes.size
        return np.arange(n) if n <= n_shown else self.order[np.arange(n_shown) * n // n_shown]


def division(data: FederatedData) -> Division:
    """Return how the examples are divided.

    Args:
        data: The divided dataset.

    """
    counts = data.label_counts
    summary = Division(data.num_samples, counts, np.zeros(data.n_clients), data.is_text)
    overall = counts.sum(axis=0) / max(counts.sum(), 1)
    n_at_once = max(1, _CHUNK // data.n_classes)
    for start in range(0, data.n_clients, n_at_once):
        some = np.arange(start, min(start + n_at_once, data.n_clients))
        summary.skew[some] = 0.5 * np.abs(summary.shares(some) - overall).sum(axis=1)
    return summary
