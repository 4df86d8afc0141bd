"""One selector of an experiment: a label, a name and parameters."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnout import require
from turnout.errors import InvalidInput, UnknownSelector
from turnout.experiment.codec import ConfigError, Key, decode_parameter, encode, key_of
from turnout.experiment.spec import parse_spec
from turnout.names import nearest
from turnout.registry import find, make
from turnout.selector import Selector

_LABELLED = re.compile(r"^(?P<label>[^:=]+)=(?P<rest>.+)$")


@dataclass(frozen=True)
class Variant:
    """A selector by name with its parameters, under a label of its own.

    Args:
        name: A registered name or ``"package.module:Class"``.
        label: What the selector is called in results; by default its name, with the parameters
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
        kinds = {"name": str, "label": str, "parameters": Mapping}
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
        key: Where it stands, for errors.

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
        name, label, parameters = _parsed(source)
        return _expanded({"name": name, "label": label}, parameters)
    if not isinstance(source, Mapping) or "name" not in source:
        raise ConfigError(key, f"must be a table with the name of a selector, got {source!r}.")
    own = {name: source[name] for name in ("name", "label", "cohort_size") if name in source}
    parameters = {name: value for name, value in source.items() if name not in own}
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
    return Variant(*_parsed(text))


def _parsed(text: str) -> tuple[str, str, dict[str, Any]]:
    """Return name, label and parameters."""
    labelled = _LABELLED.match(text)
    label, rest = (labelled["label"], labelled["rest"]) if labelled else ("", text)
    name, parameters = parse_spec(rest)
    return name, label, parameters


def _expanded(own: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[Variant]:
    """Return a variant for each combination of the values that are swept."""
    swept = {
        name: values
        for name, values in parameters.items()
        if _is_sweep(values, _default(own["name"], name))
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


def _is_sweep(value: Any, default: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return not isinstance(default, list | tuple) or all(isinstance(v, list | tuple) for v in value)


def _default(selector: Any, parameter: str) -> Any:
    """Return what a parameter is unless it is given; None if there is no such thing."""
    with contextlib.suppress(UnknownSelector):
        return find(selector).default_parameters().get(parameter)
    return None


def _default_label(name: str, parameters: Mapping[str, Any]) -> str:
    own = name.rpartition(":")[2]
    values = [f"{key}={short(value)}" for key, value in parameters.items()]
    return f"{own} {', '.join(values)}" if values else own


def short(value: Any) -> str:
    """Return a value as it stands in a label: the values of a table, joined by hyphens."""
    if isinstance(value, Mapping):
        return "-".join(short(item) for item in value.values())
    return str(value)
