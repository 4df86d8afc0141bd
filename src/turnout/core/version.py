"""The version of this package, and the versions whose numbers it repeats."""

from __future__ import annotations

__all__ = ["__version__", "repeats"]

__version__ = "0.2.0"

#: Versions whose runs and results may be extended. Every development version before 0.2.0 was
#: called 0.1.0. The last of them computes the same numbers, bit for bit. In run folders, the digest
#: of a built-in selector decides: its files moved, so such a cell is run again.
_SAME_NUMBERS = frozenset({"0.1.0"})


def repeats(version: str) -> bool:
    """Return whether this version computes the numbers of another one, bit for bit.

    Runs and results of such a version can be resumed and extended.

    Args:
        version: The other version, such as ``"0.1.0"``.

    >>> repeats("0.0.1")
    False
    """
    return version == __version__ or version in _SAME_NUMBERS
