"""The limits of ``guarded``: two participations are min_gap rounds apart, and there are max_times.

The histories are those of ``test_guarded_histories``: feedback at once, late, out of order or lost,
clients that join, and restarts from state files.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout
from tests.selectors.stubborn import TASTES
from tests.selectors.test_guarded_histories import (
    History,
    assert_guaranteed,
    fixed,
    play_with_bad_feedback,
    slack_of,
)
from turnout import Outcome, RoundContext
from turnout.core.errors import InvalidInput, StateFileError
from turnout.core.participation import Participation, merged
from turnout.experiment.loop import rounds
from turnout.results.guarantee import guarantee
from turnout.results.privacy import EligibleOnly
from turnout.worlds import e3cs_world

bounds = st.tuples(st.integers(1, 5), st.sampled_from([None, 1, 2, 3]))


def limited(n_clients, b, k, floor=0.5, cap=9e9, taste="first", seed=0):
    inner = {"inner": "tests.selectors.stubborn:Stubborn", "inner_parameters": {"taste": taste}}
    selector = turnout.make("guarded", floor=floor, cap=cap, min_gap=b, max_times=k, **inner)
    selector.prepare(n_clients, seed)
    return selector


def assert_limited(history, b, k):
    """Compare every pair of rounds of every client."""
    for client in range(history.n_clients):
        mine = [t for t in range(history.n_rounds) if client in history.chosen_in(t)]
        assert all(later - earlier >= b for earlier, later in pairwise(mine)), (client, mine)
        assert k is None or len(mine) <= k, (client, mine)


@settings(fixed, max_examples=300)
@given(
    data=st.data(),
    n=st.integers(1, 6),
    late=st.integers(0, 6),
    bound=bounds,
    floor=st.sampled_from([0.0, 0.5, 1.0]),
    cap=st.sampled_from([1.0, 2.0, 9e9]),
    taste=st.sampled_from(TASTES),
)
def test_limits_hold_in_every_history(data, n, late, bound, floor, cap, taste):
    """Floor and cap hold beside them, for clients that the limits do not exclude."""
    history = History(limited(n, *bound, floor, cap, taste, seed=n), most_in_flight=late)
    play_with_bad_feedback(data, history, late)
    assert_limited(history, *bound)
    history.available = [
        EligibleOnly(history, Participation(*bound)).available_in(t)
        for t in range(history.n_rounds)
    ]
    assert_guaranteed(history, floor, cap, slack_of(history.n_clients, floor))


@settings(fixed, max_examples=400)
@given(
    data=st.data(),
    n=st.integers(1, 6),
    late=st.integers(1, 6),
    bound=bounds,
    taste=st.sampled_from(TASTES),
    comes_later=st.booleans(),
)
def test_a_restart_that_forgets_rounds_breaks_no_limit(data, n, late, bound, taste, comes_later):
    """Feedback from before a restart may come after it, in any order."""
    history = History(limited(n, *bound, taste=taste, seed=n), most_in_flight=late)
    ends = (lambda: None) if comes_later else history.in_flight.clear
    play_with_bad_feedback(data, history, late, on_event=ends)
    assert_limited(history, *bound)


@settings(fixed, max_examples=200)
@given(data=st.data(), n=st.integers(2, 6), late=st.integers(0, 4), bound=bounds)
def test_who_may_be_chosen_is_chosen_if_nothing_is_forgotten(data, n, late, bound):
    """The limits exclude nobody else: an inner selector that always fills its places does so."""
    history = History(limited(n, *bound, floor=0.0, cap=math.inf), most_in_flight=late)
    play_with_bad_feedback(data, history, late)
    for t, selection in enumerate(history.selections):
        free = EligibleOnly(history, Participation(*bound)).available_in(t)
        assert selection.clients.size == min(history.sizes[t], np.count_nonzero(free))


def play(selector, t, clients, size=1, n=None):
    available = np.isin(np.arange(n or selector.n_clients), clients)
    return selector.select(RoundContext(t, size, available), turnout.stream(0, 1, t))


def tell(selector, selection):
    n = selection.clients.size
    selector.observe(selection, Outcome(np.zeros(n, dtype=np.int8), np.ones(n)))


@pytest.mark.parametrize("b", [1, 2, 3])
def test_a_gap_of_b_means_the_rounds_t_and_t_plus_b(b):
    """As in the literature: |i - j| >= b, so b = 1 allows two rounds in a row."""
    selector = limited(1, b, None)
    chosen = []
    for t in range(7):
        selection = play(selector, t, [0])
        chosen += [t] * selection.clients.size
        tell(selector, selection)
    assert chosen == list(range(0, 7, b))


def test_silent_clients_took_part():
    selector = limited(1, 1, 2)
    for t, expected in enumerate([1, 1, 0]):
        selection = play(selector, t, [0])
        assert selection.clients.size == expected
        n = selection.clients.size
        selector.observe(selection, Outcome(np.full(n, 3, dtype=np.int8), np.full(n, np.nan)))


def test_limits_come_before_the_floor_and_the_cap():
    """Client 0 is owed three places, and waits until the gap is over."""
    selector = limited(3, 3, None, floor=1.0, cap=math.inf)
    tell(selector, play(selector, 0, [0]))
    selector.owed_[:] = [3.0, 0.2, 0.1]
    chosen = [play(selector, t, [0, 1, 2]).clients.tolist() for t in (1, 2, 3)]
    assert chosen == [[1], [2], [0]]


def test_a_forgotten_round_counts_against_everyone_unless_a_runner_vouches():
    selector = limited(3, 4, None, floor=0.0)
    tell(selector, play(selector, 0, [0]))
    state = selector.state()
    for vouched, expected in ((None, []), (3, [1, 2])):
        again = selector.clone()
        again.reset(3)
        again.load_state(state)
        if vouched is not None:
            again.continue_at(vouched)
        assert play(again, 3, [0, 1, 2], 3).clients.tolist() == expected


def test_rounds_without_a_choice_cost_nothing_while_the_selector_lives():
    selector = limited(2, 3, 5)
    tell(selector, play(selector, 0, [0]))
    assert play(selector, 40, [0, 1], 2).clients.tolist() == [0, 1]
    assert selector.state()["invited_"].tolist() == [1.0, 0.0]


def test_a_preview_leaves_no_trace():
    selector = limited(2, 3, 2)
    for t in (9, 10, 11):
        play(selector, t, [0, 1], 2)
    assert play(selector, 0, [0, 1], 2).clients.tolist() == [0, 1]


def test_newcomers_are_free():
    selector = limited(2, 5, 1)
    tell(selector, play(selector, 0, [0, 1], 2))
    selector.grow(3)
    assert play(selector, 1, [0, 1, 2], 3).clients.tolist() == [2]


def test_a_state_without_a_ledger_is_refused():
    old, new = turnout.make("guarded"), turnout.make("guarded", min_gap=2)
    old.reset(3)
    new.reset(3)
    with pytest.raises(StateFileError, match="invited_"):
        new.load_state(old.state())


def test_two_clients_that_became_one_took_part_as_both():
    selector = limited(3, 4, 3)
    for t, client in enumerate([0, 1, 2]):
        tell(selector, play(selector, t, [client]))
    state = merged(selector.state(), 0, 2)
    assert state["invited_"].tolist() == [2.0, 1.0, 1.0]
    assert state["after_invited_"].tolist() == [3.0, 2.0, 3.0]
    assert selector.state()["invited_"].tolist() == [1.0, 1.0, 1.0]  # a copy


@pytest.mark.parametrize(
    ("limits", "n", "m", "n_rounds", "says"),
    [
        ((5, None), 100, 20, 50, None),
        (
            (6, None),
            100,
            20,
            50,
            "n_clients at least 120; cohort_size at most 16; min_gap at most 5; n_rounds at most 5",
        ),
        ((60, None), 100, 20, 5, None),  # nobody comes twice in five rounds
        ((1, 3), 100, 20, 15, None),
        (
            (1, 3),
            100,
            20,
            16,
            "n_clients at least 107; cohort_size at most 18; max_times at least "
            "4; n_rounds at most 15",
        ),
        (
            (6, 2),
            100,
            20,
            50,
            "n_clients at least 500; cohort_size at most 4; min_gap at most 5 "
            "and max_times at least 10; n_rounds at most 5",
        ),
        (
            (6, 2),
            100,
            20,
            None,
            "n_clients at least 120; cohort_size at most 16; min_gap at most 5.",
        ),
    ],
)
def test_a_federation_that_is_too_small_is_refused(limits, n, m, n_rounds, says):
    limits = Participation(*limits)
    if says is None:
        limits.check_fits(n, m, n_rounds)
        return
    with pytest.raises(InvalidInput, match=says):
        limits.check_fits(n, m, n_rounds)


@settings(fixed, max_examples=300)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 5),
    b=st.integers(1, 5),
    n_rounds=st.integers(1, 9),
    k=st.sampled_from([None, 1, 2, 3]),
)
def test_the_condition_is_exact(n, m, b, n_rounds, k):
    """Taking turns fills every round exactly where the check lets it start."""
    history = [t * m % n for t in range(n_rounds)]
    cohorts = [{(first + i) % n for i in range(m)} for first in history]
    can = all(len(cohort) == m for cohort in cohorts)
    for client in range(n):
        mine = [t for t, cohort in enumerate(cohorts) if client in cohort]
        can &= all(j - i >= b for i, j in pairwise(mine)) and (k is None or len(mine) <= k)
    try:
        Participation(b, k).check_fits(n, m, n_rounds)
    except InvalidInput:
        assert not can
        assert b > 1 or k is not None
    else:
        assert can or (b, k) == (1, None)


def test_what_the_refusal_offers_would_do():
    for n, m, b, k, n_rounds in [(30, 7, 9, 2, 40), (50, 20, 3, 1, 9), (9, 3, 4, 5, 30)]:
        with pytest.raises(InvalidInput) as caught:
            Participation(b, k).check_fits(n, m, n_rounds)
        offers = str(caught.value).partition("would do: ")[2].rstrip(".").split("; ")
        assert len(offers) >= 3
        for offer in offers:
            use = {
                "n_clients": n,
                "cohort_size": m,
                "min_gap": b,
                "max_times": k,
                "n_rounds": n_rounds,
            }
            for part in offer.split(" and "):
                name, _, number = (
                    part.replace(" at least ", "=").replace(" at most ", "=").partition("=")
                )
                use[name] = int(number)
            limits = Participation(use.pop("min_gap"), use.pop("max_times"))
            limits.check_fits(**use)


def test_a_run_that_cannot_be_filled_does_not_start():
    selector = turnout.make("guarded", min_gap=9)
    with pytest.raises(InvalidInput, match="n_clients at least 180"):
        rounds(selector, e3cs_world(), cohort_size=20, n_rounds=30)


def test_limits_inside_other_selectors_are_refused():
    inner = {"min_gap": 3}
    with pytest.raises(InvalidInput, match="outer selector"):
        turnout.make("guarded", inner="guarded", inner_parameters=inner)
    with pytest.raises(InvalidInput, match="around the mix, with"):
        turnout.make(
            "mix", members={"guarded": 0.5, "random": 0.5}, parameters_of={"guarded": inner}
        )


def test_a_client_that_was_drawn_twice_takes_part_once():
    drawn = {"inner": "data-weighted", "inner_parameters": {"replacement": True}}
    columns = {"num_samples": np.array([1000.0, 1.0, 1.0])}
    ctx = RoundContext(0, 3, np.ones(3, dtype=np.bool_), columns=columns)
    for limits, multiple in (({}, True), ({"min_gap": 2}, False)):
        selector = turnout.make("guarded", floor=0.0, cap=math.inf, **drawn, **limits)
        selector.prepare(3)
        selection = selector.select(ctx, turnout.stream(0, 1, 0))
        assert (selection.times.max() > 1) == multiple


def test_the_floor_is_certified_for_those_who_may_be_chosen():
    selector = turnout.make("guarded", inner="random", min_gap=4, floor=0.8)
    run = turnout.simulate(selector, e3cs_world(seed=2), cohort_size=20, n_rounds=60)
    own = EligibleOnly(run, Participation(4))
    assert guarantee(own, 0.8, 2.0, slack=slack_of(100, 0.8)).holds
    assert guarantee(own, 0.8, 2.0, slack=2.0).shortfall.max() <= 3.0


def restored(selector):
    again = selector.clone()
    again.reset(selector.n_clients)
    again.load_state(selector.state())
    return again


def test_feedback_from_before_a_restart_takes_back_nothing():
    """It brings accounts that lack the rounds since the restart."""
    selector = limited(2, 2, None)
    tell(selector, play(selector, 0, [0]))
    play(selector, 1, [1])
    before = play(selector, 2, [])
    again = restored(selector)
    assert play(again, 3, [0]).clients.size == 0  # it may have been in round 2
    selection = play(again, 4, [0])
    assert selection.clients.tolist() == [0]
    tell(again, selection)
    tell(again, before)
    assert play(again, 5, [0]).clients.size == 0


def test_a_round_that_is_taken_for_an_old_one_is_not_forgotten():
    """Feedback from before a restart comes first, and has seen more rounds."""
    selector = limited(4, 2, None)
    tell(selector, play(selector, 0, [0]))
    for t in (1, 2):
        play(selector, t, [t])
    before = play(selector, 3, [3])
    again = restored(selector)
    assert play(again, 4, [0, 1, 2, 3]).clients.size == 0
    selection = play(again, 5, [0])
    tell(again, before)
    tell(again, selection)
    assert play(again, 6, [0]).clients.size == 0
