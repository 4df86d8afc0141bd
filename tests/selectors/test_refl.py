"""REFL: who will be gone goes first, who answered rests, and what a server estimates by itself."""

import math
import random

import numpy as np
import pytest

import turnout
from tests.references import refl_slow
from turnout.selectors.refl import STRENGTH
from turnout.worlds import Bernoulli, Diurnal, Environment

COMPLETED, SILENT = 0, 3


def context(n, m, round=0, available=None, forecast=None):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {} if forecast is None else {"availability_forecast": np.array(forecast)}
    return turnout.RoundContext(round, m, available, columns=columns)


def made(n, **parameters):
    selector = turnout.make("refl", **parameters)
    selector.reset(n)
    return selector


def chosen_by(selector, ctx, seed=0):
    return selector.select(ctx, np.random.default_rng(seed)).clients.tolist()


def play(selector, ctx, status=COMPLETED, seed=0):
    selection = selector.select(ctx, np.random.default_rng(seed))
    s = selection.clients.size
    duration = [math.nan if status == SILENT else 1.0] * s
    selector.observe(selection, turnout.Outcome([status] * s, duration))
    return selection.clients.tolist()


def test_by_hand_the_least_available_go_first_and_rest_after_an_answer():
    selector = made(4, rest=2)
    forecast = [0.9, 0.1, 0.5, 0.3]
    assert play(selector, context(4, 1, 0, forecast=forecast)) == [1]
    assert play(selector, context(4, 1, 1, forecast=forecast)) == [3]
    assert play(selector, context(4, 1, 2, forecast=forecast)) == [2]  # 1 and 3 rest
    assert play(selector, context(4, 1, 3, forecast=forecast)) == [1]  # two rounds have passed
    assert chosen_by(selector, context(4, 2, 4, forecast=forecast)) == [0, 3]
    # all but client 0 rest: the cohort is filled with the least available of them
    assert chosen_by(selector, context(4, 2, 3, forecast=forecast)) == [0, 1]


def test_without_rest_the_same_clients_come_again():
    selector = made(3, rest=0)
    forecast = [0.9, 0.1, 0.5]
    assert [play(selector, context(3, 1, t, forecast=forecast)) for t in range(3)] == [[1]] * 3


def test_a_client_that_did_not_answer_does_not_rest_and_loses_its_rank():
    selector = made(2, patience=2)
    forecast = [0.4, 0.2]
    drawn = [play(selector, context(2, 1, t, forecast=forecast), SILENT) for t in range(6)]
    # 1 - 0.2 is halved with each request after the second: 0.4 is below 1 - 0.4
    assert drawn[:3] == [[1]] * 3
    assert drawn[3] == [0]
    asked = made(2, patience=None)
    again = [play(asked, context(2, 1, t, forecast=forecast), SILENT) for t in range(6)]
    assert again == [[1]] * 6


def test_split_draws_evenly_among_those_who_expect_to_be_gone():
    selector = made(4, rule="split")
    ctx = context(4, 1, forecast=[0.0, 0.4, 0.6, 1.0])
    selection = selector.select(ctx, np.random.default_rng(0))
    assert selection.probability.tolist() == [0.5]
    np.testing.assert_allclose(selector.chances(ctx), [0.5, 0.5, 0.0, 0.0])


def test_a_missing_forecast_is_estimated():
    selector = made(3)
    ctx = context(3, 1, forecast=[0.8, math.nan, 0.9])
    assert chosen_by(selector, ctx) == [0]  # nothing is known of client 1: it will stay


def test_the_estimate_matches_a_slow_count():
    rng = np.random.default_rng(4)
    seen = [(rng.random(6) < [0.9, 0.2, 0.5, 0.5, 0.8, 0.3]).tolist() for _ in range(60)]
    selector = made(6, rest=0)
    for t, available in enumerate(seen):
        if any(available):
            play(selector, context(6, 2, t, available))
        else:  # nobody can be asked, and the server still saw who was there
            selector.observe(
                turnout.Selection(t, np.zeros(0, int), memo={"available": np.array(available)}),
                turnout.Outcome([], []),
            )
    estimate = selector._estimate(context(6, 2, 60))
    np.testing.assert_allclose(estimate, refl_slow.stay_rates(seen, STRENGTH), rtol=1e-12)


