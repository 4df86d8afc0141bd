"""The papers' figures, described from results.

Lines are means over seeds, bands reach from the lowest to the highest seed. An axis of accuracies
begins where the lines are after a twentieth of the rounds; steeper parts before it are cut off.
Seeds often differ more than schemes, so a figure may be drawn again as differences to one scheme
with the same seed, which is what claims are judged by. There each panel has an axis of its own, cut
in the same way at both ends.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np

from turnout.report.figure import Axis, Bars, Boxes, Chart, Guide, Heatmap, Line, Mark, Panel
from turnout.report.to_matplotlib import FORMATS, write_figure
from turnout.studies.presets import Figure
from turnout.studies.trials import Trials

#: Letters of a panel's title that fit above it.
_TITLE_WIDTH = 42
_N_BINS = 20
_ROUND = Axis("communication round", low=0.0)

#: Schemes in the order of a figure, with the numbers of their colours.
Colours: TypeAlias = Mapping[str, int]
#: Describes the figure of a key, with schemes of some settings.
_Draw: TypeAlias = Callable[[str, Colours, Mapping[str, Trials]], Chart]


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
    return [
        path
        for drawing in drawings_of(figure, results, order)
        for path in write_figure(drawing, [folder / f"{drawing.key}.{form}" for form in formats])
    ]


def drawings_of(figure: Figure, results: Mapping[str, Trials], order: Sequence[str]) -> list[Chart]:
    """Return a figure and, if it has such, the figure of differences; none without a setting.

    Args:
        figure: What is drawn.
        results: The results of each setting, by its label.
        order: Labels of all schemes of the preset.
    """
    shown = panels_of(figure, results)
    if not shown:
        return []
    there = {label for part in shown.values() for label in part.schemes}
    families = list(dict.fromkeys(map(_family, order)))
    schemes = {
        scheme: families.index(_family(scheme)) for scheme in figure.schemes if scheme in there
    }
    kind, key = DRAWINGS[figure.draws], f"figure-{figure.number}"
    found = [kind.draw(key, schemes, shown)]
    differences = differences_of(figure, results)
    if differences:
        rows = {curve: f"{axis},\nminus {figure.against}" for curve, axis in kind.axes.items()}
        again = _by_setting(rows, are_differences=True)
        found.append(again(f"{key}-differences", schemes, differences))
    return found


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


def _selections_by_class(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
    """Box plots of selection counts per class, one panel per scheme, one scale."""
    (results,) = settings.values()
    names, class_of = results.classes["names"], np.array(results.classes["of"])
    x = Axis(f"{results.classes['what']} of the class", ticks=dict(enumerate(map(str, names))))
    y = Axis(f"times selected in {results.n_rounds} rounds")
    panels = []
    for scheme in schemes:
        counts = results.schemes[scheme].clients["counts"]
        boxes = [
            Boxes("", number, np.array([number]), [counts[:, class_of == number].ravel()])
            for number in range(len(names))
        ]
        panels.append(Panel(boxes, x, y, scheme))
    n_columns = 3 if len(schemes) <= 6 else 4
    return Chart(key, "", "", panels, n_columns, shares_y="all")


def _success_and_cep(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
    """Success ratio so far above, cumulative effective participation below."""
    (results,) = settings.values()
    ratio = Axis("success ratio", low=0.0, high=1.0)
    below = Axis("cumulative effective participation")
    panels = [
        Panel(_lines(schemes, results, "success ratio"), _ROUND, ratio, height=2.8),
        Panel(_lines(schemes, results, "participation"), _ROUND, below, height=2.8),
    ]
    return Chart(key, "", "", panels, width=5.0)


def _single(curve: str, label: str) -> _Draw:
    """Return the drawing of one curve over the rounds."""

    def draw_curve(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
        (results,) = settings.values()
        x = Axis("federated round", low=0.0)
        panel = Panel(_lines(schemes, results, curve), x, Axis(label), height=3.4)
        return Chart(key, "", "", [panel], width=5.0)

    return draw_curve


def _pull_record(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
    """One strip per scheme: clients in ascending order of pulls, mean over seeds."""
    (results,) = settings.values()
    names = list(schemes)[::-1]  # rows are counted from the bottom
    counts = (results.schemes[scheme].clients["counts"] for scheme in names)
    pulls = np.stack([np.sort(values, axis=1).mean(axis=0) for values in counts])
    label = f"pulls in {results.n_rounds} rounds"
    strips = Heatmap("", 0, pulls, label, rows=names, scale="viridis")
    x, y = Axis("clients, in ascending order of pulls"), Axis(ticks=dict(enumerate(names)))
    panel = Panel([strips], x, y, height=0.42 * len(schemes) + 1.1)
    return Chart(key, "", "", [panel], width=5.6)


def _global_loss(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
    """Global loss over the rounds on a logarithmic scale, one panel per cohort size."""
    (results,) = settings.values()
    groups: dict[int, dict[str, int]] = {}
    for scheme, colour in schemes.items():
        groups.setdefault(results.schemes[scheme].cohort_size, {})[scheme] = colour
    y = Axis("global loss", is_log=True)
    panels = [
        Panel(_lines(groups[size], results, "global loss"), _ROUND, y, f"m = {size}", height=2.7)
        for size in sorted(groups)
    ]
    n = len(panels)
    return Chart(key, "", "", panels, n, 2.5 * n + 0.4, shares_y="all")


def _client_losses(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
    """Histogram of the clients' losses after the last round, all seeds, one panel per scheme."""
    (results,) = settings.values()
    losses = {scheme: results.schemes[scheme].clients["losses"].ravel() for scheme in schemes}
    largest = max(float(np.nanquantile(values, 0.99)) for values in losses.values())
    edges = np.linspace(0.0, largest, _N_BINS + 1)
    x, y = Axis("local loss"), Axis("share of clients", is_share=True)
    panels = []
    for scheme, colour in schemes.items():
        values = np.minimum(losses[scheme], largest)
        bars = Bars.histogram(values, edges, colour, share_of=values.size)
        marks: list[Mark] = [bars, Guide("x", float(np.nanmedian(values)), "dash")]
        panels.append(Panel(marks, x, y, scheme, height=2.4))
    return Chart(key, "", "", panels, len(panels), shares_y="all")


