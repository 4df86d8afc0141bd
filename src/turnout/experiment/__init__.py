"""Experiments: a grid of selectors and seeds in one world, run folders, resume, statistics.

>>> experiment = Experiment(selectors=["random", "e3cs:quota=0.8"], world="e3cs", seeds=3)
>>> [variant.label for variant in experiment.selectors]
['random', 'e3cs quota=0.8']
"""

from turnout.experiment.codec import ConfigError
from turnout.experiment.config import Experiment
from turnout.experiment.grid import Shard, run_experiment
from turnout.experiment.loop import Participants, Progress, RoundRecord, Simulated, Work, rounds
from turnout.experiment.overlap import Aggregated, overlapping
from turnout.experiment.pool import Advance
from turnout.experiment.simulation import collect, simulate, train
from turnout.experiment.sweep import Point, Sweep, compare, run_sweep
from turnout.experiment.variants import Variant, parse_variant
from turnout.results.files import FolderError
from turnout.results.reader import Cell, read_cell
from turnout.results.results import CellResult, Results
from turnout.results.run import Run
from turnout.results.statistics import Estimate, estimate, paired_difference

#: The name of ``Results`` in version 0.1.
Grid = Results

__all__ = [
    "Advance",
    "Aggregated",
    "Cell",
    "CellResult",
    "ConfigError",
    "Estimate",
    "Experiment",
    "FolderError",
    "Grid",
    "Participants",
    "Point",
    "Progress",
    "Results",
    "RoundRecord",
    "Run",
    "Shard",
    "Simulated",
    "Sweep",
    "Variant",
    "Work",
    "collect",
    "compare",
    "estimate",
    "overlapping",
    "paired_difference",
    "parse_variant",
    "read_cell",
    "rounds",
    "run_experiment",
    "run_sweep",
    "simulate",
    "train",
]
