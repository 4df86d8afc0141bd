from __future__ import annotations

import numpy as np
import pytest
import torch

import turnout
from tests.training.federations import federation
from turnout import InvalidInput, Purpose, RoundContext, stream
from turnout.training.aggregate import InverseProbability, KeepGlobal, MeanReturned, aggregate
from turnout.training.local import LocalWork
from turnout.training.models import Mlp
from turnout.training.reference import ReferenceTrainer

COUNTS = np.array([10, 30, 60])
RULES = (MeanReturned(), MeanReturned("equal"), KeepGlobal(), InverseProbability())


def models(n=3, size=50, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=rng), torch.randn(n, size, generator=rng)


def test_coefficients_by_hand():
    p = np.array([0.5, 0.25, 1.0])
    assert MeanReturned().coefficients(COUNTS, None, 400).tolist() == [0.1, 0.3, 0.6]
    assert MeanReturned("equal").coefficients(COUNTS, p, 400).tolist() == [1 / 3] * 3
    assert KeepGlobal().coefficients(COUNTS, None, 400).tolist() == [0.025, 0.075, 0.15]
    assert InverseProbability().coefficients(COUNTS, p, 400).tolist() == [0.05, 0.3, 0.15]
    normal = InverseProbability(normalise=True).coefficients(COUNTS, p, 400)
    assert normal.tolist() == pytest.approx([0.1, 0.6, 0.3], rel=1e-12)


def test_a_client_drawn_twice_counts_twice():
    counts, p = np.array([10, 30]), np.array([0.5, 0.25])
    nine, once = np.array([9, 1]), np.array([1, 1])
    assert MeanReturned("equal").coefficients(counts, p, 400, nine).tolist() == [0.9, 0.1]
    assert MeanReturned("equal").coefficients(counts, p, 400, once).tolist() == [0.5, 0.5]
    assert MeanReturned().coefficients(counts, p, 400, nine).tolist() == [0.75, 0.25]
    assert KeepGlobal().coefficients(counts, p, 400, nine).tolist() == [0.225, 0.075]
    # the probability is that of being in the cohort at all
    assert InverseProbability().coefficients(counts, p, 400, nine).tolist() == [0.05, 0.3]


def test_aggregate_by_hand():
    old = torch.tensor([1.0, -2.0])
    sent = torch.tensor([[2.0, 0.0], [5.0, -2.0]])
    got = aggregate(old, sent, np.array([0.5, 0.25]))
    assert got.tolist() == [1 + 0.5 * 1 + 0.25 * 4, -2 + 0.5 * 2]
    assert aggregate(old, sent, np.array([0.5, 0.25]), server_lr=2.0).tolist() == [4.0, 0.0]
    assert aggregate(old, sent, np.array([0.5, 0.25]), server_lr=0.0).tolist() == [1.0, -2.0]


