"""Domains in type hints: ``rate: Fraction`` is a number from 0 to 1.

A domain is a type annotated with a check, or a ``Literal``. ``Count | None`` also allows None, and
``Positive | Literal["auto"]`` also allows that text. The hint is the only place where a domain is
declared: the check, the error message and the documentation all follow from it.

Dataclasses that derive from ``CheckedFields`` check their fields when they are created. Selectors
and other ``Stateful`` objects check the parameters of ``__init__`` in ``check_parameters``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from turnout.core import require

#: Takes the name of a parameter and its value, and raises if the value is not allowed.
Check = Callable[[str, Any], object]


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a parameter may have.

    Args:
        check: Raises ``InvalidInput`` for any other value.
        words: The allowed values as the documentation shows them.
        exceptions: Texts, infinity or None that are allowed although ``check`` refuses them.
        converts: Whether a field of a dataclass stores what ``check`` returns.
    """

    check: Check
    words: str = ""
    exceptions: tuple[str | float | None, ...] = ()
    converts: bool = False

    def __call__(self, name: str, value: Any) -> None:
        """Raise ``InvalidInput`` unless the value is allowed.

        Args:
            name: The name of the parameter.
            value: Its value.
        """
        # Arrays compare element by element, so only plain values are compared at all.
        is_plain = value is None or isinstance(value, str | float)
        if not (is_plain and value in self.exceptions):
            self.check(name, value)


def integer(minimum: int, maximum: int = require.LARGEST_INTEGER) -> Domain:
    """Return the domain of the integers from ``minimum`` to ``maximum``."""
    is_open = maximum == require.LARGEST_INTEGER
    words = f"integer >= {minimum}" if is_open else f"integer in [{minimum}, {maximum}]"
    return Domain(partial(require.integer, minimum=minimum, maximum=maximum), words)


def number(
    *,
    minimum: float = -math.inf,
    above: float | None = None,
    maximum: float = math.inf,
    below: float | None = None,
    or_infinite: bool = False,
) -> Domain:
    """Return a domain of finite numbers; the limits are those of ``require.number``."""
    check = partial(require.number, minimum=minimum, above=above, maximum=maximum, below=below)
    if below is not None or maximum < math.inf:
        left = f"[{minimum:g}" if above is None else f"({above:g}"
        right = f"{maximum:g}]" if below is None else f"{below:g})"
        words = f"number in {left}, {right}"
    elif above is not None:
        words = f"number > {above:g}"
    else:
        words = f"number >= {minimum:g}" if minimum > -math.inf else "number"
    return Domain(check, f"{words} or inf", (math.inf,)) if or_infinite else Domain(check, words)


def choice(*options: str) -> Domain:
    """Return the domain of some texts."""
    return Domain(partial(require.choice, options=options), _either([f'"{o}"' for o in options]))


def several(items: str, item: Domain, at_least: int = 0) -> Domain:
    """Return the domain of lists of values; a dataclass stores them as a tuple.

    Args:
        items: The values in the words of the message, such as "rounds".
        item: The domain of each.
        at_least: The fewest.
    """

    def check(name: str, values: Any) -> tuple[Any, ...]:
        is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
        listed = tuple(values) if is_list else ()
        if not is_list or len(listed) < at_least:
            wanted = f"a list of {items}" if not at_least else f"a list of at least one of {items}"
            raise require.wrong(name, f"be {wanted}", values)
        return tuple(item.check(name, value) for value in listed)

    return Domain(check, f"list of {items}", converts=True)


def own_path(example: str) -> Check:
    """Return the check of the path of a file of the user's own, which must be set.

    Args:
        example: A path for the message.
    """

    def check(name: str, path: Any) -> None:
        if not isinstance(path, str | Path) or not str(path):
            wanted = f"be set to a file, for example {name}={example}"
            raise require.wrong(name, wanted, got=repr(path))

    return check


Flag = Annotated[bool, Domain(require.boolean, "True or False")]
Index = Annotated[int, integer(0)]
Count = Annotated[int, integer(1)]
Finite = Annotated[float, number()]
NonNegative = Annotated[float, number(minimum=0.0)]
Positive = Annotated[float, number(above=0.0)]
PositiveOrInfinite = Annotated[float, number(above=0.0, or_infinite=True)]
Fraction = Annotated[float, number(minimum=0.0, maximum=1.0)]
BelowOne = Annotated[float, number(minimum=0.0, below=1.0)]


class CheckedFields:
    """A dataclass whose fields are checked when it is created."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the fields; a class with further rules calls ``check_fields`` itself."""
        check_fields(self)


def check_fields(record: Any) -> None:
    """Raise ``InvalidInput`` for the first field of a dataclass that is outside of its domain."""
    for name, domain in _fields(record.__class__).items():
        value = getattr(record, name)
        if domain.converts:
            object.__setattr__(record, name, domain.check(name, value))
        else:
            domain(name, value)


@cache
def _fields(cls: type) -> dict[str, Domain]:
    return _domains(get_type_hints(cls, include_extras=True))


@cache
def parameter_domains(function: Callable[..., Any]) -> Mapping[str, Domain]:
    """Return the domains that the type hints of a function's parameters declare.

    Args:
        function: Any function. A hint that cannot be resolved declares no domain. For example,
            its name may be imported for type checkers only.
    """
    function = inspect.unwrap(function)
    hints: dict[str, Any] = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        alone: Any = SimpleNamespace(__annotations__={name: hint})
        try:
            hints |= get_type_hints(alone, function.__globals__, include_extras=True)
        except Exception:  # whatever the evaluation of somebody else's hint raises
            continue
    return _domains(hints)


def _domains(hints: Mapping[str, Any]) -> dict[str, Domain]:
    domains = {name: _domain(hint) for name, hint in hints.items()}
    return {name: domain for name, domain in domains.items() if domain is not None}


def _domain(hint: Any) -> Domain | None:
    """Return the domain that a hint declares; None if it declares none."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    texts = [text for part in parts if get_origin(part) is Literal for text in get_args(part)]
    or_none = [None] if NoneType in parts else []
    words = [f'"{text}"' for text in texts] + ["None" for _ in or_none]
    for part in parts:
        if get_origin(part) is Annotated:
            check = part.__metadata__[0]
            shown = getattr(check, "words", "")
            if isinstance(check, Domain) and check.converts:
                return check
            return Domain(check, _either([shown, *words]) if shown else "", (*texts, *or_none))
    if texts and all(part is NoneType or get_origin(part) is Literal for part in parts):
        return Domain(choice(*texts).check, _either(words), tuple(or_none))
    return None


def _either(words: list[str]) -> str:
    """Return words joined by commas, the last one by "or"."""
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
