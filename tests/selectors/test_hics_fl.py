"""HiCS-FL: balance and distance of the paper, groups, annealing, and new or silent clients."""

import math
import random

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

import turnout
from tests.references import hics_fl_slow
from turnout.selectors.hics_fl import MOST_GROUPED, described, distances

NAN = math.nan
HEAT = 0.5
BIASES = np.array(
    [
        [1.0, 1.0, 0.9],  # balanced
        [0.9, 1.0, 1.0],
        [2.0, -1.0, -1.0],  # one label
        [2.1, -1.0, -0.9],
        [-1.0, 2.0, -1.0],  # another one
    ]
)


def context(n, m, round=0, sizes=None, available=None):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {} if sizes is None else {"num_samples": np.array(sizes, dtype=float)}
    return turnout.RoundContext(round, m, available, columns=columns)


def tell(selector, clients, biases, round=0):
    k = len(clients)
    metrics = {"bias_update": biases}
    outcome = turnout.Outcome([0] * k, [1.0] * k, metrics)
    selector.observe(turnout.Selection(round, np.array(clients)), outcome)


def made(biases, **parameters):
    settings = {"classes": len(biases[0]), "groups": 3, "temperature": HEAT}
    selector = turnout.make("hics-fl", **(settings | parameters))
    selector.reset(len(biases))
    tell(selector, range(len(biases)), biases)
    return selector


def frequency(draw, n, repeats):
    counts = np.zeros(n)
    for seed in range(repeats):
        counts[list(draw(seed))] += 1 / repeats
    return counts


def test_balance_by_hand_and_as_the_slow_one():
    # softmax of (ln 2, 0) / 1 is (2/3, 1/3)
    _, found = described(np.array([[math.log(2.0), 0.0]]), 1.0)
    assert found[0] == pytest.approx(math.log(3.0) - 2 / 3 * math.log(2.0))
    _, found = described(BIASES, HEAT)
    slow = [hics_fl_slow.balance(list(bias), HEAT) for bias in BIASES]
    np.testing.assert_allclose(found, slow, rtol=1e-12)


def test_distances_are_those_of_the_slow_one():
    direction, balance = described(BIASES, HEAT)
    found = distances(direction, balance, direction, balance, 10.0)
    slow = [[hics_fl_slow.distance(list(a), list(b), HEAT, 10.0) for b in BIASES] for a in BIASES]
    np.testing.assert_allclose(found, slow, atol=1e-6)  # arccos near 1


def test_the_temperature_follows_the_size_of_the_changes():
    one, other = described(BIASES, None), described(1000.0 * BIASES, None)
    np.testing.assert_allclose(one[1], other[1])
    np.testing.assert_allclose(one[0], other[0])
    # largest changes 1, 1, 2, 2.1, 2, and 0 of a client that has not answered: half of 8.1 / 5
    biases = np.vstack((BIASES, np.zeros(3)))
    np.testing.assert_allclose(described(biases, None)[1][:5], described(biases, 0.81)[1][:5])


def test_like_clients_are_in_a_group():
    selector = made(BIASES)
    direction, balance = described(BIASES, HEAT)
    groups = selector._groups(direction, balance, np.random.default_rng(0))
    assert groups.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.filterwarnings("ignore:The symmetric non-negative hollow observation matrix")
def test_groups_of_rows_are_those_of_the_authors_code():
    biases = np.random.default_rng(5).standard_normal((12, 3))
    selector = made(biases, of_rows=True, groups=4)
    direction, balance = described(biases, HEAT)
    matrix = distances(direction, balance, direction, balance, 10.0)
    theirs = fcluster(linkage(matrix, "ward"), 4, criterion="maxclust")  # rows are points to scipy
    ours = selector._groups(direction, balance, np.random.default_rng(0))
    parts = [{frozenset(np.flatnonzero(x == k)) for k in set(x.tolist())} for x in (ours, theirs)]
    assert parts[0] == parts[1]


def test_without_data_all_clients_of_a_group_have_the_same_chance():
    ctx, everyone = context(5, 1, sizes=[10.0, 30.0, 20.0, 20.0, 5.0]), np.arange(5)
    for by_data, ratio in ((True, 3.0), (False, 1.0)):
        selector = made(BIASES, by_data=by_data)
        weight = selector._weight(ctx, everyone, np.random.default_rng(0))
        assert weight[1] / weight[0] == pytest.approx(ratio)


def test_unknown_sizes_count_as_the_mean_of_the_known_ones():
    ctx = context(5, 1, sizes=[10.0, NAN, 20.0, 60.0, 30.0])
    weight = made(BIASES)._weight(ctx, np.arange(5), np.random.default_rng(0))
    assert weight[1] / weight[0] == pytest.approx(30.0 / 10.0)


