"""Run folders: what is written for a cell, and how it is read back.

A cell is one selector with one seed. ``summary.json`` is written last: its presence means that the
cell is complete. ``progress.npz`` is written last of a checkpoint and holds digests of the other
files, so that a checkpoint torn by a crash is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.runs.columns import MEASURED, PER_CHOICE, PER_ROUND
from turnout.runs.files import (
    CONFIG,
    SELECTIONS,
    SUMMARY,
    DamagedFile,
    FolderError,
    read_arrays,
    read_json,
)
from turnout.runs.run import Run
from turnout.types import Array

__all__ = ["Cell", "read_cell"]


@dataclass(frozen=True)
class Cell:
    """A complete cell, read back."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    columns: dict[str, Array]

    @property
    def run(self) -> Run:
        """The run in columns."""
        config = self.config
        return Run.from_columns(config["n_clients"], config["cohort_size"], self.columns)


def read_cell(path: Path) -> Cell:
    """Return a complete cell, or raise ``FolderError`` naming the file that is damaged."""
    if not (path / SUMMARY).exists():
        raise FolderError(f"{path} is not complete: it has no {SUMMARY}; run it again to go on.")
    cell = Cell(
        path, read_json(path / CONFIG), read_json(path / SUMMARY), read_arrays(path / SELECTIONS)
    )
    try:
        _check_columns(cell.run)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedFile(path / SELECTIONS, f" is damaged ({error})") from error
    return cell


def _check_columns(run: Run) -> None:
    """Raise if columns of a run do not fit together."""
    sizes = {name: getattr(run, name).shape for name in (*PER_CHOICE, *PER_ROUND)}
    n_choices, n_rounds = int(run.offsets[-1]), run.n_rounds
    sizes |= {f"{MEASURED}{name}": values.shape for name, values in run.measured.items()}
    for name, shape in sizes.items():
        expected = (n_choices,) if name in PER_CHOICE else (n_rounds,)
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}, expected {expected}")
