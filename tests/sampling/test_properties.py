from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.references.e3cs_slow import successive_sampling
from tests.references.rbcs_f_slow import algorithm_1, brute_force
from turnout.core.errors import InvalidInput
from turnout.sampling import (
    bottleneck,
    bottleneck_limit,
    capped_allocation,
    dependent_rounding,
    exact_draw,
    known_weights,
    kth_largest,
    multinomial_without_replacement,
    random_part,
    systematic_draw,
    top_m,
    uniform_draw,
)
from turnout.sampling.bottleneck import CLIENTS_PER_BIN
from turnout.sampling.ranking import SAMPLE_SIZE, median
from turnout.sampling.rounding import N_GROUPS

SIGMAS = 5.0
PRECISE = Context(prec=80, Emin=-(10**17), Emax=10**17)
LARGE = 4 * N_GROUPS + 3617  # the grouped branch of exact_draw

fixed = settings(derandomize=True, deadline=None, max_examples=150)
fewer = settings(derandomize=True, deadline=None, max_examples=60)

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]
EXACT_DRAWS: list[Draw] = [systematic_draw, exact_draw, dependent_rounding]


# --- capped allocation ---------------------------------------------------------------------------


def allocate_exactly(
    log_weight: np.ndarray, size: int, floor: float
) -> tuple[list[Decimal], list[int], list[int]]:
    """The papers' condition in 80 digits: p, the overflow set, and who is too close to call."""
    with localcontext(PRECISE):
        n = len(log_weight)
        top = Decimal(float(max(log_weight)))
        weight = [(Decimal(float(v)) - top).exp() for v in log_weight]
        order = sorted(range(n), key=lambda i: -weight[i])
        tails = [Decimal(0)]  # sums of the smallest weights
        for i in reversed(order):
            tails.append(tails[-1] + weight[i])
        tails.reverse()
        sigma = Decimal(floor)
        for held in range(n):
            tau = max(Decimal(0), (size - held - (n - held) * sigma) / tails[held])
            if sigma + tau * weight[order[held]] <= 1 + Decimal("1e-60"):
                break
        share = [sigma + tau * w for w in weight]
        close = [i for i in range(n) if abs(share[i] - 1) < Decimal("1e-9")]
        return [min(Decimal(1), s) for s in share], order[:held], close


def assert_allocation_is_exact(log_weight: np.ndarray, size: int, floor: float) -> None:
    p, overflow = capped_allocation(log_weight, size, floor)
    expected, held, close = allocate_exactly(log_weight, size, floor)
    for got, want in zip(p.tolist(), expected, strict=True):
        assert abs(Decimal(got) - want) <= want * Decimal("1e-9") + Decimal("1e-300")
    assert set(overflow.tolist()) - set(close) == set(held) - set(close)
    assert len(set(overflow.tolist())) == overflow.size


def spreads(width: float) -> st.SearchStrategy[float]:
    return st.floats(-width, width, allow_nan=False)


LOG_WEIGHTS = st.one_of(
    st.lists(spreads(5.0), min_size=1, max_size=40),
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40),  # ties
    st.lists(spreads(1e5), min_size=1, max_size=40),
    st.lists(spreads(1e12), min_size=1, max_size=40),
    st.lists(st.sampled_from([0.0, -1.0, -700.0, -745.2, -800.0, -1e5, -1e12]), min_size=1),
).map(np.array)


@st.composite
def allocations(draw: st.DrawFn) -> tuple[np.ndarray, int, float]:
    log_weight = draw(LOG_WEIGHTS)
    size = draw(st.integers(1, len(log_weight)))
    share = draw(st.one_of(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.floats(0.0, 1.0)))
    return log_weight, size, share * size / len(log_weight)


@fixed
@given(allocations())
def test_allocation_equals_the_exact_one(case: tuple[np.ndarray, int, float]) -> None:
    assert_allocation_is_exact(*case)


@fixed
@given(allocations())
def test_allocation_has_the_sum_and_the_bounds(case: tuple[np.ndarray, int, float]) -> None:
    log_weight, size, floor = case
    p, overflow = capped_allocation(log_weight, size, floor)
    assert p.dtype == np.float64
    assert p.shape == log_weight.shape
    assert math.fsum(p) == pytest.approx(size, rel=1e-12)
    assert np.all(p <= 1.0)
    assert np.all(p >= floor * (1.0 - 1e-12))
    assert np.all(p[overflow] == 1.0)


@fixed
@given(allocations())
def test_allocation_is_monotone_and_ties_are_equal(case: tuple[np.ndarray, int, float]) -> None:
    log_weight, size, floor = case
    p, overflow = capped_allocation(log_weight, size, floor)
    order = np.argsort(log_weight, kind="stable")
    assert np.all(np.diff(p[order]) >= -1e-12)
    held = np.isin(np.arange(p.size), overflow)
    for value in np.unique(log_weight):
        tied = log_weight == value
        assert np.ptp(p[tied]) == 0.0
        assert np.ptp(held[tied].astype(int)) == 0


