"""The values that cross the contract: what is known, what is decided, what happened.

All three are frozen and checked when they are built, so a selector never has to ask whether an
array fits. Lists are accepted and stored as arrays. Missing numbers are NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from turnout.core import require
from turnout.core.arrays import (
    LARGEST_REPORT,
    NON_NEGATIVE_METRICS,
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Status,
    check_column,
    client_indices,
    contained,
    reports,
    statuses,
    vector,
)
from turnout.core.errors import InvalidInput, MissingColumn, MissingPoll

__all__ = [
    "LARGEST_REPORT",
    "Array",
    "BoolArray",
    "FloatArray",
    "IntArray",
    "Outcome",
    "PollData",
    "RoundContext",
    "Selection",
    "Status",
]

#: What a polled client evaluates its loss on.
PollData = Literal["all", "mini-batch"]

_COMPLETED = np.int8(Status.COMPLETED)  # an enum costs more than the comparison itself
_NOTHING: Mapping[str, Array] = MappingProxyType({})
_NO_SIZES: Mapping[str, int] = MappingProxyType({})
_NOT_EVALUATED: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What the server knows before it chooses.

    Args:
        round: The number of the round, from 0; t in papers.
        cohort_size: The most clients that may be chosen; m or k in papers.
        available: (n,) which clients can be chosen.
        deadline: Seconds that a client has; infinity if there is no limit.
        columns: What is known of each client, by name: (n,) or (n, d), NaN where it is unknown.
        polled: The clients that ``poll`` asked for; None if no client was polled.
        polled_loss: What they answered, NaN for no answer.
        evaluated: How good the global model was when it was last evaluated, such as ``accuracy``
            and ``loss``; empty if no evaluation was made.
        busy: (n,) which clients are at work, where rounds overlap; None where they do not. Those
            cannot be chosen.

    Attributes:
        pool: The indices of the available clients.

    >>> ctx = RoundContext(round=0, cohort_size=2, available=[True, False, True, True])
    >>> ctx.n_clients, ctx.size, ctx.pool.tolist()
    (4, 2, [0, 2, 3])
    """

    round: int
    cohort_size: int
    available: BoolArray
    deadline: float = math.inf
    columns: Mapping[str, Array] = field(default_factory=lambda: _NOTHING)
    polled: IntArray | None = None
    polled_loss: FloatArray | None = None
    evaluated: Mapping[str, float] = field(default_factory=lambda: _NOT_EVALUATED)
    busy: BoolArray | None = None
    pool: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require.integer("round", self.round, minimum=0)
        require.integer("cohort_size", self.cohort_size, minimum=1)
        available = vector("available", self.available, np.bool_)
        n = available.size
        if self.deadline != math.inf:
            require.number("deadline", self.deadline, above=0.0)
        require.mapping("columns", self.columns, "names to arrays")
        for name, column in self.columns.items():
            check_column(name, column, n)
        require.mapping("evaluated", self.evaluated, "names to numbers")
        if self.busy is not None:
            busy = vector("busy", self.busy, np.bool_, n)
            if (busy & available).any():
                raise InvalidInput("busy clients must not be available.", field="busy")
            _store(self, "busy", busy)
        _store(self, "available", available)
        _store(self, "pool", np.flatnonzero(available))
        if (self.polled is None) != (self.polled_loss is None):
            raise InvalidInput(
                "polled and polled_loss belong together: give both or neither.", field="polled"
            )
        if self.polled is not None:
            polled = client_indices("polled", self.polled, n)
            if np.unique(polled).size != polled.size:
                raise InvalidInput(
                    "polled must be unique: each client is asked once.", field="polled"
                )
            loss = reports("polled_loss", self.polled_loss, polled.size, non_negative=True)
            _store(self, "polled", polled)
            _store(self, "polled_loss", loss)

    def __reduce__(self) -> tuple[Any, ...]:
        known = (self.available, self.deadline, dict(self.columns), self.polled, self.polled_loss)
        later = (dict(self.evaluated), self.busy)
        return type(self), (self.round, self.cohort_size, *known, *later)

    @property
    def n_clients(self) -> int:
        """Number of clients known to the server, available or not."""
        return self.available.size

    @property
    def size(self) -> int:
        """Number of clients that can be chosen: min(cohort_size, available)."""
        return min(self.cohort_size, self.pool.size)

    def of_pool(self, values: Array, axis: int = 0) -> Array:
        """Return the entries of the available clients; no copy when everyone is available.

        Args:
            values: An array with one entry per client.
            axis: The axis of the clients.
        """
        return values if self.pool.size == self.n_clients else values.take(self.pool, axis=axis)

    def of_everyone(self, values: Array) -> FloatArray:
        """Return numbers of the available clients as (n,) numbers of all; 0 for the others.

        Args:
            values: One number for each client of ``pool``.
        """
        everyone = np.zeros(self.n_clients)
        everyone[self.pool] = values
        return everyone

    def column(self, name: str) -> Array:
        """Return a column.

        Args:
            name: Its name in ``columns``.

        Raises:
            MissingColumn: There is none of this name; the message says what to add.
        """
        try:
            return self.columns[name]
        except KeyError:
            raise MissingColumn(
                f"columns[{name!r}] is missing (the context has: "
                f"{', '.join(sorted(self.columns)) or 'none'}). Pass RoundContext(..., "
                f"columns={{{name!r}: array with one row per client}})."
            ) from None

    def with_answers(self, polled: IntArray, reports: Any) -> RoundContext:
        """Return the context with the polled clients' answers.

        Args:
            polled: The clients that ``poll`` returned.
            reports: What each of them answered; what cannot be a loss counts as no answer.
        """
        loss = contained("polled_loss", reports, np.size(polled), non_negative=True)
        return dataclasses.replace(self, polled=polled, polled_loss=loss)

    def answers(self) -> tuple[IntArray, FloatArray]:
        """Return the polled clients and their losses, or raise ``MissingPoll``."""
        if self.polled is None or self.polled_loss is None:
            raise MissingPoll(
                "polled is None: this selector decides on polled losses. Call poll(ctx, rng), ask "
                "those clients for their loss and select with ctx.with_answers(polled, losses)."
            )
        return self.polled, self.polled_loss


