from __future__ import annotations

import math

import numpy as np
import pytest

import turnout
from tests.references.fedcs_slow import below_deadline, most_reliable, nishio_algorithm_3

NAN = math.nan
READINGS = ["success-rate", "expected-duration", "packing"]
COLUMN = {
    "success-rate": "success_rate",
    "expected-duration": "expected_duration",
    "packing": "expected_duration",
}


def context(n, m, deadline=math.inf, available=None, round=0, **columns):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    arrays = {name: np.array(column) for name, column in columns.items()}
    return turnout.RoundContext(round, m, available, deadline, arrays)


def made(n, by, **parameters):
    selector = turnout.make("fedcs", by=by, **parameters)
    selector.reset(n)
    return selector


def chosen_by(selector, ctx, seed=0):
    return selector.select(ctx, np.random.default_rng(seed)).clients.tolist()


def assert_frequencies(counts, trials, probability):
    p = np.array(probability)
    margin = 5 * np.sqrt(trials * p * (1 - p))
    assert np.all(np.abs(np.array(counts) - trials * p) <= margin + 1e-9), (counts, trials * p)


# --- success-rate (E3CS) ---


def test_success_rate_by_hand():
    selector = made(5, "success-rate")
    rate = [0.1, 0.9, 0.3, 0.6, NAN]
    assert chosen_by(selector, context(5, 2, success_rate=rate)) == [1, 3]
    assert chosen_by(selector, context(5, 3, success_rate=rate)) == [1, 2, 3]
    absent = [True, False, True, True, True]
    assert chosen_by(selector, context(5, 2, available=absent, success_rate=rate)) == [2, 3]
    assert chosen_by(selector, context(5, 5, success_rate=rate)) == [0, 1, 2, 3, 4]


def test_success_rate_matches_slow():
    rng = np.random.default_rng(0)
    for t in range(200):
        n = int(rng.integers(1, 20))
        m = int(rng.integers(1, n + 3))
        rate = rng.random(n)
        available = rng.random(n) < 0.7
        pool = np.flatnonzero(available).tolist()
        ctx = context(n, m, available=available, round=t, success_rate=rate)
        expected = most_reliable(pool, rate.tolist(), m)
        assert chosen_by(made(n, "success-rate"), ctx) == expected


def test_success_rate_ties_have_no_index_bias():
    trials, counts, rng = 4000, np.zeros(5), np.random.default_rng(4)
    selector = made(5, "success-rate")
    ctx = context(5, 3, success_rate=[0.5, 0.9, 0.5, 0.5, 0.5])
    for _ in range(trials):
        selection = selector.select(ctx, rng)
        counts[selection.clients] += 1
    assert_frequencies(counts, trials, [0.5, 1.0, 0.5, 0.5, 0.5])


def test_success_rate_ignores_the_deadline_and_always_fills():
    selector = made(3, "success-rate", deadline=0.001)
    assert not selector.may_underfill
    assert chosen_by(selector, context(3, 3, 0.001, success_rate=[0.0, 0.0, 0.1])) == [0, 1, 2]


# --- expected-duration (RBCS-F, Sec. 6.1.1) ---


def test_expected_duration_by_hand():
    # "all the clients that possess an expected training time shorter than the pre-set deadline"
    duration = [2.9, 3.0, 1.0, 7.0, NAN, 0.5]
    selector = made(6, "expected-duration", deadline=3.0)
    assert chosen_by(selector, context(6, 6, expected_duration=duration)) == [0, 2, 5]
    # The context's deadline serves when the parameter is not set.
    selector = made(6, "expected-duration")
    assert chosen_by(selector, context(6, 6, 3.0, expected_duration=duration)) == [0, 2, 5]
    # Two places: the fastest first.
    assert chosen_by(selector, context(6, 2, 3.0, expected_duration=duration)) == [2, 5]
    # Nobody is fast enough.
    assert chosen_by(selector, context(6, 6, 0.5, expected_duration=duration)) == []


