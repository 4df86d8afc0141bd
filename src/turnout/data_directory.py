"""The data directory: the folder in which datasets and device traces are looked for.

It is an argument of each reader, or the environment variable ``TURNOUT_DATA``.
"""

from __future__ import annotations

import os
from pathlib import Path

from turnout.errors import TurnoutError

__all__ = ["DATA_VARIABLE", "DataMissing", "data_directory"]

#: Environment variable that names the data directory.
DATA_VARIABLE = "TURNOUT_DATA"


class DataMissing(TurnoutError, FileNotFoundError):
    """A file was asked for and is not in the data directory."""


def data_directory(directory: str | Path | None = None) -> str | Path | None:
    """Return the directory to look in, or None if none is set.

    Args:
        directory: Folder to use. None takes the one that ``TURNOUT_DATA`` names.

    """
    if directory is None:
        return os.environ.get(DATA_VARIABLE)
    if not isinstance(directory, str | Path):
        raise TypeError(f"directory must be a path, got {type(directory).__name__}.")
    return directory
