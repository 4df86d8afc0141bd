"""Losses and local algorithms of the user: regression, one's own loss, and state as of SCAFFOLD."""

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import turnout
from tests.training.federations import federation, texts
from turnout.core.errors import InvalidInput
from turnout.data import Arrays, Dirichlet, Iid, Natural, federate
from turnout.training import (
    Federation,
    LocalAlgorithm,
    LocalWork,
    Logistic,
    Mlp,
    StackedLstm,
    Training,
)
from turnout.training.fast import FastTrainer, best_trainer
from turnout.training.reference import ReferenceTrainer
from turnout.worlds import Environment

HERE = "tests.training.test_plugins"
WORK = LocalWork(steps=3, batch_size=None, lr=0.05, loss="squared-error")


def halves(scores, labels):
    """Half of the cross-entropy."""
    return 0.5 * torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def misshapen(scores, labels):
    return scores.sum()


def failing(scores, labels):
    raise KeyError("nothing here")


#: The algorithm of the page is the one that is tested.
(PAGE_CODE,) = re.findall(
    r"```python\n(# local\.py.*?)```",
    (Path(__file__).parents[2] / "docs/howto/models.md").read_text(encoding="utf-8"),
    re.DOTALL,
)
exec(PAGE_CODE)


class Short(LocalAlgorithm):
    def gradient(self, client, weights, start, gradient):
        return gradient[:1]


