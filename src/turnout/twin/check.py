"""Is a twin right? Fit on the first rounds of a log, predict the others, and compare.

The recorded choices of the later rounds are played in many worlds, each with a seed of its own.
What was recorded should lie inside of the interval that holds 90 % of them about 90 times in 100.
Fewer means that the twin is too sure of itself, more that it knows less than it could.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.types import FloatArray, Status
from turnout.twin.fit import fit_log
from turnout.twin.log import LEAST_ROUNDS, Log, RunLog, read_log
from turnout.twin.world import FittedWorld
from turnout.worlds import Observed
from turnout.worlds.base import History

#: Share of the rounds that the world is fitted to.
SHARE = 0.7
#: Share of the draws that an interval holds, and the coverages that count as calibrated.
INTERVAL, CALIBRATED = 0.9, (0.85, 0.95)
#: Numbers that differ by less than this part are the same.
SAME = 1e-3
#: Worlds that are drawn, and the most rounds that are played in each.
_DRAWS, _MOST_ROUNDS = 100, 150
#: Fewer cases say nothing about coverage.
LEAST_CASES = 10
#: The levels at which distributions of durations are compared.
QUANTILES = np.arange(1, 100) / 100
#: What is predicted of each round; and of each client, over all held-out rounds.
BY_ROUND = ("clients there", "answers", "round length")
BY_CLIENT = ("rounds there, by client", "answers, by client")


class Coverage(NamedTuple):
    """How often an interval held what was recorded.

    Attributes:
        name: What was predicted.
        share: Share of the cases inside of the interval.
        n_cases: Number of cases.
        recorded: Mean of what was recorded.
        predicted: Mean of what was predicted.
    """

    name: str
    share: float
    n_cases: int
    recorded: float
    predicted: float

    @property
    def is_wrong(self) -> bool:
        """Whether the share differs from what it should be by more than luck."""
        return self.verdict in ("too sure", "too wide")

    @property
    def verdict(self) -> str:
        """In words: calibrated, too sure, too wide, or too few cases."""
        low, high = CALIBRATED
        if self.n_cases < LEAST_CASES:
            return "too few cases"
        # Two standard errors are luck.
        luck = 2.0 * math.sqrt(INTERVAL * (1.0 - INTERVAL) / self.n_cases)
        if self.share < min(low, INTERVAL - luck):
            return "too sure"
        return "too wide" if self.share > max(high, INTERVAL + luck) else "calibrated"


class HeldOut(NamedTuple):
    """The held-out check of a log.

    Attributes:
        n_fitted: Rounds that the world was fitted to.
        n_predicted: Rounds that it predicted.
        coverages: Coverage of the intervals, by what was predicted.
        world: The world that was fitted to the first rounds.
    """

    n_fitted: int
    n_predicted: int
    coverages: tuple[Coverage, ...]
    world: FittedWorld

    @property
    def is_calibrated(self) -> bool | None:
        """Whether nothing was found wrong; None if there are too few rounds to judge by."""
        if not self.is_judged:
            return None
        return not any(each.is_wrong for each in self.coverages)

    @property
    def is_judged(self) -> bool:
        """Whether there were enough rounds for every verdict about rounds."""
        by_round = [each for each in self.coverages if each.name in BY_ROUND]
        return all(each.n_cases >= LEAST_CASES for each in by_round)


def check(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], n_draws: int = _DRAWS
) -> HeldOut:
    """Fit a world to the first 70 % of the rounds, and compare its predictions with the others.

    Args:
        runs: Run folders of one federation, as for ``fit``.
        n_draws: Worlds that are drawn.

    Raises:
        InvalidInput: There are too few rounds.
    """
    return check_log(read_log(runs), n_draws)


def check_log(log: Log, n_draws: int = _DRAWS) -> HeldOut:
    """Check a log; see ``check``.

    Args:
        log: The records.
        n_draws: Worlds that are drawn.

    Raises:
        InvalidInput: There are too few rounds.
    """
    n_fitted = math.floor(SHARE * log.n_rounds)
    if n_fitted < LEAST_ROUNDS or log.n_rounds - n_fitted < 2:
        raise InvalidInput(
            f"runs must hold at least {math.ceil(LEAST_ROUNDS / SHARE)} rounds for a check, got "
            f"{log.n_rounds}: record more first.",
            field="runs",
        )
    world = fit_log(log.first(n_fitted))
    record = log.last
    rounds = np.arange(max(n_fitted - record.first, 0), record.run.n_rounds)[:_MOST_ROUNDS]
    found = replayed(world, record, rounds, n_draws)
    rng = stream(0, Purpose.EVAL)
    coverages = [
        coverage(name, found.recorded[name], found.drawn[name], rng)
        for name in (*BY_ROUND, *BY_CLIENT)
        if name in found.recorded
    ]
    return HeldOut(n_fitted, rounds.size, tuple(coverages), world)


class Played(NamedTuple):
    """Recorded rounds, and the same choices in worlds that were drawn.

    Attributes:
        recorded: (k,) each: what happened, by name; k rounds, clients or quantiles.
        drawn: (draws, k) each: what would have happened.
    """

    recorded: dict[str, FloatArray]
    drawn: dict[str, FloatArray]


def replayed(world: FittedWorld, record: RunLog, rounds: Any, n_draws: int = _DRAWS) -> Played:
    """Play recorded choices in worlds that are drawn.

    Args:
        world: The fitted world.
        record: The recorded run.
        rounds: Which of its rounds.
        n_draws: Worlds that are drawn.
    """
    n = world.n_clients
    actual = _Tally.recorded(record, rounds, n).found
    drawn = [_played(world, record, rounds, n, seed).found for seed in range(n_draws)]
    names = [name for name in actual if record.run.knows_available or "there" not in name]
    return Played(
        {name: actual[name] for name in names},
        {name: np.array([each[name] for each in drawn]) for name in names},
    )


class _Tally:
    """What happened in some rounds, by round and by client."""

    def __init__(self, n_rounds: int, n_clients: int) -> None:
        sizes = dict.fromkeys(BY_ROUND, n_rounds) | dict.fromkeys(BY_CLIENT, n_clients)
        self.values: dict[str, FloatArray] = {name: np.zeros(size) for name, size in sizes.items()}
        self.seconds: list[FloatArray] = [np.zeros(0)]

    @property
    def found(self) -> dict[str, FloatArray]:
        """Everything, with quantiles of the durations of answers."""
        seconds = np.concatenate(self.seconds)
        seconds = seconds[np.isfinite(seconds)]
        quantiles = np.quantile(seconds, QUANTILES) if seconds.size else np.full(99, np.nan)
        return self.values | {"durations of answers": np.asarray(quantiles)}

    def add(
        self, row: int, available: Any, clients: Any, completed: Any, seconds: Any, length_s: float
    ) -> None:
        """Add a round."""
        self.seconds.append(seconds[completed])
        found = self.values
        found["clients there"][row] = np.count_nonzero(available)
        found["answers"][row] = np.count_nonzero(completed)
        found["round length"][row] = length_s
        found["rounds there, by client"] += available
        found["answers, by client"][clients[completed]] += 1.0

    @classmethod
    def recorded(cls, record: RunLog, rounds: Any, n_clients: int) -> _Tally:
        """Return what was recorded."""
        tally, run = cls(rounds.size, n_clients), record.run
        for row, t in enumerate(rounds.tolist()):
            chosen = slice(run.offsets[t], run.offsets[t + 1])
            available = np.zeros(n_clients, dtype=np.bool_)
            if run.knows_available:
                there = run.available_in(t)[: record.client_of.size]
                available[record.client_of] = there & record.known_in(t)
            completed = run.status[chosen] == Status.COMPLETED
            clients = record.client_of[run.clients[chosen]]
            seconds = run.duration[chosen]
            tally.add(row, available, clients, completed, seconds, float(run.length_s[t]))
        return tally


def _played(world: FittedWorld, record: RunLog, rounds: Any, n_clients: int, seed: int) -> _Tally:
    """Return what happens if the recorded choices are made in the world of a seed."""
    environment, policy, run = world.environment_of(seed), world.policy, record.run
    history, observed = History.fresh(n_clients), Observed.fresh()
    tally = _Tally(rounds.size, n_clients)
    for row, t in enumerate(rounds.tolist()):
        clients = record.client_of[run.clients[run.offsets[t] : run.offsets[t + 1]]]
        history.took_part_.fill(False)
        if t:
            before = run.clients[run.offsets[t - 1] : run.offsets[t]]
            history.took_part_[record.client_of[before]] = True
        when = record.first + t
        fate = environment.fate(when, history)
        closed = policy.close(
            fate.duration[clients],
            fate.survived[clients],
            observed,
            cohort_size=run.cohort_size,
            reports_failure=fate.reports_failure,
        )
        if policy.uses_observed:
            observed.record(closed, policy.deadline(observed))
        available = np.zeros(n_clients, dtype=np.bool_)
        there = environment.context(when, 1).available
        available[record.client_of] = there[record.client_of] & record.known_in(t)
        completed = closed.status == Status.COMPLETED
        tally.add(row, available, clients, completed, closed.duration, closed.length_s)
    return tally


def coverage(
    name: str, actual: FloatArray, drawn: FloatArray, rng: np.random.Generator
) -> Coverage:
    """Return how often the truth lies inside of the interval that holds 90 % of the draws.

    Ties are broken at random: an interval of whole numbers would hold more than 90 %.

    Args:
        name: What was predicted.
        actual: (k,) the truth.
        drawn: (draws, k) what was predicted.
        rng: Breaks ties.
    """
    below, equal = (drawn < actual).sum(axis=0), np.isclose(drawn, actual, rtol=SAME).sum(axis=0)
    below = np.minimum(below, len(drawn) - equal)
    place = (below + rng.random(actual.size) * (equal + 1)) / (len(drawn) + 1)
    edge = 0.5 * (1.0 - INTERVAL)
    is_inside = (place > edge) & (place < 1.0 - edge)
    shares = (float(is_inside.mean()), actual.size, float(actual.mean()), float(drawn.mean()))
    return Coverage(name, *shares)
