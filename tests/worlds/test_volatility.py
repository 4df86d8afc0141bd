import numpy as np
import pytest

from tests.worlds.helpers import assert_share, moment
from turnout.core.errors import InvalidInput
from turnout.worlds import (
    Adversary,
    ByClass,
    History,
    Markov,
    Outages,
    Reliable,
    Shifting,
    WorldStream,
)

RATES = (0.1, 0.3, 0.6, 0.9)


def play(model, n_rounds, n=100, seed=1, history=None):
    return np.array([model.survived(moment(t, n, seed, history)) for t in range(n_rounds)])


def test_reliable():
    assert Reliable().survived(moment()).all()
    assert (Reliable().success_rate(moment()) == 1.0).all()


def test_classes_are_equal_and_consecutive():
    labels = ByClass().classes(100)
    np.testing.assert_array_equal(labels, np.repeat([0, 1, 2, 3], 25))
    np.testing.assert_array_equal(ByClass().classes(6), [0, 0, 1, 2, 2, 3])
    np.testing.assert_array_equal(
        ByClass().success_rate(moment(n=8)), [0.1, 0.1, 0.3, 0.3, 0.6, 0.6, 0.9, 0.9]
    )


def test_class_rates():
    survived = play(ByClass(), 400)
    for label, rate in enumerate(RATES):
        own = survived[:, ByClass().classes(100) == label]
        assert_share(own.sum(), own.size, rate)


@pytest.mark.parametrize("stickiness", [0.0, 0.5, 0.9])
def test_markov_has_its_rate_and_its_stickiness(stickiness):
    model = Markov(stickiness=stickiness)
    # 1,000 clients that are independent of each other, over 300 rounds
    survived = play(model, 300, n=1000)
    inflation = (1.0 + stickiness) / (1.0 - stickiness)  # of the variance of a chain's mean
    for label, rate in enumerate(RATES):
        own = survived[:, model.classes(1000) == label]
        assert_share(own.sum(), own.size, rate, inflation=inflation)
        # after a failure the next round fails with s + (1 - s)(1 - rate), after a success ...
        before, after = own[:-1], own[1:]
        fails = (~after[~before]).sum()
        assert_share(fails, (~before).sum(), stickiness + (1.0 - stickiness) * (1.0 - rate))
        wins = after[before].sum()
        assert_share(wins, before.sum(), stickiness + (1.0 - stickiness) * rate)


def test_markov_does_not_depend_on_the_order_of_questions():
    forward = play(Markov(stickiness=0.8), 60, seed=11)
    # another object with the same parameters shares the memory, one with another seed does not
    order = np.random.default_rng(0).permutation(60)
    for t in order:
        np.testing.assert_array_equal(
            Markov(stickiness=0.8).survived(moment(int(t), seed=11)), forward[t]
        )
    far_first = Markov(stickiness=0.8)
    jump = far_first.survived(moment(50, seed=12))
    play(far_first, 50, seed=12)
    np.testing.assert_array_equal(far_first.survived(moment(50, seed=12)), jump)


def test_markov_matches_a_plain_chain():
    model, seed = Markov(rates=(0.3, 0.7), stickiness=0.6), 5
    rate = model.success_rate(moment(n=40))
    state = None
    for t in range(40):
        keep, chance = moment(t, 40, seed).uniforms(WorldStream.VOLATILITY, shape=(2, 40))
        fresh = chance < rate
        state = fresh if state is None else np.where(keep < 0.6, state, fresh)
        np.testing.assert_array_equal(model.survived(moment(t, 40, seed)), state)


def test_fully_sticky_clients_never_change():
    survived = play(Markov(stickiness=1.0), 20)
    assert (survived == survived[0]).all()


def test_shifting_changes_only_the_movers_and_only_after_the_shift():
    plain, shifted = ByClass((0.8,)), Shifting(ByClass((0.8,)), at=(100,), share=0.25, factor=0.5)
    before, after = (
        play(shifted, 100),
        np.array([shifted.survived(moment(t)) for t in range(100, 500)]),
    )
    np.testing.assert_array_equal(before, play(plain, 100))
    moved = shifted.moved(moment(100))
    assert moved.sum() == 25
    assert not shifted.moved(moment(99)).any()
    stayed = np.array([plain.survived(moment(t)) for t in range(100, 500)])[:, ~moved]
    np.testing.assert_array_equal(after[:, ~moved], stayed)
    assert_share(after[:, moved].sum(), after[:, moved].size, 0.4)
    np.testing.assert_allclose(shifted.success_rate(moment(100)), np.where(moved, 0.4, 0.8))
    np.testing.assert_allclose(shifted.success_rate(moment(99)), 0.8)


