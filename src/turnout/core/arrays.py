"""Checks of arrays: each returns the array in the right type or raises ``InvalidInput``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.core import require
from turnout.core.errors import InvalidInput

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Largest magnitude of a reported number; products and squares of such numbers stay finite.
LARGEST_REPORT = 1e30

#: Metrics that cannot be negative; every other metric only has to be a number.
NON_NEGATIVE_METRICS = frozenset({"loss", "loss_std", "loss_rms", "update_norm"})

#: What clients report of their updates, where the selector asks for it: the length, a random
#: projection (``turnout.core.sketch``), and the change of the last bias, one number per class.
UPDATE_METRICS = ("update_norm", "update_sketch", "bias_update")

#: Largest value of the columns that hold amounts; they cannot be negative, NaN means unknown.
COLUMN_LIMITS: Mapping[str, float] = MappingProxyType(
    {
        "num_samples": LARGEST_REPORT,
        "expected_duration": LARGEST_REPORT,
        "upload_duration": LARGEST_REPORT,
        "download_duration": LARGEST_REPORT,
        "success_rate": 1.0,
        "availability_forecast": 1.0,
    }
)


class Status(IntEnum):
    """How a chosen client ended; every chosen client gets exactly one."""

    COMPLETED = 0  #: answered in time
    LATE = 1  #: answered after the deadline
    FAILED = 2  #: answered with an error
    SILENT = 3  #: did not answer at all


def vector(name: str, values: Any, dtype: type[np.generic], size: int | None = None) -> Array:
    """Return a one-dimensional array of a type and a length.

    Args:
        name: Field that an error names.
        values: What to convert; integers become floats, nothing else changes its kind.
        dtype: Type of the array.
        size: Length of the array; None = any.
    """
    array = as_array(name, values)
    wanted = np.dtype(dtype)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(wanted)
    same_kind = array.dtype == wanted or (wanted.kind == "f" and array.dtype.kind in "fiu")
    if array.ndim != 1 or not same_kind:
        got = f"shape {array.shape} of {array.dtype}"
        raise require.wrong(name, f"be a one-dimensional array of {wanted.name}", got=got)
    if size is not None and array.size != size:
        raise InvalidInput(f"{name} must have length {size}, got {array.size}.", field=name)
    return array.astype(wanted, copy=False)


def check_vector(name: str, values: Any, size: int | None = None) -> None:
    """Raise unless the values are a one-dimensional array of numbers; nothing is converted.

    It looks at no number, so that functions of innermost loops can afford it.

    Args:
        name: Field that an error names.
        values: What is checked.
        size: Length of the array; None = any.
    """
    if not (isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiub"):
        kind = type(values).__name__
        got = f"{values.ndim} dimensions of {values.dtype}" if kind == "ndarray" else kind
        raise require.wrong(name, "be a one-dimensional NumPy array of numbers", got=got)
    if size is not None and values.size != size:
        raise InvalidInput(f"{name} must have length {size}, got {values.size}.", field=name)


def as_array(name: str, values: Any) -> Array:
    """Return the values as an array; lists of unequal length are refused.

    Args:
        name: Field that an error names.
        values: What to convert.
    """
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of unequal length
        raise InvalidInput(f"{name} must be one array: {error}.", field=name) from error


def numbers(name: str, values: Any) -> FloatArray:
    """Return the values as floats, whatever their shape; None is NaN.

    Args:
        name: Field that an error names.
        values: What to convert.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{name} must be numbers: {error}.", field=name) from error