def test_clients_at_work_were_there_and_one_that_joined_was_not():
    selector = made(2)
    ctx = turnout.RoundContext(0, 1, np.array([True, False]), busy=np.array([False, True]))
    selection = selector.select(ctx, np.random.default_rng(0))
    assert selection.recall("available").tolist() == [True, True]
    selector.grow(3)
    selector.observe(selection, turnout.Outcome([COMPLETED], [1.0]))
    assert selector.was_available_.tolist() == [True, True, False]


def test_a_forecast_of_the_clients_is_not_estimated_beside():
    selector = made(2)
    play(selector, context(2, 1, 0, forecast=[0.5, 0.9]))
    assert selector.seen_round_ == -1


def test_an_old_answer_that_comes_late_does_not_shorten_a_rest():
    selector = made(2, rest=3)
    late, new = (turnout.Selection(t, np.array([0])) for t in (1, 6))
    for selection in (new, late):
        selector.observe(selection, turnout.Outcome([COMPLETED], [1.0]))
    assert selector.answer_round_.tolist() == [6, -1]


def test_resting_clients_that_fill_a_cohort_are_ranked_too():
    selector = made(3, rest=9)
    for client in range(3):
        selector.observe(
            turnout.Selection(client, np.array([client])), turnout.Outcome([COMPLETED], [1.0])
        )
    assert chosen_by(selector, context(3, 2, 4, forecast=[0.2, 0.9, 0.4])) == [0, 2]
    assert chosen_by(selector, context(3, 1, 4, forecast=[0.9, 0.5, 0.4])) == [2]


def test_rounds_out_of_order_and_gaps_tell_nothing_of_who_stayed():
    selector = made(2)
    selections = [
        selector.select(context(2, 1, t, [True, t != 1]), np.random.default_rng(t))
        for t in (0, 2, 1)
    ]
    for selection in selections:
        selector.observe(selection, turnout.Outcome([COMPLETED], [1.0]))
    assert selector.chances_.tolist() == [0, 0]
    assert selector.seen_round_ == 2


@pytest.mark.parametrize("rule", ["ranked", "split"])
def test_matches_a_slow_implementation(rule):
    rng = np.random.default_rng(7)
    slow_rng = random.Random(7)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        m, t, rest = int(rng.integers(1, n + 1)), int(rng.integers(0, 9)), int(rng.integers(0, 4))
        forecast = rng.random(n).round(2) + np.arange(n) * 1e-6  # no ties
        last = rng.integers(-1, max(t, 1), n)
        selector = made(n, rest=rest, rule=rule)
        selector.answer_round_[:] = last
        ctx = context(n, m, t, forecast=np.minimum(forecast, 1.0))
        expected = refl_slow.chosen(forecast.tolist(), last.tolist(), t, m, rest, rule, slow_rng)
        chance = selector.chances(ctx)
        assert set(np.flatnonzero(chance == 1.0).tolist()) <= expected
        assert expected <= set(np.flatnonzero(chance > 0.0).tolist())
        if rule == "ranked":
            assert set(chosen_by(selector, ctx)) == expected


def test_worlds_forecast_their_own_chances():
    coin = Environment(5, seed=1, availability=Bernoulli(0.3))
    ctx = coin.context(0, 1, columns={"availability_forecast"})
    np.testing.assert_array_equal(ctx.columns["availability_forecast"], 0.3)
    day = Environment(400, seed=1, availability=Diurnal(period_s=8.0, round_s=1.0))
    said = [day.context(t, 1, columns={"availability_forecast"}) for t in range(200)]
    forecast = np.array([ctx.columns["availability_forecast"] for ctx in said])[:-1]
    came = np.array([ctx.available for ctx in said])[1:]
    for low in (0.1, 0.3, 0.5, 0.7):
        told = (forecast >= low) & (forecast < low + 0.2)
        margin = 5.0 * math.sqrt(0.25 / told.sum())
        assert abs(came[told].mean() - forecast[told].mean()) <= margin


def test_it_spreads_participation_to_rare_clients():
    rate = np.where(np.arange(60) < 30, 0.95, 0.15)
    rng = np.random.default_rng(0)
    counts = {}
    for name in ("refl", "random"):
        selector = turnout.make(name)
        selector.reset(60)
        counts[name] = np.zeros(60)
        rng = np.random.default_rng(0)
        for t in range(400):
            ctx = context(60, 6, t, rng.random(60) < rate)
            counts[name][play(selector, ctx, seed=t)] += 1
    rare = {name: c[30:].sum() / c.sum() for name, c in counts.items()}
    assert rare["random"] < 0.2  # 30 * 0.15 of 30 * 1.1 places
    assert rare["refl"] > 2 * rare["random"]
