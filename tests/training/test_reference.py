from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.federations import federation, texts
from turnout import InvalidInput, StepDecay
from turnout.core.types import LARGEST_REPORT
from turnout.data.base import PADDING, FederatedData
from turnout.training.aggregate import KeepGlobal, MeanReturned, aggregate
from turnout.training.local import LocalWork, PerClient, client_plan, polled_rows
from turnout.training.models import Logistic, Mlp, StackedLstm
from turnout.training.modules import load_weights
from turnout.training.reference import ReferenceTrainer, finished

ALL = np.arange(3)
UNEQUAL = LocalWork(epochs=PerClient((1, 3, 2)), batch_size=5, lr=0.2, momentum=0.9)


def one_example():
    """One client with the example x = 2 of class 0 out of two classes."""
    x, y, none = np.array([[2.0]], np.float32), np.array([0]), np.zeros(2, dtype=np.int64)
    return FederatedData("one", x, y, np.array([0, 1]), x[:0], y[:0], none, x, y, 2)


def two_weights(**settings):
    """Scores (u x, v x), from u = v = 0, two steps of size 0.1 on the one example."""
    module = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(module.weight)
    work = LocalWork(epochs=2, batch_size=1, lr=0.1, **settings)
    return ReferenceTrainer(one_example(), module, work)


# Step 1: p = 1/2 each, gradient (p - [1, 0]) x = (-1, 1), so u = 0.1, v = -0.1.
# Step 2: p_0 = 1 / (1 + exp(-0.4)) = 0.5986876601, gradient of u = -(1 - p_0) 2 = -0.8026246798.
SECOND = -0.8026246798


@pytest.mark.parametrize(
    ("settings", "u"),
    [
        ({}, 0.1 - 0.1 * SECOND),
        ({"momentum": 0.9}, 0.1 - 0.1 * (0.9 * -1.0 + SECOND)),
        ({"proximal": 0.5}, 0.1 - 0.1 * (SECOND + 0.5 * 0.1)),
        ({"weight_decay": 0.5}, 0.1 - 0.1 * (SECOND + 0.5 * 0.1)),
        ({"proximal": 0.5, "momentum": 0.9}, 0.1 - 0.1 * (0.9 * -1.0 + SECOND + 0.5 * 0.1)),
    ],
)
def test_two_steps_by_hand(settings, u):
    trainer = two_weights(**settings)
    got = trainer.train(trainer.initial_weights(), np.array([0]), 0)
    assert got.weights[0].tolist() == pytest.approx([u, -u], rel=1e-6)
    # Losses: ln 2 = 0.6931471806 and -ln p_0 = 0.5130152524; their mean, spread, root mean square.
    assert got.loss[0] == pytest.approx(0.6030812165, rel=1e-6)
    assert got.loss_std[0] == pytest.approx(0.0900659641, rel=1e-6)
    assert got.loss_rms[0] == pytest.approx(0.6097695250, rel=1e-6)
    assert got.steps.tolist() == [2]
    assert got.num_examples.tolist() == [1]


def test_fedprox_pulls_to_the_global_model_and_weight_decay_to_zero():
    # From u = v = 1 the first step knows no distance yet, but already a size.
    start = torch.tensor([1.0, 1.0])
    plain, prox, decay = (
        two_weights(**settings).train(start, np.array([0]), 0).weights[0]
        for settings in ({}, {"proximal": 0.5}, {"weight_decay": 0.5})
    )
    # Plain: gradient (-1, 1) then (SECOND, -SECOND): u = 1.1 then 1.1 - 0.1 SECOND.
    assert plain.tolist() == pytest.approx([1.1 - 0.1 * SECOND, 0.9 + 0.1 * SECOND], rel=1e-6)
    pulled = [1.1 - 0.1 * (SECOND + 0.05), 0.9 + 0.1 * (SECOND + 0.05)]
    assert prox.tolist() == pytest.approx(pulled, rel=1e-6)
    # Decay: step 1 gives u = 1.05, v = 0.85, the same difference; then 0.5 u and 0.5 v are added.
    shrunk = [1.05 - 0.1 * (SECOND + 0.525), 0.85 + 0.1 * (SECOND - 0.425)]
    assert decay.tolist() == pytest.approx(shrunk, rel=1e-6)


