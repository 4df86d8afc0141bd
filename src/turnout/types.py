"""The values that cross the contract: what is known, what is decided, what happened.

All three are frozen and checked when they are built, so a selector never has to ask whether an
array fits. Lists are accepted and stored as arrays. Missing numbers are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout import require
from turnout.errors import InvalidInput, MissingColumn, MissingPoll

__all__ = [
    "COLUMN_LIMITS",
    "LARGEST_REPORT",
    "NON_NEGATIVE_METRICS",
    "Array",
    "BoolArray",
    "FloatArray",
    "IntArray",
    "Outcome",
    "RoundContext",
    "Selection",
    "Status",
]

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Largest magnitude of a reported number: products and squares of such numbers stay finite.
LARGEST_REPORT = 1e30

#: Metrics that cannot be negative; every other metric only has to be a number.
NON_NEGATIVE_METRICS = frozenset({"loss", "loss_std", "loss_rms"})

#: Largest value of the columns that hold amounts; they cannot be negative, NaN means unknown.
COLUMN_LIMITS: Mapping[str, float] = MappingProxyType(
    {
        "num_samples": LARGEST_REPORT,
        "expected_duration": LARGEST_REPORT,
        "upload_duration": LARGEST_REPORT,
        "download_duration": LARGEST_REPORT,
        "success_rate": 1.0,
    }
)

_NOTHING: Mapping[str, Array] = MappingProxyType({})


class Status(IntEnum):
    """How a chosen client ended; every chosen client gets exactly one."""

    COMPLETED = 0  #: answered in time
    LATE = 1  #: answered after the deadline
    FAILED = 2  #: answered with an error
    SILENT = 3  #: did not answer at all


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What the server knows before it chooses.

    >>> ctx = RoundContext(round=0, cohort_size=2, available=[True, False, True, True])
    >>> ctx.n_clients, ctx.size, ctx.pool.tolist()
    (4, 2, [0, 2, 3])
    """

    round: int  #: t, from 0
    cohort_size: int  #: m, an upper bound on the number of chosen clients
    available: BoolArray  #: (n,) who can be chosen
    deadline: float = math.inf  #: seconds a client has
    columns: Mapping[str, Array] = field(default_factory=lambda: _NOTHING)  #: (n,) or (n, d) each
    polled: IntArray | None = None  #: the clients that ``poll`` asked for ...
    polled_loss: FloatArray | None = None  #: ... and what they answered, NaN = no answer
    pool: IntArray = field(init=False, repr=False, compare=False)  #: indices of the available

    def __post_init__(self) -> None:
        require.integer("round", self.round, minimum=0)
        require.integer("cohort_size", self.cohort_size, minimum=1)
        available = _vector("available", self.available, np.bool_)
        n = available.size
        if self.deadline != math.inf:
            require.number("deadline", self.deadline, above=0.0)
        for name, column in self.columns.items():
            _check_column(name, column, n)
        _store(self, "available", available)
        _store(self, "pool", np.flatnonzero(available))
        if (self.polled is None) != (self.polled_loss is None):
            raise InvalidInput("polled and polled_loss belong together: give both or neither.")
        if self.polled is not None:
            polled = _clients("polled", self.polled, n)
            if np.unique(polled).size != polled.size:
                raise InvalidInput("polled must be unique: each client is asked once.")
            loss = _reports("polled_loss", self.polled_loss, polled.size, non_negative=True)
            _store(self, "polled", polled)
            _store(self, "polled_loss", loss)

    @property
    def n_clients(self) -> int:
        """Number of clients known to the server, available or not."""
        return self.available.size

    @property
    def size(self) -> int:
        """Number of clients that can be chosen: min(cohort_size, available)."""
        return min(self.cohort_size, self.pool.size)

    def of_pool(self, values: Array, axis: int = 0) -> Array:
        """Return the entries of the available clients; no copy when everyone is available."""
        return values if self.pool.size == self.n_clients else values.take(self.pool, axis=axis)

    def column(self, name: str) -> Array:
        """Return a column, or raise ``MissingColumn`` saying what to add."""
        try:
            return self.columns[name]
        except KeyError:
            raise MissingColumn(_missing_column(name, self.columns)) from None

    def answers(self) -> tuple[IntArray, FloatArray]:
        """Return the polled clients and their losses, or raise ``MissingPoll``."""
        if self.polled is None or self.polled_loss is None:
            raise MissingPoll(
                "polled is None: this selector decides on polled losses. Call poll(ctx, rng), ask "
                "those clients for their loss and pass polled= and polled_loss= in the context."
            )
        return self.polled, self.polled_loss


