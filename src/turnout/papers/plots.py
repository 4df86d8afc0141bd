"""The papers' figures, drawn from run folders with matplotlib: PDF, SVG and PNG.

Lines are means over seeds, bands reach from the lowest to the highest seed. Colours are the palette
of Okabe and Ito, which stays apart for colour-blind readers; line styles differ as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from turnout.errors import MissingExtra
from turnout.experiment import Cell
from turnout.papers.claims import Results
from turnout.papers.measures import client_losses
from turnout.papers.presets import Figure
from turnout.types import FloatArray

__all__ = ["DRAWINGS", "FILE_METADATA", "FORMATS", "STYLE", "draw", "require_matplotlib"]

FORMATS = ("pdf", "svg", "png")

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)))

#: Settings of matplotlib for every figure of the package.
STYLE: Mapping[str, Any] = MappingProxyType(
    {
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "legend.fontsize": 8,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.linewidth": 0.4,
        "grid.color": "#dddddd",
        "lines.linewidth": 1.4,
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "svg.hashsalt": "turnout",
        "savefig.dpi": 200,
    }
)

#: Points drawn of a curve; more make files large and no picture better.
_MOST_POINTS = 400

#: Left out of each format: dates would make every file differ from the last.
FILE_METADATA: Mapping[str, dict[str, None]] = MappingProxyType(
    {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
)


def require_matplotlib() -> None:
    """Raise ``MissingExtra`` if figures cannot be drawn here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("Figures need matplotlib: pip install 'turnout[plot]'.")


