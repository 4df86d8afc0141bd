import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.data import Digits, Dirichlet, Iid, Natural, PowerLaw, PrimaryLabel, Shards, federate

from .makers import grouped, labelled


def rng(seed=0):
    return np.random.default_rng(seed)


def hands(partition, dataset, n_clients, seed=0):
    rows, offsets = partition.assign(dataset, n_clients, rng(seed))
    assert offsets[0] == 0
    assert offsets[-1] == rows.size
    return np.split(rows, offsets[1:-1])


def counts_of(partition, dataset, n_clients, seed=0):
    return np.array(
        [
            np.bincount(dataset.y[own], minlength=dataset.n_classes)
            for own in hands(partition, dataset, n_clients, seed)
        ]
    )


def assert_within_5_sigma(found, expected, deviation):
    assert np.all(np.abs(np.asarray(found) - expected) <= 5 * np.asarray(deviation) + 1e-12)


# iid -------------------------------------------------------------------------------------------


def test_iid_gives_every_example_once():
    own = hands(Iid(), labelled([7, 4]), 3)
    assert [len(hand) for hand in own] == [3, 4, 4]
    assert sorted(np.concatenate(own)) == list(range(11))


def test_iid_with_samples_gives_nothing_twice_while_there_is_enough():
    own = np.concatenate(hands(Iid(samples=5), labelled([30, 30]), 12))
    assert np.unique(own).size == 60


def test_iid_with_samples_beyond_the_data_shares_evenly():
    own = hands(Iid(samples=7), labelled([6, 4]), 9)
    assert all(np.unique(hand).size == 7 for hand in own)
    used = np.bincount(np.concatenate(own), minlength=10)
    assert used.max() - used.min() <= 1


def test_iid_labels_are_a_sample_without_replacement():
    dataset = labelled([600, 200, 200])
    found = counts_of(Iid(samples=50), dataset, 20)
    share = np.array([0.6, 0.2, 0.2])
    deviation = np.sqrt(50 * share * (1 - share) * (1000 - 50) / 999)
    assert_within_5_sigma(found, 50 * share, deviation)


# primary label ---------------------------------------------------------------------------------


def test_primary_label_has_its_share_exactly():
    found = counts_of(PrimaryLabel(0.8, samples=20), labelled([60] * 5), 12)
    assert np.all(found.max(axis=1) == 16)
    assert np.all(found.sum(axis=1) == 20)


def test_the_share_is_rounded_and_not_cut_off():
    found = counts_of(PrimaryLabel(0.29, samples=100), labelled([900] * 9), 5)
    assert found.max(axis=1).tolist() == [29] * 5  # 0.29 * 100 is 28.999999999999996


def test_the_rest_is_drawn_without_replacement():
    found = counts_of(PrimaryLabel(0.25, samples=8), labelled([8, 3, 3]), 30)
    first = found[found[:, 0] == 2]  # those with primary label 0 need all six others
    assert len(first) >= 3
    assert {tuple(row) for row in first.tolist()} >= {(2, 3, 3)}
    assert np.all(found[:, 1:] <= 3)


def test_primary_label_share_may_be_all_or_nothing():
    only = counts_of(PrimaryLabel(1.0, samples=10), labelled([60] * 5), 12)
    assert np.all((only > 0).sum(axis=1) == 1)
    none = counts_of(PrimaryLabel(0.0, samples=10), labelled([60, 60]), 12)
    assert np.all((none > 0).sum(axis=1) == 1)  # two labels, one of them excluded


def test_primary_labels_are_uniform_and_the_rest_follows_the_other_labels():
    dataset = labelled([4000, 1000, 2000, 1000])
    n, size, rest = 3000, 10, 2
    found = counts_of(PrimaryLabel(0.8, samples=size), dataset, n, seed=4)
    primary = found.argmax(axis=1)
    assert np.all(found[np.arange(n), primary] == 8)
    how_often = np.bincount(primary, minlength=4)
    assert_within_5_sigma(how_often, n / 4, np.sqrt(n * 3 / 16))
    for label in range(4):
        others = np.delete(np.array([4000.0, 1000.0, 2000.0, 1000.0]), label)
        share = others / others.sum()
        mean = np.delete(found[primary == label].mean(axis=0), label)
        deviation = np.sqrt(rest * share * (1 - share) / how_often[label])
        assert_within_5_sigma(mean, rest * share, deviation)


