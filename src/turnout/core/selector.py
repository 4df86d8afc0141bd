"""The contract of selectors, which decide who takes part in a round of federated learning.

A selector answers one question per round and learns from the answer::

    ctx       = RoundContext(round, cohort_size, available, columns=...)   # what is known
    selection = selector.select(ctx, rng)                                  # who takes part
    outcome   = Outcome(status, duration, metrics)                         # what happened
    selector.observe(selection, outcome)                                   # learn

The rules, all of them tested by ``turnout.testing.check_selector``:

1. ``select`` and ``poll`` never change the state. What advances per round advances in ``observe``
   or is computed from ``ctx.round``.
2. The decision travels back: ``observe`` gets the selection with its round, its probabilities and
   its ``memo``, so feedback may come late and out of order. Call ``observe``
   once per selection, even when no client answered. A second call, or a call on a selector of
   another class, is refused.
3. Randomness is an argument. No seeds in constructors, no global numpy.
4. Clients are indices 0 .. n-1; ``Roster`` maps ids to them. No Python loop over clients.
5. Missing is NaN, and a selector survives it. Reports may hold NaN, a state never does: leave out
   what is NaN in ``observe``, and keep "never reported" as a finite number.
6. Learned attributes end in ``_``; save, load, clone and grow follow from that.

A complete learner, "stay with the clients that answered last time"::

    class StickToWinners(Selector):
        def reset(self, n_clients):
            super().reset(n_clients)
            self.won_ = np.zeros(n_clients)

        def select(self, ctx, rng):
            ranked = top_m(ctx.of_pool(self.won_), ctx.size, rng)
            return Selection(ctx.round, ctx.pool[ranked.chosen], ranked.probability)

        def observe(self, selection, outcome):
            self.won_[selection.clients] = outcome.completed
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput, MissingColumn
from turnout.core.participation import Participation
from turnout.core.rng import Purpose, stream
from turnout.core.stateful import Stateful
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    PollData,
    RoundContext,
    Selection,
)

__all__ = ["Selector"]

#: The limits of selectors that have none.
NO_LIMITS = Participation()
#: Makes a column for n clients.
ColumnMaker: TypeAlias = Callable[[int, np.random.Generator], Array]


class Selector(Stateful, ABC):
    """Decides who takes part in a round. The module's docstring states the rules.

    Every subclass is guarded: ``select``, ``poll`` and ``observe`` refuse a context or an outcome
    that does not fit. They do so before the method runs, so bad input never leaves half a change.
    """

    #: Columns that must be in the context, e.g. ``frozenset({"num_samples"})``.
    needs_columns: frozenset[str] = frozenset()
    #: Columns that are used if the context has them.
    uses_columns: frozenset[str] = frozenset()
    #: Metrics that clients should report. A missing report is NaN and never an error.
    needs_metrics: frozenset[str] = frozenset()
    #: Those of ``needs_metrics`` that it can do without, each with what it then does.
    optional_metrics: Mapping[str, str] = MappingProxyType({})
    #: How many numbers a report has, for metrics that are vectors: ``{"update_sketch": 64}``.
    metric_sizes: Mapping[str, int] = MappingProxyType({})
    #: Columns of the checks for names that they do not know: the number of columns of an (n, d)
    #: array, or a function of n and a generator that returns the whole array.
    check_columns: ClassVar[Mapping[str, int | ColumnMaker]] = MappingProxyType({})
    #: Entries of the memo with one row per chosen client, for ``part``.
    memo_by_client: frozenset[str] = frozenset()
    #: Whether ``select`` may choose fewer clients than it could.
    may_underfill: bool = False
    #: Why it needs whole cohorts, and so cannot fill single places; empty if it does not.
    whole_cohorts: str = ""
    #: Whether every selection carries the probability with which each client was chosen.
    reports_probability: bool = False
    #: Checks of the contract that this class fails on purpose, with the reason.
    expected_check_failures: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: What a polled client evaluates its loss on.
    poll_data: PollData = "all"
    #: How often a client may take part, whatever happens.
    participation: Participation = NO_LIMITS
    #: Whether limits or budgets may exclude available clients, for all rounds together.
    excludes: bool = False

    def reset(self, n_clients: int) -> None:
        """Allocate the state; overrides call ``super().reset`` first.

        Args:
            n_clients: The number of clients, available or not.
        """
        super().reset(n_clients)

    def check_fits(self, n_clients: int, cohort_size: int, n_rounds: int | None = None) -> None:
        """Refuse a federation that is too small for the limits, as ``Participation`` does.

        Args:
            n_clients: The size of the federation.
            cohort_size: Clients per round.
            n_rounds: The rounds of the run; None = unknown.
        """
        if self.participation is not NO_LIMITS:
            self.participation.check_fits(n_clients, cohort_size, n_rounds)

    def randomize(self, rng: np.random.Generator) -> None:
        """Redraw the random part of the initial state; runners call it once after ``reset``.

        Args:
            rng: The only source of randomness.
        """

    @abstractmethod
    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Choose the clients that take part; the state stays as it is.

        Args:
            ctx: What is known before the round.
            rng: The only source of randomness.

        Returns:
            At most ``ctx.size`` of the available clients.
        """

    def chances(self, ctx: RoundContext) -> FloatArray | None:
        """Return (n,) the chance of every client to be chosen; the state stays as it is.

        ``select`` says it of the chosen clients only. With the chances of all clients a selection
        can be mixed with others, and judged by the records of another selector.

        Args:
            ctx: What is known before the round, with the answers of polled clients.

        Returns:
            Zero for clients that cannot be chosen. None, the default, if there is no closed form.
        """
        return None

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Learn from what happened to a selection; the default learns nothing.

        Args:
            selection: What ``select`` returned, in whatever round.
            outcome: What happened, aligned with ``selection.clients``.
        """

    def part(self, selection: Selection, kept: BoolArray, chance: FloatArray) -> Selection:
        """Return a part of a selection for ``observe``, when only its feedback is known.

        A selector that chose beside another one learns of those whom both chose.

        Args:
            selection: What ``select`` returned.
            kept: (s,) the chosen clients whose feedback is known.
            chance: (k,) the chance of each of these k to have known feedback.
        """
        return Selection(
            selection.round,
            selection.clients[kept],
            _product(selection.probability, kept, chance),
            {
                name: values[kept] if name in self.memo_by_client else values
                for name, values in selection.memo.items()
            },
        )

    def resume(self, waiting: Sequence[Selection]) -> None:
        """Go on after ``load_state`` while selections wait for their feedback.

        Runners of rounds that overlap call it. The default needs nothing. A selector that notes
        outside of its state what it has chosen overrides it.

        Args:
            waiting: The selections without feedback, oldest first.
        """

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Return the clients whose current loss ``select`` needs; the default polls no client.

        The runner asks them, and calls ``select`` with ``polled`` and ``polled_loss`` filled in.

        Args:
            ctx: What is known before the round.
            rng: The only source of randomness.
        """
        return None

    @property
    def polls(self) -> bool:
        """Whether ``poll`` may ask clients for their loss."""
        return type(self).poll is not Selector.poll

    def continue_at(self, round: int) -> None:
        """Take note that the state has every round before this one; runners that resume say so.

        Rounds in which nobody could be chosen never reach the selector. The default does nothing.

        Args:
            round: The round that comes next.
        """

    def quota_at(self, round: int) -> float:
        """Return the share of the cohort that is given by equal chances in a round; 0 by default.

        Regret is measured against the best fixed allocation that keeps the same share.

        Args:
            round: The round, counted from 0.
        """
        return 0.0

    def promised_share(self, round: int) -> float:
        """Return the part of its fair share that every available client is promised in a round.

        The fair share is the number of places divided by the number of available clients. Live runs
        warn when a client gets less. The default is the quota.

        Args:
            round: The round, counted from 0.
        """
        return self.quota_at(round)

    def guaranteed_rate(self) -> float | None:
        """Return the share of rounds that every client is promised; None, the default, if none is.

        Fairness queues are counted at this rate.
        """
        return None

    def regret_bound(self, n_rounds: int, cohort_size: int, n_clients: int) -> FloatArray | None:
        """Return (T,) a proven bound on regret after 1 .. T rounds; None, the default, if none is.

        The bound holds if all clients are available in every round.

        Args:
            n_rounds: T.
            cohort_size: Clients wanted per round.
            n_clients: Size of the federation.
        """
        return None

    def prepare(self, n_clients: int, seed: int = 0) -> None:
        """Reset, and draw the random part of the initial state.

        Args:
            n_clients: The number of clients, available or not.
            seed: The seed of the run, whose INIT stream is used.
        """
        self.reset(n_clients)
        self.randomize(stream(seed, Purpose.INIT))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, guard in _GUARDS.items():
            if name in vars(cls):
                setattr(cls, name, guard(vars(cls)[name]))


