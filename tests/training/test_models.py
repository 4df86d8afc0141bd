from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.federations import federation, texts
from turnout import InvalidInput
from turnout.data.base import FederatedData
from turnout.training.aggregate import MeanReturned, aggregate
from turnout.training.local import LocalWork
from turnout.training.models import (
    CifarCnn,
    Custom,
    EmnistCnn,
    FashionCnn,
    Logistic,
    Mlp,
    Ready,
    StackedLstm,
)
from turnout.training.modules import (
    counted,
    device_named,
    initial_module,
    input_tensor,
    load_weights,
    read_weights,
)
from turnout.training.reference import ReferenceTrainer

HERE = "tests.training.test_models"
letters = functools.partial(federation, (9, 6), (1, 28, 28))
vectors = functools.partial(federation, (12, 7, 20), (3,))


class OneLayer(nn.Module):
    def __init__(self, n_in=3, n_out=4):
        super().__init__()
        self.layer = nn.Linear(n_in, n_out)

    def forward(self, x):
        return self.layer(x)


class Positional(OneLayer):
    """A constant buffer, as positional encodings have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("place", torch.arange(3.0))

    def forward(self, x):
        return super().forward(x + self.place)


def fitting(example_shape, n_classes, width=5):
    n_in = int(np.prod(example_shape))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(n_in, width), nn.Tanh(), nn.Linear(width, n_classes)
    )


def not_a_module():
    return 3


def n_weights(model, data):
    return sum(weight.numel() for weight in initial_module(model, data, 0).parameters())


@pytest.mark.parametrize(
    ("model", "shape", "n_classes", "count"),
    [
        # 28 -> 24 -> 12 -> 8 -> 4: 10 * 16 = 160 numbers reach the layer of 1280.
        (EmnistCnn(), (1, 28, 28), 26, 260 + 2510 + 161 * 1280 + 1281 * 256 + 257 * 26),
        # 32 -> 28 -> 14 -> 10 -> 5: 64 * 25 = 1600.
        (CifarCnn(), (3, 32, 32), 10, 4864 + 102464 + 1601 * 384 + 385 * 192 + 193 * 10),
        # 28 -> 24 -> 12 -> 8 -> 4: 50 * 16 = 800.
        (FashionCnn(), (1, 28, 28), 10, 520 + 25050 + 801 * 500 + 501 * 10),
        (Mlp(), (1, 28, 28), 26, 785 * 200 + 201 * 200 + 201 * 26),
        (Mlp((7,)), (5,), 3, 6 * 7 + 8 * 3),
        (Logistic(), (60,), 10, 610),
        (Logistic(), (1, 28, 28), 26, 20410),
        # Sizes follow the data: 3x20x24 gives 16x20 -> 8x10 -> 4x6 -> 2x3 of 50 channels.
        (FashionCnn(), (3, 20, 24), 7, 1520 + 25050 + 301 * 500 + 501 * 7),
    ],
)
def test_number_of_weights(model, shape, n_classes, count):
    assert n_weights(model, federation((4, 2), shape, n_classes)) == count


def test_the_papers_networks_have_the_stated_sizes():
    assert n_weights(EmnistCnn(), letters(26)) == 543_468
    assert n_weights(CifarCnn(), federation((4, 2), (3, 32, 32), 10)) == 797_962
    assert n_weights(FashionCnn(), letters(10)) == 431_080


def test_stacked_lstm_counts():
    data = texts(n_words=7)
    # Embedding 7 * 3, per LSTM layer 4 * h * (inputs + h + 2 biases), output (h + 1) * 7.
    wanted = 7 * 3 + 4 * 5 * (3 + 5 + 2) + 4 * 5 * (5 + 5 + 2) + 6 * 7
    assert n_weights(StackedLstm(embedding=3, hidden=5, layers=2), data) == wanted
    assert StackedLstm() == StackedLstm(embedding=200, hidden=200, layers=2)


def test_the_lstm_reads_from_the_left():
    data = texts()
    module = initial_module(StackedLstm(3, 5, 2), data, 0)
    words = input_tensor(data, data.x[:1])
    scores = module(words)
    assert scores.shape == (1, 5, 7)
    later = words.clone()
    later[0, 3] = (later[0, 3] + 1) % 7
    moved = module(later)
    assert torch.equal(scores[0, :3], moved[0, :3])
    assert not torch.allclose(scores[0, 3:], moved[0, 3:])


def test_the_emnist_network_by_hand():
    """The same function written with plain tensor operations."""
    module = initial_module(EmnistCnn(), letters(26), 3)
    first, second, *dense = [
        (layer.weight, layer.bias) for layer in module if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    x = torch.from_numpy(letters(26).x[:2])
    y = x
    for kernel, bias in (first, second):
        assert kernel.shape[2:] == (5, 5)
        patches = y.unfold(2, 5, 1).unfold(3, 5, 1)
        y = torch.einsum("ncijkl,ockl->noij", patches, kernel) + bias[:, None, None]
        y = y.clamp(min=0).unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5))
    y = y.reshape(2, -1)
    for weight, bias in dense[:-1]:
        y = (y @ weight.T + bias).clamp(min=0)
    y = y @ dense[-1][0].T + dense[-1][1]
    assert [tuple(weight.shape) for weight, _ in dense] == [(1280, 160), (256, 1280), (26, 256)]
    assert torch.allclose(module(x), y, atol=1e-5)


def test_weights_are_fixed_by_the_seed_and_leave_torch_alone():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    one, two = (read_weights(initial_module(Mlp((5,)), vectors(), 4)) for _ in range(2))
    other = read_weights(initial_module(Mlp((5,)), vectors(), 5))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(one, read_weights(initial_module(Mlp((5,)), vectors(), 4)))


def test_weights_are_read_in_the_order_of_parameters_and_written_back():
    module = initial_module(Mlp((5,)), vectors(), 0)
    flat = read_weights(module)
    assert flat.shape == (4 * 5 + 6 * 4,)
    assert torch.equal(flat[:15].view(5, 3), module[1].weight)
    assert torch.equal(flat[-4:], module[3].bias)
    wanted = torch.arange(44.0)
    load_weights(module, wanted)
    assert torch.equal(read_weights(module), wanted)
    with torch.no_grad():
        module[1].weight.zero_()
    assert torch.equal(wanted, torch.arange(44.0)), "the vector must not be shared"


def test_examples_are_scaled_in_one_place():
    data = dataclasses.replace(
        federation((4, 2), (1, 2, 2)),
        x=np.full((6, 1, 2, 2), 51, np.uint8),
        scale=1 / 255,
        shift=-0.5,
    )
    data.x.setflags(write=False)
    x = input_tensor(data, data.x[:3])
    assert x.dtype == torch.float32
    assert x.shape == (3, 1, 2, 2)
    assert torch.allclose(x, torch.tensor(51 / 255 - 0.5))
    assert np.all(data.x == 51)
    words = input_tensor(texts(), texts().x[:2])
    assert words.dtype == torch.int64
    assert np.array_equal(words.numpy(), texts().x[:2])


def test_padding_does_not_count():
    scores = torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[5.0, 0.0], [0.0, 3.0]]])
    labels = torch.tensor([[1, -1], [0, 0]])
    wanted = [np.log1p(np.exp(-1)), np.log1p(np.exp(-5)), np.log1p(np.exp(3))]
    losses = torch.nn.functional.cross_entropy(*counted(scores, labels), reduction="none")
    assert losses.tolist() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        Custom(f"{HERE}:OneLayer"),
        Custom(f"{HERE}:OneLayer", {"n_in": 3, "n_out": 4}),
        Custom(f"{HERE}:fitting"),
        Custom(f"{HERE}:fitting", {"width": 9}),
        Custom(f"{HERE}:Positional"),
    ],
)
def test_modules_of_the_user_by_path(model):
    module = initial_module(model, vectors(), 0)
    assert module(input_tensor(vectors(), vectors().x[:2])).shape == (2, 4)


@pytest.mark.parametrize("handed", [Ready, lambda module: module])
def test_a_ready_module_keeps_its_weights_and_is_not_touched(handed):
    mine = OneLayer()
    before = read_weights(mine)
    trainer = ReferenceTrainer(vectors(), handed(mine), LocalWork(batch_size=4, lr=0.5), seed=9)
    assert torch.equal(trainer.initial_weights(), before)
    trained = trainer.train(before, np.array([0, 2]), 0)
    assert not torch.equal(trained.weights[0], before)
    assert torch.equal(read_weights(mine), before)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (OneLayer(3, 10), vectors(), r"^model gives 10 scores per label but toy has 4 classes"),
        (OneLayer(3, 2), vectors(), r"^model gives 2 scores per label but toy has 4 classes"),
        (OneLayer(5, 4), vectors(), r"^model refuses examples of shape \(3,\)"),
        (
            nn.Linear(28, 4),
            letters(),
            r"^model must return scores of shape .* for 2 examples, got \(2, 1, 28, 4\)",
        ),
        (nn.LSTM(3, 4), vectors(), r"^model must return a tensor of scores, got tuple"),
        (nn.Flatten(), vectors(), r"^model Flatten has no weights"),
        (OneLayer().double(), vectors(), r"^model must hold float32 weights, got torch.float64"),
        (Custom(f"{HERE}:not_a_module"), vectors(), r"^model must build a torch.nn.Module, got 3"),
        (
            Custom(f"{HERE}:OneLayer", {"depth": 3}),
            vectors(),
            r"^parameters do not fit .*depth.*example_shape and n_classes are filled in",
        ),
        (Custom(f"{HERE}:Missing"), vectors(), r"^path .*cannot be imported"),
        (Custom("no.such.module:Net"), vectors(), r"^path .*cannot be imported"),
        (Custom(f"{HERE}:HERE"), vectors(), r"^path .* is not a class or function"),
        (EmnistCnn(), vectors(), r"^model EmnistCnn needs images .*shape \(3,\)"),
        (FashionCnn(), federation((3, 3), (1, 8, 8)), r"^model FashionCnn needs .*16x16"),
        (EmnistCnn(), texts(), r"^model EmnistCnn needs images"),
        (Mlp(), texts(), r"^model Mlp needs images or vectors"),
        (StackedLstm(), vectors(), r"^model StackedLstm needs texts"),
        ("mlp", vectors(), r"^model must be a Model or a torch.nn.Module, got 'mlp'"),
    ],
)
def test_models_that_do_not_fit(model, data: FederatedData, message):
    with pytest.raises(InvalidInput, match=message):
        initial_module(model, data, 0)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: Mlp(hidden=200), r"^hidden must be a list"),
        (lambda: Mlp(hidden=(200, 0)), r"^hidden must be an integer >= 1"),
        (lambda: StackedLstm(layers=0), r"^layers must be"),
        (lambda: Custom("torch.nn.Linear"), r"^path must be 'module:factory'"),
        (lambda: Custom("a:b", parameters=3), r"^parameters must be a table"),
    ],
)
def test_bad_recipes_name_the_field(recipe, message):
    with pytest.raises(InvalidInput, match=message):
        recipe()


def test_recipes_are_plain_values():
    assert Mlp([3, 4]) == Mlp((3, 4))
    assert hash(Mlp((3, 4))) == hash(Mlp((3, 4)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mlp().hidden = (1,)


@pytest.mark.parametrize("name", ["cuda:99", "cpu:5", "meta", "warp", 3.5])
def test_a_device_that_is_not_there(name):
    with pytest.raises(InvalidInput, match=r"^device .* cannot be used: this machine has cpu"):
        device_named(name)
    with pytest.raises(InvalidInput, match=r"^device .* cannot be used"):
        ReferenceTrainer(vectors(), Logistic(), LocalWork(batch_size=4), device=name)


def normed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Linear(8, 4))


@pytest.mark.parametrize(
    ("model", "data", "lr"),
    [
        (Logistic(), federation(shape=(8,)), 0.5),
        (Mlp((16,)), federation(shape=(8,)), 0.5),
        (EmnistCnn(), letters(), 0.05),
        (FashionCnn(), letters(), 0.05),
        (CifarCnn(), federation((9, 6), (3, 20, 20)), 0.05),
        (StackedLstm(embedding=8, hidden=16, layers=2), texts(), 2.0),
        (Custom(f"{HERE}:fitting"), federation(shape=(8,)), 0.5),
        (normed(), federation(shape=(8,)), 0.5),
    ],
)
def test_every_model_learns(model, data, lr):
    work = LocalWork(epochs=None, steps=12, batch_size=6, lr=lr, momentum=0.5)
    trainer = ReferenceTrainer(data, model, work, seed=0)
    weights = trainer.initial_weights()
    first = trainer.test(weights).loss
    for round in range(6):
        got = trainer.train(weights, np.arange(data.n_clients), round)
        share = MeanReturned().coefficients(got.num_examples, None, int(data.num_samples.sum()))
        weights = aggregate(weights, got.weights, share)
    last = trainer.test(weights)
    assert first > 0.8 * np.log(data.n_classes)  # starts about where guessing stands
    assert last.loss < 0.35 * first
    assert last.accuracy > 0.8


def broken_factory(n_classes):
    raise RuntimeError("no such file")


def test_a_factory_that_raises_is_named():
    model = Custom(f"{__name__}:broken_factory")
    with pytest.raises(InvalidInput, match=r"^path '.*:broken_factory' .*RuntimeError: no such"):
        model.build(federation())
