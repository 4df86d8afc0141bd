from __future__ import annotations

import math

import numpy as np
import pytest

import turnout
from tests.references.oort_slow import SlowOort, successive_inclusion

NAN = math.nan
#: Exploitation only, so that one draw shows one score.
EXPLOIT = {"explore": 0.0, "explore_min": 0.0}


def context(n, m, round=0, available=None, sizes=None, expected=None):
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {"num_samples": np.full(n, 1.0) if sizes is None else np.array(sizes)}
    if expected is not None:
        columns["expected_duration"] = np.array(expected)
    return turnout.RoundContext(round, m, available, columns=columns)


def made(n, **parameters):
    selector = turnout.make("oort", **parameters)
    selector.reset(n)
    return selector


def feed(selector, slow, round, clients, sizes, rms, duration, status=None):
    """Force a round: the selection is asked for exactly these clients, then the outcome is told.

    Only they are available, so that ``select`` itself attaches whatever ``observe`` needs.
    """
    clients = np.sort(np.array(clients))
    n = selector.n_clients
    available = np.zeros(n, dtype=bool)
    available[clients] = True
    ctx = context(n, max(1, clients.size), round, available, sizes)
    selection = selector.select(ctx, np.random.default_rng(round))
    assert selection.clients.tolist() == clients.tolist()
    status = [0] * clients.size if status is None else status
    selector.observe(selection, turnout.Outcome(status, duration, {"loss_rms": rms}))
    if slow is not None:
        drawn = [float(np.array(sizes)[i]) for i in clients]
        slow.feedback(round, clients.tolist(), drawn, list(rms), list(duration))


def frequencies(selector, ctx, trials, seed=0):
    rng, counts = np.random.default_rng(seed), np.zeros(ctx.n_clients)
    for _ in range(trials):
        counts[selector.select(ctx, rng).clients] += 1
    return counts


def assert_frequencies(counts, trials, probability):
    p = np.array(probability)
    margin = 5 * np.sqrt(trials * p * (1 - p))
    assert np.all(np.abs(np.array(counts) - trials * p) <= margin + 1e-9), (counts, trials * p)


def draws(selector, ctx, trials, seed=0):
    return set(np.flatnonzero(frequencies(selector, ctx, trials, seed)).tolist())


def hand_state(**parameters):
    """Three rounds: U = (20, 30, 12), L = (1, 2, 3), D = (1, 4, 2)."""
    sizes = [10.0, 20.0, 30.0]
    selector, slow = made(3, **EXPLOIT, **parameters), SlowOort(**EXPLOIT, **parameters)
    feed(selector, slow, 0, [0], sizes, [2.0], [1.0])
    feed(selector, slow, 1, [1], sizes, [1.5], [4.0])
    feed(selector, slow, 2, [2], sizes, [0.4], [2.0])
    return selector, slow, sizes


@pytest.mark.slow
def test_scores_by_hand_normalised():
    # Round 3, so R = 4. 95th percentile of (12, 20, 30) from below is 20: U = (20, 20, 12).
    # Normalised U = (1, 1, 0). Bonus sqrt(0.1 ln 4 / L) = (0.372330, 0.263277, 0.214965).
    # T = 30th percentile of (1, 2, 4) = 1: factors (1, (1/4)^2, (1/2)^2).
    # Scores = (1.372330, 1.263277 / 16, 0.214965 / 4) = (1.372330, 0.078955, 0.053741).
    selector, slow, sizes = hand_state(cutoff=0.0)
    scores = slow.scores([0, 1, 2], 3)
    assert [scores[i] for i in range(3)] == pytest.approx([1.372330, 0.078955, 0.053741], abs=1e-6)
    trials = 4000
    counts = frequencies(selector, context(3, 1, 3, sizes=sizes), trials)
    total = 1.372330 + 0.078955 + 0.053741
    assert_frequencies(counts, trials, [1.372330 / total, 0.078955 / total, 0.053741 / total])


