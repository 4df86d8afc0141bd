"""Printing: a table for people or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnout.runs.facts import Facts
from turnout.runs.metric import Metric

__all__ = ["AsJson", "console", "metric_table", "show", "table"]

#: The option that every command has.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

console = Console()


def table(title: str, *headings: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in ``numbers`` are aligned to the right."""
    empty = Table(title=title, title_justify="left", header_style="bold")
    for heading in headings:
        empty.add_column(heading, justify="right" if heading in numbers else "left")
    return empty


def metric_table(title: str, metrics: Iterable[Metric[Facts]], summary: Mapping[str, Any]) -> Table:
    """Return one row per metric of a single run; an old run may lack some."""
    rows = table(escape(title), "metric", "value", "meaning", numbers=("value",))
    for metric in metrics:
        if metric.key in summary:
            rows.add_row(metric.title, metric.written(summary[metric.key]), metric.meaning)
    return rows


def show(drawn: Table, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows as JSON, or the table that was made of them."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        console.print(drawn)