@dataclass(frozen=True, slots=True)
class Selection:
    """The decision of one round. It travels back to ``observe`` with what happened.

    >>> Selection(round=3, clients=[1, 4], probability=[0.5, 0.25]).clients
    array([1, 4])
    """

    round: int
    clients: IntArray  #: (s,) unique, ascending
    probability: FloatArray | None = None  #: (s,) inclusion probability; None = no closed form
    #: What ``observe`` needs to remember of the moment of choice (context, quota); any arrays.
    memo: Mapping[str, Array] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        require.integer("round", self.round, minimum=0)
        clients = _clients("clients", self.clients, None)
        if np.any(clients[1:] <= clients[:-1]):
            raise InvalidInput("clients must be unique and ascending; sort them first.")
        _store(self, "clients", clients)
        if self.probability is not None:
            p = _vector("probability", self.probability, np.float64, clients.size)
            if not np.all((p > 0.0) & (p <= 1.0)):
                bad = p[~((p > 0.0) & (p <= 1.0))][0]
                raise InvalidInput(f"probability must be inside (0, 1], got {bad!r}.")
            _store(self, "probability", p)

    def recall(self, name: str) -> Array:
        """Return an entry of the memo, or raise ``InvalidInput`` if this is not the selection."""
        try:
            return self.memo[name]
        except KeyError:
            raise InvalidInput(
                f"memo has no {name!r}: observe needs the Selection that select returned, with its "
                "memo; a selection of another selector or one built by hand will not do."
            ) from None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to the chosen clients, aligned with ``selection.clients``.

    The constructor refuses impossible numbers. Reports that come from clients go through
    ``Outcome.from_reports``, which turns impossible numbers into missing ones instead.

    >>> outcome = Outcome(status=[0, 2], duration=[1.5, float("nan")], metrics={"loss": [0.7, 0]})
    >>> outcome.completed.tolist()
    [True, False]
    """

    status: Array  #: (s,) int8 of Status
    duration: FloatArray  #: (s,) seconds, NaN = unknown
    metrics: Mapping[str, FloatArray] = field(default_factory=lambda: _NOTHING)  #: (s,), NaN = none

    def __post_init__(self) -> None:
        status = _statuses(self.status)
        _store(self, "status", status)
        duration = _reports("duration", self.duration, status.size, non_negative=True)
        _store(self, "duration", duration)
        checked = {
            name: _reports(name, values, status.size, non_negative=name in NON_NEGATIVE_METRICS)
            for name, values in self.metrics.items()
        }
        _store(self, "metrics", MappingProxyType(checked))

    @classmethod
    def from_reports(
        cls, status: Any, duration: Any, metrics: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Build an outcome from untrusted reports: what cannot be true counts as not reported.

        >>> Outcome.from_reports([0, 0], [2.0, -1.0], {"loss": [float("inf"), "x"]}).metrics["loss"]
        array([nan, nan])
        """
        status = _statuses(status)
        clean = {
            name: _contained(name, values, status.size, non_negative=name in NON_NEGATIVE_METRICS)
            for name, values in (metrics or {}).items()
        }
        seconds = _contained("duration", duration, status.size, non_negative=True)
        return cls(status, seconds, clean)

    @property
    def completed(self) -> BoolArray:
        """(s,) who answered in time."""
        return np.equal(self.status, Status.COMPLETED)

    def metric(self, name: str) -> FloatArray:
        """Return a metric; all NaN when nobody reported it."""
        values = self.metrics.get(name)
        return np.full(self.status.size, np.nan) if values is None else values


def _store(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)  # the dataclasses are frozen


