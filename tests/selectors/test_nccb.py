from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

import turnout
from tests.references.nccb_slow import SlowNCCB, doubled
from turnout import InvalidInput, MissingColumn, Outcome, Purpose, RoundContext, Selection, stream
from turnout.sampling import linear, neural
from turnout.sampling.linear import k_means, nearest_centroid, unit_rows
from turnout.sampling.neural import Network
from turnout.selectors.nccb import NCCB


def context(
    features: Any, m: int, *, round: int = 0, available: Any = None, samples: Any = None
) -> RoundContext:
    features = np.asarray(features)
    n = len(features)
    columns = {
        "features": features,
        "num_samples": np.full(n, 100.0) if samples is None else np.asarray(samples, float),
    }
    free = np.ones(n, dtype=bool) if available is None else np.asarray(available, dtype=bool)
    return RoundContext(round, m, free, columns=columns)


def report(selection: Selection, loss_rms: Any) -> Outcome:
    n = selection.clients.size
    return Outcome(np.zeros(n, dtype=int), np.ones(n), {"loss_rms": np.asarray(loss_rms, float)})


def bounds(selector: NCCB, x: Any) -> np.ndarray:
    return neural.upper_bounds(
        Network(selector.features_.shape[1], selector.width, selector.depth),
        selector.weights_,
        selector.evidence_,
        unit_rows(np.asarray(x, dtype=float)),
        ridge=selector.ridge,
        explore=selector.explore,
        bonus=selector.bonus,
    )


def small(**changes: Any) -> NCCB:
    settings: dict[str, Any] = {"clusters": 3, "threshold": 1, "width": 4, "steps": 3, "memory": 16}
    return NCCB(**(settings | changes))


def bits(seed: int, n: int, d: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, d))


# Worked by hand. w = 2, L = 2, lambda = gamma = 1, features A = (1, 0) and B = (0.6, 0.8).
#
# theta_0: W = (sqrt2, sqrt2), last = 1, so V = [[1, 1], [1, 1]] and W_2 = (1, -1).
#   h_A = (1, 1), h_B = (1.4, 1.4), f = sqrt2 (h_1 - h_2) = 0, delta_1 = sqrt2 (1, -1),
#   k(a, b) = <g_a, g_b> / 2 = (<delta_a, delta_b> <a, b> + 2 <h_a, h_b>) / 2:
#   k(A, A) = (4 + 4) / 2 = 4, k(B, B) = (4 + 7.84) / 2 = 5.92, k(A, B) = (2.4 + 5.6) / 2 = 4.
#   U_A = sqrt(4) = 2, U_B = sqrt(5.92).
# A is played and pays r = 4 * 0.25 = 1. One step, eta = 1 / (2 (1 + 4)) = 0.1, along r g_A:
#   with e = 0.1 sqrt2, e^2 = 0.02: V = [[1 + e, 1], [1 - e, 1]], W_2 = (1 + e, -1 + e).
#   f(A) = sqrt2 ((1 + e)^2 - (1 - e)^2) = 4 sqrt2 e = 0.8
#   f(B) = sqrt2 ((1 + e)(1.4 + 0.6 e) - (1 - e)(1.4 - 0.6 e)) = 4 sqrt2 e = 0.8
# Exact: Z = I + g_A g_A' / 2 with g_A at theta_0. New gradients g at theta_1:
#   |delta_1|^2 = 4.08, |h_A|^2 = 2.04, |h_B|^2 = 2 (1.96 + 0.0072) = 3.9344
#   A: k(g, g) = (4.08 + 4.08) / 2 = 4.08, k(g, g_A) = 4, 4.08 - 4^2 / (1 + 4) = 0.88
#   B: k(g, g) = (4.08 + 7.8688) / 2 = 5.9744, k(g, g_A) = 4, 5.9744 - 3.2 = 2.7744
# Diagonal, W_1 doubled: where x_1 enters D = 1 + 2 * 0.5 / 2 = 1.5, elsewhere in W_1 1, in W_2 2.
#   A: (4.08 / 1.5 + 2 * 2.04 / 2) / 2 = 2.38
#   B: (4.08 (0.36 / 1.5 + 0.64) + 2 * 3.9344 / 2) / 2 = (3.5904 + 3.9344) / 2 = 3.7624
AFTER_ONE = {
    "exact": [0.8 + math.sqrt(0.88), 0.8 + math.sqrt(2.7744)],
    "diagonal": [0.8 + math.sqrt(2.38), 0.8 + math.sqrt(3.7624)],
}
A_AND_B = [[1.0, 0.0], [0.6, 0.8]]


