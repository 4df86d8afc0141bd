from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import turnout
from tests.references.ucb_cs_slow import SlowUCBCS

NAN = math.nan


def context(sizes, m, round=0, available=None):
    n = len(sizes)
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    return turnout.RoundContext(round, m, available, columns={"num_samples": np.array(sizes)})


def feed(selector, round, clients, loss, std, status=None):
    selection = turnout.Selection(round, np.array(clients))
    status = [0] * len(clients) if status is None else status
    outcome = turnout.Outcome(status, [1.0] * len(clients), {"loss": loss, "loss_std": std})
    selector.observe(selection, outcome)


def made(n, **parameters):
    selector = turnout.make("ucb-cs", **parameters)
    selector.reset(n)
    return selector


def bonus(selector, k):
    """U_t of Eq. (7), from the state named under Symbols."""
    log_t = math.log(float(selector.rounds_))
    return math.sqrt(2.0 * float(selector.spread_) ** 2 * log_t / selector.count_[k])


def ranking(selector, sizes, round, available=None, seed=0):
    """What ``select`` takes for every cohort size: the whole order of the indices."""
    pool = len(sizes) if available is None else int(np.sum(available))
    sets = []
    for m in range(1, pool + 1):
        chosen = selector.select(
            context(sizes, m, round, available), np.random.default_rng([seed, m])
        ).clients
        sets.append(chosen)
    return sets


def assert_sets_are_tops(sets, reference):
    """Each set of size m must hold m largest reference indices, up to rounding."""
    for chosen in sets:
        inside = min(reference[int(i)] for i in chosen)
        outside = [value for i, value in reference.items() if i not in set(chosen.tolist())]
        if outside and not math.isinf(inside):
            assert inside >= max(outside) - 1e-9 * max(1.0, abs(inside))


