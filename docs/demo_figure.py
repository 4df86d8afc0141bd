"""Draw the figure of the README from the run folder of ``make demo``.

``python docs/demo_figure.py`` reads runs/demo, or the folder that is given, and writes
docs/assets/demo.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from turnout.runs import Cell, read_cells

ROOT = Path(__file__).parent.parent
FIGURE = ROOT / "docs" / "assets" / "demo.png"


def main() -> None:
    """Draw the learning curves, and the accuracy at the end against the share of answers."""
    folder = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "runs" / "demo")
    cells, problems = read_cells([folder])
    if problems:
        sys.exit(f"{folder}: {problems[0]}")
    by_label: dict[str, list[Cell]] = {}
    for cell in cells:
        by_label.setdefault(cell.settings.label, []).append(cell)
    plt.rcParams |= {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for label, runs in by_label.items():
        accuracy = np.array([cell.run.accuracy for cell in runs])
        rounds = np.arange(1, accuracy.shape[1] + 1)
        (line,) = left.plot(rounds, accuracy.mean(axis=0), label=label)
        left.fill_between(rounds, accuracy.min(axis=0), accuracy.max(axis=0), alpha=0.12)
        answers = [cell.run.success_ratio for cell in runs]
        last = accuracy[:, -1]
        right.plot(answers, last, "o", color=line.get_color(), alpha=0.35, markersize=4)
        right.plot(np.mean(answers), np.mean(last), "o", color=line.get_color(), markersize=9)
    left.set(xlabel="round", ylabel="accuracy on the test set", ylim=(0, 1))
    right.set(xlabel="share of the chosen that answered", ylabel="accuracy after the last round")
    right.set(xlim=(0.4, 1.0), ylim=(0.8, 1.0))
    left.legend(frameon=False, loc="lower right")
    figure.savefig(FIGURE, dpi=130)


if __name__ == "__main__":
    main()