@dataclass(slots=True)
class Origin:
    """The maker and the observers of a selection; a copy starts without any.

    Attributes:
        makers: The classes whose ``select`` returned it; empty if it was built by hand.
        observers: The selectors that have observed it.
    """

    makers: tuple[type, ...] = ()
    observers: WeakSet[Any] | None = None

    def made_by(self, maker: type) -> None:
        """Remember a class whose ``select`` returned the selection.

        Args:
            maker: The class.
        """
        if maker not in self.makers:
            self.makers += (maker,)

    def check(self, observer: Any) -> None:
        """Refuse a selector that did not make the selection, or has observed it already.

        Args:
            observer: The selector that is about to learn.
        """
        name = type(observer).__name__
        if self.makers and type(observer) not in self.makers:
            raise InvalidInput(
                f"selection was made by {self.makers[0].__name__}, not by {name}: observe needs "
                "what the selector's own select returned.",
                field="selection",
            )
        if self.observers is not None and observer in self.observers:
            raise InvalidInput(
                f"selection was observed by this {name} already: each is reported once.",
                field="selection",
            )

    def note(self, observer: Any) -> None:
        """Remember that a selector has learned from the selection.

        Args:
            observer: The selector.
        """
        if self.observers is None:
            self.observers = WeakSet()
        self.observers.add(observer)


