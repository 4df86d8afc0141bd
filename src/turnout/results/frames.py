"""Cells as tidy data frames of pandas: one row for each cell, round or choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.errors import InvalidInput
from turnout.names import import_extra, nearest
from turnout.results.scores import numbers_of
from turnout.runs.catalogue import all_metrics
from turnout.runs.cell import Cell
from turnout.runs.columns import PER_CHOICE
from turnout.types import Status

if TYPE_CHECKING:
    import pandas

#: Names of the statuses, by their number.
_STATUSES = np.array([status.name.lower() for status in Status])


def frame_of(cells: Iterable[Cell], table: str) -> pandas.DataFrame:
    """Return a tidy table of cells.

    Every row says which cell it is of: ``experiment``, ``world``, ``label`` and ``seed``.

    Args:
        cells: The cells, as they were read.
        table: ``cells``, ``rounds`` or ``choices``.

    Raises:
        InvalidInput: There is no such table.
        MissingExtra: pandas is not installed.
    """
    if table not in FRAMES:
        raise InvalidInput(f"unknown table {table!r}.{nearest(table, FRAMES)}", field="table")
    pandas = import_extra("pandas", "Data frames need pandas: pip install 'turnout[frames]'.")
    parts = [pandas.DataFrame({**_identity(cell), **FRAMES[table](cell)}) for cell in cells]
    return pandas.concat(parts, ignore_index=True)


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
    targets = settings.targets
    return {
        **_identity(cell),
        "selector": settings.selector,
        "kind": settings.kind,
        "n_clients": settings.n_clients,
        "cohort_size": settings.cohort_size,
        "n_rounds": settings.n_rounds,
        "rounds_done": cell.n_rounds,
        "is_complete": cell.is_complete,
        **{f"parameter.{name}": value for name, value in settings.parameters.items()},
        **{metric.key: number(metric) for metric in all_metrics(targets)},
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
    return {"round": rounds, **columns, "status": _STATUSES[run.status]}


#: How the columns of a cell are made, by table.
FRAMES: Mapping[str, Callable[[Cell], dict[str, Any]]] = {
    "cells": _cell,
    "rounds": _rounds,
    "choices": _choices,
}
