"""What other selectors would have brought in the recorded rounds.

A candidate plays the recorded rounds beside the selector that was in charge: it sees who was
available, chooses, is not followed, and learns of those whom both chose. Its chances, the logged
chances and the logged outcomes give estimates from the log alone (``turnout.results.offpolicy``).

**What is estimated:** the value per place of the candidate's choices in these very rounds, having
learned from the overlap only. A candidate that does not learn, such as ``random``, would have
brought just this. A learner would have had more to learn from, had it been in charge. **What is not
identified:** what it would have learned then, and everything that depends on the cohort as a whole,
such as the length of a round. The fitted world simulates both.

One thing is carried over: a client that took part in the round before may be faster or slower.
Seconds are moved to how often the candidate itself had its clients in the round before, and their
intervals hold that the log shows this difference more or less well.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from turnout.core import require
from turnout.core.arrays import vector
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.selector import Selector
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.experiment.codec import build, decode
from turnout.experiment.shadow import Shadow, Wish
from turnout.experiment.variants import Variant, variants_of
from turnout.results.guarantee import least_share
from turnout.results.offpolicy import Judgement, Weighted
from turnout.results.run import LOSSES, Run
from turnout.results.shadows import Shadowed, read_shadows
from turnout.twin.fit import fit_log
from turnout.twin.log import Log, RunLog, impossible_in, read_log, took_part_before
from turnout.twin.world import FittedWorld
from turnout.worlds import Environment, FixedDeadline, Observed, RoundPolicy

#: The estimators, the best one first.
METHODS = ("doubly_robust", "doubly_robust_world", "self_normalised", "inverse_propensity")
#: What each of them is called.
NAMES: Mapping[str, str] = {
    "doubly_robust": "doubly robust",
    "doubly_robust_world": "doubly robust, fitted world",
    "self_normalised": "self-normalised",
    "inverse_propensity": "inverse propensity",
}
#: The first world is fitted to so many rounds; then to twice as many, and so on.
FIRST_FIT = 20
#: So many earlier rounds, spread evenly, stand for how long a round may last.
_MOST_LIMITS = 16
#: What a round with the client before it changes is clear, if it is so many standard errors from 0.
CLEAR = 3.0
#: Fewer choices of clients that took part in the round before say nothing about it.
LEAST_WARM = 30
#: Observations of a client that count as much as everyone's mean, in the model of outcomes.
PRIOR = 5.0
#: What a cold start changes: times.
TIMES = ("seconds", "wasted")
#: The column that records have, too.
SIZE = "num_samples"


class Measure(NamedTuple):
    """Something that adds up over places.

    Attributes:
        title: Its name in tables.
        unit: Its unit; empty for a share.
        meaning: In one sentence.
        better: Whether more or less of it is better.
    """

    title: str
    unit: str
    meaning: str
    better: str


#: What is judged, by key.
QUANTITIES: Mapping[str, Measure] = {
    "success": Measure("success", "", "Share of the places that gave an answer in time.", "more"),
    "seconds": Measure("seconds", "s", "Seconds that a device worked for a place.", "less"),
    "wasted": Measure("wasted", "s", "Seconds of them that gave no answer in time.", "less"),
    "utility": Measure("utility", "", "Loss that an answer in time reported; 0 for none.", "more"),
}


@dataclass(frozen=True)
class Replayed:
    """What the log says about one candidate.

    Attributes:
        variant: The candidate.
        problem: Why the log alone says nothing about it; empty if it does.
        origin: Where its chances come from.
        weighted: The logged choices as it weighs them; None if its chances are not known.
        estimates: By quantity and method; empty with a problem.
        differences: The candidate minus what was logged, by quantity, doubly robust. With a chance
            of 95 %, the intervals of all candidates hold at once.
        least_share: The part of its fair share that the least served client can expect; NaN if the
            chances of everyone are not known.
        demand: (n,) places that each client of the log can expect; empty with a problem.
        modelled: What the model of outcomes alone expects, by quantity (the direct method).
        logged: What was logged in the rounds that it is judged by, by quantity.
        again: The share of its places whose client it had in the round before, too.
    """

    variant: Variant
    problem: str = ""
    origin: str = ""
    weighted: Weighted | None = None
    estimates: Mapping[str, Mapping[str, Judgement]] = field(default_factory=dict)
    differences: Mapping[str, Judgement] = field(default_factory=dict)
    least_share: float = math.nan
    demand: FloatArray = field(default_factory=lambda: np.zeros(0))
    modelled: Mapping[str, float] = field(default_factory=dict)
    logged: Mapping[str, Judgement] = field(default_factory=dict)
    again: float = math.nan

    @property
    def label(self) -> str:
        """The name that the candidate was given."""
        return self.variant.label


@dataclass(frozen=True)
class Replay:
    """What a log says about candidates.

    Attributes:
        log: The log.
        logger: The selector in charge, as text.
        n_used: Rounds that can be judged: their choices have known chances.
        now: What was logged, by quantity; of the rounds that can be judged, or of all.
        candidates: The candidates, in the order that was asked for.
        notes: What a reader must know.
        method: Which estimates the differences are of.
    """

    log: Log
    logger: str
    n_used: int
    now: Mapping[str, Judgement]
    candidates: tuple[Replayed, ...]
    notes: tuple[str, ...]
    method: str = METHODS[0]

    @property
    def charge(self) -> Variant:
        """The selector in charge."""
        return in_charge(self.log)

    @property
    def labels(self) -> tuple[str, ...]:
        """The candidates by name."""
        return tuple(each.label for each in self.candidates)

    @property
    def n_answers(self) -> int:
        """Half of the recorded answers in time: a number that most selectors reach, too."""
        total = sum(int(np.count_nonzero(record.run.completed)) for record in self.log.records)
        return max(1, total // 2)


def in_charge(log: Log) -> Variant:
    """Return the selector in charge.

    Args:
        log: The records.

    Raises:
        InvalidInput: There were several.
    """
    by_label = {record.cell.settings.label: record.cell.settings for record in log.records}
    if len(by_label) > 1:
        raise InvalidInput(
            f"runs must have one selector in charge, got {' and '.join(by_label)}: give the folder "
            "of one of them.",
            field="runs",
        )
    settings = next(iter(by_label.values()))
    return Variant(settings.selector, settings.label, dict(settings.parameters))


def replay(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    selectors: Sequence[str | Variant],
    *,
    draws: int | None = None,
    outcomes: Mapping[str, FloatArray] | FittedWorld | None = None,
) -> Replay:
    """Return what records say about selectors that were not in charge.

    Args:
        runs: Run folders of one federation.
        selectors: Candidates such as ``"e3cs:quota=0.8"``.
        draws: How often a selector without chances in closed form chooses in each round, to
            estimate them; None leaves it out.
        outcomes: The model of the doubly robust estimates: (n,) what to expect of each client, by
            quantity, or a world that was fitted to *other* records, for the estimates that take a
            fitted world. Otherwise both learn from the rounds before.

    Raises:
        InvalidInput: The records cannot be used, or a selector is unknown.

    >>> import tempfile, turnout
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = turnout.compare(["random"], "e3cs", n_rounds=60, seeds=1, n_jobs=1, out=folder)
    ...     found = replay(folder, ["e3cs"])
    >>> found.candidates[0].label, list(found.candidates[0].estimates)
    ('e3cs', ['success', 'seconds', 'wasted'])
    """
    if draws is not None:
        require.integer("draws", draws, minimum=1)
    variants = [
        each
        for text in selectors
        for each in ([text] if isinstance(text, Variant) else variants_of(text))
    ]
    if not variants:
        raise InvalidInput("selectors must name at least one candidate.", field="selectors")
    log = read_log(runs)
    return replay_log(log, variants, draws, outcomes)


def replay_log(
    log: Log,
    variants: Sequence[Variant],
    draws: int | None = None,
    outcomes: Mapping[str, FloatArray] | FittedWorld | None = None,
    method: str = METHODS[0],
) -> Replay:
    """Return what a log says about candidates.

    Args:
        log: The records of one federation.
        variants: The candidates.
        draws: As for ``replay``.
        outcomes: As for ``replay``.
        method: Which estimates the differences are of.

    Raises:
        InvalidInput: Several selectors were in charge, or a model does not fit.
    """
    logger, notes = in_charge(log).label, list(log.notes)
    given = None if isinstance(outcomes, Mapping) else outcomes
    model = outcomes if isinstance(outcomes, Mapping) else {}
    for key, expected in model.items():
        vector(f"outcomes[{key!r}]", expected, np.float64, log.n_clients)
    if given is not None and given.n_clients != log.n_clients:
        raise InvalidInput(
            f"outcomes must be a world of the {log.n_clients} clients of the records, got one of "
            f"{given.n_clients}.",
            field="outcomes",
        )
    charge = in_charge(log).make()
    variants = [each for each in variants if repr(each.make()) != repr(charge)]
    rounds = [_Rounds(record) for record in log.records]
    values = {key: value for key, value in _values(rounds).items() if np.isfinite(value).all()}
    usable = np.concatenate([each.usable for each in rounds])
    if "seconds" not in values:
        notes.append("seconds are not judged, because those of some choices are not known.")
    if "utility" not in values:
        notes.append("no client reported a loss, so utility is not judged.")
    problem = "" if usable.any() else _no_chances(log, logger)
    if problem:
        notes.append(problem)
    elif not usable.all():
        notes.append(
            f"{usable.sum():,} of {usable.size:,} rounds have chances of choice; only these count."
        )
    worlds = _Worlds(log, given) if not problem else None
    starts = {key: _start_of(key, rounds, value) for key, value in values.items()}
    notes += [text for start in starts.values() if (text := start.note)] if not problem else []
    judged = tuple(
        Replayed(each, problem)
        if worlds is None
        else _judged(each, rounds, values, draws, model, worlds, starts)
        for each in variants
    )
    judged = _compared(judged, method)
    now = _now(rounds, values)
    return Replay(log, logger, int(usable.sum()), now, judged, tuple(notes), method)


def _no_chances(log: Log, logger: str) -> str:
    name = log.records[-1].cell.settings.selector
    return (
        f"the log has no chances of choice, because {logger} does not report any: nothing can be "
        f"estimated from it alone. Put mix:members={{{name}=0.9,random=0.1}} in charge, and its "
        "records can be judged."
    )


class _Rounds:
    """The rounds of one record, as a selector would see them."""

    def __init__(self, record: RunLog) -> None:
        self.record, self.run = record, record.run
        settings = record.cell.settings
        policy = (
            decode(dict(settings.policy), RoundPolicy, ("policy",)) if settings.policy else None
        )
        self.deadline = (policy or FixedDeadline()).deadline(Observed.fresh())
        self.n_clients, self.seed = settings.n_clients, settings.seed
        self.sizes = np.diff(self.run.offsets)
        p = self.run.probability
        is_known = np.isfinite(p) & (p > 0.0) & (p <= 1.0)
        unknown = np.concatenate(([0], np.cumsum(~is_known)))[self.run.offsets]
        #: (T,) which rounds can be judged.
        self.usable: BoolArray = (self.sizes > 0) & (np.diff(unknown) == 0)
        self.shadows = read_shadows(record.cell.path, record.run)
        self.world = _world_of(record)

    @property
    def of_usable(self) -> BoolArray:
        """(choices,) which choices can be judged."""
        return np.repeat(self.usable, self.sizes)

    def columns(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns among these that the contexts have."""
        known = {SIZE} & self.run.reported.keys()
        return wanted & (known if self.world is None else known | self.world.columns)

    @cached_property
    def _size(self) -> FloatArray:
        """(n,) how many examples each client was last known to hold; NaN = not known."""
        size, told = np.full(self.n_clients, np.nan), self.run.reported[SIZE]
        is_known = np.isfinite(told)
        size[self.run.clients[is_known]] = told[is_known]
        return size

    def contexts(self, wanted: frozenset[str]) -> Iterator[tuple[int, slice, RoundContext]]:
        """Yield round, its choices and its context; as many places as were given."""
        for t in np.flatnonzero(self.sizes).tolist():
            chosen = slice(int(self.run.offsets[t]), int(self.run.offsets[t + 1]))
            size = int(self.sizes[t])
            available = self.run.available_in(t).copy()
            available[self.run.clients[chosen]] = True
            known: dict[str, Array] = {}
            if self.world is not None and wanted:
                known |= self.world.context(t, size, columns=wanted).columns
            if SIZE in wanted and SIZE in self.run.reported:
                known[SIZE] = self._size
            yield t, chosen, RoundContext(t, size, available, self.deadline, known)


