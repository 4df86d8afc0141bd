import math

import numpy as np
import pytest

from tests.worlds.helpers import moment
from turnout.core.errors import InvalidInput
from turnout.worlds import Environment, Population, SyntheticLoss


def test_constant_and_power_law_sizes():
    assert (Population(samples=600).num_samples(50, 1) == 600).all()
    n = 40_000
    sizes = Population(samples=100, tail=2.0).num_samples(n, 1)
    assert sizes.min() >= 100
    for x in (200, 400, 1000):
        chance = (100 / x) ** 2
        assert abs(np.mean(sizes >= x) - chance) <= 5.0 * math.sqrt(chance / n)


def test_loss_levels():
    n = 20_000
    level = np.log(Population(level_spread=0.5).loss_level(n, 1))
    assert abs(level.mean()) <= 5.0 * 0.5 / math.sqrt(n)
    assert abs(level.std() - 0.5) <= 5.0 * 0.5 / math.sqrt(2 * n)


def test_features_are_bits_that_tell_the_loss_level():
    population, n = Population(), 4000
    bits = population.features(n, 1)
    assert bits.shape == (n, 64)
    assert bits.dtype == np.uint8
    assert set(np.unique(bits)) == {0, 1}
    level = np.log(population.loss_level(n, 1))
    correlation = np.array([np.corrcoef(column, level)[0, 1] for column in bits.T])
    assert (np.abs(correlation) > 5.0 / math.sqrt(n)).all()
    assert (correlation > 0.0).any()
    assert (correlation < 0.0).any()
    silent = Population(feature_strength=0.0).features(n, 1)
    correlation = np.array([np.corrcoef(column, level)[0, 1] for column in silent.T])
    assert (np.abs(correlation) < 5.0 / math.sqrt(n)).all()


def test_losses_by_hand():
    model = SyntheticLoss(floor=0.2, half_life=50.0, noise=0.0, batch_spread=0.75)
    level = np.array([1.0, 2.0])
    # round 0: all of it; round 50: 0.2 + 0.8 / 2; far away: 0.2
    np.testing.assert_allclose(model.metrics(level, moment(0, 2))["loss"], [1.0, 2.0])
    report = model.metrics(level, moment(50, 2))
    np.testing.assert_allclose(report["loss"], [0.6, 1.2])
    np.testing.assert_allclose(report["loss_std"], [0.45, 0.9])
    np.testing.assert_allclose(report["loss_rms"], [0.75, 1.5])  # 3-4-5
    np.testing.assert_allclose(
        model.metrics(level, moment(10**9, 2))["loss"], [0.2, 0.4], rtol=1e-5
    )


def test_noise_of_losses_and_mini_batches():
    model, n = SyntheticLoss(noise=0.1, batch_spread=0.1), 20_000
    level = np.ones(n)
    report = model.metrics(level, moment(0, n))
    assert abs(report["loss"].mean() - 1.0) <= 5.0 * 0.1 / math.sqrt(n)
    batch = model.mini_batch(level, moment(0, n))
    deviation = (batch - report["loss"]) / report["loss_std"]
    assert abs(deviation.std() - 1.0) <= 5.0 / math.sqrt(2 * n)
    assert (model.mini_batch(level, moment(1, n)) != batch).any()
    wild = SyntheticLoss(batch_spread=2.0).mini_batch(level, moment(0, n))
    assert wild.min() == 0.0


def test_polls_answer_with_the_loss_that_would_be_reported():
    world = Environment(50, seed=3)
    np.testing.assert_array_equal(world.polled_loss(7), world.metrics(7)["loss"])
    assert (world.polled_loss(7, "mini-batch") != world.polled_loss(7)).all()


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Population(samples=0), "samples"),
        (lambda: Population(tail=0.0), "tail"),
        (lambda: SyntheticLoss(floor=1.5), "floor"),
        (lambda: SyntheticLoss(half_life=0.0), "half_life"),
    ],
)
def test_bad_parameters_are_named(build, field):
    with pytest.raises(InvalidInput, match=field):
        build()
