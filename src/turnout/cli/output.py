"""Printing: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from turnout.core.plain import finite
from turnout.results.metric import Facts, Metric

#: The option that every command has.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
#: The argument of commands that read runs.
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...")]

console = Console(highlight=False)
#: For what is not the answer itself: notes and errors.
errors = Console(stderr=True, highlight=False)

#: Width of a column's border and padding, and of the longest label that is not folded.
_BORDER, _WIDEST_LABEL = 3, 30


def table(title: str, *headings: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in ``numbers`` are aligned to the right."""
    empty = Table(title=title, title_justify="left", header_style="bold")
    for heading in headings:
        empty.add_column(heading, justify="right" if heading in numbers else "left")
    return empty


def text_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts; all columns but the first are aligned to the right.

    Args:
        title: Above it.
        headings: One per column.
        rows: The cells.
    """
    shown = table(title, *headings, numbers=tuple(headings[1:]))
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row))
    return shown


def fitted(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Table]:
    """Return tables that are as wide as the terminal at most, with no number broken.

    Columns that do not fit are in further tables, each with the first column.

    Args:
        headings: One per column.
        rows: The cells, row by row, as markup.
    """
    first, *columns = zip(headings, *rows, strict=True)
    widths = [max(Text.from_markup(text).cell_len for text in each) for each in (first, *columns)]
    room = console.width - 1 - (min(widths.pop(0), _WIDEST_LABEL) + _BORDER)
    parts: list[list[int]] = []  # the columns of each table, at least one
    left = 0
    for column, width in enumerate(widths):
        if not parts or width + _BORDER > left:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= width + _BORDER
    tables = [table("", first[0]) for _ in parts]
    for shown, part in zip(tables, parts, strict=True):
        shown.columns[0].max_width, shown.columns[0].overflow = _WIDEST_LABEL, "fold"
        for column in part:
            shown.add_column(columns[column][0], justify="right", width=widths[column])
        for label, *cells in zip(first[1:], *(columns[column][1:] for column in part), strict=True):
            shown.add_row(label, *cells)
    return tables


def metric_table(title: str, metrics: Iterable[Metric[Facts]], summary: Mapping[str, Any]) -> Table:
    """Return one row per metric of a single run; an old run may lack some."""
    rows = table(escape(title), "metric", "value", "meaning", numbers=("value",))
    for metric in metrics:
        if metric.key in summary:
            rows.add_row(metric.title, metric.written(summary[metric.key]), metric.meaning)
    return rows


def note(text: str, kind: str = "note", *, soft_wrap: bool = False) -> None:
    """Print a note for people to standard error.

    Args:
        text: The note, as plain text.
        kind: The word before it.
        soft_wrap: Whether the terminal breaks long lines.
    """
    errors.print(f"[yellow]{kind}:[/] {escape(text)}", soft_wrap=soft_wrap)


def print_json(content: Any) -> None:
    """Print JSON for programs; a number that is not finite is null."""
    typer.echo(json.dumps(finite(content), indent=2, allow_nan=False))


def show(drawn: Table, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows as JSON, or the table that was made of them."""
    if as_json:
        print_json(rows)
    else:
        console.print(drawn)
