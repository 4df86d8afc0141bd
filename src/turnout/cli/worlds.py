"""``turnout worlds``: the named worlds, the parts to build others from, and one part in detail."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout import worlds as environments
from turnout.cli.app import documented
from turnout.cli.output import AsJson, console, print_json, show, table
from turnout.core.describe import entries, sections
from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.experiment.codec import FAMILIES, encode
from turnout.worlds import WORLDS
from turnout.worlds.timing import Noise

#: The families of models that a world is made of, by where they stand in its table.
_PARTS: dict[str, type] = {
    "availability": environments.Availability,
    "volatility": environments.Volatility,
    "timing": environments.Timing,
    "energy": environments.Energy,
    "timing.devices": environments.Devices,
    "timing.noise": Noise,
    "population": environments.Population,
    "losses": environments.SyntheticLoss,
}


@documented
def worlds(
    kind: Annotated[str | None, typer.Argument(metavar="KIND")] = None, *, as_json: AsJson = False
) -> None:
    """Show the worlds and the kinds of their parts, or one kind with its fields and an example.

    Examples: [bold]turnout worlds[/] or [bold]turnout worlds markov[/]

    Args:
        kind: A kind to show in detail; without it all are listed.
        as_json: For programs.
    """
    kinds = ((part, *each) for part, base in _PARTS.items() for each in FAMILIES[base].items())
    rows = [_row(part, name, cls) for part, name, cls in kinds]
    if kind is not None:
        chosen = [row for row in rows if row["kind"] == kind]
        if not chosen:
            hint = nearest(kind, [row["kind"] for row in rows])
            raise InvalidInput(f"KIND: there is no part of a world called {kind!r}.{hint}")
        _show_kind(chosen[0], as_json)
        return
    if not as_json:
        named = table("Worlds by name (--world)", "name", "what it is")
        for name, world in WORLDS.items():
            named.add_row(f"[bold]{name}[/]", escape(world.what))
        console.print(named)
    parts = table("Parts of a world", "part", "kind", "what it is")
    for row in rows:
        fields = ", ".join(field["name"] for field in row["fields"])
        about = escape(row["about"]) + (f"\n[dim]{fields}[/]" if fields else "")
        parts.add_row(row["part"], f"[bold]{row['kind']}[/]", about)
    show(parts, rows, as_json)
    if not as_json:
        console.print("[bold]turnout worlds KIND[/] explains one, with its fields.")


def _row(part: str, kind: str, cls: Any) -> dict[str, Any]:
    documented_by = [base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)]
    meanings = {
        name: each for base in documented_by for name, each in entries(base.__doc__).items()
    }
    try:
        example = encode(cls())
    except InvalidInput:  # it needs the path of a file
        example = encode(cls(path="mine.npz" if kind.startswith("fitted-") else "mine.csv"))
    fields = [
        {"name": name, "default": example.get(name), "meaning": meanings[name].meaning}
        for name in (field.name for field in dataclasses.fields(cls))
    ]
    about = sections(cls.__doc__)[0].replace("``", "")
    return {"part": part, "kind": kind, "about": about, "fields": fields, "example": example}


def _show_kind(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    console.print(f"[bold]{row['kind']}[/]: {escape(row['about'])}\n")
    fields = table("", "field", "default", "meaning")
    for field in row["fields"]:
        meaning = escape(field["meaning"].replace("``", ""))
        fields.add_row(f"[bold]{field['name']}[/]", escape(_toml(field["default"])), meaning)
    if row["fields"]:
        console.print(fields)
    console.print("In a file for --world:")
    console.print(f"  {escape(_example(row))}", soft_wrap=True)


def _example(row: dict[str, Any]) -> str:
    outer, _, inner = row["part"].partition(".")
    wrapper = {"devices": "device-times", "noise": "heavy-tail"}
    content = {"kind": wrapper[inner], inner: row["example"]} if inner else row["example"]
    return f"{outer} = {_toml(content)}"


def _toml(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        items = [f"{name} = {_toml(item)}" for name, item in value.items() if item is not None]
        return f"{{ {', '.join(items)} }}"
    return json.dumps(value)
