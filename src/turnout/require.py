"""Checks of single values: each raises ``InvalidInput`` naming the field, the value and the fix."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any, TypeVar

from turnout.errors import InvalidInput

_Choice = TypeVar("_Choice", bound=str)


def integer(field: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an int of at least ``minimum``."""
    if type(value) is int and value >= minimum:  # the common case, without the abstract classes
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise InvalidInput(f"{field} must be an integer >= {minimum}, got {value!r}.", field=field)
    return int(value)


def number(
    field: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float | None = None,
) -> float:
    """Return ``value`` as a finite float inside [minimum, maximum] and strictly above ``above``."""
    is_real = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    is_inside = is_real and math.isfinite(value) and minimum <= value <= maximum
    if is_inside and (above is None or value > above):
        return float(value)
    lower = f"> {above}" if above is not None else f">= {minimum}"
    upper = "" if maximum == math.inf else f" and <= {maximum}"
    domain = "a finite number" if lower == ">= -inf" else f"a finite number {lower}{upper}"
    raise InvalidInput(f"{field} must be {domain}, got {value!r}.", field=field)


def fraction(field: str, value: Any) -> float:
    """Return ``value`` as a float inside [0, 1]."""
    return number(field, value, minimum=0.0, maximum=1.0)


def boolean(field: str, value: Any) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{field} must be True or False, got {value!r}.", field=field)
    return value


def choice(field: str, value: _Choice, options: Collection[str]) -> _Choice:
    """Return ``value`` if it is one of ``options``."""
    if not isinstance(value, str) or value not in options:
        allowed = ", ".join(repr(option) for option in options)
        raise InvalidInput(f"{field} must be one of {allowed}, got {value!r}.", field=field)
    return value
