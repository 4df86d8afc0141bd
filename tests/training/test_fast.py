from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.federations import federation, texts
from turnout import StepDecay
from turnout.core.errors import InvalidInput
from turnout.data.base import PADDING, FederatedData
from turnout.training.aggregate import aggregate
from turnout.training.engine import Stacked, StepRule
from turnout.training.fast import FastTrainer
from turnout.training.local import LocalWork
from turnout.training.models import CifarCnn, EmnistCnn, FashionCnn, Logistic, Mlp, StackedLstm
from turnout.training.reference import ReferenceTrainer

# A gradient here is a sum of fewer than 2^11 float32 products, each wrong by at most 2^-24 of its
# size: moves of the weights may differ by this share, and so may losses.
SUM_OF_PRODUCTS = 2.0**11 * 2.0**-24

# Where a sum is 0 under a ReLU, or equals its neighbour under a pooling window, up to rounding, the
# two trainers may decide differently; the reference in double precision decides as either. That is
# one of the hundreds of terms in the gradient of a kernel in one step, and it is rare.
ONE_TERM = 2.0**-9

SIZES = (12, 7, 31, 1, 20)  # a full pass is 2, 1, 4, 1 and 3 mini-batches of 8


def images(shape, sizes=SIZES, seed=0):
    """Bright squares on a black ground: many pooling windows hold four equal values."""
    data = federation(sizes, shape, seed=seed, holdout=2, scale=1 / 255, shift=-0.1)

    def bytes_of(x):
        return np.where(x > 0.4, 255 * np.clip(x, 0, 1), 0).astype(np.uint8)

    return dataclasses.replace(
        data,
        x=bytes_of(data.x),
        x_holdout=bytes_of(data.x_holdout),
        x_test=bytes_of(data.x_test),
    )


