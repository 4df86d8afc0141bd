"""The types of the data layer: a dataset, a way to divide it, the examples of every client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from turnout.core import require
from turnout.core.arrays import as_array
from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array, FloatArray, IntArray

#: Label of a position after the end of a text. It counts neither in training nor in tests.
PADDING = -1


class Draw(IntEnum):
    """What a random stream of the data layer is for.

    The numbers are part of every result: append new ones, never change old ones. 0 belongs to
    ``PStableLSH``.
    """

    CONTENT = 1  #: generated examples, the choice of test examples
    DIVISION = 2  #: which client gets which example
    HOLD_OUT = 3  #: which of its examples a client holds out

    def rng(self, seed: int) -> np.random.Generator:
        """Return the generator of this purpose."""
        return stream(seed, Purpose.PARTITION, int(self))


class _Labelled:
    """Examples with labels: what kind of labels they are."""

    y: Array

    @property
    def is_text(self) -> bool:
        """Whether examples are word numbers with a label at each position."""
        return self.y.ndim == 2

    @property
    def has_targets(self) -> bool:
        """Whether examples have targets of a regression in the place of labels."""
        return self.y.dtype.kind == "f"


@dataclass(frozen=True, eq=False)
class Dataset(_Labelled):
    """Examples before they are divided among clients.

    Images are (N, channels, height, width) of uint8, vectors (N, d) of float32, texts (N, length)
    of word numbers. Labels are stored as int64, those of texts as int32. Targets of a regression
    are floats in the place of labels, with one output in the place of classes.

    Args:
        name: The name that results show.
        x: Training examples.
        y: Their labels: (N,) of integers, or (N, length) for texts. The label of a text position
            is the next word, or ``PADDING`` where there is none.
        x_test: Test examples, of the same shape as those in ``x``.
        y_test: Their labels.
        n_classes: Labels are 0 .. n_classes - 1. For texts this is the size of the vocabulary.
        scale: A model sees ``x * scale + shift``. Texts are passed as they are.
        shift: See ``scale``.
        group: (N,) the number of the writer, author or role of each training example, from 0.
        group_names: The name of each group.
        words: The vocabulary of a text: the word of each number.

    """

    name: str
    x: Array
    y: IntArray
    x_test: Array
    y_test: IntArray
    n_classes: int
    scale: float = 1.0
    shift: float = 0.0
    group: IntArray | None = None
    group_names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require.integer("n_classes", self.n_classes, minimum=1)
        kinds = [as_array(name, getattr(self, name)).dtype.kind for name in ("y", "y_test")]
        if kinds.count("f") == 1:
            raise require.wrong("y_test", "hold targets or labels as y does", got="other ones")
        for end in ("", "_test"):
            x, y = (as_array(f"{name}{end}", getattr(self, f"{name}{end}")) for name in "xy")
            _check_examples(f"x{end}", x, f"y{end}", y, self.n_classes)
            x = x.astype(np.float32, copy=False) if x.dtype.kind == "f" else x
            kind = np.float32 if y.dtype.kind == "f" else np.int64 if y.ndim == 1 else np.int32
            y = y.astype(kind, copy=False)
            object.__setattr__(self, f"x{end}", x)
            object.__setattr__(self, f"y{end}", y)
        if self.y.shape[0] == 0:
            raise require.wrong("x", "hold at least one training example", got="none")
        if self.x_test.shape[1:] != self.x.shape[1:] or self.y_test.ndim != self.y.ndim:
            wanted = f"hold examples of the shape of x, {self.x.shape[1:]}"
            raise require.wrong("x_test", wanted, got=f"{self.x_test.shape[1:]}")
        if self.group is not None:
            object.__setattr__(self, "group", self._checked_group(as_array("group", self.group)))
        if self.words and len(self.words) != self.n_classes:
            raise require.wrong("words", f"name all {self.n_classes} classes", len(self.words))

    def _checked_group(self, group: Array) -> IntArray:
        n = self.y.shape[0]
        if group.dtype.kind not in "iu" or group.shape != (n,) or group.min() < 0:
            wanted = f"hold the number of a group, from 0, for each of the {n} examples"
            raise require.wrong("group", wanted, got=f"shape {group.shape} of {group.dtype}")
        if self.group_names and group.max() >= len(self.group_names):
            wanted = f"name every group up to {group.max()}"
            raise require.wrong("group_names", wanted, got=f"{len(self.group_names)} names")
        return group.astype(np.int64, copy=False)


#: Who gets which examples: client i gets ``rows[offsets[i]:offsets[i + 1]]`` of ``rows, offsets``.
Assignment = tuple[IntArray, IntArray]


class Source(ABC):
    """Where a dataset comes from. A subclass is a frozen dataclass of plain settings."""

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Return the dataset.

        Args:
            seed: Fixes which examples are generated and which are kept for the test.

        """

    def find(self) -> Path | None:
        """Return the file or folder that ``load`` reads, or None if it reads none.

        Raises:
            DataMissing: The data directory does not hold it.

        """
        return None


