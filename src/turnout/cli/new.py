"""``turnout new``: start a package of your own."""

from __future__ import annotations

import importlib.util
import inspect
import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from turnout.cli.output import console
from turnout.errors import InvalidInput, OutputError
from turnout.registry import ENTRY_POINT_GROUP, names
from turnout.selectors import _template

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Start a plug-in package.")


@app.callback()
def _new() -> None:
    """Start a plug-in package."""


@app.command("selector")
def selector(
    name: Annotated[str, typer.Argument(help="Its name: lower case, words joined by -.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="The new folder; default: as the name.")
    ] = None,
) -> None:
    """Write a package with a working selector, its entry point and its test.

    Example: [bold]turnout new selector my-method[/]
    """
    module = _checked_module(name)
    folder = Path(name) if to is None else to
    cls = "".join(word.capitalize() for word in name.split("-"))
    words = {"name": name, "module": module, "cls": cls, "group": ENTRY_POINT_GROUP}
    files = {
        "pyproject.toml": _template_text("pyproject").format_map(words),
        f"{module}.py": _selector_source(name, module, cls),
        f"test_{module}.py": _template_text("test").format_map(words),
    }
    try:
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "choose another folder with --to"
        raise OutputError(f"{folder} cannot be written: {error}; {fix}.") from error
    console.print(f"[green]Written:[/] {', '.join(files)} in {escape(str(folder))}.")
    console.print(
        f"Next: cd {folder}; turnout check {module}:{cls}; python -m pytest; pip install -e .; "
        f"turnout compare random {name}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _checked_module(name: str) -> str:
    """Return the module of a selector, or refuse its name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise InvalidInput(
            f"NAME must be lower-case words joined by '-', such as my-method, got {name!r}.",
            field="NAME",
        )
    module = name.replace("-", "_")
    if name in names() or importlib.util.find_spec(module) is not None:
        raise InvalidInput(
            f"NAME {name!r} is taken by a selector or a module: choose another.", field="NAME"
        )
    return module


def _template_text(name: str) -> str:
    return resources.files("turnout.cli").joinpath(f"templates/{name}.txt").read_text("utf-8")


def _selector_source(name: str, module: str, cls: str) -> str:
    """Return the template with its placeholders filled in."""
    text = inspect.getsource(_template)
    replaced = {
        "NAME: one line in words. Copy this file, it is a working selector.": (
            f"{name}: one line in words. Fill in what follows."
        ),
        '; above it belongs ``@register("name")``': "",
        "class Template(": f"class {cls}(",
        "tests/test_name.py": f"test_{module}.py",
    }
    for before, after in replaced.items():
        text = text.replace(before, after)
    return text
