"""The papers' figures, drawn from results with matplotlib: PDF, SVG and PNG.

Lines are means over seeds, bands reach from the lowest to the highest seed. An axis of accuracies
begins where the lines are after a twentieth of the rounds; what is steeper before it is cut off.
Seeds often differ more than schemes, so a figure may be drawn again as differences to one scheme
with the same seed, which is what claims are judged by. There each panel has an axis of its own, cut
in the same way at both ends.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from turnout.papers.presets import Figure
from turnout.papers.results import Trials
from turnout.results.drawing import COLOURS, FORMATS, draw_band, draw_files, draw_legend, look

#: Letters of a panel's title that fit above it.
_TITLE_WIDTH = 42

#: Schemes in the order of a figure, with their colour and line style.
Looks: TypeAlias = Mapping[str, Mapping[str, Any]]


def draw(
    figure: Figure,
    results: Mapping[str, Trials],
    folder: Path,
    *,
    order: Sequence[str],
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw a figure and return the files that were written: none without a setting to show.

    Args:
        figure: What is drawn.
        results: The results of each setting, by its label; those that are missing are left out.
        folder: Where the files go.
        order: Labels of all schemes of the preset: a scheme looks the same in every figure.
        formats: Some of ``FORMATS``.
    """
    shown = panels_of(figure, results)
    if not shown:
        return []
    there = {label for part in shown.values() for label in part.schemes}
    families = list(dict.fromkeys(map(_family, order)))
    schemes = {
        scheme: look(families.index(_family(scheme)))
        for scheme in figure.schemes
        if scheme in there
    }

    def files(name: str, fill: Callable[[Any], None]) -> list[Path]:
        return draw_files([folder / f"{name}.{form}" for form in formats], fill)

    drawing, differences = DRAWINGS[figure.draws], differences_of(figure, results)
    paths = files(f"figure-{figure.number}", lambda canvas: drawing.draw(canvas, schemes, shown))
    if differences:
        rows = {curve: f"{axis},\nminus {figure.against}" for curve, axis in drawing.axes.items()}
        again = _by_setting(rows, are_differences=True)
        paths += files(
            f"figure-{figure.number}-differences",
            lambda canvas: again(canvas, schemes, differences),
        )
    return paths


def panels_of(figure: Figure, results: Mapping[str, Trials]) -> dict[str, Trials]:
    """Return the results that a figure shows: settings of it that have one of its schemes.

    Args:
        figure: What is drawn.
        results: The results of each setting, by its label.
    """
    return {
        name: results[name]
        for name in (figure.settings or results)
        if name in results and set(figure.schemes).intersection(results[name].schemes)
    }


def differences_of(figure: Figure, results: Mapping[str, Trials]) -> dict[str, Trials]:
    """Return the same as differences to ``figure.against``, where that and another were run.

    Args:
        figure: What is drawn.
        results: The results of each setting, by its label.
    """
    found = {
        name: part.against(figure.against)
        for name, part in panels_of(figure, results).items()
        if figure.against in part.schemes
    }
    others = set(figure.schemes) - {figure.against}
    return {name: part for name, part in found.items() if others.intersection(part.schemes)}


