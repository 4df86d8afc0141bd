"""The code outside of turnout that a configuration names, as digests of its files."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnout.experiment.config import Experiment
from turnout.experiment.variants import Variant
from turnout.registry import find, names

_PATH = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*(?:\.\w+)*")
#: Folders in which files that do not belong together lie side by side.
_INSTALLED = ("site-packages", "dist-packages")


def code_of(experiment: Experiment, variant: Variant) -> dict[str, str]:
    """Return the digest of every file outside of turnout that a cell depends on, by short name.

    A text in the configuration names code if it is a path ``module:Name`` or the name of a plug-in.
    The files are that module and what it imports from beside it: from its folder, or from its
    package if it is installed. What is loaded in other ways, such as a data file, is not seen.

    Args:
        experiment: What the cell is part of.
        variant: The selector.

    Returns:
        Digests of bytes. A module that is not in a file, as in a notebook, has an empty one.
    """
    table = experiment.table()
    parts = [table["world"], table["policy"], table.get("training")]
    plugins = set(names())
    modules = {
        module
        for text in _texts([variant.name, variant.parameters, *parts])
        for module in _named(text, plugins)
        if module.partition(".")[0] != "turnout"
    }
    return {
        name: digest
        for module in sorted(modules)
        for name, digest in sorted(_digests(module).items())
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _named(text: str, plugins: set[str]) -> list[str]:
    """Return the module of what a text names, if it names anything."""
    path = _PATH.fullmatch(text)
    if path is None:
        return [find(text).__module__] if text in plugins else []
    with contextlib.suppress(Exception):  # whatever somebody else's module raises
        importlib.import_module(path[1])
    return [path[1]] if path[1] in sys.modules else []


def _digests(module: str) -> dict[str, str]:
    origin = getattr(sys.modules[module], "__file__", None)
    if origin is None or not Path(origin).is_file():
        return {module: ""}
    start = Path(origin).absolute()
    is_package = start.name == "__init__.py"
    base = start.parents[module.count(".") + is_package]
    package = module.partition(".")[0] if base.name in _INSTALLED else ""
    digests: dict[str, str] = {}
    waiting = {start, *_files(base, module)}
    while waiting:
        file = waiting.pop()
        content = file.read_bytes()
        digests[file.relative_to(base).as_posix()] = hashlib.sha256(content).hexdigest()
        waiting |= {
            beside
            for name in _imports(content, file.relative_to(base))
            if not package or name.partition(".")[0] == package
            for beside in _files(base, name)
            if beside.relative_to(base).as_posix() not in digests
        }
    return digests


def _files(base: Path, module: str) -> list[Path]:
    """Return the files of a module and of the packages around it, as far as they are there."""
    parts = module.split(".")
    files = [base.joinpath(*parts[:size], "__init__.py") for size in range(1, len(parts) + 1)]
    files.append(base.joinpath(*parts).with_suffix(".py"))
    return [file for file in files if file.is_file()]


def _imports(content: bytes, place: Path) -> Iterator[str]:
    """Return the modules that a file imports; some of the names may be no modules."""
    if place.suffix != ".py":
        return
    package = ".".join(place.parent.parts)
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # it was not imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = "." * node.level + (node.module or "")
            with contextlib.suppress(ImportError):  # of a package, in a file that is in none
                module = importlib.util.resolve_name(stem, package)
                yield from (f"{module}.{alias.name}" for alias in node.names)