def test_shifting_twice_adds_movers():
    model = Shifting(at=(10, 20), share=0.3)
    first, second = model.moved(moment(10, n=1000)), model.moved(moment(20, n=1000))
    assert first.sum() == 300
    assert (second & first).sum() == 300
    # the second 300 hit 700 who stayed: hypergeometric, mean 210, variance 300*.7*.3*700/999
    assert abs((second & ~first).sum() - 210) <= 5 * np.sqrt(300 * 0.7 * 0.3 * 700 / 999)


def test_outages_hit_whole_groups():
    model = Outages(Reliable(), n_groups=10, rate=0.2)
    survived = play(model, 600)
    group = model.groups(100)
    for g in range(10):
        own = survived[:, group == g]
        assert (own == own[:, :1]).all()  # all of the group or none
    per_group = survived[:, :10]  # client i < 10 is in group i
    assert_share(per_group.sum(), per_group.size, 0.8)
    both = (per_group[:, 0] & per_group[:, 1]).sum()
    assert_share(both, 600, 0.64)  # groups are independent
    np.testing.assert_allclose(model.success_rate(moment()), 0.8)


def test_outages_correlate_clients_of_a_group():
    model = Outages(ByClass((0.9,)), n_groups=10, rate=0.2)
    survived = play(model, 3000, n=20).astype(float)
    same = np.corrcoef(survived[:, 0], survived[:, 10])[0, 1]
    other = np.corrcoef(survived[:, 0], survived[:, 1])[0, 1]
    # P(both) = .81 * .8, P(one) = .72: correlation (.648 - .72^2) / (.72 * .28) = 0.643
    assert abs(same - 0.6429) <= 5 / np.sqrt(3000)
    assert abs(other) <= 5 / np.sqrt(3000)


def test_sticky_outages_last():
    model = Outages(Reliable(), n_groups=200, rate=0.3, stickiness=0.8)
    is_up = play(model, 300, n=200)
    before, after = is_up[:-1], is_up[1:]
    assert_share((~after[~before]).sum(), (~before).sum(), 0.8 + 0.2 * 0.3)


def test_adversary_fails_the_favoured():
    history = History.fresh(4)
    history.n_chosen_[:] = [0, 10, 15, 30]  # mean 13.75
    model = Adversary(Reliable(), strength=0.8)
    excess = np.clip(np.array([0, 10, 15, 30]) / 13.75 - 1.0, 0.0, 1.0)
    expected = 1.0 - 0.8 * excess
    np.testing.assert_allclose(model.success_rate(moment(0, 4, history=history)), expected)
    np.testing.assert_allclose(expected, [1.0, 1.0, 0.92727273, 0.2])
    survived = play(model, 2000, n=4, history=history)
    assert survived[:, :2].all()
    assert_share(survived[:, 2].sum(), 2000, expected[2])
    assert_share(survived[:, 3].sum(), 2000, 0.2)
    assert model.uses_history
    assert Outages(model).uses_history
    assert not Outages(ByClass()).uses_history


def test_adversary_before_anyone_was_chosen():
    assert (Adversary(Reliable(), strength=1.0).success_rate(moment()) == 1.0).all()


def test_wrappers_only_add_failures_to_the_same_draws():
    inner = ByClass()
    wrapped = Outages(Shifting(Outages(inner, rate=0.3), at=(0,)), rate=0.3)
    for t in range(50):
        assert not (wrapped.survived(moment(t)) & ~inner.survived(moment(t))).any()


def test_equal_wrappers_at_two_levels_are_independent():
    one, two = Outages(Reliable(), rate=0.5), Outages(Outages(Reliable(), rate=0.5), rate=0.5)
    survived = play(two, 400, n=10)
    assert_share(survived.sum(), survived.size, 0.25)
    assert (survived <= play(one, 400, n=10)).all()


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: ByClass(()), "rates"),
        (lambda: ByClass((0.5, 1.2)), "rates"),
        (lambda: Markov(stickiness=-0.1), "stickiness"),
        (lambda: Outages(n_groups=0), "n_groups"),
        (lambda: Shifting(at=(-1,)), "at"),
        (lambda: Adversary(strength=2.0), "strength"),
    ],
)
def test_bad_parameters_are_named(build, field):
    with pytest.raises(InvalidInput, match=field):
        build()
