import math

import pytest
import scipy.stats

from turnout.core.errors import InvalidInput
from turnout.results import Scores


def scores_of(**by_label):
    """Scores of one metric ``cep``, or of several in dictionaries, one entry per seed."""
    return Scores(
        {
            label: {seed: run(values) for seed, values in enumerate(of_seeds)}
            for label, of_seeds in by_label.items()
        }
    )


def run(values):
    numbers = values if isinstance(values, dict) else {"cep": values}
    return lambda metric: numbers.get(metric.key, math.nan)


def times(*rounds, n_rounds=100):
    return [{"rounds_to_0.8": time, "rounds_run": min(n_rounds, time)} for time in rounds]


def never(n_rounds=100):
    return {"rounds_run": n_rounds}


def test_means_are_over_the_seeds_that_have_a_number():
    scores = scores_of(a=[1.0, 2.0, math.nan], b=[3.0, 4.0, 5.0])
    assert scores.estimate("cep")["a"].mean == 1.5
    assert (scores.n_reached("a", "cep"), scores.n_seeds("a")) == (2, 3)
    assert scores.ranking("cep").best == frozenset()  # b is the only one with all its seeds


def test_differences_are_paired_by_seed():
    scores = scores_of(a=[1.0, 2.0, 4.0], b=[2.0, 3.5, 5.0, 9.0])
    step = scores.difference("cep", "a")["b"]
    assert step.estimate.mean == pytest.approx((1 + 1.5 + 1) / 3)
    assert step.estimate.n == 3
    test = scipy.stats.ttest_rel([2.0, 3.5, 5.0], [1.0, 2.0, 4.0])
    assert step.p_value == pytest.approx(test.pvalue)
    assert step.is_clear


def test_p_values_are_corrected_for_the_selectors_compared():
    base, near, far = [0.0] * 4, [1.0, 2.0, 0.5, 1.5], [9.0, 9.5, 9.2, 9.1]
    p_near, p_far = (scipy.stats.ttest_1samp(values, 0.0).pvalue for values in (near, far))
    assert p_far < p_near < 0.05
    scores = scores_of(base=base, near=near, far=far)
    steps = scores.difference("cep")
    assert steps["far"].p_value == pytest.approx(2 * p_far)
    assert steps["near"].p_value == pytest.approx(p_near)
    many = scores_of(base=base, near=near, **{str(i): near for i in range(9)})
    assert not many.difference("cep")["near"].is_clear  # 10 * p_near > 0.05


def test_the_best_and_who_may_be_as_good():
    scores = scores_of(a=[10.0, 20.0, 30.0], b=[9.0, 21.5, 29.0], c=[9.0, 19.1, 28.9])
    assert scores.ranking("cep").best == {"a"}
    assert scores.ranking("cep").tied == {"b"}
    assert scores.ranking("regret") == (frozenset(), frozenset())  # nobody has one


def test_only_a_lead_that_is_real_makes_the_best():
    close = scores_of(a=[10.0, 20.0, 30.0], b=[9.0, 21.5, 29.0], c=[1.0, 11.1, 20.9])
    ranking = close.ranking("cep")
    assert [ranking.place(label) for label in "abc"] == ["leading", "tied", ""]
    clear = scores_of(a=[10.0, 20.0, 30.0], b=[9.0, 19.1, 28.9]).ranking("cep")
    assert [clear.place(label) for label in "ab"] == ["best", ""]


def test_one_seed_decides_nothing():
    scores = scores_of(a=[1.0], b=[2.0])
    assert scores.ranking("cep").tied == {"a"}
    assert not scores.difference("cep")["b"].is_clear


def test_a_run_that_did_not_get_there_counts_with_its_length():
    scores = scores_of(a=times(10.0, 20.0), b=[*times(30.0), never()])
    means = scores.estimate("rounds_to_0.8")
    assert means["a"].mean == 15
    assert (means["b"].mean, means["b"].n) == ((30 + 100) / 2, 2)
    assert scores.n_reached("b", "rounds_to_0.8") == 1
    assert scores.difference("rounds_to_0.8", "a")["b"].estimate.mean == (20 + 80) / 2
    assert scores.ranking("rounds_to_0.8").best == frozenset()  # a alone was there with all seeds


def test_a_run_that_was_cut_off_makes_a_difference_smaller_and_never_larger():
    scores = scores_of(a=[*times(10.0), never(50), never(50)], b=[*times(60.0, 20.0), never(70)])
    # seed 0: 50 later; seed 1: a is there after 50 at best; seed 2: up to 50 there is no difference
    step = scores.difference("rounds_to_0.8", "b")["a"]
    assert step.estimate.mean == pytest.approx((-50 + 30 + 0) / 3)
    late = scores_of(a=[never(50)] * 2, b=times(60.0, 70.0))
    assert late.difference("rounds_to_0.8")["b"].estimate.mean == 0  # a might have been there at 55


def test_times_that_all_reached_are_plain_means():
    scores = scores_of(a=times(10.0, 99.0), b=[never(20), never(20)])
    assert scores.estimate("rounds_to_0.8")["a"].mean == 54.5
    assert scores.ranking("rounds_to_0.8") == (frozenset(), frozenset())  # b was not run so long


def test_who_is_clearly_ahead_but_not_always_there_leaves_nobody_the_best():
    fast = [*times(10.0, 11.0, 10.0, 12.0, 11.0, 10.0, 9.0), never(500)]
    slow, slower = times(*[400.0] * 7, 450.0), times(*[440.0] * 7, 460.0)
    scores = scores_of(fast=fast, slow=slow, slower=slower)
    assert scores.difference("rounds_to_0.8", "slow")["fast"].is_clear
    assert scores.ranking("rounds_to_0.8").best == frozenset()


def test_a_run_of_unknown_length_is_left_out():
    scores = scores_of(a=[*times(10.0), {}], b=times(20.0, 30.0))
    assert scores.values("a", "rounds_to_0.8") == {0: 10.0}
    assert scores.ranking("rounds_to_0.8").best == frozenset()


def test_few_seeds_are_said():
    assert scores_of(a=[1.0] * 5).caution == ""
    assert scores_of(a=[1.0] * 5, b=[1.0] * 4).caution.startswith("Only 4 seeds per selector")
    assert scores_of(a=[1.0]).caution.startswith("Only 1 seed per selector")
    assert scores_of(a=[1.0] * 4, failed=[]).caution.startswith("Only 4 seeds per selector")


@pytest.mark.parametrize(
    ("ask", "hint"),
    [
        (lambda scores: scores.estimate("accurracy"), "unknown metric.*mean 'accuracy'"),
        (lambda scores: scores.estimate("rounds_to"), "unknown metric.*mean 'rounds_to_0.8'"),
        (lambda scores: scores.difference("cep", "randum"), "unknown label.*mean 'random'"),
        (lambda scores: scores.values("e3", "cep"), "unknown label 'e3'.*Known: random"),
    ],
)
def test_unknown_names_get_the_nearest(ask, hint):
    with pytest.raises(InvalidInput, match=hint):
        ask(scores_of(random=[1.0]))
