"""Results: run folders as cells, tables, means and differences.

>>> results = open_runs("runs/demo")  # doctest: +SKIP
>>> results.estimate("success_ratio")["e3cs"].mean  # doctest: +SKIP
0.61
"""

from turnout.results.files import FolderError
from turnout.results.groups import VariantCells, WorldGroup
from turnout.results.reader import Cell, Problem, read_cell, read_cells
from turnout.results.results import Results, open_runs
from turnout.results.run import Run
from turnout.results.scores import Across, Difference, Leaders, Scores
from turnout.results.settings import CellSettings

__all__ = [
    "Across",
    "Cell",
    "CellSettings",
    "Difference",
    "FolderError",
    "Leaders",
    "Problem",
    "Results",
    "Run",
    "Scores",
    "VariantCells",
    "WorldGroup",
    "open_runs",
    "read_cell",
    "read_cells",
]
