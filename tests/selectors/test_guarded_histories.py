"""The guarantee of ``guarded`` and ``pace`` over every window, recomputed by brute force.

Feedback comes at once, late, out of order or never, clients join, and selectors are restarted. A
slow reference that is told of every round at once says who must have a place.
"""

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
    selections: list[turnout.Selection] = field(default_factory=list)
    available: list[np.ndarray] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    owed: list[np.ndarray] = field(default_factory=list)
    last_known: int = -1  #: the latest round whose feedback came
    n_forgotten: int = 0  #: R of Eq. (5)

    @property
    def n_clients(self):
        return self.selector.n_clients

    @property
    def n_rounds(self):
        return len(self.selections)

    def chosen_in(self, round):
        return self.selections[round].clients

    def available_in(self, round):
        available = self.available[round]
        return np.pad(available, (0, self.n_clients - available.size))

    def deliver(self, which=0):
        """Tell the selector what happened in one of the rounds in flight."""
        selection = self.in_flight.pop(which)
        n = selection.clients.size
        self.selector.observe(selection, Outcome(np.zeros(n, dtype=np.int8), np.ones(n)))
        self.last_known = max(self.last_known, selection.round)

    def deliver_all(self):
        while self.in_flight:
            self.deliver()

    def lose(self, which):
        """Never tell the selector what happened in one of the rounds in flight."""
        self.in_flight.pop(which)

    def restart(self):
        """Continue with a copy of the selector that knows only its state."""
        self.n_forgotten += self.n_rounds - 1 - self.last_known
        restored = self.selector.clone()
        restored.reset(self.n_clients)
        restored.load_state(self.selector.state())
        self.selector = restored

    def offer(self, clients, size, which=0, columns=None):
        """Play a round in which these clients are available; return who was chosen."""
        t = self.n_rounds
        available = np.isin(np.arange(self.n_clients), list(clients))
        ctx = RoundContext(t, size, available, columns=columns or {})
        owed = self.selector._ledger(t).accounts["owed_"]
        self.owed.append(owed.copy())
        before = self.selector.state()
        selection = self.selector.select(ctx, turnout.stream(0, turnout.Purpose.SELECT, t))
        after = self.selector.state()
        assert all(np.array_equal(values, after[name]) for name, values in before.items())
        assert selection.clients.size <= ctx.size
        assert available[selection.clients].all()
        self.in_flight.append(selection)
        while len(self.in_flight) > self.most_in_flight:
            self.deliver(which % len(self.in_flight))
        self.selections.append(selection)
        self.available.append(available)
        self.sizes.append(size)
        return set(selection.clients.tolist())

    def windows(self):
        """Yield first and last round, share (n,) and places (n,) of every window, one by one."""
        share, places = [], []
        for t, size in enumerate(self.sizes):
            available = self.available_in(t)
            n_available = max(1, int(available.sum()))
            share.append(available * min(size, n_available) / n_available)
            places.append(np.isin(np.arange(self.n_clients), self.chosen_in(t)).astype(float))
        for begin in range(self.n_rounds):
            total, count = np.zeros(self.n_clients), np.zeros(self.n_clients)
            for t in range(begin, self.n_rounds):
                total, count = total + share[t], count + places[t]
                yield begin, t, total, count


class Reference:
    """Eqs. (1) and (2) client by client, told of every round at once."""

    def __init__(self, lots, floor, cap):
        self.floor, self.cap = floor, cap
        self.q = [lot if floor > 0.0 else 0.0 for lot in lots]
        self.c = [1.0] * len(lots)
        self.lots = list(lots)

    def must_serve(self, available, size):
        """Return who is owed a place, at most those furthest behind."""
        share = self.share(available, size)
        due = [i for i in available if self.q[i] + self.floor * share >= 1.0 - 1e-9]
        due.sort(key=lambda i: (self.q[i], self.lots[i]), reverse=True)
        return set(due[:size])

    def may_serve(self, available, size):
        """Return who has not had its cap yet."""
        tokens = min(2.0, self.cap * self.share(available, size))
        return {i for i in available if self.c[i] + tokens >= 1.0 - 1e-9}

    def charge(self, available, size, chosen, reserved):
        share = self.share(available, size)
        for i in available:
            self.q[i] += self.floor * share
            self.c[i] += min(2.0, self.cap * share)
            if i in reserved:
                self.q[i], self.c[i] = self.q[i] - 1.0, max(self.c[i] - 1.0, min(self.c[i], 0.0))
            elif i in chosen:
                self.q[i], self.c[i] = max(self.q[i] - 1.0, min(self.q[i], 0.0)), self.c[i] - 1.0
            self.c[i] = min(self.c[i], 1.0)

    @staticmethod
    def share(available, size):
        return min(size, len(available)) / len(available) if available else 1.0