def test_three_rounds_by_hand():
    # gamma = 0.5, p = (1/4, 1/4, 1/2).
    sizes = [10.0, 10.0, 20.0]
    selector = made(3, discount=0.5)
    # Round 0: client 0, loss 2, sigma 1. N = (1,0,0), T = 1, log T = 0: A_0 = 0.25 * 2 = 0.5.
    feed(selector, 0, [0], [2.0], [1.0])
    assert selector.mean_loss_[0] == 2.0
    assert selector.count_.tolist() == [1.0, 0.0, 0.0]
    assert float(selector.rounds_) == 1.0
    assert bonus(selector, 0) == 0.0
    # The never chosen 1 and 2 come before client 0.
    assert selector.select(context(sizes, 2, 1), np.random.default_rng(0)).clients.tolist() == [
        1,
        2,
    ]
    # Round 1: client 1, loss 1, sigma 0.5. N = (0.5, 1, 0), L_0 = 1, T = 1.5, log T = 0.405465.
    feed(selector, 1, [1], [1.0], [0.5])
    assert selector.count_.tolist() == [0.5, 1.0, 0.0]
    assert selector.mean_loss_[:2].tolist() == [2.0, 1.0]
    assert float(selector.rounds_) == 1.5
    # U_0 = sqrt(2 * 0.25 * 0.405465 / 0.5) = 0.636761, U_1 = sqrt(0.5 * 0.405465) = 0.450258.
    assert bonus(selector, 0) == pytest.approx(0.636761, abs=1e-6)
    assert bonus(selector, 1) == pytest.approx(0.450258, abs=1e-6)
    assert selector.select(context(sizes, 1, 2), np.random.default_rng(0)).clients.tolist() == [2]
    # Round 2: client 2, loss 0.5, sigma 0.4. N = (0.25, 0.5, 1), T = 1.75, log T = 0.559616.
    feed(selector, 2, [2], [0.5], [0.4])
    assert selector.count_.tolist() == [0.25, 0.5, 1.0]
    assert float(selector.rounds_) == 1.75
    # U = sqrt(0.32 * 0.559616 / N) = (0.846350, 0.598460, 0.423175).
    expected = [0.846350, 0.598460, 0.423175]
    assert [bonus(selector, k) for k in range(3)] == pytest.approx(expected, abs=1e-6)
    # A = (0.25 * 2.846350, 0.25 * 1.598460, 0.5 * 0.923175) = (0.711587, 0.399615, 0.461588).
    first = selector.select(context(sizes, 1, 3), np.random.default_rng(0))
    both = selector.select(context(sizes, 2, 3), np.random.default_rng(0))
    assert first.clients.tolist() == [0]
    assert both.clients.tolist() == [0, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("discount", [1.0, 0.7, 0.2])
def test_matches_slow_history_for_all_clients(seed, discount):
    rng = np.random.default_rng([seed, int(10 * discount)])
    n = int(rng.integers(3, 12))
    m = int(rng.integers(1, n + 1))
    sizes = rng.integers(1, 500, n).astype(float)
    selector, slow = made(n, discount=discount, patience=None), SlowUCBCS(n, discount)
    for t in range(55):
        available = rng.random(n) < 0.8
        reference = {k: slow.index(k, sizes.tolist()) for k in np.flatnonzero(available).tolist()}
        everyone = {k: slow.index(k, sizes.tolist()) for k in range(n)}
        assert_sets_are_tops(ranking(selector, sizes, t, seed=t), everyone)
        assert_sets_are_tops(ranking(selector, sizes, t, available, seed=t), reference)
        chosen = selector.select(context(sizes, m, t, available), rng).clients
        if t % 10 == 3:  # a round decided by somebody else
            chosen = np.sort(rng.choice(n, min(m, n), replace=False))
        s = chosen.size
        status = rng.choice(4, s, p=[0.6, 0.1, 0.2, 0.1])
        answered = (status <= 1) & (rng.random(s) < 0.9)
        loss = np.where(answered, rng.gamma(2.0, 1.0, s), NAN)
        std = np.where(answered & (rng.random(s) < 0.8), rng.random(s), NAN)
        feed(selector, t, chosen, loss, std, status)
        slow.observe(chosen.tolist(), loss.tolist(), std.tolist())
        assert float(selector.rounds_) == pytest.approx(slow.discounted_rounds(), rel=1e-12)
        assert float(selector.spread_) == slow.sigma
        for k in range(n):
            assert selector.count_[k] == pytest.approx(slow.discounted_count(k), rel=1e-12)
            if slow.ever_chosen(k):
                assert selector.mean_loss_[k] == pytest.approx(slow.mean(k), rel=1e-9)


def test_unknown_size_counts_as_the_mean_of_all_clients():
    # p_k = D_k / sum over all K of D: who is available now has no part in it.
    # Mean of the known sizes = (10 + 20 + 90) / 3 = 40, losses 1, sigma 0: A ~ (40, 10, 20, 90).
    selector = made(4)
    feed(selector, 0, [0, 1, 2, 3], [1.0] * 4, [0.0] * 4)
    sizes = [NAN, 10.0, 20.0, 90.0]
    rng = np.random.default_rng(0)
    assert selector.select(context(sizes, 2, 1), rng).clients.tolist() == [0, 3]
    # Without client 3 the unknown one still counts as 40 and stays ahead of client 2.
    present = [True, True, True, False]
    assert selector.select(context(sizes, 1, 1, present), rng).clients.tolist() == [0]


@pytest.mark.slow
def test_a_client_without_data_has_index_zero():
    # p_k = 0 in Eq. (4). Its count decays through the subnormal numbers on the way to 0, where
    # the bonus overflows: 0 * inf must not become NaN.
    selector, rng = made(3), np.random.default_rng(0)
    sizes = [0.0, 1.0, 1.0]
    feed(selector, 0, [0, 1, 2], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5])
    for t in range(1, 2200):
        known = selector.count_[0] > 0.0
        chosen = selector.select(context(sizes, 1, t), rng).clients
        assert not (known and chosen[0] == 0)
        feed(selector, t, chosen, [1.0], [0.5])


def test_bonus_of_a_neglected_client_grows_until_it_is_chosen():
    selector = made(3, discount=0.9)
    for k in range(3):
        feed(selector, k, [k], [0.1 if k == 0 else 1.0], [0.5])
    bonuses, chosen_at = [bonus(selector, 0)], None
    for t in range(3, 60):
        chosen = selector.select(context([1.0, 1.0, 1.0], 1, t), np.random.default_rng(t)).clients
        if chosen[0] == 0:
            chosen_at = t
            break
        feed(selector, t, chosen, [1.0], [0.5])
        bonuses.append(bonus(selector, 0))
    assert chosen_at is not None
    assert len(bonuses) > 2
    assert all(later > earlier for earlier, later in itertools.pairwise(bonuses))


def test_never_chosen_come_first_whatever_their_size():
    selector = made(5)
    feed(selector, 0, [3, 4], [1e6, 1e6], [10.0, 10.0])
    sizes = [1.0, 1.0, 1.0, 1e6, 1e6]
    chosen = selector.select(context(sizes, 3, 1), np.random.default_rng(0)).clients
    assert chosen.tolist() == [0, 1, 2]


@pytest.mark.slow
def test_ties_have_no_index_bias():
    selector, n, m, trials = made(6), 6, 2, 4000
    rng = np.random.default_rng(17)
    counts = np.zeros(n)
    ctx = context([5.0] * n, m)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    p = m / n
    assert np.all(np.abs(counts - trials * p) <= 5 * math.sqrt(trials * p * (1 - p)))


