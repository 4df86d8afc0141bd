"""TOML files whose errors name the line: where a key stands in a text."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from turnout.errors import InvalidInput
from turnout.experiment.codec import Key, key_of

_T = TypeVar("_T")

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_ASSIGNED = re.compile(r"(?:^|[{,\s])\s*([A-Za-z0-9_.\"'-]+)\s*=")


def read_toml(path: str | os.PathLike[str], build: Callable[[dict[str, Any], str], _T]) -> _T:
    """Return what is built of a file; errors name the file, the line and the key.

    Args:
        path: The file.
        build: Makes it of the file's table and name.

    Raises:
        InvalidInput: The file cannot be read, or what is in it is wrong.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
    try:
        return build(tomllib.loads(text), file.stem)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{file} is not TOML: {error}.") from error
    except InvalidInput as error:
        line = line_of(text, key_of(error))
        where = file.name if line is None else f"{file.name}, line {line}"
        raise InvalidInput(f"{where}: {error}", field=error.field) from error


def line_of(text: str, key: Key) -> int | None:
    r"""Return the line of a key, counted from 1, or of the nearest table around it.

    >>> line_of('name = "x"\n[[selectors]]\nname = "e3cs"\n', ("selectors", 0, "name"))
    3
    """
    lines = _lines(text)
    by_name = [line for path, line in lines.items() if path[-1:] == key[-1:]]
    if key not in lines and key[:-1] not in lines and len(by_name) == 1:
        return by_name[0]
    paths = (key[:size] for size in range(len(key), 0, -1))
    return next((lines[path] for path in paths if path in lines), None)


def _lines(text: str) -> dict[Key, int]:
    """Return the line on which each key is first assigned or opened."""
    lines: dict[Key, int] = {}
    here: Key = ()
    arrays: dict[Key, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header:
            here = _opened(header.group(2), header.group(1) == "[[", arrays)
            lines.setdefault(here, number)
            continue
        if line.lstrip().startswith("#"):
            continue
        outer: Key | None = None
        for match in _ASSIGNED.finditer(line):
            path = (*(here if outer is None else outer), *_parts(match.group(1)))
            outer = path if outer is None else outer
            lines.setdefault(path, number)
    return lines


def _opened(name: str, is_array: bool, arrays: dict[Key, int]) -> Key:
    """Return the path of a table header; entries of arrays of tables are numbered."""
    path: Key = ()
    parts = _parts(name)
    for index, part in enumerate(parts):
        path = (*path, part)
        if index == len(parts) - 1 and is_array:
            arrays[path] = arrays.get(path, -1) + 1
        if path in arrays:
            path = (*path, arrays[path])
    return path


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in name.split("."))
