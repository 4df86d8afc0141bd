"""Active Federated Learning: values, the ignored, the softmax and the random rest."""

import math
import random

import numpy as np
import pytest

import turnout
from tests.references import afl_slow

NAN = math.nan


def context(sizes, m, round=0):
    n = len(sizes)
    columns = {"num_samples": np.array(sizes, dtype=float)}
    return turnout.RoundContext(round, m, np.ones(n, dtype=bool), columns=columns)


def made(values, **parameters):
    """Return a selector in which clients of one example each have these values."""
    n = len(values)
    selector = turnout.make("afl", **parameters)
    selector.reset(n)
    told(selector, values)
    return selector


def told(selector, losses):
    n = len(losses)
    everyone = turnout.Selection(0, np.arange(n), memo={"root": np.ones(n)})
    selector.observe(everyone, turnout.Outcome([0] * n, [1.0] * n, {"loss": losses}))


def frequency(draw, n, repeats=20_000):
    counts = np.zeros(n)
    for seed in range(repeats):
        counts[list(draw(seed))] += 1
    return counts / repeats


def test_a_value_is_the_loss_times_the_root_of_the_size():
    selector = turnout.make("afl", random_share=0.0, ignored=0.0)
    selector.reset(3)
    selection = selector.select(context([4, 9, NAN], 3), np.random.default_rng(0))
    selector.observe(selection, turnout.Outcome([0, 0, 2], [1.0] * 3, {"loss": [0.5, 2.0, NAN]}))
    assert selector.value_.tolist() == [1.0, 6.0, 0.0]
    assert selector.is_known_.tolist() == [True, True, False]


def test_each_chosen_client_counts_with_the_root_of_its_own_size():
    sizes = np.arange(1.0, 21.0) ** 2
    sizes[3] = NAN  # unknown: as the mean of the others
    mean = np.nanmean(sizes)
    selector = turnout.make("afl")
    selector.reset(20)
    for seed in range(30):
        selection = selector.select(context(sizes, 8), np.random.default_rng(seed))
        known = np.where(np.isnan(sizes), mean, sizes)[selection.clients]
        np.testing.assert_allclose(selection.recall("root"), np.sqrt(known))


def test_by_hand_the_softmax_over_the_quarter_that_is_left():
    # four of eight are left (alpha_1 = 0.5), with exp(v): 1 : 2 : 3 : 4, one place, no random rest
    values = [0.0] * 4 + [math.log(k) + 1.0 for k in (1, 2, 3, 4)]
    selector = made(values, ignored=0.5, sharpness=1.0, random_share=0.0)
    ctx = context([1] * 8, 1)
    found = frequency(lambda s: selector.select(ctx, np.random.default_rng(s)).clients, 8)
    np.testing.assert_allclose(found[4:], np.array([1, 2, 3, 4]) / 10, atol=0.02)
    assert found[:4].sum() == 0.0


def test_the_random_rest_reaches_the_ignored():
    selector = made([0.0, 0.0, 5.0, 5.0], ignored=0.5, random_share=0.5)
    ctx = context([1] * 4, 2)
    found = frequency(lambda s: selector.select(ctx, np.random.default_rng(s)).clients, 4, 6000)
    # one place for clients 2 and 3, one for the three others at random
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 2 / 3, 2 / 3], atol=0.03)


@pytest.mark.parametrize("alpha", [(0.75, 0.01, 0.1), (0.5, 1.0, 0.3), (0.0, 2.0, 0.0)])
def test_frequencies_are_those_of_the_slow_one(alpha):
    values = [0.2, 1.0, 3.0, 2.0, 2.5, 0.4, 1.7, 0.9]
    ignored, sharpness, share = alpha
    selector = made(values, ignored=ignored, sharpness=sharpness, random_share=share)
    ctx, repeats = context([1] * 8, 3), 8000
    ours = frequency(lambda s: selector.select(ctx, np.random.default_rng(s)).clients, 8, repeats)
    slow = frequency(lambda s: afl_slow.cohort(values, 3, alpha, random.Random(s)), 8, repeats)
    assert np.abs(ours - slow).max() < 5 * math.sqrt(0.5 / repeats)


def test_a_client_never_heard_of_counts_as_the_mean():
    selector = made([4.0, NAN, 2.0], ignored=0.0, sharpness=1.0, random_share=0.0)
    ctx = context([1] * 3, 1)
    found = frequency(lambda s: selector.select(ctx, np.random.default_rng(s)).clients, 3, 8000)
    weight = np.exp([4.0, 3.0, 2.0])
    np.testing.assert_allclose(found, weight / weight.sum(), atol=0.03)


def test_hostile_losses_do_not_overflow():
    selector = made([1e30, 1.0, 1.0, 0.0], sharpness=1e6)
    chosen = selector.select(context([1e30] * 4, 3), np.random.default_rng(0)).clients
    assert chosen.size == 3


def test_silence_halves_a_value_after_patience():
    selector = made([8.0, 1.0], patience=1, ignored=0.5, random_share=0.0)
    for t in range(1, 6):
        silent = turnout.Selection(t, np.array([0]), memo={"root": np.ones(1)})
        selector.observe(silent, turnout.Outcome([3], [NAN], {"loss": [NAN]}))
    # four halvings: 0.5 is below 1, so client 0 is the one that is ignored
    chosen = selector.select(context([1, 1], 1), np.random.default_rng(0)).clients
    assert chosen.tolist() == [1]
