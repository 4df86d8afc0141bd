"""Write what ``make demo`` shows into the README, and draw its figure.

``python docs/build_demo.py`` reads runs/demo, or the folder that is given. It writes
docs/assets/demo.png, and the table and the verdict between two marks of README.md.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from rich.console import Console

from turnout.cli import scores as printing
from turnout.report.charts import figures_of
from turnout.report.figure import Axis, Chart, Line, Panel
from turnout.report.to_matplotlib import write_figure
from turnout.results import Results, open_runs
from turnout.results.tables import usual_metrics

ROOT = Path(__file__).parent.parent
FIGURE, README = ROOT / "docs" / "assets" / "demo.png", ROOT / "README.md"
BEGIN, END = "<!-- demo: made by docs/build_demo.py -->", "<!-- end of demo -->"


def main() -> None:
    """Write the figure and the part of the README."""
    folder = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "runs" / "demo")
    results = open_runs(folder)
    if results.problems:
        sys.exit(f"{folder}: {results.problems[0]}")
    draw(results)
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    part = f"{BEGIN}\n```text\n{printed(results)}```\n{END}"
    README.write_text(before + part + after, encoding="utf-8")


def printed(results: Results) -> str:
    """Return the table and the verdict as they are printed, 80 columns wide."""
    (world,) = results.worlds
    page = io.StringIO()
    printing.console = Console(file=page, width=80, highlight=False)
    printing.print_scores(world.scores, world.title, usual_metrics(world))
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    end = next(i for i, line in enumerate(lines) if line.startswith("*: "))
    return "\n".join(lines[:end]) + "\n"


def draw(results: Results) -> None:
    """Draw the accuracy by virtual time, and the time to the target against fairness."""
    (world,) = results.worlds
    curves = next(iter(figures_of(results))).panels[1]
    metric = usual_metrics(world)[0]
    scale = metric.scale(each.mean for each in world.scores.estimate(metric).values())
    seeds, means = [], []
    for number, label in enumerate(world.scores.labels):
        times, shares = (world.scores.values(label, one) for one in (metric, "least_share"))
        x = np.array([times[seed] for seed in times]) / scale.size
        y = np.array([shares[seed] for seed in times])
        seeds.append(Line("", number, x, y, role="points", size=4.0, opacity=0.35))
        middle = np.array([x.mean()]), np.array([y.mean()])
        means.append(Line("", number, *middle, role="points", size=9.0))
    across = Axis(metric.title.lower(), scale.unit, low=0.0)
    up = Axis("share of the least served", low=0.0, high=1.0)
    right = Panel([*seeds, *means], across, up, height=3.2)
    write_figure(Chart("demo", "", "", [curves, right], n_columns=2, width=9.0), [FIGURE])


if __name__ == "__main__":
    main()
