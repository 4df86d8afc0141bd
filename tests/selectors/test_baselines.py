from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import turnout
from tests.references.oort_slow import successive_inclusion

NAN = math.nan
BASELINES = ["random", "data-weighted", "round-robin", "dirichlet"]


def context(n, m, round=0, available=None, sizes=None):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {} if sizes is None else {"num_samples": np.array(sizes)}
    return turnout.RoundContext(round, m, available, columns=columns)


def made(name, n, **parameters):
    selector = turnout.make(name, **parameters)
    selector.reset(n)
    return selector


def frequencies(selector, ctx, trials, seed=0):
    """How often each client was chosen, and the probability that was stated for it."""
    rng = np.random.default_rng(seed)
    counts, stated = np.zeros(ctx.n_clients), np.full(ctx.n_clients, NAN)
    for _ in range(trials):
        selection = selector.select(ctx, rng)
        counts[selection.clients] += 1
        if selection.probability is not None:
            stated[selection.clients] = selection.probability
    return counts, stated


def assert_frequencies(counts, trials, probability):
    p = np.array(probability)
    margin = 5 * np.sqrt(trials * p * (1 - p))
    assert np.all(np.abs(np.array(counts) - trials * p) <= margin + 1e-9), (counts, trials * p)


def tell(selector, selection):
    s = selection.clients.size
    selector.observe(selection, turnout.Outcome([0] * s, [1.0] * s))


# --- random ---


def test_random_every_set_equally_likely():
    selector, rng, trials = made("random", 5), np.random.default_rng(0), 4000
    sets = dict.fromkeys(itertools.combinations(range(5), 2), 0)
    for _ in range(trials):
        selection = selector.select(context(5, 2), rng)
        sets[tuple(selection.clients.tolist())] += 1
        assert selection.probability.tolist() == [2 / 5, 2 / 5]
    assert_frequencies(list(sets.values()), trials, [1 / 10] * 10)


def test_random_over_the_available():
    selector, trials = made("random", 6), 3000
    ctx = context(6, 2, available=[True, False, True, True, False, True])
    counts, stated = frequencies(selector, ctx, trials)
    assert_frequencies(counts, trials, [0.5, 0.0, 0.5, 0.5, 0.0, 0.5])
    assert stated[ctx.available].tolist() == [0.5] * 4


# --- data-weighted ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "m", "expected"),
    [
        # No cap: m p_k = 2 * (1, 2, 3, 4) / 10.
        ([1.0, 2.0, 3.0, 4.0], 2, [0.2, 0.4, 0.6, 0.8]),
        # One giant: capped at 1, the other place in proportion to (1, 1, 2).
        ([1000.0, 1.0, 1.0, 2.0], 2, [1.0, 0.25, 0.25, 0.5]),
        # Cap twice: 3 * (9, 5, 1, 1) / 16 puts 9 above 1, then 2 * (5, 1, 1) / 7 puts 5 above 1.
        ([9.0, 5.0, 1.0, 1.0], 3, [1.0, 1.0, 0.5, 0.5]),
        # Unknown = mean of the known, (1 + 5) / 2 = 3; m p = (1, 3, 5) / 9.
        ([1.0, NAN, 5.0], 1, [1 / 9, 3 / 9, 5 / 9]),
        # Without data: never, as long as the others fill the cohort.
        ([0.0, 2.0, 2.0, 0.0], 2, [0.0, 1.0, 1.0, 0.0]),
        ([0.0, 2.0, 6.0], 1, [0.0, 0.25, 0.75]),
        # ... and when the others run out, the last place is drawn among the empty.
        ([0.0, 2.0, 0.0, 0.0], 2, [1 / 3, 1.0, 1 / 3, 1 / 3]),
        ([0.0, 0.0, 0.0], 1, [1 / 3] * 3),
        ([NAN, NAN, NAN, NAN], 2, [0.5] * 4),
    ],
)
def test_data_weighted_marginals(sizes, m, expected):
    selector, trials = made("data-weighted", len(sizes)), 2000
    counts, stated = frequencies(selector, context(len(sizes), m, sizes=sizes), trials)
    assert counts.sum() == m * trials
    assert_frequencies(counts, trials, expected)
    seen = ~np.isnan(stated)
    assert stated[seen] == pytest.approx(np.array(expected)[seen], abs=1e-9)


