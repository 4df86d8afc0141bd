"""What clients told about themselves, as columns for a selector's context."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from turnout.arrays import COLUMN_LIMITS
from turnout.session.post import log
from turnout.types import LARGEST_REPORT, Array, FloatArray, IntArray

#: Longest code or context that is kept.
_MOST_NUMBERS = 100_000


class Columns:
    """Numbers by column and client index; NaN = unknown. Impossible numbers count as unknown."""

    def __init__(self, n_clients: int = 0) -> None:
        self._n = n_clients
        self._values: dict[str, FloatArray] = {}

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        if n_clients == self._n:
            return
        for name, old in self._values.items():
            new = np.full((n_clients, *old.shape[1:]), np.nan)
            new[: old.shape[0]] = old
            self._values[name] = new
        self._n = n_clients

    def put(self, client: int, record: Mapping[str, Any]) -> None:
        """Take in what a client says; what does not fit is left out and logged."""
        for name, claim in record.items():
            try:
                value = np.asarray(claim, dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                log.warning("client %d: column %r is not numbers, left out", client, name)
                continue
            limit = COLUMN_LIMITS.get(name)
            is_wrong = value.ndim > (0 if limit is not None else 1) or value.size > _MOST_NUMBERS
            column = self._values.get(name)
            if is_wrong or (column is not None and column.shape[1:] != value.shape):
                log.warning(
                    "client %d: column %r has shape %s, left out", client, name, value.shape
                )
                continue
            if column is None:
                column = self._values[name] = np.full((self._n, *value.shape), np.nan)
            column[client] = _possible(name, value)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of what each client has in a column; None if there is no such column."""
        column = self._values.get(name)
        return None if column is None else column.shape[1:]

    def fill(self, clients: IntArray, record: Mapping[str, FloatArray]) -> None:
        """Take in what many clients say at once; the caller has looked at the shapes.

        Args:
            clients: (k,) their indices.
            record: (k,) or (k, d) for each column.
        """
        for name, values in record.items():
            if name not in self._values:
                self._values[name] = np.full((self._n, *values.shape[1:]), np.nan)
            self._values[name][clients] = _possible(name, values)

    def knows(self, name: str, client: int) -> bool:
        """Return whether a client has filled a column."""
        values = self._values.get(name)
        return values is not None and not np.isnan(values[client]).all()

    def number(self, name: str, client: int) -> float:
        """Return what a client has in a column of single numbers; NaN if nothing is known."""
        values = self._values.get(name)
        return float("nan") if values is None or values.ndim > 1 else float(values[client])

    def missing(self, names: Collection[str]) -> list[str]:
        """Return which columns no client has filled, in order."""
        return [name for name in sorted(names) if name not in self._filled()]

    def take(self, names: Collection[str]) -> dict[str, Array]:
        """Return the columns for a context, as far as anybody has filled them."""
        return {name: values.copy() for name, values in self._filled().items() if name in names}

    def unknown(self) -> FloatArray:
        """Return a column that nobody has filled."""
        return np.full(self._n, np.nan)

    def state(self) -> dict[str, Array]:
        """Return all columns."""
        return dict(self._values)

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Go back to the saved columns of so many clients."""
        self._values = {name: np.array(values, dtype=np.float64) for name, values in state.items()}
        self._n = n_clients

    def _filled(self) -> dict[str, FloatArray]:
        return {name: values for name, values in self._values.items() if not np.isnan(values).all()}


def _possible(name: str, values: FloatArray) -> FloatArray:
    """Return the numbers with NaN for those that cannot be."""
    limit = COLUMN_LIMITS.get(name)
    least, most = (-LARGEST_REPORT, LARGEST_REPORT) if limit is None else (0.0, limit)
    return np.where((values >= least) & (values <= most), values, np.nan)
