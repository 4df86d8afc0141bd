"""Printing: a table for people or JSON for programs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["AsJson", "console", "show", "table"]

#: The option that every command has.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

console = Console()


def table(title: str, *headings: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in ``numbers`` are aligned to the right."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for heading in headings:
        made.add_column(heading, justify="right" if heading in numbers else "left")
    return made


def show(made: Table, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows as JSON, or the table that was made of them."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        console.print(made)