@pytest.mark.slow
def test_scores_by_hand_of_algorithm_1():
    # Raw utilities, clipped at 20, T fixed at 2: (20.372330, 20.263277 * (2/4)^2, 12.214965)
    #                                           = (20.372330, 5.065819, 12.214965).
    selector, slow, sizes = hand_state(cutoff=0.0, normalize=False, preferred_duration=2.0)
    expected = [20.372330, 5.065819, 12.214965]
    scores = slow.scores([0, 1, 2], 3)
    assert [scores[i] for i in range(3)] == pytest.approx(expected, abs=1e-6)
    trials = 4000
    counts = frequencies(selector, context(3, 1, 3, sizes=sizes), trials)
    assert_frequencies(counts, trials, [value / sum(expected) for value in expected])


def test_cut_off_by_hand():
    # Raw scores 20.37, 5.07, 12.21. One place: cut-off c * 20.37; two places: c * 12.21.
    selector, _, sizes = hand_state(cutoff=0.95, normalize=False, preferred_duration=2.0)
    one, two = context(3, 1, 3, sizes=sizes), context(3, 2, 3, sizes=sizes)
    assert draws(selector, one, 100) == {0}
    assert draws(selector, two, 100) == {0, 2}
    selector.cutoff = 12.214965 / 20.372330 * 1.0001
    assert draws(selector, one, 100) == {0}
    selector.cutoff = 12.214965 / 20.372330 * 0.9999
    assert draws(selector, one, 100) == {0, 2}
    selector.cutoff = 5.065819 / 12.214965 * 0.9999
    assert draws(selector, two, 100) == {0, 1, 2}


def random_round(rng, n, m):
    chosen = np.sort(rng.choice(n, int(rng.integers(1, m + 1)), replace=False))
    status = rng.choice(4, chosen.size, p=[0.7, 0.1, 0.1, 0.1])
    rms = np.where(status <= 1, rng.gamma(2.0, 1.0, chosen.size), NAN)
    rms[rng.random(chosen.size) < 0.1] = NAN
    duration = np.where(status <= 1, rng.gamma(2.0, 10.0, chosen.size), NAN)
    duration[rng.random(chosen.size) < 0.1] = NAN
    return chosen, status, rms, duration


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("preferred", [None, 6.0])
@pytest.mark.parametrize("seed", range(2))
def test_cut_off_set_matches_slow_algorithm_1(normalize, preferred, seed):
    rng = np.random.default_rng([seed, int(normalize), 0 if preferred is None else 1])
    n, m = int(rng.integers(5, 9)), 4
    sizes = rng.integers(1, 50, n).astype(float)
    parameters = {"window": 5, "normalize": normalize, "preferred_duration": preferred, **EXPLOIT}
    selector, slow = made(n, **parameters), SlowOort(**parameters)
    precise = 0
    for t in range(55):
        chosen, status, rms, duration = random_round(rng, n, m)
        if preferred is None:  # who counts for the percentile has tests of its own
            duration = rng.gamma(2.0, 10.0, chosen.size)
        feed(selector, slow, t, chosen, sizes, rms, duration, status)
        assert int(selector.pace_) == slow.pace
        if t < 8:
            continue
        available = np.isin(np.arange(n), list(slow.utility))
        if preferred is not None:
            available &= rng.random(n) < 0.9
        pool = np.flatnonzero(available).tolist()
        if len(pool) < 2:
            continue
        scores = slow.scores(pool, t + 1)
        ordered = sorted(scores.values(), reverse=True)
        k = int(rng.integers(1, len(pool)))
        ctx = context(n, k, t + 1, available, sizes)
        selector.cutoff = slow.cutoff = 0.95
        assert draws(selector, ctx, 8, t) <= set(slow.admitted(scores, k))
        # The score of one client, to nine digits: it is in or out as the cut-off passes it.
        target = int(rng.choice([i for i in pool if scores[i] <= ordered[k - 1]]))
        ratio = scores[target] / ordered[k - 1] if ordered[k - 1] > 0 else 0.0
        if t % 2 or not 0.2 < ratio < 0.999:
            continue
        precise += 1
        selector.cutoff = slow.cutoff = ratio * (1 + 1e-9)
        out = draws(selector, ctx, 40, t)
        assert target not in out
        assert out <= set(slow.admitted(scores, k))
        selector.cutoff = slow.cutoff = ratio * (1 - 1e-9)
        assert target in draws(selector, ctx, 120, t)
    assert precise >= 5


