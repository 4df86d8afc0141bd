from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import turnout
from tests.references.oort_slow import successive_inclusion

NAN = math.nan
POLLING = ["pow-d", "cpow-d"]
ALL = ["pow-d", "cpow-d", "rpow-d"]


def context(sizes, m, round=0, available=None, **more):
    n = len(sizes)
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {"num_samples": np.array(sizes)}
    return turnout.RoundContext(round, m, available, columns=columns, **more)


def made(name, n, **parameters):
    selector = turnout.make(name, **parameters)
    selector.reset(n)
    return selector


def feed(selector, round, clients, loss, status=None):
    status = [0] * len(clients) if status is None else status
    outcome = turnout.Outcome(status, [1.0] * len(clients), {"loss": loss})
    selector.observe(turnout.Selection(round, np.array(clients)), outcome)


def assert_frequencies(counts, trials, probability):
    p = np.array(probability)
    margin = 5 * np.sqrt(trials * p * (1 - p))
    assert np.all(np.abs(np.array(counts) - trials * p) <= margin + 1e-9), (counts, trials * p)


def candidate_set_law(weights, d):
    """Probability of each set of d candidates under successive draws in proportion to size."""
    law = {}
    for order in itertools.permutations(range(len(weights)), d):
        chance, left = 1.0, sum(weights)
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        law[frozenset(order)] = law.get(frozenset(order), 0.0) + chance
    return law


@pytest.mark.parametrize("name", POLLING)
def test_one_round_by_hand(name):
    # d = 4 polled, answers 0.3, 0.9, nothing, 0.5: m = 2 takes the clients of 0.9 and 0.5.
    selector = made(name, 6, candidates=4)
    ctx = context([1.0] * 6, 2, polled=[5, 1, 4, 2], polled_loss=[0.3, 0.9, NAN, 0.5])
    assert selector.select(ctx, np.random.default_rng(0)).clients.tolist() == [1, 2]
    # m = 4 takes all four, the silent one included.
    ctx = context([1.0] * 6, 4, polled=[5, 1, 4, 2], polled_loss=[0.3, 0.9, NAN, 0.5])
    assert selector.select(ctx, np.random.default_rng(0)).clients.tolist() == [1, 2, 4, 5]
    # A loss of 0 is an answer and ranks before silence.
    ctx = context([1.0] * 6, 1, polled=[0, 3], polled_loss=[NAN, 0.0])
    for seed in range(30):
        assert selector.select(ctx, np.random.default_rng(seed)).clients.tolist() == [3]


@pytest.mark.parametrize("name", POLLING)
def test_select_matches_slow_ranking(name):
    rng = np.random.default_rng(5)
    for t in range(200):
        n = int(rng.integers(1, 12))
        m = int(rng.integers(1, n + 1))
        d = int(rng.integers(m, n + 3))
        available = rng.random(n) < 0.8
        available[rng.integers(n)] = True
        selector = made(name, n, candidates=d)
        sizes = rng.integers(1, 100, n).astype(float)
        ctx = context(sizes, m, t, available)
        polled = selector.poll(ctx, rng)
        pool = np.flatnonzero(available)
        assert len(set(polled.tolist())) == polled.size == min(d, pool.size)
        assert set(polled.tolist()) <= set(pool.tolist())
        loss = np.where(rng.random(polled.size) < 0.8, rng.random(polled.size), NAN)
        ctx = context(sizes, m, t, available, polled=polled, polled_loss=loss)
        answered = sorted(
            (k for k in range(polled.size) if not math.isnan(loss[k])), key=lambda k: -loss[k]
        )
        silent = {int(polled[k]) for k in range(polled.size) if math.isnan(loss[k])}
        size = min(m, pool.size)
        certain = {int(polled[k]) for k in answered[:size]}
        chosen = set(selector.select(ctx, rng).clients.tolist())
        assert len(chosen) == size
        assert certain <= chosen
        assert chosen - certain <= silent


@pytest.mark.slow
@pytest.mark.parametrize("name", POLLING)
def test_candidates_follow_successive_sampling(name):
    sizes, d, trials = [1.0, 2.0, 3.0, 10.0], 2, 8000
    selector = made(name, 4, candidates=d)
    ctx = context(sizes, 1)
    law = candidate_set_law(sizes, d)
    rng = np.random.default_rng(11)
    seen = dict.fromkeys(law, 0)
    for _ in range(trials):
        seen[frozenset(selector.poll(ctx, rng).tolist())] += 1
    assert_frequencies([seen[key] for key in law], trials, [law[key] for key in law])


