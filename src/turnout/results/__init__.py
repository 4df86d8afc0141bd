"""Results in hand: run folders as cells, tables, means, differences and figures.

>>> results = open_runs("runs/demo")  # doctest: +SKIP
>>> results.estimate("success_ratio")["e3cs"].mean  # doctest: +SKIP
0.61
"""

from turnout.results.across import Across
from turnout.results.groups import VariantCells, WorldGroup
from turnout.results.results import Results, open_runs
from turnout.results.scores import Difference, Leaders, Scores

__all__ = [
    "Across",
    "Difference",
    "Leaders",
    "Results",
    "Scores",
    "VariantCells",
    "WorldGroup",
    "open_runs",
]