class Residual(nn.Module):
    """Not a chain of layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.last(self.norm(x + torch.tanh(self.first(x))))


class Branching(Residual):
    """Looks at its numbers while it runs, which torch.func cannot follow."""

    def forward(self, x):
        return super().forward(x if bool((x > 0).any()) else -x)


def tanh_chain():
    return nn.Sequential(
        nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Identity(), nn.Linear(9, 8), nn.ReLU(),
        nn.Sequential(nn.Linear(8, 4)),
    )  # fmt: skip


def padded_cnn():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3 * 2 * 1, 4),
    )  # fmt: skip


def dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def batch_statistics():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 4)
    )


VECTORS = federation(SIZES, (6,), holdout=2)
SMALL = images((1, 16, 16))
CASES = {
    "logistic": (Logistic(), SMALL, "stacked layers"),
    "logistic on vectors": (Logistic(), VECTORS, "stacked layers"),
    "mlp": (Mlp((20, 10)), SMALL, "stacked layers"),
    "emnist cnn": (EmnistCnn(), SMALL, "stacked layers"),
    "emnist cnn in colour": (EmnistCnn(), images((3, 18, 17)), "stacked layers"),
    "cifar cnn": (CifarCnn(), images((3, 16, 16), (9, 5)), "stacked layers"),
    "fashion cnn": (FashionCnn(), images((1, 16, 20), (9, 5, 8)), "stacked layers"),
    "lstm": (StackedLstm(6, 5, 2), texts(SIZES), "text"),
    "chain of one's own": (tanh_chain(), VECTORS, "stacked layers"),
    "cnn of one's own": (padded_cnn(), images((2, 11, 7)), "stacked layers"),
    "module of one's own": (Residual(), VECTORS, "vmap"),
    "module that branches": (Branching(), VECTORS, "one client per thread"),
    "module with noise": (dropout(), VECTORS, "one client after the other"),
}
WORK = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "lr": 0.02},
    "fedprox": {"proximal": 0.5, "epochs": 2},
    "everything": {"proximal": 0.3, "momentum": 0.5, "weight_decay": 0.1, "epochs": 2},
    "decay": {"weight_decay": 0.1},
    "drawn epochs": {"epochs": (1, 2, 3, 4)},
    "steps": {"epochs": None, "steps": (2, 5), "lr": StepDecay(0.1, (1,), 0.5)},
    "all data": {"batch_size": None, "epochs": 3},
    "adam": {"optimizer": "adam", "lr": 0.01, "epochs": (1, 2, 3)},
    "adam and more": {"optimizer": "adam", "lr": 0.01, "proximal": 0.3, "weight_decay": 0.1},
}


def pair(case, threads=2, **settings):
    model, data, _ = CASES[case]
    local = LocalWork(**({"batch_size": 8, "lr": 0.1} | settings))
    torch.manual_seed(0)
    return (
        ReferenceTrainer(data, model, local, seed=3),
        FastTrainer(data, model, local, seed=3, threads=threads),
    )


def assert_same_updates(fast, reference, start):
    """The moves of the weights agree up to a share of the largest move, reports up to the loss."""
    move = float((reference.weights - start).abs().max())
    assert move > 1e-3
    far = (fast.weights - reference.weights).abs().amax(1)
    assert float(far.max()) <= ONE_TERM * move
    assert float(far.median()) <= SUM_OF_PRODUCTS * move
    for name in ("loss", "loss_std", "loss_rms"):
        wanted = getattr(reference, name)
        np.testing.assert_allclose(
            getattr(fast, name), wanted, rtol=0, atol=SUM_OF_PRODUCTS * wanted.max(), err_msg=name
        )
    np.testing.assert_array_equal(fast.steps, reference.steps)
    np.testing.assert_array_equal(fast.num_examples, reference.num_examples)


# The large CNNs do what "cnn of one's own" does, at length, with millions of such decisions: small
# steps keep the effect of a different one from growing.
LARGE = ("emnist cnn", "emnist cnn in colour", "cifar cnn", "fashion cnn")
RUNS = [(case, work, {}) for case in CASES if case not in LARGE for work in WORK]
RUNS += [(case, work, {"lr": 0.02}) for case in LARGE for work in ("sgd", "everything")]


@pytest.mark.parametrize(("case", "work", "settings"), RUNS)
def test_three_rounds_equal_the_reference(case, work, settings):
    reference, fast = pair(case, **WORK[work], **settings)
    assert fast.how == CASES[case][2]
    start = reference.initial_weights()
    assert torch.equal(fast.initial_weights(), start)
    ours = theirs = start
    everybody = np.arange(fast.data.n_clients)
    for round in range(3):
        wanted = reference.train(theirs, everybody, round)
        got = fast.train(ours, everybody, round)
        assert_same_updates(got, wanted, start)
        share = wanted.num_examples / wanted.num_examples.sum()
        ours, theirs = aggregate(ours, got.weights, share), aggregate(theirs, wanted.weights, share)


@pytest.mark.parametrize("case", CASES)
def test_scores_equal_the_reference(case):
    reference, fast = pair(case)
    weights = 3.0 * reference.initial_weights()
    wanted, got = reference.test(weights), fast.test(weights)
    assert got.loss == pytest.approx(wanted.loss, rel=SUM_OF_PRODUCTS)
    assert got.accuracy == wanted.accuracy
    for clients in (None, np.array([1, 0])):
        wanted, got = (trainer.test_clients(weights, clients) for trainer in (reference, fast))
        np.testing.assert_allclose(got.loss, wanted.loss, rtol=SUM_OF_PRODUCTS)
        np.testing.assert_array_equal(got.accuracy, wanted.accuracy)
    for part in ("all", "mini-batch"):
        wanted, got = (
            trainer.polled_loss(weights, np.array([0, 1]), 4, part) for trainer in (reference, fast)
        )
        np.testing.assert_allclose(got, wanted, rtol=SUM_OF_PRODUCTS)


def test_a_word_of_a_chance_below_any_float_has_a_finite_loss():
    reference, fast = pair("lstm")
    start = reference.initial_weights()
    start[-1] = -300.0  # the score of the last word, which is a label somewhere
    wanted, got = (trainer.train(start, np.arange(5), 0) for trainer in (reference, fast))
    assert 10.0 < got.loss.max() < 300.0
    assert_same_updates(got, wanted, start)


def test_the_gradients_of_blocks_of_scores_add_up(monkeypatch):
    monkeypatch.setattr("turnout.training.lstm.BLOCK", 20)  # of 7 words: two labels a block
    reference, fast = pair("lstm")
    start = reference.initial_weights()
    wanted, got = (trainer.train(start, np.arange(5), 0) for trainer in (reference, fast))
    assert_same_updates(got, wanted, start)


def test_adam_takes_gradients_in_any_layout():
    gradient = torch.arange(1.0, 7.0).reshape(1, 2, 3)
    results = []
    for laid_out in (gradient, gradient.transpose(1, 2).contiguous().transpose(1, 2)):
        weight = Stacked.copies(torch.zeros(2, 3), 1, StepRule(lr=0.1, is_adam=True))
        weight.descend(laid_out)
        weight.descend(-2.0 * laid_out)
        results.append(weight.value)
    assert torch.equal(*results)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_texts_without_a_label_change_no_weight_by_their_losses(optimizer):
    data = texts((6, 9))
    silent = dataclasses.replace(data, y=np.full_like(data.y, PADDING))
    local = LocalWork(batch_size=4, lr=0.1, optimizer=optimizer)
    fast = FastTrainer(silent, StackedLstm(6, 5, 2), local, seed=3)
    start = fast.initial_weights()
    assert torch.equal(fast.train(start, np.arange(2), 0).weights, start.expand(2, -1))


@pytest.mark.parametrize("clients", [[2], [4, 0, 3], []])
@pytest.mark.parametrize("case", ["mlp", "emnist cnn", "lstm", "module of one's own"])
def test_cohorts_of_any_size_and_order(case, clients):
    reference, fast = pair(case, epochs=(1, 2))
    start = reference.initial_weights()
    clients = np.array(clients, dtype=np.int64)
    wanted, got = (trainer.train(start, clients, 0) for trainer in (reference, fast))
    assert got.weights.shape == (clients.size, fast.n_weights)
    if clients.size:
        assert_same_updates(got, wanted, start)


def test_batch_statistics_see_whole_mini_batches():
    data = federation((12, 7, 31, 5, 20), (6,))  # no mini-batch of a single example
    local = LocalWork(batch_size=8, lr=0.1, epochs=2)
    module = batch_statistics()
    reference, fast = ReferenceTrainer(data, module, local), FastTrainer(data, module, local)
    assert fast.how == "vmap"
    start, everybody = reference.initial_weights(), np.arange(5)
    got, wanted = fast.train(start, everybody, 0), reference.train(start, everybody, 0)
    assert_same_updates(got, wanted, start)


@pytest.mark.parametrize("case", CASES)
def test_same_bits_again_and_from_a_new_trainer(case):
    _, fast = pair(case, momentum=0.9)
    _, resumed = pair(case, momentum=0.9)
    everybody = np.arange(fast.data.n_clients)
    weights = fast.initial_weights()
    first = fast.train(weights, everybody, 0)
    second = fast.train(weights, everybody, 7)
    assert not torch.equal(first.weights, second.weights)
    for again in (fast.train(weights, everybody, 7), resumed.train(weights, everybody, 7)):
        assert torch.equal(again.weights, second.weights)
        np.testing.assert_array_equal(again.loss, second.loss)


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("case", ["mlp", "emnist cnn", "lstm", "module that branches"])
def test_number_of_threads_does_not_matter(case, threads):
    _, two = pair(case)
    _, other = pair(case, threads=threads)
    everybody = np.arange(two.data.n_clients)
    start = two.initial_weights()
    wanted, got = (trainer.train(start, everybody, 0) for trainer in (two, other))
    assert_same_updates(got, wanted, start)
    assert other.test(start).loss == pytest.approx(two.test(start).loss, rel=SUM_OF_PRODUCTS)


@pytest.mark.parametrize("case", ["mlp", "lstm", "module that branches", "module with noise"])
def test_settings_of_torch_stay_as_they_were(case):
    _, fast = pair(case)
    threads, noise = torch.get_num_threads(), torch.get_rng_state()
    weights = fast.initial_weights()
    fast.train(weights, np.arange(5), 0)
    fast.test(weights)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.is_grad_enabled()
    assert torch.equal(weights, fast.initial_weights())


@pytest.mark.parametrize(
    "case", ["logistic on vectors", "chain of one's own", "module of one's own"]
)
def test_client_with_broken_data_is_contained(case):
    model, data, _ = CASES[case]
    x = data.x.copy()
    x[data.offsets[2] + 4] = np.nan
    local = LocalWork(batch_size=8, lr=0.1)
    sound = FastTrainer(data, model, local)
    broken = FastTrainer(dataclasses.replace(data, x=x), model, local)
    start, everybody = sound.initial_weights(), np.arange(5)
    wanted, got = (trainer.train(start, everybody, 0) for trainer in (sound, broken))
    assert np.flatnonzero(np.isnan(got.loss)).tolist() == [2]
    assert np.isnan(got.loss_std[2])
    assert np.isnan(got.loss_rms[2])
    assert torch.equal(got.weights[2], start)
    others = [0, 1, 3, 4]
    assert torch.equal(got.weights[others], wanted.weights[others])
    np.testing.assert_array_equal(got.loss[others], wanted.loss[others])


def test_numbers_too_large_break_only_their_client():
    model, data, _ = CASES["emnist cnn"]
    x = data.x.astype(np.float32) / 255
    x[data.offsets[1] : data.offsets[2]] *= 3e38
    wild = dataclasses.replace(data, x=x, scale=1.0)
    local = LocalWork(batch_size=8, lr=0.1)
    reference, fast = ReferenceTrainer(wild, model, local), FastTrainer(wild, model, local)
    start, everybody = fast.initial_weights(), np.arange(5)
    got, wanted = fast.train(start, everybody, 0), reference.train(start, everybody, 0)
    np.testing.assert_array_equal(np.isnan(got.loss), [False, True, False, False, False])
    np.testing.assert_allclose(got.loss, wanted.loss, rtol=SUM_OF_PRODUCTS)
    assert torch.equal(got.weights[1], start)


def test_equal_values_in_a_window_share_one_gradient():
    """Constant images: every pooling window is a tie of four."""
    x = np.repeat(np.array([40, 90, 160, 220], np.uint8), 4)[:, None, None, None]
    x = np.broadcast_to(x, (16, 1, 16, 16)).copy()
    y = np.repeat(np.arange(4), 4)
    none = np.zeros(2, dtype=np.int64)
    data = FederatedData("flat", x, y, np.array([0, 16]), x[:0], y[:0], none, x, y, 4, 1 / 255)
    local = LocalWork(batch_size=5, lr=0.1, epochs=4)
    reference, fast = (kind(data, EmnistCnn(), local) for kind in (ReferenceTrainer, FastTrainer))
    start, one = reference.initial_weights(), np.array([0])
    assert_same_updates(fast.train(start, one, 0), reference.train(start, one, 0), start)


def test_number_of_threads_is_checked():
    model, data, _ = CASES["logistic"]
    with pytest.raises(InvalidInput, match=r"^threads must be an integer >= 1"):
        FastTrainer(data, model, LocalWork(batch_size=8), threads=0)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("mlp", "^$"),
        ("module of one's own", "^Residual is not among"),
        ("module that branches", "^Branching is not among .*; RuntimeError: .*vmap"),
        ("module with noise", "^Dropout.* is not among .*; it draws random numbers"),
    ],
)
def test_it_says_why_it_is_not_faster(case, why):
    _, fast = pair(case)
    assert re.search(why, fast.why)


class Remembering(Residual):
    """Keeps numbers of its own between two parts of its answer."""

    def forward(self, x):
        self.seen = self.first(x)
        return self.last(self.norm(torch.tanh(self.seen) + x))


def test_modules_with_a_memory_are_asked_by_one_thread_at_a_time():
    data = federation((300, 300), (6,), n_test=2_000)
    local = LocalWork(batch_size=50, lr=0.1)
    module = Remembering()
    reference, fast = ReferenceTrainer(data, module, local), FastTrainer(data, module, local)
    assert not fast.engine.is_shareable
    weights, both = reference.initial_weights(), np.arange(2)
    assert fast.test(weights) == reference.test(weights)
    assert_same_updates(fast.train(weights, both, 0), reference.train(weights, both, 0), weights)