@pytest.mark.parametrize("bonus", ["exact", "diagonal"])
def test_hand_example(bonus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theta_0 = np.array([1.0, 1.0, 1.0, 1.0, 1.0, -1.0])
    monkeypatch.setattr(Network, "initial", lambda self, seed: theta_0.copy())
    selector = NCCB(
        clusters=1, threshold=0, width=2, depth=2, steps=1, bonus=bonus, standardize=False
    )
    selector.reset(2)
    before = neural.upper_bounds(
        Network(2, 2, 2),
        theta_0,
        selector.evidence_,
        np.array(A_AND_B),
        ridge=1.0,
        explore=1.0,
        bonus=bonus,
    )
    np.testing.assert_allclose(before, [2.0, math.sqrt(5.92)], rtol=1e-14)

    rng = np.random.default_rng(0)
    first = selector.select(context(A_AND_B, 1, available=[True, False], samples=[4, 4]), rng)
    selector.observe(first, report(first, [0.25]))
    e = 0.1 * math.sqrt(2.0)
    np.testing.assert_allclose(
        selector.weights_, [1 + e, 1, 1 - e, 1, 1 + e, -1 + e], rtol=0, atol=1e-14
    )
    np.testing.assert_allclose(bounds(selector, A_AND_B), AFTER_ONE[bonus], rtol=1e-13)
    second = selector.select(context(A_AND_B, 1, round=1), rng)
    assert second.clients.tolist() == [1]  # the one cluster is explored, U_B > U_A
    assert selector.count_.tolist() == [1]


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_the_network_starts_at_zero(depth: int) -> None:
    network = Network(dimension=7, width=12, depth=depth)
    x = unit_rows(np.random.default_rng(0).normal(size=(50, 7)))
    theta = network.initial(3)
    value, gradient = network.gradients(network.layers(theta), torch.tensor(x))
    assert float(value.abs().max()) < 1e-14
    # The gradient is not zero, and the doubled form says the same.
    assert float(neural.squared_length(network, gradient).median()) > 1e-3
    slow = slow_twin(small(width=12, depth=depth), theta, np.zeros((1, 7)))
    assert max(abs(float(slow.value(slow.weights, row))) for row in x) < 1e-14


def test_initial_weights_have_the_published_law() -> None:
    width, dimension, depth = 100, 80, 3
    first, hidden, last = doubled(
        Network(dimension, width, depth).initial(1), dimension, width, depth
    )
    half = width // 2
    for matrix in (first, hidden):  # Eq. (11)
        columns = matrix.shape[1] // 2
        np.testing.assert_array_equal(matrix[:half, columns:], 0.0)
        np.testing.assert_array_equal(matrix[half:, :columns], 0.0)
        np.testing.assert_array_equal(matrix[:half, :columns], matrix[half:, columns:])
        expect_normal(matrix[:half, :columns], 4.0 / width)
    np.testing.assert_array_equal(last[0, :half], -last[0, half:])  # Eq. (12)
    expect_normal(last[0, :half], 2.0 / width)


def expect_normal(values: np.ndarray, variance: float) -> None:
    n = values.size
    assert abs(values.mean()) < 5 * math.sqrt(variance / n)
    assert abs(np.square(values).mean() / variance - 1) < 5 * math.sqrt(2 / n)


def slow_twin(selector: NCCB, theta_0: np.ndarray, centroids: np.ndarray) -> SlowNCCB:
    return SlowNCCB(
        weights=doubled(theta_0, centroids.shape[1], selector.width, selector.depth),
        centroids=centroids,
        threshold=selector.threshold,
        ridge=selector.ridge,
        explore=selector.explore,
        steps=selector.steps,
        learning_rate=selector.learning_rate,
        memory=selector.memory,
        bonus=selector.bonus,
        standardize=selector.standardize,
    )


RUNS = [
    {"bonus": "exact"},
    {"bonus": "exact", "memory": 5, "ridge": 0.2},
    {"bonus": "exact", "depth": 3, "memory": None, "explore": 0.3},
    {"bonus": "exact", "memory": None, "train_per_reward": True},
    {"bonus": "exact", "learning_rate": 30.0, "steps": 12},  # steps that are too long are halved
    {"bonus": "diagonal"},
    {"bonus": "diagonal", "depth": 3, "memory": 4},
    {"bonus": "diagonal", "standardize": False, "train_per_reward": True, "ridge": 3.0},
]


@pytest.mark.parametrize("changes", RUNS, ids=str)
def test_agrees_with_the_slow_form(changes: dict[str, Any]) -> None:
    n, d, m = 12, 4, 4
    selector = small(**changes)
    selector.prepare(n, seed=5)
    raw = np.random.default_rng(2).normal(size=(n, d))
    x = unit_rows(raw)
    slow: SlowNCCB | None = None
    n_ranked = 0
    for t in range(12):
        world = stream(9, Purpose.ENV, t)
        available = world.random(n) < 0.8
        available[:m] = True
        ctx = context(raw, m, round=t, available=available)
        selection = selector.select(ctx, stream(9, Purpose.SELECT, t))
        if slow is None:
            theta_0 = Network(d, selector.width, selector.depth).initial(selector.init_seed_)
            slow = slow_twin(selector, theta_0, selection.memo["centroids"])
        assert slow.allows(x, ctx.pool.tolist(), selection.clients.tolist(), m)
        loss = np.abs(raw[selection.clients]).sum(axis=1) + world.random(m)
        loss[world.random(m) < 0.2] = np.nan
        selector.observe(selection, report(selection, loss))
        slow.learn(x[selection.clients], 100.0 * loss, one_by_one=selector.train_per_reward)
        assert selector.count_.tolist() == slow.count
        np.testing.assert_allclose(bounds(selector, raw), slow.bounds(x), rtol=1e-8, atol=1e-8)
        n_ranked += sum(c > selector.threshold for c in slow.count) > 0
    assert n_ranked > 5


def test_the_bonus_of_a_large_evidence_needs_no_matrix_of_weights() -> None:
    # 64 features, width 128: 24,704 doubled weights, whose square would be 5 GB.
    network = Network(64, 128, 3)
    x = unit_rows(bits(0, 600, 64).astype(float))
    theta = network.initial(0)
    evidence = neural.remember(
        network, theta, np.zeros((0, 0)), x[:200], bonus="exact", memory=None
    )
    assert evidence.shape == (200, 64 + 4 * 128 + 1)
    bound = neural.upper_bounds(network, theta, evidence, x, ridge=1.0, explore=1.0, bonus="exact")
    assert np.isfinite(bound).all()
    # At f = 0 a bound is the bonus; that of a seen input is < 1, as k / (1 + k) is.
    assert bound[:200].max() < 1.0
    assert bound[200:].max() > 1.0
    assert bound[:200].mean() < 0.8 * bound[200:].mean()


@pytest.mark.parametrize("ridge", [1e-9, 1e-3, 1.0])
def test_repeated_observations_do_not_break_the_factorisation(ridge: float) -> None:
    network = Network(3, 16, 2)
    theta = network.initial(0)
    x = np.tile([[1.0, 0.0, 0.0]], (300, 1))
    none = np.zeros((0, 0))
    evidence = neural.remember(network, theta, none, x, bonus="exact", memory=None)
    before, after = (
        neural.upper_bounds(network, theta, seen, x[:1], ridge=ridge, explore=1.0, bonus="exact")
        for seen in (none, evidence)
    )
    k = float(before[0]) ** 2 * ridge
    # k / (ridge + 300 k), found as a difference of numbers near k: 1e-15 of them is lost
    lost = 1e-15 * 300 / ridge + 1e-12
    assert float(after[0]) ** 2 == pytest.approx(k / (ridge + 300 * k), rel=lost)


def three_groups(size: int) -> np.ndarray:
    return np.repeat([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], size, axis=0)


def test_every_cluster_is_played_threshold_plus_one_times_first() -> None:
    features = three_groups(4)
    group = np.arange(12) // 4
    selector = small(threshold=2)
    selector.prepare(12)
    plays = np.zeros(3, dtype=int)
    for t in range(3):  # counts 0, 1, 2 are all <= 2: every cluster is unexplored
        selection = selector.select(context(features, 3, round=t), stream(0, Purpose.SELECT, t))
        assert sorted(group[selection.clients]) == [0, 1, 2]
        # only the first group pays
        selector.observe(selection, report(selection, np.where(selection.clients < 4, 9.0, 0.1)))
        plays += 1
        assert selector.count_.tolist() == plays.tolist()
    selection = selector.select(context(features, 3, round=3), stream(0, Purpose.SELECT, 3))
    assert group[selection.clients].tolist() == [0, 0, 0]  # counts are 3 > 2: ranked by U


def test_a_smaller_cohort_draws_clusters_and_members_uniformly() -> None:
    features = np.concatenate((three_groups(1), three_groups(3)[3:]))  # sizes 1, 4, 4
    group = np.array([0, 1, 2, 1, 1, 1, 2, 2, 2])
    selector = small()
    selector.prepare(9)
    n_draws, times = 4000, np.zeros(9)
    for t in range(n_draws):
        times[selector.select(context(features, 2), stream(3, Purpose.SELECT, t)).clients] += 1
    # two of three clusters, then one member: 2/3 for the single client, 2/3 * 1/4 for the others
    chance = np.array([2 / 3, 1 / 6, 1 / 6])[group]
    assert np.all(np.abs(times / n_draws - chance) < 5 * np.sqrt(chance * (1 - chance) / n_draws))


def test_only_available_clusters_count_as_unexplored() -> None:
    features = three_groups(4)
    selector = small(threshold=0)
    selector.prepare(12)
    available = np.arange(12) < 8  # nobody of the third group
    for t in range(6):
        selection = selector.select(
            context(features, 3, round=t, available=available), stream(0, Purpose.SELECT, t)
        )
        assert selection.clients.size == 3
        assert selection.clients.max() < 8
        selector.observe(selection, report(selection, [1.0, 1.0, 1.0]))
    selection = selector.select(context(features, 3, round=6), stream(0, Purpose.SELECT, 6))
    assert selection.clients.max() >= 8  # the third cluster still waits to be explored


def test_nobody_available() -> None:
    selector = small()
    selector.prepare(4)
    ctx = context(bits(0, 4, 5), 2, available=np.zeros(4))
    selection = selector.select(ctx, stream(0, Purpose.SELECT))
    assert selection.clients.size == 0
    selector.observe(selection, report(selection, []))
    assert selector.count_.sum() == 0
    assert selector.centroids_.shape == (3, 5)


def test_no_report_is_no_reward() -> None:
    features = bits(1, 20, 6)
    selector = small()
    selector.prepare(20)
    for t in range(3):
        selection = selector.select(context(features, 5, round=t), stream(0, Purpose.SELECT, t))
        selector.observe(selection, report(selection, np.full(5, np.nan)))
    assert selector.count_.sum() == 15
    assert selector.reward_.tolist() == [0.0] * 15
    assert selector.evidence_.shape[0] == 15  # Eq. (14) adds every arm that was played
    selection = selector.select(context(features, 5, round=3), stream(0, Purpose.SELECT, 3))
    selector.observe(selection, report(selection, [1.0, np.nan, 2.0, np.nan, np.nan]))
    assert selector.reward_[-5:].tolist() == [100.0, 0.0, 200.0, 0.0, 0.0]


@pytest.mark.parametrize("bonus", ["exact", "diagonal"])
def test_memory_bounds_the_state(bonus: str) -> None:
    features = bits(2, 30, 6)
    sizes = {}
    for memory in (7, None):
        selector = small(memory=memory, bonus=bonus)
        selector.prepare(30)
        for t in range(6):
            selection = selector.select(context(features, 5, round=t), stream(0, Purpose.SELECT, t))
            selector.observe(selection, report(selection, selection.clients + 1.0))
        sizes[memory] = selector.reward_.size, len(selector.evidence_)
        assert selector.reward_[-5:].tolist() == (100.0 * (selection.clients + 1.0)).tolist()
    kept = {"exact": (7, 30), "diagonal": (1, 1)}[bonus]  # the diagonal is one row
    assert sizes == {7: (7, kept[0]), None: (30, kept[1])}


@pytest.mark.parametrize("changes", [{}, {"standardize": False, "depth": 4}], ids=str)
@pytest.mark.parametrize("bonus", ["exact", "diagonal"])
def test_hostile_numbers_leave_the_state_finite(bonus: str, changes: dict[str, Any]) -> None:
    features = np.random.default_rng(0).normal(size=(10, 3))
    features[0] = np.nan
    features[1] = [np.inf, 1e300, -np.inf]
    features[2] = [1e30, -1e30, 1e30]
    features[3] = [5e-324, 0.0, 1e-320]
    features[4] = 0.0
    samples = [1e30, 0.0, 1.0, np.nan, 1e-300, 1e30, 7.0, 8.0, 9.0, 10.0]
    losses = [1e30, 0.0, 1e-300, 1.0]
    selector = small(bonus=bonus, threshold=0, **changes)
    selector.prepare(10)
    for t in range(40):
        rng = stream(1, Purpose.SELECT, t)
        selection = selector.select(context(features, 4, round=t, samples=samples), rng)
        assert selection.clients.size == 4
        selector.observe(selection, report(selection, rng.choice(losses, 4)))
        assert all(np.isfinite(value).all() for value in selector.state().values())
    assert selector.reward_.max() > 1e29


def test_one_hostile_reward_is_forgotten() -> None:
    selector = small(memory=8)
    selector.prepare(4)
    for t, loss in enumerate([1e30] + 5 * [1.0]):
        selection = selector.select(context(np.eye(4), 2, round=t), stream(0, Purpose.SELECT, t))
        selector.observe(selection, report(selection, [loss, 2.0]))
    assert np.ptp(selector._targets()) > 1.9  # one and two deviate again by +-1


def test_targets_are_standardised_and_cut() -> None:
    selector = small()
    selector.reset(2)
    selector.reward_ = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(selector._targets(), np.array([-3, -1, 1, 3]) / math.sqrt(5))
    selector.reward_ = np.array([*np.zeros(199), 1e60])  # sqrt(199) deviations from the mean
    assert selector._targets().max() == 10.0
    raw = small(standardize=False)
    raw.reset(2)
    raw.reward_ = np.array([1.0, 400.0])
    assert raw._targets().tolist() == [1.0, 400.0]


def test_equal_features_have_equal_chances() -> None:
    # Rows of a matrix product may differ in their last bits by position; that must decide nothing.
    rng = np.random.default_rng(4)
    features = np.tile(rng.normal(size=37), (1030, 1))
    selector = small(threshold=0, clusters=1, width=32)
    selector.prepare(1030)
    first = selector.select(context(features, 5), stream(0, Purpose.SELECT))
    selector.observe(first, report(first, rng.random(5)))
    times = np.zeros(1030)
    n_draws = 150
    for t in range(n_draws):
        times[selector.select(context(features, 100), stream(1, Purpose.SELECT, t)).clients] += 1
    p = 100 / 1030
    assert np.all(np.abs(times / n_draws - p) < 5 * math.sqrt(p * (1 - p) / n_draws))


def middle_world(seed: int) -> tuple[np.ndarray, np.ndarray]:
    features = bits(seed, 200, 6)
    return features, 1.0 + 3.0 * (features.sum(axis=1) == 3)  # no linear function ranks these


def late_utility(name: str, seed: int, **parameters: Any) -> float:
    features, level = middle_world(seed)
    selector = turnout.make(name, **parameters)
    selector.prepare(200, seed)
    earned = []
    for t in range(50):
        world = stream(seed, Purpose.ENV, t)
        available, noise = world.random(200) < 0.8, world.lognormal(0.0, 0.2, 200)
        ctx = context(features, 15, round=t, available=available)
        selection = selector.select(ctx, stream(seed, Purpose.SELECT, t))
        loss = (level * noise)[selection.clients]
        selector.observe(selection, report(selection, loss))
        earned.append(loss.mean())
    return float(np.mean(earned[25:]))


@pytest.mark.parametrize("bonus", ["exact", "diagonal"])
def test_learns_what_a_linear_model_cannot(bonus: str) -> None:
    seeds = range(3)  # the same worlds for all
    own = [late_utility("nccb", s, bonus=bonus) for s in seeds]
    linear = [late_utility("k-linucb", s) for s in seeds]
    chance = [late_utility("random", s) for s in seeds]
    assert all(a > 1.1 * b for a, b in zip(own, linear, strict=True))
    assert all(a > 1.6 * b for a, b in zip(own, chance, strict=True))


def play(selector: turnout.Selector, rounds: range, n: int = 15) -> list[list[int]]:
    chosen = []
    for t in rounds:
        ctx = context(bits(6, n, 8), 4, round=t)
        selection = selector.select(ctx, stream(2, Purpose.SELECT, t))
        selector.observe(selection, report(selection, 1.0 + (selection.clients % 3)))
        chosen.append(selection.clients.tolist())
    return chosen


@pytest.mark.parametrize("bonus", ["exact", "diagonal"])
@pytest.mark.parametrize("saved_after", [0, 1, 7])
def test_save_load_continue_is_the_same_run(bonus: str, saved_after: int, tmp_path: Any) -> None:
    whole, part = small(bonus=bonus, depth=3), small(bonus=bonus, depth=3)
    whole.prepare(15, seed=3)
    part.prepare(15, seed=3)
    expected = play(whole, range(12))
    first = play(part, range(saved_after))
    turnout.save(part, tmp_path / "state.npz")
    resumed = turnout.load(tmp_path / "state.npz")
    assert first + play(resumed, range(saved_after, 12)) == expected
    for name, value in whole.state().items():
        assert value.tobytes() == resumed.state()[name].tobytes(), name


def test_the_seed_decides_the_network() -> None:
    weights = []
    for seed in (1, 1, 2):
        selector = small()
        selector.prepare(15, seed)
        play(selector, range(3))
        weights.append(selector.weights_)
    assert weights[0].tobytes() == weights[1].tobytes()
    assert np.abs(weights[0] - weights[2]).max() > 0.1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_torch_settings_do_not_matter(mode: Any) -> None:
    plain, inside = small(), small()
    plain.prepare(15)
    inside.prepare(15)
    play(plain, range(6))
    before = torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state()
    with mode():
        torch.set_num_threads(2)
        play(inside, range(6))
        assert torch.get_num_threads() == 2
    torch.set_num_threads(before[0])
    assert torch.get_default_dtype() == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])
    assert plain.weights_.tobytes() == inside.weights_.tobytes()
    assert plain.evidence_.tobytes() == inside.evidence_.tobytes()