def _selections_by_class(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
    """Box plots of selection counts per class, one panel per scheme, one scale."""
    results = _only(settings)
    n_columns = 3 if len(schemes) <= 6 else 4
    n_rows = -(-len(schemes) // n_columns)
    canvas.set_size_inches(7.0, 2.1 * n_rows)
    panels = canvas.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
    names, class_of = results.classes["names"], np.array(results.classes["of"])
    for panel, scheme in zip(panels, schemes, strict=False):
        counts = results.schemes[scheme].clients["counts"]
        boxes = [counts[:, class_of == number].ravel() for number in range(len(names))]
        drawn = panel.boxplot(boxes, widths=0.6, patch_artist=True, flierprops={"markersize": 2})
        for box, colour in zip(drawn["boxes"], COLOURS, strict=False):
            box.set(facecolor=colour, alpha=0.6)
        for median in drawn["medians"]:
            median.set(color="black")
        panel.set_xticks(range(1, len(names) + 1), names)
        panel.set_title(scheme)
        panel.grid(axis="x", visible=False)
    for panel in panels[len(schemes) :]:
        panel.set_visible(False)
    canvas.supxlabel(f"{results.classes['what']} of the class", fontsize=9)
    canvas.supylabel(f"times selected in {results.n_rounds} rounds", fontsize=9)


def _success_and_cep(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
    """Success ratio so far above, cumulative effective participation below."""
    results = _only(settings)
    canvas.set_size_inches(5.0, 5.6)
    top, bottom = canvas.subplots(2, 1, sharex=True)
    _lines(top, schemes, results, "success ratio")
    _lines(bottom, schemes, results, "participation")
    top.set_ylabel("success ratio")
    top.set_ylim(0.0, 1.0)
    top.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    bottom.set_ylabel("cumulative effective participation")
    bottom.set_xlabel("communication round")


def _single(curve: str, label: str) -> Callable[[Any, Looks, Mapping[str, Trials]], None]:
    """Return the drawing of one curve over the rounds."""

    def draw_curve(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
        canvas.set_size_inches(5.0, 3.4)
        panel = canvas.subplots()
        _lines(panel, schemes, _only(settings), curve)
        panel.set_ylabel(label)
        panel.set_xlabel("federated round")
        panel.legend(frameon=False)

    return draw_curve


def _pull_record(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
    """Draw one strip per scheme: clients in ascending order of pulls, mean over seeds."""
    results = _only(settings)
    canvas.set_size_inches(5.6, 0.42 * len(schemes) + 1.1)
    panel = canvas.subplots()
    counts = (results.schemes[scheme].clients["counts"] for scheme in schemes)
    pulls = np.stack([np.sort(values, axis=1).mean(axis=0) for values in counts])
    image = panel.imshow(pulls, aspect="auto", cmap="viridis", interpolation="nearest")
    panel.set_yticks(range(len(schemes)), schemes)
    panel.set_xlabel("clients, in ascending order of pulls")
    panel.grid(visible=False)
    canvas.colorbar(image, ax=panel, label=f"pulls in {results.n_rounds} rounds")


def _global_loss(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
    """Global loss over the rounds on a logarithmic scale, one panel per cohort size."""
    results = _only(settings)
    groups: dict[int, dict[str, Mapping[str, Any]]] = {}
    for scheme, looks in schemes.items():
        groups.setdefault(results.schemes[scheme].cohort_size, {})[scheme] = looks
    canvas.set_size_inches(2.5 * len(groups) + 0.4, 2.9)
    panels = canvas.subplots(1, len(groups), sharey=True, squeeze=False).ravel()
    for panel, size in zip(panels, sorted(groups), strict=True):
        _lines(panel, groups[size], results, "global loss")
        panel.set_title(f"m = {size}")
        panel.set_yscale("log")
        panel.set_xlabel("communication round")
    panels[0].set_ylabel("global loss")
    draw_legend(canvas, panels[:1], named=_family)


def _client_losses(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
    """Histogram of the clients' losses after the last round, all seeds, one panel per scheme."""
    results = _only(settings)
    canvas.set_size_inches(7.0, 2.4)
    panels = canvas.subplots(1, len(schemes), sharey=True, squeeze=False).ravel()
    losses = {scheme: results.schemes[scheme].clients["losses"].ravel() for scheme in schemes}
    largest = max(float(np.nanquantile(values, 0.99)) for values in losses.values())
    edges = np.linspace(0.0, largest, 21)
    for panel, scheme in zip(panels, schemes, strict=True):
        values = np.minimum(losses[scheme], largest)
        share = np.full(values.size, 1.0 / values.size)
        panel.hist(values, edges, weights=share, color=schemes[scheme]["color"])
        panel.axvline(float(np.nanmedian(values)), color="black", linestyle="--", linewidth=0.8)
        panel.set_title(scheme)
        panel.set_xlabel("local loss")
    panels[0].set_ylabel("share of clients")


def _by_setting(
    rows: Mapping[str, str], x: str = "rounds", *, are_differences: bool = False
) -> Callable[[Any, Looks, Mapping[str, Trials]], None]:
    """Return a drawing with a panel per curve and setting, the settings side by side.

    ``rows`` names the curves and their axes; ``x`` is "rounds" or the name of a curve of times.
    More than three settings stand in pairs, each pair below the one before. Accuracies have one
    axis, differences an axis in each panel.
    """

    def draw_settings(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
        n_columns = len(settings) if len(settings) <= 3 else 2
        names = list(settings)
        lines = [
            (curve, names[start : start + n_columns])
            for start in range(0, len(names), n_columns)
            for curve in rows
        ]
        canvas.set_size_inches(max(3.4 * n_columns, 5.0), 2.7 * len(lines) + 0.5)
        shared = False if are_differences else len(rows) == 1 or "row"
        grid = canvas.subplots(len(lines), n_columns, sharey=shared, squeeze=False)
        for panels, (curve, shown) in zip(grid, lines, strict=True):
            panels[0].set_ylabel(rows[curve])
            for panel, name in zip(panels, shown, strict=False):
                _lines(panel, schemes, settings[name], curve, x)
                panel.set_title(textwrap.fill(name, _TITLE_WIDTH, break_on_hyphens=False))
                panel.set_xlabel("communication round" if x == "rounds" else "virtual time, s")
                if are_differences:
                    panel.set_ylim(*_span(schemes, [settings[name]], curve))
            for panel in panels[len(shown) :]:
                panel.set_visible(False)
            if "accuracy" in curve and not are_differences:
                panels[0].set_ylim(bottom=_span(schemes, settings.values(), curve)[0])
        draw_legend(canvas, grid.ravel(), named=_family)

    return draw_settings


def _of_settings(canvas: Any, schemes: Looks, settings: Mapping[str, Trials]) -> None:
    """Accuracy in one panel, a line per scheme and setting."""
    canvas.set_size_inches(5.0, 3.4)
    panel = canvas.subplots()
    lines = [
        (f"{scheme}, {name}", *results.schemes[scheme].curves["accuracy"])
        for name, results in settings.items()
        for scheme in schemes
        if scheme in results.schemes
    ]
    for number, (label, rounds, values) in enumerate(lines):
        draw_band(panel, rounds, values, label=label, **look(number))
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=_span(schemes, settings.values(), "accuracy")[0])
    panel.set_ylabel("test accuracy")
    panel.set_xlabel("communication round")
    panel.legend(frameon=False)


def _only(settings: Mapping[str, Trials]) -> Trials:
    (results,) = settings.values()
    return results


def _family(scheme: str) -> str:
    """Return a scheme's name without its cohort size: ``UCB-CS, m=1`` is UCB-CS."""
    return scheme.split(",")[0]


def _lines(panel: Any, schemes: Looks, results: Trials, curve: str, x: str = "rounds") -> None:
    """Draw means over seeds, with bands from the lowest to the highest seed."""
    for scheme, looks in schemes.items():
        if scheme not in results.schemes:
            continue
        curves = results.schemes[scheme].curves
        rounds, values = curves[curve]
        places = rounds if x == "rounds" else curves[x].values.mean(axis=0)
        is_whole = np.isfinite(values).all(axis=0)
        places, values = places[is_whole], values[:, is_whole]
        draw_band(panel, places, values, label=scheme, **looks)
    panel.set_xlim(left=0)


def _span(
    schemes: Looks, settings: Iterable[Trials], curve: str
) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of an axis: around all lines from round T/20 on, where they lie close."""
    curves = [
        (results.schemes[scheme].curves[curve], results.n_rounds)
        for results in settings
        for scheme in schemes
        if scheme in results.schemes
    ]
    parts = [values[:, rounds >= n_rounds / 20].ravel() for (rounds, values), n_rounds in curves]
    levels = np.concatenate([part[np.isfinite(part)] for part in parts])
    if not levels.size or not np.ptp(levels):
        return None, None
    room = 0.05 * np.ptp(levels)
    return float(levels.min() - room), float(levels.max() + room)


class Drawing(NamedTuple):
    """How a figure is drawn, and what results must keep for it.

    Args:
        draw: Fills a canvas with schemes of some settings.
        curves: Names of ``turnout.papers.curves.CURVES``.
        clients: "counts", "losses".
        axes: Curves over the rounds, of which differences can be drawn, with their axes.
    """

    draw: Callable[[Any, Looks, Mapping[str, Trials]], None]
    curves: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    axes: Mapping[str, str] = {}

    @classmethod
    def over_rounds(cls, axes: Mapping[str, str]) -> Self:
        """Return the drawing of some curves over the rounds.

        Args:
            axes: The axis of each curve.
        """
        return cls(_by_setting(axes), tuple(axes), axes=axes)


_ACCURACY = {"accuracy": "test accuracy"}

#: What can be drawn, by the name that presets use.
DRAWINGS: Mapping[str, Drawing] = {
    "selections-by-class": Drawing(_selections_by_class, clients=("counts",)),
    "success-and-cep": Drawing(_success_and_cep, ("success ratio", "participation")),
    "queues": Drawing(_single("queue", "mean length of the queues"), ("queue",)),
    "training-time": Drawing(_single("time", "training time, s"), ("time",)),
    "pull-record": Drawing(_pull_record, clients=("counts",)),
    "global-loss": Drawing(_global_loss, ("global loss",)),
    "client-losses": Drawing(_client_losses, clients=("losses",)),
    "accuracy": Drawing.over_rounds(_ACCURACY),
    "hold-out-accuracy": Drawing.over_rounds({"hold-out accuracy": "accuracy on the hold-out"}),
    "accuracy-and-loss": Drawing.over_rounds({**_ACCURACY, "global loss": "training loss"}),
    "accuracy-of-settings": Drawing(_of_settings, ("accuracy",)),
    "accuracy-by-time": Drawing(_by_setting(_ACCURACY, x="time"), ("accuracy", "time")),
}
