"""Every error that turnout raises on purpose.

Each message names the field, the value that was given and the fix. All inherit from
``TurnoutError``, and also from the built-in exception a caller would expect, so that
``except ValueError`` keeps working.
"""

from __future__ import annotations

__all__ = [
    "InvalidInput",
    "MissingColumn",
    "MissingExtra",
    "MissingPoll",
    "NotReset",
    "OutputError",
    "StateFileError",
    "TurnoutError",
    "UnknownParameter",
    "UnknownSelector",
]


class TurnoutError(Exception):
    """Base class of all errors raised by turnout."""


class InvalidInput(TurnoutError, ValueError):
    """A value is outside its domain, or an array has the wrong length or type.

    Args:
        message: Names the field, the value and the fix.
        field: The one field or parameter that is wrong; None if there is no single one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class MissingColumn(TurnoutError, KeyError):
    """A selector needs a column that the round's context does not carry."""

    def __str__(self) -> str:
        """Return the message itself; ``KeyError`` would print it quoted."""
        return str(self.args[0])


class MissingMetric(TurnoutError, RuntimeError):
    """A selector needs a metric that no client reports."""


class MissingPoll(TurnoutError, RuntimeError):
    """A polling selector was asked to select before its candidates were polled."""


class MissingExtra(TurnoutError, ImportError):
    """An optional dependency is not installed."""


class NotReset(TurnoutError, RuntimeError):
    """A selector was used before ``reset(n_clients)``."""


class OutputError(TurnoutError, OSError):
    """A file cannot be written where the user asked for it."""


class StateFileError(TurnoutError, ValueError):
    """A saved state cannot be read: damaged, foreign, of another size or too new."""


class UnknownSelector(TurnoutError, LookupError):
    """No selector is registered under that name."""


class UnknownParameter(TurnoutError, TypeError):
    """A selector has no parameter of that name."""


def in_words(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning as the command line shows it, without the line of code that gave it.

    Args:
        message: The warning.
    """
    return f"Warning: {message}\n"