def test_late_and_unordered_feedback() -> None:
    features = bits(6, 15, 8)
    selector = small()
    selector.prepare(15)
    open_ = [
        selector.select(context(features, 4, round=t), stream(2, Purpose.SELECT, t))
        for t in range(3)
    ]
    for selection in reversed(open_):
        selector.observe(selection, report(selection, np.ones(4)))
    assert selector.count_.sum() == 12
    assert selector.reward_.size == 12


def test_new_clients_join_the_nearest_cluster() -> None:
    selector = small(threshold=3)
    selector.prepare(12)
    for t in range(2):
        selection = selector.select(context(three_groups(4), 3, round=t), stream(0, Purpose.SELECT))
        selector.observe(selection, report(selection, np.ones(3)))
    selector.grow(15)
    features = np.concatenate((three_groups(4), three_groups(1)))
    only_new = np.arange(15) >= 12
    selection = selector.select(context(features, 3, round=2, available=only_new), stream(0, 4))
    assert selection.clients.tolist() == [12, 13, 14]
    selector.observe(selection, report(selection, np.ones(3)))
    assert selector.count_.tolist() == [3, 3, 3]


def test_k_means_finds_groups_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    centre = unit_rows(rng.normal(size=(4, 10)))
    group = np.arange(400) % 4
    x = unit_rows(centre[group] + 0.02 * rng.normal(size=(400, 10)))
    found = k_means(x, 4, seed=7)
    label = nearest_centroid(x, found)
    assert {(a, b) for a, b in zip(group, label, strict=True)} == {(a, label[a]) for a in range(4)}
    assert np.unique(label[:4]).size == 4
    np.testing.assert_array_equal(k_means(x[rng.permutation(400)], 4, seed=7), found)


