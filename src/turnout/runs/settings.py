"""What a cell was run with."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["first_difference"]


def first_difference(
    there: Any,
    here: Any,
    key: str = "",
    *,
    saved_in: str = "the folder",
    wanted_by: str = "this experiment",
) -> str | None:
    """Return where two plain values differ first, in words, or None.

    Args:
        there: what was saved.
        here: what is wanted now.
        key: name of the values; nested names are joined by dots.
        saved_in: what holds the first value, in words.
        wanted_by: what has the second one, in words.

    >>> first_difference({"n_rounds": 500}, {"n_rounds": 900})
    'n_rounds: the folder has 500, this experiment 900'

    """
    compare = functools.partial(first_difference, saved_in=saved_in, wanted_by=wanted_by)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in dict.fromkeys((*there, *here)):
            inner = f"{key}.{name}" if key else str(name)
            difference = compare(there.get(name), here.get(name), inner)
            if difference is not None:
                return difference
        return None
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = enumerate(zip(there, here, strict=True))
        differences = (compare(a, b, f"{key}[{i}]") for i, (a, b) in pairs)
        return next((each for each in differences if each is not None), None)
    if there == here:
        return None
    return f"{key}: {saved_in} has {_short(there)}, {wanted_by} {_short(here)}"


def _short(value: Any) -> str:
    text = json.dumps(value) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."
