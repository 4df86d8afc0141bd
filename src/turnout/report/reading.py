"""Run folders in, cells out: a damaged cell becomes a problem and leaves the others alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from turnout.errors import InvalidInput
from turnout.names import shortened
from turnout.report.files import (
    Choices,
    Damaged,
    number,
    read_choices,
    read_object,
    read_rounds,
    read_scores,
)
from turnout.types import FloatArray

__all__ = ["FORMAT", "Cell", "CellSettings", "Problem", "read_cells"]

#: Version of the run-folder format; a larger number was written by a newer turnout.
FORMAT = 1

#: Plausible size of a federation: larger numbers are taken for damage, not for memory.
_MOST_CLIENTS = 100_000_000
_CELL_FILES = frozenset({"config.json", "rounds.jsonl", "selections.npz", "summary.json"})


class Problem(NamedTuple):
    """Something the reader of the report must know."""

    kind: str  #: damaged, incomplete, duplicate, mixed or note
    where: str
    message: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.kind}: {self.where}: {self.message}" if self.where else self.message


@dataclass(frozen=True, slots=True)
class CellSettings:
    """What made a cell: ``config.json``."""

    experiment: str
    kind: str
    label: str
    selector: str
    parameters: Mapping[str, Any]
    seed: int
    n_clients: int
    cohort_size: int
    n_rounds: int
    world: Mapping[str, Any]
    world_id: str
    policy: Mapping[str, Any]
    classes: Mapping[str, Any]  #: names and what they mean; empty if there are none
    training: Mapping[str, Any]  #: what was trained; empty for a simulation

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Check and keep what the report uses."""
        version = config.get("format", FORMAT)
        if type(version) is int and version > FORMAT:
            raise Damaged(
                f"config.json has format {version}, this turnout reads up to {FORMAT}: "
                "upgrade turnout"
            )
        label = _text(config, "label")
        return cls(
            experiment=_text(config, "experiment", ""),
            kind=_text(config, "kind", "simulation"),
            label=label,
            selector=_text(config, "selector", label),
            parameters=_object(config, "parameters"),
            seed=_integer(config, "seed", 0),
            n_clients=_integer(config, "n_clients", 1, _MOST_CLIENTS),
            cohort_size=_integer(config, "cohort_size", 1),
            n_rounds=_integer(config, "n_rounds", 1),
            world=_object(config, "world"),
            world_id=_text(config, "world_id"),
            policy=_object(config, "policy"),
            classes=_object(config, "classes"),
            training=_object(config, "training"),
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One selector variant with one seed."""

    path: Path
    settings: CellSettings
    versions: Mapping[str, Any]
    summary: Mapping[str, float]  #: the numbers of summary.json; empty while incomplete
    series: Mapping[str, FloatArray]  #: (T,) each, the columns of rounds.jsonl
    choices: Choices | None  #: None only while incomplete
    n_rounds: int  #: rounds that can be drawn
    is_complete: bool
    #: (n,) each: loss and accuracy of the final model by client; empty without training
    scores: Mapping[str, FloatArray]

    @property
    def has_stopped(self) -> bool:
        """Whether the run ended before its last round because it was done."""
        return self.is_complete and self.n_rounds < self.settings.n_rounds

    def first(self, n_rounds: int) -> Cell:
        """Return the cell cut to its first rounds."""
        return dataclasses.replace(
            self,
            series={name: values[:n_rounds] for name, values in self.series.items()},
            choices=self.choices and self.choices.first(n_rounds),
            n_rounds=n_rounds,
        )


def read_cells(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Cell], list[Problem]]:
    """Return all cells under the paths that can be used, and what is wrong with the rest."""
    cells: list[Cell] = []
    problems: list[Problem] = []
    seen: set[Path] = set()
    for folder in (folder for path in paths for folder in _folders(Path(path))):
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        try:
            cell, notes = _read_cell(folder)
        except Damaged as error:
            problems.append(Problem("damaged", str(folder), f"{error}."))
        else:
            cells.append(cell)
            problems += notes
    return cells, problems


def _folders(path: Path) -> Iterator[Path]:
    """Yield the cells under a path: folders that hold a cell's files, or are called seed-*."""
    if not path.is_dir():
        fault = "is a file" if path.exists() else "does not exist"
        raise InvalidInput(
            f"{path} {fault}: give a run folder, such as runs/NAME or runs/NAME/LABEL/seed-0."
        )
    for name, below, files in os.walk(path):
        folder = Path(name)
        if _CELL_FILES.intersection(files) or folder.name.startswith("seed-"):
            below.clear()
            yield folder
        below[:] = sorted(one for one in below if not one.startswith("."))


def _read_cell(folder: Path) -> tuple[Cell, list[Problem]]:
    settings = CellSettings.from_json(read_object(folder / "config.json"))
    is_complete = (folder / "summary.json").exists()
    summary = read_object(folder / "summary.json") if is_complete else {}
    has_rounds = is_complete or (folder / "rounds.jsonl").exists()
    has_choices = is_complete or (folder / "selections.npz").exists()
    rounds = read_rounds(folder / "rounds.jsonl") if has_rounds else None
    choices = read_choices(folder / "selections.npz", settings.n_clients) if has_choices else None
    n_written = rounds.n_rounds if rounds else 0
    planned = _rounds_run(summary, settings)
    if is_complete and n_written != planned:
        raise Damaged(f"rounds.jsonl holds {n_written} rounds in a row of {planned}")
    if is_complete and choices and choices.n_rounds != planned:
        raise Damaged(f"selections.npz holds {choices.n_rounds} rounds of {planned}")
    has_scores = is_complete and (folder / "client_scores.npz").exists()
    scores = read_scores(folder / "client_scores.npz", settings.n_clients) if has_scores else {}
    n_rounds = min(n_written, choices.n_rounds) if choices else n_written
    cell = Cell(
        folder,
        settings,
        _versions(folder),
        {name: number(value) for name, value in summary.items()},
        rounds.series if rounds else {},
        choices,
        n_rounds,
        is_complete,
        scores,
    )
    return cell.first(n_rounds), _notes(cell, n_written, rounds.n_unreadable if rounds else 0)


def _rounds_run(summary: Mapping[str, Any], settings: CellSettings) -> int:
    """Return the rounds of a complete run: as planned, or fewer if it stopped at its target."""
    run = summary.get("rounds_run", settings.n_rounds)
    return run if type(run) is int and 1 <= run <= settings.n_rounds else settings.n_rounds


def _notes(cell: Cell, n_written: int, n_unreadable: int) -> list[Problem]:
    where, notes = str(cell.path), []
    if not cell.is_complete:
        message = f"{n_written} of {cell.settings.n_rounds} rounds, no summary.json."
        notes.append(Problem("incomplete", where, message))
    elif n_unreadable:
        lines = "line" if n_unreadable == 1 else "lines"
        message = f"skipped {n_unreadable} unreadable {lines} of rounds.jsonl; no round is missing."
        notes.append(Problem("note", where, message))
    return notes


def _versions(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / "versions.json")
    except Damaged as error:
        return {"unknown": str(error)}


def _text(config: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = config.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        raise Damaged(f"config.json: {key} must be text, got {shortened(repr(value), 40)}")
    return value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written


def _integer(config: Mapping[str, Any], key: str, minimum: int, maximum: int = 2**63) -> int:
    value = config.get(key)
    if type(value) is not int or not minimum <= value <= maximum:
        raise Damaged(
            f"config.json: {key} must be an integer >= {minimum}, got {shortened(repr(value), 40)}"
        )
    return value


def _object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise Damaged(f"config.json: {key} must be an object, got {shortened(repr(value), 40)}")
    return value or {}