@pytest.mark.slow
def test_data_weighted_random_instances_have_exact_marginals():
    rng = np.random.default_rng(6)
    for _ in range(4):
        n = int(rng.integers(3, 9))
        m = int(rng.integers(1, n))
        sizes = np.exp(rng.normal(0.0, 2.0, n))
        capped: list[int] = []  # slow: cap the largest until the rest fits
        while True:
            rest = [i for i in range(n) if i not in capped]
            tau = (m - len(capped)) / sum(sizes[i] for i in rest)
            above = [i for i in rest if tau * sizes[i] > 1.0]
            if not above:
                break
            capped += above
        expected = [1.0 if i in capped else tau * sizes[i] for i in range(n)]
        counts, stated = frequencies(
            made("data-weighted", n), context(n, m, sizes=sizes), 1500, int(rng.integers(99))
        )
        assert_frequencies(counts, 1500, expected)
        seen = ~np.isnan(stated)
        assert stated[seen] == pytest.approx(np.array(expected)[seen], abs=1e-9)


@pytest.mark.slow
def test_data_weighted_with_replacement():
    # pi_rand of Cho et al.: m draws with replacement, P(chosen) = 1 - (1 - q)^m.
    sizes, m, trials = [1.0, 2.0, 7.0], 3, 4000
    q = np.array([0.1, 0.2, 0.7])
    selector, rng = made("data-weighted", 3, replacement=True), np.random.default_rng(1)
    assert selector.may_underfill
    counts, multiplicity = np.zeros(3), np.zeros(3)
    ctx = context(3, m, sizes=sizes)
    for _ in range(trials):
        selection = selector.select(ctx, rng)
        counts[selection.clients] += 1
        times = selection.memo["multiplicity"]
        assert times.min() >= 1
        assert times.sum() == m
        multiplicity[selection.clients] += times
        expected = 1 - (1 - q[selection.clients]) ** m
        assert selection.probability == pytest.approx(expected, rel=1e-12)
    assert_frequencies(counts, trials, 1 - (1 - q) ** m)
    margin = 5 * np.sqrt(trials * m * q * (1 - q))
    assert np.all(np.abs(multiplicity - trials * m * q) <= margin)


def test_data_weighted_with_replacement_odd_sizes():
    selector, rng = made("data-weighted", 4, replacement=True), np.random.default_rng(1)
    for _ in range(200):
        chosen = selector.select(context(4, 3, sizes=[0.0, 1.0, NAN, 0.0]), rng).clients
        assert set(chosen.tolist()) <= {1, 2}
    # One client holds everything: probability 1, multiplicity 3.
    selection = selector.select(context(4, 3, sizes=[0.0, 5.0, 0.0, 0.0]), rng)
    assert selection.clients.tolist() == [1]
    assert selection.probability == pytest.approx([1.0])
    assert selection.memo["multiplicity"].tolist() == [3]
    # Nobody holds anything: still a round.
    assert selector.select(context(4, 3, sizes=[0.0] * 4), rng).clients.size >= 1


@pytest.mark.slow
def test_data_weighted_over_the_available():
    selector, trials = made("data-weighted", 5), 3000
    ctx = context(
        5, 1, available=[True, False, True, False, True], sizes=[1.0, 99.0, 2.0, 9.0, 5.0]
    )
    counts, _ = frequencies(selector, ctx, trials)
    assert_frequencies(counts, trials, [1 / 8, 0.0, 2 / 8, 0.0, 5 / 8])


def test_data_weighted_extreme_sizes():
    for sizes in ([1e30, 1e-30, 1e-30], [1e-300, 1e-300, 1e30], [5, 3, 2]):
        for m in (1, 2, 3):
            chosen = made("data-weighted", 3).select(
                context(3, m, sizes=sizes), np.random.default_rng(0)
            )
            assert chosen.clients.size == m
            assert np.all((chosen.probability > 0) & (chosen.probability <= 1))


@pytest.mark.parametrize("replacement", ["no", None])
def test_data_weighted_bad_parameter(replacement):
    with pytest.raises(turnout.InvalidInput, match="replacement"):
        turnout.make("data-weighted", replacement=replacement)


