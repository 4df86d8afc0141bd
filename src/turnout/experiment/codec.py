"""Models as tables and back: ``{kind = "bernoulli", rate = 0.8}`` is ``Bernoulli(rate=0.8)``.

A kind is a class name in lower-kebab case; a class that is not built in is named by its path,
``"package.module:Class"``. Tables hold only what JSON and TOML can hold; infinity is ``"inf"``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np

from turnout import data, training, worlds
from turnout.core import schedules
from turnout.core.errors import InvalidInput
from turnout.core.names import import_object, nearest
from turnout.core.plain import LATER, CannotEncode, Codec, Record, Rule
from turnout.worlds.timing import Noise

# --------------------------------------------------------------------------------------------------
# The kinds of models that a table can name, family by family.
# --------------------------------------------------------------------------------------------------


def kind_of(cls: type) -> str:
    """Return the class name in lower-kebab case.

    >>> kind_of(worlds.FirstK)
    'first-k'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


#: What holds more than plain values, and so is for Python only.
_IN_MEMORY = (data.Arrays, training.Ready)


def _family(base: type) -> dict[str, type]:
    """Return the dataclasses below a class, with the class itself first unless it is abstract."""
    public = (value for module in (worlds, data, training) for value in vars(module).values())
    classes = [cls for cls in public if isinstance(cls, type) and issubclass(cls, base)]
    itself = {} if inspect.isabstract(base) else {kind_of(base): base}
    return itself | {
        kind_of(cls): cls
        for cls in classes
        if dataclasses.is_dataclass(cls) and cls not in (base, *_IN_MEMORY)
    }


#: The kinds of each family of models, by base class.
FAMILIES: dict[type, dict[str, type]] = {
    base: _family(base)
    for base in (
        worlds.Availability,
        worlds.Volatility,
        worlds.Timing,
        worlds.Devices,
        worlds.Claims,
        worlds.Energy,
        Noise,
        worlds.Population,
        worlds.SyntheticLoss,
        worlds.Environment,
        worlds.RoundPolicy,
        worlds.WorkSchedule,
        worlds.StalenessWeight,
        data.Source,
        data.Partition,
        training.Model,
        training.Aggregation,
        training.ServerOptimizer,
        data.ClientCode,
        training.LocalWork,
        training.PerClient,
        training.Training,
    )
}

#: What holds the path of something that is no model itself: a function that makes a torch module.
BY_PATH: dict[type, type] = {training.Model: training.Custom}

#: A key that stands for another one with a default: steps of local work replace epochs.
REPLACES: dict[type, tuple[str, str]] = {training.LocalWork: ("steps", "epochs")}

#: Schedules have a tag of their own, because they stand among plain parameters.
SCHEDULES: dict[str, type] = {
    kind_of(cls): cls
    for cls in (
        schedules.Constant,
        schedules.ExponentialDecay,
        schedules.Lemma1,
        schedules.Linear,
        schedules.StepAfter,
        schedules.StepDecay,
    )
}

#: Where a value stands in a configuration, e.g. ``("selectors", 1, "quota")``.
Key = tuple[str | int, ...]

_INFINITE = {"inf": math.inf, "-inf": -math.inf}


class ConfigError(InvalidInput):
    """A configuration is wrong.

    Args:
        key: Where: the names and positions from the root down.
        problem: What is wrong there, and the fix.
    """

    def __init__(self, key: Key, problem: str) -> None:
        self.key = key
        self.problem = problem
        name = spelled(key)
        super().__init__(f"{name}: {problem}" if name else problem, field=name or None)


