"""TiFL: profiling, tiers, static and adaptive draws, credits, and clients that fall silent."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnout
from tests.references import tifl_slow
from turnout.core.errors import InvalidInput
from turnout.selectors.tifl import PROFILED, places

NAN = math.nan
FAST = (1.0, 0.0, 0.0, 0.0, 0.0)


def context(n, m, round=0, available=None):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    return turnout.RoundContext(round, m, available)


def tell(selector, clients, seconds, losses=None, tier=PROFILED, status=None):
    k = len(clients)
    losses = [NAN] * k if losses is None else losses
    selection = turnout.Selection(0, np.array(clients), memo={"tier": np.array(tier)})
    outcome = turnout.Outcome(status or [0] * k, seconds, {"loss": losses})
    selector.observe(selection, outcome)


def made(seconds, losses=None, **parameters):
    """Return a selector that has timed every client once."""
    selector = turnout.make("tifl", **parameters)
    selector.reset(len(seconds))
    tell(selector, range(len(seconds)), seconds, losses)
    return selector


def cohort(selector, ctx, seed=0):
    return selector.select(ctx, np.random.default_rng(seed))


def test_everyone_is_profiled_first():
    selector = turnout.make("tifl")
    selector.reset(7)
    seen = set()
    for t in range(3):
        selection = cohort(selector, context(7, 3, t))
        assert int(selection.recall("tier")) == PROFILED
        seen |= set(selection.clients.tolist())
        tell(selector, selection.clients, [1.0] * 3)
    assert seen == set(range(7))
    assert int(cohort(selector, context(7, 3, 3)).recall("tier")) != PROFILED


def test_a_client_that_does_not_answer_its_profiling_is_not_asked_for_ever():
    selector = turnout.make("tifl", profiling=2)
    selector.reset(4)
    for t in range(4):
        chosen = cohort(selector, context(4, 2, t), t)
        assert int(chosen.recall("tier")) == PROFILED
        tell(selector, chosen.clients, [NAN, NAN], status=[3, 3])
    assert int(cohort(selector, context(4, 2, 4)).recall("tier")) != PROFILED


def test_who_fills_the_cohort_beside_new_clients_states_its_chance():
    selector = made([1.0, 2.0, 3.0])
    selector.grow(5)
    counts, repeats = np.zeros(5), 3000
    for seed in range(repeats):
        selection = cohort(selector, context(5, 3), seed)
        expected = np.where(selection.clients < 3, 1 / 3, 1.0)
        assert selection.probability.tolist() == expected.tolist()
        counts[selection.clients] += 1
    assert counts[3:].tolist() == [repeats] * 2
    assert np.abs(counts[:3] / repeats - 1 / 3).max() < 5 * math.sqrt(0.25 / repeats)


def test_tiers_are_equal_parts_of_the_sorted_times():
    seconds = [9.0, 1.0, 5.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 10.0]
    selector = made(seconds)
    for t, members in enumerate(tifl_slow.tiers_of(seconds, 5)):
        assert sorted(np.flatnonzero(selector._tiers() == t)) == sorted(members)
    fast = made(seconds, probabilities=FAST, interval=None)
    assert cohort(fast, context(10, 2)).clients.tolist() == [1, 3]


def test_by_hand_the_chance_of_each_client():
    # tiers of two, probabilities 0.7, 0.1, 0.1, 0.05, 0.05, one place: half of the tier's each
    shares = (0.7, 0.1, 0.1, 0.05, 0.05)
    selector = made(np.arange(10.0) + 1, probabilities=shares, interval=None)
    for seed in range(20):
        selection = cohort(selector, context(10, 1), seed)
        expected = shares[int(selection.clients[0]) // 2] / 2
        assert selection.probability.tolist() == pytest.approx([expected])


def test_a_small_tier_is_filled_from_the_nearest():
    members = np.array([2, 1, 3])
    assert places(members, 1, 1).tolist() == [0, 1, 0]
    assert places(members, 1, 2).tolist() == [1, 1, 0]  # the faster of two as near
    assert places(members, 1, 4).tolist() == [2, 1, 1]
    assert places(np.array([2, 0, 3]), 1, 3).tolist() == [2, 0, 1]


@pytest.mark.parametrize("m", [1, 2, 3])
def test_frequencies_are_those_of_the_slow_one_and_of_the_reported_chances(m):
    seconds = [4.0, 1.0, 3.0, 2.0, 9.0, 7.0, 8.0]
    probs = [0.5, 0.3, 0.2]
    selector = made(seconds, tiers=3, probabilities=probs, interval=None)
    ctx, repeats = context(7, m), 4000
    ours, slow, reported = np.zeros(7), np.zeros(7), np.zeros(7)
    tiers = tifl_slow.tiers_of(seconds, 3)
    for seed in range(repeats):
        selection = cohort(selector, ctx, seed)
        ours[selection.clients] += 1 / repeats
        reported[selection.clients] = selection.probability
        slow[list(tifl_slow.draw(tiers, probs, m, random.Random(seed)))] += 1 / repeats
    assert np.abs(ours - slow).max() < 5 * math.sqrt(0.5 / repeats)
    assert np.abs(ours - reported).max() < 5 * math.sqrt(0.25 / repeats)


def test_tiers_with_higher_losses_are_drawn_more_often_when_the_drawn_one_got_no_better():
    seconds, losses = np.arange(6.0) + 1, [3.0, 3.0, 1.0, 1.0, 2.0, 2.0]
    selector = made(seconds, losses, tiers=3, interval=1, profiling=1)
    assert selector.chance_.tolist() == pytest.approx([1 / 3] * 3)  # profiling is no look
    tell(selector, [0], [1.0], [3.0], tier=0)
    expected = tifl_slow.change_probs([3.0, 1.0, 2.0])
    assert selector.chance_.tolist() == pytest.approx(expected)  # the first look
    tell(selector, [2], [3.0], [0.5], tier=1)  # better: 1.0 -> 0.75
    assert selector.chance_.tolist() == pytest.approx(expected)
    tell(selector, [4], [5.0], [9.0], tier=2)  # worse: 2.0 -> 5.5, now the highest
    assert selector.chance_.tolist() == pytest.approx(tifl_slow.change_probs([3.0, 0.75, 5.5]))
    tell(selector, [0, 2], [1.0, 3.0], [3.0, 9.0], tier=0)  # 3.0 -> 3.0 is no better
    assert selector.chance_.tolist() == pytest.approx(tifl_slow.change_probs([3.0, 5.0, 5.5]))


def test_a_tier_that_got_better_leaves_the_chances_also_where_the_order_changed():
    selector = made(np.arange(4.0) + 1, [3.0, 3.0, 1.0, 1.0], tiers=2, interval=1)
    tell(selector, [0], [1.0], [3.0], tier=0)
    assert selector.chance_.tolist() == pytest.approx([2 / 3, 1 / 3])
    tell(selector, [0, 1], [1.0, 2.0], [0.5, 0.5], tier=0)  # 3.0 -> 0.5, now the lowest
    assert selector.chance_.tolist() == pytest.approx([2 / 3, 1 / 3])
    tell(selector, [2], [3.0], [1.0], tier=1)  # 1.0 -> 1.0
    assert selector.chance_.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_as_in_public_implementations_chances_can_follow_the_losses_at_every_look():
    seconds, losses = np.arange(6.0) + 1, [3.0, 3.0, 1.0, 1.0, 2.0, 2.0]
    selector = made(seconds, losses, tiers=3, interval=1, always=True)
    tell(selector, [0], [1.0], [3.0], tier=0)
    tell(selector, [0], [1.0], [0.0], tier=0)  # better: 3.0 -> 1.5
    assert selector.chance_.tolist() == pytest.approx(tifl_slow.change_probs([1.5, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (1.0, [5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15]),  # fltk: n - i over n (n + 1) / 2
        (0.0, [4 / 10, 3 / 10, 2 / 10, 1 / 10, 0.0]),  # Flotilla: n - i over n (n - 1) / 2
    ],
)
def test_chances_are_those_of_the_public_implementations(least, expected):
    losses = [5.0, 4.0, 3.0, 2.0, 1.0]
    assert tifl_slow.change_probs(losses, least) == pytest.approx(expected)
    selector = made(np.arange(5.0) + 1, losses, interval=1, least=least)
    tell(selector, [0], [1.0], [5.0], tier=0)
    assert selector.chance_.tolist() == pytest.approx(expected)


def test_a_single_tier_is_drawn_also_where_the_best_has_no_weight():
    selector = made([1.0, 2.0], [1.0, 1.0], tiers=1, interval=1, least=0.0)
    tell(selector, [0], [1.0], [1.0], tier=0)
    assert selector.chance_.tolist() == [1.0]
    assert cohort(selector, context(2, 1)).clients.size == 1


def test_a_look_is_taken_every_interval_rounds():
    selector = made(np.arange(4.0) + 1, [1.0, 1.0, 2.0, 2.0], tiers=2, interval=3)
    tell(selector, [0], [1.0], [1.0], tier=0)
    assert selector.chance_.tolist() == [0.5, 0.5]
    tell(selector, [0], [1.0], [1.0], tier=0)  # the third round, with the one of profiling
    assert selector.chance_.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_credits_limit_a_tier_and_are_renewed_together():
    selector = made(np.arange(4.0) + 1, tiers=2, interval=None, credits=1)
    tell(selector, [0], [1.0], tier=0)
    drawn = {int(cohort(selector, context(4, 1), seed).recall("tier")) for seed in range(40)}
    assert drawn == {1}
    tell(selector, [2], [3.0], tier=1)
    drawn = {int(cohort(selector, context(4, 1), seed).recall("tier")) for seed in range(40)}
    assert drawn == {0, 1}


def test_a_tier_without_a_known_loss_counts_as_usual():
    losses = [2.0, 4.0, NAN, NAN, 6.0, NAN]
    selector = made(np.arange(6.0) + 1, losses, tiers=3)
    assert selector._levels().tolist() == [3.0, 4.0, 6.0]


def test_late_feedback_takes_no_credit_that_is_not_there():
    selector = made(np.arange(4.0) + 1, tiers=2, interval=None, credits=2)
    for _ in range(3):
        tell(selector, [0], [1.0], tier=0)
    assert selector.credits_.tolist() == [0, 2]


def test_credits_are_renewed_where_new_chances_leave_no_tier_to_draw():
    # Tier 1 spends its credit. The look then gives tier 0, which still has one, a chance of 0.
    selector = made(
        np.arange(4.0) + 1, [1.0, 1.0, 2.0, 2.0], tiers=2, interval=1, credits=1, least=0.0
    )
    tell(selector, [2], [3.0], [2.0], tier=1)
    assert selector.chance_.tolist() == [0.0, 1.0]
    assert selector.credits_.tolist() == [1, 1]
    assert set(cohort(selector, context(4, 2)).clients.tolist()) == {2, 3}


@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
def test_a_tier_can_be_drawn_in_every_round(seed, tiers, credits, least, always):
    rng = np.random.default_rng(seed)
    selector = made(
        rng.random(8), rng.random(8),
        tiers=tiers, credits=credits, least=least, always=always, interval=1,
    )  # fmt: skip
    for t in range(12):
        selection = cohort(selector, context(8, 2, t), seed + t)
        assert selection.clients.size == 2
        chance = selector._chances()
        assert chance.sum() == pytest.approx(1.0)
        tier = int(selection.recall("tier"))
        tell(selector, selection.clients, rng.random(2), rng.random(2), tier=tier)


def test_silent_clients_become_the_slowest_and_come_back_with_an_answer():
    selector = made([1.0, 2.0, 3.0, 4.0], tiers=4, patience=1)
    tell(selector, [0], [NAN], status=[3])
    assert selector._tiers().tolist() == [0, 1, 2, 3]
    tell(selector, [0], [NAN], status=[3])
    assert selector._tiers().tolist() == [3, 0, 1, 2]
    tell(selector, [0], [1.0])
    assert selector._tiers().tolist() == [0, 1, 2, 3]


def test_tiers_follow_the_mean_of_all_times():
    selector = made([2.0, 4.0, 6.0], tiers=3)
    for seconds in (3.0, 7.0):
        tell(selector, [0], [seconds])
    assert selector.seconds_.tolist() == [4.0, 4.0, 6.0]
    tell(selector, [0], [12.0])
    assert selector.seconds_[0] == 6.0
    tell(selector, [0], [6.5])
    assert selector._tiers().tolist() == [2, 0, 1]  # its mean is 6.1


def test_without_profiling_a_client_that_was_never_asked_is_in_the_middle():
    selector = turnout.make("tifl", tiers=3, profiling=0)
    selector.reset(3)
    tell(selector, [0, 2], [9.0, 1.0])
    assert selector._tiers().tolist() == [2, 1, 0]
    assert int(cohort(selector, context(3, 1)).recall("tier")) != PROFILED


def test_a_client_that_never_answered_is_the_slowest():
    selector = turnout.make("tifl", tiers=3)
    selector.reset(3)
    tell(selector, [0, 1, 2], [NAN, 5.0, 1.0], status=[2, 0, 0])
    assert selector._tiers().tolist() == [2, 1, 0]


@pytest.mark.parametrize("wrong", [(0.5, 0.5), (0.5, 0.5, 0.5, 0.5, 0.5), (2, -1, 0, 0, 0)])
def test_probabilities_must_fit_the_tiers(wrong):
    with pytest.raises(InvalidInput, match="probabilities must be 5 numbers >= 0 that sum to 1"):
        turnout.make("tifl", probabilities=wrong).reset(5)


def test_losses_are_asked_for_only_where_tiers_adapt():
    assert turnout.make("tifl").needs_metrics == {"loss"}
    assert turnout.make("tifl", interval=None).needs_metrics == frozenset()
