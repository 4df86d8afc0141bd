"""The numbers of Flower's arrays without copying them, and without trusting what they claim."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray

from turnout.types import Array

__all__ = ["UNREADABLE", "read"]

#: What reading the bytes of a damaged array can raise.
UNREADABLE = (ValueError, TypeError, OSError, EOFError, MemoryError, AttributeError, SyntaxError)


def read(array: FlowerArray) -> Array:
    """Return the numbers, read-only where possible; raise one of ``UNREADABLE`` if there are none.

    The usual bytes are a header that follows from type and shape, and the numbers behind it.
    """
    data = array.data
    usual = _usual(array.dtype, tuple(array.shape)) if array.stype == "numpy.ndarray" else None
    if usual is None:
        return array.numpy()
    header, dtype, size = usual
    if len(data) != len(header) + size * dtype.itemsize or not data.startswith(header):
        return array.numpy()
    return np.frombuffer(data, dtype, offset=len(header)).reshape(array.shape)


@lru_cache(maxsize=4096)
def _usual(name: str, shape: tuple[int, ...]) -> tuple[bytes, np.dtype[Any], int] | None:
    """Return the header of an array that was written in C order, its type and its size."""
    try:
        dtype = np.dtype(name)
        described = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, described)
    except UNREADABLE:
        return None
    if dtype.hasobject:
        return None
    return buffer.getvalue(), dtype, math.prod(shape)