def line(n_clients=4, each=6, seed=0):
    """Targets on a line, with a slope of its own for each client."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_clients * each, 2)).astype(np.float32)
    slope = np.repeat(rng.normal(size=(n_clients, 2)), each, axis=0)
    y = (x * slope).sum(1) + 0.3
    owner = np.repeat(np.arange(n_clients), each)
    x_test = rng.normal(size=(20, 2)).astype(np.float32)
    return Arrays(x, y, x_test, x_test.sum(1).astype(float), group=owner)


def divided(n_clients=4):
    return federate(line(n_clients), Natural(), n_clients=n_clients, seed=0)


def test_targets_are_kept_and_have_no_classes():
    data = divided()
    assert data.has_targets
    assert data.n_classes == 1
    assert data.y.dtype == np.float32
    assert data.label_counts.tolist() == [[6]] * 4
    with pytest.raises(InvalidInput, match=r"Dirichlet divides by label, and .* has targets"):
        federate(line(), Dirichlet(), n_clients=2, seed=0)


@pytest.mark.parametrize("kind", [ReferenceTrainer, FastTrainer])
@pytest.mark.parametrize("loss", ["squared-error", "absolute-error"])
def test_regression_follows_plain_numpy(kind, loss):
    data = divided()
    work = dataclasses.replace(WORK, loss=loss, proximal=0.2)
    trainer = kind(data, Logistic(), work, seed=1)
    first = trainer.initial_weights()
    updates = trainer.train(first, np.arange(4), 0)
    for k in range(4):
        rows = slice(data.offsets[k], data.offsets[k + 1])
        x, y = data.x[rows].astype(np.float64), data.y[rows].astype(np.float64)
        w = first.double().numpy().copy()
        start, losses = w.copy(), []
        for _ in range(3):
            off = x @ w[:2] + w[2] - y
            each = off**2 if loss == "squared-error" else np.abs(off)
            by_score = 2 * off if loss == "squared-error" else np.sign(off)
            losses.append(each.mean())
            gradient = np.append(x.T @ by_score, by_score.sum()) / len(y)
            w -= 0.05 * (gradient + 0.2 * (w - start))
        np.testing.assert_allclose(updates.weights[k].numpy(), w, rtol=1e-4, atol=1e-6)
        assert updates.loss[k] == pytest.approx(np.mean(losses), rel=1e-5)
    scores = trainer.test(first)
    x, y, w = data.x_test, data.y_test, first.numpy()
    off = x @ w[:2] + w[2] - y
    expected = (off**2 if loss == "squared-error" else np.abs(off)).mean()
    assert scores.loss == pytest.approx(expected, rel=1e-5)
    assert math.isnan(scores.accuracy)
    assert np.isnan(trainer.test_clients(first).accuracy).all()
    assert np.isfinite(trainer.polled_loss(first, np.arange(4), 0, "all")).all()


def test_a_model_that_diverges_is_the_worst_also_in_a_regression():
    trainer = ReferenceTrainer(divided(), Logistic(), WORK)
    assert trainer.test(torch.full((3,), math.inf)).loss == turnout.core.arrays.LARGEST_REPORT


def test_a_regression_runs_from_end_to_end():
    training = Training(source=line(), partition=Iid(), model=Logistic(), local=WORK)
    run = turnout.train("random", training, Environment(4), cohort_size=2, n_rounds=8, seed=0)
    assert "accuracy" not in run.measured
    assert np.isfinite(run.measured["loss"]).all()
    started = run.measured["train_loss"][np.isfinite(run.measured["train_loss"])][0]
    assert run.measured["local_loss"][-1] < 0.9 * started
    run = turnout.train("ucb-cs", training, Environment(4), cohort_size=2, n_rounds=3, seed=0)
    assert run.n_rounds == 3


def test_your_own_loss_halves_every_step_and_every_score():
    data = federation(n_classes=4)
    usual = ReferenceTrainer(data, Mlp(hidden=(5,)), LocalWork(steps=1, batch_size=5, lr=0.1))
    halved = LocalWork(steps=1, batch_size=5, lr=0.1, loss=f"{HERE}:halves")
    first = usual.initial_weights()
    step = usual.train(first, np.arange(3), 0).weights - first
    for kind in (ReferenceTrainer, FastTrainer):
        own = kind(data, Mlp(hidden=(5,)), halved)
        updates = own.train(first, np.arange(3), 0)
        torch.testing.assert_close(updates.weights - first, 0.5 * step, rtol=1e-4, atol=1e-7)
        assert own.test(first).loss == pytest.approx(0.5 * usual.test(first).loss, rel=1e-6)
        assert own.test(first).accuracy == usual.test(first).accuracy


def test_your_own_loss_gets_each_word_of_a_text():
    data = texts()
    usual = ReferenceTrainer(data, StackedLstm(4, 4, 1), LocalWork(steps=1, batch_size=5, lr=0.1))
    own = ReferenceTrainer(
        data, StackedLstm(4, 4, 1), LocalWork(steps=1, batch_size=5, lr=0.1, loss=f"{HERE}:halves")
    )
    first = usual.initial_weights()
    assert own.test(first).loss == pytest.approx(0.5 * usual.test(first).loss, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("misshapen", r"must return one loss for each of 2 labels, a tensor of shape \(2,\), got"),
        ("failing", "cannot be used: 'nothing here'"),
    ],
)
def test_a_loss_that_cannot_be_used_is_named_before_anything_trains(loss, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        ReferenceTrainer(federation(), Mlp(), LocalWork(loss=f"{HERE}:{loss}", batch_size=5))
    assert caught.value.field == "loss"


def test_losses_and_data_must_fit():
    with pytest.raises(InvalidInput, match=r"'cross-entropy' but .* has targets of a regression"):
        ReferenceTrainer(divided(), Logistic(), LocalWork(batch_size=None))
    with pytest.raises(InvalidInput, match="'squared-error' but toy has labels of classes"):
        ReferenceTrainer(federation(), Logistic(), WORK)
    with pytest.raises(InvalidInput, match=r"loss must be 'cross-entropy', .* or 'module:name'"):
        LocalWork(loss="mse")
    with pytest.raises(InvalidInput, match="target_accuracy needs labels"):
        Federation(Training(model=Logistic(), local=WORK, target_accuracy=0.5), 4, data=divided())


def scaffold_by_hand(data, first, rounds, lr, steps):
    """SCAFFOLD in double precision, one client after the other, on full batches."""
    n = data.n_clients
    own, common = np.zeros((n, 3)), np.zeros(3)
    model = first.double().numpy().copy()
    for clients in rounds:
        ends, new = [], own.copy()
        for k in clients:
            rows = slice(data.offsets[k], data.offsets[k + 1])
            x, y = data.x[rows].astype(np.float64), data.y[rows].astype(np.float64)
            w = model.copy()
            for _ in range(steps):
                off = x @ w[:2] + w[2] - y
                gradient = np.append(x.T @ (2 * off), (2 * off).sum()) / len(y)
                w -= lr * (gradient - own[k] + common)
            new[k] = own[k] - common + (model - w) / (steps * lr)
            ends.append(w)
        common = common + (new - own).sum(0) / n
        own = new
        model = np.mean(ends, axis=0)
    return model, own, common


def scaffold_federation():
    training = Training(
        model=Logistic(), local=dataclasses.replace(WORK, algorithm=f"{HERE}:Scaffold")
    )
    return Federation(training, 4, seed=1, data=divided())


def play(federation, rounds, first=0):
    for t, clients in enumerate(rounds, first):
        chosen = turnout.Selection(t, np.array(clients))
        federation.work(chosen, np.ones(len(clients), dtype=bool))


ROUNDS = [[0, 1], [2, 3], [0, 3], [1, 2], [0, 2]]


def test_scaffold_follows_its_equations():
    federation = scaffold_federation()
    assert type(federation.trainer) is ReferenceTrainer
    first = federation.weights.clone()
    play(federation, ROUNDS)
    model, own, common = scaffold_by_hand(federation.data, first, ROUNDS, 0.05, 3)
    np.testing.assert_allclose(federation.weights.numpy(), model, rtol=1e-4, atol=1e-6)
    algorithm = federation.trainer.algorithm
    np.testing.assert_allclose(algorithm.own.numpy(), own, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(algorithm.common.numpy(), common, rtol=1e-3, atol=1e-5)


def test_the_state_of_an_algorithm_is_saved_and_reset():
    whole, part, later = (scaffold_federation() for _ in range(3))
    play(whole, ROUNDS)
    play(part, ROUNDS[:3])
    later.load_state(part.state())
    play(later, ROUNDS[3:], first=3)
    assert torch.equal(later.weights, whole.weights)
    assert later.state().keys() >= {"algorithm.own", "algorithm.common"}
    whole.reset()
    assert not whole.trainer.algorithm.own.any()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{HERE}:halves", "must name a subclass of turnout.training.LocalAlgorithm"),
        (f"{HERE}:Nothing", "cannot be imported"),
    ],
)
def test_what_is_no_algorithm_is_refused(path, message):
    with pytest.raises(InvalidInput, match=message):
        ReferenceTrainer(divided(), Logistic(), dataclasses.replace(WORK, algorithm=path))


def test_a_gradient_of_another_shape_is_refused():
    work = dataclasses.replace(WORK, algorithm=f"{HERE}:Short")
    trainer = ReferenceTrainer(divided(), Logistic(), work)
    with pytest.raises(InvalidInput, match=r"gradient must return a tensor of shape \(3,\)"):
        trainer.train(trainer.initial_weights(), np.array([0]), 0)


def test_the_batched_trainer_refuses_an_algorithm():
    work = dataclasses.replace(WORK, algorithm=f"{HERE}:Scaffold")
    with pytest.raises(InvalidInput, match="trainer 'batched' cannot run the algorithm"):
        FastTrainer(divided(), Logistic(), work)
    assert type(best_trainer(divided(), Logistic(), work)) is ReferenceTrainer


def test_an_algorithm_that_changes_nothing_changes_nothing():
    plain = ReferenceTrainer(divided(), Logistic(), WORK)
    work = dataclasses.replace(WORK, algorithm="turnout.training.base:LocalAlgorithm")
    same = ReferenceTrainer(divided(), Logistic(), work)
    first = plain.initial_weights()
    both = [t.train(first, np.arange(4), 0).weights for t in (plain, same)]
    assert torch.equal(*both)


@pytest.mark.slow
def test_the_command_of_the_page_runs_and_resumes(tmp_path):
    (tmp_path / "local.py").write_text(PAGE_CODE, encoding="utf-8")
    local = "steps=2,batch_size=10,lr=0.05,algorithm=local:Scaffold"
    settings = ("--train", "--local", local, "--clients", "10", "--cohort", "3", "--seeds", "1")

    def accuracies(out, rounds):
        command = [sys.executable, "-m", "turnout", "compare", "random", *settings]
        command += ["--rounds", str(rounds), "--out", out, "--jobs", "1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = turnout.open_runs(tmp_path / out).cells
        return run.run.accuracy

    accuracies("parts", 4)
    np.testing.assert_array_equal(accuracies("parts", 8), accuracies("whole", 8))


class Frozen(torch.nn.Module):
    """A first layer that does not learn."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def test_an_algorithm_leaves_frozen_weights_alone():
    work = dataclasses.replace(WORK, weight_decay=0.1)
    own = dataclasses.replace(work, algorithm="turnout.training.base:LocalAlgorithm")
    plain, same = (ReferenceTrainer(divided(), Frozen(), each, seed=1) for each in (work, own))
    first = plain.initial_weights()
    after = [trainer.train(first, np.arange(4), 0).weights for trainer in (plain, same)]
    assert torch.equal(*after)
    assert torch.equal(after[1][:, :9], first[:9].expand(4, 9))


def test_own_buffers_and_a_local_algorithm_exclude_each_other():
    local = dataclasses.replace(WORK, algorithm=f"{HERE}:Scaffold")
    with pytest.raises(InvalidInput, match="buffers must be 'average' with a local algorithm"):
        Federation(Training(model=Logistic(), local=local, buffers="local"), 4, data=divided())
