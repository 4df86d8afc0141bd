"""A world: the availability, failures, durations and reports of its clients. Some have names.

An ``Environment`` is a frozen bundle of small models. In every round the fate of every client is
drawn, chosen or not. So client i fares the same in round t under every selector: comparisons are
paired and regret is exact. Rounds may be requested in any order. Every model draws from a stream of
its own, so replacing one model does not change what another one draws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout.core.arrays import UPDATE_METRICS
from turnout.core.domains import (
    CheckedFields,
    Count,
    Fraction,
    Index,
    NonNegative,
    Positive,
    PositiveOrInfinite,
)
from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.core.plain import LATER
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, PollData, RoundContext
from turnout.worlds.availability import Always, Bernoulli
from turnout.worlds.base import (
    Availability,
    Fate,
    History,
    Moment,
    Timing,
    Volatility,
    WorldStream,
    fixed_rng,
    frozen,
)
from turnout.worlds.energy import Energy, Plugged
from turnout.worlds.timing import FixedTime, LinearContextual
from turnout.worlds.volatility import ByClass, Reliable

# Claims: clients report their true losses, or some of them exaggerate.


class Claims(ABC):
    """The losses that clients report instead of the true ones."""

    @abstractmethod
    def claimed(self, loss: FloatArray, clients: IntArray, n_clients: int, seed: int) -> FloatArray:
        """Return (s,) the losses that some clients report.

        Args:
            loss: (s,) the true losses.
            clients: (s,) the clients.
            n_clients: Number of clients of the world.
            seed: Seed of the world.
        """

    def claimed_s(
        self, duration: FloatArray, clients: IntArray, n_clients: int, seed: int
    ) -> FloatArray:
        """Return (s,) the times that some clients report; by default the true ones.

        Args:
            duration: (s,) the true times.
            clients: (s,) the clients.
            n_clients: Number of clients of the world.
            seed: Seed of the world.
        """
        return duration


@dataclass(frozen=True, slots=True)
class Honest(Claims):
    """All clients report their true losses."""

    def claimed(self, loss: FloatArray, clients: IntArray, n_clients: int, seed: int) -> FloatArray:
        """Return the true losses."""
        return loss


@dataclass(frozen=True, slots=True)
class Liars(CheckedFields, Claims):
    """Some clients exaggerate every loss that they report, also when they are polled.

    Args:
        share: Share of the clients that lie, from 0 to 1; the seed draws who.
        factor: What a liar multiplies its loss by, above 0.
        seconds: What a liar says its work took, if that is less than it took, above 0. Selectors
            learn from it, as they do where the server believes clients' clocks. Rounds are as long
            as they are. Infinity = liars do not lie about times.
    """

    share: Fraction = 0.1
    factor: Positive = 10.0
    seconds: PositiveOrInfinite = field(default=math.inf, metadata=LATER)

    def claimed(self, loss: FloatArray, clients: IntArray, n_clients: int, seed: int) -> FloatArray:
        """Multiply the losses of the liars."""
        lies = _liars(round(self.share * n_clients), n_clients, seed)[clients]
        return np.where(lies, self.factor * loss, loss)

    def claimed_s(
        self, duration: FloatArray, clients: IntArray, n_clients: int, seed: int
    ) -> FloatArray:
        """Shorten the times of the liars."""
        lies = _liars(round(self.share * n_clients), n_clients, seed)[clients]
        return np.where(lies, np.minimum(duration, self.seconds), duration)


@lru_cache(maxsize=4)
def _liars(n_liars: int, n_clients: int, seed: int) -> BoolArray:
    order = fixed_rng(seed, WorldStream.CLAIMS).permutation(n_clients)
    return frozen(order < n_liars)


# Traits of clients and their reports without training: data sizes, features, losses.


@dataclass(frozen=True, slots=True)
class Population(CheckedFields):
    """Traits of clients that never change during a run, drawn from the seed.

    The number of examples follows a power law, the loss level is log-normal around 1. A feature is
    a bit whose chance to be set rises, or falls, with the client's loss level.

    Args:
        samples: Smallest number of examples of a client, at least 1.
        tail: Exponent of the power law, P(more than x examples) ~ x**-tail, above 0. Infinity gives
            everyone ``samples`` examples.
        level_spread: Standard deviation of the logarithm of the loss levels, >= 0.
        n_features: Number of feature bits, at least 1.
        feature_strength: How strongly bits depend on the loss level, >= 0; 0 = not at all.
    """

    samples: Count = 500
    tail: PositiveOrInfinite = math.inf
    level_spread: NonNegative = 0.5
    n_features: Count = 64
    feature_strength: NonNegative = 1.0

    def num_samples(self, n_clients: int, seed: int) -> IntArray:
        """Return (n,) the number of examples of each client."""
        return _num_samples(self, n_clients, seed)

    def loss_level(self, n_clients: int, seed: int) -> FloatArray:
        """Return (n,) how high each client's loss is, around 1."""
        return _loss_level(self, n_clients, seed)

    def features(self, n_clients: int, seed: int) -> Array:
        """Return (n, n_features) bits."""
        return _features(self, n_clients, seed)


