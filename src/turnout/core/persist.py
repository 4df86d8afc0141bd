"""Save and load a selector: one ``.npz`` of arrays with a JSON header, no pickle, atomic."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core import require
from turnout.core.errors import StateFileError, TurnoutError
from turnout.core.files import UNREADABLE, read_npz, write_npz
from turnout.core.plain import CONTAINERS, CannotEncode, Codec, Record, Rule
from turnout.core.registry import make, name_of
from turnout.core.selector import Selector
from turnout.core.types import Array
from turnout.core.version import current_path

__all__ = ["FORMAT", "MOST_CLIENTS", "load", "save"]

#: Version of the file format; a file with a larger number was written by a newer turnout.
FORMAT = 1

#: The largest federation that is loaded without asking for it.
MOST_CLIENTS = 100_000_000

_HEADER = "header"


def save(selector: Selector, path: str | os.PathLike[str]) -> None:
    """Write a selector's parameters and state; a crash leaves the old file or the new one.

    Args:
        selector: A selector that has been reset.
        path: The file, by custom ``*.npz``.

    Raises:
        StateFileError: A parameter cannot be saved.
    """
    require.instance("selector", selector, Selector)
    # The header is JSON text in an array of its own, so that the file needs no pickle.
    header = {
        "format": FORMAT,
        "selector": name_of(type(selector)),
        "n_clients": selector.n_clients,
        "parameters": {name: _encode(name, value) for name, value in selector.parameters.items()},
    }
    arrays = {_HEADER: np.array(json.dumps(header, sort_keys=True))}
    write_npz(path, arrays | selector.state())


def load(
    path: str | os.PathLike[str],
    *,
    into: Selector | None = None,
    max_clients: int = MOST_CLIENTS,
) -> Selector:
    """Return the saved selector, or restore the state of ``into`` if it is the same selector.

    Nothing is allocated before the file's sizes are checked. Its arrays may take 64 MB or 20 times
    the size of the file; the variable ``TURNOUT_MAX_ARRAY_MB`` sets another limit.

    Args:
        path: A file that ``save`` wrote.
        into: A selector whose state is replaced. Nothing changes in it unless the file fits its
            class, its parameters and its size.
        max_clients: The largest federation that the file may be for.

    Raises:
        StateFileError: The file is missing, damaged, too new, too large, or does not fit.
    """
    header, state = _read(Path(path))
    n_clients = header["n_clients"]
    if n_clients > max_clients:
        raise StateFileError(
            f"{path} is for n_clients = {n_clients}, more than max_clients = {max_clients}: raise "
            "max_clients if you trust the file."
        )
    parameters = {key: _decode(key, value) for key, value in header["parameters"].items()}
    if into is not None:
        _check_same(Path(path), into, header | {"parameters": parameters})
    try:
        selector = into
        if selector is None:
            _check_imported("selector", header["selector"])
            selector = make(header["selector"], **parameters)
            selector.check_sizes(state, n_clients)
            selector.reset(n_clients)
        selector.load_state(state)
    except StateFileError as error:
        raise StateFileError(f"{path}: {error}") from error
    except UNREADABLE as error:  # turnout's own errors are among them
        raise StateFileError(f"{path} cannot be restored: {error}") from error
    return selector


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    if not path.exists():
        raise StateFileError(f"{path} does not exist; save one with turnout.save(selector, path).")
    try:
        state = read_npz(path)
        header = json.loads(str(state.pop(_HEADER)))
        _check_format(path, header["format"])
        name, n_clients = header["selector"], header["n_clients"]
        if not (isinstance(name, str) and isinstance(header["parameters"], dict)):
            raise StateFileError(f"{path} has a damaged header; restore it from an earlier save.")
        if n_clients != state["n_clients_"].item() or not isinstance(n_clients, int):
            raise StateFileError(f"{path} says n_clients = {n_clients!r}, its arrays differ.")
    except TurnoutError:
        raise
    except UNREADABLE as error:
        raise StateFileError(
            f"{path} is not a complete state file ({type(error).__name__}: {error}); "
            "restore it from an earlier save."
        ) from error
    return header, state


def _check_format(path: Path, version: Any) -> None:
    if not isinstance(version, int) or version < 1:
        raise StateFileError(f"{path} has no valid format number, got {version!r}.")
    if version > FORMAT:
        raise StateFileError(
            f"{path} has format {version}, this turnout reads up to {FORMAT}: upgrade turnout."
        )


def _check_same(path: Path, selector: Selector, header: dict[str, Any]) -> None:
    own, name, n_clients = name_of(type(selector)), header["selector"], header["n_clients"]
    if name != own:
        raise StateFileError(f"{path} holds the state of {name!r}, not of {own!r}.")
    if n_clients != selector.n_clients:
        raise StateFileError(
            f"{path} holds n_clients = {n_clients}, this {own!r} has {selector.n_clients}: "
            "load it on its own and use grow(n_clients)."
        )
    # A parameter that is newer than the file had its default then.
    then = selector.default_parameters() | header["parameters"]
    for key, value in selector.parameters.items():
        saved = then.get(key)
        if saved != value:
            raise StateFileError(f"{path} has {key} = {saved!r}, this {own!r} has {value!r}.")


def _encode(name: str, value: Any) -> Any:
    try:
        return _PARAMETERS.encode(value)
    except CannotEncode as error:
        raise StateFileError(
            f"{name} = {value!r} cannot be saved ({error}): use a number, a string, a list, a "
            "tuple, a dict or a dataclass of them."
        ) from error


def _decode(name: str, plain: Any) -> Any:
    try:
        return _PARAMETERS.decode(plain)
    except StateFileError as error:
        raise StateFileError(f"{name}: {error}") from error
    except UNREADABLE as error:
        raise StateFileError(f"{name} is damaged: {plain!r} ({error}).") from error


def _write_record(record: Any, walk: Callable[[Any], Any]) -> dict[str, Any]:
    cls = type(record)
    fields = {field.name: walk(getattr(record, field.name)) for field in dataclasses.fields(record)}
    return {"dataclass": f"{cls.__module__}:{cls.__qualname__}", "fields": fields}


def _read_record(content: dict[str, Any], walk: Callable[[Any], Any]) -> Any:
    path, fields = content["dataclass"], content["fields"]
    _check_imported("its class", path)
    module_name, _, class_name = path.partition(":")
    cls: Any = sys.modules.get(current_path(module_name))
    for part in class_name.split("."):
        cls = getattr(cls, part, None)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise StateFileError(f"{path} is not a dataclass.")
    try:
        return cls(**{name: walk(value) for name, value in fields.items()})
    except TypeError as error:
        raise StateFileError(f"its fields do not fit {path}: {error}.") from error


#: Parameters of selectors: schedules and other dataclasses are named by their path.
_PARAMETERS = Codec(*CONTAINERS, Rule(Record, _write_record, _read_record))


def _check_imported(field: str, path: str) -> None:
    """Refuse to import code on behalf of a state file; installed plug-ins are found by name."""
    module_name, colon, _ = path.partition(":")
    if colon and current_path(module_name) not in sys.modules:
        raise StateFileError(
            f"{field} is {path}, and {module_name} is not imported: import it before loading."
        )
