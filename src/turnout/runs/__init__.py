"""The record of a run: its columns, its folder, who writes it and who reads it."""

from turnout.runs.cell import Cell
from turnout.runs.files import FolderError
from turnout.runs.reader import Problem, read_cell, read_cells
from turnout.runs.run import Run
from turnout.runs.settings import CellSettings

__all__ = ["Cell", "CellSettings", "FolderError", "Problem", "Run", "read_cell", "read_cells"]