@pytest.mark.slow
def test_draws_follow_successive_sampling_in_proportion_to_score():
    sizes = [1.0] * 4
    parameters = {"cutoff": 0.0, "normalize": False, **EXPLOIT}
    selector, slow = made(4, **parameters), SlowOort(**parameters)
    feed(selector, slow, 0, [0, 1, 2, 3], sizes, [4.0, 3.0, 2.0, 1.0], [1.0] * 4)
    scores = slow.scores([0, 1, 2, 3], 1)
    trials = 5000
    counts = frequencies(selector, context(4, 2, 1, sizes=sizes), trials)
    expected = successive_inclusion([scores[i] for i in range(4)], 2)
    assert_frequencies(counts, trials, expected)


def test_works_before_the_first_feedback():
    selector, trials = made(6), 4000
    ctx = context(6, 2)
    counts = frequencies(selector, ctx, trials)
    assert_frequencies(counts, trials, [2 / 6] * 6)
    nothing = made(6, **EXPLOIT)
    assert nothing.select(ctx, np.random.default_rng(0)).clients.size == 2
    assert made(3).select(context(3, 9), np.random.default_rng(0)).clients.tolist() == [0, 1, 2]


@pytest.mark.slow
def test_explores_in_proportion_to_speed():
    selector, trials = made(4), 5000
    expected = [1.0, 2.0, 4.0, 8.0]
    counts = frequencies(selector, context(4, 2, expected=expected), trials)
    assert_frequencies(counts, trials, successive_inclusion([1.0, 0.5, 0.25, 0.125], 2))


@pytest.mark.slow
def test_unknown_speed_counts_as_the_mean():
    selector, trials = made(3), 3000
    counts = frequencies(selector, context(3, 1, expected=[1.0, NAN, 2.0]), trials)
    assert_frequencies(counts, trials, successive_inclusion([1.0, 1 / 1.5, 0.5], 1))
    counts = frequencies(selector, context(3, 1, expected=[NAN] * 3), trials)
    assert_frequencies(counts, trials, [1 / 3] * 3)


def test_extreme_speeds_do_not_break_exploration():
    selector = made(4)
    for m in (1, 2, 3, 4):
        ctx = context(4, m, expected=[1.0, NAN, 0.0, 1e30])
        assert selector.select(ctx, np.random.default_rng(m)).clients.size == m


@pytest.mark.parametrize("round", [0, 1, 10, 50, 74, 75, 400])
def test_exploration_share(round):
    # Sec. 7.1 of the paper: 0.9 at first, times 0.98 per round while above 0.2.
    n, m = 400, 100
    selector = made(n)
    tried = np.arange(0, 200)
    selection = turnout.Selection(0, tried)
    first = selector.select(context(n, 200, 0, np.arange(n) < 200), np.random.default_rng(0))
    assert first.clients.tolist() == selection.clients.tolist()
    rms = np.linspace(0.5, 1.0, 200)
    selector.observe(first, turnout.Outcome([0] * 200, [1.0] * 200, {"loss_rms": rms}))
    epsilon = max(0.9 * 0.98**round, 0.2)
    for seed in range(5):
        chosen = selector.select(context(n, m, round), np.random.default_rng(seed)).clients
        n_exploited = int(np.sum(chosen < 200))
        assert chosen.size == m
        assert abs(n_exploited - (1 - epsilon) * m) <= 0.5