@fixed
@given(allocations(), st.randoms(use_true_random=False))
def test_allocation_is_permutation_equivariant(
    case: tuple[np.ndarray, int, float], random: object
) -> None:
    log_weight, size, floor = case
    order = list(range(log_weight.size))
    random.shuffle(order)  # type: ignore[attr-defined]
    p, overflow = capped_allocation(log_weight, size, floor)
    moved, moved_overflow = capped_allocation(log_weight[order], size, floor)
    np.testing.assert_allclose(moved, p[order], rtol=1e-12, atol=0.0)
    if np.all((np.abs(p - 1.0) > 1e-9) | np.isin(np.arange(p.size), overflow)):
        assert {order[j] for j in moved_overflow} == set(overflow.tolist())


@fixed
@given(
    st.lists(st.integers(-40_000, 40_000), min_size=1, max_size=30),
    st.integers(-100_000, 100_000),
    st.floats(0.0, 1.0),
    st.data(),
)
def test_allocation_ignores_a_common_factor(
    steps: list[int], shift: int, share: float, data: st.DataObject
) -> None:
    log_weight = np.array(steps) / 1024.0  # exact in binary, and exact after the shift
    size = data.draw(st.integers(1, log_weight.size))
    floor = share * size / log_weight.size
    p = capped_allocation(log_weight, size, floor).probability
    shifted = capped_allocation(log_weight + shift, size, floor).probability
    np.testing.assert_allclose(shifted, p, rtol=1e-12, atol=0.0)


@fixed
@given(
    st.lists(spreads(8.0), min_size=2, max_size=30),
    st.floats(0.0, 0.95),
    st.data(),
)
def test_uncapped_share_one_tau_and_the_capped_would_exceed_one(
    values: list[float], share: float, data: st.DataObject
) -> None:
    log_weight = np.array(values)
    size = data.draw(st.integers(1, log_weight.size - 1))
    floor = share * size / log_weight.size
    p, overflow = capped_allocation(log_weight, size, floor)
    held = np.isin(np.arange(p.size), overflow)
    tau = (p[~held] - floor) / np.exp(log_weight[~held])
    np.testing.assert_allclose(tau, tau[0], rtol=1e-9 / (1.0 - share))
    assert np.all(floor + tau[0] * np.exp(log_weight[held]) > 1.0 - 1e-9)
    assert np.all(floor + tau[0] * np.exp(log_weight[~held]) <= 1.0 + 1e-9)


@pytest.mark.parametrize("spread", [1e3, 1e5, 1e12])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", [1, 7, 99, 100])
def test_allocation_under_a_wide_spread(spread: float, share: float, size: int) -> None:
    rng = np.random.default_rng(5)
    for log_weight in (
        rng.uniform(-spread, 0.0, 100),
        np.linspace(0.0, spread, 100),
        np.where(np.arange(100) < 3, 0.0, -spread),  # three lead, the rest is tied far below
        np.concatenate([rng.normal(0.0, 1.0, 50), rng.normal(-spread, 1.0, 50)]),
    ):
        assert_allocation_is_exact(log_weight, size, share * size / 100)


def test_allocation_when_all_but_a_few_weights_underflow() -> None:
    # exp(-2000) is 0 in floating point: only the first two are visible beside the leader, but
    # the other 98 share the third place once the two are held at 1.
    log_weight = np.full(100, -2000.0)
    log_weight[:2] = 0.0
    p, overflow = capped_allocation(log_weight, 3)
    assert overflow.tolist() == [0, 1]
    np.testing.assert_allclose(p[2:], 1.0 / 98.0, rtol=1e-12)


def test_allocation_in_layers_of_underflow() -> None:
    # Every step down underflows beside the one above: ten are certain, the rest is hopeless.
    log_weight = -1000.0 * np.arange(50.0)
    p, overflow = capped_allocation(log_weight, 10)
    np.testing.assert_array_equal(p[:10], 1.0)
    assert p[10:].sum() < 1e-300
    assert set(overflow.tolist()) <= set(range(10))
    assert set(overflow.tolist()) >= set(range(9))


@pytest.mark.parametrize("spread", [1e3, 1e5, 1e8, 1e12])
@pytest.mark.parametrize("leaders", [1, 2, 3, 4])
def test_allocation_where_the_leaders_are_just_above_or_below_one(
    spread: float, leaders: int
) -> None:
    # Ten clients, five places. The leaders' share is floor + (5 - 10 floor) / leaders, which is 1
    # at the floor (5 - leaders) / (10 - leaders); the others are far below.
    log_weight = np.arange(10.0) - spread
    log_weight[:leaders] = 0.0
    border = (5 - leaders) / (10 - leaders)
    steps = np.geomspace(1e-12, 1e-2, 40)
    for floor in np.concatenate([border - steps, border + steps]):
        p = capped_allocation(log_weight, 5, floor).probability
        assert math.fsum(p) == pytest.approx(5.0, rel=1e-9), floor - border
        assert_allocation_is_exact(log_weight, 5, floor)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_everyone_is_certain_when_size_is_n(n: int) -> None:
    log_weight = np.random.default_rng(n).normal(0.0, 3.0, n)
    for floor in (0.0, 0.5, 1.0):
        p, _ = capped_allocation(log_weight, n, floor)
        np.testing.assert_array_equal(p, 1.0)


