"""``turnout list``: the available selectors, and one of them in detail."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli.app import documented
from turnout.cli.output import AsJson, console, print_json, show, table
from turnout.core import registry
from turnout.core.describe import HEADINGS, Description, describe
from turnout.core.errors import TurnoutError

#: Longer lines are hard to read.
_WIDEST = 100


@documented
def list_selectors(
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None, *, as_json: AsJson = False
) -> None:
    """Show all selectors, or one of them in detail: parameters, needs, limits and an example.

    Examples: [bold]turnout list[/] or [bold]turnout list e3cs[/]

    Args:
        name: A selector to show in detail; without it all are listed.
        as_json: For programs.
    """
    if name is not None:
        _show_one(describe(name), as_json)
        return
    overview, rows = table("Selectors", "name", "what it is", "needs"), []
    for each in registry.list_selectors():
        try:
            description = describe(each)
        except TurnoutError as error:  # a plug-in is broken; the others can be used
            overview.add_row(f"[bold]{escape(each)}[/]", f"[red]{escape(str(error))}[/]", "")
            rows.append({"name": each, "error": str(error)})
            continue
        parameters = ", ".join(parameter.name for parameter in description.parameters)
        about = escape(description.summary) + (f"\n[dim]{parameters}[/]" if parameters else "")
        needs = ", ".join(description.needs_columns + _required(description))
        overview.add_row(f"[bold]{escape(each)}[/]", about, needs)
        rows.append(_plain(description))
    show(overview, rows, as_json)
    if not as_json:
        console.print("[bold]turnout list NAME[/] explains one, with its parameters.")


def _show_one(description: Description, as_json: bool) -> None:
    if as_json:
        print_json(_plain(description))
        return
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(max_width=_WIDEST, overflow="fold")
    for label, text in _facts(description).items():
        facts.add_row(label, text.replace("``", "") + "\n")
    console.print(f"[bold]{escape(description.title)}[/]\n")
    console.print(facts)


def _required(description: Description) -> tuple[str, ...]:
    return tuple(m for m in description.needs_metrics if m not in description.optional_metrics)


def _facts(description: Description) -> dict[str, str]:
    """Return the rows of the detail view, as markup."""
    needs = {
        "columns": description.needs_columns,
        "columns, where there are any": description.uses_columns,
        "reports of clients": _required(description),
        "reports of clients, where there are any": description.optional_metrics,
        "polls clients for their loss on": (description.polls,) if description.polls else (),
    }
    parameters = [
        f"[bold]{p.name}[/] = {escape(repr(p.default))}  [dim]({escape(p.allowed)})[/]\n"
        f"{escape(p.meaning)}"
        for p in description.parameters
    ]
    needed = [f"{what}: {', '.join(those)}" for what, those in needs.items() if those]
    texts = {heading: escape(description.texts.get(heading, "-")) for heading in HEADINGS}
    n, explained = description.n_deviations, f"python -m pydoc {description.module} explains them"
    return {
        HEADINGS["Idea"]: texts["Idea"],
        "Parameters": "\n\n".join(parameters) or "none",
        "Needs": "\n".join(needed) or "nothing",
        HEADINGS["Limits"]: texts["Limits"],
        "Deviations": f"{n} from the paper; {explained}" if n else "none",
        "Paper": texts["Paper"],
        "In Python": escape(description.call),
        "Try it": escape(description.command),
    }


def _plain(description: Description) -> dict[str, Any]:
    """Return the description as JSON holds it; schedules and infinity are calls that make them."""
    extra = {"summary": description.summary, "command": description.command}
    plain: dict[str, Any] = json.loads(json.dumps(asdict(description) | extra, default=repr))
    for row, parameter in zip(plain["parameters"], description.parameters, strict=True):
        row["default"] = parameter.literal if parameter.default == math.inf else row["default"]
    return plain