def test_exploration_share_of_a_small_cohort():
    # (1 - 0.9) * 10 is one place, although 1 - 0.9 is a little less than 0.1 in floats.
    n, selector = 40, made(40)
    first = selector.select(context(n, 20, 0, np.arange(n) < 20), np.random.default_rng(0))
    outcome = turnout.Outcome([0] * 20, [1.0] * 20, {"loss_rms": [1.0] * 20})
    selector.observe(first, outcome)
    chosen = selector.select(context(n, 10, 0), np.random.default_rng(0)).clients
    assert int(np.sum(chosen < 20)) == 1


def test_places_are_filled_when_one_side_runs_out():
    n, selector = 12, made(12)
    first = selector.select(context(n, 3, 0, np.arange(n) < 3), np.random.default_rng(0))
    selector.observe(first, turnout.Outcome([0] * 3, [1.0] * 3, {"loss_rms": [1.0, 2.0, 3.0]}))
    # Late round: 80 % of ten places would exploit, but only three were tried.
    chosen = selector.select(context(n, 10, 300), np.random.default_rng(0)).clients
    assert chosen.size == 10
    assert set(chosen.tolist()) >= {0, 1, 2}
    # Early round with one untried client: the rest goes to the tried.
    few = np.isin(np.arange(n), [0, 1, 2, 7])
    chosen = selector.select(context(n, 3, 0, few), np.random.default_rng(0)).clients
    assert chosen.size == 3
    assert 7 in chosen


@pytest.mark.parametrize("preferred", [None, 5.0])
def test_pacer_steps(preferred):
    # W = 2. Utility per round: 10 10 | 10 10 | 4 4 | 4 4 | 3 3 | 5 5.
    # Compared once per window, from two full windows on: = no, > yes, = no, > yes, < no.
    selector = made(1, window=2, preferred_duration=preferred, **EXPLOIT)
    utility = [10, 10, 10, 10, 4, 4, 4, 4, 3, 3, 5, 5]
    paces = []
    for t, u in enumerate(utility):
        feed(selector, None, t, [0], [1.0], [float(u)], [1.0])
        paces.append(int(selector.pace_))
    assert paces == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.slow
def test_pacer_relaxes_a_preferred_number():
    # T = 2 at first: D = 4 costs (2/4)^2 = 1/4. After one step T = 4: no penalty.
    parameters = {
        "window": 1,
        "preferred_duration": 2.0,
        "normalize": False,
        "cutoff": 0.0,
        **EXPLOIT,
    }
    sizes = [1.0, 1.0]
    selector, slow = made(2, **parameters), SlowOort(**parameters)
    feed(selector, slow, 0, [0, 1], sizes, [8.0, 8.0], [1.0, 4.0])
    assert slow.preferred() == 2.0
    scores, trials = slow.scores([0, 1], 1), 4000
    bonus = math.sqrt(0.1 * math.log(2))
    assert scores == pytest.approx({0: 8.0 + bonus, 1: (8.0 + bonus) / 4})
    counts = frequencies(selector, context(2, 1, 1, sizes=sizes), trials)
    assert_frequencies(counts, trials, [0.8, 0.2])
    feed(selector, slow, 1, [0, 1], sizes, [6.0, 6.0], [1.0, 4.0])  # 16 > 12: one step
    assert int(selector.pace_) == slow.pace == 1
    counts = frequencies(selector, context(2, 1, 2, sizes=sizes), trials)
    assert_frequencies(counts, trials, [0.5, 0.5])