@dataclass(frozen=True, slots=True)
class Selection:
    """The decision of one round. It travels back to ``observe`` with what happened.

    Args:
        round: The round of the context.
        clients: (s,) the chosen clients, unique and ascending.
        probability: (s,) the chance that each had to be chosen; None if it has no closed form.
        memo: What ``observe`` needs to remember of the moment of choice, as arrays of any shape.

    Attributes:
        origin: The classes that made it and the selectors that observed it.

    >>> Selection(round=3, clients=[1, 4], probability=[0.5, 0.25]).clients
    array([1, 4])
    """

    round: int
    clients: IntArray
    probability: FloatArray | None = None
    memo: Mapping[str, Array] = field(default_factory=lambda: _NOTHING)
    origin: Origin = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require.integer("round", self.round, minimum=0)
        _store(self, "origin", Origin())
        clients = client_indices("clients", self.clients, None)
        if clients.size > 1 and (clients[1:] <= clients[:-1]).any():
            raise InvalidInput(
                "clients must be unique and ascending; sort them first.", field="clients"
            )
        _store(self, "clients", clients)
        require.mapping("memo", self.memo, "names to arrays")
        if self.probability is not None:
            p = vector("probability", self.probability, np.float64, clients.size)
            if p.size and not (p.min() > 0.0 and p.max() <= 1.0):
                bad = p[~((p > 0.0) & (p <= 1.0))][0]
                raise InvalidInput(
                    f"probability must be inside (0, 1], got {float(bad)}.", field="probability"
                )
            _store(self, "probability", p)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.round, self.clients, self.probability, dict(self.memo))

    @property
    def times(self) -> IntArray:
        """(s,) how often each was drawn: ``memo["multiplicity"]``, once each without it."""
        drawn = self.memo.get("multiplicity")
        return np.ones(self.clients.size, dtype=np.int64) if drawn is None else drawn

    def recall(self, name: str) -> Array:
        """Return an entry of the memo; none means that ``select`` did not make this selection.

        Args:
            name: Its name in ``memo``.
        """
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

    Args:
        status: (s,) how each client ended, a ``Status``.
        duration: (s,) seconds that each took, NaN if unknown.
        metrics: What clients reported, by name: (s,) or (s, d) each, NaN for no report.
        length_s: Seconds from the choice to the end of the round by the server's own clock, NaN if
            unknown. Unlike ``duration`` it is no client's claim.

    >>> outcome = Outcome(status=[0, 2], duration=[1.5, float("nan")], metrics={"loss": [0.7, 0]})
    >>> outcome.completed.tolist()
    [True, False]
    """

    status: Array
    duration: FloatArray
    metrics: Mapping[str, FloatArray] = field(default_factory=lambda: _NOTHING)
    length_s: float = math.nan

    def __post_init__(self) -> None:
        if not math.isnan(self.length_s):
            require.number("length_s", self.length_s, minimum=0.0)
        status = statuses(self.status)
        _store(self, "status", status)
        duration = reports("duration", self.duration, status.size, non_negative=True)
        _store(self, "duration", duration)
        require.mapping("metrics", self.metrics, "names to arrays")
        checked = {
            name: reports(
                name,
                values,
                status.size,
                non_negative=name in NON_NEGATIVE_METRICS,
                may_be_vectors=name not in NON_NEGATIVE_METRICS,
            )
            for name, values in self.metrics.items()
        }
        _store(self, "metrics", MappingProxyType(checked))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.duration, dict(self.metrics), self.length_s)

    @classmethod
    def from_reports(
        cls,
        status: Any,
        duration: Any,
        metrics: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] = _NO_SIZES,
    ) -> Outcome:
        """Build an outcome from untrusted reports: what cannot be true counts as not reported.

        Args:
            status: (s,) how each client ended, as the server saw it.
            duration: (s,) seconds, as reported.
            metrics: What clients reported, by name: (s,) each, of any type.
            sizes: How many numbers a report has, for metrics that are vectors. A vector of another
                length counts as not reported.

        >>> Outcome.from_reports([0, 0], [2.0, -1.0], {"loss": [float("inf"), "x"]}).metrics["loss"]
        array([nan, nan])
        """
        status = statuses(status)
        clean = {
            name: contained(
                name,
                values,
                status.size,
                non_negative=name in NON_NEGATIVE_METRICS,
                width=sizes.get(name),
            )
            for name, values in (metrics or {}).items()
        }
        seconds = contained("duration", duration, status.size, non_negative=True)
        return cls(status, seconds, clean)

    @property
    def completed(self) -> BoolArray:
        """(s,) which clients answered in time."""
        return np.equal(self.status, _COMPLETED)

    def metric(self, name: str, size: int | None = None) -> FloatArray:
        """Return a metric; all NaN if no client reported it.

        Args:
            name: Its name in ``metrics``.
            size: d, for a metric of vectors (s, d); None for one number per client.
        """
        values = self.metrics.get(name)
        if values is None:
            shape = (self.status.size,) if size is None else (self.status.size, size)
            return np.full(shape, np.nan)
        return values


def _store(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)  # the dataclasses are frozen
