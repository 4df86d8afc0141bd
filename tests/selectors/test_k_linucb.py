from __future__ import annotations

import math

import numpy as np
import pytest

import turnout

NAN = math.nan


def context(features, m, round=0, available=None, sizes=None):
    features = np.array(features)
    n = features.shape[0]
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    sizes = np.ones(n) if sizes is None else np.array(sizes)
    columns = {"features": features, "num_samples": sizes}
    return turnout.RoundContext(round, m, available, columns=columns)


def made(n, **parameters):
    selector = turnout.make("k-linucb", **parameters)
    selector.reset(n)
    return selector


def only(n, clients):
    return np.isin(np.arange(n), clients)


def feed(selector, features, round, clients, rms, sizes=None, status=None):
    """Force a round: only these clients are available, so ``select`` must take them all."""
    n = selector.n_clients
    ctx = context(features, len(clients), round, only(n, clients), sizes)
    selection = selector.select(ctx, np.random.default_rng(round))
    assert selection.clients.tolist() == sorted(clients)
    status = [0] * len(clients) if status is None else status
    duration = [1.0] * len(clients)
    selector.observe(selection, turnout.Outcome(status, duration, {"loss_rms": rms}))


def direct_indices(history, features, ridge, explore, standardize):
    """LinUCB Alg. 1 lines 8-13 on the full history, by a direct solve."""
    d = features.shape[1]
    a = ridge * np.eye(d)
    b = np.zeros(d)
    rewards = np.array([reward for _, reward in history])
    centre, scale = 0.0, 1.0
    if standardize and rewards.size:
        centre = rewards.mean()
        scale = rewards.std() if rewards.std() > 0 else 1.0
    for x, reward in history:
        a = a + np.outer(x, x)
        b = b + (reward - centre) / scale * x
    theta = np.linalg.solve(a, b)
    result = {}
    for i in range(features.shape[0]):
        x = features[i]
        width = math.sqrt(max(0.0, float(x @ np.linalg.solve(a, x))))
        result[i] = float(x @ theta) + explore * width
    return result, a


def assert_tops(selector, features, round, reference, available, sizes, rng):
    pool = np.flatnonzero(available).tolist()
    for m in range(1, len(pool) + 1):
        ctx = context(features, m, round, available, sizes)
        chosen = set(selector.select(ctx, rng).clients.tolist())
        assert len(chosen) == m
        inside = min(reference[i] for i in chosen)
        outside = [reference[i] for i in pool if i not in chosen]
        assert not outside or inside >= max(outside) - 1e-8 * max(1.0, abs(inside))


def test_two_rounds_by_hand():
    # d = 1, ridge = 1, alpha = 1, raw rewards. x = (1, 2, 3). Before feedback A = 1, theta = 0:
    # index = |x| = (1, 2, 3).
    features = np.array([[1.0], [2.0], [3.0]])
    selector, rng = made(3, standardize=False), np.random.default_rng(0)
    assert selector.select(context(features, 1), rng).clients.tolist() == [2]
    # Client 2 reports rms 0.5 with 4 examples: r = 2. A = 1 + 9 = 10, b = 3 * 2 = 6, theta = 0.6.
    # index = x (0.6 + sqrt(1/10)) = x * 0.916228: order 2, 1, 0.
    sizes = [1.0, 1.0, 4.0]
    feed(selector, features, 0, [2], [0.5], sizes)
    assert np.linalg.inv(selector.inverse_) == pytest.approx(np.array([[10.0]]))
    assert selector.reward_sum_.tolist() == [6.0]
    assert selector.select(context(features, 2, 1), rng).clients.tolist() == [1, 2]
    # Negative features turn the order: index(-1) = -0.6 + 0.316228 = -0.283772.
    turned = np.array([[-1.0], [0.0], [-3.0]])
    assert selector.select(context(turned, 1, 1), rng).clients.tolist() == [1]
    # Client 0 reports r = 5: A = 11, b = 11, theta = 1.
    feed(selector, features, 1, [0], [5.0], sizes)
    assert np.linalg.inv(selector.inverse_) == pytest.approx(np.array([[11.0]]))
    assert selector.reward_sum_ == pytest.approx([11.0])