def test_primary_label_is_independent_of_the_number_of_the_client():
    dataset = labelled([50] * 5)
    first, last = [], []
    for seed in range(500):
        primary = counts_of(PrimaryLabel(0.8, samples=10), dataset, 3, seed).argmax(axis=1)
        first.append(primary[0])
        last.append(primary[-1])
    for drawn in (first, last):
        assert_within_5_sigma(np.bincount(drawn, minlength=5), 100, np.sqrt(500 * 0.16))


def test_primary_label_repeats_an_example_only_after_all_of_its_label():
    dataset = labelled([12, 12, 12])
    own = hands(PrimaryLabel(0.8, samples=10), dataset, 15)
    assert all(np.unique(hand).size == 10 for hand in own)
    used = np.bincount(np.concatenate(own), minlength=36)
    for label in range(3):
        of_label = used[dataset.y == label]
        assert of_label.max() - of_label.min() <= 1


def test_primary_label_takes_an_equal_part_by_default():
    assert counts_of(PrimaryLabel(), labelled([50] * 4), 9).sum(axis=1).tolist() == [22] * 9


def test_primary_label_as_in_e3cs():
    with pytest.warns(UserWarning, match="hold_out: 100%"):  # 100 clients share 1,500 digits
        data = federate(Digits(), PrimaryLabel(0.8, samples=100), 100, seed=1, hold_out=0.1)
    assert data.num_samples.tolist() == [90] * 100
    assert len(data.y_holdout) == 1000


@pytest.mark.parametrize(
    ("partition", "counts", "message"),
    [
        (PrimaryLabel(0.8, samples=20), [12, 60], r"samples: .*16 examples of label 0.*most 15"),
        (PrimaryLabel(0.5, samples=20), [80, 9], r"samples: .*10 examples of label 1, .*only 9"),
        (PrimaryLabel(0.1, samples=20), [80, 9], r"samples: .*18 examples of other labels"),
        (PrimaryLabel(), [3, 3], r"n_clients: 9 clients share 6 examples, .* no data"),
        (Iid(samples=7), [3, 3], r"samples is 7, but there are only 6"),
    ],
)
def test_what_cannot_be_given_is_refused_with_the_fix(partition, counts, message):
    with pytest.raises(InvalidInput, match=message):
        counts_of(partition, labelled(counts), 9)


# shards ----------------------------------------------------------------------------------------


def test_shards_by_hand():
    dataset = labelled([4, 4, 4])
    found = counts_of(Shards(per_client=2), dataset, 3)
    assert found.sum(axis=1).tolist() == [4, 4, 4]
    assert found.sum(axis=0).tolist() == [4, 4, 4]
    assert np.all(np.isin(found, [0, 2, 4]))  # six shards of two, none across labels


def test_shards_use_every_example_once_and_few_labels():
    dataset = labelled([100] * 10)
    own = hands(Shards(per_client=2), dataset, 50)
    assert sorted(np.concatenate(own)) == list(range(1000))
    assert max(np.unique(dataset.y[hand]).size for hand in own) <= 2


def test_shards_that_do_not_divide_evenly():
    own = hands(Shards(per_client=3), labelled([10, 7]), 4)
    assert sorted(np.concatenate(own)) == list(range(17))
    assert min(len(hand) for hand in own) >= 3


def test_shards_are_dealt_at_random():
    dataset = labelled([2, 2])
    pairs = [counts_of(Shards(per_client=1), dataset, 4, seed)[:, 0].tolist() for seed in range(40)]
    assert len({tuple(pair) for pair in pairs}) == 6  # all ways to place two shards of label 0


def test_more_shards_than_examples():
    with pytest.raises(InvalidInput, match=r"per_client: .*a client would have no data"):
        counts_of(Shards(per_client=4), labelled([5, 5]), 3)


# natural ---------------------------------------------------------------------------------------


def test_natural_clients_are_groups():
    dataset = grouped([3, 1, 2])
    own = hands(Natural(), dataset, 3)
    assert [set(dataset.group[hand]) for hand in own] == [{0}, {1}, {2}]
    assert [len(hand) for hand in own] == [3, 1, 2]


