"""Commands whose parameters may be groups of options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which a parameter that is a group stands for the group's options.

    Args:
        command: Takes keywords only. A parameter whose type is a dataclass is a group.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        kinds = get_type_hints(groups[parameter.name], include_extras=True)
        for option in inspect.signature(groups[parameter.name]).parameters.values():
            annotated = option.replace(kind=parameter.kind, annotation=kinds[option.name])
            parameters.append(annotated)

    @functools.wraps(command)
    def with_options(**options: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            options[name] = group(**{field: options.pop(field) for field in fields})
        command(**options)

    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options
