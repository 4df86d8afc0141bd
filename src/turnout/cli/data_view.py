"""A division of data among clients, drawn in the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from turnout.cli.output import console, table
from turnout.data import FederatedData
from turnout.data.summary import Division

__all__ = ["print_division"]

#: Clients with a line of their own.
_MOST_LINES = 24
#: Longest bar, and most labels that leave room for bars and names.
_BAR, _MOST_BESIDE = 12, 40

#: How a share is drawn: the first step that it does not exceed.
_SHADES = ((0.0, " "), (0.05, "·"), (0.15, "░"), (0.35, "▒"), (0.65, "▓"), (1.0, "█"))
_COLOURS = (
    *("dodger_blue1", "dark_orange", "green3", "red3", "medium_purple"),
    *("gold3", "deep_pink3", "cyan3", "grey62", "chartreuse3"),
)


def print_division(data: FederatedData, found: Division, title: str) -> None:
    """Print a line for each client, or for some of many, and what they come to."""
    shown = found.sample(_MOST_LINES)
    steps = _steps(data.n_classes)
    console.print(_lines(data, found, shown, title))
    if not data.is_text:
        legend = "  ".join(f"{shade} to {step:.0%}" for step, shade in steps[1:])
        console.print(f"[dim]Share of a label among the client's: {legend}[/]", highlight=False)
    if shown.size < data.n_clients:
        number = f"{shown.size} of {data.n_clients} clients"
        console.print(f"[dim]{number}: evenly, ordered by {found.ordered_by}.[/]", highlight=False)
    console.print(_numbers(data, found))


def _lines(data: FederatedData, found: Division, shown: Any, title: str) -> Table:
    made = table(escape(title), "client", "examples", "", "skew", numbers=("client", "examples"))
    for column in made.columns:
        column.no_wrap = True
    if not data.is_text:
        made.add_column(_heading(data.n_classes), no_wrap=True)
    has_names = bool(data.client_names) and (data.is_text or data.n_classes <= _MOST_BESIDE)
    if has_names:
        made.add_column("name", max_width=28, no_wrap=True)
    longest = _BAR if data.is_text or data.n_classes <= _MOST_BESIDE else 1
    largest = int(found.sizes[shown].max())
    steps, shares = _steps(data.n_classes), found.shares(shown)
    for client, share in zip(shown, shares, strict=True):
        size = int(found.sizes[client])
        bar = "█" * max(1, round(longest * size / largest))
        cells: list[Any] = [str(client), str(size), f"[blue]{bar}[/]", f"{found.skew[client]:.2f}"]
        if not data.is_text:
            cells.append(_shaded(share, steps))
        if has_names:
            cells.append(escape(data.client_names[client]))
        made.add_row(*cells)
    return made


def _steps(n_classes: int) -> list[tuple[float, str]]:
    """Return up to which share each shade goes; with many labels shares are small."""
    factor = min(1.0, len(_COLOURS) / n_classes)
    return [(step if step == 1.0 else step * factor, shade) for step, shade in _SHADES]


def _heading(n_classes: int) -> str:
    if n_classes > len(_COLOURS):
        return f"labels 0 .. {n_classes - 1}"
    return " ".join(str(label) for label in range(n_classes))


def _shaded(shares: Any, steps: list[tuple[float, str]]) -> Text:
    gap = " " if len(shares) <= len(_COLOURS) else ""
    text = Text()
    for label, share in enumerate(shares):
        shade = next(mark for step, mark in steps if share <= step + 1e-9)
        text.append(shade + gap, style=_COLOURS[label % len(_COLOURS)])
    return text


def _numbers(data: FederatedData, found: Division) -> Table:
    made = table("", "what", "value", numbers=("value",))
    sizes = found.sizes
    n_labels = (found.label_counts > 0).sum(axis=1).mean()
    amounts = f"{len(data.y)} / {len(data.y_holdout)} / {len(data.y_test)}"
    labels = "different next words" if data.is_text else "labels"
    made.add_row("clients", str(data.n_clients))
    made.add_row("examples to train / to hold out / to test", amounts)
    spread = f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}"
    made.add_row("examples of a client: least / median / most", spread)
    if sizes.max() - sizes.min() > 1:
        made.add_row("clients by size, from least to most", _histogram(sizes))
    made.add_row(f"{labels} of a client, mean", f"{n_labels:.1f} of {data.n_classes}")
    meaning = "0 = labels as everyone's, 1 = none in common"
    made.add_row(f"skew, mean ({meaning})", f"{found.skew.mean():.3f}")
    return made


def _histogram(sizes: Any) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    is_wide = high > 20 * low
    edges = np.geomspace(low, high, 17) if is_wide else np.linspace(low, high, 17)
    counts, _ = np.histogram(sizes, bins=edges)
    levels = np.ceil(8 * counts / counts.max()).astype(int)
    drawn = "".join(" ▁▂▃▄▅▆▇█"[level] for level in levels)
    return f"{drawn} (log)" if is_wide else drawn