def test_k_means_with_few_distinct_vectors() -> None:
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -0.0], [0.0, 1.0]])
    centroids = k_means(x, 10, seed=0)
    assert centroids.shape == (2, 2)
    np.testing.assert_array_equal(centroids[nearest_centroid(x, centroids)], x)
    nearly = np.array([[1.0, 0.0]]) + np.arange(9)[:, None] * 1e-17
    assert k_means(np.concatenate((nearly, x)), 4, seed=0).shape[0] <= 4


def test_k_means_of_many_is_fitted_to_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x = unit_rows(three_groups(500) + 0.01 * np.random.default_rng(1).normal(size=(1500, 6)))
    monkeypatch.setattr(linear, "MOST_FITTED", 100)
    label = nearest_centroid(x, k_means(x, 3, seed=0))
    assert [np.unique(label[i : i + 500]).size for i in (0, 500, 1000)] == [1, 1, 1]
    assert np.unique(label).size == 3


def test_k_means_is_the_same_on_any_number_of_threads() -> None:
    x = unit_rows(np.random.default_rng(5).normal(size=(3000, 16)))
    results = set()
    for n_threads in (1, 2, 2):
        with threadpool_limits(n_threads):
            results.add(k_means(x, 8, seed=1).tobytes())
    assert len(results) == 1


