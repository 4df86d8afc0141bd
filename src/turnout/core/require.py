"""Checks of single values: each raises ``InvalidInput`` naming the field, the value and the fix."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from turnout.core.errors import InvalidInput

_Choice = TypeVar("_Choice", bound=str)

#: The largest integer that counts, of a seed or anything else.
LARGEST_INTEGER = 2**128

#: Characters of a value that a message shows.
_MOST_SHOWN = 200


def wrong(field: str, wanted: str, value: Any = None, *, got: str = "") -> InvalidInput:
    """Return the error of a field that must be or do something; ``got`` describes the value."""
    return InvalidInput(f"{field} must {wanted}, got {got or shown(value)}.", field=field)


def integer(field: str, value: Any, *, minimum: int, maximum: int = LARGEST_INTEGER) -> int:
    """Return ``value`` as an int inside [minimum, maximum]."""
    if type(value) is int and minimum <= value <= maximum:  # the common case, without the ABCs
        return value
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_integer and minimum <= value <= maximum):
        upper = "" if maximum == LARGEST_INTEGER else f" and <= {maximum}"
        raise wrong(field, f"be an integer >= {minimum}{upper}", value)
    return int(value)


def number(
    field: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` as a finite float in [minimum, maximum]; ``above`` and ``below`` exclude."""
    is_real = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    is_inside = is_real and _is_finite(value) and minimum <= value <= maximum
    if is_inside and (above is None or value > above) and (below is None or value < below):
        return float(value)
    lower = f"> {above}" if above is not None else f">= {minimum}"
    upper = f" and < {below}" if below is not None else f" and <= {maximum}"
    upper = "" if upper == " and <= inf" else upper
    limits = "" if lower == ">= -inf" else f" {lower}{upper}"
    raise wrong(field, f"be a finite number{limits}", value)


def at_round(
    field: str,
    value: float | Callable[[int], float],
    round: int,
    *,
    minimum: float = 0.0,
    maximum: float = math.inf,
) -> float:
    """Return a fixed or scheduled parameter in a round, checked against its domain.

    Args:
        field: The name of the parameter, for the message.
        value: A number or a schedule.
        round: The round, from 0.
        minimum: The least value that is allowed.
        maximum: The greatest value that is allowed.

    Raises:
        InvalidInput: The value is no number or schedule, or outside its domain in this round.
    """
    if not callable(value):
        return number(field, value, minimum=minimum, maximum=maximum)
    if isinstance(value, type) or not isinstance(value, Hashable):
        raise wrong(field, "be a number or a frozen dataclass", got=repr(value))
    name, scheduled = f"{field} in round {round}", value(round)
    try:
        return number(name, scheduled, minimum=minimum, maximum=maximum)
    except InvalidInput as error:
        raise InvalidInput(str(error), field=field) from None


def fraction(field: str, value: Any) -> float:
    """Return ``value`` as a float inside [0, 1]."""
    return number(field, value, minimum=0.0, maximum=1.0)


def boolean(field: str, value: Any) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise wrong(field, "be True or False", value)
    return value


def choice(field: str, value: _Choice, options: Collection[str]) -> _Choice:
    """Return ``value`` if it is one of ``options``."""
    if not isinstance(value, str) or value not in options:
        raise wrong(field, f"be one of {', '.join(map(repr, options))}", value)
    return value


def mapping(field: str, value: Any, of: str) -> None:
    """Raise unless ``value`` is a mapping; ``of`` says what it maps."""
    if not isinstance(value, Mapping):
        raise wrong(field, f"map {of}", value)


def instance(field: str, value: Any, kind: type) -> None:
    """Raise unless ``value`` is an instance of a class."""
    if not isinstance(value, kind):
        raise wrong(field, f"be of class {kind.__name__}", value)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def shown(value: Any) -> str:
    """Return how a value reads in a message, at most 200 characters."""
    try:
        text = repr(value)
    except Exception:  # a huge integer, or an object whose repr fails
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