def test_unknown_and_zero_sizes_of_candidates():
    # NaN counts as the mean of the known, (2 + 4 + 0) / 3 = 2; 0 is drawn only when needed.
    sizes, trials = [2.0, 4.0, NAN, 0.0], 4000
    selector, rng = made("pow-d", 4, candidates=1), np.random.default_rng(2)
    counts = np.zeros(4)
    for _ in range(trials):
        counts[selector.poll(context(sizes, 1), rng)] += 1
    assert_frequencies(counts, trials, successive_inclusion([2.0, 4.0, 2.0, 0.0], 1))
    everyone = made("pow-d", 4, candidates=4).poll(context(sizes, 1), rng)
    assert sorted(everyone.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", POLLING)
def test_default_is_twice_the_cohort(name):
    selector = made(name, 20)
    rng = np.random.default_rng(0)
    assert selector.poll(context([1.0] * 20, 3), rng).size == 6
    assert selector.poll(context([1.0] * 20, 15), rng).size == 20


@pytest.mark.slow
@pytest.mark.parametrize("name", POLLING)
def test_ties_have_no_index_bias(name):
    selector, trials = made(name, 5, candidates=5), 4000
    rng = np.random.default_rng(17)
    counts = np.zeros(5)
    ctx = context([1.0] * 5, 2, polled=[0, 1, 2, 3, 4], polled_loss=[0.5] * 5)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    assert_frequencies(counts, trials, [2 / 5] * 5)
    counts[:] = 0
    ctx = context([1.0] * 5, 2, polled=[0, 1, 2, 3, 4], polled_loss=[NAN] * 5)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    assert_frequencies(counts, trials, [2 / 5] * 5)


@pytest.mark.parametrize("name", POLLING)
def test_select_without_polling(name):
    selector = made(name, 3)
    with pytest.raises(turnout.MissingPoll, match=r"polled is None.*poll\(ctx, rng\)"):
        selector.select(context([1.0] * 3, 1), np.random.default_rng(0))


@pytest.mark.parametrize("name", ALL)
def test_fewer_candidates_than_places(name):
    selector, rng = made(name, 6, candidates=2), np.random.default_rng(0)
    ask = selector.poll if name in POLLING else selector.select
    with pytest.raises(turnout.InvalidInput, match=r"candidates.*2.*3|candidates.*3.*2"):
        ask(context([1.0] * 6, 3), rng)
    # A wrong setting is an error in every round, also when few are available.
    two = [True, True, False, False, False, False]
    with pytest.raises(turnout.InvalidInput, match="candidates"):
        ask(context([1.0] * 6, 3, available=two), rng)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("candidates", [0, -1, 2.5, "3", True])
def test_bad_candidates(name, candidates):
    with pytest.raises(turnout.InvalidInput, match="candidates"):
        turnout.make(name, candidates=candidates)


@pytest.mark.parametrize("name", ALL)
def test_missing_column_names_it(name):
    selector = made(name, 3)
    bare = turnout.RoundContext(0, 1, np.ones(3, dtype=bool))
    for method in (selector.poll, selector.select) if name in POLLING else (selector.select,):
        with pytest.raises(turnout.MissingColumn, match="num_samples"):
            method(bare, np.random.default_rng(0))


@pytest.mark.parametrize("name", ALL)
def test_nobody_available(name):
    selector, rng = made(name, 3), np.random.default_rng(0)
    nobody = [False] * 3
    ctx = context([1.0] * 3, 2, available=nobody)
    if name in POLLING:
        polled = selector.poll(ctx, rng)
        assert polled.size == 0
        ctx = context([1.0] * 3, 2, available=nobody, polled=polled, polled_loss=[])
    assert selector.select(ctx, rng).clients.size == 0


def test_what_is_polled_on():
    assert turnout.make("pow-d").poll_data == "all"
    assert turnout.make("cpow-d").poll_data == "mini-batch"
    selector = made("rpow-d", 4)
    assert selector.poll(context([1.0] * 4, 2), np.random.default_rng(0)) is None


def test_rpow_d_by_hand():
    # d = n = 4, m = 1. Round 0 feeds clients 0, 1: losses 0.4, 0.8. 2 and 3 never took part.
    selector, rng = made("rpow-d", 4, candidates=4), np.random.default_rng(0)
    feed(selector, 0, [0, 1], [0.4, 0.8])
    ctx = context([1.0] * 4, 2, 1)
    assert selector.select(ctx, rng).clients.tolist() == [2, 3]
    # Round 1: 2 reports 0.6, 3 stays silent. Order 1 (0.8), 2 (0.6), 0 (0.4), 3 (nothing).
    feed(selector, 1, [2, 3], [0.6, NAN], [0, 3])
    for m, expected in [(1, [1]), (2, [1, 2]), (3, [0, 1, 2])]:
        assert selector.select(context([1.0] * 4, m, 2), rng).clients.tolist() == expected
    # Round 2: 1 falls to 0.5 and 0 fails, which leaves it at 0.4. Order 2, 1, 0, 3.
    feed(selector, 2, [0, 1], [NAN, 0.5], [2, 0])
    for m, expected in [(1, [2]), (2, [1, 2]), (3, [0, 1, 2])]:
        assert selector.select(context([1.0] * 4, m, 3), rng).clients.tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_rpow_d_matches_slow_last_losses(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 10))
    m = int(rng.integers(1, n + 1))
    selector = made("rpow-d", n, candidates=n, patience=None)
    last: dict[int, float] = {}  # absent: never took part; None of them reported: -1
    sizes = rng.integers(1, 50, n).astype(float)
    for t in range(60):
        available = rng.random(n) < 0.8
        pool = np.flatnonzero(available).tolist()
        for size in range(1, len(pool) + 1):
            chosen = selector.select(context(sizes, size, t, available), rng).clients.tolist()
            assert len(chosen) == size
            value = {i: last.get(i, math.inf) for i in pool}
            rest = [value[i] for i in pool if i not in chosen]
            assert not rest or min(value[i] for i in chosen) >= max(rest)
        chosen = selector.select(context(sizes, m, t, available), rng).clients.tolist()
        loss = [NAN if rng.random() < 0.3 else float(rng.random()) for _ in chosen]
        feed(selector, t, chosen, loss, [2 if math.isnan(x) else 0 for x in loss])
        for i, x in zip(chosen, loss, strict=True):
            last[i] = last.get(i, -1.0) if math.isnan(x) else x


