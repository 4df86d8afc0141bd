"""Draw the figure of the README from the run folder of ``make demo``.

``python docs/demo_figure.py`` reads runs/demo, or the folder that is given, and writes
docs/assets/demo.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from turnout.report.figure import Axis, Chart, Line, Panel
from turnout.report.to_matplotlib import write_figure
from turnout.results import open_runs

ROOT = Path(__file__).parent.parent
FIGURE = ROOT / "docs" / "assets" / "demo.png"


def main() -> None:
    """Draw the learning curves, and the accuracy at the end against the share of answers."""
    folder = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "runs" / "demo")
    results = open_runs(folder)
    if results.problems:
        sys.exit(f"{folder}: {results.problems[0]}")
    curves, seeds, means = [], [], []
    for number, variant in enumerate(results.worlds[0].variants):
        accuracy = np.array([cell.run.accuracy for cell in variant.cells])
        answers = np.array([cell.run.success_ratio for cell in variant.cells])
        rounds, last = np.arange(1, accuracy.shape[1] + 1), accuracy[:, -1]
        curves.append(Line.over_seeds(variant.name, number, rounds, accuracy))
        seeds.append(Line("", number, answers, last, role="points", size=4.0, opacity=0.35))
        middle = np.array([answers.mean()]), np.array([last.mean()])
        means.append(Line("", number, *middle, role="points", size=9.0))
    left = Panel(
        curves, Axis("round"), Axis("accuracy on the test set", low=0.0, high=1.0), height=3.2
    )
    y = Axis("accuracy after the last round", low=0.8, high=1.0)
    x = Axis("share of the chosen clients that answered", low=0.4, high=1.0)
    right = Panel([*seeds, *means], x, y, height=3.2)
    write_figure(Chart("demo", "", "", [left, right], n_columns=2, width=9.0), [FIGURE])


if __name__ == "__main__":
    main()
