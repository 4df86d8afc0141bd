import math

import numpy as np
import pytest

from turnout import Status
from turnout.core.errors import InvalidInput
from turnout.worlds import (
    AdaptiveDeadline,
    Closed,
    FirstK,
    FixedDeadline,
    Observed,
    OverSelect,
    OverSelectBySuccess,
)

C, L, F, S = Status.COMPLETED, Status.LATE, Status.FAILED, Status.SILENT
NAN = math.nan

DURATION = np.array([1.0, 3.0, 5.0, 2.0, 6.0])
SURVIVED = np.array([True, True, True, False, False])


def close(policy, duration=DURATION, survived=SURVIVED, observed=None, **given):
    return policy.close(np.array(duration), np.array(survived), observed, **given)


def check(closed, status, length, duration, spent, ended_early=False):
    assert closed.status.dtype == np.int8
    np.testing.assert_array_equal(closed.status, status)
    assert closed.length_s == length
    np.testing.assert_array_equal(closed.duration, duration)
    np.testing.assert_array_equal(closed.spent, spent)
    assert closed.ended_early is ended_early


def test_fixed_deadline_silent_crashes():
    check(
        close(FixedDeadline(4.0)),
        [C, C, L, S, S],
        4.0,
        [1.0, 3.0, NAN, NAN, NAN],
        [1.0, 3.0, 4.0, 2.0, 4.0],
    )


def test_fixed_deadline_reported_crashes():
    # the crash at 2 s is reported in time, the one at 6 s is not
    check(
        close(FixedDeadline(4.0), reports_failure=True),
        [C, C, L, F, S],
        4.0,
        [1.0, 3.0, NAN, 2.0, NAN],
        [1.0, 3.0, 4.0, 2.0, 4.0],
    )
    mixed = np.array([False, False, False, False, True])
    closed = close(FixedDeadline(10.0), reports_failure=mixed)
    np.testing.assert_array_equal(closed.status, [C, C, C, S, F])


def test_without_force_stop_late_clients_finish():
    check(
        close(FixedDeadline(4.0, force_stop=False)),
        [C, C, L, S, S],
        4.0,
        [1.0, 3.0, 5.0, NAN, NAN],
        DURATION,
    )


def test_a_round_ends_early_when_everyone_was_heard():
    survived = np.array([True, True, True, False, True])
    closed = close(FixedDeadline(100.0), survived=survived, reports_failure=True)
    check(closed, [C, C, C, F, C], 6.0, DURATION, DURATION)


def test_answering_exactly_at_the_deadline_is_in_time():
    closed = close(FixedDeadline(5.0), survived=np.ones(5, bool))
    np.testing.assert_array_equal(closed.status, [C, C, C, C, L])
    assert closed.length_s == 5.0


def test_without_deadline_the_longest_duration_counts():
    closed = close(FixedDeadline())
    check(closed, [C, C, C, S, S], 6.0, [1.0, 3.0, 5.0, NAN, NAN], DURATION)


def test_a_round_in_which_nobody_answers_completes():
    nobody = np.zeros(5, bool)
    closed = close(FixedDeadline(4.0), survived=nobody)
    assert closed.length_s == 4.0
    np.testing.assert_array_equal(closed.status, [S] * 5)
    assert close(FixedDeadline(), survived=nobody).length_s == 6.0
    assert close(FirstK(2, seconds=4.0), survived=nobody).length_s == 4.0
    assert close(AdaptiveDeadline(start=4.0), survived=nobody).length_s == 4.0


@pytest.mark.parametrize(
    "policy", [FixedDeadline(4.0), FirstK(), AdaptiveDeadline(start=4.0), OverSelect()]
)
def test_a_round_with_nobody_chosen_takes_no_time(policy):
    check(close(policy, [], np.zeros(0, bool)), [], 0.0, [], [])