@pytest.mark.slow
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_matches_a_direct_solve(standardize, seed):
    rng = np.random.default_rng([seed, int(standardize)])
    n, d = int(rng.integers(3, 9)), int(rng.integers(1, 6))
    ridge, explore = float(rng.uniform(0.1, 3.0)), float(rng.uniform(0.0, 2.0))
    selector = made(n, ridge=ridge, explore=explore, standardize=standardize)
    history = []
    sizes = rng.integers(1, 600, n).astype(float)
    for t in range(60):
        features = rng.normal(size=(n, d))
        available = rng.random(n) < 0.9
        reference, a = direct_indices(history, features, ridge, explore, standardize)
        assert_tops(selector, features, t, reference, available, sizes, rng)
        if history:
            assert selector.inverse_ == pytest.approx(np.linalg.inv(a), rel=1e-7, abs=1e-10)
        chosen = np.sort(rng.choice(n, int(rng.integers(1, n + 1)), replace=False))
        status = rng.choice(4, chosen.size, p=[0.7, 0.1, 0.1, 0.1])
        rms = np.where(status <= 1, rng.gamma(2.0, 1.0, chosen.size), NAN)
        feed(selector, features, t, chosen, rms, sizes, status)
        for i, loss in zip(chosen.tolist(), rms.tolist(), strict=True):
            reward = 0.0 if math.isnan(loss) else sizes[i] * loss  # ours: no report, no reward
            history.append((features[i], reward))
    assert len(history) > 60


def test_standardising_makes_the_unit_of_the_reward_irrelevant():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(8, 3))
    small, large = made(8), made(8)
    for t in range(10):
        rms = rng.gamma(2.0, 1.0, 4)
        chosen = np.sort(rng.choice(8, 4, replace=False))
        feed(small, features, t, chosen, rms)
        feed(large, features, t, chosen, 1e6 * rms)
    for m in range(1, 9):
        ctx = context(features, m, 10)
        first = small.select(ctx, np.random.default_rng(m)).clients
        assert first.tolist() == large.select(ctx, np.random.default_rng(m)).clients.tolist()


def test_learns_a_linear_reward():
    # r = 3 x_0 - 2 x_1 + 10 without noise: the largest true reward wins once it is known.
    rng = np.random.default_rng(4)
    selector = made(20, explore=0.0, ridge=1e-6, standardize=False)
    features = np.column_stack((rng.normal(size=(20, 2)), np.ones(20)))
    truth = features @ np.array([3.0, -2.0, 10.0])
    feed(selector, features, 0, list(range(10)), truth[:10])
    chosen = selector.select(context(features, 5, 1), rng).clients
    assert chosen.tolist() == sorted(np.argsort(-truth)[:5].tolist())


def test_change_of_dimension_is_refused():
    selector, rng = made(3), np.random.default_rng(0)
    wide = np.ones((3, 4))
    # Before any feedback the dimension is open.
    assert selector.select(context(wide, 1), rng).clients.size == 1
    feed(selector, np.eye(3)[:, :2], 0, [0, 1], [1.0, 2.0])
    before = selector.state()
    with pytest.raises(turnout.InvalidInput, match=r"features.*2.*4"):
        selector.select(context(wide, 1, 1), rng)
    stale = turnout.make("k-linucb")
    stale.reset(3)
    foreign = stale.select(context(wide, 2, 1), rng)
    with pytest.raises(turnout.InvalidInput, match=r"features.*2.*4"):
        selector.observe(foreign, turnout.Outcome([0, 0], [1.0, 1.0], {"loss_rms": [1.0, 1.0]}))
    after = selector.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_vector_of_features_is_one_feature_per_client():
    selector, rng = made(3), np.random.default_rng(0)
    assert selector.select(context([0.5, -2.0, 1.0], 1), rng).clients.tolist() == [1]


@pytest.mark.slow
def test_ties_have_no_index_bias():
    selector, trials, rng = made(5), 4000, np.random.default_rng(1)
    counts = np.zeros(5)
    ctx = context(np.eye(5), 2)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    p = 2 / 5
    assert np.all(np.abs(counts - trials * p) <= 5 * math.sqrt(trials * p * (1 - p)))


