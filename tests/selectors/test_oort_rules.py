"""The rules of the authors' code, and the fairness knob of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

import turnout
from tests.references.oort_slow import SlowFedScale
from tests.selectors.test_oort import (
    EXPLOIT,
    assert_frequencies,
    context,
    draws,
    feed,
    frequencies,
    made,
)
from turnout.selectors._oort_rules import FedScaleRules, PaperRules

CODE = {"rules": "fedscale", **EXPLOIT}


def no_sizes():
    return np.zeros(0)


def test_the_code_scales_by_the_unclipped_maximum():
    # Utilities 1..19 and 200: (10 - 0.999) / (200 - 0.999) = 0.0452.
    utility = np.array([*range(1, 20), 200.0])
    assert FedScaleRules().scaled(utility, no_sizes)[9] == pytest.approx(9.001 / 199.001)
    # Ours clips at 19 first: (10 - 1) / (19 - 1).
    assert PaperRules().scaled(utility, no_sizes)[9] == pytest.approx(0.5)


def test_the_code_clips_at_90_percent_and_the_paper_at_95():
    # Of 1..19 and 200, position int(20 * 0.9) = 18 holds 19. At 0.95 it would be 19, with 200.
    utility = np.array([*range(1, 20), 200.0])
    assert FedScaleRules().scaled(utility, no_sizes)[-1] == pytest.approx(18.001 / 199.001)
    # Of 1..101 ours is at position int(0.95 * 100) = 95, which holds 96: six of them are equal.
    score = PaperRules(normalize=False).scaled(np.arange(1.0, 102.0), no_sizes)
    assert score[-7:].tolist() == [95.0, *[96.0] * 6]


def test_untried_clients_count_with_their_size():
    utility = np.array([2.0, 4.0])
    scaled = FedScaleRules().scaled(utility, lambda: np.array([1.0, 21.0, 0.0]))
    assert scaled == pytest.approx([(2 - 0.999) / 20.001, (4 - 0.999) / 20.001])


def test_the_preferred_duration_is_over_everybody_registered():
    # Ten clients; 0 and 1 were tried and took 10 and 20 s, the others expect 1 .. 8 s.
    seen = np.array([10.0, 20.0, *[-1.0] * 8])
    expected = np.array([99.0, 99.0, *range(1, 9)])
    rules = FedScaleRules()
    durations = rules.durations(seen, expected)
    assert durations.tolist() == [10.0, 20.0, *range(1, 9)]
    assert rules.preferred(durations, 0) == 4.0  # position int(10 * 0.3) = 3 of 1, 2, 3, 4, ...
    assert rules.preferred(durations, 2) == 5.0
    assert rules.preferred(durations, 14) == math.inf  # 100 %
    assert PaperRules().preferred(seen, 0) == 10.0


@pytest.mark.parametrize(
    ("before", "latest", "step"),
    [
        (10.0, 11.0, 1),  # 10 % apart: flat
        (10.0, 9.0, 1),
        (10.0, 11.1, 0),
        (10.0, 0.0, 0),
        (10.0, 59.9, 0),
        (10.0, 60.0, -1),  # changed by 5 times
        (0.0, 0.0, 1),
        (0.0, 1.0, -1),
    ],
)
def test_the_pacer_of_the_code_by_hand(before, latest, step):
    assert FedScaleRules().pacer_step(before, latest, 3) == 3 + step


def test_the_pacer_of_the_code_stays_between_5_and_100_percent():
    assert FedScaleRules().pacer_step(10.0, 10.0, 14) == 14
    assert FedScaleRules().pacer_step(1.0, 10.0, -5) == -5
    assert FedScaleRules().preferred(np.arange(100.0), -5) == 5.0


def test_the_code_admits_ten_for_a_place():
    score = np.arange(50.0)
    assert FedScaleRules().admitted(score, 2, 0.95).tolist() == list(range(29, 50))  # 21
    assert PaperRules().admitted(score, 2, 0.95).tolist() == [46, 47, 48, 49]  # 45.6
    # A low cut-off admits more: 0.05 x the third best, 47.
    assert FedScaleRules().admitted(score, 2, 0.05).tolist() == list(range(3, 50))


@pytest.mark.slow
def test_the_code_explores_by_size_among_five_for_a_place():
    selector, trials = made(8, rules="fedscale"), 4000
    sizes = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    counts = frequencies(selector, context(8, 1, sizes=sizes), trials)
    assert_frequencies(counts, trials, [0, 0, 0, 4 / 30, 5 / 30, 6 / 30, 7 / 30, 8 / 30])
    # Expected durations 1 .. 8: T is the third, 3; the slow are scaled by (3 / D)^2.
    expected = np.arange(1.0, 9.0)
    reward = np.array(sizes) * np.minimum(1.0, 3.0 / expected) ** 2
    kept = np.where(reward >= np.sort(reward)[-5], reward, 0.0)
    counts = frequencies(selector, context(8, 1, sizes=sizes, expected=expected), trials)
    assert_frequencies(counts, trials, kept / kept.sum())


@pytest.mark.parametrize(("round", "n_explored"), [(0, 88), (1, 86), (200, 30)])
def test_exploration_of_the_code_decays_before_the_first_round(round, n_explored):
    # int(100 * 0.9 * 0.98) = 88, int(100 * 0.9 * 0.98^2) = 86, int(100 * 0.3) = 30.
    assert 100 - FedScaleRules().n_exploit(100, 0.9, 0.98, 0.3, round) == n_explored


@pytest.mark.parametrize("seed", range(3))
def test_scores_and_pacer_follow_a_slow_copy_of_the_rules(seed):
    rng = np.random.default_rng(seed)
    n, window, thresholds = 24, 4, set()  # enough for the clip at 90 % to bite
    sizes, expected = rng.integers(5, 50, n).astype(float), rng.gamma(2.0, 10.0, n)
    selector = made(n, window=window, cutoff=1.0, **CODE)
    slow = SlowFedScale(sizes.tolist(), expected.tolist(), window)
    for t in range(40):
        available = rng.random(n) < 0.8
        ctx = context(n, 3, t, available, sizes, expected)
        pool = np.flatnonzero(available).tolist()
        if slow.last.keys() & set(pool):
            tried = np.array([i for i in pool if i in slow.last])
            scores = slow.scores(pool, t)
            got = selector._scores(tried, ctx)
            assert got == pytest.approx([scores[i] for i in tried], rel=1e-9)
        selection = selector.select(ctx, rng)
        exploited = selection.clients[selection.memo["is_exploited"]].tolist()
        rms, seconds = rng.gamma(2.0, 1.0, selection.clients.size), rng.gamma(2.0, 10.0, 9)
        level = 12.0 if t // 9 % 2 else 1.0  # sharp changes as well as flat stretches
        outcome = turnout.Outcome(
            [0] * rms.size, seconds[: rms.size], {"loss_rms": level * rms / rms.mean()}
        )
        selector.observe(selection, outcome)
        utility = sizes[selection.clients] * level * rms / rms.mean()
        told = zip(utility, seconds, strict=False)
        slow.feedback(t, exploited, dict(zip(selection.clients.tolist(), told, strict=True)))
        assert 30.0 + 5.0 * selector.pace_ == slow.threshold
        thresholds.add(slow.threshold)
    assert len(thresholds) > 1


def test_settings_that_the_code_does_not_have_are_refused():
    for changes in ({"normalize": False}, {"preferred_duration": 3.0}):
        with pytest.raises(turnout.InvalidInput, match=f"{next(iter(changes))}.*paper"):
            turnout.make("oort", rules="fedscale", **changes)
    with pytest.raises(turnout.InvalidInput, match="rules"):
        turnout.make("oort", rules="fedscal")
    with pytest.raises(turnout.InvalidInput, match="fairness"):
        turnout.make("oort", fairness=1.5)


def fair_state(**parameters):
    """Client 0 useful and chosen three times, 1 less useful twice, 2 useless once."""
    selector = made(3, cutoff=0.0, penalty=0.0, **EXPLOIT, **parameters)
    for t, clients in enumerate([[0, 1, 2], [0, 1], [0]]):
        rms = [9.0, 5.0, 1.0][: len(clients)]
        feed(selector, None, t, clients, [1.0] * 3, rms, [1.0] * len(clients))
    return selector


@pytest.mark.slow
def test_fairness_by_hand():
    # Round 3: bonus sqrt(0.1 ln 4 / L), L = (3, 2, 1). Counts (3, 2, 1): 1 - count / 3 = 0, 1/3,
    # 2/3 of the largest score.
    bonus = [math.sqrt(0.1 * math.log(4) / last) for last in (3, 2, 1)]
    utility = np.array([5.0, 5.0, 1.0]) + bonus  # clipped at the second
    f, trials = 0.5, 6000
    score = (1 - f) * utility + f * utility.max() * np.array([0, 1 / 3, 2 / 3])
    selector = fair_state(fairness=f, normalize=False)
    counts = frequencies(selector, context(3, 1, 3), trials)
    assert_frequencies(counts, trials, score / score.sum())


@pytest.mark.slow
def test_fairness_of_one_is_by_counts_alone():
    selector = fair_state(fairness=1.0)
    assert draws(selector, context(3, 2, 3), 200) == {1, 2}
    counts = frequencies(selector, context(3, 1, 3), 4000)
    assert_frequencies(counts, 4000, [0, 1 / 3, 2 / 3])


@pytest.mark.parametrize("rules", ["paper", "fedscale"])
def test_fairness_evens_out_who_is_chosen(rules):
    n, m, spread = 12, 3, {}
    for fairness in (0.0, 1.0):
        selector, rng = made(n, rules=rules, fairness=fairness), np.random.default_rng(0)
        times = np.zeros(n)
        for t in range(300):
            selection = selector.select(context(n, m, t), rng)
            times[selection.clients] += 1
            rms = 1.0 + selection.clients
            selector.observe(selection, turnout.Outcome([0] * m, [1.0] * m, {"loss_rms": rms}))
        spread[fairness] = times.std()
    assert spread[1.0] < 0.5 * spread[0.0]


def test_without_any_utility_or_data_the_code_scores_nobody():
    assert FedScaleRules().scaled(np.zeros(3), lambda: np.zeros(2)).tolist() == [0.0, 0.0, 0.0]


def test_the_cut_off_is_that_of_the_first_who_misses_a_place() -> None:
    # One place: 0.95 of the second score admits the five at 0.955, which ten for a place leave out.
    score = np.array([2.0, 1.0, *[0.96] * 12, *[0.955] * 5, 0.9])
    assert FedScaleRules().admitted(score, 1, 0.95).tolist() == list(range(19))


def test_known_durations_below_a_second_count():
    durations = np.array([-1.0, -1.0, 0.2, 0.4, 3.0])
    assert PaperRules().preferred(durations, 0) == 0.2
    assert FedScaleRules().preferred(durations, 0) == 0.2


def test_fairness_adds_nothing_for_the_most_chosen():
    selector = made(2, fairness=0.5)
    selector.n_chosen_[:] = [0, 4]
    assert selector._with_fairness(np.array([1.0, 2.0]), selector.n_chosen_).tolist() == [1.5, 1.0]


def test_a_pacer_step_adds_5_points_and_nothing_known_is_unknown():
    assert PaperRules().preferred(np.arange(1.0, 12.0), 2) == 5.0
    assert FedScaleRules().preferred(np.arange(100.0), 13) == 95.0
    unknown = np.array([math.nan, 3.0])
    assert FedScaleRules().durations(np.array([-1.0, -1.0]), unknown).tolist() == [-1.0, 3.0]