def test_an_answer_that_never_came():
    # as an integration sees it: no duration
    closed = close(FixedDeadline(4.0), [1.0, NAN, NAN], [True, False, True])
    check(closed, [C, S, L], 4.0, [1.0, NAN, NAN], [1.0, 4.0, 4.0])
    closed = close(FixedDeadline(4.0, force_stop=False), [1.0, NAN], [True, False])
    check(closed, [C, S], 4.0, [1.0, NAN], [1.0, 4.0])
    closed = close(FirstK(2), [1.0, NAN], [True, True])
    check(closed, [C, L], 1.0, [1.0, NAN], [1.0, 1.0])


def test_first_k_ends_with_the_kth_answer():
    check(
        close(FirstK(2)),
        [C, C, L, S, S],
        3.0,
        [1.0, 3.0, NAN, NAN, NAN],
        [1.0, 3.0, 3.0, 2.0, 3.0],
        ended_early=True,
    )
    reported = close(FirstK(2), reports_failure=True)  # crash at 2 s heard, at 6 s not any more
    np.testing.assert_array_equal(reported.status, [C, C, L, F, S])


def test_first_k_by_share_and_by_wanted_number():
    assert close(FirstK(share=0.4)).length_s == 3.0  # 2 of 5
    assert close(FirstK(share=0.2)).length_s == 1.0
    assert close(FirstK(), cohort_size=1).length_s == 1.0
    assert close(FirstK(), cohort_size=3).length_s == 5.0


def test_first_k_with_too_few_answers_falls_back_to_the_deadline():
    for k in (4, 9):  # three survive; nine were never selected
        closed = close(FirstK(k, seconds=8.0))
        check(closed, [C, C, C, S, S], 8.0, [1.0, 3.0, 5.0, NAN, NAN], DURATION)
    late = close(FirstK(3, seconds=4.0))  # the third answer would come at 5 s
    np.testing.assert_array_equal(late.status, [C, C, L, S, S])
    assert late.length_s == 4.0
    assert not late.ended_early


def test_first_k_keeps_answers_of_the_same_instant():
    closed = close(FirstK(1), [2.0, 2.0, 3.0], [True, True, True])
    np.testing.assert_array_equal(closed.status, [C, C, L])


def test_over_selection_by_a_factor():
    policy = OverSelect(FirstK(), factor=1.3)
    assert policy.select_size(10) == 13
    assert policy.select_size(3) == 4
    assert OverSelect(factor=1.1).select_size(10) == 11  # not 12: 1.1 * 10 is 11.000000000000002
    closed = close(policy, cohort_size=2)
    assert closed.length_s == 3.0
    assert closed.ended_early
    nested = OverSelect(FixedDeadline(4.0, force_stop=False))
    assert nested.deadline() == 4.0
    assert not nested.force_stop


def closed_round(status, duration, ended_early=False):
    duration = np.array(duration)
    return Closed(np.array(status, dtype=np.int8), duration, 1.0, duration, ended_early)


def test_over_selection_by_observed_success():
    policy = OverSelectBySuccess(FirstK(), factor=3.0, window=8)
    observed = Observed.fresh()
    assert policy.select_size(10) == 10
    assert policy.select_size(10, observed) == 10  # nothing known yet
    observed.record(closed_round([C, S, F, C], [1.0, NAN, 2.0, 1.0]))
    assert observed.success(8) == 0.5
    assert policy.select_size(10, observed) == 20
    observed.record(closed_round([S] * 6, [NAN] * 6))
    assert observed.success(8) == 0.125  # one of the latest eight
    assert policy.select_size(10, observed) == 30  # not 80: the factor limits
    assert OverSelectBySuccess(factor=10.0, window=8).select_size(10, observed) == 80
    observed.record(closed_round([S] * 8, [NAN] * 8))
    assert policy.select_size(10, observed) == 30
    assert policy.uses_observed


def test_clients_cut_off_early_say_nothing_about_success():
    observed = Observed.fresh()
    observed.record(closed_round([C, L, L, S], [1.0, NAN, NAN, NAN], ended_early=True))
    assert observed.success(100) == 0.5
    np.testing.assert_array_equal(observed.seconds(100), [1.0])
    observed.record(closed_round([C, L], [2.0, NAN]), deadline=4.0)
    assert observed.success(100) == 0.5  # 2 of 4: here the late one missed a deadline
    np.testing.assert_array_equal(np.sort(observed.seconds(100)), [1.0, 2.0, math.inf])


