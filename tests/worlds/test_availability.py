import math

import numpy as np
import pytest

from tests.worlds.helpers import assert_share, moment
from turnout.core.errors import InvalidInput
from turnout.worlds import Always, Bernoulli, Diurnal


def test_always():
    assert Always().available(moment(n=7)).all()


def test_bernoulli_rate_and_independence():
    model = Bernoulli(0.8)
    present = np.array([model.available(moment(t, n=200)) for t in range(300)])
    assert_share(present.sum(), present.size, 0.8)
    both = (present[1:] & present[:-1]).sum()
    assert_share(both, present[1:].size, 0.64, inflation=3.0)  # neighbouring pairs share a round


def test_diurnal_chance_by_hand():
    # zones=0: everyone has the same day. A quarter of the period is the peak.
    model = Diurnal(rate=0.5, amplitude=0.4, period_s=24.0, round_s=1.0, zones=0.0)
    for round, expected in [(0, 0.5), (6, 0.9), (12, 0.5), (18, 0.1), (24 + 6, 0.9)]:
        np.testing.assert_allclose(model.chance(moment(round, n=3)), expected, atol=1e-12)


def test_diurnal_frequency_follows_the_day():
    model = Diurnal(rate=0.5, amplitude=0.4, period_s=8.0, round_s=1.0, zones=0.0)
    present = np.array([model.available(moment(t, n=250)) for t in range(8 * 25)])
    for hour in range(8):
        chance = 0.5 + 0.4 * math.sin(2.0 * math.pi * hour / 8.0)
        rows = present[hour::8]
        assert_share(rows.sum(), rows.size, chance)
    assert_share(present.sum(), present.size, 0.5)


def test_diurnal_time_zones_are_spread_and_fixed():
    model = Diurnal(period_s=24.0, round_s=1.0)
    chance = model.chance(moment(0, n=500))
    assert chance.min() < 0.12
    assert chance.max() > 0.88
    np.testing.assert_array_equal(chance, model.chance(moment(24, n=500)))
    assert (chance != model.chance(moment(0, n=500, seed=2))).any()


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Bernoulli(1.5), "rate"),
        (lambda: Diurnal(rate=0.2, amplitude=0.4), "amplitude"),
        (lambda: Diurnal(period_s=0.0), "period_s"),
    ],
)
def test_bad_parameters_are_named(build, field):
    with pytest.raises(InvalidInput, match=field):
        build()