def _product(p: FloatArray | None, kept: BoolArray, chance: FloatArray) -> FloatArray | None:
    """Return the chances of those who are kept, times another chance; never 0."""
    return None if p is None else np.maximum(p[kept] * chance, np.finfo(np.float64).tiny)


def _guard_context(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Selector, ctx: RoundContext, rng: np.random.Generator) -> Any:
        require.instance("ctx", ctx, RoundContext)
        if ctx.n_clients != self.n_clients:
            raise InvalidInput(
                f"available has length {ctx.n_clients}, but {type(self).__name__} was reset for "
                f"{self.n_clients} clients; use grow(n_clients) when clients join."
            )
        if not isinstance(rng, np.random.Generator):
            raise InvalidInput(
                f"rng must be a numpy Generator, got {require.shown(rng)}; use "
                "turnout.stream(seed, purpose)."
            )
        for name in self.needs_columns - ctx.columns.keys():
            try:
                ctx.column(name)
            except MissingColumn as error:
                raise MissingColumn(f"{type(self).__name__}: {error}") from None
        return method(self, ctx, rng)

    return guarded


def _guard_select(method: Callable[..., Selection]) -> Callable[..., Selection]:
    checked = _guard_context(method)

    @functools.wraps(method)
    def guarded(self: Selector, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        selection: Selection = checked(self, ctx, rng)
        if isinstance(selection, Selection):  # the contract checks report anything else
            selection.origin.made_by(type(self))
        return selection

    return guarded


def _guard_outcome(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def guarded(self: Selector, selection: Selection, outcome: Outcome) -> None:
        require.instance("selection", selection, Selection)
        require.instance("outcome", outcome, Outcome)
        clients = selection.clients
        if outcome.status.size != clients.size:
            raise InvalidInput(
                f"status must have one entry per chosen client: {clients.size}, got "
                f"{outcome.status.size}."
            )
        if clients.size and clients[-1] >= self.n_clients:
            raise InvalidInput(
                f"clients must be < {self.n_clients}, got {clients[-1]}: this selection belongs to "
                "a larger federation; use grow(n_clients) first."
            )
        for name, size in self.metric_sizes.items():
            shape = outcome.metric(name, size).shape[1:]
            if shape != (size,):
                raise InvalidInput(
                    f"metrics[{name!r}] must be vectors of {size} numbers for "
                    f"{type(self).__name__}, got {shape[0] if shape else 'single'} numbers."
                )
        selection.origin.check(self)
        method(self, selection, outcome)
        selection.origin.note(self)

    return guarded


#: The methods that are guarded in every subclass, each with its guard.
_GUARDS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "select": _guard_select,
    "poll": _guard_context,
    "observe": _guard_outcome,
}

for _name in ("poll", "observe"):  # subclasses that do not override them use the defaults
    setattr(Selector, _name, _GUARDS[_name](getattr(Selector, _name)))