def _world_of(record: RunLog) -> Environment | None:
    """Return the world that was simulated, which knows the columns; None if there is none."""
    settings = record.cell.settings
    if not settings.world or settings.training or record.cell.is_live:
        return None
    sizes = {"n_clients": settings.n_clients, "seed": settings.seed}
    try:
        world: Environment = build(Environment, {**settings.world, **sizes}, ())
    except TurnoutError:  # its plug-in or its traces are not here
        return None
    return world


def _values(rounds: Sequence[_Rounds]) -> dict[str, FloatArray]:
    """Return (choices,) what came of every choice, by quantity."""
    runs = [each.run for each in rounds]
    done = np.concatenate([run.completed for run in runs]).astype(np.float64)
    spent = np.concatenate([run.spent for run in runs])
    # Where a clock has jumped, nothing is known of the seconds, so they are not judged at all.
    spent[np.concatenate([impossible_in(run) for run in runs])] = np.nan
    loss = np.concatenate([_loss_of(run) for run in runs])
    values = {"success": done, "seconds": spent, "wasted": np.where(done > 0.0, 0.0, spent)}
    if np.isfinite(loss).any():
        values["utility"] = np.where((done > 0.0) & np.isfinite(loss), loss, 0.0)
    return values


def _loss_of(run: Run) -> FloatArray:
    """Return (choices,) the reported loss: the mean of the examples, or their root mean square."""
    found = (run.reported[name] for name in LOSSES if name in run.reported)
    return next(found, np.full(run.clients.size, np.nan))


