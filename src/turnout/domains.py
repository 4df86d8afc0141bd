"""Fields of dataclasses that say what they may hold: ``rate: Fraction`` is from 0 to 1.

A class that derives from ``CheckedFields`` refuses other values when it is made. A domain is a type
annotated with a check of ``turnout.require``, or a ``Literal``. ``Count | None`` may also be None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from turnout import require

#: Takes the name of a field and its value, and raises if the value is not allowed.
Check = Callable[[str, Any], object]


def integer(minimum: int) -> Check:
    """Return the check of an integer of at least ``minimum``."""
    return partial(require.integer, minimum=minimum)


def number(**limits: Any) -> Check:
    """Return the check of a finite number; the limits are those of ``require.number``."""
    return partial(require.number, **limits)


def choice(*options: str) -> Check:
    """Return the check of a text that is one of some."""
    return partial(require.choice, options=options)


def _positive_or_infinite(field: str, value: Any) -> None:
    if not (isinstance(value, float) and value == math.inf):
        require.number(field, value, above=0.0)


Flag = Annotated[bool, require.boolean]
Index = Annotated[int, integer(0)]
Count = Annotated[int, integer(1)]
Finite = Annotated[float, number()]
NonNegative = Annotated[float, number(minimum=0.0)]
Positive = Annotated[float, number(above=0.0)]
PositiveOrInfinite = Annotated[float, _positive_or_infinite]
Fraction = Annotated[float, require.fraction]


class CheckedFields:
    """A dataclass whose fields are checked when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the fields; a class with further rules calls ``check_fields`` itself."""
        check_fields(self)


def check_fields(record: Any) -> None:
    """Raise ``InvalidInput`` for the first field of a dataclass that is outside of its domain."""
    for name, check, may_be_none in _domains(record.__class__):
        value = getattr(record, name)
        if value is not None or not may_be_none:
            check(name, value)


@cache
def _domains(cls: type) -> list[tuple[str, Check, bool]]:
    """Return the fields that have a domain, and whether each may be None."""
    domains: list[tuple[str, Check, bool]] = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        is_union = get_origin(hint) in (Union, UnionType)
        for kind in get_args(hint) if is_union else (hint,):
            if get_origin(kind) is Annotated:
                domains.append((name, kind.__metadata__[0], is_union))
            elif get_origin(kind) is Literal and not is_union:
                domains.append((name, choice(*get_args(kind)), False))
    return domains
