"""The floor on replies: Eq. (11) over every window of hostile histories, and replies on average."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout
from tests.selectors.stubborn import TASTES
from tests.selectors.test_guarded_histories import ROUNDING, History
from turnout import InvalidInput, Outcome, RoundContext
from turnout.core.errors import MissingColumn

STUBBORN = "tests.selectors.stubborn:Stubborn"
rates = st.one_of(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, math.nan]), st.floats(0.0, 1.0))


def guarded(n_clients, floor=0.5, cap=2.0, taste="first", seed=0):
    inner = {"inner": STUBBORN, "inner_parameters": {"taste": taste}}
    selector = turnout.make("guarded", floor=floor, cap=cap, answers=True, **inner)
    selector.prepare(n_clients, seed)
    return selector


def credits(available, size, rate, floor, cap):
    """Return u of Eq. (11), client by client."""
    there = [i for i, is_there in enumerate(available) if is_there]
    owed = [0.0] * len(available)
    known = [rate[i] for i in there if rate[i] >= 1e-6]
    share = min(size, len(there)) / len(there) if there else 1.0
    for i in there:
        owed[i] = floor * share
        if known and rate[i] >= 1e-6:
            owed[i] = share * min(floor * sum(known) / len(known) / rate[i], cap)
        owed[i] = min(owed[i], 1.0)
    scale = min(1.0, min(size, len(there)) / sum(owed)) if sum(owed) else 1.0
    return np.array(owed) * scale


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    data=st.data(),
    n=st.integers(1, 7),
    floor=st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    cap=st.sampled_from([1.0, 2.0, 9e9, math.inf]),
    taste=st.sampled_from(TASTES),
    late=st.integers(0, 4),
    is_fixed=st.booleans(),
)
def test_every_window_of_every_history_holds(data, n, floor, cap, taste, late, is_fixed):
    """Whoever is there, whatever their rates are, and whether feedback comes late or never."""
    history = History(guarded(n, floor, cap, taste, seed=n), most_in_flight=late)
    column = st.lists(rates, min_size=n, max_size=n).map(np.array)
    rate, owed = data.draw(column), []
    a_round = st.tuples(st.sets(st.integers(0, n - 1)), st.integers(1, n + 1), st.booleans())
    for clients, size, is_lost in data.draw(st.lists(a_round, max_size=40)):
        rate = rate if is_fixed else data.draw(column)
        history.offer(clients, size, columns={"success_rate": rate})
        owed.append(credits(history.available[-1], size, rate, floor, cap))
        if is_lost and history.in_flight:
            history.lose(0)
    slack = 1.0 + 2.0 * max((own.max() for own in owed), default=0.0) * (n - 1)
    for begin, end, share, places in history.windows():
        due = np.sum(owed[begin : end + 1], axis=0)
        assert (places >= due - slack - ROUNDING).all()
        allowed = np.maximum(1.0, history.owed[begin])
        assert (places <= min(cap, 9e9) * share + allowed + ROUNDING).all()


def test_clients_that_are_behind_alike_are_offered_two_at_a_time():
    """The adversary of (3): one of two that are equally far behind is passed over and kept back."""
    n, history = 16, History(guarded(16, 1.0, math.inf))
    rate, passed_over, owed = np.linspace(0.2, 1.0, n), [], np.zeros(n)
    for _ in range(400):
        free = [i for i in range(n) if i not in passed_over]
        if len(free) < 2:
            passed_over, free = [], list(range(n))
        behind = sorted(free, key=lambda i: owed[i] - _times(history, i), reverse=True)[:2]
        chosen = history.offer(behind, 1, columns={"success_rate": rate})
        owed += credits(history.available[-1], 1, rate, 1.0, math.inf)
        passed_over += [i for i in behind if i not in chosen]
    short = max(owed[i] - _times(history, i) for i in range(n))
    assert 2.0 < short <= 1.0 + 2.0 * (n - 1)


def _times(history, client):
    return sum(client in selection.clients for selection in history.selections)


def replies(answers, *, floor=0.5, cap=4.0, n=40, n_rounds=4000):
    """Return places and replies of each client, and an equal share of all expected replies."""
    rate = np.repeat([0.25, 0.5, 0.75, 1.0], n // 4)
    selector = turnout.make(
        "guarded",
        inner=STUBBORN,
        inner_parameters={"taste": "last"},
        floor=floor,
        cap=cap,
        answers=answers,
    )
    selector.prepare(n, 1)
    rng, columns = np.random.default_rng(3), {"success_rate": rate}
    places, came = np.zeros(n), np.zeros(n)
    for t in range(n_rounds):
        ctx = RoundContext(t, 10, np.ones(n, dtype=bool), columns=columns)
        selection = selector.select(ctx, turnout.stream(0, turnout.Purpose.SELECT, t))
        answered = rng.random(selection.clients.size) < rate[selection.clients]
        places[selection.clients] += 1.0
        came[selection.clients] += answered
        status = np.where(answered, 0, 3).astype(np.int8)
        selector.observe(selection, Outcome(status, np.ones(status.size)))
    return rate, places, came, n_rounds * 10 / n * rate.mean()


def test_the_least_reliable_reply_as_often_as_the_floor_says():
    rate, places, came, fair = replies(answers=True)
    least = 0.5 * fair
    error = 5.0 * np.sqrt(places * rate * (1.0 - rate))
    assert (came >= least - rate * 2.0 - error - 1e-9).all()
    assert came[rate == 0.25].mean() == pytest.approx(least, rel=0.02)  # and no more than it says
    _, _, before, _ = replies(answers=False)
    assert before[rate == 0.25].mean() < 0.55 * least  # a floor on places is none on replies


def test_a_cap_bounds_what_the_least_reliable_are_owed():
    rate, places, came, fair = replies(answers=True, cap=1.0)
    assert places[rate == 0.25].mean() == pytest.approx(1000.0, rel=0.01)  # a fair share of places
    assert came[rate == 0.25].mean() == pytest.approx(0.4 * fair, rel=0.05)


def test_rates_that_are_not_known_leave_a_floor_on_places():
    unknown = {"success_rate": np.full(6, math.nan)}
    own, plain = guarded(6), turnout.make("guarded", floor=0.5, cap=2.0, inner=STUBBORN)
    plain.prepare(6, 0)
    for t in range(30):
        ctx = RoundContext(t, 2, np.ones(6, dtype=bool), columns=unknown)
        chosen = [
            one.select(ctx, turnout.stream(0, turnout.Purpose.SELECT, t)) for one in (own, plain)
        ]
        assert chosen[0].clients.tolist() == chosen[1].clients.tolist()
        for one, selection in zip((own, plain), chosen, strict=True):
            one.observe(selection, Outcome(np.zeros(2, dtype=np.int8), np.ones(2)))


def test_the_column_is_needed_and_no_share_of_places_is_promised():
    selector = guarded(4)
    assert "success_rate" in selector.needs_columns
    assert selector.promised_share(0) == 0.0
    with pytest.raises(MissingColumn, match="success_rate"):
        selector.select(RoundContext(0, 1, np.ones(4, dtype=bool)), np.random.default_rng(0))
    assert "success_rate" not in turnout.make("guarded", floor=0.0, answers=True).needs_columns
    with pytest.raises(InvalidInput, match="answers"):
        turnout.make("guarded", answers=2)


def test_a_state_is_saved_and_continues():
    rate = {"success_rate": np.array([0.1, 0.5, 1.0, 1.0])}

    def play(selector, start, end):
        chosen = []
        for t in range(start, end):
            ctx = RoundContext(t, 2, np.ones(4, dtype=bool), columns=rate)
            selection = selector.select(ctx, turnout.stream(0, turnout.Purpose.SELECT, t))
            chosen.append(selection.clients.tolist())
            n = selection.clients.size
            selector.observe(selection, Outcome(np.zeros(n, dtype=np.int8), np.ones(n)))
        return chosen

    whole, first = guarded(4), guarded(4)
    expected = play(whole, 0, 20)
    play(first, 0, 9)
    second = first.clone()
    second.reset(4)
    second.load_state(first.state())
    assert play(second, 9, 20) == expected[9:]