def _compared(judged: tuple[Replayed, ...], method: str) -> tuple[Replayed, ...]:
    """Return the candidates with differences whose intervals hold for all of them at once."""
    n = sum(not each.problem for each in judged)
    return tuple(
        replace(
            each,
            differences={
                key: by_method[method].minus(each.logged[key], n)
                for key, by_method in each.estimates.items()
            },
        )
        for each in judged
    )


def _now(rounds: Sequence[_Rounds], values: Mapping[str, FloatArray]) -> dict[str, Judgement]:
    """Return what was logged: of the rounds that can be judged, or of all if none can be."""
    usable = np.concatenate([each.of_usable for each in rounds])
    kept = usable if usable.any() else np.ones(usable.size, dtype=np.bool_)
    sizes = np.concatenate([each.sizes for each in rounds])
    rows = np.concatenate([each.usable for each in rounds]) if usable.any() else sizes > 0
    everyone = np.ones(int(kept.sum()))
    offsets = np.concatenate(([0], np.cumsum(sizes[rows])))
    log = Weighted(offsets, everyone, everyone, sizes[rows].astype(np.float64))
    return {key: log.as_logged(value[kept]) for key, value in values.items()}


# --------------------------------------------------------------------------------------------------
# A candidate plays the rounds.
# --------------------------------------------------------------------------------------------------