@pytest.mark.slow
def test_rpow_d_draws_candidates_by_size():
    # One place, three candidates of four: i wins where its loss is the highest of the drawn.
    sizes, losses, trials = [5.0, 1.0, 2.0, 4.0], [0.1, 0.4, 0.3, 0.2], 8000
    selector, rng = made("rpow-d", 4, candidates=3), np.random.default_rng(9)
    feed(selector, 0, [0, 1, 2, 3], losses)
    expected = [0.0] * 4
    for members, chance in candidate_set_law(sizes, 3).items():
        expected[max(members, key=lambda i: losses[i])] += chance
    counts = np.zeros(4)
    ctx = context(sizes, 1, 1)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    assert_frequencies(counts, trials, expected)


def test_rpow_d_silent_clients_are_not_chosen_for_ever():
    n, m = 8, 2
    selector, rng = made("rpow-d", n, candidates=n), np.random.default_rng(1)
    times = np.zeros(n)
    for t in range(200):
        chosen = selector.select(context([1.0] * n, m, t), rng).clients
        times[chosen] += 1
        loss = np.where(chosen >= 6, NAN, rng.random(m) + 0.1)
        feed(selector, t, chosen, loss, np.where(chosen >= 6, 3, 0))
    # Everybody once as never chosen; afterwards six reporters always rank before the two.
    assert times[6:].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_rpow_d_ties_have_no_index_bias():
    selector, trials = made("rpow-d", 5, candidates=5), 4000
    rng = np.random.default_rng(17)
    feed(selector, 0, [0, 1, 2, 3, 4], [0.5, 0.5, 0.9, 0.5, 0.5])
    counts = np.zeros(5)
    ctx = context([1.0] * 5, 2, 1)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    assert_frequencies(counts, trials, [1 / 4, 1 / 4, 1.0, 1 / 4, 1 / 4])


def test_rpow_d_bad_input_leaves_the_state_unchanged():
    selector = made("rpow-d", 3)
    feed(selector, 0, [0, 2], [1.0, 2.0])
    before = selector.state()
    with pytest.raises(turnout.InvalidInput, match="status"):
        selector.observe(turnout.Selection(1, [0, 1]), turnout.Outcome([0], [1.0]))
    with pytest.raises(turnout.InvalidInput, match="clients"):
        feed(selector, 1, [1, 3], [1.0, 1.0])
    after = selector.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_rpow_d_largest_report_ranks_below_never_chosen():
    selector = made("rpow-d", 3, candidates=3)
    feed(selector, 0, [0, 1], [1e30, 1e30])
    assert selector.select(context([1.0] * 3, 1, 1), np.random.default_rng(0)).clients[0] == 2


def test_rpow_d_metric_not_reported_at_all():
    selector = made("rpow-d", 3)
    selector.observe(turnout.Selection(0, [0, 1, 2]), turnout.Outcome([0, 0, 0], [1.0] * 3))
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    assert selector.select(context([1.0] * 3, 2, 1), np.random.default_rng(0)).clients.size == 2


def test_rpow_d_late_feedback_does_not_undo_newer():
    selector = made("rpow-d", 3, candidates=3)
    feed(selector, 5, [0, 1, 2], [0.9, 0.5, 0.1])
    feed(selector, 3, [2], [2.0])  # older than what is known: the last participation was round 5
    chosen = selector.select(context([1.0] * 3, 1, 6), np.random.default_rng(0)).clients
    assert chosen.tolist() == [0]