@pytest.mark.slow
def test_ties_between_equal_finite_indices_have_no_bias():
    selector, trials = made(4), 4000
    rng = np.random.default_rng(17)
    feed(selector, 0, [0, 1, 2, 3], [1.0, 2.0, 1.0, 1.0], [0.1] * 4)
    counts = np.zeros(4)
    ctx = context([1.0] * 4, 2, 1)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    assert counts[1] == trials
    p = 1 / 3
    assert np.all(np.abs(counts[[0, 2, 3]] - trials * p) <= 5 * math.sqrt(trials * p * (1 - p)))


def test_a_client_that_never_answers_is_not_chosen_for_ever():
    n, m, rounds = 10, 2, 200
    selector, rng = made(n), np.random.default_rng(3)
    times = np.zeros(n)
    for t in range(rounds):
        chosen = selector.select(context([1.0] * n, m, t), rng).clients
        times[chosen] += 1
        silent = chosen == 7
        loss = np.where(silent, NAN, 1.0 + rng.random(m))
        std = np.where(silent, NAN, 0.3)
        feed(selector, t, chosen, loss, std, np.where(silent, 3, 0))
    # Its mean is 0 and everybody else's is at least 1, so it gets less than an equal share.
    assert 1 <= times[7] < rounds * m / n
    assert times[7] < np.delete(times, 7).min()


def test_a_client_that_stops_answering_keeps_its_mean():
    selector = made(2, discount=0.5)
    feed(selector, 0, [0, 1], [4.0, 1.0], [0.1, 0.1])
    feed(selector, 1, [0], [NAN], [NAN], [2])
    assert selector.mean_loss_[0] == 4.0
    assert selector.count_.tolist() == [1.5, 0.5]
    assert float(selector.spread_) == 0.1


def test_round_without_any_answer_or_any_client():
    selector = made(3)
    feed(selector, 0, [0, 1], [NAN, NAN], [NAN, NAN], [3, 3])
    empty = turnout.Selection(1, np.array([], dtype=int))
    selector.observe(empty, turnout.Outcome([], []))
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    nobody = context([1.0] * 3, 2, 2, [False] * 3)
    assert selector.select(nobody, np.random.default_rng(0)).clients.size == 0
    chosen = selector.select(context([1.0] * 3, 1, 2), np.random.default_rng(0)).clients
    assert chosen.tolist() == [2]


def test_metrics_not_reported_at_all():
    selector = made(3)
    selection = selector.select(context([1.0] * 3, 3), np.random.default_rng(0))
    selector.observe(selection, turnout.Outcome([0, 0, 0], [1.0] * 3))
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    assert selector.select(context([1.0] * 3, 2, 1), np.random.default_rng(0)).clients.size == 2


def test_fewer_available_than_asked():
    selector = made(5)
    only = context([1.0] * 5, 4, 0, [False, True, False, False, True])
    assert selector.select(only, np.random.default_rng(0)).clients.tolist() == [1, 4]


@pytest.mark.slow
def test_long_run_stays_finite_and_brings_back_the_absent():
    n, m = 6, 2
    selector, rng = made(n, discount=0.7), np.random.default_rng(1)
    sizes = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 1.0])
    back = 4500  # 0.7^4490 is far below the smallest double
    for t in range(back + 1):
        available = np.ones(n, dtype=bool)
        available[5] = t < 10 or t >= back
        chosen = selector.select(context(sizes, m, t, available), rng).clients
        feed(selector, t, chosen, rng.random(m) + 0.1, rng.random(m))
    assert 5 in chosen  # the longest neglected has the largest bonus
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())


@pytest.mark.parametrize("discount", [0.0, 1e-300, 1.0])
def test_border_discounts_run_without_warnings(discount):
    n, m = 4, 2
    selector, rng = made(n, discount=discount), np.random.default_rng(1)
    times = np.zeros(n)
    for t in range(60):
        chosen = selector.select(context([1.0] * n, m, t), rng).clients
        assert chosen.size == m
        times[chosen] += 1
        feed(selector, t, chosen, rng.random(m), rng.random(m))
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    if discount < 1.0:
        assert times.min() > 0


def test_gamma_zero_uses_the_latest_loss_only():
    # Sec. III: "when gamma = 0 only the latest local loss is used".
    selector = made(2, discount=0.0)
    feed(selector, 0, [0, 1], [9.0, 1.0], [0.0, 0.0])
    feed(selector, 1, [0, 1], [1.0, 2.0], [0.0, 0.0])
    assert selector.mean_loss_.tolist() == [1.0, 2.0]
    assert selector.select(context([1.0] * 2, 1, 2), np.random.default_rng(0)).clients[0] == 1