def draw(figure: Figure, results: Results, folder: Path) -> list[Path]:
    """Draw a figure from the runs and return the files that were written."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    settings: Any = dict(STYLE)
    with matplotlib.rc_context(settings):
        canvas = Canvas(layout="constrained")
        DRAWINGS[figure.draws](canvas, figure.schemes, results)
        written = []
        for form in FORMATS:
            path = folder / f"figure-{figure.number}.{form}"
            canvas.savefig(path, format=form, metadata=FILE_METADATA[form])
            written.append(path)
    return written


def _selections_by_class(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Box plots of selection counts per class, one panel per scheme, one scale."""
    n_columns = 3 if len(schemes) <= 6 else 4
    n_rows = -(-len(schemes) // n_columns)
    canvas.set_size_inches(7.0, 2.1 * n_rows)
    panels = canvas.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
    for panel, scheme in zip(panels, schemes, strict=False):
        cells = results.cells(scheme)
        names = cells[0].config["classes"]["names"]
        classes = cells[0].columns["class_of"]
        counts = np.stack([cell.run.counts for cell in cells])
        boxes = [counts[:, classes == number].ravel() for number in range(len(names))]
        drawn = panel.boxplot(boxes, widths=0.6, patch_artist=True, flierprops={"markersize": 2})
        for box, colour in zip(drawn["boxes"], _COLOURS, strict=False):
            box.set(facecolor=colour, alpha=0.6)
        for median in drawn["medians"]:
            median.set(color="black")
        panel.set_xticks(range(1, len(names) + 1), names)
        panel.set_title(scheme)
        panel.grid(axis="x", visible=False)
    for panel in panels[len(schemes) :]:
        panel.set_visible(False)
    canvas.supxlabel(f"{cells[0].config['classes']['what']} of the class", fontsize=9)
    canvas.supylabel(f"times selected in {results.grid.experiment.n_rounds} rounds", fontsize=9)


def _success_and_cep(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Success ratio so far above, cumulative effective participation below."""
    canvas.set_size_inches(5.0, 5.6)
    top, bottom = canvas.subplots(2, 1, sharex=True)
    _lines(top, schemes, results, _success_so_far)
    _lines(bottom, schemes, results, lambda cell: cell.run.cep.astype(np.float64))
    top.set_ylabel("success ratio")
    top.set_ylim(0.0, 1.0)
    top.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    bottom.set_ylabel("cumulative effective participation")
    bottom.set_xlabel("communication round")


def _queues(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Mean queue over the rounds."""
    canvas.set_size_inches(5.0, 3.4)
    panel = canvas.subplots()
    _lines(panel, schemes, results, lambda cell: cell.columns["backlog_mean"])
    panel.set_ylabel("mean length of the queues")
    panel.set_xlabel("federated round")
    panel.legend(frameon=False)


def _training_time(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Virtual time over the rounds."""
    canvas.set_size_inches(5.0, 3.4)
    panel = canvas.subplots()
    _lines(panel, schemes, results, lambda cell: cell.run.clock_s)
    panel.set_ylabel("training time, s")
    panel.set_xlabel("federated round")
    panel.legend(frameon=False)


def _pull_record(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Draw one strip per scheme: clients in ascending order of pulls, mean over seeds."""
    canvas.set_size_inches(5.6, 0.42 * len(schemes) + 1.1)
    panel = canvas.subplots()
    pulls = np.stack(
        [
            np.mean([np.sort(cell.run.counts) for cell in results.cells(scheme)], axis=0)
            for scheme in schemes
        ]
    )
    image = panel.imshow(pulls, aspect="auto", cmap="viridis", interpolation="nearest")
    panel.set_yticks(range(len(schemes)), schemes)
    panel.set_xlabel("clients, in ascending order of pulls")
    panel.grid(visible=False)
    canvas.colorbar(image, ax=panel, label=f"pulls in {results.grid.experiment.n_rounds} rounds")


def _global_loss(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Global loss over the rounds on a logarithmic scale, one panel per cohort size."""
    groups = _by_cohort(schemes, results)
    canvas.set_size_inches(2.5 * len(groups) + 0.4, 2.9)
    panels = canvas.subplots(1, len(groups), sharey=True, squeeze=False).ravel()
    for panel, (size, members) in zip(panels, groups.items(), strict=True):
        _measured_lines(panel, members, results, "local_loss")
        panel.set_title(f"m = {size}")
        panel.set_yscale("log")
        panel.set_xlabel("communication round")
    panels[0].set_ylabel("global loss")
    names = [_family(scheme) for scheme in groups[min(groups)]]
    lines = panels[0].get_lines()
    canvas.legend(lines, names, ncols=len(names), loc="outside upper center", frameon=False)


def _client_losses(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Histogram of the clients' losses after the last round, all seeds, one panel per scheme."""
    canvas.set_size_inches(7.0, 2.4)
    panels = canvas.subplots(1, len(schemes), sharey=True, squeeze=False).ravel()
    losses = {
        scheme: np.concatenate([client_losses(cell) for cell in results.cells(scheme)])
        for scheme in schemes
    }
    largest = max(float(np.nanquantile(values, 0.99)) for values in losses.values())
    edges = np.linspace(0.0, largest, 21)
    labels = results.grid.experiment.labels
    for panel, scheme in zip(panels, schemes, strict=True):
        values = np.minimum(losses[scheme], largest)
        share = np.full(values.size, 1.0 / values.size)
        colour = _COLOURS[labels.index(scheme) % len(_COLOURS)]
        panel.hist(values, edges, weights=share, color=colour)
        panel.axvline(float(np.nanmedian(values)), color="black", linestyle="--", linewidth=0.8)
        panel.set_title(scheme)
        panel.set_xlabel("local loss")
    panels[0].set_ylabel("share of clients")


def _accuracy(canvas: Any, schemes: Sequence[str], results: Results) -> None:
    """Test accuracy over the rounds."""
    canvas.set_size_inches(5.0, 3.6)
    panel = canvas.subplots()
    _measured_lines(panel, schemes, results, "accuracy")
    panel.set_ylabel("test accuracy")
    panel.set_xlabel("communication round")
    panel.legend(ncols=2, loc="lower right", frameon=False)


def _by_cohort(schemes: Sequence[str], results: Results) -> dict[int, list[str]]:
    """Return the schemes by the size of their cohorts."""
    groups: dict[int, list[str]] = {}
    for scheme in schemes:
        groups.setdefault(int(results.cells(scheme)[0].config["cohort_size"]), []).append(scheme)
    return dict(sorted(groups.items()))


def _family(scheme: str) -> str:
    """Return a scheme's name without its cohort size: ``UCB-CS, m=1`` is UCB-CS."""
    return scheme.split(",")[0]


def _measured_lines(panel: Any, schemes: Sequence[str], results: Results, name: str) -> None:
    """Draw what training measured, in the rounds in which it looked."""
    families = list(dict.fromkeys(_family(label) for label in results.grid.experiment.labels))
    for scheme in schemes:
        number = families.index(_family(scheme))
        colour, style = _COLOURS[number % len(_COLOURS)], _STYLES[number % len(_STYLES)]
        curves = np.stack([cell.run.measured[name] for cell in results.cells(scheme)])
        rounds = np.flatnonzero(np.isfinite(curves).all(axis=0))
        seen = curves[:, rounds]
        panel.fill_between(
            rounds + 1, seen.min(axis=0), seen.max(axis=0), color=colour, alpha=0.15, linewidth=0
        )
        panel.plot(rounds + 1, seen.mean(axis=0), color=colour, linestyle=style, label=scheme)
    panel.set_xlim(0, curves.shape[1])


def _success_so_far(cell: Cell) -> FloatArray:
    share: FloatArray = cell.run.cep / np.maximum(cell.run.offsets[1:], 1)
    return share


def _lines(
    panel: Any, schemes: Sequence[str], results: Results, curve: Callable[[Cell], FloatArray]
) -> None:
    labels = results.grid.experiment.labels  # a scheme looks the same in every figure
    for scheme in schemes:
        number = labels.index(scheme)
        curves = np.stack([curve(cell) for cell in results.cells(scheme)])
        points = np.unique(np.linspace(0, curves.shape[1] - 1, _MOST_POINTS).astype(np.int64))
        curves, rounds = curves[:, points], points + 1
        colour = _COLOURS[number % len(_COLOURS)]
        style = _STYLES[number % len(_STYLES)]
        panel.fill_between(
            rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.2, linewidth=0
        )
        panel.plot(rounds, curves.mean(axis=0), color=colour, linestyle=style, label=scheme)
    panel.set_xlim(0, rounds[-1])


#: What can be drawn, by the name that presets use.
DRAWINGS: Mapping[str, Callable[[Any, Sequence[str], Results], None]] = MappingProxyType(
    {
        "selections-by-class": _selections_by_class,
        "success-and-cep": _success_and_cep,
        "queues": _queues,
        "training-time": _training_time,
        "pull-record": _pull_record,
        "global-loss": _global_loss,
        "client-losses": _client_losses,
        "accuracy": _accuracy,
    }
)