def test_adaptive_deadline_by_hand():
    policy, observed = AdaptiveDeadline(quantile=0.75, window=4, start=9.0), Observed.fresh()
    assert policy.deadline() == 9.0
    assert policy.deadline(observed) == 9.0
    observed.record(closed_round([C, C, S, C, C], [4.0, 1.0, NAN, 3.0, 2.0]), deadline=9.0)
    assert policy.deadline(observed) == 3.0  # 3 of 4 stayed within
    closed = close(policy, observed=observed)
    np.testing.assert_array_equal(closed.status, [C, C, L, S, S])
    assert closed.length_s == 3.0
    observed.record(closed_round([C, C], [8.0, 8.0]), deadline=3.0)
    assert policy.deadline(observed) == 8.0  # latest four: 3, 2, 8, 8


def test_adaptive_deadline_does_not_tighten_because_it_drops_the_slow():
    policy, observed = AdaptiveDeadline(quantile=0.9, start=4.0, window=20), Observed.fresh()
    # ten durations 1 .. 10, every round: at 4 s six of ten are late
    duration, survived = np.arange(1.0, 11.0), np.ones(10, bool)
    deadlines = []
    for _ in range(12):
        deadline = policy.deadline(observed)
        deadlines.append(deadline)
        observed.record(policy.close(duration, survived, observed), deadline)
    np.testing.assert_allclose(deadlines[:4], [4.0, 6.0, 9.0, 13.5])
    assert deadlines[-1] == 9.0  # settles where 9 of 10 are in time


def test_adaptive_deadline_never_exceeds_the_longest():
    policy, observed = AdaptiveDeadline(quantile=0.9, start=4.0, longest=5.0), Observed.fresh()
    observed.record(closed_round([L, L], [NAN, NAN]), deadline=4.0)
    assert policy.deadline(observed) == 5.0
    assert AdaptiveDeadline(longest=7.0).deadline() == 7.0


def test_observed_is_a_ring_that_can_be_saved():
    observed = Observed.fresh(capacity=5)
    for i in range(4):
        observed.record(closed_round([C, C, C], [3.0 * i, 3.0 * i + 1, 3.0 * i + 2]), deadline=7.0)
    np.testing.assert_array_equal(observed.seconds(3), [11.0, 10.0, 9.0])
    np.testing.assert_array_equal(observed.seconds(99), [11.0, 10.0, 9.0, 8.0, 7.0])
    observed.record(closed_round([C] * 8, np.arange(8.0)), deadline=7.0)  # more than fit
    np.testing.assert_array_equal(observed.seconds(99), [7.0, 6.0, 5.0, 4.0, 3.0])
    restored = Observed.fresh(capacity=5)
    restored.load_state(observed.state())
    np.testing.assert_array_equal(restored.seconds(99), observed.seconds(99))
    assert restored.deadline_ == 7.0
    assert restored.success(10) == observed.success(10)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: FixedDeadline(0.0), "seconds"),
        (lambda: FirstK(2, share=0.5), "count and share"),
        (lambda: FirstK(0), "count"),
        (lambda: FirstK(share=1.5), "share"),
        (lambda: OverSelect(factor=0.9), "factor"),
        (lambda: AdaptiveDeadline(quantile=0.0), "quantile"),
        (lambda: AdaptiveDeadline(growth=1.0), "growth"),
        (lambda: OverSelectBySuccess(window=0), "window"),
        (lambda: Observed.fresh(capacity=0), "capacity"),
        (lambda: close(FixedDeadline(), [1.0], [True, False]), "equal length"),
    ],
)
def test_bad_input_is_named(build, field):
    with pytest.raises(InvalidInput, match=field):
        build()


@pytest.mark.parametrize("policy", [OverSelect, OverSelectBySuccess])
def test_the_inner_policy_must_be_one(policy):
    with pytest.raises(InvalidInput, match="inner must be of class RoundPolicy, got 5"):
        policy(inner=5)