def test_expected_duration_matches_slow_with_room_for_all():
    rng = np.random.default_rng(1)
    for t in range(200):
        n = int(rng.integers(1, 20))
        duration = np.where(rng.random(n) < 0.1, NAN, rng.uniform(0.0, 6.0, n))
        available = rng.random(n) < 0.8
        pool = np.flatnonzero(available).tolist()
        ctx = context(n, n, 3.0, available, t, expected_duration=duration)
        expected = below_deadline(pool, duration.tolist(), 3.0)
        assert chosen_by(made(n, "expected-duration"), ctx) == expected


def test_expected_duration_takes_the_fastest_when_places_are_few():
    rng = np.random.default_rng(2)
    for t in range(100):
        n, m = 12, int(rng.integers(1, 12))
        duration = rng.uniform(0.0, 6.0, n)
        ctx = context(n, m, 3.0, round=t, expected_duration=duration)
        fast = below_deadline(list(range(n)), duration.tolist(), 3.0)
        expected = sorted(sorted(fast, key=lambda i: duration[i])[:m])
        assert chosen_by(made(n, "expected-duration"), ctx) == expected


@pytest.mark.slow
def test_expected_duration_ties_have_no_index_bias():
    trials, counts, rng = 4000, np.zeros(5), np.random.default_rng(4)
    selector = made(5, "expected-duration")
    ctx = context(5, 2, 3.0, expected_duration=[2.0, 2.0, 1.0, 2.0, 3.0])
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    assert_frequencies(counts, trials, [1 / 3, 1 / 3, 1.0, 1 / 3, 0.0])


def test_expected_duration_without_a_deadline_admits_all_known_times():
    ctx = context(3, 3, expected_duration=[1.0, 1e29, 2.0])
    assert chosen_by(made(3, "expected-duration"), ctx) == [0, 1, 2]


# --- packing (Nishio and Yonetani, Alg. 3) ---


def test_packing_by_hand_with_uploads():
    # t_UD = (4, 1, 6, 2), t_UL = (2, 3, 1, 5), no downloads, deadline 12.
    # Theta = 0: increase t_UL + max(0, t_UD - 0) = (6, 4, 7, 7): client 1, Theta = 4.
    # Theta = 4: (2 + 0, -, 1 + 2, 5 + 0) = (2, -, 3, 5): client 0, Theta = 6 < 12.
    # Theta = 6: (-, -, 1 + 0, 5) : client 2, Theta = 7 < 12.
    # Theta = 7: client 3 would end at 12, not before 12: refused.
    ctx = context(
        4,
        4,
        12.0,
        expected_duration=[4.0, 1.0, 6.0, 2.0],
        upload_duration=[2.0, 3.0, 1.0, 5.0],
    )
    selector = made(4, "packing")
    assert chosen_by(selector, ctx) == [0, 1, 2]
    ctx = context(
        4,
        4,
        12.001,
        expected_duration=[4.0, 1.0, 6.0, 2.0],
        upload_duration=[2.0, 3.0, 1.0, 5.0],
    )
    assert chosen_by(selector, ctx) == [0, 1, 2, 3]


def test_packing_by_hand_with_downloads():
    # T^d_S is the slowest download in S. t_UD = (1, 1, 1), t_UL = (1, 2, 1), down = (5, 1, 6).
    # Theta = 0, T^d = 0: increase (5 + 1 + 1, 1 + 2 + 1, 6 + 1 + 1) = (7, 4, 8): client 1,
    # Theta = 3, T^d = 1. Increase (4 + 1 + 0, -, 5 + 1 + 0): client 0, Theta = 4, T^d = 5, t = 9.
    # Client 2: T^d = 6, Theta = 5, t = 11.
    columns = {
        "expected_duration": [1.0, 1.0, 1.0],
        "upload_duration": [1.0, 2.0, 1.0],
        "download_duration": [5.0, 1.0, 6.0],
    }
    selector = made(3, "packing")
    assert chosen_by(selector, context(3, 3, 9.0, **columns)) == [1]
    assert chosen_by(selector, context(3, 3, 9.5, **columns)) == [0, 1]
    assert chosen_by(selector, context(3, 3, 11.0, **columns)) == [0, 1]
    assert chosen_by(selector, context(3, 3, 11.5, **columns)) == [0, 1, 2]


