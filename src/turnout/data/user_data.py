"""The user's own data: arrays, npz and CSV files, and any collection of examples."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np

from turnout.core import require
from turnout.core.arrays import as_array
from turnout.core.domains import CheckedFields, Finite, Flag, check_fields, own_path
from turnout.core.errors import InvalidInput
from turnout.core.names import import_object, nearest
from turnout.core.types import Array, IntArray
from turnout.data.base import Dataset, Draw, Source
from turnout.data.embedded import TestShare, held_back, parts
from turnout.data.files import Files, FileSource, Raw, numbered, read_npz

T = TypeVar("T")


#: The path of the user's own file, not empty.
OwnPath = Annotated[str, own_path("data.npz")]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays(Source):
    """The user's own arrays. The seed has no effect.

    Configuration files cannot hold arrays: use ``ArrayFile`` there.

    Args:
        x: Training examples, (N, ...). Their shape is kept: the model sees what is given here.
            The CNNs of turnout want (N, channels, height, width). Texts are (N, length) of word
            numbers.
        y: Their labels, (N,): integers from 0, or names, which are numbered in alphabetical order.
            For texts numbers of the shape of ``x``. Floats are targets of a regression.
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
        usual = 1 if y.dtype.kind == "f" else int(largest) + 1
        n = usual if self.n_classes is None else self.n_classes
        group, names = self.group, tuple[str, ...]()
        if group is not None and _is_text(np.asarray(group)):
            group, names = numbered(np.asarray(group))
        return Dataset(
            self.name, self.x, y, self.x_test, y_test, n, self.scale, self.shift, group, names
        )


@dataclass(frozen=True, slots=True)
class ArrayFile(CheckedFields, FileSource[Raw]):
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

    def dataset(self, path: Path, content: Raw, seed: int) -> Dataset:
        """Return the arrays."""
        x, y, x_test, y_test, owner, names = content
        settings = (self.n_classes, self.scale, self.shift)
        own = Arrays(x, y, x_test, y_test, *settings, owner, path.stem)
        return replace(own.load(seed), group_names=names)


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


def _is_text(values: Array) -> bool:
    kind = values.dtype.kind  # data frames hold texts as objects
    return kind == "U" or (kind == "O" and all(isinstance(value, str) for value in values.flat))


def _numbered_labels(y: Array, y_test: Array) -> tuple[IntArray, IntArray]:
    """Return labels as numbers; names are numbered over both parts, targets stay as they are."""
    if _is_text(y) and _is_text(y_test) and y.ndim == y_test.ndim == 1:
        number, _ = numbered(np.concatenate((y.astype(str), y_test.astype(str))))
        return number[: y.size], number[y.size :]
    if y.dtype.kind == y_test.dtype.kind == "f":
        return y, y_test
    for name, labels in (("y", y), ("y_test", y_test)):
        if labels.dtype.kind not in "iu":
            wanted = "hold integer labels from 0, targets, or names in both y and y_test"
            fix = f"Write {name}.astype(int), {name}.astype(str) or {name}.astype(float)"
            raise require.wrong(name, wanted, got=f"an array of {labels.dtype}. {fix}")
    return y, y_test


# The user's own table: a CSV file with one example per line.

#: What stands in the column ``test`` of an example that is not trained on.
_YES = ("1", "true", "yes", "test")

#: The texts of each column, by its heading.
_Columns = dict[str, Array]


