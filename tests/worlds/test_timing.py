import dataclasses
import math

import numpy as np
import pytest

from tests.worlds.helpers import moment
from turnout.core.errors import InvalidInput
from turnout.worlds import (
    DeviceTimes,
    FittedDevices,
    FixedTime,
    HalfNormal,
    HeavyTail,
    History,
    LinearContextual,
    LogNormal,
    Pareto,
    WorldStream,
)
from turnout.worlds.devices import BANDWIDTH_FITS, SPEED_FIT


def assert_mean(values, mean, deviation):
    assert abs(np.mean(values) - mean) <= 5.0 * deviation / math.sqrt(np.size(values))


def test_fixed_time():
    model = FixedTime(2.5)
    assert (model.duration(moment(n=3)) == 2.5).all()
    assert (model.column("expected_duration", moment(n=3)) == 2.5).all()


def test_rbcs_f_one_client_of_each_class_by_hand():
    # mu = 1 and B = 2 MHz without spread: c = [1, s, 10]; clients 0 and 2 took part last round.
    model = LinearContextual(capacity=(1.0, 1.0), bandwidth_mhz=(2.0, 2.0))
    history = History.fresh(4)
    history.record(np.array([0, 2]))
    now = moment(3, 4, history=history)
    np.testing.assert_allclose(
        model.column("context", now), [[1, 0, 10], [1, 1, 10], [1, 0, 10], [1, 1, 10]]
    )
    # log2(1001) = 9.967226, log2(101) = 6.658211, log2(11) = 3.459432, log2(2) = 1
    by_hand = [1 + 10 / 9.967226, 2 + 1 + 10 / 6.658211, 3 + 10 / 3.459432, 4 + 1 + 10]
    np.testing.assert_allclose(model.column("expected_duration", now), by_hand, rtol=1e-6)
    np.testing.assert_allclose(by_hand, [2.003289, 4.501904, 5.890648, 15.0], rtol=1e-6)


def test_rbcs_f_ranges_and_noise():
    model = LinearContextual()
    n = 4000
    now = moment(7, n)
    context = model.column("context", now)
    assert (context[:, 1] == 1.0).all()  # first round: cold start for everyone
    mu, bandwidth = 1.0 / context[:, 0], 20.0 / context[:, 2]
    assert 0.5 <= mu.min() <= mu.max() <= 2.0
    assert 2.0 <= bandwidth.min() <= bandwidth.max() <= 4.0
    assert_mean(mu, 1.25, 1.5 / math.sqrt(12))
    assert_mean(bandwidth, 3.0, 2.0 / math.sqrt(12))
    expected = model.column("expected_duration", now)
    np.testing.assert_allclose(expected, np.sum(context * model.coefficients(n), axis=1))
    noise = model.duration(now) / expected - 1.0  # uniform in (-1, 1)
    assert -1.0 <= noise.min() < -0.99
    assert 0.99 < noise.max() <= 1.0
    assert_mean(noise, 0.0, math.sqrt(1.0 / 3.0))
    assert abs(np.corrcoef(noise, expected)[0, 1]) <= 5.0 / math.sqrt(n)


def test_rbcs_f_draws_do_not_depend_on_who_took_part():
    model, history = LinearContextual(), History.fresh(40)
    cold = moment(5, 40, history=History.fresh(40))
    history.record(np.arange(40))
    warm = moment(5, 40, history=history)
    np.testing.assert_array_equal(
        model.column("context", cold)[:, [0, 2]], model.column("context", warm)[:, [0, 2]]
    )
    difference = model.column("expected_duration", cold) - model.column("expected_duration", warm)
    np.testing.assert_allclose(difference, 1.0)  # the cold start
    assert model.uses_history
    assert not LinearContextual(cold_start_s=0.0).uses_history


def test_log_base_is_a_parameter():
    theta = LinearContextual(log_base=math.e).coefficients(4)
    np.testing.assert_allclose(theta[:, 2], 1.0 / np.log([1001, 101, 11, 2]))
    np.testing.assert_allclose(
        LinearContextual().coefficients(4)[:, 2], 1 / np.log2([1001, 101, 11, 2])
    )


@pytest.mark.parametrize(
    ("noise", "variance"),
    [
        (LogNormal(0.5), math.expm1(0.25)),
        (Pareto(4.0), 1.0 / (4.0 * 2.0)),
        (HalfNormal(), 0.5 * math.pi - 1.0),
    ],
)
def test_noise_has_mean_one_and_its_variance(noise, variance):
    factor = noise.draw(400_000, np.random.default_rng(1))
    assert factor.min() > 0.0
    assert_mean(factor, 1.0, math.sqrt(variance))


