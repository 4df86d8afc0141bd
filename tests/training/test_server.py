"""Server optimisers: Flower's own numbers, hand-worked steps, resume, and the plain mean."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from turnout.core.errors import InvalidInput
from turnout.core.types import Selection
from turnout.data import PrimaryLabel
from turnout.training import (
    FedAdam,
    Federation,
    FedYogi,
    LocalWork,
    Mlp,
    ServerMomentum,
    TakeMean,
    Training,
)

N_WEIGHTS, N_ROUNDS = 40, 12


def records(values):
    return ArrayRecord({"w": Array(np.asarray(values, dtype=np.float32))})


def replies(models):
    """Messages of clients with one example each."""
    sent = Message(RecordDict(), dst_node_id=1, message_type="train")
    return [
        Message(
            RecordDict({"arrays": records(model), "metrics": MetricRecord({"num-examples": 1})}),
            reply_to=sent,
        )
        for model in models
    ]


def flowers_path(strategy, drawn):
    """Return the global model after each round of a Flower strategy."""
    weights, path = np.zeros(N_WEIGHTS, dtype=np.float32), []
    for number, steps in enumerate(drawn, start=1):
        if isinstance(strategy, flower.FedAvgM):
            strategy.current_arrays = records(weights)
        else:
            strategy.current_arrays = {"w": weights}
        arrays, _ = strategy.aggregate_train(number, replies(weights + steps))
        weights = next(iter(arrays.values())).numpy()
        path.append(weights)
    return np.array(path)


def our_path(optimizer, drawn):
    weights, path = torch.zeros(N_WEIGHTS), []
    moments = {name: torch.zeros(N_WEIGHTS) for name in optimizer.moments}
    for t, steps in enumerate(drawn):
        mean = weights + torch.from_numpy(steps).mean(dim=0)
        weights = optimizer.step(weights, mean, moments, t)
        path.append(weights.numpy().copy())
    return np.array(path)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (TakeMean(), flower.FedAvg()),
        (ServerMomentum(0.7), flower.FedAvgM(server_momentum=0.7)),
        (FedAdam(), flower.FedAdam()),
        (FedAdam(0.02, 0.5, 0.9), flower.FedAdam(eta=0.02, beta_1=0.5, beta_2=0.9)),
        (FedAdam(tau=0.1), flower.FedAdam(tau=0.1)),
        (FedYogi(), flower.FedYogi()),
        (FedYogi(0.05, 0.3, 0.8), flower.FedYogi(eta=0.05, beta_1=0.3, beta_2=0.8)),
        (FedYogi(tau=0.1), flower.FedYogi(tau=0.1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_round_equals_flowers(ours, theirs, monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):  # messages want to know who they are from
        monkeypatch.setattr(TaskIdentity, name, 1)
    drawn = np.random.default_rng(0).normal(0.02, 0.05, (N_ROUNDS, 3, N_WEIGHTS))
    drawn = drawn.astype(np.float32)
    np.testing.assert_allclose(our_path(ours, drawn), flowers_path(theirs, drawn), atol=1e-6)


def test_adam_of_the_paper_by_hand():
    # Reddi et al., Alg. 2: v starts at tau^2, no correction; Delta = 0.2 twice
    rule = FedAdam(lr=1.0, beta_1=0.5, beta_2=0.5, tau=0.1, bias_correction=False, start=0.01)
    path = our_path(rule, np.full((2, 1, N_WEIGHTS), 0.2, dtype=np.float32))
    first = 0.1 / (np.sqrt(0.5 * 0.01 + 0.5 * 0.04) + 0.1)
    second = 0.15 / (np.sqrt(0.5 * 0.025 + 0.5 * 0.04) + 0.1)
    np.testing.assert_allclose(path[:, 0], [first, first + second], rtol=1e-5)


def federation(server, **changes):
    training = Training(
        partition=PrimaryLabel(0.8, samples=40),
        model=Mlp(hidden=(12,)),
        local=LocalWork(epochs=1, batch_size=10, lr=0.05),
        server=server,
        **changes,
    )
    return Federation(training, 8, 1)


def play(federation, rounds):
    for t in rounds:
        federation.work(Selection(t, [t % 8, 6 + t % 2]), np.array([True, t != 2]))
    return federation.weights


@pytest.mark.parametrize("server", [ServerMomentum(0.9), FedAdam(lr=0.01), FedYogi()])
def test_a_resumed_run_repeats_bit_for_bit(server):
    whole = play(federation(server), range(6))
    first, second = federation(server), federation(server)
    play(first, range(3))
    second.load_state(first.state())
    assert torch.equal(play(second, range(3, 6)), whole)
    assert not torch.equal(whole, play(federation(TakeMean()), range(6)))


def test_a_round_without_answers_changes_nothing():
    federated = federation(ServerMomentum(0.9))
    play(federated, range(2))
    before, state = federated.weights.clone(), federated.state()
    federated.work(Selection(2, [1, 2]), np.zeros(2, dtype=np.bool_))
    assert torch.equal(federated.weights, before)
    assert np.array_equal(federated.state()["server.velocity"], state["server.velocity"])


def test_bad_settings_name_the_field():
    with pytest.raises(InvalidInput, match="beta_2 must be"):
        FedAdam(beta_2=1.0)
    with pytest.raises(InvalidInput, match="server must be a ServerOptimizer"):
        Training(server="adam")