class _Played(NamedTuple):
    """What a candidate would have done in the rounds that can be judged.

    Attributes:
        kept: (all rounds,) which rounds these are.
        wanted: (choices,) its chance of each logged choice.
        places: (T,) places that it fills.
        predicted: (choices,) what a model of outcomes expected, by quantity, for each model.
        expected: (T,) what it expected of the candidate, by quantity, for each model.
        moving: (T,) what all rounds together say of the candidate's clients, by quantity.
        again: Places whose client the candidate had in the round before, and those whose client
            took part in the recorded round before.
        demand: (n,) the sum of its chances.
        fair: (n,) the sum of the fair shares.
    """

    kept: BoolArray
    wanted: FloatArray
    places: FloatArray
    predicted: Mapping[str, tuple[FloatArray, ...]]
    expected: Mapping[str, tuple[FloatArray, ...]]
    moving: Mapping[str, FloatArray]
    again: tuple[float, float]
    demand: FloatArray
    fair: FloatArray


def _judged(
    variant: Variant,
    rounds: Sequence[_Rounds],
    values: Mapping[str, FloatArray],
    draws: int | None,
    outcomes: Mapping[str, FloatArray],
    worlds: _Worlds,
    starts: Mapping[str, _Start],
) -> Replayed:
    try:
        recorded = all(variant.label in each.shadows for each in rounds)
        problem, origin = "", "recorded in shadow"
        if not recorded:
            problem, origin = _obstacle(variant.make(), rounds, draws)
        if problem:
            return Replayed(variant, problem)
        begins = np.cumsum([0, *(each.run.clients.size for each in rounds)])
        played = []
        for each, begin, end in zip(rounds, begins[:-1], begins[1:], strict=True):
            own = {key: value[begin:end] for key, value in values.items()}
            candidate: Candidate = (
                _OfShadow(each, each.shadows[variant.label])
                if recorded
                else _Playing(variant.make(), each, draws)
            )
            played.append(_play(candidate, each, own, outcomes, worlds))
    except TurnoutError as error:
        return Replayed(variant, str(error))
    kept = np.concatenate([each.kept for each in played])
    usable = np.concatenate(
        [np.repeat(each.kept, one.sizes) for each, one in zip(played, rounds, strict=True)]
    )
    if not kept.any():
        return Replayed(variant, "it had no wish in any round that can be judged", origin)
    sizes = np.concatenate([each.sizes for each in rounds])[kept]
    weighted = Weighted(
        np.concatenate(([0], np.cumsum(sizes))),
        np.concatenate([each.run.probability for each in rounds])[usable],
        np.concatenate([each.wanted for each in played]),
        np.concatenate([each.places for each in played]),
    )
    if weighted.problem:
        return Replayed(variant, weighted.problem, origin, weighted)
    again, recorded_again = (
        math.fsum(each.again[k] for each in played) / float(weighted.places.sum()) for k in range(2)
    )
    more = again - recorded_again
    estimates: dict[str, dict[str, Judgement]] = {}
    modelled, as_logged = {}, {}
    for key, value in values.items():
        mine = value[usable]
        by_client, by_world = (
            (
                np.concatenate([each.predicted[key][k] for each in played]),
                np.concatenate([each.expected[key][k] for each in played]),
            )
            for k in range(2)
        )
        moving = np.concatenate([each.moving[key] for each in played])
        found = {
            "doubly_robust": weighted.doubly_robust(mine, *by_client, moving),
            "doubly_robust_world": weighted.doubly_robust(mine, *by_world, moving),
            "self_normalised": weighted.self_normalised(mine, moving),
            "inverse_propensity": weighted.inverse_propensity(mine, moving),
        }
        start = starts[key]
        estimates[key] = {
            method: one.moved(start.change * more, start.residual[kept] * more)
            for method, one in found.items()
        }
        modelled[key] = float(by_client[1].sum() / weighted.places.sum())
        as_logged[key] = weighted.as_logged(mine)
    demand, fair = _by_client(rounds, played, "demand"), _by_client(rounds, played, "fair")
    least = least_share(fair, demand)
    return Replayed(
        variant, "", origin, weighted, estimates, {}, least, demand, modelled, as_logged, again
    )