def test_natural_bounds_by_hand():
    dataset = grouped([3, 9, 2, 5])
    own = hands(Natural(min_samples=3, max_samples=4), dataset, 3)
    assert [set(dataset.group[hand]) for hand in own] == [{0}, {1}, {3}]
    assert [len(hand) for hand in own] == [3, 4, 4]
    assert all(np.unique(hand).size == len(hand) for hand in own)


def test_natural_takes_the_largest():
    dataset = grouped([3, 9, 2, 5, 5, 1])
    own = hands(Natural(choose="largest"), dataset, 3)
    assert [int(dataset.group[hand][0]) for hand in own] == [1, 3, 4]


def test_natural_chooses_groups_uniformly():
    dataset = grouped([1, 2, 3, 4])
    chosen = np.zeros(4)
    for seed in range(2000):
        for hand in hands(Natural(), dataset, 2, seed):
            chosen[dataset.group[hand[0]]] += 1
    assert_within_5_sigma(chosen, 1000, np.sqrt(2000 * 0.25))


def test_natural_without_groups_or_with_too_few():
    with pytest.raises(InvalidInput, match="Natural needs examples that belong to someone"):
        hands(Natural(), labelled([4, 4]), 2)
    with pytest.raises(InvalidInput, match=r"n_clients is 3, but grouped has 2 groups of at least"):
        hands(Natural(min_samples=2), grouped([1, 4, 4]), 3)


# all -------------------------------------------------------------------------------------------

ALL = [
    Iid(),
    Iid(samples=11),
    PrimaryLabel(0.7, samples=20),
    Dirichlet(0.3),
    Dirichlet(0.3, equal_sizes=False),
    Dirichlet(2.0, samples=10),
    Shards(),
    PowerLaw(),
    PowerLaw(alpha=0.4),
]


@pytest.mark.parametrize("partition", ALL, ids=str)
def test_the_seed_fixes_the_division(partition):
    dataset = labelled([90, 50, 70, 80])
    first, again, other = (partition.assign(dataset, 12, rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("partition", ALL, ids=str)
def test_everyone_gets_something_and_nothing_twice(partition):
    for seed in range(5):
        own = hands(partition, labelled([90, 50, 70, 80]), 12, seed)
        assert len(own) == 12
        assert min(len(hand) for hand in own) >= 1
        assert all(np.unique(hand).size == len(hand) for hand in own)


@pytest.mark.parametrize("partition", [p for p in ALL if not isinstance(p, PrimaryLabel)], ids=str)
def test_one_client_is_enough(partition):
    (own,) = hands(partition, labelled([30, 20]), 1)
    assert np.unique(own).size == len(own) >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [Iid(samples=2), PrimaryLabel(0.5, samples=2), Dirichlet(0.5), Shards(), PowerLaw(alpha=0.5)],
    ids=str,
)
def test_many_clients(partition):
    own = partition.assign(labelled([100_000] * 4), 100_000, rng())
    assert np.diff(own[1]).min() >= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Iid(samples=0), "^samples"),
        (lambda: PrimaryLabel(share=1.2), "^share"),
        (lambda: PrimaryLabel(samples=1.5), "^samples"),
        (lambda: Shards(per_client=0), "^per_client"),
        (lambda: Natural(min_samples=0), "^min_samples"),
        (lambda: Natural(min_samples=5, max_samples=4), "^max_samples"),
        (lambda: Natural(choose="first"), "^choose"),
        (lambda: Dirichlet(alpha=0.0), "^alpha"),
        (lambda: Dirichlet(alpha=float("nan")), "^alpha"),
        (lambda: Dirichlet(equal_sizes=1), "^equal_sizes"),
        (lambda: Dirichlet(samples=0), "^samples"),
        (lambda: Dirichlet(samples=5, equal_sizes=False), "^samples needs equal_sizes=True"),
        (lambda: PowerLaw(exponent=0), "^exponent"),
        (lambda: PowerLaw(min_samples=0), "^min_samples"),
        (lambda: PowerLaw(alpha=-1), "^alpha"),
    ],
)
def test_settings_are_checked_by_name(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