def test_unit_rows() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0], [5e-324, 0.0], [1e30, 1e30], [-2.0, 0.0]])
    half = math.sqrt(0.5)
    expected = [[0.6, 0.8], [0, 0], [1, 0], [half, half], [-1, 0]]
    np.testing.assert_allclose(unit_rows(x), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clusters": 0}, "clusters"),
        ({"threshold": -1}, "threshold"),
        ({"width": 5}, "width must be even"),
        ({"width": 0}, "width"),
        ({"depth": 1}, "depth"),
        ({"ridge": 0.0}, "ridge"),
        ({"explore": -1.0}, "explore"),
        ({"explore": math.nan}, "explore"),
        ({"bonus": "full"}, "bonus must be one of 'exact', 'diagonal'"),
        ({"memory": 0}, "memory"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_parameters_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        turnout.make("nccb", **changes)


def test_the_forms_of_the_bonus_are_those_that_exist() -> None:
    for bonus in neural.BONUSES:
        NCCB(bonus=bonus).check_parameters()


def test_features_must_keep_their_number() -> None:
    selector = small()
    selector.prepare(15)
    play(selector, range(1))
    state = selector.state()
    with pytest.raises(InvalidInput, match="must have 8 features as in earlier rounds, got 3"):
        selector.select(context(np.ones((15, 3)), 4, round=1), stream(0, Purpose.SELECT))
    with pytest.raises(InvalidInput, match="at least one feature"):
        selector.select(context(np.ones((15, 0)), 4, round=1), stream(0, Purpose.SELECT))
    with pytest.raises(MissingColumn, match="features"):
        selector.select(
            RoundContext(1, 4, np.ones(15, dtype=bool), columns={"num_samples": np.ones(15)}),
            stream(0, Purpose.SELECT),
        )
    assert all(np.array_equal(value, state[name]) for name, value in selector.state().items())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import turnout
selector = turnout.make("nccb")
try:
    selector.reset(10)
except turnout.MissingExtra as error:
    print(error)
"""

WITHOUT_SCIKIT_LEARN = """
import sys
sys.modules["sklearn"] = None
import numpy as np, turnout
from turnout.estimators.clusters import k_means
try:
    k_means(np.eye(4), 2, 0)
except turnout.MissingExtra as error:
    print(error)
"""

NUMPY_ONLY = """
import sys, turnout, turnout.data.features
turnout.make("nccb")
print(sorted({"torch", "sklearn", "scipy"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (WITHOUT_TORCH, "nccb needs PyTorch: pip install 'turnout[torch]'"),
        (WITHOUT_SCIKIT_LEARN, "nccb needs scikit-learn: pip install 'turnout[torch]'"),
        (NUMPY_ONLY, "[]"),
    ],
)
def test_missing_extras(program: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == printed