def _by_setting(
    rows: Mapping[str, str], x: str = "rounds", *, are_differences: bool = False
) -> _Draw:
    """Return a drawing with a panel per curve and setting, the settings side by side.

    ``rows`` names the curves and their axes; ``x`` is "rounds" or the name of a curve of times.
    More than three settings stand in pairs, each pair below the one before. Accuracies have one
    axis, differences an axis in each panel.
    """

    def draw_settings(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
        n_columns = len(settings) if len(settings) <= 3 else 2
        names, panels = list(settings), []
        for start in range(0, len(names), n_columns):
            for curve, label in rows.items():
                for name in names[start : start + n_columns]:
                    shown = [settings[name]] if are_differences else settings.values()
                    low, high = None, None
                    if are_differences or "accuracy" in curve:
                        low, high = _span(schemes, shown, curve)
                    y = Axis(label, low=low, high=high if are_differences else None)
                    title = textwrap.fill(name, _TITLE_WIDTH, break_on_hyphens=False)
                    lines = _lines(schemes, settings[name], curve, x)
                    across = _ROUND if x == "rounds" else Axis("virtual time", "s", low=0.0)
                    panels.append(Panel(lines, across, y, title, height=2.7))
        width = max(3.4 * n_columns, 5.0)
        if are_differences:
            return Chart(key, "", "", panels, n_columns, width)
        shared: Literal["all", "row"] = "all" if len(rows) == 1 else "row"
        return Chart(key, "", "", panels, n_columns, width, shares_y=shared)

    return draw_settings


def _of_settings(key: str, schemes: Colours, settings: Mapping[str, Trials]) -> Chart:
    """Accuracy in one panel, a line per scheme and setting."""
    curves = {
        f"{scheme}, {name}": results.schemes[scheme].curves["accuracy"]
        for name, results in settings.items()
        for scheme in schemes
        if scheme in results.schemes
    }
    lines = [
        Line.over_seeds(label, number, curve.rounds, curve.values)
        for number, (label, curve) in enumerate(curves.items())
    ]
    y = Axis("test accuracy", low=_span(schemes, settings.values(), "accuracy")[0])
    return Chart(key, "", "", [Panel(lines, _ROUND, y, height=3.4)], width=5.0)


def _family(scheme: str) -> str:
    """Return a scheme's name without its cohort size: ``UCB-CS, m=1`` is UCB-CS."""
    return scheme.split(",")[0]


def _lines(schemes: Colours, results: Trials, curve: str, x: str = "rounds") -> list[Line]:
    """Return means over seeds, with bands from the lowest to the highest seed."""
    lines = []
    for scheme, colour in schemes.items():
        if scheme not in results.schemes:
            continue
        curves = results.schemes[scheme].curves
        rounds, values = curves[curve]
        places = rounds if x == "rounds" else curves[x].values.mean(axis=0)
        is_whole = np.isfinite(values).all(axis=0)
        at, known = places[is_whole], values[:, is_whole]
        lines.append(Line.over_seeds(_family(scheme), colour, at, known))
    return lines


def _span(
    schemes: Iterable[str], settings: Iterable[Trials], curve: str
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
        draw: Describes a figure of that key with schemes of some settings.
        curves: Names of ``turnout.studies.trials.CURVES``.
        clients: "counts", "losses".
        axes: Curves over the rounds, of which differences can be drawn, with their axes.
    """

    draw: _Draw
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
    "training-time": Drawing(_single("time", "training time (s)"), ("time",)),
    "pull-record": Drawing(_pull_record, clients=("counts",)),
    "global-loss": Drawing(_global_loss, ("global loss",)),
    "client-losses": Drawing(_client_losses, clients=("losses",)),
    "accuracy": Drawing.over_rounds(_ACCURACY),
    "hold-out-accuracy": Drawing.over_rounds({"hold-out accuracy": "accuracy on the hold-out"}),
    "accuracy-and-loss": Drawing.over_rounds({**_ACCURACY, "global loss": "training loss"}),
    "accuracy-of-settings": Drawing(_of_settings, ("accuracy",)),
    "accuracy-by-time": Drawing(_by_setting(_ACCURACY, x="time"), ("accuracy", "time")),
}
