"""A world: who is available, who fails, how long clients take, what they report.

An ``Environment`` is a frozen bundle of small models. In every round the fate of every client is
drawn, chosen or not. So client i fares the same in round t under every selector: comparisons are
paired and regret is exact. Rounds may be asked for in any order. Every model draws from a stream of
its own, so replacing one model does not change what another one draws.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from turnout.domains import CheckedFields, Count, Index
from turnout.environments.availability import Always
from turnout.environments.base import (
    Availability,
    Fate,
    History,
    Moment,
    Timing,
    Volatility,
)
from turnout.environments.claims import Claims, Honest
from turnout.environments.population import Population, SyntheticLoss
from turnout.environments.timing import FixedTime
from turnout.environments.volatility import ByClass
from turnout.errors import InvalidInput
from turnout.plain import LATER
from turnout.types import Array, FloatArray, IntArray, RoundContext

_TRAITS = {"num_samples": Population.num_samples, "features": Population.features}


@dataclass(frozen=True)
class Environment(CheckedFields):
    """Availability, volatility, timing and reports of ``n_clients``, fixed by ``seed``.

    Args:
        n_clients: Number of clients, at least 1.
        seed: Seed of everything random in this world, >= 0.
        availability: Who can be chosen in a round.
        volatility: Who survives a round.
        timing: How long clients take.
        population: Data sizes, features and loss levels of the clients.
        losses: What clients report when nothing is trained.
        reports_failure: Whether a crashed client sends an error; otherwise it sends nothing.
        claims: What clients say of their losses.

    >>> world = Environment(n_clients=100, seed=1)
    >>> world.fate(3).survived.shape
    (100,)
    """

    n_clients: Count
    seed: Index = 0
    availability: Availability = field(default_factory=Always)
    volatility: Volatility = field(default_factory=ByClass)
    timing: Timing = field(default_factory=FixedTime)
    population: Population = field(default_factory=Population)
    losses: SyntheticLoss = field(default_factory=SyntheticLoss)
    reports_failure: bool = False
    claims: Claims = field(default_factory=Honest, metadata=LATER)

    @property
    def uses_history(self) -> bool:
        """Whether the world depends on earlier selections, and so differs between selectors."""
        return self.volatility.uses_history or self.timing.uses_history

    @property
    def columns(self) -> frozenset[str]:
        """Columns that ``context`` can fill."""
        return self.timing.columns | _TRAITS.keys() | {"success_rate"}

    @property
    def classes(self) -> IntArray:
        """(n,) the class of each client: by volatility, or by timing if volatility has none."""
        by_volatility = self.volatility.classes(self.n_clients)
        return by_volatility if by_volatility.any() else self.timing.classes(self.n_clients)

    def context(
        self,
        round: int,
        cohort_size: int,
        history: History | None = None,
        *,
        columns: Collection[str] = (),
        deadline: float = math.inf,
        workload: FloatArray | None = None,
    ) -> RoundContext:
        """Return what the server knows before it chooses.

        Args:
            round: Number of the round, from 0.
            cohort_size: Number of clients to choose.
            history: What was selected in earlier rounds; None = nothing.
            columns: Columns to fill; names that this world cannot fill are left out.
            deadline: Seconds that clients have, for the context.
            workload: (n,) local work relative to the mean client; None = equal for all.
        """
        moment = self._moment(round, history, workload)
        wanted = self.columns.intersection(columns) if columns else ()
        filled = {name: self._column(name, moment) for name in wanted}
        available = self.availability.available(moment)
        return RoundContext(round, cohort_size, available, deadline, filled)

    def fate(
        self,
        round: int,
        history: History | None = None,
        *,
        workload: FloatArray | None = None,
    ) -> Fate:
        """Return what would happen to every client.

        Args:
            round: Number of the round, from 0.
            history: What was selected in earlier rounds; None = nothing.
            workload: (n,) local work relative to the mean client; None = equal for all. Twice the
                work takes a client twice the time to compute.
        """
        moment = self._moment(round, history, workload)
        survived, duration = self.volatility.survived(moment), self.timing.duration(moment)
        return Fate(survived, duration, self.reports_failure)

    def metrics(self, round: int) -> dict[str, FloatArray]:
        """Return what every client would report: ``loss``, ``loss_std``, ``loss_rms``.

        Args:
            round: Number of the round, from 0.
        """
        return self.losses.metrics(self._levels(), self._moment(round, None))

    def polled_loss(
        self, round: int, poll_data: Literal["all", "mini-batch"] = "all"
    ) -> FloatArray:
        """Return (n,) the loss that every client would answer to a poll.

        Args:
            round: Number of the round, from 0.
            poll_data: Data that the loss is of: ``all`` or one ``mini-batch``.
        """
        evaluate = {"all": self.losses.all_data, "mini-batch": self.losses.mini_batch}
        return evaluate[poll_data](self._levels(), self._moment(round, None))

    def claimed(self, loss: FloatArray, clients: IntArray) -> FloatArray:
        """Return (s,) what some clients say of a loss, or of its spread.

        Args:
            loss: (s,) what is true.
            clients: (s,) who they are.
        """
        return self.claims.claimed(loss, clients, self.n_clients, self.seed)

    def _column(self, name: str, moment: Moment) -> Array:
        if name in self.timing.columns:
            return self.timing.column(name, moment)
        if name in _TRAITS:
            return _TRAITS[name](self.population, self.n_clients, self.seed)
        return self.volatility.success_rate(moment)

    def _levels(self) -> FloatArray:
        return self.population.loss_level(self.n_clients, self.seed)

    def _moment(
        self, round: int, history: History | None, workload: FloatArray | None = None
    ) -> Moment:
        past = self._no_history if history is None else history
        if past.n_clients != self.n_clients:
            raise InvalidInput(
                f"history must be of {self.n_clients} clients, got {past.n_clients}; "
                "start one with History.fresh(n_clients)."
            )
        return Moment(round, self.n_clients, self.seed, past, workload)

    @cached_property
    def _no_history(self) -> History:
        return History.fresh(self.n_clients)