def test_missing_and_impossible_features_are_typical():
    selector, rng = made(4), np.random.default_rng(0)
    features = np.array([[NAN, NAN], [1.0, 0.0], [math.inf, 0.0], [0.0, 2.0]])
    # Medians 0.5 and 0. Norms 0.5, 1, 0.5, 2.
    assert selector.select(context(features, 1), rng).clients.tolist() == [3]
    assert selector.select(context(features, 2), rng).clients.tolist() == [1, 3]
    memo = selector.select(context(features, 4), rng).memo
    assert memo["features"].tolist() == [[0.5, 0.0], [1.0, 0.0], [0.5, 0.0], [0.0, 2.0]]
    feed(selector, features, 0, [0, 2], [1.0, 2.0])
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())


def test_no_report_is_no_reward():
    selector = made(3)
    features = np.eye(3)
    feed(selector, features, 0, [0, 1], [1.0, 2.0])
    rewards = selector.reward_sum_.copy()
    feed(selector, features, 1, [1, 2], [NAN, NAN], status=[2, 3])
    # A = I + e_0 e_0' + 2 e_1 e_1' + e_2 e_2'; sum x r stays, four rewards are known.
    assert selector.inverse_ == pytest.approx(np.diag([1 / 2, 1 / 3, 1 / 2]))
    assert selector.reward_sum_.tolist() == rewards.tolist()
    assert selector.moments_[0] == 4.0


def test_a_silent_client_does_not_hold_a_place():
    selector = made(10)
    counts = np.zeros(10)
    for t in range(200):
        selection = selector.select(context(np.eye(10), 2, t), np.random.default_rng(t))
        counts[selection.clients] += 1
        rms = np.where(selection.clients == 0, NAN, 1.0 + selection.clients)
        status = np.where(selection.clients == 0, 3, 0)
        selector.observe(selection, turnout.Outcome(status, [1.0, 1.0], {"loss_rms": rms}))
    assert counts[0] < 40


def test_unknown_size_counts_as_the_mean_of_all_clients():
    # r = |D| rms with |D| unknown = the mean of the known, 100: b = 100 * 2 * x.
    selector = made(3, standardize=False)
    feed(selector, np.eye(3), 0, [0], [2.0], [NAN, 150.0, 50.0])
    assert selector.reward_sum_.tolist() == [200.0, 0.0, 0.0]


def test_nobody_available():
    selector, rng = made(3), np.random.default_rng(0)
    selection = selector.select(context(np.eye(3), 2, 0, [False] * 3), rng)
    assert selection.clients.size == 0
    selector.observe(selection, turnout.Outcome([], []))
    assert selector.select(context(np.eye(3), 5, 1), rng).clients.tolist() == [0, 1, 2]


def test_two_clients_with_the_same_large_features():
    # Raw features such as time stamps. I + x A^-1 x' loses its I to rounding; A itself is regular.
    selector, rng = made(3), np.random.default_rng(0)
    features = np.array([[1.7e9, 1.0], [1.7e9, 1.0], [1.6e9, 2.0]])
    feed(selector, features, 0, [0, 1], [1.0, 2.0])
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    assert selector.select(context(features, 2, 1), rng).clients.size == 2


def test_huge_reports_and_features_stay_finite():
    selector, rng = made(4), np.random.default_rng(0)
    for t in range(20):
        features = rng.choice([1e30, -1e30, 1.0, 1e-30], (4, 3))
        feed(selector, features, t, [0, 1], [1e30, 1.0], [1e30] * 4)
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    assert selector.select(context(rng.normal(size=(4, 3)), 2, 20), rng).clients.size == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("explore", -1.0),
        ("explore", NAN),
        ("ridge", 0.0),
        ("ridge", -2.0),
        ("ridge", math.inf),
        ("ridge", "1"),
        ("standardize", "no"),
    ],
)
def test_bad_parameters_name_the_field(field, value):
    with pytest.raises(turnout.InvalidInput, match=field):
        turnout.make("k-linucb", **{field: value})


@pytest.mark.parametrize("missing", ["features", "num_samples"])
def test_missing_column_names_it(missing):
    selector = made(3)
    columns = {"features": np.eye(3), "num_samples": np.ones(3)}
    del columns[missing]
    ctx = turnout.RoundContext(0, 1, np.ones(3, dtype=bool), columns=columns)
    with pytest.raises(turnout.MissingColumn, match=missing):
        selector.select(ctx, np.random.default_rng(0))
