"""Checks of large and long runs.

A round has no Python loop over many clients. In a long run, a learner prefers good clients and
forgets clients that died.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import numpy as np

from turnout.core.registry import make
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import BoolArray, Outcome, RoundContext, Selection, Status
from turnout.testing.harness import Subject, ToyFederation, contract, expect

#: Clients and cohort of the loop detector.
MANY_CLIENTS, MANY_CHOSEN = 100_000, 100

#: How often the reference computation is repeated, so that a coarse clock is enough.
N_REFERENCES = 30

#: Lines of Python per client that a round may run. A loop over the available clients runs 0.8.
LINES_PER_CLIENT = 0.7

#: Limit on the time of a round, in times of one draw and one partial sort of n numbers.
SLOWEST = 3000.0


@contract
def check_vectorised(subject: Subject) -> None:
    """Play a round with 100,000 clients: no Python loop over them, no quadratic time."""
    toy = ToyFederation(MANY_CLIENTS, MANY_CHOSEN)
    selector = subject.ready(MANY_CLIENTS)
    toy.play(selector, range(1))
    for t in (1, 2):
        toy.context(selector, t)  # draws the round, so that it is not counted
    lines = _lines_run(lambda: toy.play(selector, range(1, 2)))
    limit = round(LINES_PER_CLIENT * MANY_CLIENTS)
    expect(
        lines <= limit,
        f"a round with {MANY_CLIENTS} clients ran {lines} lines of Python, more than {limit}: "
        "replace the loop over clients by array operations.",
    )
    own = _seconds(lambda: toy.play(selector, range(2, 3)))
    floor = _seconds(_reference) / N_REFERENCES
    expect(
        own <= SLOWEST * floor,
        f"a round with {MANY_CLIENTS} clients took {own / floor:.0f} times as long as one draw and "
        f"one partial sort, more than {SLOWEST:g}: replace what grows faster than n log n.",
    )


def _lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs; loops inside numpy do not count."""
    n_lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal n_lines
        n_lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return n_lines


def _seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call; other programs do not change it."""
    start = time.process_time()
    call()
    return time.process_time() - start


def _reference() -> None:
    rng = stream(0, Purpose.SELECT)
    for _ in range(N_REFERENCES):
        np.argpartition(rng.random(MANY_CLIENTS), MANY_CLIENTS - MANY_CHOSEN)


#: Clients, cohort and seeds of the checks of long runs.
N_CLIENTS, COHORT_SIZE, N_SEEDS = 24, 6, 2

#: The round in which clients die, the first round that counts, and the number of rounds.
DEATH, LATER, N_ROUNDS = 100, 200, 300

#: A learner must choose good clients this many times as often as ``random`` does. Chance reaches
#: it with the probability of five standard deviations.
LEARNING_MARGIN = 1.3

#: The most places for the dead, in multiples of their fair share. Equal chances stay below it by
#: more than five standard deviations.
MOST_FOR_THE_DEAD = 1.5


@contract
def check_learns(subject: Subject) -> None:
    """Compare with ``random``: a learner chooses good clients 1.3 times as often.

    Both play in the same federations: 24 clients, 8 of them good, 2 seeds. The last 100 of 300
    rounds count. A selector that overrides neither ``observe`` nor ``poll`` cannot learn and is
    excused.
    """
    cls = type(subject.fresh())
    if cls.observe is Selector.observe and cls.poll is Selector.poll:
        return
    own, by_chance = _share_of_good(subject), _share_by_chance()
    expect(
        own >= LEARNING_MARGIN * by_chance,
        f"good clients are {own:.3f} of those chosen in the last 100 of 300 rounds, with 'random' "
        f"{by_chance:.3f}; a learner must reach {LEARNING_MARGIN} times that. If this selector is "
        "not meant to learn, say why in expected_check_failures.",
    )


@contract
def check_forgets_the_dead(subject: Subject) -> None:
    """Let half of the good clients die: later they get at most 1.5 times their fair share.

    They die in round 100 and neither answer nor report any more, but they still seem available. The
    last 100 of 300 rounds count.
    """
    toys = [_mortal(seed) for seed in range(subject.times(N_SEEDS))]
    share = _late_share(subject, toys, [toy.dying for toy in toys])
    fair = float(toys[-1].dying.mean())
    expect(
        share <= MOST_FOR_THE_DEAD * fair,
        f"clients that died {LATER - DEATH} rounds before get {share:.3f} of the places, "
        f"{share / fair:.1f} times their fair share of {fair:.3f}; at most {MOST_FOR_THE_DEAD} is "
        "allowed: let each request without an answer lower a client's rank, for example by "
        "turnout.sampling.running, or say why not in expected_check_failures.",
    )


class DyingFederation(ToyFederation):
    """A toy federation in which every second good client dies."""

    @functools.cached_property
    def dying(self) -> BoolArray:
        """(n,) which clients die."""
        good = np.flatnonzero(self.good)
        dies = np.zeros(self.n_clients, dtype=np.bool_)
        dies[stream(self.seed, Purpose.INIT).permutation(good)[: good.size // 2]] = True
        return dies

    def ask(self, selector: Selector, ctx: RoundContext, rng: np.random.Generator) -> RoundContext:
        """Poll; the dead do not answer."""
        ctx = super().ask(selector, ctx, rng)
        if ctx.polled is None or ctx.round < DEATH:
            return ctx
        polled, loss = ctx.answers()
        return ctx.with_answers(polled, np.where(self.dying[polled], np.nan, loss))

    def outcome(self, selection: Selection, *args: Any, **kwargs: Any) -> Outcome:
        """Return what happened; the dead were silent."""
        outcome = super().outcome(selection, *args, **kwargs)
        if selection.round < DEATH:
            return outcome
        dead = self.dying[selection.clients]
        return Outcome(
            np.where(dead, np.int8(Status.SILENT), outcome.status),
            np.where(dead, np.nan, outcome.duration),
            {name: np.where(dead, np.nan, values.T).T for name, values in outcome.metrics.items()},
        )


@functools.cache
def _mortal(seed: int) -> DyingFederation:
    return DyingFederation(N_CLIENTS, COHORT_SIZE, seed=seed)


@functools.cache
def _immortal(seed: int) -> ToyFederation:
    return ToyFederation(N_CLIENTS, COHORT_SIZE, seed=seed)


@functools.cache
def _share_by_chance() -> float:
    return _share_of_good(Subject(lambda: make("random")))


def _share_of_good(subject: Subject) -> float:
    toys = [_immortal(seed) for seed in range(N_SEEDS)]
    return _late_share(subject, toys, [toy.good for toy in toys])


def _late_share(
    subject: Subject, toys: Iterable[ToyFederation], marked: Iterable[BoolArray]
) -> float:
    """Return the share of places in the last rounds that go to marked clients, over all seeds."""
    n_marked = n_places = 0
    for toy, is_marked in zip(toys, marked, strict=True):
        selector = subject.ready(N_CLIENTS, toy.seed)
        selections = toy.play(selector, range(N_ROUNDS), seed=toy.seed)
        chosen = np.concatenate([selection.clients for selection in selections[LATER:]])
        n_marked += int(np.count_nonzero(is_marked[chosen]))
        n_places += chosen.size
    return n_marked / max(1, n_places)