@dataclass(frozen=True, slots=True)
class SyntheticLoss(CheckedFields):
    """Losses as if a model were trained. They fall over the rounds, for all clients at one pace.

    In round t the loss of client i is ``level_i * (floor + (1 - floor) / (1 + t / half_life))``
    times a random factor. ``loss_rms`` is ``sqrt(loss^2 + loss_std^2)``. The losses do not depend
    on the selections, so they are the same for every selector.

    Args:
        floor: Share of the first loss that never goes away, from 0 to 1.
        half_life: Rounds until the rest has halved, above 0.
        noise: Relative standard deviation of the random factor, whose mean is 1; >= 0.
        batch_spread: ``loss_std`` divided by ``loss``: how much mini-batches differ, >= 0.
    """

    floor: Fraction = 0.1
    half_life: Positive = 100.0
    noise: NonNegative = 0.1
    batch_spread: NonNegative = 0.3

    def mean(self, level: FloatArray, round: int) -> FloatArray:
        """Return (n,) the loss without noise."""
        return level * (self.floor + (1.0 - self.floor) / (1.0 + round / self.half_life))

    def metrics(self, level: FloatArray, moment: Moment) -> dict[str, FloatArray]:
        """Return what each client would report in this round, (n,) each."""
        sigma = math.sqrt(math.log1p(self.noise**2))
        factor = moment.rng(WorldStream.LOSS).lognormal(-0.5 * sigma**2, sigma, level.size)
        loss = self.mean(level, moment.round) * factor
        spread = self.batch_spread * loss
        return {"loss": loss, "loss_std": spread, "loss_rms": np.hypot(loss, spread)}

    def all_data(self, level: FloatArray, moment: Moment) -> FloatArray:
        """Return (n,) the loss on all data, the same that a client would report."""
        return self.metrics(level, moment)["loss"]

    def mini_batch(self, level: FloatArray, moment: Moment) -> FloatArray:
        """Return (n,) the loss of one mini-batch; never negative."""
        metrics = self.metrics(level, moment)
        deviation = moment.rng(WorldStream.MINI_BATCH).standard_normal(level.size)
        return np.maximum(metrics["loss"] + metrics["loss_std"] * deviation, 0.0)


#: Labels of the synthetic examples; a client's shares are drawn from Dir(0.5).
N_LABELS = 10


def _direction(clients: IntArray, size: int, seed: int) -> FloatArray:
    """Return (s, d) a unit vector for each client. Its signs come from a hash (SplitMix64)."""
    offset = np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    place = clients[:, None] * size + np.arange(size)
    mixed: Array = place.astype(np.uint64) + offset
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    unit: FloatArray = np.where(mixed >> np.uint64(63), -1.0, 1.0) / math.sqrt(size)
    return unit


@lru_cache(maxsize=4)
def _num_samples(population: Population, n_clients: int, seed: int) -> IntArray:
    factor = np.power(_traits(seed, 0).random(n_clients), -1.0 / population.tail)
    return frozen(np.minimum(population.samples * factor, 1e15).astype(np.int64))


@lru_cache(maxsize=4)
def _loss_level(population: Population, n_clients: int, seed: int) -> FloatArray:
    deviation = _traits(seed, 1).standard_normal(n_clients)
    return frozen(np.exp(population.level_spread * deviation))


@lru_cache(maxsize=2)
def _features(population: Population, n_clients: int, seed: int) -> Array:
    # the same deviations that the loss levels are computed from
    height = _traits(seed, 1).standard_normal(n_clients)
    rng = _traits(seed, 2)
    slope = population.feature_strength * rng.choice([-1.0, 1.0], population.n_features)
    bits = np.empty((n_clients, population.n_features), dtype=np.uint8)
    for feature in range(population.n_features):
        chance = 1.0 / (1.0 + np.exp(-slope[feature] * height))
        bits[:, feature] = rng.random(n_clients) < chance
    return frozen(bits)


def _traits(seed: int, trait: int) -> np.random.Generator:
    return fixed_rng(seed, WorldStream.POPULATION, level=trait)


