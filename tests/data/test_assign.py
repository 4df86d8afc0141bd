import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.core.errors import InvalidInput
from turnout.data.partitions import (
    deal,
    deal_labels,
    deal_once,
    equal_offsets,
    offsets_of,
    rank_within,
    whole,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_equal_parts_by_hand():
    assert equal_offsets(7, 3).tolist() == [0, 2, 4, 7]
    assert equal_offsets(6, 3).tolist() == [0, 2, 4, 6]
    assert offsets_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]


@given(st.integers(1, 60), st.integers(1, 20))
def test_equal_parts_differ_by_one_at_most(n_rows, n_parts):
    sizes = np.diff(equal_offsets(n_rows, n_parts))
    assert sizes.sum() == n_rows
    assert sizes.max() - sizes.min() <= 1


def test_rank_within_numbers_each_group_from_zero():
    group = np.array([3, 0, 3, 3, 0, 7])
    rank = rank_within(group, rng())
    for number, size in ((0, 2), (3, 3), (7, 1)):
        assert sorted(rank[group == number]) == list(range(size))


def test_rank_within_is_uniform():
    group = np.array([0, 0, 0, 1])
    generator = rng(5)
    ranks = np.array([rank_within(group, generator) for _ in range(6000)])
    counts = np.bincount(ranks[:, 0], minlength=3)
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(6000 * (1 / 3) * (2 / 3)))


def test_rank_within_of_nothing():
    assert rank_within(np.zeros(0, dtype=np.int64), rng()).size == 0


def test_whole_gives_to_the_largest_remainders():
    amounts = np.array([[0.4, 0.4, 1.2], [2.0, 0.0, 0.0], [0.5, 0.75, 0.75]])
    assert whole(amounts, np.array([2, 2, 2])).tolist() == [[1, 0, 1], [2, 0, 0], [0, 1, 1]]


@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12),
    st.integers(0, 500),
)
def test_whole_keeps_the_sum_and_stays_within_one(weights, total):
    share = np.array(weights) / np.sum(weights)
    counts = whole(total * share[None, :], np.array([total]))[0]
    assert counts.sum() == total
    assert np.all(np.abs(counts - total * share) < 1.0 + 1e-9)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), st.integers(1, 12), st.integers(0, 1000))
def test_dealt_rows_are_own_once_and_shared_evenly(data, n_pool, seed):
    counts = np.array(data.draw(st.lists(st.integers(0, n_pool), min_size=1, max_size=12)))
    pool = 100 + np.arange(n_pool)
    dealt = deal(pool, counts, rng(seed))
    offsets = offsets_of(counts)
    assert dealt.size == counts.sum()
    for first, last in itertools.pairwise(offsets):
        hand = dealt[first:last]
        assert np.unique(hand).size == hand.size
    used = np.bincount(dealt - 100, minlength=n_pool)
    assert used.max() - used.min() <= 1


def test_dealt_hands_are_uniform_also_across_passes():
    # a pool of 3, two hands of 2: the second hand goes over into the second pass
    generator = rng(3)
    n = 6000
    hands = [frozenset(deal(np.arange(3), np.array([2, 2]), generator)[2:]) for _ in range(n)]
    for pair in ({0, 1}, {0, 2}, {1, 2}):
        assert abs(hands.count(frozenset(pair)) - n / 3) < 5 * np.sqrt(n * 2 / 9)


def test_a_hand_larger_than_the_pool_is_refused():
    with pytest.raises(InvalidInput, match=r"^counts: .*asks for 4 examples, .* only 3"):
        deal(np.arange(3), np.array([1, 4]), rng())


def test_label_counts_are_met_exactly():
    labels = np.array([0, 1, 0, 1, 2, 0, 2, 1])
    counts = np.array([[2, 0, 1], [1, 2, 0], [0, 1, 1]])
    rows = deal_labels(labels, counts, rng())
    offsets = offsets_of(counts.sum(axis=1))
    for client, wanted in enumerate(counts):
        own = labels[rows[offsets[client] : offsets[client + 1]]]
        assert np.bincount(own, minlength=3).tolist() == wanted.tolist()
    assert np.unique(rows).size == rows.size


def test_labels_that_run_out_are_replaced_and_sizes_kept():
    labels = np.repeat([0, 1], [4, 4])
    counts = np.array([[4, 0], [4, 0]])  # label 0 is wanted twice
    rows = deal_once(labels, counts, rng())
    assert sorted(rows) == list(range(8))
    assert np.bincount(labels[rows], minlength=2).tolist() == [4, 4]


def test_who_loses_out_does_not_depend_on_the_number_of_the_client():
    labels = np.repeat([0, 1], [10, 10])
    counts = np.array([[5, 0]] * 4)
    generator = rng(11)
    kept = np.array(
        [
            (labels[deal_once(labels, counts, generator)] == 0).reshape(4, 5).sum(axis=1)
            for _ in range(2000)
        ]
    )
    # 10 of 20 claims are served, drawn at random: hypergeometric with mean 2.5
    deviation = np.sqrt(5 * 0.5 * 0.5 * (15 / 19))
    assert np.all(np.abs(kept.mean(axis=0) - 2.5) < 5 * deviation / np.sqrt(2000))