def test_size_n_holds_back_only_those_above_the_smallest_weight() -> None:
    # Alg. 2 with k = K: line 1 fails for equal weights, so S_t is empty; otherwise Eq. (18) gives
    # alpha = Psi of the smallest, and S_t is everyone strictly above it.
    assert capped_allocation(np.zeros(5), 5).overflow.size == 0
    overflow = capped_allocation(np.array([2.0, 0.0, 1.0, 0.0]), 4).overflow
    assert sorted(overflow.tolist()) == [0, 2]


@pytest.mark.parametrize("log_weight", [np.zeros(4), np.array([1.0, -5.0, 1e5])])
def test_size_zero_gives_nobody_anything(log_weight: np.ndarray) -> None:
    p, overflow = capped_allocation(log_weight, 0)
    np.testing.assert_array_equal(p, 0.0)
    assert overflow.size == 0


@fixed
@given(st.integers(1, 300), st.data())
def test_floor_of_size_over_n_is_uniform(n: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, n))
    log_weight = np.linspace(-50.0, 50.0, n)
    for floor in (size / n, 1.0 * size / n, (1.0 / n) * size, np.nextafter(size / n, 2.0)):
        p, _ = capped_allocation(log_weight, size, floor)
        np.testing.assert_allclose(p, size / n, rtol=1e-9)
        assert np.all(p <= 1.0)


@pytest.mark.parametrize(
    ("size", "floor"), [(2, 0.5 + 1e-6), (2, 0.6), (4, 1.0 + 1e-6), (1, 1.0), (0, 0.1)]
)
def test_floor_above_size_over_n_is_refused(size: int, floor: float) -> None:
    with pytest.raises(InvalidInput, match="floor"):
        capped_allocation(np.zeros(4), size, floor)


@pytest.mark.parametrize("floor", [-0.1, math.nan, math.inf])
def test_impossible_floor_is_refused(floor: float) -> None:
    with pytest.raises(InvalidInput, match="floor"):
        capped_allocation(np.zeros(4), 2, floor)


@pytest.mark.parametrize("size", [-1, 5])
def test_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidInput, match="size"):
        capped_allocation(np.zeros(4), size)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_weights_that_are_not_numbers_are_refused(bad: float, size: int) -> None:
    for position in range(4):
        log_weight = np.array([0.0, 1.0, 2.0, 3.0])
        log_weight[position] = bad
        with pytest.raises(InvalidInput, match="weight"):
            capped_allocation(log_weight, size)


def test_allocation_of_many() -> None:
    rng = np.random.default_rng(8)
    log_weight = np.round(rng.normal(0.0, 4.0, 3000), 1)
    for size, share in ((50, 0.0), (500, 0.2), (2900, 0.0)):
        assert_allocation_is_exact(log_weight, size, share * size / 3000)


def test_allocation_leaves_its_input_alone() -> None:
    log_weight = np.array([3.0, 1.0, 2.0])
    log_weight.flags.writeable = False
    capped_allocation(log_weight, 2, 0.1)
    assert log_weight.tolist() == [3.0, 1.0, 2.0]


# --- top m ---------------------------------------------------------------------------------------

SCORES = st.one_of(
    st.lists(st.integers(-2, 2).map(float), min_size=1, max_size=30),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 1.0, math.inf, -math.inf]), min_size=1, max_size=30),
).map(np.array)


@fixed
@given(SCORES, st.integers(0, 2**32), st.data())
def test_top_m_are_the_largest(score: np.ndarray, seed: int, data: st.DataObject) -> None:
    m = data.draw(st.integers(0, score.size))
    chosen, probability = top_m(score, m, np.random.default_rng(seed))
    assert chosen.size == probability.size == m
    assert np.all(np.diff(chosen) > 0)
    assert sorted(score[chosen]) == sorted(score)[score.size - m :]
    if m:
        border = np.sort(score)[-m]
        above = int(np.sum(score > border))
        tied = int(np.sum(score == border))
        expected = np.where(score[chosen] > border, 1.0, (m - above) / tied)
        np.testing.assert_allclose(probability, expected, rtol=1e-12)


def test_top_m_breaks_ties_evenly() -> None:
    score = np.array([1.0, 5.0, 1.0, 1.0, 0.0, 1.0, 9.0])
    rng = np.random.default_rng(1)
    counts = np.zeros(7)
    for _ in range(8000):
        counts[top_m(score, 4, rng).chosen] += 1
    assert_frequencies(counts, 8000, np.array([0.5, 1.0, 0.5, 0.5, 0.0, 0.5, 1.0]))