@dataclass(frozen=True, slots=True)
class CsvFile(FileSource[_Columns]):
    """Your own table: path=data.csv,label=species.

    The first line has the headings. Each other line is an example. Every column that no setting
    names is a feature and must hold numbers.

    Args:
        path: The CSV file. It must be set.
        label: The column of the label: numbers or names, numbered in sorted order.
        group: The column that says whose example each is, of numbers or names. Then divide with
            ``Natural()``.
        ignore: Columns that are left out.
        test: The column that says which examples are for the test: 1, true, yes or test. Default:
            ``test_share`` decides.
        test_share: Share of each label's examples that is kept for the test, inside (0, 1).
        standardise: Whether each feature gets mean 0 and deviation 1 over the training examples.
        directory: The folder that a relative path starts from. Default: the current folder.

    """

    path: OwnPath = ""
    label: str = "label"
    group: str | None = None
    ignore: tuple[str, ...] = ()
    test: str | None = None
    test_share: TestShare = 0.2
    standardise: Flag = True
    directory: str | None = "."

    def __post_init__(self) -> None:
        check_fields(self)
        names: object = self.ignore
        ignore = (names,) if isinstance(names, str) else tuple(self.ignore)
        object.__setattr__(self, "ignore", ignore)

    @property
    def files(self) -> Files[_Columns]:
        """The user's file."""
        return own_file(self.path, _read_columns)

    def dataset(self, path: Path, content: _Columns, seed: int) -> Dataset:
        """Return the table."""
        x = self._features(content)
        label = _sorted_labels(content[self.label])
        if self.test is None:
            is_test = held_back(label, self.test_share, Draw.CONTENT.rng(seed))
        else:
            is_test = np.isin(np.char.lower(np.char.strip(content[self.test])), _YES)
        if self.standardise:
            x = _standardised(x, x[~is_test])
        group = None if self.group is None else content[self.group][~is_test]
        return Arrays(*parts(x, label, is_test), group=group, name=path.stem).load(seed)

    def _features(self, columns: _Columns) -> Array:
        named = [("label", self.label), ("group", self.group), ("test", self.test)]
        named += [("ignore", name) for name in self.ignore]
        for setting, name in named:
            if name is not None and name not in columns:
                raise ValueError(f"{setting}={name} is no column.{nearest(name, columns)}")
        others = {name for _, name in named}
        features = [_numbers(name, texts) for name, texts in columns.items() if name not in others]
        if not features:
            raise ValueError("it has no column of features")
        return np.stack(features, axis=1)


def _read_columns(path: Path) -> _Columns:
    with path.open(encoding="utf-8-sig", newline="") as file:
        headings, *lines = [line for line in csv.reader(file) if line] or [[]]
    if not lines:
        raise ValueError("it needs a line of headings and at least one example")
    if len(set(headings)) < len(headings):
        raise ValueError("two columns have the same heading")
    for number, line in enumerate(lines, start=2):
        if len(line) != len(headings):
            raise ValueError(f"line {number} has {len(line)} cells, not {len(headings)}")
    return dict(zip(headings, np.array(lines).T, strict=True))


def _numbers(name: str, texts: Array) -> Array:
    values = np.empty(texts.size, dtype=np.float32)
    for place, text in enumerate(texts):
        try:
            values[place] = float(text)
        except ValueError as error:
            raise ValueError(
                f"column {name} must hold numbers, got {str(text)!r} in line {place + 2}: replace "
                f"its values by numbers, leave it out with ignore={name}, or name the owners by it "
                f"with group={name}"
            ) from error
    return values


def _sorted_labels(texts: Array) -> Array:
    """Return the number of each label: 2 comes before 10, and a before b."""
    try:
        return numbered(texts.astype(np.float64))[0]
    except ValueError:
        return numbered(texts)[0]


def _standardised(x: Array, training: Array) -> Array:
    deviation = training.std(axis=0)
    deviation[deviation == 0.0] = 1.0
    standardised: Array = (x - training.mean(axis=0)) / deviation
    return standardised


#: Place or name of a part of an example.
Part = int | str


