"""Which accuracies a table of training asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turnout.runs.cell import Cell

#: Accuracies to look for in runs that name none; the highest that anyone reached are shown.
_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_MOST_TARGETS = 4
_N_LEVELS = 3


def targets_of(cells: Sequence[Cell]) -> list[float]:
    """Return the accuracies that runs name as targets, else round numbers that they reached.

    Args:
        cells: Cells that compare.
    """
    named = sorted({target for cell in cells for target in cell.settings.targets})
    if named:
        return named[-_MOST_TARGETS:]
    best = max((_best_accuracy(cell) for cell in cells), default=math.nan)
    return [level for level in _LEVELS if level <= best][-_N_LEVELS:]


def _best_accuracy(cell: Cell) -> float:
    values = cell.series.get("accuracy", np.zeros(0))
    measured = values[np.isfinite(values)]
    return float(measured.max()) if measured.size else -math.inf