class _Start(NamedTuple):
    """What having taken part in the round before changes, as the log shows it.

    Attributes:
        change: What it adds to a value; 0 if the log says nothing of it.
        residual: (all rounds,) what each round adds to the error of the change.
        note: In words; empty if nothing is clear.
    """

    change: float
    residual: FloatArray
    note: str


def _start_of(key: str, rounds: Sequence[_Rounds], value: FloatArray) -> _Start:
    """Return what taking part in the round before changes: by how much clients differ from it."""
    clients = np.concatenate([each.record.client_of[each.run.clients] for each in rounds])
    count = np.maximum(np.bincount(clients), 1)

    def within(values: FloatArray) -> FloatArray:
        return np.asarray(values - (np.bincount(clients, values) / count)[clients])

    took_part = np.concatenate([took_part_before(each.run) for each in rounds])
    warm, rest = within(took_part.astype(np.float64)), within(value)
    sizes = np.concatenate([each.sizes for each in rounds])
    nothing = _Start(0.0, np.zeros(sizes.size), "")
    information = float(np.sum(np.square(warm)))
    n_warm = int(np.count_nonzero(took_part))
    if min(n_warm, took_part.size - n_warm) < LEAST_WARM or not information or key not in TIMES:
        return nothing
    change = float(np.sum(warm * rest)) / information
    of_round = np.repeat(np.arange(sizes.size), sizes)
    error = warm * (rest - change * warm) / information
    residual: FloatArray = np.bincount(of_round, error, minlength=sizes.size).astype(np.float64)
    if abs(change) <= CLEAR * math.sqrt(float(np.sum(np.square(residual)))):
        return _Start(change, residual, "")
    measure = QUANTITIES[key]
    return _Start(
        change,
        residual,
        f"clients that took part in the round before differ: {change:+.3g} {measure.unit} "
        f"({measure.title}). The estimates are for clients that the candidate itself had in the "
        "round before.",
    )