@pytest.mark.slow
def test_pacer_raises_the_percentile():
    # Eleven durations 1..11, equal utility. T = 4 (30th percentile), after two steps 5 (40th).
    parameters = {"window": 1, "cutoff": 0.0, "normalize": False, **EXPLOIT}
    n, sizes = 11, [1.0] * 11
    selector, slow = made(n, **parameters), SlowOort(**parameters)
    for t, level in enumerate([8.0, 6.0, 4.0]):
        feed(selector, slow, t, list(range(n)), sizes, [level] * n, np.arange(1.0, 12.0))
        assert slow.preferred() == [4.0, 4.0, 5.0][t]
        assert int(selector.pace_) == t
        counts = frequencies(selector, context(n, 1, t + 1, sizes=sizes), 2500, t)
        scores = slow.scores(list(range(n)), t + 1)
        total = sum(scores.values())
        assert_frequencies(counts, 2500, [scores[i] / total for i in range(n)])


def test_staleness_bonus_applies_to_every_tried_client():
    # Equal utilities and durations: only L differs, 1 against 30. R = 40.
    parameters = {"cutoff": 0.0, "normalize": False, "penalty": 0.0, **EXPLOIT}
    sizes = [1.0, 1.0]
    selector, slow = made(2, **parameters), SlowOort(**parameters)
    feed(selector, slow, 0, [0], sizes, [0.1], [1.0])
    feed(selector, slow, 29, [1], sizes, [0.1], [1.0])
    scores = slow.scores([0, 1], 39)
    # sqrt(0.1 ln 40 / 1) = 0.607361, sqrt(0.1 ln 40 / 30) = 0.110888.
    assert scores == pytest.approx({0: 0.707361, 1: 0.210888}, abs=1e-6)
    trials = 4000
    counts = frequencies(selector, context(2, 1, 39, sizes=sizes), trials)
    assert_frequencies(counts, trials, [0.707361 / 0.918249, 0.210888 / 0.918249])


@pytest.mark.slow
def test_a_hostile_loss_is_clipped():
    # 40 clients; the 95th percentile is the 39th value in ascending order (index 38).
    n, sizes = 40, [1.0] * 40
    for normalize in (False, True):
        parameters = {"cutoff": 0.0, "normalize": normalize, **EXPLOIT}
        selector, slow = made(n, **parameters), SlowOort(**parameters)
        rms = np.linspace(1.0, 2.0, n)
        rms[7] = 1e30
        feed(selector, slow, 0, list(range(n)), sizes, rms, [1.0] * n)
        scores = slow.scores(list(range(n)), 1)
        honest = max(value for i, value in scores.items() if i != 7)
        assert scores[7] <= honest + 1e-12
        trials = 4000
        counts = frequencies(selector, context(n, 1, 1, sizes=sizes), trials)
        assert counts[7] <= trials * scores[7] / sum(scores.values()) + 5 * math.sqrt(
            trials * scores[7] / sum(scores.values())
        )
        assert all(np.all(np.isfinite(value)) for value in selector.state().values())


@pytest.mark.slow
def test_a_hostile_loss_among_few_clients_is_clipped():
    # The 95th percentile of three from below is the second: the liar counts as 2, like client 2.
    selector = made(3, cutoff=0.0, normalize=False, **EXPLOIT)
    feed(selector, None, 0, [0, 1, 2], [1.0] * 3, [1e30, 1.0, 2.0], [1.0] * 3)
    bonus = math.sqrt(0.1 * math.log(2))
    counts = frequencies(selector, context(3, 1, 1), 4000)
    total = 5.0 + 3 * bonus
    assert_frequencies(
        counts, 4000, [(2 + bonus) / total, (1 + bonus) / total, (2 + bonus) / total]
    )


def test_of_two_tried_clients_the_useful_one_is_preferred():
    # Alg. 1 lines 9-15: U = 5 against U = 0 cannot come out equal. No definition of the 95th
    # percentile but the one from below puts it at the smaller of two values.
    selector = made(2, cutoff=0.0, normalize=False, **EXPLOIT)
    feed(selector, None, 0, [0, 1], [1.0] * 2, [5.0, 0.0], [1.0] * 2)
    counts = frequencies(selector, context(2, 1, 1), 2000)
    assert counts[0] > 1000 + 5 * math.sqrt(500)


