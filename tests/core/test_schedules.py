from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

import turnout
from turnout.core.schedules import at_round
from turnout.experiment.codec import decode_parameter, encode


def test_constant():
    schedule = turnout.Constant(0.3)
    assert [schedule(t) for t in (0, 1, 10**9)] == [0.3] * 3


def test_step_after_changes_exactly_at_its_round():
    # E3CS-inc over 2,500 rounds: T/4 = 625 rounds at 0 (t = 0 .. 624), then 1.
    schedule = turnout.StepAfter(625)
    assert [schedule(t) for t in (0, 624, 625, 2499)] == [0.0, 0.0, 1.0, 1.0]
    assert turnout.StepAfter(0, 0.2, 0.8)(0) == 0.8
    assert turnout.StepAfter(3, before=0.9, after=0.1)(2) == 0.9


def test_linear_reaches_its_end_and_stays():
    schedule = turnout.Linear(1.0, 0.0, 4)
    assert [schedule(t) for t in range(7)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    assert turnout.Linear(0.2, 0.7, 10)(10) == pytest.approx(0.7, abs=1e-15)
    assert turnout.Linear(0.2, 0.7, 0)(0) == pytest.approx(0.7, abs=1e-15)


def test_step_decay_changes_exactly_at_its_rounds():
    schedule = turnout.StepDecay(0.05, at=(300, 600))  # UCB-CS on Synthetic(1,1)
    assert [schedule(t) for t in (0, 299, 300, 599, 600, 9999)] == [
        *(0.05, 0.05),
        *(0.025, 0.025),
        *(0.0125, 0.0125),
    ]
    assert turnout.StepDecay(1.0, at=[5, 2], factor=0.1)(3) == pytest.approx(0.1, rel=1e-15)
    assert turnout.StepDecay(1.0, at=[5, 2]) == turnout.StepDecay(1.0, at=(5, 2))
    assert turnout.StepDecay(0.3, at=())(10**6) == 0.3


@pytest.mark.parametrize("at", [3, "ab", (1.5,), (-1,)])
def test_step_decay_refuses_rounds_that_are_none(at):
    with pytest.raises(turnout.InvalidInput, match=r"^at must be"):
        turnout.StepDecay(0.1, at=at)


def test_exponential_decay_by_hand():
    schedule = turnout.ExponentialDecay(0.002, 0.5)
    assert [schedule(t) for t in range(4)] == [0.002, 0.001, 0.0005, 0.00025]
    # 0.9993^1000 = exp(1000 ln 0.9993) = exp(-0.700245) = 0.496464
    assert turnout.ExponentialDecay(1.0, 0.9993)(1000) == pytest.approx(0.496464, abs=1e-6)
    with pytest.raises(turnout.InvalidInput, match=r"^factor must be"):
        turnout.ExponentialDecay(1.0, -0.5)


@pytest.mark.parametrize(
    "schedule", [turnout.StepDecay(0.05, (300, 600)), turnout.ExponentialDecay(0.002, 0.9993)]
)
def test_decays_survive_a_configuration(schedule):
    assert decode_parameter(encode(schedule), ("lr",)) == schedule


def test_lemma_1_by_hand():
    # RBCS-F Lemma 1 with R = 2, L = 3, S = 4, lambda = 1, delta = 0.05 at t = 1 (round 0):
    # 2 sqrt(3 ln((1 + 9) / 0.05)) + 4 = 2 sqrt(3 * 5.298317) + 4 = 11.973695.
    schedule = turnout.Lemma1(noise=2.0, context_bound=3.0, coefficient_bound=4.0)
    assert schedule(0) == pytest.approx(11.973695, abs=1e-6)
    # t = 10: 2 sqrt(3 ln(91 / 0.05)) + 4 = 2 sqrt(3 * 7.506592) + 4 = 13.491001.
    assert schedule(9) == pytest.approx(13.491001, abs=1e-6)
    heavier = turnout.Lemma1(2.0, 3.0, 4.0, ridge=4.0, delta=0.1)
    expected = 2 * math.sqrt(3 * math.log((1 + 9 / 4) / 0.1)) + 2 * 4
    assert heavier(0) == pytest.approx(expected, rel=1e-12)


def test_schedules_grow_with_the_round_only():
    schedule = turnout.Lemma1(1.0, 1.0, 1.0)
    values = [schedule(t) for t in range(100)]
    assert all(b > a for a, b in itertools.pairwise(values))


def test_all_are_frozen_schedules():
    for schedule in (
        turnout.Constant(1.0),
        turnout.StepAfter(3),
        turnout.StepDecay(1.0, (3,)),
        turnout.ExponentialDecay(1.0, 0.9),
        turnout.Linear(0.0, 1.0, 3),
        turnout.Lemma1(1.0, 1.0, 1.0),
    ):
        assert isinstance(schedule, turnout.Schedule)
        name = dataclasses.fields(schedule)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schedule, name, 2)
        assert schedule == dataclasses.replace(schedule)
        assert hash(schedule) == hash(dataclasses.replace(schedule))


def test_at_round_takes_numbers_and_schedules():
    assert at_round("quota", 0.5, 7) == 0.5
    assert at_round("quota", np.float32(0.5), 7) == 0.5
    assert at_round("quota", turnout.StepAfter(2), 1) == 0.0
    assert at_round("quota", turnout.StepAfter(2), 2) == 1.0
    assert at_round("quota", 1.0, 0, maximum=1.0) == 1.0


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "0.5", None, True])
def test_at_round_names_field_and_value(value):
    with pytest.raises(turnout.InvalidInput, match=r"quota must be .*got"):
        at_round("quota", value, 0, maximum=1.0)


def test_at_round_names_the_round_of_a_schedule():
    with pytest.raises(turnout.InvalidInput, match=r"quota in round 5 .*<= 1.*got 2"):
        at_round("quota", turnout.StepAfter(5, after=2.0), 5, maximum=1.0)


def test_a_schedule_that_returns_no_number():
    @dataclasses.dataclass(frozen=True)
    class Broken:
        def __call__(self, round):
            return "half"

    with pytest.raises(turnout.InvalidInput, match="quota in round 0"):
        at_round("quota", Broken(), 0)
