"""What a client tells about itself: columns that stay, and columns that change with every round.

Clients import this module, so it loads nothing of the server's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from turnout.errors import InvalidInput

#: A value, or a function that gives it when the server asks.
Given: TypeAlias = Any
#: Columns that are asked for once, also if they are functions.
_ONCE = ("num_samples", "features")


class ClientColumns(NamedTuple):
    """The columns of a client.

    Attributes:
        fixed: Columns that are asked for once.
        changing: Columns that are asked for before every round.
    """

    fixed: Mapping[str, Given]
    changing: Mapping[str, Given]

    @classmethod
    def of(
        cls,
        num_examples: Given = None,
        features: Given = None,
        context: Given = None,
        columns: Mapping[str, Given] | None = None,
    ) -> ClientColumns:
        """Return the columns; values that are plain are checked at once.

        Args:
            num_examples: The number of examples, for the column num_samples.
            features: A code of the data, such as SimHash bits.
            context: The state of the device.
            columns: Any other column by its name.
        """
        known = {"num_samples": num_examples, "features": features, "context": context}
        given = {name: value for name, value in known.items() if value is not None}
        given |= columns or {}
        changing = {
            name: value for name, value in given.items() if callable(value) and name not in _ONCE
        }
        fixed = {name: value for name, value in given.items() if name not in changing}
        for name, value in fixed.items():
            if not callable(value):
                numbers("num_examples" if name == "num_samples" else name, value)
        return cls(fixed, changing)


def told(given: Mapping[str, Given], *asked: Any) -> dict[str, float | list[float]]:
    """Return columns in plain numbers.

    Args:
        given: Their values or functions.
        asked: What the functions are called with.
    """
    return {
        name: numbers(name, value(*asked) if callable(value) else value)
        for name, value in given.items()
    }


def numbers(name: str, value: Any) -> float | list[float]:
    """Return a number or a list of them in plain floats.

    Args:
        name: What it is, for the error.
        value: A number, an array or a tensor of at most one dimension.
    """
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers, got {value!r}.") from error
    if array.ndim > 1:
        raise InvalidInput(f"{name} must be a number or a list of them, got shape {array.shape}.")
    plain: float | list[float] = array.tolist()
    return plain
