"""One selector of an experiment: a label, a name and parameters."""

from __future__ import annotations

import contextlib
import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnout.core import require
from turnout.core.errors import InvalidInput, UnknownSelector
from turnout.core.names import nearest
from turnout.core.registry import find, make
from turnout.core.selector import Selector
from turnout.experiment.codec import ConfigError, Key, decode_parameter, encode, key_of

# --------------------------------------------------------------------------------------------------
# What people write on the command line: ``name:key=value,...``.
# --------------------------------------------------------------------------------------------------

_SPEC = re.compile(r"^(?P<name>.+?)(?::(?P<parameters>[A-Za-z_]\w*\s*=.*))?$")
#: A quoted text, a bracket, a comma, or a run of other signs.
_TOKEN = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|[\[\]{},]|[^"'\[\]{},]+|.""", re.DOTALL)
#: A word, or a path such as data/mine.npz, ../mine.npz or module:name.
_WORD = re.compile(r"(?!(?:true|false|inf|nan)$)(?:[A-Za-z_~]|\.{0,2}/)[\w~./:+-]*")
#: A name of a parameter, or of a selector in a table of them.
_NAME = re.compile(r"[A-Za-z_][\w-]*")
#: Numbers that TOML refuses: .25 and 5.
_OPEN_DECIMAL = re.compile(r"[+-]?(?:\.\d+|\d+\.)(?:[eE][+-]?\d+)?")


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of ``name`` or ``name:key=value,...``.

    >>> parse_spec("dirichlet:alpha=0.3")
    ('dirichlet', {'alpha': 0.3})
    """
    spec = _SPEC.match(text)
    if spec is None:
        raise ConfigError((), f"{text!r} has no name: write name or name:key=value,...")
    return spec["name"], parse_parameters(spec["parameters"] or "")


def parse_parameters(text: str) -> dict[str, Any]:
    """Return ``key=value,...`` as a table; values are as in TOML, and words need no quotes.

    Args:
        text: Values may be lists and tables: ``at=[3,6]``, ``quota={schedule=linear,start=.1}``.

    Raises:
        ConfigError: A part is not ``key=value``, stands there twice, or has a value that is none.

    >>> parse_parameters("quota=.25,draw=multinomial")
    {'quota': 0.25, 'draw': 'multinomial'}

    """
    table: dict[str, Any] = {}
    for part in _split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError((), f"{part.strip()!r} in {text!r} is not key=value.")
        if name in table:
            raise ConfigError((name,), f"occurs twice in {text!r}.")
        table[name] = _value(name, value)
    return table


def _split(text: str) -> list[str]:
    """Split a text at the commas that are outside of quotes and brackets."""
    if not text.strip():
        return []
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "[{") - (token in "]}")
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _value(name: str, text: str) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return parse_parameters(text[1:-1])
    if text.startswith("[") and text.endswith("]"):
        return [_value(name, item.strip()) for item in _split(text[1:-1])]
    if _WORD.fullmatch(text):
        return text
    if _OPEN_DECIMAL.fullmatch(text):
        return float(text)
    try:
        (value,) = tomllib.loads(f"value = [{text}]")["value"]
    except ValueError as error:
        raise ConfigError(
            (),
            f"{name}={text} is not key=value: a value is a number, true, false, a word, a path, a "
            '[list], a {table} or a text in quotes, key="a b".',
        ) from error
    return value


_LABELLED = re.compile(r"^(?P<label>[^:=]+)=(?P<rest>.+)$")


@dataclass(frozen=True)
class Variant:
    """A selector by name with its parameters, under a label of its own.

    Args:
        name: A registered name or ``"package.module:Class"``.
        label: The name of the selector in results; by default its own name, with the parameters
            that were given.
        parameters: Plain values. A schedule is a table, ``{"schedule": "step-after", ...}``, or
            the object itself.
        cohort_size: Clients asked for per round; None = as the experiment.

    Raises:
        ConfigError: The name, a parameter or its value is wrong.
    """

    name: str
    label: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cohort_size: int | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {"name": str, "label": str, "parameters": Mapping}
        for key, kind in kinds.items():
            value = getattr(self, key)
            if not isinstance(value, kind):
                what = "a text" if kind is str else "a table"
                raise ConfigError((key,), f"must be {what}, got {require.shown(value)}.")
        parameters = {name: encode(value) for name, value in self.parameters.items()}
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "label", self.label or _default_label(self.name, parameters))
        if self.cohort_size is not None:
            require.integer("cohort_size", self.cohort_size, minimum=1)
        self.make()

    def make(self) -> Selector:
        """Return a fresh selector, with everything checked."""
        try:
            names = find(self.name).parameter_names()
        except UnknownSelector as error:
            raise ConfigError(("name",), str(error)) from error
        for name in self.parameters:
            if name not in names:
                allowed = nearest(name, names)
                raise ConfigError((name,), f"{self.name!r} has no parameter {name!r}.{allowed}")
        values = {name: decode_parameter(item, (name,)) for name, item in self.parameters.items()}
        try:
            return make(self.name, **values)
        except (InvalidInput, TypeError) as error:
            raise ConfigError(key_of(error) or ("name",), str(error)) from error

    def table(self) -> dict[str, Any]:
        """Return the variant as it stands in a TOML file."""
        size = {} if self.cohort_size is None else {"cohort_size": self.cohort_size}
        return {"label": self.label, "name": self.name, **size, **self.parameters}


def variants_of(source: Any, key: Key = ()) -> list[Variant]:
    """Return what a variant, a table or a text such as ``"e3cs:quota=[0,0.5]"`` stands for.

    Args:
        source: A list of values of a parameter is a sweep: a variant for each. Where a parameter
            is a list itself, a sweep is a list of lists.
        key: Its place, for errors.

    Returns:
        One variant, or those of the sweep.

    Raises:
        ConfigError: The name, a parameter or its value is wrong.

    >>> [variant.label for variant in variants_of("e3cs:quota=[0,0.5]")]
    ['e3cs quota=0', 'e3cs quota=0.5']

    """
    if isinstance(source, Variant):
        return [source]
    if isinstance(source, str):
        name, label, parameters = parsed(source)
        return _expanded({"name": name, "label": label}, parameters)
    if not isinstance(source, Mapping) or "name" not in source:
        raise ConfigError(key, f"must be a table with the name of a selector, got {source!r}.")
    parameters = dict(source)
    names = [name for name in ("name", "label", "cohort_size") if name in source]
    own = {name: parameters.pop(name) for name in names}
    try:
        return _expanded(own, parameters)
    except ConfigError as error:
        raise ConfigError((*key, *error.key), error.problem) from error
    except InvalidInput as error:
        raise ConfigError(key, str(error)) from error


def parse_variant(text: str) -> Variant:
    """Return the variant of a text: ``name``, ``name:key=value,...`` or ``label=name:...``.

    Args:
        text: The variant as one writes it on the command line.

    >>> parse_variant("E3CS-0.8=e3cs:quota=0.8,draw=multinomial").parameters
    {'quota': 0.8, 'draw': 'multinomial'}
    """
    return Variant(*parsed(text))


def parsed(text: str) -> tuple[str, str, dict[str, Any]]:
    """Return name, label and parameters of a text; nothing is imported or made.

    Args:
        text: The variant as one writes it on the command line.

    """
    labelled = _LABELLED.match(text)
    label, rest = labelled.groups() if labelled else ("", text)
    name, parameters = parse_spec(rest)
    return name, label, parameters


def _expanded(own: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[Variant]:
    """Return a variant for each combination of the values that are swept."""
    lists = {name: value for name, value in parameters.items() if isinstance(value, list | tuple)}
    defaults: Mapping[str, Any] = {}
    with contextlib.suppress(UnknownSelector):
        defaults = find(own["name"]).default_parameters() if lists else {}
    swept = {
        name: values
        for name, values in lists.items()
        if not isinstance(defaults.get(name), list | tuple)
        or all(isinstance(value, list | tuple) for value in values)
    }
    for name, values in swept.items():
        if not values:
            raise ConfigError((name,), "is an empty list: a sweep needs at least one value.")
    variants = []
    for combination in itertools.product(*swept.values()):
        chosen = dict(zip(swept, combination, strict=True))
        label = own.get("label", "")
        label = _default_label(label, chosen) if label and chosen else label
        variants.append(Variant(**{**own, "label": label}, parameters={**parameters, **chosen}))
    return variants


def _default_label(name: str, parameters: Mapping[str, Any]) -> str:
    own = name.rpartition(":")[2]
    values = [f"{key}={short(value)}" for key, value in parameters.items()]
    return f"{own} {', '.join(values)}" if values else own


def short(value: Any) -> str:
    """Return a value as it stands in a label: the values of a table, joined by hyphens."""
    if isinstance(value, Mapping):
        return "-".join(short(item) for item in value.values())
    return str(value)
