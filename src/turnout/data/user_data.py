"""The user's own data: arrays in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np

from turnout.arrays import as_array
from turnout.data.base import Dataset, Source
from turnout.data.data_files import Files
from turnout.data.formats import Raw, read_npz
from turnout.domains import CheckedFields, Finite, check_fields
from turnout.errors import InvalidInput
from turnout.types import Array, IntArray

T = TypeVar("T")


def _check_path(field: str, path: object) -> None:
    if not isinstance(path, str | Path) or not str(path):
        raise InvalidInput(
            f"{field} must be set to a file, for example {field}=data.npz, got {path!r}.",
            field=field,
        )


#: The path of the user's own file, not empty.
OwnPath = Annotated[str, _check_path]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays(Source):
    """The user's own arrays. The seed has no effect.

    Configuration files cannot hold arrays: use ``ArrayFile`` there.

    Args:
        x: Training examples, (N, ...). Their shape is kept: the model sees what is given here.
            The CNNs of turnout want (N, channels, height, width). Texts are (N, length) of word
            numbers.
        y: Their labels, (N,): integers from 0, or names, which are numbered in alphabetical order.
            For texts numbers of the shape of ``x``.
        x_test: Test examples.
        y_test: Their labels.
        n_classes: Number of classes. Default: the largest label plus one, or the number of names.
        scale: A model sees ``x * scale + shift``. Use 1/255 for pixels from 0 to 255.
        shift: See ``scale``.
        group: (N,) the owner of each training example: a number from 0, or a name. ``Natural()``
            makes each owner a client.
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
    scale: Finite = 1.0
    shift: Finite = 0.0
    group: Array | None = None
    name: str = "arrays"

    def __post_init__(self) -> None:
        check_fields(self)
        self.load(0)

    def load(self, seed: int) -> Dataset:
        """Check the arrays and return them as a dataset."""
        y, y_test = _numbered_labels(as_array("y", self.y), as_array("y_test", self.y_test))
        words = (self.x, self.x_test) if y.ndim == 2 else ()
        largest = max(np.max(part, initial=0) for part in (y, y_test, *words))
        n_classes = int(largest) + 1 if self.n_classes is None else self.n_classes
        group = None if self.group is None else np.asarray(self.group)
        group_names: tuple[str, ...] = ()
        if group is not None and _is_text(group):
            group, group_names = numbered(group)
        return Dataset(
            self.name,
            as_array("x", self.x),
            y,
            as_array("x_test", self.x_test),
            y_test,
            n_classes,
            self.scale,
            self.shift,
            group=group,
            group_names=group_names,
        )


@dataclass(frozen=True, slots=True)
class ArrayFile(CheckedFields, Source):
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

    path: OwnPath = ""
    directory: str | None = "."
    n_classes: int | None = None
    scale: Finite = 1.0
    shift: Finite = 0.0
    group: str | None = None

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

    def read_file(file: Path) -> T:
        if file.is_dir():
            raise ValueError("path is a folder, but must be a file (image-folder reads folders)")
        return read(file)

    fix = "Give the path of a file that exists."
    return Files(Path(path).stem, {path: read_file}, fix, is_own=True)


def numbered(values: Array) -> tuple[IntArray, tuple[str, ...]]:
    """Return the number of each value, and the name behind each number, in alphabetical order.

    Args:
        values: Names, or anything that can be sorted.

    """
    names, number = np.unique(values, return_inverse=True)
    return number, tuple(str(name) for name in names)


def _is_text(values: Array) -> bool:
    if values.dtype.kind == "O":  # as data frames hold texts
        return all(isinstance(value, str) for value in values.flat)
    return values.dtype.kind == "U"


def _numbered_labels(y: Array, y_test: Array) -> tuple[IntArray, IntArray]:
    """Return labels as numbers; names are numbered over both parts."""
    if _is_text(y) and _is_text(y_test) and y.ndim == y_test.ndim == 1:
        number, _ = numbered(np.concatenate((y.astype(str), y_test.astype(str))))
        return number[: y.size], number[y.size :]
    for name, labels in (("y", y), ("y_test", y_test)):
        if labels.dtype.kind not in "iu":
            raise InvalidInput(
                f"{name} must hold integer labels from 0, or names in both y and y_test, got an "
                f"array of {labels.dtype}. Write {name}.astype(int) or {name}.astype(str).",
                field=name,
            )
    return y, y_test
