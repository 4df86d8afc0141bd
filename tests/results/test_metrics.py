import itertools
import math

import numpy as np
import pytest

from turnout import Status
from turnout.core.errors import InvalidInput
from turnout.results.metrics import (
    best_fixed_participation,
    cumulative_participation,
    gini_of_counts,
    jain_of_counts,
    jain_of_losses,
    lowest,
    minimum_rate,
    queue_backlog,
    regret,
    selection_counts,
    selection_matrix,
    success_ratio,
    theorem1_bound,
    theorem3_bound,
    wasted_time,
)

# three rounds of four clients: {0, 1}, nobody, {1, 2, 3}
CLIENTS, OFFSETS = np.array([0, 1, 1, 2, 3]), np.array([0, 2, 2, 5])


def test_participation_by_hand():
    completed = np.array([True, False, True, True, False])
    np.testing.assert_array_equal(cumulative_participation(completed, OFFSETS), [1, 1, 3])
    assert success_ratio(completed) == 0.6
    assert math.isnan(success_ratio(np.zeros(0, bool)))


def test_counts_by_hand():
    counts = selection_counts(CLIENTS, 5)
    np.testing.assert_array_equal(counts, [1, 2, 1, 1, 0])
    assert minimum_rate(counts, 3) == 0.0
    assert minimum_rate(counts[:4], 3) == pytest.approx(1 / 3)
    np.testing.assert_array_equal(
        selection_matrix(CLIENTS, OFFSETS, 4),
        [[True, True, False, False], [False] * 4, [False, True, True, True]],
    )