@pytest.mark.slow
def test_preferred_duration_ignores_those_who_never_reported_one():
    # "the 30th percentile of the durations seen": D = 1, 2, 3, 4 seen, four clients silent.
    # T = 1, so client 3 is slowed by (1/4)^2; silent clients do not pull T to 0.
    n = 8
    parameters = {"cutoff": 0.0, "normalize": False, **EXPLOIT}
    selector, slow = made(n, **parameters), SlowOort(**parameters)
    duration = [1.0, 2.0, 3.0, 4.0, NAN, NAN, NAN, NAN]
    feed(selector, slow, 0, list(range(n)), [1.0] * n, [9.0] * n, duration)
    assert slow.preferred() == 1.0
    scores = slow.scores(list(range(n)), 1)
    counts = frequencies(selector, context(n, 1, 1), 4000)
    total = sum(scores.values())
    assert_frequencies(counts, 4000, [scores[i] / total for i in range(n)])


def test_preferred_duration_counts_everyone_seen():
    # D = (1, 4, 4, 4, 4, 2): T = 2. Whoever is away now was seen all the same; among the present
    # 0, 1 and 5 alone it would be 1.
    n = 6
    parameters = {"cutoff": 0.0, "normalize": False, **EXPLOIT}
    selector, slow = made(n, **parameters), SlowOort(**parameters)
    duration = [1.0, 4.0, 4.0, 4.0, 4.0, 2.0]
    feed(selector, slow, 0, list(range(n)), [1.0] * n, [9.0] * n, duration)
    assert slow.preferred() == 2.0
    scores = slow.scores([0, 1, 5], 1)
    here = np.isin(np.arange(n), [0, 1, 5])
    counts = frequencies(selector, context(n, 1, 1, here), 2000)
    total = sum(scores.values())
    assert_frequencies(counts[[0, 1, 5]], 2000, [scores[i] / total for i in (0, 1, 5)])


def test_participation_cap():
    selector, n = made(6, max_participation=2, **EXPLOIT), 6
    rng, times = np.random.default_rng(0), np.zeros(6)
    for t in range(6):  # twelve places, two for everyone
        selection = selector.select(context(n, 2, t), rng)
        times[selection.clients] += 1
        outcome = turnout.Outcome([0, 0], [1.0, 1.0], {"loss_rms": rng.random(2)})
        selector.observe(selection, outcome)
        assert times.max() <= 2
    assert times.tolist() == [2.0] * 6
    # Nobody is left: the capped fill the places instead of a crash.
    assert selector.select(context(n, 2, 6), rng).clients.size == 2
    assert selector.select(context(n, 6, 6), rng).clients.size == 6


def test_capped_clients_fill_up_only_what_is_missing():
    selector = made(4, max_participation=1, **EXPLOIT)
    feed(selector, None, 0, [0, 1], [1.0] * 4, [9.0, 9.0], [1.0, 1.0])
    for seed in range(50):
        rng = np.random.default_rng(seed)
        assert selector.select(context(4, 2, 1), rng).clients.tolist() == [2, 3]
        chosen = selector.select(context(4, 3, 1), rng).clients.tolist()
        assert {2, 3} < set(chosen)


@pytest.mark.slow
def test_a_silent_client_counts_as_tried_with_utility_zero():
    selector = made(3, cutoff=0.0, normalize=False, **EXPLOIT)
    feed(selector, None, 0, [0, 1, 2], [1.0] * 3, [NAN, 5.0, 5.0], [NAN, 1.0, 1.0], [3, 0, 0])
    rng = np.random.default_rng(0)
    explorer = made(3, explore=1.0, explore_min=1.0)
    feed(explorer, None, 0, [0, 1], [1.0] * 3, [NAN, 5.0], [NAN, 1.0], [3, 0])
    for _ in range(50):  # the only untried client
        assert explorer.select(context(3, 1, 1), rng).clients.tolist() == [2]
    # Scores bonus and twice 5 + bonus; T = 1 costs nobody anything.
    bonus = math.sqrt(0.1 * math.log(2))
    counts = frequencies(selector, context(3, 1, 1), 4000)
    share = bonus / (10 + 3 * bonus)
    assert_frequencies(counts, 4000, [share, (1 - share) / 2, (1 - share) / 2])


