"""Experiments: a grid of selectors and seeds in one world, run folders, resume, statistics.

>>> experiment = Experiment(selectors=["random", "e3cs:quota=0.8"], world="e3cs", seeds=3)
>>> [variant.label for variant in experiment.selectors]
['random', 'e3cs quota=0.8']
"""

from turnout.experiment.codec import ConfigError
from turnout.experiment.config import Experiment
from turnout.experiment.grid import Grid, run_experiment
from turnout.experiment.pool import Advance
from turnout.experiment.shard import Shard
from turnout.experiment.sweep import Point, Sweep, run_sweep
from turnout.experiment.task import CellResult
from turnout.experiment.variants import Variant, parse_variant
from turnout.runs.cell import Cell
from turnout.runs.files import FolderError
from turnout.runs.reader import read_cell
from turnout.statistics import Estimate, estimate, paired_difference

__all__ = [
    "Advance",
    "Cell",
    "CellResult",
    "ConfigError",
    "Estimate",
    "Experiment",
    "FolderError",
    "Grid",
    "Point",
    "Shard",
    "Sweep",
    "Variant",
    "estimate",
    "paired_difference",
    "parse_variant",
    "read_cell",
    "run_experiment",
    "run_sweep",
]
