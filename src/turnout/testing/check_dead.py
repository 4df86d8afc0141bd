"""A check with clients that die: a selector stops asking those who do not answer any more."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from turnout.rng import Purpose, stream
from turnout.selector import Selector
from turnout.testing.harness import Subject, contract, expect
from turnout.testing.toy import METRICS, ToyFederation
from turnout.types import BoolArray, Outcome, RoundContext, Selection, Status

#: Clients, cohort and seeds of the check.
N_CLIENTS, COHORT_SIZE, N_SEEDS = 24, 6, 2

#: The round in which clients die, the first that counts, and the number of rounds.
DEATH, LATER, N_ROUNDS = 100, 200, 300

#: Places of the dead in times of their fair share. Equal chances stay below it by more than five
#: standard deviations.
MOST_FOR_THE_DEAD = 1.5


@contract
def check_forgets_the_dead(subject: Subject) -> None:
    """Let half of the good clients die: later they get at most 1.5 times their fair share.

    They die in round 100 and neither answer nor report any more, but they still seem available. The
    last 100 of 300 rounds count.
    """
    n_dead = n_places = 0
    for seed in range(subject.times(N_SEEDS)):
        toy = _world(seed)
        selections = toy.play(subject.ready(N_CLIENTS, seed), range(N_ROUNDS), seed=seed)
        chosen = np.concatenate([selection.clients for selection in selections[LATER:]])
        n_dead += int(np.count_nonzero(toy.dying[chosen]))
        n_places += chosen.size
    share, fair = n_dead / max(1, n_places), float(toy.dying.mean())
    expect(
        share <= MOST_FOR_THE_DEAD * fair,
        f"clients that died {LATER - DEATH} rounds before get {share:.3f} of the places, "
        f"{share / fair:.1f} times their fair share of {fair:.3f}; at most {MOST_FOR_THE_DEAD} is "
        "allowed: let each request without an answer lower a client's rank, for example by "
        "turnout.estimators.silence, or say why not in expected_check_failures.",
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

    def outcome(self, selection: Selection, metrics: Iterable[str] = METRICS) -> Outcome:
        """Return what happened; the dead were silent."""
        outcome = super().outcome(selection, metrics)
        if selection.round < DEATH:
            return outcome
        dead = self.dying[selection.clients]
        return Outcome(
            np.where(dead, np.int8(Status.SILENT), outcome.status),
            np.where(dead, np.nan, outcome.duration),
            {name: np.where(dead, np.nan, values) for name, values in outcome.metrics.items()},
        )


@functools.cache
def _world(seed: int) -> DyingFederation:
    return DyingFederation(N_CLIENTS, COHORT_SIZE, seed=seed)