def guarded(n_clients, floor, cap, taste="first", seed=0):
    inner = {"inner": "tests.selectors.stubborn:Stubborn", "inner_parameters": {"taste": taste}}
    selector = turnout.make("guarded", floor=floor, cap=cap, **inner)
    selector.prepare(n_clients, seed)
    return selector


def pace(n_clients, floor, cap=math.inf, taste="first", seed=0):
    """Return a ``pace`` in place of ``guarded``; it has no taste and no cap, and may forget."""
    selector = turnout.make("pace", floor=floor, alert=True, doubt=True)
    selector.prepare(n_clients, seed)
    return selector


def slack_of(n, floor):
    """Return D of Eq. (3)."""
    return 1.0 + floor * (n - 1)


def assert_guaranteed(history, floor, cap, slack):
    forgotten, cap = history.n_forgotten, max(cap, history.selector.cap)  # pace has no cap
    for begin, _, share, places in history.windows():
        assert (places >= floor * share - slack - floor * forgotten - ROUNDING).all()
        if cap < math.inf:
            owed = np.zeros(history.n_clients)
            owed[: history.owed[begin].size] = history.owed[begin]
            allowed = np.maximum(1.0, owed) + forgotten
            assert (places <= cap * share + allowed + ROUNDING).all()
    for owed in history.owed:
        assert (owed <= slack_of(history.n_clients, floor) + ROUNDING).all()
        assert (owed >= -ROUNDING).all()


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


#: What may happen after a round to feedback that has not come yet.
events = st.sampled_from(["nothing", "nothing", "all", "lost", "lost"])


def play_with_bad_feedback(data, history, late, on_event=None):
    """Play rounds whose feedback is late, out of order or lost, while clients join."""
    a_round = st.tuples(
        st.sets(st.integers(0, history.n_clients + 1)),
        st.integers(1, history.n_clients + 1),
        st.integers(0, late),
        events if on_event is None else st.one_of(events, st.just("restart")),
        st.integers(0, 19),
    )
    for clients, size, which, event, joins in data.draw(st.lists(a_round, max_size=40)):
        if joins == 0:
            history.selector.grow(history.n_clients + 1)
        clients = {client for client in clients if client < history.n_clients}
        history.offer(clients, size, which)
        if event == "all":
            history.deliver_all()
        elif event == "lost" and history.in_flight:
            history.lose(which % len(history.in_flight))
        elif event == "restart":
            history.restart()
            on_event()


@settings(fixed, max_examples=200)
@given(
    data=st.data(),
    make=st.sampled_from([guarded, guarded, pace]),
    n=st.integers(1, 6),
    late=st.integers(0, 6),
    limits=limits,
    taste=st.sampled_from(TASTES),
)
def test_late_and_lost_feedback_leave_the_bounds_as_they_are(data, make, n, late, limits, taste):
    floor, cap = limits
    history = History(make(n, floor, cap, taste, seed=n), most_in_flight=late)
    play_with_bad_feedback(data, history, late)
    assert_guaranteed(history, floor, cap, slack_of(history.n_clients, floor))


@settings(fixed, max_examples=200)
@given(
    data=st.data(),
    make=st.sampled_from([guarded, guarded, pace]),
    n=st.integers(1, 6),
    late=st.integers(1, 6),
    limits=limits,
    taste=st.sampled_from(TASTES),
    comes_later=st.booleans(),
)
def test_a_restart_costs_the_places_of_the_rounds_that_it_forgets(
    data, make, n, late, limits, taste, comes_later
):
    floor, cap = limits
    history = History(make(n, floor, cap, taste, seed=n), most_in_flight=late)
    ends = (lambda: None) if comes_later else history.in_flight.clear
    play_with_bad_feedback(data, history, late, on_event=ends)
    assert_guaranteed(history, floor, cap, slack_of(history.n_clients, floor))