def test_data_weighted_missing_column():
    with pytest.raises(turnout.MissingColumn, match="num_samples"):
        made("data-weighted", 3).select(context(3, 1), np.random.default_rng(0))


# --- round-robin ---


@pytest.mark.parametrize(("n", "m"), [(12, 3), (10, 4), (7, 7), (5, 1)])
def test_round_robin_everyone_once_per_cycle(n, m):
    selector, rng = made("round-robin", n), np.random.default_rng(0)
    order = []
    rounds = 4 * n
    for t in range(rounds):
        selection = selector.select(context(n, m, t), rng)
        order.append(selection.clients.tolist())
        tell(selector, selection)
    times = np.zeros(n)
    for t, chosen in enumerate(order):
        times[chosen] += 1
        assert times.max() - times.min() <= 1, t
    if n % m == 0:
        for start in range(0, rounds - n // m + 1, n // m):
            cycle = sorted(itertools.chain(*order[start : start + n // m]))
            assert cycle == list(range(n))


def test_round_robin_serves_the_longest_waiting_available():
    selector, rng = made("round-robin", 4), np.random.default_rng(0)
    for t, k in enumerate([2, 0, 3, 1]):
        selection = selector.select(context(4, 1, t, np.arange(4) == k), rng)
        assert selection.clients.tolist() == [k]
        tell(selector, selection)
    # Waiting longest: 2, 0, 3, 1. With 2 away, 0 is next.
    assert selector.select(context(4, 1, 4), rng).clients.tolist() == [2]
    away = [True, True, False, True]
    assert selector.select(context(4, 1, 4, away), rng).clients.tolist() == [0]
    assert selector.select(context(4, 2, 4, away), rng).clients.tolist() == [0, 3]
    assert selector.select(context(4, 9, 4, away), rng).clients.tolist() == [0, 1, 3]


def test_round_robin_joiners_come_first():
    selector, rng = made("round-robin", 3), np.random.default_rng(0)
    for t in range(3):
        tell(selector, selector.select(context(3, 1, t), rng))
    selector.grow(5)
    selection = selector.select(context(5, 2, 3), rng)
    assert selection.clients.tolist() == [3, 4]
    tell(selector, selection)
    seen = set()
    for t in range(4, 7):
        selection = selector.select(context(5, 1, t), rng)
        seen.update(selection.clients.tolist())
        tell(selector, selection)
    assert seen == {0, 1, 2}


def test_round_robin_counts_failures_and_late_feedback():
    selector, rng = made("round-robin", 3), np.random.default_rng(0)
    early = selector.select(context(3, 1, 0, [True, False, False]), rng)
    later = selector.select(context(3, 1, 9, [True, False, False]), rng)
    middle = selector.select(context(3, 2, 5, [False, True, True]), rng)
    selector.observe(later, turnout.Outcome([3], [NAN]))  # failed, and still had its turn
    selector.observe(middle, turnout.Outcome([2, 2], [NAN, NAN]))
    selector.observe(early, turnout.Outcome([1], [9.0]))  # feedback of round 0 comes last
    assert 0 not in selector.select(context(3, 2, 10), rng).clients


def test_round_robin_first_cycle_is_in_random_order():
    trials, counts, rng = 4000, np.zeros(4), np.random.default_rng(3)
    selector = made("round-robin", 4)
    for _ in range(trials):
        counts[selector.select(context(4, 1), rng).clients] += 1
    assert_frequencies(counts, trials, [1 / 4] * 4)


# --- dirichlet ---


def fixed_vector(selector):
    weight = np.exp(selector.log_weight_ - selector.log_weight_.max())
    return weight / weight.sum()


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2, 3])
def test_dirichlet_draws_like_numpy_choice(m):
    selector = made("dirichlet", 4, concentration=1.5)
    selector.randomize(np.random.default_rng(5))
    q, trials = fixed_vector(selector), 5000
    expected = successive_inclusion(q.tolist(), m)
    counts, _ = frequencies(selector, context(4, m), trials)
    assert_frequencies(counts, trials, expected)
    rng, counts = np.random.default_rng(7), np.zeros(4)
    for _ in range(trials):
        counts[rng.choice(4, m, replace=False, p=q)] += 1
    assert_frequencies(counts, trials, expected)


def test_dirichlet_draw_over_the_available():
    selector = made("dirichlet", 5)
    available = np.array([True, False, True, True, True])
    q, trials = fixed_vector(selector), 4000
    counts, _ = frequencies(selector, context(5, 2, available=available), trials)
    expected = successive_inclusion(q[available].tolist(), 2)
    assert_frequencies(counts[available], trials, expected)
    assert counts[1] == 0


@pytest.mark.parametrize("concentration", [0.2, 1.0, 5.0])
def test_dirichlet_vector_has_the_moments_of_the_distribution(concentration):
    # Dir(gamma 1_n): mean 1/n, E[q^2] = (gamma + 1) / (n (n gamma + 1)).
    n, repeats = 4, 4000
    selector = made("dirichlet", n, concentration=concentration)
    rng, sample = np.random.default_rng(8), np.zeros((repeats, n))
    for row in range(repeats):
        selector.randomize(rng)
        sample[row] = fixed_vector(selector)
    second = (concentration + 1) / (n * (n * concentration + 1))
    for values, mean in ((sample, 1 / n), (sample**2, second)):
        margin = 5 * values.std(axis=0) / math.sqrt(repeats)
        assert np.all(np.abs(values.mean(axis=0) - mean) <= margin)


def test_dirichlet_seeds():
    first, same, other, plain = (made("dirichlet", 6) for _ in range(4))
    first.prepare(6, seed=1)
    same.prepare(6, seed=1)
    other.prepare(6, seed=2)
    assert np.array_equal(first.log_weight_, same.log_weight_)
    assert not np.array_equal(first.log_weight_, other.log_weight_)
    assert np.array_equal(plain.log_weight_, made("dirichlet", 6).log_weight_)


def test_dirichlet_stays_fixed_over_the_run():
    selector, rng = made("dirichlet", 6), np.random.default_rng(0)
    before = selector.state()
    for t in range(20):
        tell(selector, selector.select(context(6, 2, t), rng))
    after = selector.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_dirichlet_tiny_concentration_stays_finite():
    selector, rng = made("dirichlet", 50, concentration=1e-3), np.random.default_rng(0)
    for seed in range(20):
        selector.prepare(50, seed=seed)
        assert np.all(np.isfinite(selector.log_weight_))
        assert len(set(selector.log_weight_.tolist())) == 50
        assert selector.select(context(50, 10), rng).clients.size == 10
    top = int(np.argmax(selector.log_weight_))
    assert all(top in selector.select(context(50, 1), rng).clients for _ in range(50))


def test_dirichlet_joiners_keep_the_known():
    selector = made("dirichlet", 4)
    before = selector.log_weight_.copy()
    selector.grow(9)
    assert np.array_equal(selector.log_weight_[:4], before)
    assert np.all(np.isfinite(selector.log_weight_))
    assert len(set(selector.log_weight_.tolist())) == 9


@pytest.mark.parametrize("concentration", [0.0, -1.0, NAN, math.inf, "1", True])
def test_dirichlet_bad_parameter(concentration):
    with pytest.raises(turnout.InvalidInput, match="concentration"):
        turnout.make("dirichlet", concentration=concentration)


# --- all ---


@pytest.mark.parametrize("name", BASELINES)
def test_edges(name):
    selector, rng = made(name, 4), np.random.default_rng(0)
    sizes = [1.0, 2.0, 3.0, 4.0]
    assert selector.select(context(4, 2, available=[False] * 4, sizes=sizes), rng).clients.size == 0
    ctx = context(4, 3, available=[False, True, False, True], sizes=sizes)
    assert selector.select(ctx, rng).clients.tolist() == [1, 3]
    assert selector.select(context(4, 100, sizes=sizes), rng).clients.tolist() == [0, 1, 2, 3]
    one = made(name, 1)
    assert one.select(context(1, 1, sizes=[3.0]), rng).clients.tolist() == [0]


@pytest.mark.parametrize("name", BASELINES)
def test_bad_input_leaves_the_state_unchanged(name):
    selector, rng = made(name, 3), np.random.default_rng(0)
    before = selector.state()
    with pytest.raises(turnout.InvalidInput, match="available"):
        selector.select(context(4, 1, sizes=[1.0] * 4), rng)
    after = selector.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
