"""Aggregation that remembers who took part: by hand, on average, and in a federation."""

import numpy as np
import pytest
import torch

from turnout import InvalidInput, Selection, make
from turnout.experiment import Experiment
from turnout.experiment.loop import rounds
from turnout.training import Federation, Training
from turnout.training.aggregate import Answered, InverseProbability
from turnout.training.local import LocalWork
from turnout.training.models import Logistic
from turnout.training.participation import LastUpdates, OnlineWeights, RunningRates
from turnout.worlds import Environment, Reliable

SIZES = np.array([10, 30, 60])
RULES = (RunningRates(), OnlineWeights(), LastUpdates())


def answered(*clients, sizes=SIZES):
    at = np.array(clients, dtype=np.int64)
    return Answered(at, sizes[at], None, np.ones(at.size, dtype=np.int64), sizes)


def told(rule, history, n=3):
    """Return the memory after rounds in which these clients returned."""
    memory = rule.start(n, 4)
    for clients in history:
        rule.remember(memory, np.isin(np.arange(n), clients))
    return memory


def test_running_rates_by_hand():
    rule = RunningRates(prior=2.0, normalise=False)
    # nobody has returned before: 2 of 3 do now, and the mean rate is the best guess
    first = rule.weigh(answered(0, 2), told(rule, []))
    assert first == pytest.approx([0.1 / (2 / 3), 0.6 / (2 / 3)])
    # rounds: 4; returns: 4, 2, 0; mean rate: 1/2; rates: 5/6, 3/6, 1/6
    memory = told(rule, [[0, 1], [0], [0, 1], [0]])
    assert rule.weigh(answered(0, 1, 2), memory) == pytest.approx([0.12, 0.6, 3.6])
    clipped = RunningRates(prior=2.0, normalise=False, most=3.0)
    assert clipped.weigh(answered(0, 1, 2), memory) == pytest.approx([0.12, 0.6, 1.8])
    full = RunningRates(prior=2.0).weigh(answered(0, 2), memory)
    assert full == pytest.approx([0.12 / 3.72, 3.6 / 3.72])


def test_online_weights_by_hand():
    rule = OnlineWeights(cutoff=3)
    memory = told(rule, [[0], [], [0, 1], [0]])
    # client 0: intervals 1, 2, 1; client 1: 3, then one open; client 2: cut off at 3, one open
    assert memory["mean_interval"] == pytest.approx([4 / 3, 3.0, 3.0])
    assert memory["open_interval"].tolist() == [0.0, 1.0, 1.0]
    weight = rule.weigh(answered(0, 1, 2), memory)
    assert weight == pytest.approx([0.1 * 4 / 3, 0.3 * 3, 0.6 * 3])
    assert rule.weigh(answered(1), told(rule, [])) == pytest.approx([0.3])  # at first weight 1
    assert OnlineWeights(normalise=True).weigh(answered(1), memory) == pytest.approx([1.0])


def test_last_updates_by_hand():
    rule, weights = LastUpdates(), torch.zeros(4)
    memory = rule.start(3, 4)
    one = rule.combined(weights, torch.ones(1, 4), answered(0), memory, 1.0)
    assert one.tolist() == pytest.approx([0.1] * 4)  # the others count with 0
    two = rule.combined(one, one + 2.0 * torch.ones(1, 4), answered(2), memory, 1.0)
    assert (two - one).tolist() == pytest.approx([0.1 * 1.0 + 0.6 * 2.0] * 4)
    again = rule.combined(two, two + 3.0 * torch.ones(1, 4), answered(0), memory, 0.5)
    assert (again - two).tolist() == pytest.approx([0.5 * (0.1 * 3.0 + 0.6 * 2.0)] * 4)


@pytest.mark.parametrize(
    "rule", [RunningRates(normalise=False), OnlineWeights(cutoff=10**6)], ids=["rates", "fedau"]
)
def test_every_client_counts_with_its_share_of_data_on_average(rule):
    """Known chances, 20,000 rounds: within five standard errors and the error of the rates."""
    chance, rng, n_rounds = np.array([0.1, 0.4, 0.8]), np.random.default_rng(0), 20_000
    memory, total, early = rule.start(3, 4), np.zeros(3), 2_000
    for t in range(early + n_rounds):
        returned = rng.random(3) < chance
        if t >= early and returned.any():
            at = np.flatnonzero(returned)
            total[at] += rule.weigh(answered(*at), memory)
        rule.remember(memory, returned)
    share = SIZES / SIZES.sum()
    error = share * np.sqrt((1.0 - chance) / chance * (1.0 / n_rounds + 1.0 / early))
    assert (np.abs(total / n_rounds - share) < 5.0 * error).all()
    plain = chance * share / (chance * share).sum()  # what the mean of the returned gives
    assert (np.abs(plain - share) > 5.0 * error).any()


def test_a_clipped_chance_bounds_the_weight():
    chance = np.array([0.5, 0.01, 1.0])
    weight = InverseProbability(most=4.0).coefficients(SIZES, chance, 100)
    assert weight == pytest.approx([0.2, 1.2, 0.6])
    assert InverseProbability(most=4.0) != InverseProbability()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_one_round_cannot_be_weighed_alone(rule):
    with pytest.raises(InvalidInput, match="remembers who took part"):
        rule.coefficients(SIZES, None, 100)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_run_learns_resumes_and_can_be_described(rule):
    recipe = Training(
        model=Logistic(), local=LocalWork(epochs=1, batch_size=20, lr=0.1), aggregation=rule
    )
    world = Environment(10, 0, volatility=Reliable())
    whole = Federation(recipe, 10)
    played = list(rounds(make("random"), world, cohort_size=4, n_rounds=12, participants=whole))
    assert played[-1].measured["accuracy"] > 0.3  # chance is 0.1
    first = Federation(recipe, 10)
    selector = make("random")
    for _ in rounds(selector, world, cohort_size=4, n_rounds=5, participants=first):
        pass
    second = Federation(recipe, 10)
    second.load_state(first.state())
    for _ in rounds(selector, world, cohort_size=4, n_rounds=12, start=5, participants=second):
        pass
    assert torch.equal(second.weights, whole.weights)
    experiment = Experiment(["random"], n_clients=10, cohort_size=4, n_rounds=2, training=recipe)
    again = Experiment(**experiment.table())
    assert again.training.aggregation == rule


def test_rounds_that_overlap_are_refused():
    made = Federation(Training(model=Logistic(), aggregation=LastUpdates()), 10)
    with pytest.raises(InvalidInput, match="LastUpdates needs synchronous rounds"):
        made.check_overlap()


def test_a_round_without_answers_lengthens_the_intervals():
    recipe = Training(model=Logistic(), aggregation=OnlineWeights())
    made = Federation(recipe, 10)
    before = made.weights.clone()
    made.work(Selection(0, [1, 2]), np.zeros(2, dtype=np.bool_))
    assert torch.equal(made.weights, before)
    assert (made.state()["aggregation.open_interval"] == 1.0).all()
