"""The files that a configuration names, as digests: code, built-in selectors, traces."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from turnout.core.registry import find, list_selectors
from turnout.data.files import content_id
from turnout.experiment.config import Experiment
from turnout.experiment.variants import Variant

_PATH = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*(?:\.\w+)*")
#: Folders in which files that do not belong together lie side by side.
_INSTALLED = ("site-packages", "dist-packages")
#: What a built-in selector is made of; a version stands for the rest of turnout.
_ALGORITHMS = ("selectors", "sampling")
#: Files of which it is remembered what they import, and what they are without comments: each cell
#: of an experiment asks for those of its selector.
_MOST_FILES = 512
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources_of(experiment: Experiment, variant: Variant) -> dict[str, dict[str, str]]:
    """Return the digests of everything that a cell is made of, for ``versions.json``.

    Args:
        experiment: The experiment of the cell.
        variant: The selector.
    """
    return {"code": code_of(experiment, variant), "files": files_of(experiment, variant)}


def code_of(experiment: Experiment, variant: Variant) -> dict[str, str]:
    """Return the digest of every file outside of turnout that a cell depends on, by short name.

    A text in the configuration names code if it is a path ``module:Name`` or the name of a plug-in.
    The files are that module and what it imports from beside it: from its folder, or from its
    package if it is installed. What is loaded in other ways, such as a data file, is not seen.

    Args:
        experiment: The experiment of the cell.
        variant: The selector.

    Returns:
        Digests of bytes. A module that is not in a file, as in a notebook, has an empty one.
    """
    table = experiment.table()
    parts = [table["world"], table["policy"], table.get("training")]
    modules = itertools.filterfalse(_is_ours, _modules(variant, parts))
    digests = (sorted(_digests(module).items()) for module in sorted(modules))
    return dict(itertools.chain.from_iterable(digests))


def files_of(experiment: Experiment, variant: Variant) -> dict[str, str]:
    """Return digests of the built-in selector of a cell, and of the traces of its world.

    A built-in selector is its module and what that imports of sampling. Comments
    and docstrings do not count.

    Args:
        experiment: The experiment of the cell.
        variant: The selector.

    Returns:
        Digests by the path inside turnout, or by the path of a trace as it was given.
    """
    base = Path(__file__).parents[2]
    modules = filter(_is_ours, _modules(variant))
    named = {file for module in modules for file in _files(base, module)[-1:]}
    ours = _reached(base, named, _is_algorithm)
    digests = {name: _digest_of_bare(content) for name, content in ours.items()}
    world = _texts(experiment.table()["world"])
    traces = {path: content_id(Path(path)) for key, path in world if key == "path"}
    return dict(sorted(digests.items())) | traces


def _modules(variant: Variant, parts: Any = ()) -> set[str]:
    """Return the modules that a selector and other parts name; the latter name them by path."""
    own = [text for _, text in _texts([variant.name, variant.parameters])]
    # Plug-ins are looked for on the disk, and so only for names that are not built in.
    built_in = list_selectors(plugins=False)
    selectors = (text for text in own if text in built_in or text in list_selectors())
    named = {find(text).__module__ for text in selectors}
    paths = itertools.chain(own, (text for _, text in _texts(parts)))
    return named.union(*map(_named, paths))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "turnout"


def _is_algorithm(name: str) -> bool:
    """Return whether a file of turnout is a part of what selectors compute."""
    parts = name.split("/")
    is_index = name == "turnout/selectors/__init__.py"  # which imports every selector
    return len(parts) > 2 and parts[1] in _ALGORITHMS and not is_index


@functools.lru_cache(maxsize=_MOST_FILES)
def _digest_of_bare(content: bytes) -> str:
    return hashlib.sha256(_bare(content)).hexdigest()


def _bare(content: bytes) -> bytes:
    """Return the source of a module without comments, docstrings and blank lines."""
    lines = content.decode().splitlines()
    for token in tokenize.generate_tokens(io.StringIO(content.decode()).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in some settings, each with the key that it belongs to."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, key)


def _named(text: str) -> list[str]:
    """Return the module of what a path names."""
    path = _PATH.fullmatch(text)
    if path is None:
        return []
    with contextlib.suppress(Exception):  # code of others may raise anything
        importlib.import_module(path[1])
    return [path[1]] if path[1] in sys.modules else []


def _digests(module: str) -> dict[str, str]:
    origin = getattr(sys.modules[module], "__file__", None)
    if origin is None or not Path(origin).is_file():
        return {module: ""}
    start = Path(origin).absolute()
    is_package = start.name == "__init__.py"
    base = start.parents[module.count(".") + is_package]
    package = f"{module.partition('.')[0]}/" if base.name in _INSTALLED else ""
    contents = _reached(base, {start, *_files(base, module)}, lambda name: name.startswith(package))
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _reached(
    base: Path, start: Iterable[Path], is_wanted: Callable[[str], bool]
) -> dict[str, bytes]:
    """Return the contents of files, and of what they import from below a folder, by short name."""
    contents: dict[str, bytes] = {}
    waiting = set(start)
    while waiting:
        file = waiting.pop()
        place = file.relative_to(base)
        contents[place.as_posix()] = content = file.read_bytes()
        for beside in (file for name in _imports(content, place) for file in _files(base, name)):
            short = beside.relative_to(base).as_posix()
            if short not in contents and is_wanted(short):
                waiting.add(beside)
    return contents


def _files(base: Path, module: str) -> list[Path]:
    """Return the files of a module and of the packages around it that exist."""
    parts = module.split(".")
    files = [base.joinpath(*parts[:size], "__init__.py") for size in range(1, len(parts) + 1)]
    files.append(base.joinpath(*parts).with_suffix(".py"))
    return [file for file in files if file.is_file()]


@functools.lru_cache(maxsize=_MOST_FILES)
def _imports(content: bytes, place: Path) -> tuple[str, ...]:
    """Return the modules that a file imports; some of the names may be no modules."""
    package, found = ".".join(place.parent.parts), list[str]()
    try:
        tree = ast.parse(content if place.suffix == ".py" else b"")
    except (SyntaxError, ValueError):  # it was not imported
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = "." * node.level + (node.module or "")
            with contextlib.suppress(ImportError):  # of a package, in a file that is in none
                module = importlib.util.resolve_name(stem, package)
                found += (module, *(f"{module}.{alias.name}" for alias in node.names))
    return tuple(dict.fromkeys(found))
