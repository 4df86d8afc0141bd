"""Worlds by name, as tables: what an environment is made of, without its size and its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

from turnout.environments import (
    Bernoulli,
    ByClass,
    Environment,
    LinearContextual,
    Reliable,
    e3cs_world,
    rbcs_f_world,
)
from turnout.experiment.codec import ConfigError, Key, decode, encode
from turnout.names import nearest

__all__ = ["WORLDS", "NamedWorld", "class_names", "environment", "resolved_world"]

_NOT_IN_TABLE = ("n_clients", "seed")


class NamedWorld(NamedTuple):
    """A world that can be asked for by name, with the sizes it is usually run at."""

    example: Environment
    cohort_size: int
    n_rounds: int
    what: str


WORLDS: Mapping[str, NamedWorld] = MappingProxyType(
    {
        "volatile": NamedWorld(
            Environment(100, 0, Bernoulli(0.9), ByClass(), LinearContextual()),
            20,
            500,
            "90 % available, four classes of success rate, times linear in a context",
        ),
        "reliable": NamedWorld(
            Environment(100, 0, volatility=Reliable()),
            20,
            500,
            "everyone is there, answers, and takes the same time",
        ),
        "e3cs": NamedWorld(e3cs_world(), 20, 2500, "the numerical experiments of E3CS"),
        "rbcs-f": NamedWorld(rbcs_f_world(), 8, 500, "the numerical experiments of RBCS-F"),
    }
)


def resolved_world(world: Any) -> dict[str, Any]:
    """Return a world's complete table: from a name, a table or an ``Environment``.

    A table may start from a named world: ``{preset = "e3cs", availability = {...}}``.
    """
    if isinstance(world, Environment):
        return _without_size(encode(world))
    if isinstance(world, str):
        return _named(world, ("world",))
    if not isinstance(world, Mapping):
        raise ConfigError(("world",), f"must be a name or a table, got {world!r}.")
    given = {name: encode(value) for name, value in world.items()}
    has_preset = "preset" in given
    table = _named(given.pop("preset"), ("world", "preset")) if has_preset else {}
    known = [field.name for field in fields(Environment) if field.name not in _NOT_IN_TABLE]
    for name in given:
        if name not in known:
            allowed = nearest(name, ["preset", *known])
            raise ConfigError(("world", name), f"unknown key {name!r}.{allowed}")
    return _without_size(encode(environment(table | given, n_clients=1, seed=0)))


def environment(table: Mapping[str, Any], n_clients: int, seed: int) -> Environment:
    """Return the environment of a complete or partial table."""
    made: Environment = decode(
        {**table, "n_clients": n_clients, "seed": seed}, Environment, ("world",)
    )
    return made


def class_names(world: Environment) -> dict[str, Any] | None:
    """Return how the classes of clients are called, or None if there is only one class."""
    if world.volatility.classes(world.n_clients).any():
        rates = _innermost(world.volatility, "rates")
        if rates is not None:
            return {"names": [f"{rate:g}" for rate in rates], "what": "success rate"}
    elif world.timing.classes(world.n_clients).any():
        seconds = _innermost(world.timing, "training_s")
        if seconds is not None:
            return {"names": [f"{value:g} s" for value in seconds], "what": "training time"}
    n_classes = int(world.classes.max()) + 1
    return None if n_classes == 1 else _numbered(n_classes)


def _named(name: Any, key: Key) -> dict[str, Any]:
    if name not in WORLDS:
        raise ConfigError(key, f"unknown world {name!r}.{nearest(name, WORLDS)}")
    return _without_size(encode(WORLDS[name].example))


def _numbered(n_classes: int) -> dict[str, Any]:
    return {"names": [str(number + 1) for number in range(n_classes)], "what": "class"}


def _innermost(model: Any, attribute: str) -> Any:
    """Look through wrappers for the model that divides clients into classes."""
    while model is not None and not hasattr(model, attribute):
        model = getattr(model, "inner", None)
    return getattr(model, attribute, None)


def _without_size(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in _NOT_IN_TABLE}
