"""Values as plain data, and back. State files, checkpoints and configurations all use this codec.

Numbers, texts, booleans and None stand for themselves, and a NumPy number becomes a Python number.
For anything else a file format has rules: which types it holds, and how it writes and reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

T = TypeVar("T")

#: Metadata of a field that a dataclass got later. It is written to configurations only where it is
#: set, so that older experiments keep their digest.
LATER: Mapping[str, bool] = MappingProxyType({"is_later": True})

#: Writes or reads a part of a value.
Walk = Callable[[Any], Any]


class CannotEncode(Exception):
    """No rule fits a value; the text is the name of its type."""


@runtime_checkable
class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def _unreadable(content: Any, walk: Walk) -> Any:
    raise ValueError(f"{content!r} has no kind")


class Rule(NamedTuple):
    """How the values of some types are written and read.

    Args:
        types: What the rule is for.
        write: Returns the plain content of a value; it is given the walk for the value's parts.
        read: Returns the value of a plain content; it is given the walk for the content's parts.
        kind: Stands beside the content in the file and leads back to this rule. Without one the
            content is a table that stands for itself.
    """

    types: type | tuple[type, ...]
    write: Callable[[Any, Walk], Any]
    read: Callable[[Any, Walk], Any] = _unreadable
    kind: str = ""


class Codec:
    """Writes values as plain data by rules, and reads them back.

    Args:
        *rules: The first rule that fits a value is used.

    >>> codec = Codec(*CONTAINERS)
    >>> codec.decode(codec.encode({"at": (300, np.int64(600))}))
    {'at': (300, 600)}
    """

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules
        self._readers = {rule.kind: rule.read for rule in rules}

    def encode(self, value: Any) -> Any:
        """Return a value as plain data; ``CannotEncode`` if it holds what no rule fits."""
        if value is None or type(value) in (bool, int, str):  # which no rule is for: most values
            return value
        for rule in self._rules:
            if isinstance(value, rule.types):
                content = rule.write(value, self.encode)
                return {"kind": rule.kind, "of": content} if rule.kind else content
        scalar = value.item() if isinstance(value, np.generic) else value
        if scalar is None or isinstance(scalar, bool | int | float | str):
            return scalar
        raise CannotEncode(type(value).__name__)

    def decode(self, plain: Any) -> Any:
        """Return the value that plain data stands for; ``ValueError`` if it stands for none."""
        if not isinstance(plain, Mapping):
            return plain
        kind = plain.get("kind", "")
        read = self._readers.get(kind, _unreadable)
        return read(plain["of"] if kind else plain, self.decode)


def _each(items: Any, walk: Walk) -> list[Any]:
    return [walk(item) for item in items]


#: Lists, tuples and tables with keys of any kind.
CONTAINERS = (
    Rule(list, _each, _each, "list"),
    Rule(tuple, _each, lambda of, walk: tuple(_each(of, walk)), "tuple"),
    Rule(
        dict,
        lambda table, walk: [_each(pair, walk) for pair in table.items()],
        lambda of, walk: dict(_each(pair, walk) for pair in of),
        "dict",
    ),
)


def below(prefix: str, table: Mapping[str, T]) -> dict[str, T]:
    """Return the entries whose names begin with a prefix, under the rest of their names.

    Args:
        prefix: How the names begin.
        table: Entries by name, such as the arrays of a checkpoint.

    >>> below("server.", {"server.mean": 1, "weights": 2})
    {'mean': 1}
    """
    return {
        name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)
    }


def finite(value: Any) -> Any:
    """Return plain data with None for each number that JSON does not have, arrays as lists.

    Args:
        value: Numbers, texts, lists, tables and arrays.

    >>> finite({"seconds": np.array([1.5, np.nan]), "limit": np.inf})
    {'seconds': [1.5, None], 'limit': None}
    """
    if isinstance(value, np.ndarray | np.generic):
        is_finite = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        value = value.tolist()
        if is_finite:  # saves the walk through a long array
            return value
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