@settings(fixed, max_examples=200)
@given(
    data=st.data(),
    make=st.sampled_from([guarded, guarded, pace]),
    n=st.integers(1, 6),
    late=st.integers(0, 6),
    limits=limits,
    taste=st.sampled_from(TASTES),
)
def test_places_are_reserved_as_a_reference_says_that_hears_of_every_round_at_once(
    data, make, n, late, limits, taste
):
    floor, cap = limits
    history = History(make(n, floor, cap, taste, seed=n), most_in_flight=late)
    cap = history.selector.cap
    play_with_bad_feedback(data, history, late)
    lots = history.selector.lot_.tolist()
    reference = Reference(lots, floor, cap)
    for t, selection in enumerate(history.selections):
        available, size = np.flatnonzero(history.available[t]).tolist(), history.sizes[t]
        chosen = set(selection.clients.tolist())
        reserved = set(selection.clients[selection.recall("is_reserved")].tolist())
        assert reserved == reference.must_serve(available, size)
        assert chosen - reserved <= reference.may_serve(available, size)
        reference.charge(available, size, chosen, reserved)
    owed = history.selector._ledger(history.n_rounds).accounts["owed_"]
    assert owed.tolist() == pytest.approx(reference.q, abs=1e-9)


@pytest.mark.parametrize("name", ["guarded", "pace"])
@settings(fixed, max_examples=60)
@given(data=st.data(), late=st.integers(1, 12))
def test_a_selector_that_learns_nothing_chooses_alike_whenever_feedback_comes(name, data, late):
    def selector():
        if name == "guarded":
            return guarded(7, 0.5, 2.0)
        made = turnout.make("pace", haste=0.0, utility=0.0)  # its queues advance all the same
        made.prepare(7, seed=1)
        return made

    prompt, tardy = History(selector()), History(selector(), most_in_flight=late)
    a_round = st.tuples(
        st.sets(st.integers(0, 6), min_size=1), st.integers(1, 4), st.integers(0, late), events
    )
    for clients, size, which, event in data.draw(st.lists(a_round, max_size=40)):
        assert prompt.offer(clients, size) == tardy.offer(clients, size, which)
        if event == "lost" and tardy.in_flight:
            tardy.lose(which % len(tardy.in_flight))


@pytest.mark.parametrize("make", [guarded, pace])
@pytest.mark.parametrize("floor", [0.5, 1.0])
def test_places_in_flight_count(make, floor):
    """Ten rounds in flight, or no feedback at all: nobody is two places behind."""
    for most_in_flight, is_lost in ((10, False), (10**6, True)):
        history = History(make(3, floor, 9e9), most_in_flight=most_in_flight)
        for _ in range(300):
            history.offer(range(3), 1)
        assert len(history.in_flight) == (300 if is_lost else 10)
        assert guarantee(history, floor, math.inf).shortfall.max() <= 1.0 + floor + ROUNDING


@pytest.mark.parametrize("make", [guarded, pace])
@pytest.mark.parametrize("share_lost", [0.5, 0.9, 1.0])
def test_lost_feedback_costs_no_client_its_floor(make, share_lost):
    rng = np.random.default_rng(3)
    history = History(make(40, 0.5, 2.0), cohort_size=8, most_in_flight=10**6)
    for _ in range(500):
        history.offer(range(40), 8)
        if rng.random() < share_lost:
            history.lose(-1)
        else:
            history.deliver(-1)
    assert guarantee(history, 0.5, math.inf).shortfall.max() <= 1.5 + ROUNDING


@pytest.mark.parametrize("late", [0, 3, 7])
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
    certificate = guarantee(history, 1.0, 1.0, slack=1.0)
    assert certificate.excess[0] <= 1.0 + ROUNDING
    assert not certificate.is_ahead.any()


