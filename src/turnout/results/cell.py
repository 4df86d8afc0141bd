"""A cell: one selector with one seed, read back from its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.core.types import FloatArray, IntArray
from turnout.results import files
from turnout.results.files import FolderError
from turnout.results.run import Run
from turnout.results.settings import CellSettings


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
