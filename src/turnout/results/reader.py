"""Run folders in, cells out. A cell is one selector with one seed.

``read_cell`` is strict: it returns a complete cell or raises. ``read_cells`` is forgiving: a cell
that is damaged becomes a problem and leaves the others alone. Both read with the same code.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray, IntArray
from turnout.results import files
from turnout.results.files import DamagedFile, FolderError
from turnout.results.run import (
    AVAILABLE_AT,
    AVAILABLE_BITS,
    MEASURED,
    PER_CHOICE,
    PER_ROUND,
    REPORTED,
    Run,
)
from turnout.results.settings import CellSettings

#: Columns of ``rounds.jsonl`` without which a round cannot be judged.
_REQUIRED = ("chosen", "completed", "length_s")
#: Columns of ``selections.npz`` that are computed from the run, one number per round.
_CURVES = ("regret", "bound", "backlog_mean", "backlog_max")
_INTEGERS = frozenset({"status", "n_available"})
_CELL_FILES = frozenset({files.CONFIG, files.ROUNDS, files.SELECTIONS, files.SUMMARY})
#: The forgiving reader takes larger numbers for missing: sums and squares of the others are finite.
_LARGEST = 1e30


@dataclass(frozen=True, slots=True, repr=False)
class Cell:
    """One selector with one seed, as its folder holds it.

    Attributes:
        path: The folder.
        settings: Its settings.
        versions: The versions of packages, the platform and the commit that ran it.
        summary: ``summary.json`` as it stands, of ``read_cells`` only the numbers; empty while
            incomplete.
        series: (T,) each, the columns of ``rounds.jsonl``; NaN = null.
        choices: The run in columns; None only while incomplete.
        curves: (T,) each: regret, backlog_mean, backlog_max and bound, those that are written.
        class_of: (n,) the class of each client, if the world has classes.
        scores: (n,) each: loss and accuracy of the final model by client; empty without training.
        n_rounds: Rounds that can be drawn.
        is_complete: Whether the run has ended.
    """

    path: Path
    settings: CellSettings
    versions: Mapping[str, Any]
    summary: Mapping[str, Any]
    series: Mapping[str, FloatArray]
    choices: Run | None
    curves: Mapping[str, FloatArray]
    class_of: IntArray | None
    scores: Mapping[str, FloatArray]
    n_rounds: int
    is_complete: bool

    @property
    def run(self) -> Run:
        """The run in columns; raises ``FolderError`` while no choices are written."""
        if self.choices is None:
            raise FolderError(f"{self.path} holds no choices yet: it has no {files.SELECTIONS}.")
        return self.choices

    @property
    def is_live(self) -> bool:
        """Whether real clients took part: it recorded them by name, and no world played them."""
        return not self.settings.world and (self.path / files.ANSWERS).is_file()

    @property
    def has_stopped(self) -> bool:
        """Whether the run ended before its last round because it was done."""
        return self.is_complete and self.n_rounds < self.settings.n_rounds

    def first(self, n_rounds: int) -> Cell:
        """Return the cell cut to its first rounds.

        Args:
            n_rounds: Rounds to keep.
        """
        return dataclasses.replace(
            self,
            series={name: values[:n_rounds] for name, values in self.series.items()},
            choices=self.choices and self.choices.first(n_rounds),
            curves={name: values[:n_rounds] for name, values in self.curves.items()},
            n_rounds=n_rounds,
        )

    def __repr__(self) -> str:
        """Return the cell and its progress, in one line."""
        settings = self.settings
        state = "complete" if self.is_complete else "not complete"
        return (
            f"Cell {settings.label}, seed {settings.seed}: {self.n_rounds:,} of "
            f"{settings.n_rounds:,} rounds, {state}, in {self.path}"
        )


class Problem(NamedTuple):
    """Something the reader of a report must know.

    Attributes:
        kind: damaged, incomplete, duplicate, mixed or note.
        where: The folder; empty if it is about the whole comparison.
        message: One sentence.
    """

    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.kind}: {self.where}: {self.message}" if self.where else self.message


def read_cell(path: str | os.PathLike[str]) -> Cell:
    """Return a complete cell.

    Args:
        path: The folder of the cell, such as ``runs/demo/random/seed-0``.

    Raises:
        FolderError: If the cell is not complete, or a file is damaged; the message names it.
    """
    folder = Path(path)
    if not (folder / files.SUMMARY).exists():
        raise FolderError(
            f"{folder} is not complete: it has no {files.SUMMARY}; run it again to resume."
        )
    return _read(folder)[0]


def read_cells(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Cell], list[Problem]]:
    """Return all cells under the paths that can be used, and what is wrong with the rest.

    Args:
        paths: Folders of cells, of experiments, or anything above them.

    Raises:
        InvalidInput: If a path is not a folder.
    """
    cells: list[Cell] = []
    problems: list[Problem] = []
    seen: set[Path] = set()
    for folder in (folder for path in paths for folder in cell_folders(Path(path))):
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        try:
            cell, notes = _read(folder)
        except DamagedFile as error:
            problems.append(Problem("damaged", str(folder), f"{error.brief}."))
        else:
            cells.append(_plausible(cell))
            problems += notes
    return cells, problems


def cell_folders(path: Path) -> Iterator[Path]:
    """Yield the cells under a path: folders that hold a cell's files, or are called seed-*.

    Args:
        path: A folder.

    Raises:
        InvalidInput: If it is not one.
    """
    if not path.is_dir():
        fault = "is a file" if path.exists() else "does not exist"
        raise InvalidInput(
            f"{path} {fault}: give a run folder, such as runs/NAME or runs/NAME/LABEL/seed-0."
        )
    for name, below, names in os.walk(path):
        folder = Path(name)
        if _CELL_FILES.intersection(names) or folder.name.startswith("seed-"):
            below.clear()
            yield folder
        below[:] = sorted(each for each in below if not each.startswith("."))


def _read(folder: Path) -> tuple[Cell, list[Problem]]:
    """Return a cell and notes about it; raise ``DamagedFile`` if it is unusable."""
    settings = CellSettings.read(folder / files.CONFIG)
    is_complete = (folder / files.SUMMARY).exists()
    summary = files.read_json(folder / files.SUMMARY) if is_complete else {}
    series, n_written, n_unreadable = _read_rounds(folder / files.ROUNDS, is_complete)
    choices, curves, class_of = _read_choices(folder / files.SELECTIONS, settings, is_complete)
    if is_complete:
        planned = _rounds_run(summary, settings)
        if n_written != planned:
            fault = f" holds {n_written} rounds in a row of {planned}"
            raise DamagedFile(folder / files.ROUNDS, fault)
        if choices and choices.n_rounds != planned:
            fault = f" holds {choices.n_rounds} rounds of {planned}"
            raise DamagedFile(folder / files.SELECTIONS, fault)
    n_rounds = min(n_written, choices.n_rounds) if choices else n_written
    cell = Cell(
        folder,
        settings,
        _versions(folder / files.VERSIONS),
        summary,
        series,
        choices,
        curves,
        class_of,
        _read_scores(folder / files.CLIENT_SCORES, settings.n_clients) if is_complete else {},
        n_rounds,
        is_complete,
    )
    return cell.first(n_rounds), _notes(cell, n_written, n_unreadable)


def _rounds_run(summary: Mapping[str, Any], settings: CellSettings) -> int:
    """Return the rounds of a complete run: as planned, or fewer if it stopped at its target."""
    n_run = summary.get("rounds_run", settings.n_rounds)
    is_plausible = type(n_run) is int and 1 <= n_run <= settings.n_rounds
    return n_run if is_plausible else settings.n_rounds


def _notes(cell: Cell, n_written: int, n_unreadable: int) -> list[Problem]:
    if not cell.is_complete:
        message = f"{n_written} of {cell.settings.n_rounds} rounds, no {files.SUMMARY}."
        return [Problem("incomplete", str(cell.path), message)]
    if n_unreadable:
        lines = "line" if n_unreadable == 1 else "lines"
        message = (
            f"skipped {n_unreadable} unreadable {lines} of {files.ROUNDS}; no round is missing."
        )
        return [Problem("note", str(cell.path), message)]
    return []


def _versions(path: Path) -> dict[str, Any]:
    try:
        return files.read_json(path)
    except DamagedFile as error:
        return {"unknown": error.brief}


def _read_rounds(path: Path, must_exist: bool) -> tuple[dict[str, FloatArray], int, int]:
    """Return the rounds up to the first gap by column, their number, and how many lines are none.

    A round that is written twice counts as written last.
    """
    nothing: dict[str, FloatArray] = {name: np.zeros(0) for name in _REQUIRED}
    if not (must_exist or path.exists()):
        return nothing, 0, 0
    rounds, n_unreadable = files.read_rounds(path)
    names = dict.fromkeys(name for table in rounds for name in table)
    series = nothing | {
        name: np.array([files.number(table.get(name)) for table in rounds]) for name in names
    }
    for name in _REQUIRED:
        if rounds and not np.isfinite(series[name]).any():
            raise DamagedFile(path, f" has no numbers under {name!r}")
    return series, len(rounds), n_unreadable


def _read_choices(
    path: Path, settings: CellSettings, must_exist: bool
) -> tuple[Run | None, dict[str, FloatArray], IntArray | None]:
    """Return the run, the curves that were computed from it, and the classes of the clients."""
    if not (must_exist or path.exists()):
        return None, {}, None
    columns, n_clients = files.read_arrays(path), settings.n_clients
    for name in ("offsets", *PER_CHOICE, *PER_ROUND):
        if name not in columns:
            raise DamagedFile(path, f" is not a complete .npz of a run: it has no {name}")
    _check_choices(path, columns["offsets"], columns["clients"], n_clients)
    n_rounds, n_choices = columns["offsets"].size - 1, columns["clients"].size
    for name, values in columns.items():
        if name.startswith(REPORTED) and values.ndim == 2:  # vectors that were kept
            _check_numbers(path, name, values, n_choices, "per choice", values.shape[1:])
        elif name in PER_CHOICE or name.startswith(REPORTED):
            _check_numbers(path, name, values, n_choices, "per choice")
        elif name in (*PER_ROUND, *_CURVES) or name.startswith(MEASURED):
            _check_numbers(path, name, values, n_rounds, "per round")
    class_of = columns.get("class_of")
    if class_of is not None and not (_is_index(class_of) and class_of.shape == (n_clients,)):
        raise DamagedFile(path, f": class_of is not one class for each of {n_clients} clients")
    _check_available(path, columns, n_rounds)
    curves = {name: columns[name] for name in _CURVES if name in columns}
    for name, kind in {"offsets": np.int64, **PER_CHOICE, **PER_ROUND}.items():
        columns[name] = columns[name].astype(kind, copy=False)
    return Run.from_columns(n_clients, settings.cohort_size, columns), curves, class_of


def _read_scores(path: Path, n_clients: int) -> dict[str, FloatArray]:
    """Return (n,) loss and accuracy of the final model on each client's own examples, if any."""
    if not path.exists():
        return {}
    columns = files.read_arrays(path)
    for name in ("loss", "accuracy"):
        if name not in columns:
            raise DamagedFile(path, f" is not a complete .npz of a run: it has no {name}")
        _check_numbers(path, name, columns[name], n_clients, f"for each of {n_clients} clients")
    return {name: columns[name] for name in ("loss", "accuracy")}