@lru_cache(maxsize=4)
def _label_counts(population: Population, n_clients: int, seed: int) -> FloatArray:
    share = _traits(seed, 3).gamma(0.5, size=(n_clients, N_LABELS))
    share /= np.maximum(share.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return frozen(np.rint(share * population.num_samples(n_clients, seed)[:, None]))


_TRAITS: Mapping[str, Callable[[Population, int, int], Array]] = {
    "num_samples": lambda population, n, seed: population.num_samples(n, seed),
    "features": lambda population, n, seed: population.features(n, seed),
    "label_counts": _label_counts,
}


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
        claims: The losses that clients report.
        energy: What work costs the devices, and what is in their batteries.

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
    energy: Energy = field(default_factory=Plugged, metadata=LATER)

    @property
    def uses_history(self) -> bool:
        """Whether the world depends on earlier selections, and so differs between selectors."""
        parts = (self.volatility, self.timing, self.energy)
        return any(part.uses_history for part in parts)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that ``context`` can fill."""
        known = self.timing.columns | _TRAITS.keys() | {"availability_forecast", "success_rate"}
        return known | (_ENERGY.keys() if self.energy.uses_history else frozenset())

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
        busy: BoolArray | None = None,
    ) -> RoundContext:
        """Return what the server knows before it chooses.

        Args:
            round: Number of the round, from 0.
            cohort_size: Number of clients to choose.
            history: What was selected in earlier rounds; None = nothing.
            columns: Columns to fill; names that this world cannot fill are left out.
            deadline: Seconds that clients have, for the context.
            workload: (n,) local work relative to the mean client; None = equal for all.
            busy: (n,) who is at work and cannot be chosen; None where rounds do not overlap.
        """
        moment = self._moment(round, history, workload)
        wanted = self.columns.intersection(columns) if columns else ()
        filled = {name: self._column(name, moment) for name in wanted}
        available = self.availability.available(moment)
        if self.energy.uses_history:
            available = available & self.energy.is_ready(moment)
        if busy is not None:
            available = available & ~busy
        return RoundContext(round, cohort_size, available, deadline, filled, busy=busy)

    def fate(
        self,
        round: int,
        history: History | None = None,
        *,
        workload: FloatArray | None = None,
    ) -> Fate:
        """Return what would happen to every client if it were chosen.

        Args:
            round: Number of the round, from 0.
            history: What was selected in earlier rounds; None = nothing.
            workload: (n,) local work relative to the mean client; None = equal for all. Twice the
                work takes a client twice the time to compute.
        """
        moment = self._moment(round, history, workload)
        survived, duration = self.volatility.survived(moment), self.timing.duration(moment)
        if self.energy.uses_history:
            lasts = self.energy.lasts(moment)
            survived, duration = survived & (duration <= lasts), np.minimum(duration, lasts)
        return Fate(survived, duration, self.reports_failure)

    def record(
        self, round: int, history: History, clients: IntArray, spent: FloatArray
    ) -> FloatArray | None:
        """Add a round to the history; return (s,) the joules of the chosen, None without energy.

        Args:
            round: Number of the round, from 0.
            history: What was selected in earlier rounds.
            clients: (s,) the chosen.
            spent: (s,) seconds that each one worked.
        """
        if not self.energy.uses_history:
            history.record(clients)
            return None
        moment = self._moment(round, history)
        worked = np.zeros(self.n_clients)
        seconds = np.minimum(spent, self.energy.lasts(moment)[clients])
        worked[clients] = seconds * self.energy.watts(moment)[clients]
        history.record(clients, self.energy.after(moment, worked))
        return np.asarray(worked[clients])

    def carbon(self, round: int, clients: IntArray, joules: FloatArray) -> float:
        """Return the grams of CO2 of what clients spent in a round; NaN if the grid is unknown.

        Args:
            round: Number of the round, from 0.
            clients: (s,) who worked.
            joules: (s,) what each one spent.
        """
        grams = self.energy.carbon(self._moment(round, None))
        return math.nan if np.isnan(grams).any() else float((joules * grams[clients]).sum())

    def metrics(self, round: int) -> dict[str, FloatArray]:
        """Return what every client would report: ``loss``, ``loss_std``, ``loss_rms``.

        Args:
            round: Number of the round, from 0.
        """
        return self.losses.metrics(self._levels(), self._moment(round, None))

    @property
    def reportable(self) -> frozenset[str]:
        """The names of all metrics that clients of this world can report without training."""
        return frozenset((*self.metrics(0), *UPDATE_METRICS))

    def reports(
        self, round: int, clients: IntArray, wanted: Mapping[str, int | None]
    ) -> dict[str, FloatArray]:
        """Return what some clients would report; metrics that worlds do not know are left out.

        Without training there are no updates. In their place, each client has a fixed random
        direction, and the length of its update is its loss.

        Args:
            round: Number of the round, from 0.
            clients: (s,) the clients.
            wanted: The metrics by name, each with the length of its vectors, None for numbers.
        """
        if not wanted:
            return {}
        known = self.metrics(round)
        found = {name: known[name][clients] for name in wanted if name in known}
        for name in wanted.keys() & UPDATE_METRICS:
            size = wanted[name]
            loss = known["loss"][clients]
            found[name] = (
                loss if size is None else loss[:, None] * _direction(clients, size, self.seed)
            )
        return found

    def polled_loss(self, round: int, poll_data: PollData = "all") -> FloatArray:
        """Return (n,) the loss that every client would answer to a poll.

        Args:
            round: Number of the round, from 0.
            poll_data: Data that the loss is of: ``all`` or one ``mini-batch``.
        """
        evaluate = {"all": self.losses.all_data, "mini-batch": self.losses.mini_batch}
        return evaluate[poll_data](self._levels(), self._moment(round, None))

    def claimed(self, loss: FloatArray, clients: IntArray) -> FloatArray:
        """Return (s,) what some clients report as a loss, or as its spread.

        Args:
            loss: (s,) the true values.
            clients: (s,) the clients.
        """
        return self.claims.claimed(loss, clients, self.n_clients, self.seed)

    def claimed_s(self, duration: FloatArray, clients: IntArray) -> FloatArray:
        """Return (s,) what some clients report as their time.

        Args:
            duration: (s,) the true seconds, NaN = no answer.
            clients: (s,) the clients.
        """
        return self.claims.claimed_s(duration, clients, self.n_clients, self.seed)

    def _column(self, name: str, moment: Moment) -> Array:
        if name in self.timing.columns:
            return self.timing.column(name, moment)
        if name in _ENERGY:
            return _ENERGY[name](self, moment)
        if name in _TRAITS:
            return _TRAITS[name](self.population, self.n_clients, self.seed)
        if name == "availability_forecast":
            return self.availability.forecast(moment)
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


#: What a server knows of energy: how full batteries are, and the joules that a round would take.
_ENERGY: Mapping[str, Callable[[Environment, Moment], Array]] = {
    "battery": lambda world, moment: world.energy.fraction(moment),
    "energy_j": lambda world, moment: (
        world.energy.watts(moment) * world.timing.column("expected_duration", moment)
    ),
}


def e3cs_world(n_clients: int = 100, seed: int = 0) -> Environment:
    """Return the world of E3CS, Sec. VI-A: four equal classes with success 0.1, 0.3, 0.6 and 0.9.

    Args:
        n_clients: Number of clients; the paper has 100.
        seed: Seed of the world.
    """
    return Environment(n_clients, seed, volatility=ByClass())


def rbcs_f_world(n_clients: int = 40, seed: int = 0, log_base: float = 2.0) -> Environment:
    """Return the world of RBCS-F, Sec. 6.1: 80 % are available, nobody fails, times are linear.

    Args:
        n_clients: Number of clients; the paper has 40.
        seed: Seed of the world.
        log_base: Base of the logarithm in 1 / log(1 + SNR), which the paper does not state.
    """
    times = LinearContextual(log_base=log_base)
    return Environment(n_clients, seed, Bernoulli(0.8), Reliable(), times)


class NamedWorld(NamedTuple):
    """A world that can be asked for by name, with the sizes it is usually run at.

    Attributes:
        example: The world, with its usual number of clients.
        cohort_size: Answers usually wanted per round.
        n_rounds: Rounds of a usual run.
        what: The world in a few words.
    """

    example: Environment
    cohort_size: int
    n_rounds: int
    what: str


#: All worlds that have a name.
WORLDS: Mapping[str, NamedWorld] = MappingProxyType(
    {
        "volatile": NamedWorld(
            Environment(100, 0, Bernoulli(0.9), ByClass(), LinearContextual()),
            20,
            500,
            "90 % available, four classes of success rate, times that are linear in a context",
        ),
        "reliable": NamedWorld(
            Environment(100, 0, volatility=Reliable()),
            20,
            500,
            "every client is available, replies, and takes the same time",
        ),
        "unequal": NamedWorld(
            Environment(
                100,
                0,
                volatility=ByClass((0.4, 0.6, 0.8, 1.0)),
                timing=LinearContextual((8.0, 4.0, 2.0, 1.0), snr=(1.0, 10.0, 100.0, 1000.0)),
            ),
            20,
            500,
            "slow clients fail more often; the partition label-order gives them other labels",
        ),
        "e3cs": NamedWorld(e3cs_world(), 20, 2500, "the numerical experiments of E3CS"),
        "rbcs-f": NamedWorld(rbcs_f_world(), 8, 500, "the numerical experiments of RBCS-F"),
    }
)


def named_world(name: str) -> NamedWorld:
    """Return a world by its name.

    Args:
        name: One of ``WORLDS``.

    Raises:
        InvalidInput: There is none; the message has the nearest name.
    """
    if name not in WORLDS:
        raise InvalidInput(f"unknown world {name!r}.{nearest(name, WORLDS)}", field="world")
    return WORLDS[name]
