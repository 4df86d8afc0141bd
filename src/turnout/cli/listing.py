"""``turnout list``: the selectors that can be used here."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from turnout.cli.output import AsJson, show, table
from turnout.registry import find, names

__all__ = ["list_selectors"]


def list_selectors(as_json: AsJson = False) -> None:
    """Show all selectors, what they need and their parameters.

    Example: [bold]turnout list[/]
    """
    rows = [_row(name) for name in names()]
    made = table("Selectors and their parameters", "name", "what it is", "needs")
    for row in rows:
        parameters = ", ".join(f"{name}={value}" for name, value in row["parameters"].items())
        about = row["summary"] + (f"\n[dim]{parameters}[/]" if parameters else "")
        needs = ", ".join(row["needs_columns"] + row["needs_metrics"])
        made.add_row(f"[bold]{row['name']}[/]", about, needs)
    show(made, rows, as_json)


def _row(name: str) -> dict[str, Any]:
    cls = find(name)
    selector = cls()
    docstring = inspect.getdoc(sys.modules[cls.__module__]) or inspect.getdoc(cls) or ""
    first = docstring.splitlines()[0] if docstring else ""
    return {
        "name": name,
        "summary": first.partition(": ")[2].rstrip(".") or first,
        "needs_columns": sorted(selector.needs_columns),
        "needs_metrics": sorted(selector.needs_metrics),
        "parameters": {key: _plain(value) for key, value in selector.parameters.items()},
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