def test_packing_without_upload_times_packs_one_after_the_other():
    # Durations 1, 2, 3, 4 end to end: 1 + 2 + 3 = 6 < 7, and 10 is too long.
    ctx = context(4, 4, 7.0, expected_duration=[4.0, 3.0, 2.0, 1.0])
    assert chosen_by(made(4, "packing"), ctx) == [1, 2, 3]


@pytest.mark.parametrize("with_upload", [False, True])
@pytest.mark.parametrize("with_download", [False, True])
def test_packing_matches_algorithm_3(with_upload, with_download):
    rng = np.random.default_rng([int(with_upload), int(with_download)])
    sizes_seen = set()
    for t in range(250):
        n = int(rng.integers(1, 16))
        m = int(rng.integers(1, n + 3))
        update = rng.gamma(1.0, 5.0, n)
        upload = rng.gamma(1.0, 2.0, n)
        download = rng.gamma(1.0, 2.0, n)
        available = rng.random(n) < 0.85
        deadline = float(rng.uniform(1.0, 40.0))
        pool = np.flatnonzero(available).tolist()
        columns = {"expected_duration": update}
        if with_upload:
            columns["upload_duration"] = upload
        if with_download:
            columns["download_duration"] = download
        ctx = context(n, m, deadline, available, t, **columns)
        expected = nishio_algorithm_3(
            pool,
            update.tolist() if with_upload else [0.0] * n,
            upload.tolist() if with_upload else update.tolist(),
            download.tolist() if with_download else [0.0] * n,
            deadline,
            m,
        )
        sizes_seen.add(len(expected))
        assert chosen_by(made(n, "packing"), ctx) == sorted(expected)
    assert len(sizes_seen) > 4


def test_packing_passes_over_a_client_that_does_not_fit():
    # Client 0 uploads fastest, but its download of 9 ends after the deadline. 1 and 2 end at
    # T^d + Theta = 1 + 2 + 2.5 = 5.5 < 6.
    columns = {
        "expected_duration": [0.0, 0.0, 0.0],
        "upload_duration": [1.0, 2.0, 2.5],
        "download_duration": [9.0, 1.0, 1.0],
    }
    assert chosen_by(made(3, "packing"), context(3, 3, 6.0, **columns)) == [1, 2]


@pytest.mark.slow
def test_packing_ties_have_no_index_bias():
    trials, counts, rng = 3000, np.zeros(4), np.random.default_rng(4)
    selector = made(4, "packing")
    ctx = context(4, 4, 4.5, expected_duration=[2.0, 2.0, 2.0, 2.0])
    for _ in range(trials):
        chosen = selector.select(ctx, rng).clients
        assert chosen.size == 2
        counts[chosen] += 1
    assert_frequencies(counts, trials, [0.5] * 4)


def test_packing_unknown_times_never_fit_a_deadline():
    ctx = context(3, 3, 100.0, expected_duration=[NAN, 1.0, 2.0])
    assert chosen_by(made(3, "packing"), ctx) == [1, 2]
    columns = {"expected_duration": [1.0, 1.0], "upload_duration": [NAN, 1.0]}
    assert chosen_by(made(2, "packing"), context(2, 2, 50.0, **columns)) == [1]


def test_packing_zero_times_and_no_deadline():
    ctx = context(4, 3, 1.0, expected_duration=[0.0, 0.0, 0.0, 0.0])
    assert len(chosen_by(made(4, "packing"), ctx)) == 3
    ctx = context(4, 3, expected_duration=[1.0, 2.0, 3.0, 4.0])
    assert chosen_by(made(4, "packing"), ctx) == [0, 1, 2]


def test_impossible_transfer_times_are_refused():
    columns = {"expected_duration": [1.0, 1.0], "upload_duration": [-5.0, 1.0]}
    with pytest.raises(turnout.InvalidInput, match="upload_duration"):
        chosen_by(made(2, "packing"), context(2, 2, 50.0, **columns))


# --- all readings ---


@pytest.mark.parametrize("by", READINGS)
def test_integer_columns_and_nobody_available(by):
    column = {COLUMN[by]: np.array([1, 0, 1])}
    nobody = context(3, 2, 5.0, [False] * 3, **column)
    assert chosen_by(made(3, by), nobody) == []
    assert len(chosen_by(made(3, by), context(3, 2, 5.0, **column))) == 2


