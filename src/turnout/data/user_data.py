"""Data of the user's own: arrays in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from turnout import require
from turnout.data.base import Dataset, Source
from turnout.data.data_files import Files
from turnout.data.formats import Raw, read_npz
from turnout.errors import InvalidInput
from turnout.types import Array

__all__ = ["ArrayFile", "Arrays", "check_path", "own_file"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Arrays(Source):
    """The user's own arrays; the seed plays no part.

    Images are (N, channels, height, width) or (N, height, width), vectors (N, d), texts (N, length)
    of word numbers with ``y`` of the same shape. ``group`` says whose example each is, for
    ``Natural()``. Configuration files cannot hold arrays: use ``ArrayFile`` there.

    >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    >>> Arrays(x, y, x, y).load(seed=0).n_classes
    2
    """

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    n_classes: int | None = None  #: default: the largest label plus one
    scale: float = 1.0  #: a model sees x * scale + shift
    shift: float = 0.0
    group: Array | None = None
    name: str = "arrays"

    def __post_init__(self) -> None:
        require.number("scale", self.scale)
        require.number("shift", self.shift)
        self.load(0)

    def load(self, seed: int) -> Dataset:
        """Return the arrays as a dataset, checked."""
        y, y_test = np.asarray(self.y), np.asarray(self.y_test)
        words = (self.x, self.x_test) if y.ndim == 2 else ()
        largest = max(np.max(part, initial=0) for part in (y, y_test, *words))
        n_classes = int(largest) + 1 if self.n_classes is None else self.n_classes
        return Dataset(
            self.name,
            _with_channel(np.asarray(self.x)),
            y,
            _with_channel(np.asarray(self.x_test)),
            y_test,
            n_classes,
            self.scale,
            self.shift,
            group=self.group,
        )


@dataclass(frozen=True, slots=True)
class ArrayFile(Source):
    """Your own arrays in a file: path=data.npz.

    It holds ``x_train``, ``y_train``, ``x_test`` and ``y_test`` as ``Arrays`` takes them, and with
    ``group`` also an array of that name with ``_train`` behind it: whose example each is.
    """

    path: str = ""  #: the npz file
    directory: str | None = "."  #: where the path starts
    n_classes: int | None = None  #: default: the largest label plus one
    scale: float = 1.0  #: a model sees x * scale + shift; 1/255 = 0.003922 for pixels
    shift: float = 0.0
    group: str | None = None  #: e.g. "writer" for the array writer_train

    def __post_init__(self) -> None:
        check_path(self.path)
        require.number("scale", self.scale)
        require.number("shift", self.shift)

    @property
    def files(self) -> Files[Raw]:
        """Where the file is."""
        return own_file(self.path, partial(read_npz, owner=self.group))

    def find(self) -> Path:
        """Return the file."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read the arrays."""
        path, raw = self.files.read(self.directory)
        with self.files.reading(path):
            own = Arrays(
                raw.x,
                raw.y,
                raw.x_test,
                raw.y_test,
                self.n_classes,
                self.scale,
                self.shift,
                raw.owner,
                path.stem,
            )
            return replace(own.load(seed), group_names=raw.owner_names)


def own_file(path: str, read: Callable[[Path], T]) -> Files[T]:
    """Return the one form of a file of the user's own."""
    fix = "Give the path of a file that exists."
    return Files(Path(path).stem, {path: read}, fix, is_own=True)


def check_path(path: str) -> None:
    """Refuse a source that names no file."""
    if not isinstance(path, str | Path) or not str(path):
        raise InvalidInput(f"path must name a file, got {path!r}.", field="path")


def _with_channel(x: Array) -> Array:
    return x[:, None] if x.ndim == 3 else x
