"""For authors of selectors: ``turnout new``, ``check`` and ``bench``."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.progress import track

from turnout.cli.app import documented
from turnout.cli.output import AsJson, console, errors, show, table, text_table
from turnout.core.errors import InvalidInput
from turnout.core.files import writing_to
from turnout.core.registry import ENTRY_POINT_GROUP, list_selectors, make
from turnout.selectors import _template
from turnout.testing import CHECKS, CheckResult, check_selector
from turnout.testing.checks import flat_columns, said_once
from turnout.testing.speed import measure

Item = TypeVar("Item")

new = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Start a plug-in package.")


@new.callback()
def _new() -> None:
    """Start a plug-in package."""


@new.command("selector")
@documented
def selector(name: str, *, to: Path | None = None) -> None:
    """Write a package with a working selector, its entry point and its test.

    Example: [bold]turnout new selector my-method[/]

    Args:
        name: Its name: lower case, words joined by -.
        to: The new folder; default: as the name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        wanted = "lower-case words joined by '-', such as my-method"
        raise InvalidInput(f"NAME must be {wanted}, got {name!r}.", field="NAME")
    module = name.replace("-", "_")
    if name in list_selectors() or importlib.util.find_spec(module) is not None:
        problem = "is taken by a selector or a module: choose another"
        raise InvalidInput(f"NAME {name!r} {problem}.", field="NAME")
    folder = Path(name) if to is None else to
    cls = "".join(word.capitalize() for word in name.split("-"))
    words = {"name": name, "module": module, "cls": cls, "group": ENTRY_POINT_GROUP}
    files = {
        "pyproject.toml": _template_text("pyproject").format_map(words),
        f"{module}.py": _selector_source(name, module, cls),
        f"test_{module}.py": _template_text("test").format_map(words),
    }
    with writing_to(folder, "choose another folder with --to"):
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    written = f"[green]Written:[/] {', '.join(files)} in {escape(str(folder))}."
    console.print(written, highlight=True)
    console.print(
        f"Next: cd {folder}; turnout check {module}:{cls}; python -m pytest; pip install -e .; "
        f"turnout compare random {name}",
        markup=False,
        soft_wrap=True,
    )


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


@documented
def check(selector: str, *, as_json: AsJson = False) -> None:
    """Run the seventeen checks of the contract on a selector; exit code 1 if one fails.

    Examples: [bold]turnout check e3cs[/] or [bold]turnout check mypackage.mymodule:MySelector[/]

    Args:
        selector: A name from turnout list, or module:Class.
        as_json: For programs.
    """
    instance = make(selector)  # a bad name or bad defaults are reported before anything runs
    results: list[CheckResult] = []
    for rule in _tracked(CHECKS, f"checking {selector}", as_json):
        results += check_selector(lambda: make(selector), checks=[rule])
    results = said_once(results)
    verdicts = table(f"Contract of {selector}", "#", "check", "result", "seconds", numbers=("#",))
    for result in results:
        verdict = "[green]passed[/]" if result.passed else "[red]failed[/]"
        verdict += f" {escape(result.message)}"
        verdicts.add_row(str(result.number), result.name, verdict, f"{result.seconds:.2f}")
    rows = [asdict(result) | {"seconds": round(result.seconds, 3)} for result in results]
    show(verdicts, rows, as_json)
    if not all(result.passed for result in results):
        if flat := flat_columns(instance):
            errors.print(
                f"The checks filled {', '.join(flat)} with one number per client. If a column has "
                f'd numbers per client, declare check_columns = {{"{flat[0]}": d}}.',
                markup=False,
            )
        raise typer.Exit(1)


#: Fields that are wrong if a selector refuses so many clients.
_SIZES = frozenset({"n_clients", "candidates"})


@documented
def bench(
    selectors: list[str] | None = None,
    *,
    clients: Annotated[int, typer.Option(min=1)] = 100_000,
    cohort: Annotated[int, typer.Option(min=1)] = 100,
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    as_json: AsJson = False,
) -> None:
    """Time select and observe; the floor is the time of one random vector and its partition.

    Example: [bold]turnout bench e3cs oort --clients 1000000[/]

    Args:
        selectors: Names or module:Class; by default all that take so many clients.
        clients: Number of clients.
        cohort: Clients chosen per round.
        repeats: Rounds timed per selector.
        as_json: For programs.
    """
    wanted = selectors or list(list_selectors())
    instances = [make(name) for name in wanted]  # bad names are reported before anything runs
    rows: list[dict[str, Any]] = []
    for name, selector in _tracked(list(zip(wanted, instances, strict=True)), "timing", as_json):
        try:
            speed = measure(selector, clients, cohort, repeats)
        except InvalidInput as error:
            if selectors or error.field not in _SIZES:
                raise
            errors.print(f"{name} is left out: {error}", markup=False, soft_wrap=True)
            continue
        row = {"selector": name, "n_clients": clients, "round_ms": 1e3 * speed.round_s}
        row |= {"floor_ms": 1e3 * speed.floor_s, "ratio": speed.ratio}
        rows.append(row | {"bytes_per_client": speed.bytes_per_client})
    headings = ("selector", "ms per round", "ms floor", "ratio", "bytes/client")
    form = "{selector}|{round_ms:.2f}|{floor_ms:.2f}|{ratio:.1f}x|{bytes_per_client:.0f}"
    cells = (form.format_map(row).split("|") for row in rows)
    show(text_table(f"{clients:,} clients, cohort {cohort}", headings, cells), rows, as_json)


def _tracked(items: Sequence[Item], what: str, quiet: bool) -> Iterable[Item]:
    """Return the items, with a progress bar while they are worked on."""
    return track(items, what, console=console, transient=True, disable=quiet)