def test_jain_and_gini_known_values():
    assert jain_of_counts([5, 5, 5, 5]) == 1.0
    assert jain_of_counts([8, 0, 0, 0]) == 0.25
    assert jain_of_counts([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert jain_of_counts([0, 0]) == 1.0
    assert gini_of_counts([5, 5, 5, 5]) == 0.0
    assert gini_of_counts([0, 0, 8, 0]) == 0.75
    # mean absolute difference of 1, 2, 3 over twice the mean: (8 / 9) / 4
    assert gini_of_counts([3, 1, 2]) == pytest.approx(2 / 9)
    assert gini_of_counts([0, 0]) == 0.0


def test_jain_of_losses_is_eq_3_of_ucb_cs():
    losses = np.array([0.5, 1.0, 2.5])
    by_hand = 1.0 / 3.0 / np.sum((losses / losses.sum()) ** 2)
    assert jain_of_losses(losses) == pytest.approx(by_hand)
    assert jain_of_losses([1e-200, 1e-200]) == 1.0
    assert jain_of_losses([1e200, 0.0]) == 0.5


def test_best_fixed_allocation_by_hand():
    # k = 1 of 2, no quota: everything to the better client, client 1 from round 2 on
    success = np.array([[True, False], [False, True], [False, True]])
    np.testing.assert_allclose(best_fixed_participation(success, 1), [1.0, 1.0, 2.0])
    # quota 0.5: sigma = 1/4 each, 1/2 by q; p = (1/4, 3/4) after three rounds
    np.testing.assert_allclose(
        best_fixed_participation(success, 1, 0.5), [0.75, 1.0, 0.25 + 2 * 0.75]
    )
    # quota 1 is the uniform draw
    np.testing.assert_allclose(best_fixed_participation(success, 1, 1.0), [0.5, 1.0, 1.5])
    # k = 2 of 3: the two best at p = 1
    success = np.array([[True, True, False]] * 2 + [[False, True, True]])
    np.testing.assert_allclose(best_fixed_participation(success, 2), [2.0, 4.0, 5.0])


def test_best_fixed_allocation_against_enumeration():
    # q on a simplex with caps is best at a corner: give the cap to clients in some order
    rng = np.random.default_rng(3)
    success = rng.random((12, 5)) < [0.2, 0.5, 0.6, 0.8, 0.4]
    quota = np.where(np.arange(12) < 5, 0.3, 0.7)
    k, n = 3, 5
    sigma = quota * k / n
    best = -np.inf
    cap = np.min((1.0 - sigma) / (k - n * sigma))
    for order in itertools.permutations(range(n)):
        q, left = np.zeros(n), 1.0
        for i in order:
            q[i] = min(cap, left)
            left -= q[i]
        p = sigma[:, None] + (k - n * sigma)[:, None] * q
        assert p.max() <= 1.0 + 1e-12
        np.testing.assert_allclose(p.sum(axis=1), k)
        best = max(best, float(np.sum(p * success)))
    assert best_fixed_participation(success, k, quota)[-1] == pytest.approx(best)


def test_regret_of_uniform_against_the_best():
    # rates 1 and 0: the best fixed choice gains 1 a round, uniform 1/2
    success = np.tile([True, False], (10, 1))
    uniform = np.full((10, 2), 0.5)
    np.testing.assert_allclose(regret(success, uniform, 1), 0.5 * np.arange(1, 11))
    best = np.tile([True, False], (10, 1))
    np.testing.assert_allclose(regret(success, best, 1), 0.0)
    np.testing.assert_allclose(regret(success, uniform, 1, quota=1.0), 0.0)


def test_theorem1_by_hand():
    # k = 20, K = 100, quota 0.5, eta 0.5: 0.5 * 10 t + 200 ln 100
    np.testing.assert_allclose(
        theorem1_bound(0.5, 3, 20, 100, eta=0.5), 5.0 * np.arange(1, 4) + 200 * math.log(100)
    )
    # Eq. (24) at T = 4 with quotas 0, 0, 1, 1: 2 sqrt(100 * 40 ln 100)
    inc = theorem1_bound([0.0, 0.0, 1.0, 1.0], 4, 20, 100)
    assert inc[-1] == pytest.approx(2.0 * math.sqrt(100 * 40 * math.log(100)))
    assert inc[1] == inc[-1]
    # the rate of the theorem turns Eq. (23) into Eq. (24)
    eta = math.sqrt(100 * math.log(100) / (20 * 50))
    assert theorem1_bound(0.0, 50, 20, 100, eta=eta)[-1] == pytest.approx(
        theorem1_bound(0.0, 50, 20, 100)[-1]
    )


def test_theorem3_by_hand():
    given = {
        "rate": 0.15,
        "penalty": 10.0,
        "noise": 2.0,
        "context_bound": 3.0,
        "coefficient_bound": 4.0,
        "longest_s": 5.0,
        "ridge": 1.0,
        "delta": 0.1,
    }
    bound = theorem3_bound(7, 40, **given)
    width = 4.0 * math.sqrt(3.0 * math.log((1 + 7 * 9) / 0.1)) + 4.0
    learning = 5.0 * width * math.sqrt(6.0 * math.log(1 + 7 * 9 / 3) / 7)
    assert bound[-1] == pytest.approx(40 * 1.0225 / 20 + learning)
    assert bound.shape == (7,)
    # for ever: only the penalty's part is left
    far = theorem3_bound(10**6, 40, **(given | {"noise": 0.0, "coefficient_bound": 0.0}))[-1]
    assert far == pytest.approx(2.045, abs=0.1)


def test_queues_by_hand():
    # Z <- max(Z + 0.5 - x, 0): {0, 1}, nobody, {1, 2, 3}
    backlog = queue_backlog(CLIENTS, OFFSETS, 4, rate=0.5)
    # after round 0: 0 0 .5 .5; round 1: .5 .5 1 1; round 2: 1 0 .5 .5
    np.testing.assert_allclose(backlog.mean, [0.25, 0.75, 0.5])
    np.testing.assert_allclose(backlog.largest, [0.5, 1.0, 1.0])
    np.testing.assert_allclose(backlog.final, [1.0, 0.0, 0.5, 0.5])
    np.testing.assert_allclose(backlog.per_round, [0.5, 0.5, 1 / 3])


def test_wasted_time_by_hand():
    status = np.array([Status.COMPLETED, Status.LATE, Status.FAILED, Status.SILENT], np.int8)
    assert wasted_time(status, np.array([1.0, 2.0, 4.0, 8.0])) == 14.0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: jain_of_counts([-1.0, 2.0]), "counts"),
        (lambda: jain_of_losses([]), "losses"),
        (lambda: theorem1_bound(1.2, 3, 2, 4), "quota"),
        (lambda: theorem1_bound([0.1, 0.2], 3, 2, 4), "quota"),
        (lambda: regret(np.ones((2, 3), bool), np.ones((3, 3), bool), 1), "played"),
        (lambda: queue_backlog(CLIENTS, OFFSETS, 4, rate=2.0), "rate"),
        (lambda: minimum_rate(np.array([1]), 0), "n_rounds"),
    ],
)
def test_bad_input_is_named(call, field):
    with pytest.raises(InvalidInput, match=field):
        call()


@pytest.mark.parametrize("n", [0, 1, 3, 50, 99])
def test_the_lowest_are_in_order(n):
    values = np.random.default_rng(n).integers(0, 40, 50)
    found = lowest(values, n)
    assert values[found].tolist() == sorted(values.tolist())[:n]
    pairs = list(zip(values[found].tolist(), found.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