def test_adam_by_hand():
    # Gradients (-1, 1), then (SECOND, -SECOND): the first step is lr x sign, as in the plain rule.
    start, local = torch.tensor([1.0, 1.0]), {"optimizer": "adam"}
    got = two_weights(**local).train(start, np.array([0]), 0).weights[0]
    mean = (0.9 * 0.1 * -1.0 + 0.1 * SECOND) / (1 - 0.9**2)
    square = (0.999 * 0.001 * 1.0 + 0.001 * SECOND**2) / (1 - 0.999**2)
    second = 0.1 * mean / math.sqrt(square)
    assert got.tolist() == pytest.approx([1.1 - second, 0.9 + second], rel=1e-5)
    plain = two_weights().train(start, np.array([0]), 0).weights[0]
    assert abs(float(plain[0] - got[0])) > 0.01


def test_the_moments_of_adam_start_at_zero_in_every_round():
    trainer, start = two_weights(optimizer="adam"), torch.tensor([1.0, 1.0])
    first, again = (trainer.train(start, np.array([0]), 0).weights for _ in range(2))
    assert torch.equal(first, again)


class NumpyFedAvg:
    """Multinomial logistic regression in numpy, double precision, written from the formulas."""

    def __init__(self, data, work, seed):
        self.data, self.work, self.seed = data, work, seed
        self.steps = work.steps_of(data.num_samples, seed)

    def local(self, weights, client, round):
        data, work = self.data, self.work
        first, last = data.offsets[client], data.offsets[client + 1]
        x = data.x[first:last].reshape(last - first, -1) * data.scale + data.shift
        one_hot = np.eye(data.n_classes)[data.y[first:last]]
        matrix = weights[: -data.n_classes].reshape(data.n_classes, -1).copy()
        bias = weights[-data.n_classes :].copy()
        start, velocity, losses, single = (matrix.copy(), bias.copy()), [0.0, 0.0], [], []
        plan = client_plan(
            last - first, work.batch_size, int(self.steps[client]), self.seed, round, client
        )
        for a, b in zip(plan.bounds[:-1], plan.bounds[1:], strict=True):
            rows = plan.order[a:b]
            score = x[rows] @ matrix.T + bias
            p = np.exp(score - score.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            loss = -np.log((p * one_hot[rows]).sum(1))
            losses.append(loss.mean())
            single.extend(loss)
            delta = (p - one_hot[rows]) / rows.size
            slopes = (delta.T @ x[rows], delta.sum(0))
            for k, (value, slope) in enumerate(zip((matrix, bias), slopes, strict=True)):
                slope = slope + work.proximal * (value - start[k]) + work.weight_decay * value
                velocity[k] = work.momentum * velocity[k] + slope
                value -= work.lr_in(round) * velocity[k]
        rms = np.sqrt(np.mean(np.square(single)))
        return np.concatenate([matrix.ravel(), bias]), np.mean(losses), np.std(losses), rms


@pytest.mark.parametrize(
    "work",
    [
        LocalWork(epochs=2, batch_size=5, lr=0.3),
        UNEQUAL,
        LocalWork(epochs=(1, 2, 3, 4), batch_size=6, lr=0.1, momentum=0.9, proximal=0.5),
        LocalWork(epochs=None, steps=7, batch_size=8, lr=StepDecay(0.4, (1, 2)), weight_decay=0.1),
        LocalWork(epochs=3, batch_size=None, lr=0.5),
    ],
)
def test_against_numpy_over_rounds(work):
    data = federation(scale=0.5, shift=0.1)
    trainer = ReferenceTrainer(data, Logistic(), work, seed=3)
    slow = NumpyFedAvg(data, work, seed=3)
    weights = trainer.initial_weights()
    wanted = weights.double().numpy()
    for round, clients in enumerate([ALL, np.array([0, 2]), np.array([1]), ALL]):
        got = trainer.train(weights, clients, round)
        local = [slow.local(wanted, client, round) for client in clients]
        reports = np.array([row[1:] for row in local])
        np.testing.assert_allclose(got.weights.numpy(), [row[0] for row in local], atol=2e-5)
        np.testing.assert_allclose(got.loss, reports[:, 0], rtol=2e-5)
        np.testing.assert_allclose(got.loss_std, reports[:, 1], atol=2e-5)
        np.testing.assert_allclose(got.loss_rms, reports[:, 2], rtol=2e-5)
        assert got.steps.tolist() == slow.steps[clients].tolist()
        assert got.num_examples.tolist() == data.num_samples[clients].tolist()
        share = data.num_samples[clients] / data.num_samples[clients].sum()
        wanted = sum(c * row[0] for c, row in zip(share, local, strict=True))
        coefficients = MeanReturned().coefficients(got.num_examples, None, 39)
        weights = aggregate(weights, got.weights, coefficients)
        np.testing.assert_allclose(weights.numpy(), wanted, atol=2e-5)


def test_one_client_with_all_data_is_plain_sgd():
    data = federation(sizes=(30,))
    trainer = ReferenceTrainer(data, Mlp((6,)), LocalWork(epochs=2, batch_size=8, lr=0.2), seed=1)
    start = trainer.initial_weights()
    got = trainer.train(start, np.array([0]), 4).weights[0]
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    load_weights(module, start)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    plan = client_plan(30, 8, 8, seed=1, round=4, client=0)
    for a, b in zip(plan.bounds[:-1], plan.bounds[1:], strict=True):
        rows = plan.order[a:b]
        loss = nn.CrossEntropyLoss()(module(x[rows]), y[rows])
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in module.parameters():
                weight -= 0.2 * weight.grad
    wanted = nn.utils.parameters_to_vector(module.parameters()).detach()
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


def test_one_full_step_of_everybody_is_one_step_on_the_union():
    data = federation()
    whole = dataclasses.replace(data, offsets=np.array([0, 39]), holdout_offsets=np.zeros(2, int))
    work = LocalWork(batch_size=None, lr=0.7)
    parts, union = (ReferenceTrainer(some, Mlp((6,)), work, seed=2) for some in (data, whole))
    start = parts.initial_weights()
    got = parts.train(start, ALL, 0)
    wanted = union.train(start, np.array([0]), 0).weights[0]
    for rule in (MeanReturned(), KeepGlobal()):
        mean = aggregate(start, got.weights, rule.coefficients(got.num_examples, None, 39))
        torch.testing.assert_close(mean, wanted, rtol=0, atol=1e-6)


def test_fedprox_with_coefficient_zero_is_fedavg_bit_for_bit():
    data, work = federation(), UNEQUAL
    fedavg = ReferenceTrainer(data, Mlp((6,)), work)
    fedprox = ReferenceTrainer(data, Mlp((6,)), dataclasses.replace(work, proximal=0.0))
    strong = ReferenceTrainer(data, Mlp((6,)), dataclasses.replace(work, proximal=5.0))
    start = fedavg.initial_weights()
    one, two, three = (t.train(start, ALL, 0).weights for t in (fedavg, fedprox, strong))
    assert torch.equal(one, two)
    assert torch.all((three - start).norm(dim=1) < 0.7 * (one - start).norm(dim=1))
    # A coefficient that is all but zero goes through the other code and must agree as well.
    tiny = ReferenceTrainer(data, Mlp((6,)), dataclasses.replace(work, proximal=1e-30))
    torch.testing.assert_close(tiny.train(start, ALL, 0).weights, one, rtol=0, atol=1e-7)


def test_unequal_epochs_are_taken():
    got = ReferenceTrainer(federation(), Logistic(), UNEQUAL).train(torch.zeros(16), ALL, 0)
    assert got.steps.tolist() == [3, 6, 8]  # ceil(n / 5) batches times 1, 3, 2 epochs


def test_every_client_starts_from_the_global_model_and_stands_alone():
    trainer = ReferenceTrainer(federation(), Mlp((6,)), UNEQUAL, seed=7)
    start = trainer.initial_weights()
    before = start.clone()
    together = trainer.train(start, ALL, 5)
    turned = trainer.train(start, np.array([2, 0]), 5)
    assert torch.equal(turned.weights, together.weights[[2, 0]])
    assert turned.loss.tolist() == together.loss[[2, 0]].tolist()
    assert torch.equal(start, before)
    again = ReferenceTrainer(federation(), Mlp((6,)), UNEQUAL, seed=7)
    assert torch.equal(again.train(start, ALL, 5).weights, together.weights)
    for other, round in ((7, 6), (8, 5)):
        moved = ReferenceTrainer(federation(), Mlp((6,)), UNEQUAL, seed=other)
        assert not torch.equal(moved.train(start, ALL, round).weights, together.weights)


def noisy():
    return nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.Linear(20, 4))