@pytest.mark.slow
def test_a_client_that_stops_answering_keeps_its_utility():
    # Alg. 1 changes U only with feedback; L moves on, so the bonus shrinks.
    parameters = {"cutoff": 0.0, "normalize": False, "preferred_duration": 9.0, **EXPLOIT}
    selector, slow = made(3, **parameters), SlowOort(**parameters)
    feed(selector, slow, 0, [0, 1, 2], [1.0] * 3, [0.5, 0.5, 0.2], [1.0] * 3)
    feed(selector, slow, 9, [0], [1.0] * 3, [NAN], [NAN], [2])
    scores = slow.scores([0, 1, 2], 10)
    counts = frequencies(selector, context(3, 1, 10), 4000)
    total = sum(scores.values())
    assert_frequencies(counts, 4000, [scores[i] / total for i in range(3)])


def test_a_client_that_never_answers_is_not_chosen_for_ever():
    n, m, rounds = 10, 2, 200
    selector, rng = made(n), np.random.default_rng(0)
    times = np.zeros(n)
    for t in range(rounds):
        selection = selector.select(context(n, m, t), rng)
        times[selection.clients] += 1
        silent = selection.clients == 4
        rms = np.where(silent, NAN, rng.random(m) + 1.0)
        duration = np.where(silent, NAN, 1.0)
        status = np.where(silent, 3, 0)
        selector.observe(selection, turnout.Outcome(status, duration, {"loss_rms": rms}))
    assert 1 <= times[4] < np.delete(times, 4).min()


@pytest.mark.slow
def test_ties_have_no_index_bias():
    selector = made(5, **EXPLOIT)
    feed(selector, None, 0, list(range(5)), [1.0] * 5, [1.0] * 5, [1.0] * 5)
    counts = frequencies(selector, context(5, 2, 1), 3000)
    assert_frequencies(counts, 3000, [2 / 5] * 5)
    silent = made(5, **EXPLOIT)
    feed(silent, None, 0, list(range(5)), [1.0] * 5, [NAN] * 5, [NAN] * 5, [3] * 5)
    counts = frequencies(silent, context(5, 2, 0), 3000)
    assert_frequencies(counts, 3000, [2 / 5] * 5)


@pytest.mark.slow
def test_late_feedback_does_not_turn_time_back():
    selector = made(2, cutoff=0.0, normalize=False, penalty=0.0, **EXPLOIT)
    sizes = [1.0, 1.0]
    late = selector.select(context(2, 1, 3, [True, False], sizes), np.random.default_rng(0))
    feed(selector, None, 29, [0, 1], sizes, [0.1, 0.1], [1.0, 1.0])
    selector.observe(late, turnout.Outcome([1], [1.0], {"loss_rms": [0.1]}))
    counts = frequencies(selector, context(2, 1, 39, sizes=sizes), 4000)
    assert_frequencies(counts, 4000, [0.5, 0.5])


@pytest.mark.parametrize("sizes", [[0.0, 0.0, 0.0], [NAN, NAN, NAN], [NAN, 0.0, 5.0]])
def test_odd_sizes(sizes):
    selector, rng = made(3), np.random.default_rng(0)
    for t in range(40):
        selection = selector.select(context(3, 2, t, sizes=sizes), rng)
        assert selection.clients.size == 2
        selector.observe(
            selection, turnout.Outcome([0, 0], [0.0, 1.0], {"loss_rms": rng.random(2)})
        )
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())