@pytest.mark.parametrize("n", [2 * SAMPLE_SIZE - 1, 3 * SAMPLE_SIZE, 20_000])
def test_top_m_of_many(n: int) -> None:
    rng = np.random.default_rng(n)
    leaders = np.zeros(n)
    leaders[rng.choice(n, 40, replace=False)] = rng.random(40)
    for score in (
        rng.random(n),
        leaders,
        rng.integers(0, 5, n).astype(float),
        np.arange(float(n)),
        -np.arange(float(n)),
        np.where(np.arange(n) % 2 == 0, 1.0, rng.random(n)),  # the sample's stride sees one half
        np.zeros(n),
    ):
        for m in (1, 39, 41, n // 2, n - 1):
            chosen = top_m(score, m, rng).chosen
            assert np.unique(chosen).size == m
            np.testing.assert_array_equal(np.sort(score[chosen]), np.sort(score)[n - m :])


# --- draws: shape --------------------------------------------------------------------------------


def assert_frequencies(counts: np.ndarray, draws: int, p: np.ndarray) -> None:
    sigma = np.sqrt(p * (1.0 - p) / draws)
    assert np.all(np.abs(counts / draws - p) <= SIGMAS * sigma + 1e-12), counts / draws - p


def count(draw: Draw, p: np.ndarray, draws: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = np.zeros(p.size)
    for _ in range(draws):
        counts[draw(p, rng)] += 1
    return counts


@st.composite
def probabilities(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    numbers = draw(st.sampled_from([spreads(3.0), spreads(900.0), st.integers(-2, 2).map(float)]))
    log_weight = np.array(draw(st.lists(numbers, min_size=1, max_size=30)))
    size = draw(st.integers(1, log_weight.size))
    share = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return capped_allocation(log_weight, size, share * size / log_weight.size).probability, size


@pytest.mark.parametrize("draw", EXACT_DRAWS)
@fixed
@given(case=probabilities(), seed=st.integers(0, 2**32))
@example(case=(np.full(10, 0.1), 1), seed=0)
@example(case=(np.full(3, 1.0 / 3.0), 1), seed=1)
@example(case=(np.array([1.0, 0.0, 1.0, 0.0]), 2), seed=2)
@example(case=(np.array([1.0]), 1), seed=3)
def test_draws_have_the_size_and_respect_certainties(
    draw: Draw, case: tuple[np.ndarray, int], seed: int
) -> None:
    p, size = case
    chosen = draw(p, np.random.default_rng(seed))
    assert chosen.dtype == np.int64
    assert chosen.size == size
    assert np.all(np.diff(chosen) > 0)
    assert chosen.min() >= 0
    assert chosen.max() < p.size
    assert np.isin(np.flatnonzero(p == 1.0), chosen).all()
    assert np.all(p[chosen] > 0.0)


@pytest.mark.parametrize("draw", EXACT_DRAWS)
def test_drawing_nobody(draw: Draw) -> None:
    assert draw(np.zeros(5), np.random.default_rng(0)).size == 0


@pytest.mark.parametrize("n", [4 * N_GROUPS - 1, 4 * N_GROUPS, 4 * N_GROUPS + 1, LARGE])
def test_exact_draw_has_the_size_on_both_sides_of_the_border(n: int) -> None:
    rng = np.random.default_rng(n)
    for size in (1, 2, 100, n // 3, n - 1, n):
        for log_weight in (np.zeros(n), rng.normal(0, 2, n), rng.normal(0, 200, n)):
            p = capped_allocation(log_weight, size).probability
            for _ in range(3):
                chosen = exact_draw(p, rng)
                assert chosen.size == size
                assert np.all(np.diff(chosen) > 0)
                assert np.isin(np.flatnonzero(p == 1.0), chosen).all()
                assert np.all(p[chosen] > 0.0)


@pytest.mark.parametrize("draw", [*EXACT_DRAWS, lambda p, rng: top_m(p, 2, rng).chosen])
def test_draws_leave_their_input_alone(draw: Draw) -> None:
    p = np.array([0.5, 0.25, 0.25, 1.0])
    p.flags.writeable = False
    draw(p, np.random.default_rng(0))
    assert p.tolist() == [0.5, 0.25, 0.25, 1.0]


# --- draws: marginals ----------------------------------------------------------------------------

MARGINALS = [
    np.array([0.15, 0.62, 0.23, 1.0, 0.5, 0.5]),
    np.array([0.9, 0.9, 0.1, 0.1, 1.0, 0.97, 0.03]),
    np.array([1e-9, 1e-3, 0.999 - 1e-9, 0.25, 0.75]),
    np.array([0.01] * 50 + [0.5]),
    np.full(9, 4.0 / 9.0),
    np.array([1.0, 1.0, 0.3, 0.3, 0.4]),
]


@pytest.mark.parametrize("draw", EXACT_DRAWS)
@pytest.mark.parametrize("p", MARGINALS)
def test_exact_draws_have_their_marginals(draw: Draw, p: np.ndarray) -> None:
    draws = 3000
    assert_frequencies(count(draw, p, draws, seed=11), draws, p)


def large_marginals(size: int, leaders: int) -> np.ndarray:
    """A federation with certain, likely, unlikely and hopeless clients, in no order."""
    rng = np.random.default_rng(3)
    log_weight = rng.choice([0.0, 1.0, 3.0, 6.0, 9.0, -30.0], LARGE)
    log_weight[rng.choice(LARGE, leaders, replace=False)] = 20.0
    return capped_allocation(log_weight, size).probability


@pytest.mark.parametrize(
    ("size", "leaders"),
    # no group overflows; those with likely members; those with certain members; nearly all
    [(60, 0), (3000, 0), (900, 400), (12_000, 0)],
)
def test_grouped_draw_has_its_marginals(size: int, leaders: int) -> None:
    p = large_marginals(size, leaders)
    draws = 400
    assert np.sum(p == 1.0) >= leaders
    rng = np.random.default_rng(17)
    classes = np.unique(p, return_inverse=True)[1]
    blocks = np.arange(LARGE) * 32 // LARGE
    of_class = np.empty((draws, classes.max() + 1))
    of_block = np.empty((draws, 32))
    counts = np.zeros(LARGE)
    for r in range(draws):
        chosen = exact_draw(p, rng)
        assert chosen.size == size
        counts[chosen] += 1
        of_class[r] = np.bincount(classes[chosen], minlength=of_class.shape[1])
        of_block[r] = np.bincount(blocks[chosen], minlength=32)
    for seen, labels in ((of_class, classes), (of_block, blocks)):
        expected = np.bincount(labels, weights=p)
        error = np.abs(seen.mean(axis=0) - expected)
        often = draws * expected >= 25.0  # else the count is not near normal
        assert often.sum() >= 2
        margin = SIGMAS * seen.std(axis=0) / math.sqrt(draws) + 1e-9
        assert np.all(error[often] <= margin[often])
    # Each client's own count: a sum of squares of standardised binomials, with its own variance.
    free = (p > 1e-6) & (p < 1.0)
    variance = draws * p[free] * (1.0 - p[free])
    squares = (counts[free] - draws * p[free]) ** 2 / variance
    spread = math.sqrt(np.sum(2.0 + (1.0 - 6.0 * variance / draws) / variance))
    assert abs(squares.sum() - free.sum()) <= SIGMAS * spread
    np.testing.assert_array_equal(counts[p == 1.0], draws)


@pytest.mark.parametrize("n", [400, LARGE])
def test_exact_draw_treats_neighbours_like_distant_pairs(n: int) -> None:
    # With equal p every pair is drawn together with chance k(k-1) / (n(n-1)).
    size = n // 7
    p = np.full(n, size / n)
    draws = 500
    rng = np.random.default_rng(23)
    together = np.empty((draws, 5))
    for r in range(draws):
        drawn = np.zeros(n, dtype=bool)
        drawn[exact_draw(p, rng)] = True
        for j, step in enumerate((1, 2, N_GROUPS % n or 3, n // 2, n // 3)):
            together[r, j] = np.sum(drawn & np.roll(drawn, step))
    expected = n * size * (size - 1) / (n * (n - 1))
    error = together.mean(axis=0) - expected
    assert np.all(np.abs(error) <= SIGMAS * together.std(axis=0) / math.sqrt(draws))


def test_uniform_draw_is_uniform_over_clients_and_pairs() -> None:
    rng = np.random.default_rng(2)
    draws = 12_000
    singles, pairs = np.zeros(6), np.zeros((6, 6))
    for _ in range(draws):
        chosen = uniform_draw(6, 2, rng)
        assert chosen.size == 2
        assert chosen[0] < chosen[1]
        singles[chosen] += 1
        pairs[chosen[0], chosen[1]] += 1
    assert_frequencies(singles, draws, np.full(6, 2 / 6))
    assert_frequencies(pairs[np.triu_indices(6, 1)], draws, np.full(15, 1 / 15))
    assert uniform_draw(5, 5, rng).tolist() == [0, 1, 2, 3, 4]
    assert uniform_draw(5, 0, rng).size == 0


def test_a_random_part_is_uniform_keeps_the_order_and_draws_only_where_it_must() -> None:
    values, counts = np.array([7, 3, 9, 1]), np.zeros(10)
    for seed in range(3000):
        part = random_part(values, 2, np.random.default_rng(seed))
        assert part.tolist() in [[a, b] for i, a in enumerate(values) for b in values[i + 1 :]]
        counts[part] += 1
    assert np.abs(counts[values] / 3000 - 0.5).max() < 5 * np.sqrt(0.25 / 3000)
    rng = np.random.default_rng(0)
    assert random_part(values, 4, rng) is values
    assert random_part(values, 0, rng).size == 0
    assert random_part(values[:0], 3, rng).size == 0
    assert rng.random() == np.random.default_rng(0).random()


# --- multinomial without replacement -------------------------------------------------------------

# Three of eight, targets that sum to 3; an example of what the journal draw loses.
TARGETS = np.array([1.0, 0.45, 0.4, 0.3, 0.265, 0.22, 0.2, 0.165])


def multinomial_3(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return multinomial_without_replacement(p, 3, rng)


def test_multinomial_draw_does_not_have_the_marginals() -> None:
    draws = 10_000
    frequency = count(multinomial_3, TARGETS, draws, seed=4) / draws
    sigma = np.sqrt(np.maximum(TARGETS * (1.0 - TARGETS), 0.17) / draws)
    assert TARGETS.sum() == pytest.approx(3.0)
    assert TARGETS[0] - frequency[0] > 0.2
    assert frequency[0] == pytest.approx(0.77, abs=0.02)
    assert frequency[-1] - TARGETS[-1] > SIGMAS * sigma[-1]
    for draw in EXACT_DRAWS:  # the same targets are met by the exact draws
        assert_frequencies(count(draw, TARGETS, 5000, seed=5), 5000, TARGETS)


def test_multinomial_draw_follows_successive_sampling() -> None:
    weight = np.array([1.0, 0.6, 0.3, 0.1])
    law = successive_sampling(weight.tolist(), 2)
    assert sum(law.values()) == pytest.approx(1.0)
    rng = np.random.default_rng(6)
    draws = 10_000
    seen = dict.fromkeys(law, 0)
    for _ in range(draws):
        seen[tuple(multinomial_without_replacement(weight, 2, rng).tolist())] += 1
    sets = sorted(law)
    assert_frequencies(np.array([seen[s] for s in sets]), draws, np.array([law[s] for s in sets]))
    law = successive_sampling(TARGETS.tolist(), 3)
    marginal = np.array([sum(c for s, c in law.items() if i in s) for i in range(8)])
    assert marginal[0] == pytest.approx(0.77, abs=0.02)
    assert_frequencies(count(multinomial_3, TARGETS, draws, seed=7), draws, marginal)


@fixed
@given(probabilities(), st.integers(0, 2**32))
def test_multinomial_draw_has_the_size(case: tuple[np.ndarray, int], seed: int) -> None:
    p, size = case
    chosen = multinomial_without_replacement(p, size, np.random.default_rng(seed))
    assert chosen.size == size
    assert np.all(np.diff(chosen) > 0)
    if np.sum(p > 0.0) >= size:
        assert np.all(p[chosen] > 0.0)


def test_multinomial_draw_falls_back_on_zero_weights_evenly() -> None:
    weight = np.array([0.0, 2.0, 0.0, 0.0, 0.0])
    draws = 8000
    rng = np.random.default_rng(9)
    counts = np.zeros(5)
    for _ in range(draws):
        counts[multinomial_without_replacement(weight, 2, rng)] += 1
    assert_frequencies(counts, draws, np.array([0.25, 1.0, 0.25, 0.25, 0.25]))


def test_multinomial_draw_with_tiny_weights() -> None:
    weight = np.array([1e-300, 1.0, 1e-310, 1e-5, 1e-300])
    rng = np.random.default_rng(10)
    for _ in range(200):
        chosen = multinomial_without_replacement(weight, 3, rng)
        assert {1, 3} <= set(chosen.tolist())
    # Zero weights are drawn only when the positive ones run out, however small those are.
    weight = np.array([0.0, 1e-310, 0.0, 1.0])
    for _ in range(50):
        assert multinomial_without_replacement(weight, 2, rng).tolist() == [1, 3]


# --- bottleneck ----------------------------------------------------------------------------------


def objective_under(
    limit: float, cost: np.ndarray, gain: np.ndarray, size: int, price: float
) -> float:
    within = np.flatnonzero(cost <= limit)
    assert within.size >= size
    best = within[np.argsort(-gain[within], kind="stable")[:size]]
    return float(price * cost[best].max() - math.fsum(gain[best]))


def limit_objective(
    limit: float, cost: np.ndarray, gain: np.ndarray, size: int, price: float
) -> float:
    """What any choice of the largest gains within the limit costs at most, ties included."""
    within = np.flatnonzero(cost <= limit)
    return float(price * cost[within].max() - math.fsum(np.sort(gain[within])[::-1][:size]))


NUMBERS = st.one_of(st.integers(0, 4).map(float), st.floats(0.0, 100.0))
SIGNED = st.one_of(st.integers(-3, 3).map(float), st.floats(-100.0, 100.0))


@st.composite
def bottlenecks(
    draw: st.DrawFn, numbers: st.SearchStrategy[float], most: int
) -> tuple[np.ndarray, np.ndarray, int, float]:
    n = draw(st.integers(1, most))
    cost = draw(st.lists(numbers, min_size=n, max_size=n))
    gain = draw(st.lists(numbers, min_size=n, max_size=n))
    price = draw(st.sampled_from([0.0, 0.1, 1.0, 20.0, 1e6]))
    return np.array(cost), np.array(gain), draw(st.integers(1, n)), price


@fixed
@given(bottlenecks(NUMBERS, 10))
def test_bottleneck_equals_brute_force(case: tuple[np.ndarray, np.ndarray, int, float]) -> None:
    cost, gain, size, price = case
    best = brute_force(cost.tolist(), size, gain.tolist(), price)
    limit = bottleneck_limit(cost, gain, size, price)
    assert limit_objective(limit, cost, gain, size, price) == pytest.approx(
        best, rel=1e-9, abs=1e-9
    )


@fewer
@given(bottlenecks(SIGNED, 9))
def test_bottleneck_with_negative_costs_and_gains(
    case: tuple[np.ndarray, np.ndarray, int, float],
) -> None:
    cost, gain, size, price = case
    best = brute_force(cost.tolist(), size, gain.tolist(), price)
    limit = bottleneck_limit(cost, gain, size, price)
    assert limit_objective(limit, cost, gain, size, price) == pytest.approx(
        best, rel=1e-9, abs=1e-9
    )


@fixed
@given(bottlenecks(NUMBERS, 60))
def test_bottleneck_equals_algorithm_1(case: tuple[np.ndarray, np.ndarray, int, float]) -> None:
    cost, gain, size, price = case
    everyone = [True] * cost.size
    _, best = algorithm_1(cost.tolist(), size, everyone, gain.tolist(), price)
    limit = bottleneck_limit(cost, gain, size, price)
    assert limit_objective(limit, cost, gain, size, price) == pytest.approx(
        best, rel=1e-9, abs=1e-9
    )
    assert objective_under(limit, cost, gain, size, price) == pytest.approx(
        best, rel=1e-9, abs=1e-9
    )


@fixed
@given(bottlenecks(SIGNED, 40), st.integers(1, 3))
def test_leaving_out_who_cannot_be_in_the_best_set_changes_no_limit(
    case: tuple[np.ndarray, np.ndarray, int, float], sample: int
) -> None:
    cost, gain, size, price = case
    limit = bottleneck_limit(cost, gain, size, price)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(bottleneck, "PRUNED_FROM", sample)
        patches.setattr(bottleneck, "SAMPLE", sample)
        assert bottleneck_limit(cost, gain, size, price) == limit


def test_of_many_clients_few_are_searched() -> None:
    rng = np.random.default_rng(0)
    cost, gain = rng.lognormal(size=(2, 100_000))
    rivals = bottleneck._rivals(cost, gain, 100)
    assert 100 < rivals.sum() < 12_000  # about twice sqrt(100,000 x 100)


def sweep(cost: np.ndarray, gain: np.ndarray, size: int, price: float) -> float:
    """Sort by cost, keep the ``size`` largest gains in a heap."""
    heap: list[float] = []
    total, best = 0.0, math.inf
    order = np.argsort(cost, kind="stable")
    for place, i in enumerate(order):
        if len(heap) < size:
            heapq.heappush(heap, gain[i])
            total += gain[i]
        else:
            total += gain[i] - heapq.heappushpop(heap, gain[i])
        last_of_tie = place + 1 == order.size or cost[order[place + 1]] > cost[i]
        if len(heap) == size and last_of_tie:
            best = min(best, price * cost[i] - total)
    return best


def test_bottleneck_over_several_bins() -> None:
    # The bin with the best bound is often not the one with the optimum.
    rng = np.random.default_rng(14)
    for trial in range(150):
        n = int(rng.integers(2 * CLIENTS_PER_BIN, 8 * CLIENTS_PER_BIN))
        size = int(rng.choice([1, 2, 10, 100, 500]))
        cost = 50.0 * rng.random(n) ** rng.choice([0.3, 1.0, 3.0])
        gain = rng.exponential(1.0, n) * rng.choice([1.0, 10.0]) + rng.choice([0.0, 0.02]) * cost
        if trial % 3 == 0:
            cost = np.round(cost, 1)
        price = float(rng.choice([0.05, 0.5, 2.0, 10.0]))
        best = sweep(cost, gain, size, price)
        limit = bottleneck_limit(cost, gain, size, price)
        assert limit_objective(limit, cost, gain, size, price) == pytest.approx(
            best, rel=1e-9, abs=1e-9
        )


def large_instances() -> list[tuple[str, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(12)
    n = 20_000
    assert n > 8 * CLIENTS_PER_BIN
    u = rng.random(n)
    return [
        ("uniform", rng.uniform(0.0, 30.0, n), rng.exponential(1.0, n)),
        ("tied", rng.integers(0, 6, n).astype(float), np.round(rng.exponential(2.0, n), 1)),
        ("queue-like", rng.gamma(4.0, 1.0, n), 0.15 * rng.integers(0, 40, n)),
        ("heavy tail", np.exp(rng.normal(0.0, 12.0, n)), rng.pareto(1.5, n)),
        ("slow have long queues", 10.0 * u, 5.0 * u + 0.01 * rng.random(n)),
        ("half at zero", np.maximum(rng.normal(0.0, 5.0, n), 0.0), rng.random(n)),
        ("equal costs", np.full(n, 3.0), rng.random(n)),
        ("equal gains", rng.random(n), np.zeros(n)),
        ("descending", np.arange(n, 0.0, -1.0), np.arange(n, 0.0, -1.0)),
    ]


@pytest.mark.parametrize(("name", "cost", "gain"), large_instances())
@pytest.mark.parametrize("size", [1, 100, 7000])
def test_bottleneck_at_scale(name: str, cost: np.ndarray, gain: np.ndarray, size: int) -> None:
    for price in (0.0, 1.0, 200.0):
        best = sweep(cost, gain, size, price)
        limit = bottleneck_limit(cost, gain, size, price)
        got = limit_objective(limit, cost, gain, size, price)
        scale = price * float(cost.max()) + math.fsum(gain[np.argsort(-gain)[:size]])
        assert got == pytest.approx(best, rel=1e-9, abs=1e-12 * scale + 1e-12), (name, price)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("draw", EXACT_DRAWS)
@pytest.mark.parametrize(
    "bad", [[0.5, 0.5, 0.5], [0.5, math.nan], [math.inf, 0.0], [1.5, 0.5], [1.2, -0.2], [-1.0, 1.0]]
)
def test_what_are_no_inclusion_probabilities_is_refused(draw: Draw, bad: list[float]) -> None:
    for padding in (0, LARGE):  # also where exact_draw makes groups
        probability = np.concatenate((bad, np.zeros(padding)))
        with pytest.raises(InvalidInput, match="probability"):
            draw(probability, np.random.default_rng(0))


@pytest.mark.parametrize("draw", EXACT_DRAWS)
def test_nobody_is_drawn_from_nobody(draw: Draw) -> None:
    rng = np.random.default_rng(0)
    assert draw(np.zeros(0), rng).size == 0
    assert draw(np.zeros(3), rng).size == 0
    assert draw(np.ones(1), rng).tolist() == [0]


def test_an_allocation_of_nobody_is_empty() -> None:
    p, overflow = capped_allocation(np.zeros(0), 0)
    assert p.size == overflow.size == 0


@pytest.mark.parametrize("weight", [[1.0, -0.5], [1.0, math.nan], [1.0, math.inf]])
def test_impossible_weights_are_refused(weight: list[float]) -> None:
    with pytest.raises(InvalidInput, match="weight"):
        multinomial_without_replacement(np.array(weight), 1, np.random.default_rng(0))


def test_sizes_outside_of_the_clients_are_refused() -> None:
    rng, three = np.random.default_rng(0), np.arange(3.0)
    for size in (-1, 4, 1.5):
        with pytest.raises(InvalidInput, match="m must"):
            top_m(three, size, rng)
        with pytest.raises(InvalidInput, match="size must"):
            bottleneck_limit(three, three, size, price=1.0)
        with pytest.raises(InvalidInput, match="size must"):
            uniform_draw(3, size, rng)
        with pytest.raises(InvalidInput, match="k must"):
            kth_largest(three, size)
    for nobody in (lambda: bottleneck_limit(three, three, 0, 1.0), lambda: kth_largest(three, 0)):
        with pytest.raises(InvalidInput, match="must be an integer >= 1"):
            nobody()


@pytest.mark.parametrize("n", [1, 2, 7, 8, 20_000, 20_001])
def test_medians_and_ranks_are_those_of_numpy(n: int) -> None:
    rng = np.random.default_rng(n)
    few = rng.integers(0, 3, n).astype(np.float64)
    one = np.where(np.arange(n) % 5, 1.0, rng.random(n))
    two = np.repeat([0.0, 1.0], [n // 2, n - n // 2])
    for values in (rng.random(n), rng.lognormal(0, 3, n), np.sort(rng.random(n)), few, one, two):
        assert median(values) == np.median(values)
        ordered = np.sort(values)[::-1]
        for rank in {1, 1 + n // 3, n}:
            assert kth_largest(values, rank) == ordered[rank - 1]


def test_numbers_that_cannot_be_ranked_are_refused() -> None:
    three = np.arange(3.0)
    for bad in (math.nan, math.inf):
        odd = np.array([0.0, bad, 2.0])
        with pytest.raises(InvalidInput, match="cost"):
            bottleneck_limit(odd, three, 2, price=1.0)
        with pytest.raises(InvalidInput, match="gain"):
            bottleneck_limit(three, odd, 2, price=1.0)
    assert bottleneck_limit(1e308 * np.ones(3), three, 2, price=0.0) == 1e308
    with pytest.raises(InvalidInput, match="NaN"):
        kth_largest(np.array([0.0, math.nan, 2.0]), 2)
    assert kth_largest(np.array([-math.inf, math.inf, 2.0]), 2) == 2.0
    with pytest.raises(InvalidInput, match="length 3"):
        bottleneck_limit(three, np.arange(2.0), 2, price=1.0)


def test_unknown_weights_are_the_mean_of_the_known() -> None:
    unknown = math.nan
    np.testing.assert_array_equal(known_weights(np.array([1.0, unknown, 5.0])), [1.0, 3.0, 5.0])
    np.testing.assert_array_equal(known_weights(np.array([unknown, unknown])), [1.0, 1.0])
