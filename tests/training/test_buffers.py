"""Models with buffers that change in training, against FedAvg on copies of modules."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.federations import federation
from turnout import InvalidInput
from turnout.core.types import Selection
from turnout.training import Federation, KeepGlobal, LocalWork, MeanReturned, Ready, Training
from turnout.training.fast import FastTrainer
from turnout.training.local import batch_plan
from turnout.training.modules import changing_buffers, least_batch, load_weights, read_weights
from turnout.training.reference import ReferenceTrainer

SIZES = (13, 7, 21, 6)  # with mini-batches of 6, two clients have a rest of one example
COHORTS = ([0, 1, 2, 3], [0, 2], [1], [0, 3])
WORK = LocalWork(epochs=2, batch_size=6, lr=0.1)


def normalised(momentum=0.1):
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8, momentum=momentum), nn.ReLU(), nn.Linear(8, 4)
    )


def noisy():
    return nn.Sequential(*normalised(), nn.Dropout(0.5))


class Positional(nn.Module):
    """A constant buffer beside a layer that changes its own."""

    def __init__(self):
        super().__init__()
        self.layers = normalised()
        self.register_buffer("place", torch.arange(3.0))

    def forward(self, x):
        return self.layers(x + self.place)


class Counting(nn.Module):
    """A counter that ``torch.func`` would share among clients without a word."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.layer(x)


def federated(module, data, **settings):
    training = Training(model=Ready(module), **({"local": WORK} | settings))
    return Federation(training, data.n_clients, seed=3, data=data)


def play(training_clients, rounds=range(4)):
    for round in rounds:
        clients = np.array(COHORTS[round])
        training_clients.work(Selection(round, clients), np.ones(clients.size, dtype=np.bool_))


class SlowFedAvg:
    """FedAvg as one writes it at first: a deep copy per client, a mean of every state."""

    def __init__(self, module, data, plan, keeps_own, step=lambda cohort: 1.0):
        self.module, self.data, self.plan, self.step = copy.deepcopy(module), data, plan, step
        self.own = {} if keeps_own else None

    def start(self, client):
        module = copy.deepcopy(self.module)
        if self.own is not None and client in self.own:
            module.load_state_dict(self.own[client], strict=False)
        return module

    def play(self, rounds=range(4)):
        for round in rounds:
            local = {client: self.local(client, round) for client in COHORTS[round]}
            self.average(local, self.step(COHORTS[round]))

    def local(self, client, round):
        module, rows = self.start(client), self.rows(client)
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        plan = self.plan(client, round)
        for first, last in zip(plan.bounds[:-1], plan.bounds[1:], strict=True):
            batch = rows[plan.order[first:last]]
            x, y = torch.from_numpy(self.data.x[batch]), torch.from_numpy(self.data.y[batch])
            sgd.zero_grad()
            nn.functional.cross_entropy(module.train()(x), y).backward()
            sgd.step()
        if self.own is not None:
            self.own[client] = {name: b.clone() for name, b in module.named_buffers()}
        return module.state_dict()

    def average(self, local, step):
        sizes = {client: float(self.data.num_samples[client]) for client in local}
        weights = {name for name, _ in self.module.named_parameters()}
        state = self.module.state_dict()
        for name, value in state.items():
            mean = sum(size * local[client][name].double() for client, size in sizes.items())
            mean = mean / sum(sizes.values())
            if name in weights:
                mean = value.double() + step * (mean - value.double())
            state[name] = mean.to(value.dtype) if value.is_floating_point() else mean.round().long()
        self.module.load_state_dict(state)

    def rows(self, client):
        return np.arange(self.data.offsets[client], self.data.offsets[client + 1])

    def score(self, module, x, y):
        with torch.no_grad():
            scores = module.eval()(torch.from_numpy(x))
        right = scores.argmax(1) == torch.from_numpy(y)
        loss = nn.functional.cross_entropy(scores, torch.from_numpy(y))
        return loss.item(), right.double().mean().item()

    def client_scores(self):
        rows = [self.rows(client) for client in range(self.data.n_clients)]
        return [
            self.score(self.start(client), self.data.x[some], self.data.y[some])
            for client, some in enumerate(rows)
        ]


