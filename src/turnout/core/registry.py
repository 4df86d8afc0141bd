"""Selectors by name: ``make("e3cs", eta=0.5)``.

Packages add their own through the entry-point group ``turnout.selectors``; a class that is not
registered anywhere is named by its path, ``"package.module:Class"``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from turnout.core import require
from turnout.core.errors import InvalidInput, UnknownParameter, UnknownSelector
from turnout.core.names import import_object, may_use_plugins, nearest
from turnout.core.selector import Selector

__all__ = ["ENTRY_POINT_GROUP", "find", "list_selectors", "make", "name_of", "register"]

ENTRY_POINT_GROUP = "turnout.selectors"

_S = TypeVar("_S", bound=type[Selector])
_registered: dict[str, type[Selector]] = {}
_plugins: dict[str, type[Selector]] = {}  # loaded through entry points


def register(name: str) -> Callable[[_S], _S]:
    """Return a decorator that registers a selector class.

    Args:
        name: Its name for ``make`` and the command line: lower case, words joined by ``-``.
    """

    def add(cls: _S) -> _S:
        if _registered.get(name, cls) is not cls:
            taken = _registered[name].__qualname__
            raise InvalidInput(f"selector name {name!r} is taken by {taken}; choose another.")
        _registered[name] = cls
        return cls

    return add


def list_selectors(*, plugins: bool = True) -> tuple[str, ...]:
    """Return the names of all selectors.

    Args:
        plugins: Whether to list selectors of installed plug-ins too.
    """
    require.boolean("plugins", plugins)
    of_plugins = {entry.name for entry in _entry_points()} if plugins else set()
    return tuple(sorted(_registered.keys() | of_plugins))


def name_of(cls: type[Selector]) -> str:
    """Return the registered name of a class, or its path ``module:Class``.

    Args:
        cls: A class of selectors.
    """
    known = (_registered | _plugins).items()
    path = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for name, registered in known if registered is cls), path)


def find(name: str) -> type[Selector]:
    """Return the class behind a name.

    Args:
        name: A registered name, or a path ``package.module:Class``.

    Raises:
        UnknownSelector: No selector has this name; the message names the nearest one.
    """
    if not isinstance(name, str):
        raise UnknownSelector(f"a selector's name must be a string, got {name!r}.")
    if name in _registered:
        return _registered[name]
    if ":" in name:
        try:
            return _checked(name, import_object(name))
        except InvalidInput as error:
            raise UnknownSelector(f"unknown selector: {error}") from error
    for entry in _entry_points():
        if entry.name == name:
            try:
                loaded = entry.load()
            except Exception as error:  # whatever somebody else's module raises
                raise UnknownSelector(f"plug-in {name!r} cannot be imported: {error}.") from error
            _plugins[name] = _checked(name, loaded)
            return _plugins[name]
    raise UnknownSelector(f"unknown selector {name!r}.{nearest(name, list_selectors())}")


def make(name: str, **parameters: Any) -> Selector:
    """Make a selector by name, with its parameters checked.

    Args:
        name: A registered name, or a path ``package.module:Class``.
        **parameters: Parameters of the class; ``turnout list NAME`` explains them.

    Raises:
        UnknownSelector: There is no such selector.
        UnknownParameter: It has no such parameter.
        InvalidInput: A parameter is outside its domain.

    >>> make("random")
    Random()
    """
    cls = find(name)
    allowed = cls.parameter_names()
    for key in parameters:
        if key not in allowed:
            raise UnknownParameter(f"{name!r} has no parameter {key!r}.{nearest(key, allowed)}")
    try:
        selector = cls(**parameters)
    except TypeError as error:  # an abstract class, or a parameter without a default
        raise InvalidInput(f"{name!r} cannot be made: {error}.") from error
    selector.check_parameters()
    return selector


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if may_use_plugins() else ()


def _checked(name: str, loaded: object) -> type[Selector]:
    if not (isinstance(loaded, type) and issubclass(loaded, Selector)):
        raise UnknownSelector(f"{name!r} is not a subclass of turnout.Selector.")
    return loaded
