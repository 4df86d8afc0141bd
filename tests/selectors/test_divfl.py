"""DivFL: facility location by greedy and stochastic greedy, unknown, silent and absent clients."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnout
from tests.references import divfl_slow
from turnout.core.errors import InvalidInput
from turnout.selectors.divfl import MOST_COMPARED, distances, representatives

NAN = math.nan


def made(vectors, **parameters):
    """Return a selector that knows these sketches; NaN = never answered."""
    vectors = np.array(vectors, dtype=float)
    given = {"sampled": None, "sketch_size": vectors.shape[1]} | parameters
    selector = turnout.make("divfl", **given)
    selector.reset(len(vectors))
    known = np.flatnonzero(~np.isnan(vectors).any(axis=1))
    report(selector, known, vectors[known])
    return selector


def report(selector, clients, vectors, round=0):
    n = len(clients)
    outcome = turnout.Outcome([0] * n, [1.0] * n, {"update_sketch": vectors})
    selector.observe(turnout.Selection(round, np.array(clients)), outcome)


def silence(selector, client, times):
    for t in range(times):
        report(selector, [client], np.full((1, selector.sketch_size), NAN), round=t)


def context(n, m, available=None, round=1):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    return turnout.RoundContext(round, m, available)


def chosen(selector, m, seed=0, available=None):
    ctx = context(selector.n_clients, m, available)
    return selector.select(ctx, np.random.default_rng(seed)).clients.tolist()


def frequency(selector, m, repeats, available=None):
    counts = np.zeros(selector.n_clients)
    for seed in range(repeats):
        counts[chosen(selector, m, seed, available)] += 1
    return counts / repeats


def cloud(n, d=3, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_by_hand():
    # On a line at 0, 1, 2, 10, 12: sums of distances are 25, 22, 21, 37, 45, so client 2 is first.
    # It leaves distances 2, 1, 0, 8, 10. Client 3 then saves 8 + 8 = 16, client 4 saves 6 + 10 =
    # 16, client 0 saves 2 + 1, client 1 saves 2: 3 and 4 are tied, and the third is the other one,
    # which saves 2, like client 0 (2) and client 1 (1 + 1).
    selector = made([[0.0], [1.0], [2.0], [10.0], [12.0]])
    assert chosen(selector, 1) == [2]
    assert {tuple(chosen(selector, 2, seed)) for seed in range(40)} == {(2, 3), (2, 4)}


def test_groups_of_equal_clients_get_one_place_each():
    vectors = [[1, 0, 0]] * 6 + [[0, 1, 0]] * 3 + [[0, 0, 1]] * 2
    for seed in range(20):
        groups = {0 if i < 6 else 1 if i < 9 else 2 for i in chosen(made(vectors), 3, seed)}
        assert groups == {0, 1, 2}


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6), st.data())
def test_every_step_of_greedy_is_the_best_of_the_slow_one(n, d, seed, data):
    m = data.draw(st.integers(1, n))
    vectors = cloud(n, d, seed)
    distance = distances(vectors, vectors)
    order = representatives(distance, m, np.random.default_rng(seed), np.ones(n)).tolist()
    vectors = vectors.tolist()
    for t in range(m):  # two steps may be equally good, so errors are compared
        errors = [divfl_slow.error(vectors, [*order[:t], k]) for k in range(n)]
        assert errors[order[t]] == pytest.approx(min(errors), abs=1e-6)
    assert len(set(order)) == m


def test_lazy_greedy_over_many_batches_equals_the_slow_one():
    vectors = cloud(150, 5)
    order = divfl_slow.greedy(vectors.tolist(), 12)
    distance = distances(vectors, vectors)
    ours = representatives(distance, 12, np.random.default_rng(0), np.ones(150))
    assert ours.tolist() == order
    assert chosen(made(vectors), 12) == sorted(order)


@given(st.integers(3, 8), st.integers(0, 10**6), st.data())
def test_greedy_keeps_its_guarantee(n, seed, data):
    # gain over an element as far away as the farthest pair: at least 1 - 1/e of the best
    m = data.draw(st.integers(1, n - 1))
    vectors = cloud(n, 2, seed).tolist()
    empty = n * max(math.dist(a, b) for a in vectors for b in vectors)
    ours = empty - divfl_slow.error(vectors, chosen(made(vectors), m))
    assert ours >= (1 - 1 / math.e) * (empty - divfl_slow.best(vectors, m)) - 1e-9


@pytest.mark.parametrize("sampled", [0.1, 0.5])
def test_frequencies_of_stochastic_greedy_are_those_of_the_slow_one(sampled):
    n, m, repeats = 10, 2, 4000
    vectors = cloud(n)
    ours = frequency(made(vectors, sampled=sampled), m, repeats)
    slow = np.zeros(n)
    for seed in range(repeats):
        sets = max(m, int(sampled * n))
        slow[divfl_slow.stochastic_greedy(vectors.tolist(), m, sets, random.Random(seed))] += 1
    assert np.abs(ours - slow / repeats).max() < 5 * math.sqrt(0.5 / repeats)


def test_stochastic_greedy_that_looks_at_all_is_greedy():
    vectors = cloud(20)
    assert chosen(made(vectors, sampled=1.0), 6) == chosen(made(vectors, sampled=None), 6)


def test_distances_are_euclidean_and_survive_the_largest_reports():
    one, other = cloud(4), cloud(5, seed=1)
    slow = [[math.dist(a, b) for b in other] for a in one]
    np.testing.assert_allclose(distances(one, other), slow, rtol=1e-9)
    hostile = np.array([[1e30, -1e30], [1.0, 2.0]])
    assert np.isfinite(distances(hostile, hostile)).all()


def test_a_hostile_sketch_takes_one_place_and_leaves_the_others_their_order():
    vectors = np.vstack((cloud(8, 2), [[1e30, 1e30]]))
    cohort = chosen(made(vectors), 4)
    assert 8 in cohort
    assert np.isfinite(made(vectors).sketch_).all()


def test_clients_that_never_answered_come_first_at_random():
    selector = made(np.vstack((cloud(4), np.full((4, 3), NAN))))
    assert all(set(chosen(selector, 2, seed)) <= {4, 5, 6, 7} for seed in range(30))
    np.testing.assert_allclose(frequency(selector, 2, 4000)[4:], 0.5, atol=0.04)
    cohort = chosen(selector, 5)
    assert cohort[1:] == [4, 5, 6, 7]
    assert cohort[:1] == divfl_slow.greedy(cloud(4).tolist(), 1)


def test_a_client_that_never_answers_comes_first_half_as_often_with_each_request():
    selector = made(np.vstack((cloud(5), np.full((1, 3), NAN))), patience=1)
    silence(selector, 5, 1)
    assert frequency(selector, 1, 50)[5] == 1.0
    silence(selector, 5, 2)
    assert frequency(selector, 1, 4000)[5] == pytest.approx(0.25, abs=0.04)
    assert frequency(made(np.full((3, 2), NAN)), 3, 5).tolist() == [1.0] * 3


def test_the_cohort_is_full_although_nobody_answers():
    selector = made(np.full((4, 2), NAN), patience=0)
    for client in range(4):
        silence(selector, client, 60)
    assert len(chosen(selector, 3)) == 3


def test_silence_halves_a_gain_after_patience_and_an_answer_restores_it():
    vectors = [[0.0], [1.0], [2.0], [10.0], [11.5]]
    selector = made(vectors, patience=1)
    assert chosen(selector, 1) == [2]
    silence(selector, 2, 1)
    assert chosen(selector, 1) == [2]
    silence(selector, 2, 1)
    assert chosen(selector, 1) == [1]
    report(selector, [2], [[2.0]], round=9)
    assert chosen(selector, 1) == [2]
    stays = made(vectors, patience=None)
    silence(stays, 2, 9)
    assert chosen(stays, 1) == [2]


def test_the_silent_lose_among_clients_without_a_gain():
    selector = made([[1.0]] * 4, patience=0)
    silence(selector, 1, 3)
    assert all(1 not in chosen(selector, 3, seed) for seed in range(20))


def test_stochastic_greedy_takes_nobody_twice_also_where_nobody_gains():
    for seed in range(30):
        assert len(set(chosen(made([[1.0]] * 6, sampled=0.5), 5, seed))) == 5


def test_equal_clients_are_drawn_at_random():
    np.testing.assert_allclose(frequency(made([[1.0, 2.0]] * 4), 1, 4000), 0.25, atol=0.04)


def test_absent_clients_are_represented_but_not_chosen():
    # clients 3 to 5 are absent; alone, 0 to 2 would be represented by client 1
    vectors = [[0.0], [1.0], [2.0], [5.0], [5.0], [5.0]]
    available = [True, True, True, False, False, False]
    assert chosen(made(vectors), 1, available=available) == [2]
    assert chosen(made(vectors[:3]), 1) == [1]


def test_a_part_of_a_vector_is_no_report():
    selector = made([[1.0, 2.0], [NAN, NAN]])
    report(selector, [0, 1], [[3.0, NAN], [4.0, 5.0]], round=1)
    assert selector.sketch_.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert selector.unanswered_.tolist() == [1, 0]


def test_candidates_are_a_random_part():
    vectors = cloud(40)
    selector = made(vectors, candidates=5)
    assert (frequency(selector, 2, 400) > 0).all()
    rng = np.random.default_rng(0)
    assert selector._candidates(np.arange(40), 12, rng).size == 12  # at least the cohort
    assert selector._candidates(np.arange(40), 2, rng).size == 5
    assert len(chosen(selector, 12)) == 12
    assert chosen(made(vectors, candidates=40), 6) == chosen(made(vectors, candidates=None), 6)


def test_too_many_clients_are_refused_and_the_parameter_is_named():
    selector = turnout.make("divfl", candidates=None)
    selector.reset(MOST_COMPARED)
    with pytest.raises(InvalidInput, match=r"candidates=None .* at most 5000 clients, got 5001"):
        selector.reset(MOST_COMPARED + 1)
    with pytest.raises(InvalidInput, match="candidates"):
        turnout.make("divfl", candidates=MOST_COMPARED + 1).reset(3)
    turnout.make("divfl", sketch_size=4).reset(100_000)
