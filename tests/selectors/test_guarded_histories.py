"""The guarantee of ``guarded`` over every window, recomputed by brute force."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout
from tests.selectors.stubborn import TASTES
from turnout import Outcome, RoundContext
from turnout.results.metrics import guarantee

ROUNDING = 1e-6
fixed = settings(derandomize=True, deadline=None, max_examples=300)


@dataclass
class History:
    """Plays rounds by hand, and looks like a recorded run."""

    selector: turnout.Selector
    cohort_size: int = 1
    most_in_flight: int = 0  #: rounds whose feedback may still be missing when one is chosen
    in_flight: list[turnout.Selection] = field(default_factory=list)
    chosen: list[np.ndarray] = field(default_factory=list)
    available: list[np.ndarray] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    owed: list[np.ndarray] = field(default_factory=list)

    @property
    def n_clients(self):
        return self.selector.n_clients

    @property
    def n_rounds(self):
        return len(self.chosen)

    def chosen_in(self, round):
        return self.chosen[round]

    def available_in(self, round):
        return self.available[round]

    def deliver(self, which=0):
        """Tell the selector what happened in one of the rounds in flight."""
        selection = self.in_flight.pop(which)
        n = selection.clients.size
        self.selector.observe(selection, Outcome(np.zeros(n, dtype=np.int8), np.ones(n)))

    def deliver_all(self):
        while self.in_flight:
            self.deliver()

    def offer(self, clients, size, which=0):
        """Play a round in which these clients are available; return who was chosen."""
        t = self.n_rounds
        available = np.isin(np.arange(self.n_clients), list(clients))
        ctx = RoundContext(t, size, available)
        self.owed.append(self.selector.owed_.copy())
        selection = self.selector.select(ctx, turnout.stream(0, turnout.Purpose.SELECT, t))
        assert selection.clients.size <= ctx.size
        assert available[selection.clients].all()
        self.in_flight.append(selection)
        while len(self.in_flight) > self.most_in_flight:
            self.deliver(which % len(self.in_flight))
        self.chosen.append(selection.clients)
        self.available.append(available)
        self.sizes.append(size)
        return set(selection.clients.tolist())

    def windows(self):
        """Yield first and last round, share (n,) and places (n,) of every window, one by one."""
        share, places = [], []
        for chosen, available, size in zip(self.chosen, self.available, self.sizes, strict=True):
            n_available = max(1, int(available.sum()))
            share.append(available * min(size, n_available) / n_available)
            places.append(np.isin(np.arange(self.n_clients), chosen).astype(float))
        for begin in range(self.n_rounds):
            total, count = np.zeros(self.n_clients), np.zeros(self.n_clients)
            for t in range(begin, self.n_rounds):
                total, count = total + share[t], count + places[t]
                yield begin, t, total, count


def guarded(n_clients, floor, cap, taste="first", seed=0):
    inner = {"inner": "tests.selectors.stubborn:Stubborn", "inner_parameters": {"taste": taste}}
    selector = turnout.make("guarded", floor=floor, cap=cap, **inner)
    selector.prepare(n_clients, seed)
    return selector


def slack_of(n, floor, most_in_flight=0):
    """Return D of Eq. (3), or what stands in its place in Eq. (5)."""
    return (most_in_flight + 1) * (1.0 + floor * (n - 1)) + 4 * most_in_flight


def assert_guaranteed(history, floor, cap, slack):
    late = history.most_in_flight
    for begin, _, share, places in history.windows():
        assert (places >= floor * share - slack - ROUNDING).all()
        if cap < math.inf:
            allowed = np.maximum(1.0, history.owed[begin]) + 3 * late
            assert (places <= cap * share + allowed + ROUNDING).all()
    most_owed = slack_of(history.n_clients, floor, late) - 3 * late
    assert (np.array(history.owed) <= most_owed + ROUNDING).all()
    assert (np.array(history.owed) >= -3 * late - ROUNDING).all()


limits = st.tuples(
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]), st.sampled_from([1.0, 1.5, 2.0, 9e9])
)


@fixed
@given(data=st.data(), n=st.integers(1, 7), limits=limits, taste=st.sampled_from(TASTES))
def test_the_bounds_hold_over_every_window_of_every_history(data, n, limits, taste):
    floor, cap = limits
    history = History(guarded(n, floor, cap, taste, seed=n))
    a_round = st.tuples(st.sets(st.integers(0, n - 1)), st.integers(1, n + 1))
    for clients, size in data.draw(st.lists(a_round, max_size=40)):
        history.offer(clients, size)
    assert_guaranteed(history, floor, cap, slack=slack_of(n, floor))


@settings(fixed, max_examples=200)
@given(
    data=st.data(),
    n=st.integers(1, 6),
    late=st.integers(1, 4),
    limits=limits,
    taste=st.sampled_from(TASTES),
)
def test_late_feedback_widens_the_bounds_by_what_is_in_flight(data, n, late, limits, taste):
    floor, cap = limits
    history = History(guarded(n, floor, cap, taste, seed=n), most_in_flight=late)
    a_round = st.tuples(
        st.sets(st.integers(0, n - 1)), st.integers(1, n + 1), st.integers(0, late), st.booleans()
    )
    for clients, size, which, at_once in data.draw(st.lists(a_round, max_size=40)):
        history.offer(clients, size, which)
        if at_once:
            history.deliver_all()
    assert_guaranteed(history, floor, cap, slack_of(n, floor, late))


@pytest.mark.parametrize("late", [3, 7])
def test_late_feedback_does_not_lift_the_cap(late):
    """The inner selector's places must be charged to the floor's account too, and the reverse.

    Client 0 is chosen by the inner selector until feedback comes, waits until it is owed a place,
    and is given reserved ones until feedback comes. Beside it there is always a newcomer.
    """
    n_cycles = 8
    n_rounds = n_cycles * 2 * (late + 2)
    history = History(guarded(n_rounds + 1, 1.0, 1.0, "first"), most_in_flight=late)
    history.selector.owed_[:] = 0.0
    newcomers = iter(range(1, n_rounds + 1))
    for _ in range(2 * n_cycles):
        for _ in range(late + 1):
            history.offer([0, next(newcomers)], 1)
        history.deliver_all()
        history.offer([0, next(newcomers)], 1)
        history.deliver_all()
    certificate = guarantee(history, 1.0, 1.0, slack=1.0 + 3 * late)
    assert (late + 1) / 2 <= certificate.excess[0] <= 1.0 + 3 * late
    assert not certificate.is_ahead.any()


@settings(fixed, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=20, max_size=60),
    limits=limits,
    taste=st.sampled_from(TASTES),
)
def test_two_places_are_enough_if_everyone_is_always_available(sizes, limits, taste):
    floor, cap = limits
    history = History(guarded(8, floor, cap, taste))
    for size in sizes:
        history.offer(range(8), size)
    assert_guaranteed(history, floor, cap, slack=1.0 + floor)


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("taste", ["first", "last", "favourites"])
def test_an_adversary_that_keeps_back_the_neglected_needs_the_slack(taste, late):
    """Pairs that are equally far behind: whoever is passed over climbs by half the floor.

    If feedback is late, the same one is passed over in each round that is in flight.
    """
    n, floor = 7, 0.5
    history = History(guarded(n, floor, math.inf, taste), most_in_flight=late)

    def lifted(level, clients):
        """Return one of ``level + 1`` clients that is owed ``level`` times a step."""
        if level == 0:
            (client,) = clients[:1]
            while history.selector.owed_[client] != 0.0:
                history.offer([client], 1)
                history.deliver_all()
            return client
        one = lifted(level - 1, clients)
        other = lifted(level - 1, [client for client in clients if client != one])
        for _ in range(late + 1):
            (passed_over,) = {one, other} - history.offer([one, other], 1)
        history.deliver_all()
        return passed_over

    worst = lifted(n - 1, list(range(n)))
    needed = (late + 1) * (n - 1) * floor / 2
    assert history.selector.owed_[worst] >= needed - ROUNDING
    certificate = guarantee(history, floor, math.inf, slack=slack_of(n, floor, late))
    assert certificate.holds
    assert certificate.shortfall[worst] >= needed - ROUNDING


@fixed
@given(data=st.data(), n=st.integers(1, 6), limits=limits, taste=st.sampled_from(TASTES))
def test_the_certificate_is_the_worst_of_all_windows(data, n, limits, taste):
    floor, cap = limits
    size = data.draw(st.integers(1, n))
    history = History(guarded(n, 0.0, math.inf, taste), cohort_size=size)
    for clients in data.draw(st.lists(st.sets(st.integers(0, n - 1)), max_size=25)):
        history.offer(clients, size)
    certificate = guarantee(history, floor, cap, slack=1.0)
    windows = list(history.windows())
    short = [floor * share - places for _, _, share, places in windows]
    ahead = [places - cap * share for _, _, share, places in windows]
    nothing = np.zeros((1, n))
    shortfall = np.max([*nothing, *short], axis=0)
    np.testing.assert_allclose(certificate.shortfall, shortfall, atol=1e-9)
    np.testing.assert_allclose(certificate.excess, np.max([*nothing, *ahead], axis=0), atol=1e-9)
    assert certificate.is_short.tolist() == (shortfall > 1.0 + ROUNDING).tolist()
    by_rounds = {(begin, end): gap for (begin, end, _, _), gap in zip(windows, short, strict=True)}
    for client in np.flatnonzero(shortfall > ROUNDING):
        gap = by_rounds[tuple(certificate.short_in[client].tolist())]
        assert gap[client] == pytest.approx(shortfall[client])
