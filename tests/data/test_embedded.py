import sys

import numpy as np
import pytest

from turnout.core.errors import InvalidInput, MissingExtra
from turnout.data import Digits, Natural, Synthetic, federate
from turnout.data.base import Draw
from turnout.data.embedded import _labels, client_sizes, held_back


def test_digits_are_all_there_and_split_by_label():
    dataset = Digits().load(seed=0)
    assert dataset.x.shape[1:] == (1, 8, 8)
    assert dataset.x.dtype == np.uint8
    assert len(dataset.y) + len(dataset.y_test) == 1797
    total = np.bincount(dataset.y) + np.bincount(dataset.y_test)
    assert total.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(dataset.y_test).tolist() == np.rint(0.2 * total).tolist()
    assert (dataset.x * dataset.scale + dataset.shift).max() == 1.0


def test_the_seed_chooses_the_test_digits():
    first, again, other = (Digits().load(seed) for seed in (1, 1, 2))
    assert np.array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match="pip install"):
        Digits().load(seed=0)


def test_held_back_by_hand():
    group = np.repeat([0, 1, 2], [1, 2, 10])
    is_test = held_back(group, 0.5, np.random.default_rng(0))
    assert np.bincount(group[is_test], minlength=3).tolist() == [0, 1, 5]
    nearly_all = held_back(group, 0.99, np.random.default_rng(0))
    assert np.bincount(group[nearly_all], minlength=3).tolist() == [0, 1, 9]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_test_share_is_checked(share):
    for make in (Digits, Synthetic):
        with pytest.raises(InvalidInput, match=r"^test_share"):
            make(test_share=share)


# synthetic -------------------------------------------------------------------------------------


def test_synthetic_has_the_shape_of_the_paper():
    dataset = Synthetic().load(seed=0)
    assert dataset.x.shape[1] == 60
    assert dataset.x.dtype == np.float32
    assert dataset.n_classes == 10
    assert np.unique(dataset.group).size == 30
    size = np.bincount(dataset.group)
    assert size.min() >= 45  # 50 and more, a tenth of them for the test
    assert abs(len(dataset.y_test) / (len(dataset.y_test) + len(dataset.y)) - 0.1) < 0.01


def test_synthetic_sizes_are_lognormal():
    n = 100_000
    size = client_sizes(n, np.random.default_rng(0))
    assert size.min() == 50
    # P(size - 50 >= s) with s = e^4, e^6, e^8: above the mean by 0, 1, 2 deviations of 2
    for power, share in ((4, 0.5), (6, 0.158655), (8, 0.022750)):
        found = (size - 50 >= np.ceil(np.exp(power))).mean()
        exact = share if power > 4 else 0.4975  # e^4 = 54.6 is cut off at 55
        assert abs(found - exact) < 5 * np.sqrt(share * (1 - share) / n) + 0.001
    dataset = Synthetic(n_clients=40, dimension=2).load(seed=3)
    together = len(dataset.y) + len(dataset.y_test)
    assert together == client_sizes(40, Draw.CONTENT.rng(3)).sum()


def test_synthetic_inputs_have_the_covariance_of_the_paper():
    dataset = Synthetic(n_clients=1, test_share=1e-9).load(seed=7)
    n = len(dataset.y)
    assert n > 500
    variance = dataset.x.astype(float).var(axis=0, ddof=1)
    expected = np.arange(1, 61) ** -1.2
    assert np.all(np.abs(variance / expected - 1) < 5 * np.sqrt(2 / (n - 1)))


def test_synthetic_centres_move_with_beta():
    def centre_spread(beta):
        dataset = Synthetic(beta=beta, n_clients=60, n_classes=2).load(seed=1)
        total = np.zeros((60, 60))
        np.add.at(total, dataset.group, dataset.x)
        centre = total / np.bincount(dataset.group)[:, None]  # about v_k ~ N(B_k, 1)
        return centre.mean(axis=1).std()

    # the mean of 60 entries of v_k is B_k + N(0, 1/60)
    for beta in (0.0, 1.0, 5.0):
        expected = np.sqrt(beta**2 + 1 / 60)
        assert abs(centre_spread(beta) - expected) < 5 * expected / np.sqrt(120) + 0.02


def test_alpha_changes_no_label():
    # u_k is added to every entry of W_k and b_k, so to the score of every class alike
    plain, shifted = (Synthetic(alpha=alpha, n_clients=10).load(seed=4) for alpha in (0.0, 5.0))
    assert np.array_equal(plain.x, shifted.x)
    assert np.array_equal(plain.y, shifted.y)


def test_synthetic_labels_by_hand():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    owner = np.array([0, 0, 1])
    weight = np.zeros((2, 2, 2))  # class, client, coordinate
    weight[0, 0] = [3.0, -1.0]
    weight[1, 1] = [1.0, 1.0]
    bias = np.array([[0.0, 2.5], [0.5, 0.0]])
    # client 0: scores 3 against 0.5, then -1 against 0.5; client 1: 2.5 against 2
    assert _labels(x, owner, weight, bias).tolist() == [0, 1, 0]


def test_synthetic_labels_follow_one_linear_model_per_client():
    dataset = Synthetic(n_clients=3).load(seed=2)
    from sklearn.linear_model import LogisticRegression

    for client in range(3):
        own = dataset.group == client
        if np.unique(dataset.y[own]).size > 1:
            model = LogisticRegression(C=1e4, max_iter=2000).fit(dataset.x[own], dataset.y[own])
            assert model.score(dataset.x[own], dataset.y[own]) > 0.99


def test_synthetic_is_fixed_by_the_seed_and_divided_by_its_clients():
    data, again = (federate(Synthetic(), Natural(), 30, seed=5) for _ in range(2))
    assert np.array_equal(data.x, again.x)
    assert np.array_equal(data.y, again.y)
    assert data.n_clients == 30
    other = federate(Synthetic(), Natural(), 30, seed=6)
    assert not np.array_equal(data.num_samples, other.num_samples)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1.0}, "^alpha"),
        ({"beta": float("inf")}, "^beta"),
        ({"n_clients": 0}, "^n_clients"),
        ({"dimension": 0}, "^dimension"),
        ({"n_classes": 1}, "^n_classes"),
    ],
)
def test_synthetic_settings_are_checked(settings, message):
    with pytest.raises(InvalidInput, match=message):
        Synthetic(**settings)