class Partition(ABC):
    """How examples are divided among clients. A subclass is a frozen dataclass of settings."""

    @abstractmethod
    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Return who gets which examples: ``rows, offsets``.

        Args:
            dataset: The examples to divide.
            n_clients: How many clients share them.
            rng: The source of all random draws.

        """


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData(_Labelled):
    """The examples of every client, one client after the other.

    Client i trains on rows ``offsets[i] .. offsets[i + 1] - 1`` of ``x`` and ``y``. Its hold-out
    rows start at ``holdout_offsets[i]`` of ``x_holdout``. They are never trained on: they serve to
    evaluate each client. ``divide`` and ``federate`` build this class.

    Args:
        name: The name of the dataset.
        x: Training examples of all clients.
        y: Their labels.
        offsets: (n + 1,) where the rows of each client begin.
        x_holdout: Hold-out examples of all clients.
        y_holdout: Their labels.
        holdout_offsets: (n + 1,) where the hold-out rows of each client begin.
        x_test: Test examples of the whole federation.
        y_test: Their labels.
        n_classes: Labels are 0 .. n_classes - 1. For texts this is the size of the vocabulary.
        scale: A model sees ``x * scale + shift``.
        shift: See ``scale``.
        features: (n, bits) the hash code of each client's data.
        client_names: (n,) the writer, author or role behind each client; empty if unknown.
        words: The vocabulary of a text: the word of each number.

    """

    name: str
    x: Array
    y: IntArray
    offsets: IntArray
    x_holdout: Array
    y_holdout: IntArray
    holdout_offsets: IntArray
    x_test: Array
    y_test: IntArray
    n_classes: int
    scale: float = 1.0
    shift: float = 0.0
    features: Array | None = None
    client_names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return self.offsets.size - 1

    @property
    def num_samples(self) -> IntArray:
        """(n,) number of training examples of each client."""
        return np.diff(self.offsets)

    @property
    def has_holdout(self) -> bool:
        """Whether clients keep examples for evaluation."""
        return len(self.x_holdout) > 0

    @property
    def share(self) -> FloatArray:
        """(n,) share of all training examples, p_k of the papers."""
        return self.num_samples / int(self.offsets[-1])

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example as a model sees it."""
        return tuple(self.x.shape[1:])

    @property
    def label_counts(self) -> IntArray:
        """(n, classes) how many training labels of each kind a client has; words for texts.

        Targets of a regression are of one kind.
        """
        if self.has_targets:
            return self.num_samples[:, None]
        client = np.repeat(np.arange(self.n_clients), self.num_samples)
        labels = self.y.reshape(client.size, -1)
        key = (client[:, None] * self.n_classes + labels)[labels != PADDING]
        counts = np.bincount(key, minlength=self.n_clients * self.n_classes)
        return counts.reshape(self.n_clients, self.n_classes)

    def __repr__(self) -> str:
        """Return the sizes in a few lines."""
        sizes = self.num_samples
        return (
            f"FederatedData {self.name}: {self.n_clients:,} clients, {len(self.x):,} examples of "
            f"shape {self.example_shape}, {self.n_classes:,} classes\n"
            f"  {sizes.min():,} to {sizes.max():,} per client, median {np.median(sizes):,.0f}\n"
            f"  {len(self.x_holdout):,} held out by clients, {len(self.x_test):,} in the test set"
        )


def _check_examples(x_name: str, x: Array, y_name: str, y: Array, n_classes: int) -> None:
    if x.dtype.kind not in "iuf" or x.ndim < 2:
        raise InvalidInput(
            f"{x_name} must be numbers of shape (N, ...), such as (N, d) or (N, channels, height, "
            f"width), for texts (N, length); got shape {x.shape} of {x.dtype}.",
            field=x_name,
        )
    is_target = y.dtype.kind == "f" and y.ndim == 1
    if (y.dtype.kind not in "iu" and not is_target) or y.ndim not in (1, 2) or len(y) != len(x):
        wanted = f"hold an integer label for each of the {len(x)} examples of {x_name}"
        raise require.wrong(y_name, wanted, got=f"shape {y.shape} of {y.dtype}")
    if is_target and n_classes != 1:
        wanted = "be 1, the number of outputs, where y holds targets of a regression"
        raise require.wrong("n_classes", wanted, n_classes)
    if is_target and not np.isfinite(y).all():
        raise require.wrong(y_name, "be finite", got="NaN or infinity: clean the data first")
    is_text, is_float = y.ndim == 2, x.dtype.kind == "f"
    if is_text and y.shape != x.shape:
        raise require.wrong(y_name, f"have the shape of {x_name}, {x.shape}", y.shape)
    inside = f"inside 0 .. {n_classes - 1} (n_classes is {n_classes})"
    if is_text and (is_float or x.min(initial=0) < 0 or x.max(initial=0) >= n_classes):
        raise InvalidInput(f"{x_name} must hold word numbers {inside}.", field=x_name)
    if y.size and not is_target and (y.min() < (PADDING if is_text else 0) or y.max() >= n_classes):
        raise require.wrong(y_name, f"be {inside}", got=f"{y.min()} .. {y.max()}")
    if is_float and not np.isfinite(x).all():
        raise require.wrong(x_name, "be finite", got="NaN or infinity: clean the data first")