@pytest.mark.parametrize("by", READINGS)
def test_missing_column_names_it(by):
    with pytest.raises(turnout.MissingColumn, match=COLUMN[by]):
        chosen_by(made(3, by), context(3, 2, 5.0))


@pytest.mark.parametrize("by", READINGS)
def test_reports_of_clients_change_nothing(by):
    selector = made(3, by)
    before = selector.state()
    selector.observe(turnout.Selection(0, [0, 1]), turnout.Outcome([0, 3], [1.0, NAN]))
    after = selector.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("by", ["success", "", None, 3])
def test_bad_reading(by):
    with pytest.raises(turnout.InvalidInput, match=r"by must be one of .*packing"):
        turnout.make("fedcs", by=by)


@pytest.mark.parametrize("deadline", [0.0, -1.0, NAN, "3", True])
def test_bad_deadline(deadline):
    with pytest.raises(turnout.InvalidInput, match="deadline"):
        turnout.make("fedcs", by="packing", deadline=deadline)


@pytest.mark.slow
def test_reported_probability_is_the_frequency():
    rng, trials = np.random.default_rng(8), 4000
    for by, column in [("success-rate", [0.5, 0.9, 0.5]), ("expected-duration", [2.0, 1.0, 2.0])]:
        selector = made(3, by)
        ctx = context(3, 2, 9.0, **{COLUMN[by]: column})
        counts, stated = np.zeros(3), np.zeros(3)
        for _ in range(trials):
            selection = selector.select(ctx, rng)
            counts[selection.clients] += 1
            stated[selection.clients] = selection.probability
        assert_frequencies(counts, trials, stated)
    selection = made(3, "packing").select(context(3, 2, 9.0, expected_duration=[1.0] * 3), rng)
    assert selection.probability is None


@pytest.mark.slow
def test_packing_among_the_clients_that_were_asked():
    # 10 clients, C = 0.3: three are asked; the deadline admits all of them.
    n, trials, counts = 10, 3000, np.zeros(10)
    selector, rng = made(n, "packing", request=0.3), np.random.default_rng(0)
    ctx = context(n, n, 1e6, expected_duration=np.arange(1.0, 11.0))
    for _ in range(trials):
        chosen = selector.select(ctx, rng).clients
        assert chosen.size == 3
        counts[chosen] += 1
    assert_frequencies(counts, trials, [0.3] * n)  # speed plays no part in who is asked


def test_packing_among_the_asked_keeps_the_deadline_and_the_pool():
    n, available = 100, np.arange(100) % 2 == 0
    duration = np.arange(1.0, 101.0)
    for request, n_asked in ((0.07, 7), (0.061, 7), (1.0, 50)):
        selector = made(n, "packing", request=request)
        ctx = context(n, n, 60.0, available, expected_duration=duration)
        for seed in range(20):
            chosen = np.array(chosen_by(selector, ctx, seed))
            assert chosen.size <= n_asked
            assert duration[chosen].sum() < 60.0
            assert available[chosen].all()
    everybody = made(n, "packing")
    assert chosen_by(made(n, "packing", request=1.0), ctx) == chosen_by(everybody, ctx)


def test_only_packing_requests_resources():
    for request in (0.0, 1.5, NAN):
        with pytest.raises(turnout.InvalidInput, match="request"):
            turnout.make("fedcs", by="packing", request=request)
    with pytest.raises(turnout.InvalidInput, match=r"request.*packing"):
        turnout.make("fedcs", by="success-rate", request=0.5)


def test_chances_are_reported_where_they_are_known():
    columns = {"success_rate": [0.5, 0.9, 0.5], "expected_duration": [1.0, 2.0, 2.0]}
    for by, chance in [("success-rate", 0.5), ("expected-duration", 0.5), ("packing", None)]:
        selector = made(3, by)
        selection = selector.select(context(3, 2, 9.0, **columns), np.random.default_rng(0))
        assert selector.reports_probability == (chance is not None)
        told = selection.probability
        assert (None if told is None else sorted(told)) == (chance and [chance, 1.0])
