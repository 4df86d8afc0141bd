"""Run folders in hand: cells, tables, means and differences."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout.errors import InvalidInput
from turnout.results.across import Across
from turnout.results.frames import frame_of
from turnout.results.groups import WorldGroup, gather, refuse_mixed
from turnout.results.scores import Difference, Scores, known_label
from turnout.runs.catalogue import all_metrics
from turnout.runs.cell import Cell
from turnout.runs.reader import Problem, read_cells
from turnout.statistics import Estimate

if TYPE_CHECKING:
    import pandas

#: What to do about runs of several worlds.
_ONE_WORLD = "Take one of results.worlds and ask its scores, or open the folders one at a time."


@dataclass(frozen=True, repr=False)
class Results:
    """What run folders hold.

    Attributes:
        cells: All cells that can be read, those included that are not complete.
        worlds: The cells that compare, world by world. A world with a complete cell leaves out
            those that are not; without one, all are cut to the round that all reached.
        problems: What a reader must know: cells that are damaged, missing seeds, few seeds.
    """

    cells: tuple[Cell, ...]
    worlds: tuple[WorldGroup, ...]
    problems: tuple[Problem, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the selectors, in the order of their experiments."""
        names = (variant.name for world in self.worlds for variant in world.variants)
        return tuple(dict.fromkeys(names))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of the metrics that a ``summary.json`` has, in the order of the catalogue."""
        written = {key for cell in self.cells for key in cell.summary}
        targets = sorted({target for cell in self.cells for target in cell.settings.targets})
        return tuple(metric.key for metric in all_metrics(targets) if metric.key in written)

    @property
    def scores(self) -> Scores:
        """The numbers of the selectors.

        Raises:
            InvalidInput: The runs are of several worlds, whose numbers do not compare.
        """
        refuse_mixed(self.worlds, _ONE_WORLD)
        return self.worlds[0].scores

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
        return Across([world.scores for world in self.worlds])

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
        worlds, remarks = gather(cells)
        if not worlds:
            raise InvalidInput(f"no run of {', '.join(labels)} is there.", field="labels")
        return Results(cells, tuple(worlds), tuple(remarks))

    def to_frame(self, table: str = "cells") -> pandas.DataFrame:
        """Return a tidy table, one row for each cell, round or choice.

        Args:
            table: ``cells``, ``rounds`` or ``choices``.

        Raises:
            InvalidInput: There is no such table.
            MissingExtra: pandas is not installed.
        """
        return frame_of(self.cells, table)

    def __repr__(self) -> str:
        """Return what is there, in a few lines."""
        n_complete = sum(cell.is_complete for cell in self.cells)
        lines = [f"Results: {n_complete} complete cells of {len(self.cells)}"]
        for world in self.worlds:
            seeds = {seed for variant in world.variants for seed in variant.seeds}
            names = ", ".join(variant.name for variant in world.variants)
            count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
            lines.append(f"  {world.title}, {count}: {names}")
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines)


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
    worlds, remarks = gather(cells)
    if not worlds:
        raise InvalidInput(_nothing(paths, problems))
    return Results(tuple(cells), tuple(worlds), (*problems, *remarks))


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
