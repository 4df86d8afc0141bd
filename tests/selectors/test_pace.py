"""Pace: its objective by brute force, its means by hand, its floor over hostile histories."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout
from turnout import InvalidInput, Outcome, RoundContext, Status
from turnout.core.rng import Purpose, stream
from turnout.sampling.running import add_observations, fade, no_observations, shrunk_mean

NAN = math.nan
EVERYONE = np.ones(6, dtype=np.bool_)


def pace(n=6, **parameters):
    selector = turnout.make("pace", **parameters)
    selector.prepare(n, seed=1)
    return selector


def select(selector, t=0, size=2, available=EVERYONE, **columns):
    ctx = RoundContext(t, size, available, columns=columns)
    return selector.select(ctx, stream(0, Purpose.SELECT, t))


def outcome(selection, seconds, status=None, loss=None):
    n = selection.clients.size
    status = np.zeros(n, dtype=np.int8) if status is None else status
    metrics = {} if loss is None else {"loss_rms": loss}
    return Outcome(status, np.broadcast_to(np.asarray(seconds, dtype=float), (n,)), metrics)


def test_faded_means_by_hand():
    record = no_observations(3)
    add_observations(record, np.array([0, 1]), np.array([4.0, NAN]))
    fade(record, memory=1.0 / math.log(2.0))  # a round leaves a half
    add_observations(record, np.array([0]), np.array([1.0]))
    assert record.tolist() == [[3.0, 0.0, 0.0], [1.5, 0.0, 0.0]]
    # (3 + 0.5 * 10) / (1.5 + 0.5) = 4; whoever was never seen is typical
    assert shrunk_mean(record, typical=10.0, strength=0.5).tolist() == [4.0, 10.0, 10.0]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), haste=st.sampled_from([0.0, 0.3, 1.0, 5.0]))
def test_the_cohort_minimises_the_objective(seed, haste):
    rng = np.random.default_rng(seed)
    selector = pace(n=7, haste=haste, floor=0.0)
    selector.queue_ = rng.random(7) * 3
    add_observations(selector.pace_, np.arange(7), rng.normal(0.0, 1.0, 7))
    add_observations(selector.loss_, np.arange(7), rng.random(7) + 0.1)
    add_observations(selector.answers_, np.arange(7), (rng.random(7) < 0.7).astype(float))
    selector.mean_time_, selector.n_times_ = 2.0, 5.0
    ctx = RoundContext(0, 3, np.ones(7, dtype=np.bool_))
    chosen = selector.select(ctx, stream(0, Purpose.SELECT, 0)).clients

    # An independent computation of Eqs. (1), (3) and (4), client by client.
    times, gains = [], []
    typical = np.median(selector.loss_[0])
    rate = (selector.answers_[0].sum() + 1.0) / (7 + 1.0)
    for i in range(7):
        times.append(2.0 * math.exp(selector.pace_[0, i] / (1.0 + 2.0)))
        loss = min((selector.loss_[0, i] + 0.5 * typical) / 1.5 / typical, 2.0)
        reliability = (selector.answers_[0, i] + rate) / 2.0
        gains.append(selector.queue_[i] + 0.5 * loss * reliability)
    price = haste * 3 / np.mean(times)

    def objective(cohort):
        return price * max(times[i] for i in cohort) - sum(gains[i] for i in cohort)

    best = min(objective(cohort) for cohort in itertools.combinations(range(7), 3))
    assert objective(chosen) == pytest.approx(best, rel=1e-12)


def test_queues_by_hand():
    selector = pace(floor=0.0, share=0.6)
    selector.queue_[:] = 0.0
    selection = select(selector, size=2)
    selector.observe(selection, outcome(selection, 1.0))
    expected = np.full(6, 0.6 * 2 / 6)
    expected[selection.clients] = 0.0  # 0.2 - 1, cut at 0
    assert selector.queue_ == pytest.approx(expected)


def test_a_reserved_slow_client_brings_the_slow_along():
    selector = pace(haste=100.0, utility=0.0)
    selector.queue_[:] = [0.0, 0.0, 0.0, 0.0, 0.1, 0.1]
    selector.owed_[:] = 0.0
    add_observations(selector.pace_, np.array([4, 5]), np.full(2, 6.0))  # e^2 times as slow
    selector.mean_time_, selector.n_times_ = 1.0, 5.0
    assert not {4, 5} & set(select(selector).clients.tolist())
    selector.owed_[4] = 1.0
    assert select(selector).clients.tolist() == [4, 5]


def test_regression_finds_times_of_clients_never_chosen():
    rng = np.random.default_rng(0)
    selector = pace(n=40, dimension=2, utility=0.0, floor=0.0, share=0.0)
    theta = np.array([3.0, 0.5])
    for t in range(60):
        context = rng.random((40, 2)) + 0.1
        selection = select(selector, t, size=8, available=np.arange(40) < 20, context=context)
        seconds = context[selection.clients] @ theta
        selector.observe(selection, outcome(selection, seconds))
    context = rng.random((40, 2)) + 0.1
    ctx = RoundContext(60, 8, np.ones(40, dtype=np.bool_), columns={"context": context})
    assert selector._base(ctx, context)[20:] == pytest.approx(context[20:] @ theta, rel=0.02)


def test_late_and_silent_clients_took_at_least_as_long_as_the_slowest():
    selector = pace()
    first = select(selector, size=3)
    selector.observe(first, outcome(first, 2.0))
    selection = select(selector, 1, size=3)
    status = np.array([Status.COMPLETED, Status.LATE, Status.FAILED], dtype=np.int8)
    before = selector.pace_.copy()
    selector.observe(selection, outcome(selection, [6.0, NAN, NAN], status))
    fade(before, selector.memory)
    timed, late, failed = selection.clients
    assert selector.pace_[0, late] - before[0, late] == pytest.approx(math.log(6.0 / 2.0))
    assert selector.pace_[1, failed] == before[1, failed]  # a crash says nothing of time
    assert selector.pace_[0, timed] - before[0, timed] == pytest.approx(math.log(3.0))


def test_a_swap_of_reliability_is_noticed_within_the_memory():
    selector = pace(n=6, haste=0.0, utility=1.0, share=0.0, memory=30.0)
    for t in range(120):
        selection = select(selector, t)
        good = selection.clients < 3 if t < 60 else selection.clients >= 3
        status = np.where(good, Status.COMPLETED, Status.FAILED).astype(np.int8)
        selector.observe(selection, outcome(selection, 1.0, status))
        if t == 59:
            before = selector._worth(RoundContext(t, 2, EVERYONE))
    after = selector._worth(RoundContext(120, 2, EVERYONE))
    assert before[:3].min() > before[3:].max()
    assert after[:3].max() < after[3:].min()


@pytest.mark.parametrize("lie", [1e30, 10.0])
def test_a_liar_is_worth_at_most_twice_the_typical_client(lie):
    selector = pace()
    add_observations(selector.loss_, np.arange(6), np.array([1.0, 1, 1, 1, 1, lie]))
    samples = np.array([100.0, 100, 100, 100, 100, NAN])
    ctx = RoundContext(0, 2, EVERYONE, columns={"num_samples": samples})
    worth = selector._worth(ctx)
    assert worth[5] <= 2.0 * worth[0]


def test_without_losses_and_context_it_goes_by_time_and_answers():
    selector = pace(n=20, utility=0.5)
    counts = np.zeros(20)
    for t in range(400):
        selection = select(selector, t, size=4, available=np.ones(20, dtype=np.bool_))
        counts[selection.clients] += 1
        seconds = np.where(selection.clients < 5, 10.0, 1.0)
        selector.observe(selection, outcome(selection, seconds))
    fair = 400 * 4 / 20
    assert counts.min() >= 0.5 * fair - 1.5  # the floor
    assert counts[:5].mean() < counts[5:].mean()


def test_losses_that_count_for_nothing_are_not_asked_for():
    selector = pace(utility=0.0)
    assert selector.needs_metrics == frozenset()
    assert pace().needs_metrics == frozenset({"loss_rms"}) == {*pace().optional_metrics}
    selection = select(selector)
    selector.observe(selection, outcome(selection, 1.0, loss=[5.0, 7.0]))
    assert not selector.loss_.any()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    data=st.data(),
    n=st.integers(1, 6),
    floor=st.sampled_from([0.3, 0.5, 1.0]),
    is_second=st.booleans(),
)
def test_the_floor_holds_over_every_window_of_hostile_histories(data, n, floor, is_second):
    selector = pace(n, floor=floor, alert=is_second, doubt=is_second)
    share, places = [], []
    a_round = st.tuples(st.sets(st.integers(0, n - 1)), st.integers(1, n + 1))
    for t, (clients, size) in enumerate(data.draw(st.lists(a_round, max_size=30))):
        available = np.isin(np.arange(n), list(clients))
        selection = select(selector, t, size, available)
        status = data.draw(st.integers(0, 3))
        reports = [data.draw(st.sampled_from([NAN, 0.0, 1.0, 1e30])) for _ in selection.clients]
        result = outcome(selection, NAN if status > 1 else 1.0, np.full(len(reports), status))
        length = data.draw(st.sampled_from([NAN, 0.0, 1.0, 1e30]))
        result = Outcome(result.status, result.duration, {"loss_rms": reports}, length)
        selector.observe(selection, result)
        n_available = max(1, len(clients))
        share.append(available * min(size, n_available) / n_available)
        places.append(np.isin(np.arange(n), selection.clients).astype(float))
    slack = 1.0 + floor * (n - 1) + 1e-6
    for begin in range(len(share)):
        fair, got = np.cumsum(share[begin:], axis=0), np.cumsum(places[begin:], axis=0)
        assert (got >= floor * fair - slack).all()


def test_another_number_of_features_is_refused():
    with pytest.raises(InvalidInput, match="set dimension= to the number of context features"):
        select(pace(), context=np.ones((6, 2)))


def test_a_round_without_clients_teaches_nothing():
    selector = pace()
    selection = select(selector, available=np.zeros(6, dtype=np.bool_))
    before = selector.state()
    selector.observe(selection, outcome(selection, 1.0))
    assert all((values == before[name]).all() for name, values in selector.state().items())


def test_a_time_of_nothing_is_unknown_and_a_late_time_is_known():
    selector = pace()
    first = select(selector, size=3)
    status = np.array([Status.COMPLETED, Status.COMPLETED, Status.LATE], dtype=np.int8)
    selector.observe(first, outcome(first, [2.0, 0.0, 4.0], status))
    assert selector.mean_time_ == pytest.approx(3.0)


def test_losses_and_sizes_of_nothing_are_known_and_not_compared():
    selector = pace()
    add_observations(selector.loss_, np.arange(6), np.array([0.0, 0, 0, 0, 1, 2]))
    ctx = RoundContext(0, 2, EVERYONE, columns={"num_samples": np.zeros(6)})
    assert np.ptp(selector._worth(ctx)) == 0.0  # the typical loss is 0


# --------------------------------------------------------------------------------------------------
# ``alert``: times fade with replies, and a slope notices that speeds have changed.
# --------------------------------------------------------------------------------------------------


def learned(selector, rounds, size, seconds_of):
    """Play rounds with everyone available; ``seconds_of(t, clients)``."""
    everyone = np.ones(selector.n_clients, dtype=np.bool_)
    for t in range(rounds):
        selection = select(selector, t, size, everyone)
        selector.observe(selection, outcome(selection, seconds_of(t, selection.clients)))


def test_ratios_fade_with_own_replies_by_hand():
    selector = pace(alert=True, memory=1e9)
    for t, seconds in enumerate((2.0, 6.0)):
        selection = select(selector, t, size=6)
        selector.observe(selection, outcome(selection, [seconds, 2.0, 2.0, 2.0, 2.0, 2.0]))
    keep = math.exp(-1.0 / 20.0)
    # the first round has base 1, and the second the mean of the first round
    assert selector.pace_[1] == pytest.approx(np.full(6, 1.0 + keep))
    assert selector.pace_[0, 0] == pytest.approx(2.0 * keep + 6.0 / 2.0)
    absent = selector.pace_.copy()
    only = np.arange(6) < 2
    selection = select(selector, 2, size=2, available=only)
    selector.observe(selection, outcome(selection, 2.0))
    assert (selector.pace_[:, 2:] == absent[:, 2:]).all()  # who was not asked forgets nothing
    expected = selector._expected(RoundContext(3, 2, EVERYONE), np.ones(6))
    assert expected == pytest.approx((selector.pace_[0] + 1.0) / (selector.pace_[1] + 1.0))


def noticed(selector, size, speeds, after, rounds=60, change=40):
    """Return the rounds after which most of the times were forgotten."""
    rng, found, known = np.random.default_rng(0), [], [0.0]

    def seconds(t, clients):
        total = float(selector.pace_[1].sum())
        if total < 0.5 * known[0]:
            found.append(t)
        known[0] = total
        now = speeds if t < change else after
        return now[clients] * rng.uniform(0.5, 1.5, clients.size)

    learned(selector, rounds, size, seconds)
    return found


def test_reversed_speeds_are_noticed_within_four_rounds_and_nothing_else_is():
    speeds = np.random.default_rng(1).lognormal(0.0, 1.0, 40)
    found = noticed(pace(n=40, alert=True), 8, speeds, speeds[::-1])
    assert len(found) == 1
    assert 41 <= found[0] <= 44
    assert noticed(pace(n=40, alert=True), 8, speeds, speeds) == []
    assert noticed(pace(n=40), 8, speeds, speeds[::-1]) == []


def test_times_that_all_double_are_the_base_and_no_change_of_speeds():
    speeds = np.random.default_rng(1).lognormal(0.0, 1.0, 40)
    assert noticed(pace(n=40, alert=True), 8, speeds, 2.0 * speeds) == []


# --------------------------------------------------------------------------------------------------
# ``doubt``: claims against the server's clock.
# --------------------------------------------------------------------------------------------------


def with_length(selection, seconds, length, status=0):
    plain = outcome(selection, seconds, np.full(selection.clients.size, status))
    return Outcome(plain.status, plain.duration, {}, length)


def test_a_round_longer_than_every_claim_makes_its_clients_doubted_by_hand():
    selector = pace(doubt=True)
    first = select(selector, size=3)
    selector.observe(first, with_length(first, [0.1, 2.0, 1.0], 2.4))  # 1.25 x 2 is the limit
    assert not selector.is_doubted_.any()
    assert selector.shortest_[first.clients].tolist() == [2.4, 2.4, 2.4]
    everyone = np.isin(np.arange(6), first.clients)
    again = select(selector, 1, size=3, available=everyone)
    selector.observe(again, with_length(again, [0.1, 2.0, 1.0], 8.0))
    assert np.flatnonzero(selector.is_doubted_).tolist() == first.clients.tolist()
    # the shortest round of each, 3 % looser, is the least that a doubted client takes
    believed = selector._believed(again, with_length(again, [0.1, 9.0, 1.0], 9.0))
    assert believed == pytest.approx([2.4 * 1.03**2, 9.0, 2.4 * 1.03**2])


@pytest.mark.parametrize("status", [Status.LATE, Status.SILENT])
def test_rounds_in_which_somebody_did_not_reply_accuse_nobody(status):
    selector = pace(doubt=True)
    first = select(selector, size=3)
    seconds = 1.0 if status == Status.LATE else NAN
    selector.observe(first, with_length(first, seconds, 60.0, status))
    assert not selector.is_doubted_.any()
    assert (selector.shortest_ == pace().shortest_).all()


def test_the_loss_of_a_doubted_client_is_at_most_typical():
    selector = pace(doubt=True)
    add_observations(selector.loss_, np.arange(6), np.array([1.0, 1, 1, 1, 1e6, 1e6]))
    selector.is_doubted_[5] = True
    worth = selector._worth(RoundContext(0, 2, EVERYONE))
    assert worth[4] == pytest.approx(2.0 * worth[0])
    assert worth[5] == pytest.approx(worth[0])


def places_of_liars(n_rounds=200, **parameters):
    """Return the parts of their fair share that sixty clients get. The first six lie."""
    selector = pace(n=60, **parameters)
    speeds, counts = np.random.default_rng(0).lognormal(0.0, 1.0, 60), np.zeros(60)
    for t in range(n_rounds):
        selection = select(selector, t, size=6, available=np.ones(60, dtype=np.bool_))
        lies = selection.clients < 6
        true = speeds[selection.clients]
        claims = outcome(selection, np.where(lies, 0.01, true), loss=np.where(lies, 1e6, 1.0))
        result = Outcome(claims.status, claims.duration, claims.metrics, float(true.max()))
        selector.observe(selection, result)
        counts[selection.clients] += 1
    return counts / (0.1 * n_rounds)


def test_who_contradicts_the_clock_gains_little_and_the_floor_stays():
    believed, doubted = places_of_liars(), places_of_liars(doubt=True)
    assert believed[:6].mean() > 3.0
    assert doubted[:6].mean() < 2.0
    assert doubted.min() >= 0.5 - 1.5 / 20.0  # the floor, less at most 1 + floor places


def test_doubt_changes_nothing_where_the_clock_agrees():
    chosen = []
    for doubt in (False, True):
        selector, speeds = pace(n=30, doubt=doubt), np.random.default_rng(2).lognormal(size=30)
        own = []
        for t in range(40):
            selection = select(selector, t, size=4, available=np.ones(30, dtype=np.bool_))
            seconds = speeds[selection.clients]
            selector.observe(selection, with_length(selection, seconds, float(seconds.max())))
            own.append(selection.clients.tolist())
        chosen.append(own)
    assert chosen[0] == chosen[1]


def test_a_change_of_speeds_ends_all_doubts():
    selector = pace(n=40, alert=True, doubt=True)
    selector.is_doubted_[:], selector.shortest_[:] = True, 5.0
    speeds = np.random.default_rng(1).lognormal(0.0, 1.0, 40)
    assert noticed(selector, 8, speeds, speeds[::-1])
    assert not selector.is_doubted_.any()


def test_states_of_older_files_start_without_doubts():
    selector = pace(alert=True, doubt=True)
    later = {"agreement_", "spread_", "error_", "n_compared_", "shortest_", "is_doubted_"}
    old = {name: value for name, value in selector.state().items() if name not in later}
    selector.is_doubted_[:] = True
    selector.load_state(old)
    assert not selector.is_doubted_.any()


# --------------------------------------------------------------------------------------------------
# Rounds that overlap: the price of a place.
# --------------------------------------------------------------------------------------------------


def test_free_places_go_to_the_best_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(30):
        n, size = 7, int(rng.integers(1, 4))
        selector = turnout.make("pace", floor=0.0)
        selector.prepare(n, 0)
        selector.queue_ = rng.random(n)
        selector.pace_[0], selector.pace_[1] = rng.normal(size=n), 1.0
        selector.answers_[0], selector.answers_[1] = rng.random(n), 1.0
        selector.mean_time_, selector.n_times_ = 3.0, 5.0
        busy = np.arange(n) < 2
        ctx = turnout.RoundContext(4, size, ~busy, busy=busy)
        chosen = selector.select(ctx, np.random.default_rng(1)).clients
        # by hand: the shrunk pace, the reliability, the mean over free and busy clients
        pace = selector.pace_[0] / (1.0 + 2.0)
        time = np.exp(pace) / np.exp(pace).mean()
        answered, asked = selector.answers_.sum(axis=1)
        typical = (answered + 1.0) / (asked + 1.0)
        reliability = (selector.answers_[0] + 1.0 * typical) / (1.0 + 1.0)

        def value(cohort, time=time, reliability=reliability, queue=selector.queue_):
            return sum(
                queue[i] + 0.5 * reliability[i] * (1.0 + time[i]) ** -0.5 - time[i] for i in cohort
            )

        best = max(itertools.combinations(range(2, n), size), key=value)
        assert chosen.tolist() == list(best)


def test_the_price_of_a_place_is_the_best_rate_of_a_renewal_process():
    # A place is given again and again to one of five clients. The rate is gain / time. With the
    # best rate as the price, the client of the best rate has the largest gain - price x time, 0.
    rng = np.random.default_rng(3)
    for _ in range(20):
        gain, time = rng.random(5), rng.uniform(0.5, 3.0, 5)
        rate = (gain / time).max()
        net = gain - rate * time
        assert np.argmax(net) == np.argmax(gain / time)
        assert abs(net.max()) < 1e-12
        shares = rng.dirichlet(np.ones(5))
        assert (shares @ gain) / (shares @ time) <= rate + 1e-12


def test_a_choice_for_one_of_many_places_lets_the_means_fade_less():
    selector = turnout.make("pace")
    selector.prepare(6, 0)
    busy = np.arange(6) < 3
    selection = selector.select(
        turnout.RoundContext(0, 1, ~busy, busy=busy), np.random.default_rng(0)
    )
    selector.answers_[1] = 1.0
    selector.observe(selection, turnout.Outcome([0], [2.0]))
    others = np.delete(np.arange(6), selection.clients)
    np.testing.assert_allclose(selector.answers_[1, others], np.exp(-1 / 4 / 50.0))