class _Worlds:
    """Worlds that were fitted to earlier and earlier rounds, and what they expect of clients."""

    def __init__(self, log: Log, given: FittedWorld | None) -> None:
        #: The first round of the log in which each world is used, and the world.
        self._worlds: list[tuple[int, FittedWorld]] = [] if given is None else [(0, given)]
        first = FIRST_FIT
        while given is None and first < log.n_rounds:
            with contextlib.suppress(TurnoutError):  # nobody has answered yet
                self._worlds.append((first, fit_log(log.first(first))))
            first *= 2

    def expected(
        self, record: RunLog, t: int, took_part: BoolArray
    ) -> Mapping[str, FloatArray] | None:
        """Return what to expect of each client in a round; None without an earlier world."""
        usable = [world for first, world in self._worlds if first <= record.first + t]
        if not usable:
            return None
        world, client_of = usable[-1], record.client_of
        part = np.zeros(world.n_clients, dtype=np.bool_)
        part[client_of[: took_part.size]] = took_part
        deadline = world.policy.deadline(Observed.fresh())
        limits = np.array([deadline])
        earlier = record.run.length_s[:t]
        if not isinstance(world.policy, FixedDeadline) and earlier.size:
            picked = np.unique(np.linspace(0, t - 1, min(t, _MOST_LIMITS)).astype(np.int64))
            limits = np.minimum(earlier[picked], deadline)
        found = world.expected(record.first + t, limits, part)
        return {key: values[client_of] for key, values in found.items()}