def _check_choices(path: Path, offsets: Array, clients: Array, n_clients: int) -> None:
    if not (_is_index(offsets) and _is_index(clients) and offsets.size >= 1):
        raise DamagedFile(path, ": offsets and clients must be columns of integers")
    is_ordered = offsets[0] == 0 and offsets[-1] == clients.size
    if not is_ordered or (offsets[1:] < offsets[:-1]).any():
        raise DamagedFile(path, f": offsets do not fit the {clients.size} choices")
    if clients.size and not (clients.min() >= 0 and clients.max() < n_clients):
        raise DamagedFile(path, f": a chosen client is outside 0 .. {n_clients - 1}")


def _check_available(path: Path, columns: Mapping[str, Array], n_rounds: int) -> None:
    bits, begins = columns.get(AVAILABLE_BITS), columns.get(AVAILABLE_AT)
    if bits is None and begins is None:  # an older turnout wrote it
        return
    if bits is None or begins is None or bits.dtype != np.uint8 or bits.ndim != 1:
        raise DamagedFile(path, f": {AVAILABLE_BITS} and {AVAILABLE_AT} do not belong together")
    is_ordered = _is_index(begins) and begins.size == n_rounds + 1 and begins[0] == 0
    if not is_ordered or begins[-1] != bits.size or (begins[1:] < begins[:-1]).any():
        raise DamagedFile(path, f": {AVAILABLE_AT} does not fit the {n_rounds} rounds")


def _check_numbers(
    path: Path, name: str, values: Array, size: int, each: str, shape: tuple[int, ...] = ()
) -> None:
    kinds = "iu" if name in _INTEGERS else "fiu"
    if values.dtype.kind not in kinds or values.shape != (size, *shape):
        raise DamagedFile(path, f": {name} is not one number {each}")


def _is_index(values: Array) -> bool:
    return values.ndim == 1 and values.dtype.kind in "iu"


def _plausible(cell: Cell) -> Cell:
    """Return a cell whose absurdly large numbers count as missing."""
    numbers = {name: files.number(value) for name, value in cell.summary.items()}
    return dataclasses.replace(
        cell,
        summary={name: value for name, value in numbers.items() if abs(value) <= _LARGEST},
        series=_limited(cell.series),
        curves=_limited(cell.curves),
        scores=_limited(cell.scores),
    )


def _limited(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    numbers = {name: values.astype(np.float64) for name, values in columns.items()}
    return {name: np.where(np.abs(n) <= _LARGEST, n, np.nan) for name, n in numbers.items()}
