"""The results of runs: cells, tables, means and differences."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import import_extra, nearest
from turnout.results import files
from turnout.results.catalogue import all_metrics
from turnout.results.groups import WorldGroup, gather, refuse_mixed
from turnout.results.metric import Facts, Metric
from turnout.results.reader import Cell, Problem, read_cells
from turnout.results.run import PER_CHOICE, STATUSES
from turnout.results.scores import Across, Difference, Numbers, Scores, known_label, numbers_of
from turnout.results.statistics import Estimate
from turnout.results.tables import mean_table, usual_metrics

if TYPE_CHECKING:
    import pandas

# --------------------------------------------------------------------------------------------------
# Cells as tidy data frames of pandas: one row for each cell, round or choice.
# --------------------------------------------------------------------------------------------------


def _identity(cell: Cell) -> dict[str, Any]:
    settings = cell.settings
    return {
        "experiment": settings.experiment,
        "world": settings.world_id,
        "label": settings.label,
        "seed": settings.seed,
    }


def cell_row(cell: Cell) -> dict[str, Any]:
    """Return a cell in one row: its settings, the parameters of its selector, and all metrics.

    Args:
        cell: A cell, as it was read.
    """
    settings, number = cell.settings, numbers_of(cell)
    own = ("selector", "kind", "n_clients", "cohort_size", "n_rounds")
    return {
        **_identity(cell),
        **{name: getattr(settings, name) for name in own},
        "rounds_done": cell.n_rounds,
        "is_complete": cell.is_complete,
        **{f"parameter.{name}": value for name, value in settings.parameters.items()},
        **{metric.key: number(metric) for metric in all_metrics(settings.targets)},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    row = cell_row(cell) | {"folder": str(cell.path)}
    return {name: [value] for name, value in row.items()}


def _rounds(cell: Cell) -> dict[str, Any]:
    """Return one row per round: what ``rounds.jsonl`` says, the curves, and the virtual clock."""
    clock = np.cumsum(cell.series["length_s"])
    return {"round": np.arange(cell.n_rounds), "clock_s": clock, **cell.series, **cell.curves}


def _choices(cell: Cell) -> dict[str, Any]:
    """Return one row per chosen client; none where the choices are not written yet."""
    if cell.choices is None:
        return {"round": np.zeros(0, np.int64)}
    run = cell.choices
    rounds = np.repeat(np.arange(run.n_rounds), np.diff(run.offsets))
    columns = {name: getattr(run, name) for name in PER_CHOICE}
    return {"round": rounds, **columns, "status": np.array(STATUSES)[run.status]}


#: How the columns of a cell are made, by table.
FRAMES: Mapping[str, Callable[[Cell], dict[str, Any]]] = {
    "cells": _cell,
    "rounds": _rounds,
    "choices": _choices,
}

#: What to do about runs of several worlds.
_ONE_WORLD = "Take one of results.worlds and ask its scores, or open the folders one at a time."


@dataclass(frozen=True)
class CellResult:
    """How a run ended.

    Attributes:
        path: The folder of its cell.
        label: The selector's label.
        seed: The seed.
        status: "complete" from the start, "resumed" from a checkpoint, "skipped" because it was
            complete, "damaged" if its folder cannot be used, "failed" if the run raised an error.
        summary: The numbers of ``summary.json``; None without a result.
        message: What went wrong, or a remark about the result.
    """

    path: Path
    label: str
    seed: int
    status: Literal["complete", "resumed", "skipped", "damaged", "failed"]
    summary: Mapping[str, Any] | None = None
    message: str = ""


class Results:
    """The results of runs: of an experiment that was just run, or of run folders.

    The numbers of an experiment that just ran are in memory. Its cells are read from their
    folders on first use.

    Args:
        cells: Cells that were read; None reads those of ``runs`` later.
        problems: What is wrong with cells that could not be read.
        runs: How each run ended.
        notes: Notes about the folder.
        folder: Where the runs are.

    Attributes:
        runs: How each run ended, in the order of selectors and seeds; empty for run folders that
            were only read.
        notes: Notes about the folder: which runs were reused, resumed or repeated.
        folder: Where the runs are; None if they are in memory only, or in several folders.
    """

    def __init__(
        self,
        cells: Iterable[Cell] | None = None,
        problems: Iterable[Problem] = (),
        *,
        runs: Iterable[CellResult] = (),
        notes: Iterable[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.notes = tuple(notes)
        self.folder = folder
        self._read = None if cells is None else (tuple(cells), tuple(problems))

    @functools.cached_property
    def _content(self) -> tuple[tuple[Cell, ...], tuple[WorldGroup, ...], tuple[Problem, ...]]:
        """Return all cells, their worlds, and what a reader must know about them."""
        complete = (run.path for run in self.runs if run.summary is not None)
        cells, problems = self._read or read_cells(complete)
        worlds, remarks = gather(cells)
        return tuple(cells), tuple(worlds), (*problems, *remarks)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells that can be read, those included that are not complete."""
        return self._content[0]

    @property
    def worlds(self) -> tuple[WorldGroup, ...]:
        """The cells that compare, world by world.

        A world with a complete cell leaves out those that are not; without one, all are cut to the
        round that all reached.
        """
        return self._content[1]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a reader must know: cells that are damaged, missing seeds, few seeds."""
        return self._content[2]

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """Runs without a result."""
        return tuple(run for run in self.runs if run.summary is None)

    @property
    def remarks(self) -> tuple[CellResult, ...]:
        """Runs with a result that needs a remark."""
        return tuple(run for run in self.runs if run.summary is not None and run.message)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the selectors, in the order of their experiments."""
        return tuple(dict.fromkeys(name for scores in self._scores for name in scores.labels))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of the metrics that a ``summary.json`` has, in the order of the catalogue."""
        written = {key for run in self.runs for key in run.summary or ()}
        written |= {key for cell in self.cells for key in cell.summary}
        targets = sorted({target for cell in self.cells for target in cell.settings.targets})
        return tuple(metric.key for metric in all_metrics(targets) if metric.key in written)

    @functools.cached_property
    def _scores(self) -> tuple[Scores, ...]:
        """The numbers of each world; a selector all of whose runs failed has none."""
        if not self.runs:
            return tuple(world.scores for world in self.worlds)
        numbers: dict[Path, dict[str, dict[int, Numbers]]] = {}
        for run in self.runs:
            by_seed = numbers.setdefault(run.path.parents[1], {}).setdefault(run.label, {})
            if run.summary is not None:
                by_seed[run.seed] = functools.partial(self._number, run.path, run.summary)
        return tuple(Scores(each) for each in numbers.values())

    def _number(self, path: Path, summary: Mapping[str, Any], metric: Metric[Facts]) -> float:
        """Return a number of a run: what its summary says, else what its rounds say."""
        if metric.key in summary:
            return files.number(summary[metric.key])
        cell = next((cell for cell in self.cells if cell.path == path), None)
        return math.nan if cell is None else numbers_of(cell)(metric)

    @property
    def scores(self) -> Scores:
        """The numbers of the selectors.

        Raises:
            InvalidInput: The runs are of several worlds, whose numbers do not compare.
        """
        if len(self._scores) > 1:
            refuse_mixed(self.worlds, _ONE_WORLD)
        return self._scores[0]

    def estimate(self, metric: str) -> dict[str, Estimate]:
        """Return the mean over seeds with its 95 % interval, by label.

        Args:
            metric: The key of a metric, such as ``accuracy``; see ``metrics``.

        Raises:
            InvalidInput: There is no such metric, or the runs are of several worlds.
        """
        return self.scores.estimate(metric)

    def difference(self, metric: str, baseline: str) -> dict[str, Difference]:
        """Return how far the others are from a baseline, paired by seed, by label.

        Args:
            metric: The key of a metric.
            baseline: The label of a selector; see ``labels``.

        Raises:
            InvalidInput: There is no such metric or label, or the runs are of several worlds.
        """
        return self.scores.difference(metric, baseline)

    @property
    def across(self) -> Across:
        """The selectors over all worlds: robust means, chances to be better, profiles."""
        return Across(self._scores)

    def only(self, labels: Collection[str]) -> Results:
        """Return the results of some selectors.

        Args:
            labels: Their labels, as in ``config.json``.

        Raises:
            InvalidInput: There is no such label, or nothing is left.
        """
        there = dict.fromkeys(cell.settings.label for cell in self.cells)
        for label in labels:
            known_label(label, there)
        cells = tuple(cell for cell in self.cells if cell.settings.label in labels)
        results = Results(cells)
        if not results.worlds:
            raise InvalidInput(f"there is no run of {', '.join(labels)}.", field="labels")
        return results

    def in_memory(self) -> Results:
        """Return the same results with all cells read, so that they need no folder any more."""
        return Results(*self._content[::2], runs=self.runs, notes=self.notes)

    def to_frame(self, table: str = "cells") -> pandas.DataFrame:
        """Return a tidy table, one row for each cell, round or choice.

        Every row says which cell it is of: ``experiment``, ``world``, ``label`` and ``seed``.

        Args:
            table: ``cells``, ``rounds`` or ``choices``.

        Raises:
            InvalidInput: There is no such table.
            MissingExtra: pandas is not installed.
        """
        if table not in FRAMES:
            raise InvalidInput(f"unknown table {table!r}.{nearest(table, FRAMES)}", field="table")
        pandas = import_extra("pandas", "Data frames need pandas: pip install 'turnout[frames]'.")
        columns = ({**_identity(cell), **FRAMES[table](cell)} for cell in self.cells)
        return pandas.concat(map(pandas.DataFrame, columns), ignore_index=True)

    def __repr__(self) -> str:
        """Return the runs and the first number of each selector, in a few lines."""
        ended = [run.summary is not None for run in self.runs]
        is_complete = ended or [cell.is_complete for cell in self.cells]
        lines = [f"Results: {sum(is_complete)} of {len(is_complete)} runs complete"]
        for world, scores in zip(self.worlds, self._scores, strict=False):
            count = max(scores.n_seeds(label) for label in scores.labels)
            seeds = "1 seed" if count == 1 else f"{count} seeds"
            lines.append(f"  {world.settings.experiment}: {world.title}, {seeds}")
            for metric in usual_metrics(world)[:1]:
                for label, (entry,) in mean_table(scores, [metric]).rows:
                    lines.append(f"    {label}: {metric.short} {entry.text}")
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines if self.folder is None else [*lines, f"  in {self.folder}"])


def open_runs(*paths: str | os.PathLike[str]) -> Results:
    """Return what run folders hold, to be looked at, drawn and exported.

    Args:
        paths: Folders of experiments, of single cells, or anything above them. What is damaged or
            not complete becomes a problem of the results and leaves the rest alone.

    Raises:
        InvalidInput: A path is no folder, or nothing under the paths can be shown.
    """
    if not paths:
        raise InvalidInput("no run folder was given: name at least one, such as runs/NAME.")
    cells, problems = read_cells(paths)
    results = Results(cells, problems)
    if not results.worlds:
        raise InvalidInput(_nothing(paths, problems))
    return results


def _nothing(paths: Iterable[Any], problems: list[Problem]) -> str:
    where = ", ".join(str(path) for path in paths)
    if not problems:
        return (
            f"no run was found under {where}: a run is a folder with config.json and rounds.jsonl, "
            "as an experiment writes it."
        )
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return (
        f"no cell under {where} can be shown; run the experiment again, into another folder. "
        f"{problems[0]}{more}"
    )