def test_unknown_size_counts_as_the_mean_of_all_clients():
    # U = |B| * rms with |B| unknown: the mean of the known, 100, whoever else was in the cohort.
    sizes = [NAN, 100.0, 100.0]
    selector = made(3, cutoff=0.0, normalize=False, preferred_duration=9.0, **EXPLOIT)
    for k in range(3):
        feed(selector, None, k, [k], sizes, [1.0], [1.0])
    # The bonus is below 0.4, so all three scores are 100 up to 0.4 %.
    counts = frequencies(selector, context(3, 1, 3, sizes=sizes), 2000)
    margin = 5 * math.sqrt(2000 * 2 / 9) + 2000 * 0.004
    assert np.all(np.abs(counts - 2000 / 3) <= margin), counts


def test_zero_and_missing_durations():
    selector, rng = made(4), np.random.default_rng(0)
    for t in range(60):
        selection = selector.select(context(4, 2, t), rng)
        duration = rng.choice([0.0, NAN, 1e30], 2)
        selector.observe(selection, turnout.Outcome([0, 0], duration, {"loss_rms": [1.0, 1e30]}))
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())
    assert selector.select(context(4, 2, 60), rng).clients.size == 2


def test_nobody_available_and_empty_feedback():
    selector, rng = made(3), np.random.default_rng(0)
    selection = selector.select(context(3, 2, 0, [False] * 3), rng)
    assert selection.clients.size == 0
    selector.observe(selection, turnout.Outcome([], []))
    assert selector.select(context(3, 2, 1), rng).clients.size == 2


def test_metrics_not_reported_at_all():
    selector, rng = made(3), np.random.default_rng(0)
    for t in range(10):
        selection = selector.select(context(3, 2, t), rng)
        selector.observe(selection, turnout.Outcome([0, 0], [1.0, 1.0]))
    assert all(np.all(np.isfinite(value)) for value in selector.state().values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("explore", -0.1),
        ("explore", 1.1),
        ("explore", NAN),
        ("explore_decay", 2.0),
        ("explore_decay", -1.0),
        ("explore_min", -0.5),
        ("explore_min", 1.5),
        ("penalty", -1.0),
        ("penalty", math.inf),
        ("cutoff", -0.1),
        ("cutoff", 1.1),
        ("window", 0),
        ("window", 2.5),
        ("preferred_duration", 0.0),
        ("preferred_duration", NAN),
        ("max_participation", 0),
        ("max_participation", 1.5),
        ("normalize", "yes"),
    ],
)
def test_bad_parameters_name_the_field(field, value):
    with pytest.raises(turnout.InvalidInput, match=field):
        turnout.make("oort", **{field: value})


def test_bad_input_leaves_the_state_unchanged():
    selector, rng = made(3), np.random.default_rng(0)
    feed(selector, None, 0, [0, 1], [1.0] * 3, [1.0, 2.0], [1.0, 2.0])
    before = selector.state()
    with pytest.raises(turnout.MissingColumn, match="num_samples"):
        selector.select(turnout.RoundContext(1, 1, np.ones(3, dtype=bool)), rng)
    with pytest.raises(turnout.InvalidInput, match="available"):
        selector.select(context(4, 1), rng)
    selection = selector.select(context(3, 2, 1), rng)
    with pytest.raises(turnout.InvalidInput, match="status"):
        selector.observe(selection, turnout.Outcome([0], [1.0]))
    after = selector.state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_the_unit_of_durations_does_not_matter():
    """Rounds of milliseconds are as unequal as rounds of minutes."""
    rms, ctx = [1.0, 2.0, 3.0, 4.0], context(4, 2, round=1)
    shares = []
    for unit in (1e-3, 60.0):
        selector = made(4, explore=0.0, explore_min=0.0)
        feed(
            selector, None, 0, [0, 1, 2, 3], np.ones(4), rms, unit * np.array([1.0, 2.0, 8.0, 9.0])
        )
        shares.append(frequencies(selector, ctx, 200).tolist())
    assert shares[0] == shares[1]
    assert shares[0][0] > shares[0][3]  # the fastest, although its loss is the least