def _by_client(
    rounds: Sequence[_Rounds], played: Sequence[_Played], name: Literal["demand", "fair"]
) -> FloatArray:
    """Return (n,) sums over all records, by client of the log."""
    total = np.zeros(1 + max(int(each.record.client_of.max(initial=-1)) for each in rounds))
    for each, own in zip(rounds, played, strict=True):
        values = getattr(own, name)[: each.record.client_of.size]
        np.add.at(total, each.record.client_of, values)
    return total


def _obstacle(selector: Selector, rounds: Sequence[_Rounds], draws: int | None) -> tuple[str, str]:
    """Return why a candidate cannot play the rounds, or where its chances come from."""
    if selector.polls:
        return "it asks clients for their loss before it chooses, and the log has no answers", ""
    for each in rounds:
        missing = sorted(selector.needs_columns - each.columns(selector.needs_columns))
        if missing:
            return f"the log has no column {missing[0]!r}, which it needs", ""
        if not each.run.knows_available:
            return "the log does not say who was available: an older turnout wrote it", ""
    selector.prepare(rounds[0].n_clients)
    wanted = selector.needs_columns | selector.uses_columns
    _, _, ctx = next(rounds[0].contexts(rounds[0].columns(wanted)))
    if selector.chances(ctx) is not None:
        return "", "exact"
    if draws is None:
        return (
            "its chances have no closed form: draws=200 (on the command line --draws 200) "
            "estimates them"
        ), ""
    return "", f"{draws} draws a round"


class _Model:
    """What is expected of each client: its mean so far, drawn towards everyone's.

    It has seen earlier rounds only, so what it is used for stays unbiased.
    """

    def __init__(self, n_clients: int, fixed: FloatArray | None = None) -> None:
        self._fixed = fixed
        self._sum, self._count = np.zeros(n_clients), np.zeros(n_clients)
        self._total = self._n = 0.0

    def expected(self, prior: FloatArray | None = None) -> FloatArray:
        """Return (n,) what is expected of each client.

        Args:
            prior: (n,) what clients are drawn towards; None = everyone's mean.
        """
        if self._fixed is not None and prior is None:
            return self._fixed
        mean = self._total / self._n if self._n else 0.0
        return (self._sum + PRIOR * (mean if prior is None else prior)) / (self._count + PRIOR)

    def learn(self, clients: IntArray, values: FloatArray) -> None:
        """Take in what came of choices."""
        n = self._sum.size
        self._sum += np.bincount(clients, values, minlength=n)
        self._count += np.bincount(clients, minlength=n)
        self._total += float(values.sum())
        self._n += values.size


class Candidate(Protocol):
    """Where the chances of a candidate come from, round by round."""

    def columns(self) -> frozenset[str]:
        """Return the columns that it wants to see."""

    def choose(self, t: int, ctx: RoundContext) -> Wish | None:
        """Return what it would do in a round; None if that is not known."""

    def learn(self, wish: Wish, clients: IntArray, chance: FloatArray, outcome: Outcome) -> None:
        """Learn of those whom both chose."""


class _Playing:
    """A candidate that plays the rounds now."""

    def __init__(self, selector: Selector, rounds: _Rounds, draws: int | None) -> None:
        selector.prepare(rounds.n_clients, rounds.seed)
        self._shadow, self._draws = Shadow(selector, rounds.seed), draws
        self._columns = rounds.columns(selector.needs_columns | selector.uses_columns)

    def columns(self) -> frozenset[str]:
        return self._columns

    def choose(self, t: int, ctx: RoundContext) -> Wish | None:
        return self._shadow.choose(ctx, self._draws)

    def learn(self, wish: Wish, clients: IntArray, chance: FloatArray, outcome: Outcome) -> None:
        self._shadow.learn(wish, clients, chance, outcome)


