"""The user's own data: arrays in memory or in a file."""

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
    """The user's own arrays. The seed has no effect.

    Configuration files cannot hold arrays: use ``ArrayFile`` there.

    Args:
        x: Training examples. Images are (N, channels, height, width) or (N, height, width), vectors
            (N, d), texts (N, length) of word numbers.
        y: Their labels: integers from 0, (N,), or of the shape of ``x`` for texts.
        x_test: Test examples.
        y_test: Their labels.
        n_classes: Number of classes. Default: the largest label plus one.
        scale: A model sees ``x * scale + shift``. Use 1/255 for pixels from 0 to 255.
        shift: See ``scale``.
        group: (N,) the number of the owner of each training example, from 0. ``Natural()`` makes
            each owner a client.
        name: The name that results show.

    >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    >>> Arrays(x, y, x, y).load(seed=0).n_classes
    2

    """

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    n_classes: int | None = None
    scale: float = 1.0
    shift: float = 0.0
    group: Array | None = None
    name: str = "arrays"

    def __post_init__(self) -> None:
        require.number("scale", self.scale)
        require.number("shift", self.shift)
        self.load(0)

    def load(self, seed: int) -> Dataset:
        """Check the arrays and return them as a dataset."""
        y, y_test = (_integer_labels(name, getattr(self, name)) for name in ("y", "y_test"))
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

    The file holds the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``, of the form that
    ``Arrays`` takes. Write it with ``np.savez(path, x_train=x, ...)``.

    Args:
        path: The npz file. It must be set.
        directory: The folder that a relative path starts from. Default: the current folder.
        n_classes: Number of classes. Default: the largest label plus one.
        scale: A model sees ``x * scale + shift``. Use 1/255 = 0.003922 for pixels.
        shift: See ``scale``.
        group: Which further array says whose example each is: ``"writer"`` reads the array
            ``writer_train``, of numbers or names. Then divide with ``Natural()``.

    """

    path: str = ""
    directory: str | None = "."
    n_classes: int | None = None
    scale: float = 1.0
    shift: float = 0.0
    group: str | None = None

    def __post_init__(self) -> None:
        check_path(self.path)
        require.number("scale", self.scale)
        require.number("shift", self.shift)

    @property
    def files(self) -> Files[Raw]:
        """The user's file."""
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
    """Return the single form of a file that the user made.

    Args:
        path: The file.
        read: Reads it.

    """
    fix = "Give the path of a file that exists."
    return Files(Path(path).stem, {path: read}, fix, is_own=True)


def check_path(path: str) -> None:
    """Refuse a source without a file.

    Args:
        path: Must not be empty.

    """
    if not isinstance(path, str | Path) or not str(path):
        raise InvalidInput(
            f"path must be set to a file, for example path=data.npz, got {path!r}.", field="path"
        )


def _with_channel(x: Array) -> Array:
    return x[:, None] if x.ndim == 3 else x


def _integer_labels(name: str, labels: Array) -> Array:
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise InvalidInput(
            f"{name} must hold integer labels from 0, got an array of {array.dtype}. Replace other "
            f"values by numbers, for example np.searchsorted(np.unique(y), {name}).",
            field=name,
        )
    return array
