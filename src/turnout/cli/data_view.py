"""Show in the terminal how data is divided among clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from turnout.cli.output import console, table
from turnout.data import FederatedData
from turnout.data.summary import Division

#: Most clients that get a line of their own.
_MOST_LINES = 24
#: Longest bar, and most labels that leave room for bars and names.
_BAR, _MOST_BESIDE = 12, 40

#: How a share is drawn: with the mark of the first limit that it does not exceed.
_SHADES = ((0.0, " "), (0.05, "·"), (0.15, "░"), (0.35, "▒"), (0.65, "▓"), (1.0, "█"))
_COLOURS = (
    *("dodger_blue1", "dark_orange", "green3", "red3", "medium_purple"),
    *("gold3", "deep_pink3", "cyan3", "grey62", "chartreuse3"),
)


def print_division(data: FederatedData, summary: Division, title: str) -> None:
    """Print a line for each client, or for a sample of many, and a summary.

    Args:
        data: The divided dataset.
        summary: Its division in numbers.
        title: Printed above the lines.

    """
    shown = summary.sample(_MOST_LINES)
    steps = _steps(data.n_classes)
    console.print(_lines(data, summary, shown, title))
    if not data.is_text:
        legend = "  ".join(f"{shade} to {step:.0%}" for step, shade in steps[1:])
        console.print(f"[dim]Share of a label among the client's: {legend}[/]", highlight=False)
    if shown.size < data.n_clients:
        number = f"{shown.size} of {data.n_clients} clients"
        console.print(
            f"[dim]{number}: evenly, ordered by {summary.ordered_by}.[/]", highlight=False
        )
    console.print(_numbers(data, summary))


def _lines(data: FederatedData, summary: Division, shown: Any, title: str) -> Table:
    lines = table(escape(title), "client", "examples", "", "skew", numbers=("client", "examples"))
    for column in lines.columns:
        column.no_wrap = True
    if not data.is_text:
        lines.add_column(_heading(data.n_classes), no_wrap=True)
    has_names = bool(data.client_names) and (data.is_text or data.n_classes <= _MOST_BESIDE)
    if has_names:
        lines.add_column("name", max_width=28, no_wrap=True)
    longest = _BAR if data.is_text or data.n_classes <= _MOST_BESIDE else 1
    largest = int(summary.sizes[shown].max())
    steps, shares = _steps(data.n_classes), summary.shares(shown)
    for client, share in zip(shown, shares, strict=True):
        size = int(summary.sizes[client])
        bar = "█" * max(1, round(longest * size / largest))
        cells: list[Any] = [
            str(client),
            str(size),
            f"[blue]{bar}[/]",
            f"{summary.skew[client]:.2f}",
        ]
        if not data.is_text:
            cells.append(_shaded(share, steps))
        if has_names:
            cells.append(escape(data.client_names[client]))
        lines.add_row(*cells)
    return lines


def _steps(n_classes: int) -> list[tuple[float, str]]:
    """Return the largest share that each mark stands for; many labels mean small shares."""
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


def _numbers(data: FederatedData, summary: Division) -> Table:
    numbers = table("", "what", "value", numbers=("value",))
    sizes = summary.sizes
    n_labels = (summary.label_counts > 0).sum(axis=1).mean()
    amounts = f"{len(data.y)} / {len(data.y_holdout)} / {len(data.y_test)}"
    labels = "different next words" if data.is_text else "labels"
    numbers.add_row("clients", str(data.n_clients))
    numbers.add_row("examples to train / to hold out / to test", amounts)
    spread = f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}"
    numbers.add_row("examples of a client: least / median / most", spread)
    if sizes.max() - sizes.min() > 1:
        numbers.add_row("clients by size, from least to most", _histogram(sizes))
    numbers.add_row(f"{labels} of a client, mean", f"{n_labels:.1f} of {data.n_classes}")
    meaning = "0 = the same labels as all clients together, 1 = none in common"
    numbers.add_row(f"skew, mean ({meaning})", f"{summary.skew.mean():.3f}")
    return numbers


def _histogram(sizes: Any) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    is_wide = high > 20 * low
    edges = np.geomspace(low, high, 17) if is_wide else np.linspace(low, high, 17)
    counts, _ = np.histogram(sizes, bins=edges)
    levels = np.ceil(8 * counts / counts.max()).astype(int)
    drawn = "".join(" ▁▂▃▄▅▆▇█"[level] for level in levels)
    return f"{drawn} (log)" if is_wide else drawn