class _OfShadow:
    """A candidate that was a shadow of the recorded run, and learned then."""

    def __init__(self, rounds: _Rounds, shadowed: Shadowed) -> None:
        self._run, self._own = rounds.run, shadowed

    def columns(self) -> frozenset[str]:
        return frozenset()

    def choose(self, t: int, ctx: RoundContext) -> Wish | None:
        """Return the wish, and the chances of the chosen; others are 1 for whom it wished."""
        wished = self._own.clients[self._own.offsets[t] : self._own.offsets[t + 1]]
        chosen = slice(self._run.offsets[t], self._run.offsets[t + 1])
        chance = self._own.chance[chosen]
        if not wished.size or np.isnan(chance).any():
            return None
        return Wish(Selection(t, wished), None, chance)

    def learn(self, wish: Wish, clients: IntArray, chance: FloatArray, outcome: Outcome) -> None:
        return


def _play(
    candidate: Candidate,
    rounds: _Rounds,
    values: Mapping[str, FloatArray],
    outcomes: Mapping[str, FloatArray],
    worlds: _Worlds,
) -> _Played:
    """Let a candidate play the rounds of one record."""
    run, n = rounds.run, rounds.n_clients
    models = {key: _Model(n, outcomes.get(key)) for key in values}
    in_the_end = {key: _Model(n) for key in values}
    for key, model in in_the_end.items():
        model.learn(run.clients, values[key])
    last = {key: model.expected() for key, model in in_the_end.items()}
    wanted: list[FloatArray] = [np.zeros(0)]
    places: list[float] = []
    predicted = {key: ([np.zeros(0)], [np.zeros(0)]) for key in values}
    expected: dict[str, tuple[list[float], list[float]]] = {key: ([], []) for key in values}
    moving: dict[str, list[float]] = {key: [] for key in values}
    demand, fair, kept = np.zeros(n), np.zeros(n), np.zeros(run.n_rounds, dtype=np.bool_)
    mine, theirs, again = np.zeros(n), np.zeros(n, dtype=np.bool_), np.zeros(2)
    for t, chosen, ctx in rounds.contexts(candidate.columns()):
        clients = run.clients[chosen]
        wish = candidate.choose(t, ctx)
        everyone = np.zeros(n)
        if wish is not None and rounds.usable[t]:
            # Beside the chances of the chosen, a recorded wish knows whom it chose: the same mean.
            everyone = wish.of_everyone(n)
            kept[t] = True
            wanted.append(wish.of(clients))
            places.append(float(everyone.sum()))
            by_world = worlds.expected(rounds.record, t, theirs) or {}
            for key, model in models.items():
                for k, mean in enumerate((model.expected(), model.expected(by_world.get(key)))):
                    predicted[key][k].append(mean[clients])
                    expected[key][k].append(float(everyone @ mean))
                moving[key].append(float(everyone @ last[key]))
            again += (float(everyone @ mine), float(everyone @ theirs))
            demand += everyone
            fair += np.where(ctx.available, ctx.size / ctx.pool.size, 0.0)
        mine, theirs = everyone, np.zeros(n, dtype=np.bool_)
        theirs[clients] = True
        for key, model in models.items():
            model.learn(clients, values[key][chosen])
        if wish is not None:
            losses = {name: run.reported[name][chosen] for name in LOSSES if name in run.reported}
            outcome = Outcome(run.status[chosen], run.duration[chosen], losses)
            candidate.learn(wish, clients, run.probability[chosen], outcome)
    return _Played(
        kept,
        np.concatenate(wanted),
        np.array(places),
        {key: tuple(np.concatenate(parts) for parts in pair) for key, pair in predicted.items()},
        {key: tuple(np.array(sums) for sums in pair) for key, pair in expected.items()},
        {key: np.array(sums) for key, sums in moving.items()},
        (float(again[0]), float(again[1])),
        demand,
        fair,
    )
