import math
import warnings

import numpy as np
import pytest
import scipy.stats

from turnout.results.statistics import (
    bootstrap_mean,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)

EASY, HARD = np.array([0.9, 0.8, 1.0, 0.7]), np.array([0.1, 0.3, 0.2, 0.0])


def test_interquartile_mean_is_over_the_middle_half_of_all_runs():
    # in order: 0 0.1 | 0.2 0.3 0.7 0.8 | 0.9 1.0
    value, low, high = interquartile_mean([EASY, HARD])
    assert value == pytest.approx((0.2 + 0.3 + 0.7 + 0.8) / 4)
    assert low < value < high
    outlier = np.where(EASY == 1.0, 1e6, EASY)
    assert interquartile_mean([outlier, HARD]).value == pytest.approx(value)


def test_runs_are_drawn_again_inside_each_task():
    value, low, high = bootstrap_mean([EASY, HARD])
    assert value == pytest.approx(0.5)
    # the two tasks differ by 0.7; drawn without regard to tasks the interval would be far wider
    assert 0.4 < low < 0.5 < high < 0.6
    assert bootstrap_mean([EASY, HARD]) == (value, low, high)  # the same each time


def test_a_sample_mean_has_the_percentile_interval():
    values = np.array([0.0, 1.0])
    value, low, high = bootstrap_mean([values])
    assert (value, low, high) == (0.5, 0.0, 1.0)  # draws are 0, 0.5 or 1, a quarter at each end


def test_probability_of_improvement_counts_pairs():
    ours, theirs = (
        [np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.0])],
        [
            np.array([0.0, 2.0, 2.5]),
            np.array([5.0, 6.0]),
        ],
    )
    # first task: 1 wins once, 2 wins once and draws once, 3 wins three times: 5.5 of 9
    # second task: two draws and two losses: 1 of 4
    value = probability_of_improvement(ours, theirs).value
    assert value == pytest.approx((5.5 / 9 + 1 / 4) / 2)
    statistics = [
        scipy.stats.mannwhitneyu(x, y).statistic / (x.size * y.size)
        for x, y in zip(ours, theirs, strict=True)
    ]
    assert value == pytest.approx(np.mean(statistics))
    assert probability_of_improvement([EASY], [HARD]) == (1.0, 1.0, 1.0)
    assert probability_of_improvement([HARD], [EASY]).value == 0.0


def test_profiles_are_means_over_tasks():
    levels = np.array([-1.0, 0.1, 0.75, 1.0])
    shares = performance_profile([EASY, HARD], levels)
    assert shares.tolist() == [1.0, (1 + 0.5) / 2, (0.75 + 0) / 2, 0.0]


def test_one_run_has_no_interval():
    value, low, high = bootstrap_mean([np.array([0.4])])
    assert value == 0.4
    assert math.isnan(low)
    assert math.isnan(high)


def test_equal_runs_are_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = np.full(3, 0.5)
        assert interquartile_mean([same, same]) == (0.5, 0.5, 0.5)
        assert probability_of_improvement([same], [same]) == (0.5, 0.5, 0.5)
