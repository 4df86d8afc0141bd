import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.data import Dirichlet, PowerLaw
from turnout.data.partitions import fitted, proportions

from .makers import labelled
from .test_partitions import assert_within_5_sigma, counts_of, hands


def rng(seed=0):
    return np.random.default_rng(seed)


def test_proportions_have_the_moments_of_a_dirichlet():
    concentration = np.array([0.2, 0.5, 2.0])
    draws = proportions(concentration, 40_000, rng(2))
    total = concentration.sum()
    mean = concentration / total
    variance = mean * (1 - mean) / (total + 1)
    assert np.allclose(draws.sum(axis=1), 1.0)
    assert_within_5_sigma(draws.mean(axis=0), mean, np.sqrt(variance / 40_000))
    square = (draws - mean) ** 2
    assert_within_5_sigma(square.mean(axis=0), variance, square.std(axis=0) / np.sqrt(40_000))


@pytest.mark.parametrize("concentration", [1e-300, 1e-12, 1e-3, 1e3, 1e12])
def test_proportions_stay_finite(concentration):
    draws = proportions(np.full(5, concentration), 1000, rng())
    assert np.isfinite(draws).all()
    assert np.allclose(draws.sum(axis=1), 1.0)
    if concentration < 1e-9:
        assert np.all(draws.max(axis=1) > 0.999)
    if concentration == 1e12:
        assert np.allclose(draws, 0.2, atol=1e-4)


def test_dirichlet_draws_follow_alpha_times_the_prior():
    # 2,000 clients ask for 100,000 of 400,000 examples: nothing runs out, nothing is tilted
    dataset = labelled([200_000, 120_000, 80_000])
    found = counts_of(Dirichlet(0.5, samples=50), dataset, 2000, seed=3) / 50
    prior = np.array([0.5, 0.3, 0.2])
    concentration = 0.5 * 3 * prior
    variance = prior * (1 - prior) / (concentration.sum() + 1)
    assert_within_5_sigma(found.mean(axis=0), prior, np.sqrt(variance / 2000))
    square = (found - prior) ** 2
    rounding = 1.0 / 50**2  # counts are within one of the draw
    error = 5 * square.std(axis=0) / np.sqrt(2000) + rounding
    assert np.all(np.abs(square.mean(axis=0) - variance) <= error)


def test_equal_sizes_use_no_example_twice_and_all_there_are():
    own = hands(Dirichlet(0.1), labelled([40] * 5), 20)
    assert [len(hand) for hand in own] == [10] * 20
    assert np.unique(np.concatenate(own)).size == 200


def test_samples_beyond_the_data_are_shared_evenly_within_a_label():
    dataset = labelled([30] * 4)
    own = hands(Dirichlet(5.0, samples=20), dataset, 12)
    assert [len(hand) for hand in own] == [20] * 12
    assert all(np.unique(hand).size == 20 for hand in own)
    used = np.bincount(np.concatenate(own), minlength=120)
    for label in range(4):
        of_label = used[dataset.y == label]
        assert of_label.max() - of_label.min() <= 1


def test_samples_that_a_label_does_not_have():
    with pytest.raises(InvalidInput, match=r"samples: a client asks for \d+ examples of label"):
        counts_of(Dirichlet(1e-6, samples=50), labelled([20] * 5), 20)


def test_alpha_sets_how_far_clients_are_apart():
    dataset = labelled([500] * 10)
    apart = [
        np.abs(counts_of(Dirichlet(alpha), dataset, 50) / 100 - 0.1).sum(axis=1).mean() / 2
        for alpha in (0.05, 0.5, 5.0, 500.0)
    ]
    assert apart == sorted(apart, reverse=True)
    assert apart[0] > 0.7
    assert apart[-1] < 0.05


def test_using_everything_keeps_the_skew_that_was_drawn():
    # mean distance from everyone's labels: as drawn 0.50, tilted to fit 0.48, topped up 0.41
    dataset = labelled([142] * 10)
    kept = []
    for seed in range(10):
        found = counts_of(Dirichlet(0.3), dataset, 20, seed)
        kept.append(np.abs(found / 71 - 0.1).sum(axis=1).mean() / 2)
    drawn = proportions(np.full(10, 0.3), 4000, rng())
    wanted = np.abs(drawn - 0.1).sum(axis=1).mean() / 2
    assert np.mean(kept) > wanted - 0.05