def _vector(name: str, values: Any, dtype: type[np.generic], size: int | None = None) -> Array:
    array = _array(name, values)
    wanted = np.dtype(dtype)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(wanted)
    same_kind = array.dtype == wanted or (wanted.kind == "f" and array.dtype.kind in "fiu")
    if array.ndim != 1 or not same_kind:
        got = f"shape {array.shape} of {array.dtype}"
        raise InvalidInput(f"{name} must be a one-dimensional array of {wanted.name}, got {got}.")
    if size is not None and array.size != size:
        raise InvalidInput(f"{name} must have length {size}, got {array.size}.")
    return array.astype(wanted, copy=False)


def _array(name: str, values: Any) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:  # ragged lists
        raise InvalidInput(f"{name} must be one-dimensional: {error}.") from error


def _clients(name: str, values: Any, n_clients: int | None) -> IntArray:
    array = _array(name, values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"shape {array.shape} of {array.dtype}"
        raise InvalidInput(f"{name} must be a one-dimensional array of client indices, got {got}.")
    array = array.astype(np.int64, copy=False)
    if array.size and (array.min() < 0 or (n_clients is not None and array.max() >= n_clients)):
        limit = "" if n_clients is None else f" and < {n_clients}"
        worst = array.min() if array.min() < 0 else array.max()
        raise InvalidInput(f"{name} must be client indices >= 0{limit}, got {worst}.")
    return array


def _statuses(values: Any) -> Array:
    array = _array("status", values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"status must be a one-dimensional array of Status, got shape {array.shape} of "
            f"{array.dtype}."
        )
    if array.size and (array.min() < 0 or array.max() > max(Status)):
        allowed = ", ".join(f"{status.value} {status.name.lower()}" for status in Status)
        bad = array[(array < 0) | (array > max(Status))][0]
        raise InvalidInput(f"status must be one of {allowed}; got {bad}.")
    return array.astype(np.int8, copy=False)


def _reports(name: str, values: Any, size: int, *, non_negative: bool) -> FloatArray:
    array = _vector(name, values, np.float64, size)
    impossible = np.abs(array) > LARGEST_REPORT
    if non_negative:
        impossible |= array < 0.0
    if impossible.any():
        domain = "finite and >= 0" if non_negative else "finite"
        raise InvalidInput(
            f"{name} must be {domain} (NaN = not reported), got {array[impossible][0]!r}; "
            "build outcomes from client reports with Outcome.from_reports(...)."
        )
    return array


def _contained(name: str, values: Any, size: int, *, non_negative: bool) -> FloatArray:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} must hold one report per chosen client, got {values!r}.")
    given = list(values)
    if len(given) != size:
        raise InvalidInput(
            f"{name} must hold one report per chosen client: {size}, got {len(given)}."
        )
    array = np.array([_as_float(value) for value in given], dtype=np.float64)
    impossible = ~(np.abs(array) <= LARGEST_REPORT)
    if non_negative:
        impossible |= array < 0.0
    array[impossible] = np.nan
    return array


def _as_float(value: Any) -> float:
    if isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check_column(name: str, column: Array, n_clients: int) -> None:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "fiub":
        kind = f"{column.dtype} array" if isinstance(column, np.ndarray) else type(column).__name__
        raise InvalidInput(f"columns[{name!r}] must be a numeric numpy array, got {kind}.")
    if column.ndim not in (1, 2) or column.shape[0] != n_clients:
        raise InvalidInput(
            f"columns[{name!r}] must have one row per client: ({n_clients},) or ({n_clients}, d), "
            f"got {column.shape}."
        )
    limit = COLUMN_LIMITS.get(name)
    if limit is not None and column.size:
        smallest, largest = np.fmin.reduce(column, axis=None), np.fmax.reduce(column, axis=None)
        if smallest < 0.0 or largest > limit:
            bad = smallest if smallest < 0.0 else largest
            raise InvalidInput(
                f"columns[{name!r}] must be inside [0, {limit:g}] (NaN = unknown), got {bad!r}."
            )


def _missing_column(name: str, columns: Mapping[str, Array]) -> str:
    have = ", ".join(sorted(columns)) or "none"
    return (
        f"columns[{name!r}] is missing (the context has: {have}). "
        f"Pass RoundContext(..., columns={{{name!r}: array with one row per client}})."
    )