def spelled(key: Key) -> str:
    """Return a key as people write it.

    >>> spelled(("selectors", 1, "quota"))
    'selectors[1].quota'
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


def key_of(error: Exception) -> Key:
    """Return where an error of a constructor belongs, empty if it names no field."""
    if isinstance(error, ConfigError):
        return error.key
    return (error.field,) if isinstance(error, InvalidInput) and error.field is not None else ()


def _write_record(record: Any, walk: Callable[[Any], Any]) -> dict[str, Any]:
    table: dict[str, Any] = _tagged(type(record))
    defaults = _defaults(type(record))
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        is_usual = field.metadata == LATER and value == defaults[field.name]
        if field.init and not is_usual:
            table[field.name] = walk(value)
    return table


_TABLES = Codec(
    Rule(
        (float, np.floating), lambda value, _: float(value) if math.isfinite(value) else str(value)
    ),
    Rule(Mapping, lambda table, walk: {str(name): walk(table[name]) for name in table}),
    Rule((list, tuple), lambda items, walk: [walk(item) for item in items]),
    Rule(Record, _write_record),
    Rule(os.PathLike, lambda path, _: str(path)),
)


def encode(value: Any) -> Any:
    """Return a value as plain data: numbers, strings, lists and tables."""
    try:
        return _TABLES.encode(value)
    except CannotEncode as error:
        raise InvalidInput(
            f"a {error} cannot be written to a configuration: use plain values, for a model "
            "of your own Custom('module:factory') instead of Ready(module), and save a fitted "
            "world before you run it."
        ) from error


def decode(table: Any, base: type, key: Key = ()) -> Any:
    """Return the model that a table, or the bare name of a kind, stands for.

    Args:
        table: May hold models among its values, and may be the model itself.
        base: A key of ``FAMILIES``.
        key: The place of the table, for errors.

    Raises:
        ConfigError: A kind, a key or a value is wrong.

    """
    if isinstance(table, base):
        return table
    if isinstance(table, str):
        table = {"kind": table}
    if not isinstance(table, Mapping):
        raise ConfigError(key, f"must be a table with a kind, got {table!r}.")
    kinds = FAMILIES[base]
    values = dict(table)
    has_usual = len(kinds) == 1 or not inspect.isabstract(base)
    kind = values.pop("kind", next(iter(kinds)) if has_usual else None)
    if base in BY_PATH and _is_path(kind) and not _is_kind(_imported(kind, (*key, "kind")), base):
        return build(BY_PATH[base], {"path": kind, "parameters": values}, key)
    return build(_class_of(kind, kinds, (*key, "kind"), base), values, key)


def decode_parameter(value: Any, key: Key) -> Any:
    """Return a selector's parameter: a table with ``schedule`` becomes that schedule.

    Any other table holds the parameters of another selector.
    """
    if not isinstance(value, Mapping):
        return _plain(value)
    if "schedule" not in value:
        return {name: decode_parameter(item, (*key, name)) for name, item in value.items()}
    values = dict(value)
    return build(_class_of(values.pop("schedule"), SCHEDULES, (*key, "schedule")), values, key)


def _tagged(cls: type) -> dict[str, str]:
    path = f"{cls.__module__}:{cls.__qualname__}"
    for base, kinds in FAMILIES.items():
        if cls in kinds.values():
            return {} if len(kinds) == 1 or cls is base else {"kind": kind_of(cls)}
        if issubclass(cls, base):
            return {"kind": path}
    return {"schedule": kind_of(cls) if cls in SCHEDULES.values() else path}


def _class_of(kind: Any, kinds: Mapping[str, type], key: Key, base: type | None = None) -> type:
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    if _is_path(kind):
        imported: type = _imported(kind, key)
        if _is_kind(imported, base):
            return imported
        wanted = "schedule" if base is None else base.__name__
        raise ConfigError(key, f"{kind!r} is not a dataclass that is a {wanted}.")
    if kind is None:
        raise ConfigError(key, f"is missing. Allowed: {', '.join(kinds)}.")
    raise ConfigError(key, f"unknown value {kind!r}.{nearest(kind, kinds)}")


def _is_path(kind: Any) -> bool:
    return isinstance(kind, str) and ":" in kind


def _is_kind(imported: Any, base: type | None) -> bool:
    """Return whether what a path names is a class that a table can stand for."""
    is_record = isinstance(imported, type) and dataclasses.is_dataclass(imported)
    return is_record and (base is None or issubclass(imported, base))


def _imported(path: str, key: Key) -> Any:
    try:
        return import_object(path)
    except InvalidInput as error:
        raise ConfigError(key, str(error)) from error


def build(cls: type, values: Mapping[str, Any], key: Key) -> Any:
    """Return the dataclass that a table describes.

    Args:
        cls: The dataclass.
        values: Its fields, as plain values or tables.
        key: The place of the table, for errors.

    Raises:
        ConfigError: A key or a value is wrong.
    """
    hints, defaults = _hints(cls), _defaults(cls)
    for name in values:
        if name not in defaults:
            raise ConfigError((*key, name), f"unknown key {name!r}.{nearest(name, defaults)}")
    arguments = {
        name: _value(_completed(value, defaults.get(name)), hints[name], (*key, name))
        for name, value in _replaced(cls, values).items()
    }
    try:
        return cls(**arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError((*key, *key_of(error)), str(error)) from error


_hints = functools.cache(get_type_hints)


def _defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass."""
    return {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(cls)
        if field.init
    }


def _replaced(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    new, old = REPLACES.get(cls, ("", ""))
    return {old: "none", **values} if new in values else dict(values)


def _completed(value: Any, default: Any) -> Any:
    """Return a table with what it leaves out, where it can only be of the default's kind."""
    if not isinstance(value, Mapping) or "kind" in value or type(default) not in FAMILIES:
        return value
    return encode(default) | _replaced(type(default), value)


def _value(value: Any, hint: Any, key: Key) -> Any:
    """Return a field's value: a model if that is what the field holds, else the plain value."""
    if hint in FAMILIES:
        return decode(value, hint, key)
    options = get_args(hint)
    if value == "none" and NoneType in options:
        return None
    if isinstance(value, Mapping) and schedules.Schedule in options and "schedule" in value:
        return decode_parameter(value, key)
    family = next((base for base in options if base in FAMILIES), None)
    if isinstance(value, Mapping) and family is not None:
        return decode(value, family, key)
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return _INFINITE.get(value, value) if isinstance(value, str) else value