def test_fitting_by_hand():
    amounts = np.array([[6.0, 2.0], [6.0, 2.0]])
    fit = fitted(amounts, np.array([8, 8]))
    assert np.allclose(fit.sum(axis=1), 8)
    assert fit[:, 0].sum() <= 8.5
    enough = fitted(amounts, np.array([12, 8]))
    assert np.array_equal(enough, amounts)


def test_fitting_gives_up_without_harm_where_it_cannot_fit():
    fit = fitted(np.array([[4.0, 0.0], [4.0, 0.0]]), np.array([4, 4]))
    assert np.allclose(fit, [[4, 0], [4, 0]])
    own = hands(Dirichlet(1e-9), labelled([4, 4]), 2, seed=1)
    assert sorted(np.concatenate(own)) == list(range(8))


def test_unequal_sizes_divide_each_label_among_the_clients():
    dataset = labelled([3000, 1000])
    found = np.array(
        [counts_of(Dirichlet(0.8, equal_sizes=False), dataset, 5, seed) for seed in range(300)]
    )
    assert np.all(found.sum(axis=1) == [3000, 1000])
    share = found / [3000, 1000]
    variance = 0.2 * 0.8 / (5 * 0.8 + 1)
    deviation = np.sqrt(variance / 300)
    assert_within_5_sigma(share.mean(axis=0), 0.2, deviation)


def test_unequal_sizes_leave_nobody_below_the_least():
    found = counts_of(Dirichlet(0.5, equal_sizes=False, min_samples=8), labelled([100] * 3), 6)
    assert found.sum(axis=1).min() >= 8


def test_unequal_sizes_that_cannot_serve_everyone():
    with pytest.raises(InvalidInput, match=r"alpha: 100 draws all left a client with no data"):
        counts_of(Dirichlet(0.01, equal_sizes=False), labelled([20, 20]), 30)


def test_labels_that_do_not_occur_are_left_out():
    dataset = labelled([40, 0, 40])
    for partition in (Dirichlet(0.3), Dirichlet(1.0, equal_sizes=False), PowerLaw(alpha=0.3)):
        assert counts_of(partition, dataset, 4)[:, 1].tolist() == [0] * 4


# power law -------------------------------------------------------------------------------------


def test_power_law_sizes_by_hand():
    sizes = PowerLaw(exponent=2.0, min_samples=3).sizes(100, 5, rng())
    assert sizes.sum() == 100
    assert sizes.min() >= 3


def test_power_law_sizes_have_a_pareto_tail():
    sizes = PowerLaw(exponent=2.0).sizes(40_000_000, 40_000, rng(1))
    weight = np.sort(sizes / sizes.min())
    # P(size > s) = s ** -2: the share above twice and above ten times the least
    for times, share in ((2.0, 0.25), (10.0, 0.01)):
        found = (weight > times).mean()
        assert abs(found - share) < 5 * np.sqrt(share / 40_000) + 0.005


def test_power_law_gives_every_example_once():
    for partition in (PowerLaw(1.2), PowerLaw(1.2, alpha=0.3)):
        own = hands(partition, labelled([100] * 4), 17)
        assert sorted(np.concatenate(own)) == list(range(400))


def test_power_law_skews_labels_only_if_asked():
    dataset = labelled([1000] * 4)

    def distance(partition):
        found = counts_of(partition, dataset, 10)
        return np.abs(found / found.sum(axis=1, keepdims=True) - 0.25).sum(axis=1).mean() / 2

    plain = distance(PowerLaw(3.0, min_samples=100))
    assert plain < 0.1 < 0.3 < distance(PowerLaw(3.0, min_samples=100, alpha=0.1))


def test_power_law_with_too_few_examples():
    with pytest.raises(InvalidInput, match=r"min_samples: .*a client would have no data"):
        counts_of(PowerLaw(min_samples=3), labelled([10, 10]), 7)