def client_indices(name: str, values: Any, n_clients: int | None) -> IntArray:
    """Return client indices as int64.

    Args:
        name: Field that an error names.
        values: The indices, each >= 0.
        n_clients: Number of clients, which each index must be below; None = unknown.
    """
    array = as_array(name, values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"shape {array.shape} of {array.dtype}"
        raise require.wrong(name, "be a one-dimensional array of client indices", got=got)
    array = array.astype(np.int64, copy=False)
    if array.size and (array.min() < 0 or (n_clients is not None and array.max() >= n_clients)):
        limit = "" if n_clients is None else f" and < {n_clients}"
        worst = array.min() if array.min() < 0 else array.max()
        raise InvalidInput(f"{name} must be client indices >= 0{limit}, got {worst}.", field=name)
    return array


def offsets(values: Any, n_entries: int) -> IntArray:
    """Return where the rounds of a record start, (T + 1,) as int64.

    Args:
        values: The offsets; they begin at 0, do not fall, and end with the number of entries.
        n_entries: How many entries the record has.
    """
    starts = client_indices("offsets", values, None)
    is_whole = starts.size and starts[0] == 0 and starts[-1] == n_entries
    if not (is_whole and (starts[1:] >= starts[:-1]).all()):
        raise InvalidInput(
            f"offsets must rise from 0 to the number of entries, {n_entries}.", field="offsets"
        )
    return starts


def statuses(values: Any) -> Array:
    """Return statuses (s,) as int8.

    Args:
        values: The statuses, as numbers.
    """
    array = as_array("status", values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"shape {array.shape} of {array.dtype}"
        raise require.wrong("status", "be a one-dimensional array of Status", got=got)
    if array.size and (array.min() < 0 or array.max() >= len(Status)):
        choices = ", ".join(f"{member.value} {member.name.lower()}" for member in Status)
        bad = array[(array < 0) | (array >= len(Status))][0]
        raise InvalidInput(f"status must be one of {choices}; got {bad}.", field="status")
    return array.astype(np.int8, copy=False)


def reports(
    name: str, values: Any, size: int, *, non_negative: bool, may_be_vectors: bool = False
) -> FloatArray:
    """Return reported numbers (s,), or vectors (s, d), as floats; impossible ones are refused.

    A vector is one report: with a NaN in it, all of it counts as not reported.

    Args:
        name: Field that an error names.
        values: The numbers, NaN = not reported.
        size: s, number of clients.
        non_negative: Whether negative numbers are impossible.
        may_be_vectors: Whether a client may report several numbers.
    """
    array = as_array(name, values)
    is_matrix = array.ndim == 2 and array.dtype.kind in "fiu" and array.shape[0] == size
    if may_be_vectors and is_matrix:
        array = array.astype(np.float64, copy=False)
        is_partial = np.isnan(array).any(axis=1, keepdims=True)
        if is_partial.any():
            array = np.where(is_partial, np.nan, array)
    else:
        array = vector(name, values, np.float64, size)
    least = 0.0 if non_negative else -LARGEST_REPORT
    if array.size == 0 or (array.min() >= least and array.max() <= LARGEST_REPORT):
        return array  # the common case: everything reported and possible
    impossible = np.abs(array) > LARGEST_REPORT
    if non_negative:
        impossible |= array < 0.0
    if impossible.any():
        domain = "finite and >= 0" if non_negative else "finite"
        got = f"{float(array[impossible][0])}; for what clients send use Outcome.from_reports(...)"
        got += " or RoundContext.with_answers(...)"
        raise require.wrong(name, f"be {domain} (NaN = not reported)", got=got)
    return array


def contained(
    name: str, values: Any, size: int, *, non_negative: bool, width: int | None = None
) -> FloatArray:
    """Return untrusted numbers (s,), or vectors (s, width), as floats; impossible ones become NaN.

    Args:
        name: Field that an error names.
        values: What the clients sent, of any type.
        size: s, number of clients.
        non_negative: Whether negative numbers are impossible.
        width: Numbers of each vector; None if a report is one number.
    """
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise require.wrong(name, "hold one report per chosen client", values)
    sent = list(values)
    if len(sent) != size:
        raise require.wrong(name, f"hold one report per chosen client: {size}", got=f"{len(sent)}")
    read = [_as_float(value) if width is None else _as_row(value, width) for value in sent]
    array = np.array(read, dtype=np.float64).reshape((size,) if width is None else (size, width))
    impossible = ~(np.abs(array) <= LARGEST_REPORT)
    if non_negative:
        impossible |= array < 0.0
    array[impossible if width is None else impossible.any(axis=1)] = np.nan
    return array


def _as_row(value: Any, width: int) -> FloatArray:
    """Return a vector that a client sent; all NaN if it is none of this length."""
    try:
        row = np.asarray(value)
        if row.shape == (width,) and row.dtype.kind in "fiu":
            return row.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    return np.full(width, np.nan)


def _as_float(value: Any) -> float:
    if isinstance(value, str | bytes | complex | np.complexfloating):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def check_column(name: str, column: Array, n_clients: int) -> None:
    """Refuse a column that is not numeric, has not one row per client or is outside its range.

    Args:
        name: Name of the column.
        column: (n,) or (n, d) numbers.
        n_clients: n, number of clients.
    """
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "fiub":
        kind = f"{column.dtype} array" if isinstance(column, np.ndarray) else type(column).__name__
        raise InvalidInput(
            f"columns[{name!r}] must be a numeric numpy array, got {kind}.", field="columns"
        )
    if column.ndim not in (1, 2) or column.shape[0] != n_clients:
        raise InvalidInput(
            f"columns[{name!r}] must have one row per client: ({n_clients},) or ({n_clients}, d), "
            f"got {column.shape}.",
            field="columns",
        )
    limit = COLUMN_LIMITS.get(name)
    if limit is not None and column.ndim != 1:
        raise InvalidInput(
            f"columns[{name!r}] must be one number per client: ({n_clients},), got {column.shape}.",
            field="columns",
        )
    if limit is not None and column.size:
        smallest, largest = np.fmin.reduce(column, axis=None), np.fmax.reduce(column, axis=None)
        if smallest < 0.0 or largest > limit:
            bad = float(smallest if smallest < 0.0 else largest)
            raise InvalidInput(
                f"columns[{name!r}] must be inside [0, {limit:g}] (NaN = unknown), got {bad}.",
                field="columns",
            )
