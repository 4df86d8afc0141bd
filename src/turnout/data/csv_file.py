"""The user's own table: one example in each line of a CSV file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.data.base import Dataset, Draw, Source
from turnout.data.data_files import Files
from turnout.data.embedded import TestShare, held_back
from turnout.data.user_data import Arrays, OwnPath, numbered, own_file
from turnout.domains import Flag, check_fields
from turnout.names import nearest
from turnout.types import Array, BoolArray

#: What stands in the column ``test`` of an example that is not trained on.
_YES = ("1", "true", "yes", "test")

#: The texts of each column, by its heading.
_Columns = dict[str, Array]


@dataclass(frozen=True, slots=True)
class CsvFile(Source):
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
        object.__setattr__(
            self, "ignore", (names,) if isinstance(names, str) else tuple(self.ignore)
        )

    @property
    def files(self) -> Files[_Columns]:
        """The user's file."""
        return own_file(self.path, _read_columns)

    def find(self) -> Path:
        """Return the file."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read the table."""
        path, columns = self.files.read(self.directory)
        with self.files.reading(path):
            self._check_names(columns)
            x = self._features(columns)
            label = _sorted_labels(columns[self.label])
            is_test = self._is_test(columns, label, seed)
            if self.standardise:
                x = _standardised(x, x[~is_test])
            group = None if self.group is None else columns[self.group][~is_test]
            own = Arrays(
                x[~is_test],
                label[~is_test],
                x[is_test],
                label[is_test],
                group=group,
                name=path.stem,
            )
            return own.load(seed)

    def _check_names(self, columns: _Columns) -> None:
        settings = {"label": self.label, "group": self.group, "test": self.test}
        wanted = [*settings.items(), *(("ignore", name) for name in self.ignore)]
        for setting, name in wanted:
            if name is not None and name not in columns:
                raise ValueError(f"{setting}={name} is no column.{nearest(name, columns)}")

    def _features(self, columns: _Columns) -> Array:
        others = {self.label, self.group, self.test, *self.ignore}
        features = [_numbers(name, texts) for name, texts in columns.items() if name not in others]
        if not features:
            raise ValueError("it has no column of features")
        return np.stack(features, axis=1)

    def _is_test(self, columns: _Columns, label: Array, seed: int) -> BoolArray:
        if self.test is None:
            return held_back(label, self.test_share, Draw.CONTENT.rng(seed))
        return np.isin(np.char.lower(np.char.strip(columns[self.test])), _YES)


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