@pytest.mark.parametrize("trainer", ["fast", "reference"])
@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("momentum", [0.1, None])  # None: a plain mean, by the count of batches
def test_against_fedavg_on_deep_copies(buffers, trainer, momentum):
    data, module = federation(SIZES), normalised(momentum)
    ours = federated(module, data, buffers=buffers, trainer=trainer)
    slow = SlowFedAvg(module, data, ours.trainer.plan, buffers == "local")
    play(ours)
    slow.play()
    got, wanted = ours.module().state_dict(), slow.module.state_dict()
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5)
    assert got["1.num_batches_tracked"].dtype == torch.int64
    assert got["1.num_batches_tracked"] > 4
    test_loss, accuracy = slow.score(slow.module, data.x_test, data.y_test)
    measured = ours.measure(3, is_last=True)
    assert measured["loss"] == pytest.approx(test_loss, rel=1e-4)
    assert measured["accuracy"] == accuracy
    scores, wanted_scores = ours.client_scores(), np.array(slow.client_scores())
    np.testing.assert_allclose(scores.loss, wanted_scores[:, 0], rtol=1e-4)
    polled = ours.polled_loss(4, np.array([3, 1]), "all")
    np.testing.assert_allclose(polled, wanted_scores[[3, 1], 0], rtol=1e-4)


def test_the_choice_shows_in_what_clients_see_and_not_in_the_weights():
    data, n_buffers = federation(SIZES), 2 * 8 + 1
    average, local = (federated(normalised(), data, buffers=b) for b in ("average", "local"))
    for each in (average, local):
        play(each)
    # Training normalises by the mini-batch, so that moments have no influence on the weights.
    assert torch.equal(average.weights[:-n_buffers], local.weights[:-n_buffers])
    assert not torch.allclose(average.weights[-n_buffers:], local.weights[-n_buffers:])
    assert not np.allclose(average.client_scores().loss, local.client_scores().loss, rtol=1e-3)


