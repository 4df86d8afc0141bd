"""Checks with many clients: a round has no Python loop over them, and a learner learns."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from turnout.registry import make
from turnout.rng import Purpose, stream
from turnout.selector import Selector
from turnout.testing.harness import Subject, contract, expect
from turnout.testing.toy import ToyFederation

#: Clients and cohort of the loop detector.
MANY_CLIENTS, MANY_CHOSEN = 100_000, 100

#: How often the reference computation is repeated, so that a coarse clock is enough.
N_REFERENCES = 30

#: Lines of Python per client that a round may run. A loop over the available clients runs 0.8.
LINES_PER_CLIENT = 0.7

#: Limit on the time of a round, in times of one draw and one partial sort of n numbers.
SLOWEST = 3000.0

#: A learner must choose good clients this many times as often as ``random`` does. Chance reaches
#: it with the probability of five standard deviations.
LEARNING_MARGIN = 1.3


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


@functools.cache
def _share_by_chance() -> float:
    return _share_of_good(Subject(lambda: make("random")))


@functools.cache
def _world(seed: int) -> ToyFederation:
    return ToyFederation(24, 6, seed=seed)


def _share_of_good(subject: Subject) -> float:
    n_good = n_chosen = 0
    for seed in range(2):
        toy = _world(seed)
        selections = toy.play(subject.ready(24, seed), range(300), seed=seed)
        chosen = np.concatenate([selection.clients for selection in selections[200:]])
        n_good += int(np.count_nonzero(toy.good[chosen]))
        n_chosen += chosen.size
    return n_good / max(1, n_chosen)
