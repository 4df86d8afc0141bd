"""Names that users write: objects by path, suggestions for wrong names, short forms."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turnout.core.errors import InvalidInput, MissingExtra
from turnout.core.version import current_path

#: If this environment variable is set, only turnout's own code is imported by name.
NO_PLUGINS_VARIABLE = "TURNOUT_NO_PLUGINS"


def import_extra(module: str, advice: str) -> Any:
    """Return a module that not every installation has.

    Args:
        module: The name of the module.
        advice: What needs it and how to install it.

    Raises:
        MissingExtra: It is not installed; the message is the advice.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(advice) from error


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports its names when they are first used.

    Args:
        package: The package.
        homes: The module of each name, or ``module:Name`` for a name of earlier versions.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}.")
        module, _, current = homes[name].partition(":")
        return getattr(importlib.import_module(f"{package}.{module}"), current or name)

    return load


def may_use_plugins() -> bool:
    """Return whether code that is not turnout's may be imported by name."""
    return not os.environ.get(NO_PLUGINS_VARIABLE)


def import_object(path: str) -> Any:
    """Return what ``"package.module:Name"`` names; ``Outer.Inner`` may stand for the name.

    Args:
        path: The module and the name inside it.

    Returns:
        The class, function or other object.

    Raises:
        InvalidInput: The module cannot be imported, has no such name, or is a plug-in where those
            are not allowed.
    """
    module_name, _, names = path.partition(":")
    if module_name.partition(".")[0] != "turnout" and not may_use_plugins():
        raise InvalidInput(
            f"path {path!r} is code of {module_name!r}, which --no-plugins (or the variable "
            f"{NO_PLUGINS_VARIABLE}) keeps from being imported: read the code, then omit the "
            "option or the variable."
        )
    try:
        target = importlib.import_module(current_path(module_name))
        for name in names.split("."):
            target = getattr(target, name)
    except Exception as error:  # whatever somebody else's module raises
        raise InvalidInput(
            f"path {path!r} cannot be imported: {error}. Write package.module:Name."
        ) from error
    return target


def nearest(word: object, options: Iterable[str]) -> str:
    """Return the end of a message about a word that is not one of the options.

    Args:
        word: What was written.
        options: What could have been meant.

    Returns:
        The nearest option as a question, if one is near, and all options, in quotes if any of
        them has a comma.

    >>> nearest("UCB_CS", ["oort", "ucb-cs"])
    " Did you mean 'ucb-cs'? Known: oort, ucb-cs."
    >>> nearest("both", ["iid", "iid, FedAvg"])
    " Known: 'iid', 'iid, FedAvg'."
    """
    options = tuple(options)
    spellings = (str(word).lower().replace("_", "-"), str(word))
    close = [match for text in spellings for match in difflib.get_close_matches(text, options, n=1)]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    has_comma = any("," in option for option in options)
    return f"{hint} Known: {', '.join(map(repr, options) if has_comma else options) or 'none'}."


def shortened(text: str, most: int) -> str:
    """Return the text, cut and marked by an ellipsis if it is long.

    Args:
        text: Any text.
        most: The largest number of characters to return.

    Returns:
        At most ``most`` characters.

    >>> shortened("a long name", 7)
    'a long…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