def test_moments_take_a_whole_step_where_weights_take_a_part_of_one():
    data = federation(SIZES)
    ours = federated(normalised(), data, aggregation=KeepGlobal(), server_lr=0.5)
    share = [data.num_samples[cohort].sum() / data.num_samples.sum() for cohort in COHORTS]
    steps = iter(0.5 * share[round] for round in range(len(COHORTS)))
    slow = SlowFedAvg(normalised(), data, ours.trainer.plan, False, lambda cohort: next(steps))
    play(ours)
    slow.play()
    for name, value in slow.module.state_dict().items():
        torch.testing.assert_close(ours.module().state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_resumed_training_goes_on_bit_for_bit(buffers):
    data = federation(SIZES)
    whole = federated(normalised(), data, buffers=buffers)
    play(whole)
    first = federated(normalised(), data, buffers=buffers)
    play(first, range(2))
    state = {name: np.array(value) for name, value in first.state().items()}
    assert ("buffers" in state) == (buffers == "local")
    second = federated(normalised(), data, buffers=buffers)
    second.load_state(state)
    play(second, range(2, 4))
    assert torch.equal(second.weights, whole.weights)
    assert second.client_scores().loss.tolist() == whole.client_scores().loss.tolist()
    if buffers == "local":
        with pytest.raises(InvalidInput, match=r"^buffers must be 68 numbers of torch.float32"):
            second.load_state(state | {"buffers": state["buffers"][:3]})


def test_a_broken_client_keeps_its_moments_and_spoils_nothing():
    data = federation(SIZES)
    data.x[data.offsets[1] : data.offsets[2]] = 3e38
    for buffers in ("average", "local"):
        ours = federated(normalised(), data, buffers=buffers)
        clients = np.arange(4)
        trained = ours.work(Selection(0, clients), np.ones(4, dtype=np.bool_))
        assert trained.is_broken.tolist() == [False, True, False, False]
        assert torch.isfinite(ours.weights).all()
        if buffers == "local":
            assert np.isnan(ours.state()["buffers"]).all(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("module", "names", "how"),
    [
        (normalised(), ("1.running_mean", "1.running_var", "1.num_batches_tracked"), "per thread"),
        (noisy(), ("1.running_mean", "1.running_var", "1.num_batches_tracked"), "after the other"),
        (Counting(), ("calls",), "per thread"),
        (nn.Linear(3, 4), (), "stacked layers"),
    ],
)
def test_buffers_that_change_are_found_and_trained_client_by_client(module, names, how):
    data = federation(SIZES)
    assert changing_buffers(module, data) == names
    slow = ReferenceTrainer(data, module, WORK)
    fast = FastTrainer(data, module, WORK, threads=2)
    assert fast.how.endswith(how)
    assert bool(names) == ("changes buffers" in fast.why)
    assert fast.n_weights == read_weights(module, names).numel()
    start = fast.initial_weights()
    assert torch.equal(start, read_weights(module, names)), "trying a module leaves it as it was"
    got, wanted = (t.train(start, np.arange(4), 0).weights for t in (fast, slow))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_buffers_that_never_change_are_no_weights():
    names = changing_buffers(Positional(), federation(SIZES))
    assert "place" not in names
    assert len(names) == 3


def test_moments_count_even_if_the_first_examples_do_not_move_them():
    data = federation(SIZES)
    data.x[:2] = 0.0  # a mean of zero leaves a running mean of zero as it is
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    assert changing_buffers(module, data)[0] == "0.running_mean"


def test_integers_are_rounded_when_they_are_loaded():
    module, names = Counting(), ("calls",)
    vector = read_weights(module, names)
    vector[-1] = 6.6
    load_weights(module, vector, names)
    assert int(module.calls) == 7


def test_complex_buffers_are_refused():
    module = Counting()
    module.calls = module.calls.to(torch.complex64)
    with pytest.raises(InvalidInput, match="calls of complex numbers"):
        changing_buffers(module, federation(SIZES))


def test_the_last_mini_batch_of_a_pass_borrows_what_the_model_needs():
    def sizes(*numbers, least):
        rng = np.random.default_rng(0)
        plan = batch_plan(*numbers, rng, least)
        n, first_pass = numbers[0], plan.order[: numbers[0]]
        assert sorted(first_pass.tolist()) == list(range(n))
        return np.diff(plan.bounds).tolist()

    assert sizes(13, 6, 6, least=1) == [6, 6, 1, 6, 6, 1]
    assert sizes(13, 6, 6, least=2) == [6, 5, 2, 6, 5, 2]
    assert sizes(14, 6, 3, least=2) == [6, 6, 2]
    assert sizes(5, 6, 2, least=2) == [5, 5]
    assert least_batch(normalised(), federation(SIZES)) == 2
    assert least_batch(nn.Linear(3, 4), federation(SIZES)) == 1


@pytest.mark.parametrize(
    ("sizes", "batch_size", "client"), [((4, 1), 3, 1), ((4, 5), 2, 1), ((4, 4), 1, 0)]
)
def test_a_mini_batch_of_one_is_refused_before_the_first_round(sizes, batch_size, client):
    work = LocalWork(batch_size=batch_size)
    with pytest.raises(InvalidInput, match=rf"batch_size={batch_size} client {client} .*GroupNorm"):
        ReferenceTrainer(federation(sizes), normalised(), work)


def test_buffers_is_checked():
    with pytest.raises(InvalidInput, match="buffers must be") as caught:
        Training(buffers="none")
    assert caught.value.field == "buffers"
    assert Training(aggregation=MeanReturned()).buffers == "average"