def test_aggregate_against_one_product():
    old, sent = models(4, 50000)
    share = np.array([0.1, 0.2, 0.3, 0.25])
    wanted = old.double() + torch.from_numpy(share) @ (sent.double() - old.double())
    # Summed in double precision and rounded once: half a unit in the last place, no more.
    error = (aggregate(old, sent, share).double() - wanted).abs()
    assert torch.all(error <= 2.0**-24 * wanted.abs() * (1 + 1e-6) + 1e-12)
    single = old + torch.from_numpy(share).float() @ (sent - old)
    assert not torch.all((single.double() - wanted).abs() <= 2.0**-24 * wanted.abs() + 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_nobody_returned_leaves_the_model_bit_for_bit(rule):
    old, sent = models()
    nobody = rule.coefficients(COUNTS[:0], np.zeros(0), 400)
    new = aggregate(old, sent[:0], nobody)
    assert torch.equal(new, old)
    assert new.data_ptr() != old.data_ptr()


def test_a_row_of_coefficient_zero_is_not_read():
    old, sent = models()
    sent[1] = torch.nan
    new = aggregate(old, sent, np.array([0.5, 0.0, 0.5]))
    assert torch.equal(new, aggregate(old, sent[[0, 2]], np.array([0.5, 0.5])))
    assert torch.isfinite(new).all()


def test_nothing_that_comes_in_is_changed():
    old, sent = models()
    before = old.clone(), sent.clone()
    aggregate(old, sent, np.array([0.5, 0.2, 0.5]))
    assert torch.equal(old, before[0])
    assert torch.equal(sent, before[1])


def test_keep_global_with_everybody_back_is_fedavg_by_data():
    data = federation()
    trainer = ReferenceTrainer(data, Mlp((6,)), LocalWork(batch_size=5, lr=0.3), seed=1)
    total = int(data.num_samples.sum())
    weights = {rule: trainer.initial_weights() for rule in (KeepGlobal(), MeanReturned())}
    for round in range(3):
        for rule, old in weights.items():
            got = trainer.train(old, np.arange(3), round)
            share = rule.coefficients(got.num_examples, None, total)
            weights[rule] = aggregate(old, got.weights, share)
    torch.testing.assert_close(*weights.values(), rtol=0, atol=1e-6)


def test_keep_global_is_the_sum_over_all_clients_of_the_paper():
    """E3CS, arXiv Alg. 1 line 13: whoever did not return stands in with the global model."""
    old, sent = models(5)
    counts = np.array([10, 30, 60, 5, 95])
    returned = np.array([0, 3])
    wanted = torch.zeros(50, dtype=torch.float64)
    for client in range(5):
        model = sent[client] if client in returned else old
        wanted += counts[client] / counts.sum() * model.double()
    share = KeepGlobal().coefficients(counts[returned], None, int(counts.sum()))
    torch.testing.assert_close(
        aggregate(old, sent[returned], share).double(), wanted, rtol=0, atol=1e-6
    )


def test_keep_global_is_a_server_step_of_the_share_that_returned():
    old, sent = models()
    kept = aggregate(old, sent, KeepGlobal().coefficients(COUNTS, None, 400))
    mean = MeanReturned().coefficients(COUNTS, None, 400)
    torch.testing.assert_close(
        kept, aggregate(old, sent, mean, server_lr=100 / 400), rtol=0, atol=1e-7
    )
    moved, full = (kept - old).norm(), (aggregate(old, sent, mean) - old).norm()
    assert float(moved / full) == pytest.approx(0.25, rel=1e-5)


def chosen_steps(rule, rounds, **parameters):
    """The step of each round if client i's model is its number of examples away, on a line."""
    counts = np.array([10, 30, 60, 5, 95, 40, 80, 20])
    n, total = counts.size, int(counts.sum())
    selector = turnout.make("e3cs", **parameters)
    selector.reset(n)
    rng = np.random.default_rng(0)
    selector.log_weight_[:] = rng.normal(size=n)
    context = RoundContext(round=0, cohort_size=3, available=np.ones(n, dtype=bool))
    distance = rng.normal(size=n) + 2.0
    steps = np.empty(rounds)
    for t in range(rounds):
        choice = selector.select(context, stream(0, Purpose.SELECT, t))
        share = rule.coefficients(counts[choice.clients], choice.probability, total)
        steps[t] = share @ distance[choice.clients]
    return steps, counts @ distance / total


def test_inverse_probability_is_unbiased_over_the_draws_of_an_exact_selector():
    rounds = 4000
    steps, wanted = chosen_steps(InverseProbability(), rounds, quota=0.3)
    assert abs(steps.mean() - wanted) < 5 * steps.std() / np.sqrt(rounds)
    # The plain mean is visibly biased in the same setting, so the test above can fail.
    biased, _ = chosen_steps(MeanReturned(), rounds, quota=0.3)
    assert abs(biased.mean() - wanted) > 5 * biased.std() / np.sqrt(rounds)


def test_inverse_probability_counts_a_client_as_often_as_it_succeeds():
    counts, rate, rounds = np.array([50, 50]), np.array([1.0, 0.4]), 4000
    rng = np.random.default_rng(1)
    total = np.zeros(2)
    for _ in range(rounds):
        back = np.flatnonzero(rng.random(2) < 0.5 * rate)  # chosen with 1/2 each, then successful
        total[back] += InverseProbability().coefficients(counts[back], np.full(back.size, 0.5), 100)
    margin = 5 * 1.0 * np.sqrt(0.25 / rounds)  # a coefficient is 0 or 1
    assert np.abs(total / rounds - 0.5 * rate).max() < margin


def test_inverse_probability_needs_probabilities():
    with pytest.raises(InvalidInput, match=r"^aggregation InverseProbability needs inclusion"):
        InverseProbability().coefficients(COUNTS, None, 400)


def test_bad_settings_name_the_field():
    with pytest.raises(InvalidInput, match=r"^by must be one of 'data', 'equal'"):
        MeanReturned("size")
    with pytest.raises(InvalidInput, match=r"^normalise must be"):
        InverseProbability(normalise="yes")