class Collection(Protocol):
    """What has a length and an example at each place, as a map-style torch ``Dataset`` has."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, place: int, /) -> Any:
        """Return an example: a pair or a mapping."""


def from_examples(
    train: Collection,
    test: Collection,
    *,
    x: Part = 0,
    y: Part = 1,
    group: Part | None = None,
    scale: float = 1.0,
    shift: float = 0.0,
    name: str = "examples",
) -> Arrays:
    """Collect examples into arrays. All must have the same shape.

    Args:
        train: Training examples. Each is a pair (x, y) or a mapping.
        test: Test examples.
        x: Place or name of what the model sees: an array, a tensor, a number of numbers or an
            image of Pillow, which becomes (channels, height, width).
        y: Place or name of the label: an integer from 0, or a name.
        group: Place or name of the owner, for ``Natural()``. Default: examples have no owner.
        scale: A model sees ``x * scale + shift``. Use 1/255 for pixels from 0 to 255.
        shift: See ``scale``.
        name: The name that results show.

    Returns:
        The source.

    Raises:
        InvalidInput: There is no such part, or shapes differ; the message names the example.

    >>> pairs = [([0.0, 1.0], "cat"), ([1.0, 0.0], "dog")]
    >>> from_examples(pairs, pairs).load(seed=0).y
    array([0, 1])

    """
    if x is None or y is None:
        raise InvalidInput(f"x and y must name parts of an example, got {x!r} and {y!r}.")
    x_train, y_train, *owner = _columns("train", train, (x, y, group))
    x_test, y_test = _columns("test", test, (x, y))
    owners = owner[0] if owner else None
    return Arrays(x_train, y_train, x_test, y_test, None, scale, shift, owners, name)


@dataclass(frozen=True, slots=True)
class Examples(Source):
    """Your own torch or Hugging Face dataset: path=module:function.

    The function takes no arguments and returns the training and the test examples: two collections
    with a length and an example at each place.

    Args:
        path: The function as ``"package.module:name"``. It must be set.
        x: Place or name of what the model sees in an example: 0, or "image".
        y: Place or name of the label.
        group: Place or name of the owner; then divide with ``Natural()``.
        scale: A model sees ``x * scale + shift``. Use 1/255 = 0.003922 for pixels.
        shift: See ``scale``.

    """

    path: str = ""
    x: Part = 0
    y: Part = 1
    group: Part | None = None
    scale: Finite = 1.0
    shift: Finite = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.path, str) or len(self.path.split(":")) != 2:
            raise require.wrong("path", "be 'module:function'", got=repr(self.path))

    def load(self, seed: int) -> Dataset:
        """Call the function and collect what it returns."""
        try:
            train, test = import_object(self.path)()
        except InvalidInput:
            raise
        except Exception as error:  # the user's own code
            raise InvalidInput(
                f"path {self.path!r} must return (train, test): {type(error).__name__}: {error}.",
                field="path",
            ) from error
        settings = asdict(self)
        name = settings.pop("path").partition(":")[2]
        return from_examples(train, test, name=name, **settings).load(seed)


def pixels(image: Any) -> Array:
    """Return an image of Pillow as (channels, height, width) of uint8.

    Args:
        image: The image, in a mode of one byte for each channel.

    """
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def _columns(which: str, examples: Collection, parts: tuple[Part | None, ...]) -> list[Array]:
    try:
        places = range(len(examples))
    except TypeError as error:
        wanted = "have a length, as a list or a map-style dataset has"
        got = f"{type(examples).__name__}: collect a stream with list(...) first"
        raise require.wrong(which, wanted, got=got) from error
    columns: list[list[Any]] = [[] for part in parts if part is not None]
    for place in places:
        example = _example(which, examples, place)
        for column, part in zip(columns, parts, strict=False):
            column.append(_part(f"{which}[{place}]", example, part))
    return [_stacked(which, column, part) for column, part in zip(columns, parts, strict=False)]


def _example(which: str, examples: Collection, place: int) -> Any:
    try:
        return examples[place]
    except LookupError as error:
        raise InvalidInput(
            f"{which} has a length of {len(examples)}, but no example {place}: of a dataset with "
            "several splits give one, such as dataset['train'].",
            field=which,
        ) from error


def _part(where: str, example: Any, part: Any) -> Any:
    try:
        value = example[part]
    except (LookupError, TypeError) as error:
        has = ", ".join(map(repr, example)) if isinstance(example, Mapping) else "a pair"
        raise InvalidInput(
            f"{where} has no part {part!r}: set x and y to names or places of its parts ({has})."
        ) from error
    return pixels(value) if hasattr(value, "getbands") else np.asarray(value)


def _stacked(which: str, values: list[Any], part: Any) -> Array:
    shapes = [value.shape for value in values]
    for place, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InvalidInput(
                f"{which}[{place}], part {part!r}, has shape {shape}, but {which}[0] has "
                f"{shapes[0]}: give all examples one shape.",
                field=which,
            )
    return np.array(values)
