"""One round from the choice to its end: who was chosen, and how it ended for everyone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from turnout.policies import Closed, RoundPolicy
from turnout.session.alerts import Alert
from turnout.session.chooser import Chooser
from turnout.session.cohort import Cohort
from turnout.session.members import Members
from turnout.session.port import Address, Heard
from turnout.session.reports import Reports
from turnout.types import BoolArray, FloatArray, RoundContext, Selection, Status

#: Says which answers do not fit the others, by position, and why.
Misfits = Callable[[Sequence[Heard]], Mapping[int, str]]
#: When a round began and when it was closed, in seconds since 1970.
Times = tuple[float, float]


class Chosen(NamedTuple):
    """Who is to work in a round, in the order of the selection.

    Attributes:
        round: The round, counted from 0.
        ids: (s,) stable ids.
        addresses: (s,) where they are.
        is_asked: (s,) who gets work: everyone, but in a virtual world only who answers in time.
        deadline: Seconds that they have.
        probability: (s,) their chances; None if the selector does not say.
        n_free: How many could have been chosen.
        times: (s,) how often each was drawn; empty if nobody was chosen.
    """

    round: int
    ids: tuple[Hashable, ...]
    addresses: tuple[Address, ...]
    is_asked: tuple[bool, ...]
    deadline: float
    probability: FloatArray | None
    n_free: int
    times: tuple[int, ...] = ()


class Ended(NamedTuple):
    """How a round ended, in the order of the selection.

    Attributes:
        round: The round, counted from 0.
        ids: (s,) stable ids.
        closed: Statuses, durations and the length of the round.
        reasons: Why there is no usable answer, by position.
        answers: What counts, in order; an answer that counts twice is there twice.
        is_void: Whether there were too few answers; then none counts.
        began_at: When the server began to look for clients, in seconds since 1970.
        closed_at: When the round was closed.
        alerts: What an operator should know after it.
        weights: How much each of the answers weighs, as far as it is believed; NaN = not said.
    """

    round: int
    ids: tuple[Hashable, ...]
    closed: Closed
    reasons: Mapping[int, str]
    answers: tuple[Any, ...]
    is_void: bool
    began_at: float
    closed_at: float
    alerts: tuple[Alert, ...] = ()
    weights: tuple[float, ...] = ()


class OpenRound:
    """A round in which somebody may have been chosen."""

    def __init__(
        self,
        ctx: RoundContext,
        selection: Selection,
        cohort: Cohort,
        addresses: Sequence[Address],
        foreseen: Closed | None,
    ) -> None:
        self.context, self.selection, self.cohort = ctx, selection, cohort
        self.addresses = tuple(addresses)
        self.position = {client: i for i, client in enumerate(cohort.ids)}
        self._foreseen = foreseen  # how it will end, in a virtual world

    @classmethod
    def of(cls, ctx: RoundContext, chooser: Chooser, members: Members) -> Self:
        """Return a round for which somebody was chosen just now."""
        selection = chooser.select(ctx)
        ids = [members.roster.id_of(int(client)) for client in selection.clients]
        return cls(
            ctx,
            selection,
            Cohort(ids, chooser.policy, chooser.observed, chooser.cohort_size),
            members.addresses_of(selection.clients),
            chooser.foresee(selection),
        )

    @property
    def chosen(self) -> Chosen:
        """Who is to work."""
        is_asked = np.ones(len(self.addresses), dtype=np.bool_)
        if self._foreseen is not None:
            is_asked = self._foreseen.status == Status.COMPLETED
        return Chosen(
            self.context.round,
            tuple(self.cohort.ids),
            self.addresses,
            tuple(is_asked.tolist()),
            self.context.deadline,
            self.selection.probability,
            self.context.pool.size,
            tuple(self.selection.times.tolist()),
        )

    def judge(self, present: Collection[Address], length_s: float | None, ends: float) -> Closed:
        """Return who was in time, late, failed or silent."""
        if self._foreseen is not None:
            return self.cohort.lose(self._foreseen)
        if length_s is None:
            length_s = ends if self.cohort.is_waiting else min(ends, self.cohort.last_heard())
        gone = np.array([address not in present for address in self.addresses], dtype=np.bool_)
        return self.cohort.close(gone, length_s)

    def settle(self, closed: Closed, reports: Reports, misfits: Misfits | None) -> Closed:
        """Return the same without answers that do not fit; raise if something needed is missing."""
        in_time = self._in_time(closed)
        sound = [self.cohort.answers[i] for i in in_time]
        reports.check(sound)
        faults = {} if misfits is None else misfits(sound)
        return self.cohort.drop(closed, {in_time[i]: fault for i, fault in faults.items()})

    def ended(
        self,
        closed: Closed,
        times: Times,
        min_answers: int,
        believed: Callable[[int, Heard], float],
        *,
        counts_once: bool,
    ) -> Ended:
        """Return how the round ended; ``believed`` says how much an answer weighs."""
        kept = self._in_time(closed)
        is_void = len(kept) < min_answers
        heard = self.cohort.answers
        weights = {i: believed(int(self.selection.clients[i]), heard[i]) for i in kept}
        counts = np.ones(len(self.addresses)) if counts_once else self.selection.times
        used = [i for i in (() if is_void else kept) for _ in range(int(counts[i]))]
        return Ended(
            self.context.round,
            tuple(self.cohort.ids),
            closed,
            self.cohort.reasons,
            tuple(heard[i].content for i in used),
            is_void,
            *times,
            weights=tuple(weights[i] for i in used),
        )

    def _in_time(self, closed: Closed) -> list[int]:
        return [int(i) for i in np.flatnonzero(closed.status == Status.COMPLETED)]


def nobody(t: int, policy: RoundPolicy, times: Times) -> tuple[Selection, BoolArray, Ended]:
    """Return a round in which there was nobody to know anything about: choice, pool and end."""
    nothing = np.zeros(0, dtype=np.bool_)
    ended = Ended(t, (), policy.close(np.zeros(0), nothing), {}, (), True, *times)
    return Selection(t, np.zeros(0, dtype=np.int64)), nothing, ended
