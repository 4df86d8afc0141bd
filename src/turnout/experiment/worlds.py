"""Worlds as tables: what an environment is made of, without its size and its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from turnout.environments import Environment, named_world
from turnout.errors import InvalidInput
from turnout.experiment.codec import ConfigError, Key, decode, encode
from turnout.names import nearest

_NOT_IN_TABLE = ("n_clients", "seed")
_PARTS = tuple(field.name for field in fields(Environment) if field.name not in _NOT_IN_TABLE)


def world_of(world: Any, n_clients: int, seed: int = 0) -> Environment:
    """Return the environment that a name, a table or an ``Environment`` stands for.

    Args:
        world: A table may start from a named world: ``{preset = "e3cs", availability = {...}}``.
        n_clients: Number of clients.
        seed: Seed of everything random in it.

    Returns:
        The environment.

    Raises:
        ConfigError: The world is unknown, or its table has a wrong key or value.

    """
    if isinstance(world, str):
        world = _named(world, ("world",))
    if isinstance(world, Environment):
        return replace(world, n_clients=n_clients, seed=seed)
    if not isinstance(world, Mapping):
        raise ConfigError(("world",), f"must be a name or a table, got {world!r}.")
    parts = dict(world)
    preset = {}
    if "preset" in parts:
        example = _named(parts.pop("preset"), ("world", "preset"))
        preset = {name: getattr(example, name) for name in _PARTS}
    for name in parts:
        if name not in _PARTS:
            allowed = nearest(name, ["preset", *_PARTS])
            raise ConfigError(("world", name), f"unknown key {name!r}.{allowed}")
    sized = {"n_clients": n_clients, "seed": seed}
    environment: Environment = decode(preset | parts | sized, Environment, ("world",))
    return environment


def world_table(world: Environment) -> dict[str, Any]:
    """Return a world as plain data, without its size and its seed."""
    table: dict[str, Any] = encode(world)
    return {name: value for name, value in table.items() if name not in _NOT_IN_TABLE}


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


def _named(name: Any, key: Key) -> Environment:
    try:
        return named_world(name).example
    except InvalidInput as error:
        raise ConfigError(key, str(error)) from error


def _numbered(n_classes: int) -> dict[str, Any]:
    return {"names": [str(number + 1) for number in range(n_classes)], "what": "class"}


def _innermost(model: Any, attribute: str) -> Any:
    """Look through wrappers for the model that divides clients into classes."""
    while model is not None and not hasattr(model, attribute):
        model = getattr(model, "inner", None)
    return getattr(model, attribute, None)
