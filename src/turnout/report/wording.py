"""Settings of a run in words: worlds, recipes and parameters as they stand in a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from turnout.names import shortened
from turnout.results.groups import WorldGroup

#: Keys that name what an encoded object is; its other keys are its settings.
_TYPE_KEYS = ("kind", "schedule", "type", "dataclass")
_MAIN_MODELS = ("availability", "volatility", "timing")
_MAIN_RECIPES = ("source", "partition", "model", "aggregation")
_FIXED_DEADLINE, _NO_DEADLINE = "fixed-deadline", "no deadline"
_INFINITE = ("inf", math.inf)
_MAX_DEPTH = 4
_MAX_ITEMS = 6
_MAX_PARTS = 9
_MAX_BRIEF_SETTINGS = 2
_MAX_CHARACTERS = 60


def describe(world: WorldGroup) -> str:
    """Return a world in one sentence.

    Args:
        world: The cells that compare; their common settings are described.

    Returns:
        Plain text, which may hold anything that stands in the files.
    """
    settings, sizes = world.settings, world.cohort_sizes
    models = dict(_fields(settings.world))
    main_models = {name: models[name] for name in _MAIN_MODELS if name in models} or models
    parts = [f"{name.replace('_', ' ')} {_brief(value)}" for name, value in main_models.items()]
    if settings.policy:
        parts.append(_policy(settings.policy))
    recipe = dict(_fields(settings.training))
    parts += [f"{name} {_brief(recipe[name])}" for name in _MAIN_RECIPES if name in recipe]
    kind = settings.kind if settings.kind == "simulation" else f"{settings.kind} run"
    wanted = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    sentence = (
        f"A {kind} of {settings.n_clients:,} clients, {wanted} wanted in each of "
        f"{settings.n_rounds:,} rounds"
    )
    return f"{sentence}; {'; '.join(parts[:_MAX_PARTS])}." if parts else f"{sentence}."


def pairs(values: Mapping[str, Any]) -> str:
    """Return settings as ``key = value, key = value``.

    Args:
        values: Parameters or versions, as JSON has them.
    """
    return ", ".join(f"{key} = {in_words(value)}" for key, value in values.items())


def in_words(value: Any, depth: int = 0) -> str:
    """Return an encoded value in words: ``by-class (rates 0.1, 0.3)``.

    Args:
        value: Anything that JSON can hold.
        depth: How many objects are around it; very deep ones are shown as JSON.
    """
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        settings = ", ".join(f"{key} {in_words(item, depth + 1)}" for key, item in _fields(value))
        name = _type_name(value)
        return f"{name} ({settings})" if name and settings else name or settings or "none"
    if isinstance(value, list) and depth < _MAX_DEPTH:
        items = ", ".join(in_words(item, depth + 1) for item in value[:_MAX_ITEMS])
        return f"{items}, …" if len(value) > _MAX_ITEMS else items
    if value is None or isinstance(value, float):
        return "none" if value is None else f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shortened(text, _MAX_CHARACTERS)


def _fields(encoded: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the fields of an encoded object, without the name of its type."""
    inner = encoded.get("fields", encoded)
    fields = inner if isinstance(inner, Mapping) else encoded
    return [(str(key), value) for key, value in fields.items() if key not in _TYPE_KEYS]


def _policy(policy: Mapping[str, Any]) -> str:
    """Return a round policy; a fixed deadline that is infinite is none."""
    fields = dict(_fields(policy))
    if fields.get("seconds") in _INFINITE:
        if _type_name(policy) == _FIXED_DEADLINE:
            return _NO_DEADLINE
        finite = {key: value for key, value in policy.items() if key != "seconds"}
        return f"round policy {_brief(finite)}, {_NO_DEADLINE}"
    return f"round policy {_brief(policy)}"


def _brief(value: Any) -> str:
    """Return an encoded model with its first plain settings."""
    if not isinstance(value, Mapping):
        return in_words(value)
    plain = [(key, item) for key, item in _fields(value) if not isinstance(item, Mapping)]
    first = plain[:_MAX_BRIEF_SETTINGS]
    settings = ", ".join(f"{key.replace('_', ' ')} {in_words(item)}" for key, item in first)
    more = ", …" if len(plain) > len(first) else ""
    name = _type_name(value)
    return f"{name} ({settings}{more})" if settings else name or "none"


def _type_name(value: Mapping[str, Any]) -> str:
    name = next((value[key] for key in _TYPE_KEYS if isinstance(value.get(key), str)), "")
    return str(name).rpartition(":")[2].rpartition(".")[2]