def test_no_use_of_global_randomness_even_with_dropout():
    module = noisy()
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        trainer = ReferenceTrainer(federation(), module, UNEQUAL)
        start = trainer.initial_weights()
        results.append(trainer.train(start, ALL, 0).weights)
        trainer.test(start)
        trainer.polled_loss(start, ALL, 0, "mini-batch")
        assert torch.equal(torch.random.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.equal(*results)


def test_dropout_differs_by_client_and_round_and_sleeps_in_evaluation():
    data = federation(sizes=(10, 10))
    data.x[:], data.y[:] = data.x[0], data.y[0]  # one example, so that no order can matter
    work = LocalWork(batch_size=None, lr=0.5)
    with_noise = ReferenceTrainer(data, noisy(), work)
    start = with_noise.initial_weights()
    got = with_noise.train(start, np.arange(2), 0).weights
    assert not torch.allclose(got[0], got[1], atol=1e-4)
    later = with_noise.train(start, np.arange(2), 1).weights
    assert not torch.allclose(got[0], later[0], atol=1e-4)
    assert with_noise.test(start) == with_noise.test(start)
    assert torch.equal(with_noise.train(start, np.arange(2), 0).weights, got), "awake again"
    plain = ReferenceTrainer(data, Mlp((6,)), work)
    same = plain.train(plain.initial_weights(), np.arange(2), 0).weights
    torch.testing.assert_close(same[0], same[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_a_client_whose_numbers_break_harms_nobody(value):
    data = federation()
    data.x[13] = value  # an example of client 1
    trainer = ReferenceTrainer(data, Mlp((6,)), UNEQUAL)
    start = trainer.initial_weights()
    got = trainer.train(start, ALL, 0)
    assert np.isnan(got.loss).tolist() == [False, True, False]
    assert np.isnan(got.loss_std).tolist() == [False, True, False]
    assert np.isnan(got.loss_rms).tolist() == [False, True, False]
    assert torch.equal(got.weights[1], start)
    sound = ReferenceTrainer(federation(), Mlp((6,)), UNEQUAL).train(start, ALL, 0)
    assert torch.equal(got.weights[[0, 2]], sound.weights[[0, 2]])
    new = aggregate(start, got.weights, MeanReturned().coefficients(got.num_examples, None, 39))
    assert torch.isfinite(new).all()


def test_a_step_size_that_explodes_is_reported_as_failed():
    work = LocalWork(epochs=5, batch_size=4, lr=1e20)
    trainer = ReferenceTrainer(federation(), Mlp((6,)), work)
    got = trainer.train(trainer.initial_weights(), ALL, 0)
    assert np.isnan(got.loss).all()
    assert torch.isfinite(got.weights).all()


def test_large_weights_are_no_broken_weights():
    zeros, n = np.zeros(3), np.ones(3, dtype=np.int64)
    rows = torch.full((3, 4), 3e38)  # finite, but their sum is not
    rows[1, 2] = torch.inf
    rows[2, 0], rows[2, 1] = torch.inf, -torch.inf
    got = finished(torch.zeros(4), rows, n, zeros, zeros, zeros, n)
    assert np.isnan(got.loss).tolist() == [False, True, True]
    assert got.weights.tolist() == [[pytest.approx(3e38)] * 4, [0.0] * 4, [0.0] * 4]


def losses_by_hand(trainer, weights, x, y):
    """Loss and hit of each label that counts, by log-softmax in double precision."""
    load_weights(trainer.module, weights)
    trainer.module.eval()
    with torch.no_grad():
        score = trainer.module(torch.from_numpy(x)).double().numpy()
    keep = y != PADDING
    score, y = score[keep], y[keep]
    score = score - score.max(-1, keepdims=True)
    loss = np.log(np.exp(score).sum(-1)) - score[np.arange(y.size), y]
    return loss, score.argmax(-1) == y


def test_scores_on_the_test_set_and_on_every_client():
    data = federation(sizes=(12, 7, 300), n_test=700)  # more than one batch of the evaluation
    trainer = ReferenceTrainer(data, Mlp((6,)), LocalWork(batch_size=4))
    weights = trainer.initial_weights()
    loss, hit = losses_by_hand(trainer, weights, data.x_test, data.y_test)
    found = trainer.test(weights)
    assert found.loss == pytest.approx(loss.mean(), rel=1e-6)
    assert found.accuracy == hit.mean()
    clients = trainer.test_clients(weights)
    assert clients.loss.shape == (3,)
    for client in range(3):
        rows = slice(data.offsets[client], data.offsets[client + 1])
        loss, hit = losses_by_hand(trainer, weights, data.x[rows], data.y[rows])
        assert clients.loss[client] == pytest.approx(loss.mean(), rel=1e-6)
        assert clients.accuracy[client] == pytest.approx(hit.mean(), rel=1e-12)
    some = trainer.test_clients(weights, np.array([2, 0]))
    assert some.loss.tolist() == pytest.approx(clients.loss[[2, 0]].tolist(), rel=1e-6)


def test_clients_are_scored_on_their_hold_out_if_there_is_one():
    data = federation(holdout=5)
    short = dataclasses.replace(data, holdout_offsets=np.array([0, 5, 5, 15]))
    trainer = ReferenceTrainer(short, Mlp((6,)), LocalWork(batch_size=4))
    weights = trainer.initial_weights()
    found = trainer.test_clients(weights)
    for client, rows in ((0, slice(0, 5)), (2, slice(5, 15))):
        loss, hit = losses_by_hand(trainer, weights, data.x_holdout[rows], data.y_holdout[rows])
        assert found.loss[client] == pytest.approx(loss.mean(), rel=1e-6)
        assert found.accuracy[client] == pytest.approx(hit.mean(), rel=1e-12)
    assert np.isnan([found.loss[1], found.accuracy[1]]).all()


def test_polling_asks_without_training():
    data = federation()
    trainer = ReferenceTrainer(data, Mlp((6,)), LocalWork(batch_size=4), seed=2)
    weights = trainer.initial_weights()
    before = weights.clone()
    asked = np.array([2, 0])
    everything = trainer.polled_loss(weights, asked, 3, "all")
    assert everything.tolist() == pytest.approx(trainer.test_clients(weights).loss[asked].tolist())
    batch = trainer.polled_loss(weights, asked, 3, "mini-batch")
    for loss, client in zip(batch, asked, strict=True):
        n = int(data.num_samples[client])
        rows = data.offsets[client] + polled_rows(n, 4, 2, 3, int(client))
        by_hand, _ = losses_by_hand(trainer, weights, data.x[rows], data.y[rows])
        assert loss == pytest.approx(by_hand.mean(), rel=1e-6)
    assert trainer.polled_loss(weights, asked, 3, "mini-batch").tolist() == batch.tolist()
    assert trainer.polled_loss(weights, asked, 4, "mini-batch").tolist() != batch.tolist()
    assert torch.equal(weights, before)
    assert trainer.polled_loss(weights, asked[:0], 3, "mini-batch").size == 0
    with pytest.raises(InvalidInput, match=r"^data must be one of 'all', 'mini-batch'"):
        trainer.polled_loss(weights, asked, 3, "some")


def test_a_polled_client_with_broken_data_does_not_answer():
    data = federation()
    data.x[13] = np.nan
    trainer = ReferenceTrainer(data, Logistic(), LocalWork(batch_size=4))
    answers = trainer.polled_loss(trainer.initial_weights(), ALL, 0, "all")
    assert np.isnan(answers).tolist() == [False, True, False]


def test_an_infinite_loss_is_no_answer():
    data = federation()
    data.y[:] = np.repeat([0, 1, 2], data.num_samples)
    trainer = ReferenceTrainer(data, Logistic(), LocalWork(batch_size=4))
    weights = torch.zeros(16)
    weights[-4:] = torch.tensor([3e38, -3e38, 3e38, 0.0])  # the biases: class 1 is impossible
    is_worst = trainer.test_clients(weights).loss == LARGEST_REPORT
    assert is_worst.tolist() == [False, True, False]
    answers = trainer.polled_loss(weights, ALL, 0, "all")
    assert np.isnan(answers).tolist() == [False, True, False]


def test_texts_count_every_word_once():
    data = texts()
    work = LocalWork(epochs=1, batch_size=None, lr=0.1)
    trainer = ReferenceTrainer(data, StackedLstm(3, 5, 1), work)
    weights = trainer.initial_weights()
    loss, hit = losses_by_hand(trainer, weights, data.x[:6].astype(np.int64), data.y[:6])
    assert loss.size < 30  # some words are padding
    got = trainer.train(weights, np.array([0]), 0)
    assert got.loss[0] == pytest.approx(loss.mean(), rel=1e-6)
    assert got.loss_rms[0] == pytest.approx(np.sqrt(np.mean(loss**2)), rel=1e-6)
    found = trainer.test_clients(weights, np.array([0]))
    assert found.loss[0] == pytest.approx(loss.mean(), rel=1e-6)
    assert found.accuracy[0] == pytest.approx(hit.mean(), rel=1e-12)


def test_a_text_without_any_word_to_predict_does_no_harm():
    data = texts(sizes=(4, 4))
    data.y[:4] = PADDING
    trainer = ReferenceTrainer(data, StackedLstm(3, 5, 1), LocalWork(batch_size=2))
    weights = trainer.initial_weights()
    got = trainer.train(weights, np.arange(2), 0)
    assert torch.equal(got.weights[0], weights)
    assert got.loss.tolist()[0] == 0.0
    assert np.isnan(trainer.test_clients(weights).loss).tolist() == [True, False]


def test_small_clients_take_all_their_data_in_one_batch():
    work = LocalWork(epochs=2, batch_size=15, lr=0.1)
    got = ReferenceTrainer(federation(), Logistic(), work).train(torch.zeros(16), ALL, 0)
    assert got.steps.tolist() == [2, 2, 4]


def test_a_cohort_of_nobody():
    trainer = ReferenceTrainer(federation(), Logistic(), UNEQUAL)
    got = trainer.train(trainer.initial_weights(), np.array([], dtype=np.int64), 0)
    assert got.weights.shape == (0, trainer.n_weights)
    assert got.loss.shape == got.steps.shape == (0,)


def test_no_test_set_gives_nan():
    trainer = ReferenceTrainer(federation(n_test=0), Logistic(), UNEQUAL)
    found = trainer.test(trainer.initial_weights())
    assert np.isnan([found.loss, found.accuracy]).all()


def test_initial_weights_are_a_copy():
    trainer = ReferenceTrainer(federation(), Logistic(), UNEQUAL)
    assert trainer.n_weights == 16
    trainer.initial_weights().zero_()
    assert trainer.initial_weights().abs().sum() > 0


@pytest.mark.parametrize(
    ("data", "work", "message"),
    [
        (
            federation(),
            LocalWork(batch_size=21),
            r"^batch_size is 21 but no client has more than 20 tr",
        ),
        (federation((5, 0, 9, 0)), UNEQUAL, r"^data: 2 of 4 clients have no .*\(clients 1, 3\)"),
        (federation(), LocalWork(epochs=PerClient([1, 2]), batch_size=5), r"^epochs has 2 values"),
        (
            dataclasses.replace(federation(), n_classes=3),
            UNEQUAL,
            r"^data: labels of toy must be 0 .. 2 for its 3 classes, got 0 .. 3",
        ),
        (
            dataclasses.replace(texts(), x=texts().x + 1),
            UNEQUAL,
            r"^data: words of texts must be 0 .. 6 for its vocabulary of 7, got 1 .. 7",
        ),
    ],
)
def test_bad_input_is_refused_before_the_first_round(data, work, message):
    with pytest.raises(InvalidInput, match=message):
        ReferenceTrainer(data, Logistic(), work)


def test_unknown_clients_are_refused():
    trainer = ReferenceTrainer(federation(), Logistic(), UNEQUAL)
    with pytest.raises(InvalidInput, match=r"^clients must be client indices >= 0 and < 3, got 3"):
        trainer.train(trainer.initial_weights(), np.array([0, 3]), 0)
    with pytest.raises(InvalidInput, match=r"^seed must be"):
        ReferenceTrainer(federation(), Logistic(), UNEQUAL, seed=-1)


def test_the_example_of_the_page_runs_as_printed():
    page = Path(__file__).parents[2] / "docs" / "howto" / "models.md"
    block, *_ = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    scope = {}
    exec(compile(block, page.name, "exec"), scope)
    assert scope["trainer"].test(scope["weights"]).accuracy > 0.8