@settings(fixed, max_examples=60)
@given(
    data=st.data(),
    make=st.sampled_from([guarded, guarded, pace]),
    limits=limits,
    taste=st.sampled_from(TASTES),
    late=st.integers(0, 9),
)
def test_two_places_are_enough_if_everyone_is_always_available(data, make, limits, taste, late):
    floor, cap = limits
    history = History(make(8, floor, cap, taste), most_in_flight=late)
    a_round = st.tuples(st.integers(1, 9), st.integers(0, late), events)
    for size, which, event in data.draw(st.lists(a_round, min_size=20, max_size=60)):
        history.offer(range(8), size, which)
        if event == "lost" and history.in_flight:
            history.lose(which % len(history.in_flight))
    assert_guaranteed(history, floor, cap, slack=1.0 + floor)


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("taste", ["first", "last", "favourites"])
def test_an_adversary_that_keeps_back_the_neglected_needs_the_slack(taste, late):
    """Pairs that are equally far behind: whoever is passed over climbs by half the floor.

    Late feedback does not help the adversary: the next place goes to whoever was passed over.
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
        (passed_over,) = {one, other} - history.offer([one, other], 1)
        for _ in range(late):
            history.offer([one, other], 1)
            history.offer([one, other], 1)  # back to where they were
        history.deliver_all()
        return passed_over

    worst = lifted(n - 1, list(range(n)))
    certificate = guarantee(history, floor, math.inf, slack=slack_of(n, floor))
    assert certificate.holds
    if late == 0:
        needed = (n - 1) * floor / 2
        assert history.selector.owed_[worst] >= needed - ROUNDING
        assert certificate.shortfall[worst] >= needed - ROUNDING


@pytest.mark.parametrize("floor", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("taste", ["first", "last", "favourites"])
def test_the_price_of_the_floor_is_between_its_bounds(taste, floor):
    """Eqs. (6) to (8): the first k clients always earn 1, the others 0."""
    n, k, n_rounds = 20, 4, 400
    history = History(guarded(n, floor, math.inf, taste, seed=2), cohort_size=k)
    for _ in range(n_rounds):
        history.offer(range(n), k)
    n_reserved = sum(int(s.recall("is_reserved").sum()) for s in history.selections)
    assert n_reserved <= floor * k * n_rounds + n
    earned = sum(int((s.clients < k).sum()) for s in history.selections)
    least = floor * k * (1.0 - k / n) * n_rounds - (n - k) * (1.0 + floor)
    regret = k * n_rounds - earned
    assert regret >= least
    if taste == "first":  # the inner selector takes the best that are offered: it has no regret
        assert regret <= floor * k * n_rounds + n


def test_a_preview_of_later_rounds_changes_nothing():
    alone, watched = guarded(6, 0.5, 2.0), guarded(6, 0.5, 2.0)
    everyone = np.ones(6, dtype=np.bool_)

    def choose(selector, t):
        return selector.select(RoundContext(t, 2, everyone), turnout.stream(0, 1, t))

    for t in range(30):
        first = choose(watched, t)
        for later in (t + 1, t + 2, t + 9):
            choose(watched, later)
        again, expected = choose(watched, t), choose(alone, t)
        assert first.clients.tolist() == again.clients.tolist() == expected.clients.tolist()
        outcome = Outcome(np.zeros(2, dtype=np.int8), np.ones(2))
        watched.observe(again, outcome)
        alone.observe(expected, outcome)
        for name, values in alone.state().items():
            np.testing.assert_array_equal(watched.state()[name], values)


def test_feedback_that_comes_after_all_is_not_charged_twice():
    history = History(guarded(5, 0.5, 2.0), most_in_flight=10**6)
    for _ in range(12):
        history.offer(range(5), 2)
    history.deliver(-1)  # the last round brings all others along
    accounts = history.selector.owed_.copy(), history.selector.tokens_.copy()
    count = history.selector._inner.count_.copy()
    history.deliver_all()
    np.testing.assert_array_equal(history.selector.owed_, accounts[0])
    np.testing.assert_array_equal(history.selector.tokens_, accounts[1])
    assert history.selector._inner.count_.sum() > count.sum()  # but it is learned from


def test_a_state_file_knows_what_was_lost_before_the_last_feedback(tmp_path):
    history = History(pace(6, 0.5), most_in_flight=10**6)
    for _ in range(20):
        history.offer(range(6), 2)
    history.deliver(-1)
    turnout.save(history.selector, tmp_path / "state.npz")
    restored = turnout.load(tmp_path / "state.npz")
    assert restored.n_charged_ == 20
    np.testing.assert_array_equal(restored.owed_, history.selector.owed_)
    np.testing.assert_array_equal(restored.queue_, history.selector.queue_)


@pytest.mark.parametrize("make", [guarded, pace])
def test_a_state_of_an_older_version_is_loaded(make):
    history = History(make(6, 0.5, 2.0))
    for _ in range(9):
        history.offer(range(6), 2)
    old = history.selector.state()
    del old["n_charged_"]
    restored = history.selector.clone()
    restored.reset(6)
    restored.load_state(old)
    continued = History(restored)
    continued.offer(range(6), 2)
    assert restored.n_charged_ == 1
    np.testing.assert_array_equal(continued.owed[0], history.selector.owed_)


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