def printed_rounds(sizes, choices, discount):
    """Alg. 1 as printed: play these cohorts, return the selector and the list A before each."""
    n = len(sizes)
    selector, slow = made(n, discount=discount, stored_index=True), SlowUCBCS(n, discount)
    stored, rng = dict.fromkeys(range(n), math.inf), np.random.default_rng(0)
    for t, clients in enumerate(choices):
        yield selector, dict(stored)
        available = np.isin(np.arange(n), clients)
        selection = selector.select(context(sizes, len(clients), t, available), rng)
        loss, std = rng.random(len(clients)) + 0.5, rng.random(len(clients))
        metrics = {"loss": loss, "loss_std": std}
        outcome = turnout.Outcome([0] * len(clients), [1.0] * len(clients), metrics)
        stored = {k: discount * value if value < math.inf else value for k, value in stored.items()}
        selector.observe(selection, outcome)
        slow.observe(list(clients), loss.tolist(), std.tolist())
        for k in clients:  # lines 5-6: only those who report are computed anew
            stored[k] = slow.index(k, list(sizes))
    yield selector, dict(stored)


@pytest.mark.parametrize("discount", [0.0, 0.7, 1.0])
def test_algorithm_1_as_printed_discounts_the_stored_index(discount):
    rng = np.random.default_rng(5)
    choices = [sorted(rng.choice(5, 2, replace=False).tolist()) for _ in range(30)]
    for t, (selector, stored) in enumerate(
        printed_rounds([9.0, 3.0, 5.0, 1.0, 2.0], choices, discount)
    ):
        assert_sets_are_tops(ranking(selector, [9.0, 3.0, 5.0, 1.0, 2.0], t), stored)
        finite = {k: value for k, value in stored.items() if value < math.inf}
        assert selector.index_[list(finite)] == pytest.approx(list(finite.values()), rel=1e-9)


def test_a_neglected_client_falls_back_as_printed_and_comes_back_in_equation_4():
    # Client 0 reports a high loss once; then only 1 and 2 are there for ten rounds.
    returned = {}
    for is_stored in (False, True):
        selector = made(3, discount=0.7, stored_index=is_stored)
        rng = np.random.default_rng(0)
        for t in range(12):
            available = [t == 0, t > 0, t > 0]
            selection = selector.select(context([1.0] * 3, 2, t, available), rng)
            s = selection.clients.size
            loss, std = np.where(selection.clients == 0, 2.0, 1.0), np.ones(s)
            metrics = {"loss": loss, "loss_std": std}
            selector.observe(selection, turnout.Outcome([0] * s, [1.0] * s, metrics))
        returned[is_stored] = selector.select(context([1.0] * 3, 1, 12), rng).clients.tolist()
    assert returned[False] == [0]
    assert returned[True] != [0]


@pytest.mark.parametrize("discount", [-0.1, 1.1, NAN, math.inf, "x", None, True])
def test_bad_discount(discount):
    with pytest.raises(turnout.InvalidInput, match="discount"):
        turnout.make("ucb-cs", discount=discount)


def test_bad_input_leaves_the_state_unchanged():
    selector = made(3)
    feed(selector, 0, [0, 2], [1.0, 2.0], [0.1, 0.2])
    before = selector.state()
    rng = np.random.default_rng(0)
    with pytest.raises(turnout.MissingColumn, match="num_samples"):
        selector.select(turnout.RoundContext(1, 1, np.ones(3, dtype=bool)), rng)
    with pytest.raises(turnout.InvalidInput, match="available"):
        selector.select(context([1.0] * 4, 1), rng)
    with pytest.raises(turnout.InvalidInput, match="status"):
        selector.observe(turnout.Selection(1, [0, 1]), turnout.Outcome([0], [1.0]))
    with pytest.raises(turnout.InvalidInput, match="clients"):
        feed(selector, 1, [3], [1.0], [0.1])
    after = selector.state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_huge_losses_stay_finite():
    selector = made(3, discount=1.0)
    for t in range(50):
        feed(selector, t, [0, 1], [1e30, 0.0], [1e30, 0.0])
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    assert selector.select(context([1e30] * 3, 2, 50), np.random.default_rng(0)).clients.size == 2


@pytest.mark.parametrize("count", [1.0, 5e-324])  # the bonus of a long forgotten client overflows
def test_clients_without_data_come_last(count):
    selector = made(3)
    selector.count_, selector.mean_loss_ = np.array([count, 1.0, 1.0]), np.full(3, 0.1)
    selector.rounds_, selector.spread_ = 10.0, 0.1
    ctx = context([0.0, 10.0, 10.0], 2, round=10)
    assert selector.select(ctx, np.random.default_rng(0)).clients.tolist() == [1, 2]