def test_pareto_tail():
    # P(factor > x) = (x_m / x)^shape with x_m = (shape - 1) / shape
    factor = Pareto(2.0).draw(100_000, np.random.default_rng(2))
    for x in (1.0, 5.0, 20.0):
        chance = (0.5 / x) ** 2
        share = np.mean(factor > x)
        assert abs(share - chance) <= 5.0 * math.sqrt(chance / 100_000)


def test_heavy_tail_multiplies_the_inner_times_and_shifts_nothing():
    inner = LinearContextual()
    model = HeavyTail(inner, Pareto(2.5))
    now = moment(4, 40)
    factor = Pareto(2.5).draw(40, now.rng(WorldStream.TIMING, 1))
    np.testing.assert_allclose(model.duration(now), inner.duration(now) * factor)
    np.testing.assert_array_equal(model.column("context", now), inner.column("context", now))
    assert model.columns == inner.columns
    assert model.uses_history
    np.testing.assert_array_equal(model.classes(40), inner.classes(40))


@pytest.mark.parametrize("network", ["3g-and-fixed", "5g"])
def test_fitted_devices_have_the_documented_distribution(network):
    n, fit = 20_000, BANDWIDTH_FITS[network]
    devices = FittedDevices(network)
    log_speed = np.log(devices.speed(n, seed=3))
    assert_mean(log_speed, SPEED_FIT[0], SPEED_FIT[1])
    assert abs(log_speed.std() - SPEED_FIT[1]) <= 5.0 * SPEED_FIT[1] / math.sqrt(2 * n)
    first = -np.log(devices.s_per_mbit(moment(0, n, seed=3)))
    second = -np.log(devices.s_per_mbit(moment(1, n, seed=3)))
    total = math.hypot(fit.between, fit.within)
    assert_mean(first, fit.mean, total)
    assert abs(first.std() - total) <= 5.0 * total / math.sqrt(2 * n)
    within = (first - second) / math.sqrt(2.0)  # the client's usual value cancels
    assert abs(within.std() - fit.within) <= 5.0 * fit.within / math.sqrt(2 * n)


def test_device_times_by_hand_and_their_expectation():
    model, n = DeviceTimes(work_s=12.0, model_mbit=30.0), 50
    now = moment(2, n)
    speed, transfer = model.devices.speed(n, 1), model.devices.s_per_mbit(now)
    np.testing.assert_allclose(model.duration(now), 12.0 / speed + 30.0 * transfer)
    # mean over rounds, client by client: relative deviation of a transfer is sqrt(exp(s^2) - 1)
    times = np.array([model.duration(moment(t, n)) for t in range(1500)])
    expected = model.column("expected_duration", now)
    spread = (expected - 12.0 / speed) * math.sqrt(math.expm1(0.427**2))
    assert (np.abs(times.mean(axis=0) - expected) <= 5.0 * spread / math.sqrt(1500)).all()


@pytest.mark.parametrize(
    ("model", "computing"),
    [
        (DeviceTimes(model_mbit=0.0), 1.0),
        (DeviceTimes(work_s=0.0), 0.0),
        (LinearContextual(cold_start_s=0.0, model_mbit=0.0), 1.0),
        (HeavyTail(LinearContextual(cold_start_s=0.0, model_mbit=0.0)), 1.0),
        (FixedTime(), 0.0),
    ],
)
def test_work_stretches_what_is_computed_and_nothing_else(model, computing):
    work = np.linspace(0.25, 4.0, 8)
    usual, now = moment(3, 8), dataclasses.replace(moment(3, 8), workload=work)
    factor = 1.0 + computing * (work - 1.0)
    np.testing.assert_allclose(model.duration(now), model.duration(usual) * factor)
    for name in model.columns.difference({"context"}):
        np.testing.assert_allclose(model.column(name, now), model.column(name, usual) * factor)
    same = dataclasses.replace(usual, workload=np.ones(8))
    np.testing.assert_array_equal(model.duration(same), model.duration(usual))


def test_rbcs_f_context_is_that_of_the_server_whatever_the_work():
    usual = moment(3, 8)
    more = dataclasses.replace(usual, workload=np.full(8, 3.0))
    context = LinearContextual().column("context", usual)
    np.testing.assert_array_equal(LinearContextual().column("context", more), context)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: FixedTime(0.0), "seconds"),
        (lambda: LinearContextual(snr=(1.0,)), "snr"),
        (lambda: LinearContextual(capacity=(2.0, 1.0)), "capacity"),
        (lambda: LinearContextual(log_base=1.0), "log_base"),
        (lambda: Pareto(1.0), "shape"),
        (lambda: FittedDevices("6g"), "network"),
        (lambda: DeviceTimes(work_s=-1.0), "work_s"),
    ],
)
def test_bad_parameters_are_named(build, field):
    with pytest.raises(InvalidInput, match=field):
        build()
