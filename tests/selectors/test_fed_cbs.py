"""Fed-CBS: imbalance of cohorts, exact probabilities of cohorts, exploration, odd counts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnout
from tests.references import fed_cbs_slow
from turnout.core.errors import InvalidInput
from turnout.selectors.fed_cbs import BALANCED, MOST_COMPARED, known_counts, log_imbalance

NAN = math.nan
#: Fig. 3 of the paper: a greedy choice of three takes clients 0, 1 and one more.
FIG_3 = [[5, 5, 5, 5, 5, 5], [6, 6, 6, 6, 6, 0], [0, 0, 0, 10, 10, 10], [10, 10, 10, 0, 0, 0]]
COUNTS = [[9, 1, 2], [1, 12, 2], [3, 3, 20], [7, 8, 1], [4, 5, 6]]


def context(counts, m, round=0, available=None):
    counts = np.array(counts, dtype=float)
    available = np.ones(len(counts), dtype=bool) if available is None else np.array(available)
    return turnout.RoundContext(round, m, available, columns={"label_counts": counts})


def made(n, times=None, **parameters):
    selector = turnout.make("fed-cbs", **parameters)
    selector.reset(n)
    for client in range(n):
        for _ in range(0 if times is None else times[client]):
            tell(selector, [client])
    return selector


def tell(selector, clients, status=0):
    outcome = turnout.Outcome([status] * len(clients), [1.0] * len(clients))
    selector.observe(turnout.Selection(0, np.array(clients)), outcome)


def cohort(selector, ctx, seed=0):
    return selector.select(ctx, np.random.default_rng(seed)).clients.tolist()


def frequencies(selector, ctx, repeats):
    found = {}
    for seed in range(repeats):
        key = frozenset(cohort(selector, ctx, seed))
        found[key] = found.get(key, 0.0) + 1 / repeats
    return found


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=5))
def test_imbalance_is_the_distance_to_equal_shares_and_follows_from_inner_products(counts):
    counts = [[c + (b == 0) for b, c in enumerate(row)] for row in counts]
    everyone = list(range(len(counts)))
    slow = fed_cbs_slow.qcid(counts, everyone)
    assert fed_cbs_slow.qcid_by_products(counts, everyone) == pytest.approx(slow, abs=1e-12)
    together = np.array(counts, dtype=float).sum(axis=0)
    found = log_imbalance(np.array([together @ together]), np.array([together.sum()]), 4)
    assert np.exp(found[0]) == pytest.approx(max(slow, BALANCED), abs=1e-12)


def test_by_hand_the_weights_of_the_first_draw():
    # QCID of (3, 1): (1/4)^2 + (1/4)^2 = 1/8, of (1, 0): 1/2. Weights 8 and 2 in round 0.
    counts, repeats = [[3, 1], [1, 0]], 4000
    found = frequencies(made(2), context(counts, 1), repeats)
    assert found[frozenset({0})] == pytest.approx(0.8, abs=5 * math.sqrt(0.16 / repeats))
    # In round 2, ln k = ln 3. Three requests to client 0: T = 4 and 1.
    bonus = 10 * math.sqrt(1.5 * math.log(3))
    expected = (8 + bonus / 2) / (8 + bonus / 2 + 2 + bonus)
    found = frequencies(made(2, [3, 0]), context(counts, 1, round=2), repeats)
    assert found[frozenset({0})] == pytest.approx(expected, abs=5 * math.sqrt(0.25 / repeats))


def test_by_hand_the_example_of_the_paper():
    # Client 0 is balanced and first. With client 1, QCID is 5 / 60^2 + 25 / 60^2 = 1 / 120; with
    # client 2 or 3 it is 6 / 12^2 = 5 / 120. Their squares give weights 25, 1, 1. After 2 or 3, the
    # other one makes the cohort balanced. A greedy choice always takes client 1.
    slow = fed_cbs_slow.cohort_probabilities(FIG_3, [1] * 4, 1, 3, 10.0)
    assert slow[frozenset({0, 2, 3})] == pytest.approx(2 / 27, abs=1e-4)
    repeats = 3000
    found = frequencies(made(4), context(FIG_3, 3), repeats)
    for members, expected in slow.items():
        assert found.get(members, 0.0) == pytest.approx(expected, abs=5 * math.sqrt(0.25 / repeats))


@pytest.mark.parametrize("divisor", ["first", "candidate"])
@pytest.mark.parametrize(
    ("m", "round", "power"), [(1, 5, 1.0), (2, 5, 1.0), (3, 0, 0.5), (4, 9, 1)]
)
def test_frequencies_of_cohorts_are_their_exact_probabilities(divisor, m, round, power):
    times = [4, 0, 1, 0, 9]
    selector = made(5, times, power=power, exploration=3.0, divisor=divisor)
    slow = fed_cbs_slow.cohort_probabilities(
        COUNTS, [t + 1 for t in times], round + 1, m, 3.0, power, divisor == "candidate"
    )
    assert sum(slow.values()) == pytest.approx(1.0)
    repeats = 4000
    found = frequencies(selector, context(COUNTS, m, round), repeats)
    for members, expected in slow.items():
        margin = 5 * math.sqrt(expected * (1 - expected) / repeats) + 1 / repeats
        assert found.get(members, 0.0) == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize(
    ("parameters", "exact"),
    [
        ({"first": "best"}, {"first_is_best": True}),
        ({"last_power": 7.0}, {"last_power": 7.0}),
        ({"cohorts": 6}, {}),
        (
            {"first": "best", "last_power": 10.0, "cohorts": 6},
            {"first_is_best": True, "last_power": 10.0},
        ),
    ],
)
def test_the_rules_of_the_co_authors_code(parameters, exact):
    m, round, repeats = 3, 4, 4000
    selector = made(5, [4, 0, 1, 0, 9], exploration=1.0, **parameters)
    drawn = fed_cbs_slow.cohort_probabilities(COUNTS, [5, 1, 2, 1, 10], round + 1, m, 1.0, **exact)
    slow = fed_cbs_slow.best_of(COUNTS, drawn, parameters.get("cohorts", 1))
    assert sum(slow.values()) == pytest.approx(1.0)
    found = frequencies(selector, context(COUNTS, m, round), repeats)
    for members, expected in slow.items():
        margin = 5 * math.sqrt(expected * (1 - expected) / repeats) + 1 / repeats
        assert found.get(members, 0.0) == pytest.approx(expected, abs=margin)


def test_six_cohorts_find_the_balanced_one_of_fig_3_in_10_of_27_rounds():
    drawn = fed_cbs_slow.cohort_probabilities(FIG_3, [1] * 4, 1, 3, 10.0)
    slow = fed_cbs_slow.best_of(FIG_3, drawn, 6)
    assert slow[frozenset({0, 2, 3})] == pytest.approx(10 / 27, abs=1e-3)


def test_cohorts_are_more_balanced_than_random_ones():
    rng = np.random.default_rng(0)
    counts = np.rint(100 * rng.dirichlet(np.full(10, 0.1), 200)) + 1
    ctx = context(counts, 10)

    def imbalance(name):
        selector = turnout.make(name)
        selector.reset(200)
        chosen = [cohort(selector, ctx, seed) for seed in range(20)]
        return np.mean([fed_cbs_slow.qcid(counts.tolist(), members) for members in chosen])

    assert imbalance("fed-cbs") < 0.1 * imbalance("random")


def test_clients_that_were_seldom_chosen_are_drawn_more_often():
    counts = [[5, 1]] * 4
    selector = made(4, [50, 50, 50, 0])
    found = frequencies(selector, context(counts, 1, round=40), 1000)
    assert found[frozenset({3})] > 0.5
    found = frequencies(made(4, [50, 50, 50, 0], exploration=0), context(counts, 1, round=40), 1000)
    assert found[frozenset({3})] == pytest.approx(0.25, abs=5 * math.sqrt(0.19 / 1000))


def test_a_request_counts_also_without_an_answer():
    selector = made(3)
    tell(selector, [0, 2])
    tell(selector, [0], status=3)
    assert selector.count_.tolist() == [2, 0, 1]


def test_silence_halves_the_weight_after_patience():
    counts = [[5, 1]] * 2
    selector = made(2, patience=2, exploration=0.0)
    for _ in range(4):
        tell(selector, [0], status=3)
    found = frequencies(selector, context(counts, 1), 3000)
    assert found[frozenset({0})] == pytest.approx(0.2, abs=5 * math.sqrt(0.16 / 3000))
    for _ in range(5000):  # further than a float can halve
        tell(selector, [0], status=3)
    assert {*frequencies(selector, context(counts, 1), 50)} == {frozenset({1})}
    assert cohort(selector, context(counts, 2)) == [0, 1]
    tell(selector, [0])
    found = frequencies(selector, context(counts, 1), 3000)
    assert found[frozenset({0})] == pytest.approx(0.5, abs=5 * math.sqrt(0.25 / 3000))


def test_unknown_counts_are_those_of_the_mean_client():
    counts = np.array([[4.0, 0.0], [NAN, 3.0], [0.0, 2.0], [-1.0, 1.0], [1e31, 1.0]])
    assert known_counts(counts).tolist() == [[4, 0], [2, 1], [0, 2], [2, 1], [2, 1]]
    assert known_counts(np.full((2, 3), NAN)).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_clients_without_data_come_last():
    counts = [[0, 0], [5, 1], [0, 0], [1, 5], [0, 0]]
    for seed in range(20):
        assert cohort(made(5), context(counts, 2), seed) == [1, 3]
    drawn = {tuple(cohort(made(5), context(counts, 3), seed)) for seed in range(60)}
    assert drawn == {(0, 1, 3), (1, 2, 3), (1, 3, 4)}
    assert len(cohort(made(2), context([[0, 0], [0, 0]], 1))) == 1


def test_only_available_clients_are_drawn():
    available = [True, False, True, False, True]
    for seed in range(20):
        assert set(cohort(made(5), context(COUNTS, 2, available=available), seed)) <= {0, 2, 4}


@pytest.mark.parametrize("worst", [1e30, 1e300, math.inf, -1e30, 1e-300])
def test_impossible_counts_neither_overflow_nor_end_a_round(worst):
    counts = [[worst, 1.0], [worst, worst], [1.0, 2.0], [0.0, worst], [3.0, 1.0]]
    with np.errstate(all="raise", under="ignore"):
        assert len(cohort(made(5, power=50.0), context(counts, 4, round=3))) == 4


def test_with_many_clients_the_cohort_comes_from_a_sample_that_is_large_enough():
    n = 2 * MOST_COMPARED
    counts = np.tile([1.0, 0.0], (n, 1))
    counts[::2] = [0.0, 1.0]
    for seed in range(5):
        chosen = np.array(cohort(made(n), context(counts, 4), seed))
        assert (chosen % 2).sum() == 2  # two of each label
    assert len(cohort(made(n), context(counts, MOST_COMPARED + 1))) == MOST_COMPARED + 1


def test_one_number_per_client_is_refused():
    with pytest.raises(InvalidInput, match=r"label_counts.*one number per class, got shape \(4,\)"):
        cohort(made(4), context([1.0, 2.0, 3.0, 4.0], 2))