def test_a_client_that_did_not_answer_is_no_longer_new():
    selector = turnout.make("hics-fl", classes=3, groups=2)
    selector.reset(4)
    tell(selector, [0, 1], [[NAN] * 3] * 2)
    for seed in range(20):
        chosen = selector.select(context(4, 2), np.random.default_rng(seed)).clients
        assert chosen.tolist() == [2, 3]


@pytest.mark.parametrize("m", [1, 2, 4])
def test_frequencies_are_those_of_the_algorithm(m):
    sizes = [10.0, 30.0, 20.0, 20.0, 5.0]
    selector, ctx, repeats = made(BIASES, gamma=2.0), context(5, m, sizes=sizes), 6000
    groups = [[0, 1], [2, 3], [4]]
    balances = [hics_fl_slow.balance(list(bias), HEAT) for bias in BIASES]
    chances = hics_fl_slow.group_chances(groups, balances, 2.0)
    ours = frequency(lambda s: selector.select(ctx, np.random.default_rng(s)).clients, 5, repeats)
    slow = frequency(
        lambda s: hics_fl_slow.cohort(groups, chances, sizes, m, random.Random(s)), 5, repeats
    )
    assert np.abs(ours - slow).max() < 5 * math.sqrt(0.5 / repeats)


def test_balance_counts_less_with_the_rounds_and_nothing_at_the_horizon():
    selector = made(BIASES, gamma=4.0, horizon=100)

    def chances(round):
        weight = selector._weight(context(5, 1, round), np.arange(5), np.random.default_rng(0))
        return weight / weight.sum()

    balanced = [chances(t)[:2].sum() for t in (0, 50, 100, 150)]
    assert balanced[0] > balanced[1] > balanced[2]
    assert balanced[2] == pytest.approx(1 / 3)
    assert balanced[3] == pytest.approx(1 / 3)


def test_everyone_is_visited_first_and_so_are_clients_that_join():
    selector = turnout.make("hics-fl", classes=3)
    selector.reset(7)
    seen = set()
    for t in range(3):
        chosen = selector.select(context(7, 3, t), np.random.default_rng(t)).clients
        seen |= set(chosen.tolist())
        tell(selector, chosen, np.ones((3, 3)), t)
    assert seen == set(range(7))
    selector.grow(8)
    assert 7 in selector.select(context(8, 1, 3), np.random.default_rng(0)).clients


def test_a_client_without_an_answer_counts_with_the_mean_balance():
    biases = np.vstack([BIASES, np.full(3, NAN)])
    selector = made(biases, groups=4)
    _, balance = described(selector.bias_, HEAT)
    assert balance[5] == pytest.approx(balance[:5].mean())


def test_silence_halves_a_chance_after_patience():
    selector = made(BIASES, patience=2)

    def chance():
        return selector._weight(context(5, 1), np.arange(5), np.random.default_rng(0))[2]

    before = chance()
    for t in range(5):
        tell(selector, [2], [[NAN] * 3], t)
    assert chance() == pytest.approx(before / 8)
    tell(selector, [2], BIASES[[2]], 9)
    assert chance() == pytest.approx(before)


def test_many_clients_join_the_groups_of_a_sample():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 3 * MOST_GROUPED)
    biases = np.array([[1.0, 1.0, 1.0], [2.0, -1.0, -1.0], [-1.0, 2.0, -1.0]])[kind]
    biases = biases + 0.01 * rng.standard_normal(biases.shape)
    selector = made(biases, groups=3)
    direction, balance = described(biases, HEAT)
    groups = selector._groups(direction, balance, rng)
    assert all(len(set(groups[kind == k].tolist())) == 1 for k in range(3))
    assert len(set(groups.tolist())) == 3


def test_the_largest_reports_do_not_overflow():
    selector = made(np.array([[1e30, -1e30], [-1e30, 1e30], [1e-300, 0.0]]), groups=2)
    chosen = selector.select(context(3, 2), np.random.default_rng(0)).clients
    assert chosen.size == 2


def test_a_random_part_of_many_clients_can_be_chosen_and_kinds_keep_their_chances():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 3000)
    biases = np.array([[1.0, 1.0, 1.0], [2.0, -1.0, -1.0], [-1.0, 2.0, -1.0]])[kind]
    biases = biases + 0.01 * rng.standard_normal(biases.shape)
    share = {}
    for candidates in (None, 500):
        selector = made(biases, groups=3, gamma=1.0, candidates=candidates)
        chosen = [selector.select(context(3000, 20), rng).clients for _ in range(100)]
        assert all(x.size == 20 for x in chosen)
        share[candidates] = np.bincount(kind[np.concatenate(chosen)], minlength=3) / 2000
    assert share[None][0] > share[None][1:].max() + 0.1  # balanced labels first
    np.testing.assert_allclose(share[500], share[None], atol=5 * np.sqrt(0.5 / 2000))
    few = made(biases, groups=3, candidates=1)
    assert few.select(context(3000, 20), rng).clients.size == 20
    assert few._candidates(np.arange(3000), 20, rng).size == 400
