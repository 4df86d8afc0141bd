"""Optimal client sampling: the formula, AOCS, unbiased weights, and clients never heard of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import turnout
from tests.references import ocs_slow
from turnout.sampling import capped_allocation
from turnout.selectors.ocs import LEAST_WEIGHT, approximate_probability
from turnout.training import InverseProbability

NAN = float("nan")
amounts = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=8)


def made(norms, **parameters):
    """Return a selector that has seen these norms; NaN = never answered."""
    selector = turnout.make("ocs", **parameters)
    selector.reset(len(norms))
    report(selector, np.arange(len(norms)), norms)
    return selector


def report(selector, clients, norms, round=0):
    outcome = turnout.Outcome.from_reports(
        [0] * len(clients), [1.0] * len(clients), {"update_norm": norms}
    )
    selector.observe(turnout.Selection(round, np.array(clients)), outcome)


def context(sizes, m, round=1, available=None):
    n = len(sizes)
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {"num_samples": np.array(sizes, dtype=float)}
    return turnout.RoundContext(round, m, available, columns=columns)


def chances(selector, ctx, repeats=1):
    """Return the reported probability of every client, from draws until each came."""
    found = np.full(ctx.n_clients, NAN)
    for seed in range(400):
        selection = selector.select(ctx, np.random.default_rng(seed))
        found[selection.clients] = selection.probability
        if not np.isnan(found[ctx.pool]).any():
            return found
    raise AssertionError("a client never came")


def test_by_hand():
    # weights 1, 2, 3, 10 and m = 2: client 3 is certain, the rest share one place as 1 : 2 : 3
    found = chances(made([1.0, 2.0, 3.0, 10.0]), context([1, 1, 1, 1], 2))
    np.testing.assert_allclose(found, [1 / 6, 2 / 6, 3 / 6, 1.0])


def test_unknown_data_sizes_count_as_the_mean():
    found = chances(made([1.0, 1.0, 1.0]), context([10, NAN, 30], 1))
    np.testing.assert_allclose(found, [10 / 60, 20 / 60, 30 / 60])


def test_data_counts_beside_the_norm():
    found = chances(made([2.0, 1.0, 1.0]), context([10, 20, 40], 1))
    np.testing.assert_allclose(found, [0.25, 0.25, 0.5])


@given(amounts, st.data())
def test_equals_the_authors_formula(weights, data):
    m = data.draw(st.integers(1, len(weights)))
    ours = capped_allocation(np.log(weights), m).probability
    np.testing.assert_allclose(ours, ocs_slow.optimal(weights, m), rtol=1e-9)


@given(amounts, st.data(), st.integers(1, 6))
def test_aocs_equals_the_authors_rounds(weights, data, j_max):
    m = data.draw(st.integers(1, len(weights)))
    ours = approximate_probability(np.array(weights), m, j_max)
    np.testing.assert_allclose(ours, ocs_slow.approximate(weights, m, j_max), rtol=1e-9)
    assert ours.sum() <= m * (1 + 1e-9)


def test_aocs_comes_close_to_the_optimum():
    weights = np.random.default_rng(0).lognormal(0.0, 1.5, 50)
    best = capped_allocation(np.log(weights), 10).probability
    gaps = [np.abs(approximate_probability(weights, 10, j) - best).max() for j in (1, 2, 4, 20)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-9


def test_no_other_probabilities_have_less_variance():
    weights = np.array([0.3, 1.0, 2.0, 0.7, 6.0])
    m = 2
    ours = capped_allocation(np.log(weights), m).probability
    found = minimize(
        lambda p: float(np.sum(weights**2 / p)),
        np.full(5, m / 5),
        bounds=[(1e-4, 1.0)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - m},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.sum(weights**2 / ours) <= found.fun + 1e-6
    np.testing.assert_allclose(ours, found.x, atol=2e-4)


@pytest.mark.parametrize("iterations", [None, 1, 3])
def test_the_weighted_sum_is_unbiased(iterations):
    sizes, norms = [10, 30, 20, 25, 15], [1.0, 4.0, 0.5, 2.0, 3.0]
    selector, ctx = made(norms, iterations=iterations), context(sizes, 2)
    update = np.random.default_rng(1).standard_normal((5, 3))
    full = np.average(update, axis=0, weights=sizes)
    rule, rng = InverseProbability(), np.random.default_rng(2)
    steps = []
    for _ in range(4000):
        drawn = selector.select(ctx, rng)
        counts = np.array(sizes)[drawn.clients]
        steps.append(rule.coefficients(counts, drawn.probability, 100) @ update[drawn.clients])
    error = np.std(steps, axis=0) / np.sqrt(len(steps))
    assert (np.abs(np.mean(steps, axis=0) - full) < 5 * error).all()


def test_a_client_never_heard_of_counts_like_the_largest():
    found = chances(made([4.0, 1.0, NAN, 2.0]), context([1] * 4, 1))
    np.testing.assert_allclose(found, np.array([4, 1, 4, 2]) / 11)


def test_nothing_known_is_a_uniform_draw():
    np.testing.assert_allclose(chances(made([NAN] * 4), context([1] * 4, 2)), 0.5)


def test_a_norm_of_zero_is_looked_at_again():
    weight = made([0.0, 1.0, 2.0])._weight(context([1] * 3, 1))
    assert weight.tolist() == [LEAST_WEIGHT, 0.5, 1.0]
    found = chances(made([0.0, 0.0, 0.0]), context([1] * 3, 1))
    np.testing.assert_allclose(found, 1 / 3)


def test_silence_halves_a_weight_after_patience_and_an_answer_restores_it():
    selector, ctx = made([1.0, 1.0], patience=1), context([1, 1], 1)
    for t in range(3):
        report(selector, [0], [NAN], round=t + 1)
    np.testing.assert_allclose(chances(selector, ctx), [0.2, 0.8])  # two halvings
    report(selector, [0], [1.0], round=9)
    np.testing.assert_allclose(chances(selector, ctx), [0.5, 0.5])


def test_only_available_clients_share_the_places():
    selector = made([1.0, 2.0, 3.0, 100.0])
    found = chances(selector, context([1] * 4, 1, available=[True, True, False, False]))
    np.testing.assert_allclose(found[:2], [1 / 3, 2 / 3])


def test_a_cohort_of_aocs_is_at_most_what_was_asked_and_states_its_own_chances():
    norms = [1.0, 4.0, 16.0, 64.0]
    selector, ctx = made(norms, iterations=1), context([1] * 4, 3)
    p = approximate_probability(np.array(norms), 3, 1)
    assert p.sum() < 2.5  # far from the three places, so its chances are not those of OCS
    counts, sizes, repeats = np.zeros(4), set(), 4000
    for seed in range(repeats):
        drawn = selector.select(ctx, np.random.default_rng(seed))
        np.testing.assert_allclose(drawn.probability, p[drawn.clients], rtol=1e-12)
        counts[drawn.clients] += 1
        sizes.add(drawn.clients.size)
    assert sizes == {2, 3}
    assert np.abs(counts / repeats - p).max() < 5 * np.sqrt(0.25 / repeats)
    assert selector.may_underfill
    assert not made(norms).may_underfill
