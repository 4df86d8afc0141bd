"""The default trainer: side by side where it can, by a trial elsewhere; kept by a resumed run."""

import logging

import numpy as np
import pytest
from torch import nn

from tests.training.federations import federation
from tests.training.test_fast import Residual
from turnout.training import Federation, LocalWork, Mlp, Ready, Training, fast
from turnout.training.fast import FastTrainer, best_trainer
from turnout.training.reference import ReferenceTrainer

WORK = LocalWork(epochs=1, batch_size=8, lr=0.1)
SIZES = (12, 7, 31, 9, 20)


@pytest.fixture
def seconds(monkeypatch):
    """Times that the two trainers seem to take; what was tried is noted."""
    times, tried = {FastTrainer: 1.0, ReferenceTrainer: 1.0}, []

    def measured(trainer):
        tried.append(type(trainer))
        return times[type(trainer)]

    monkeypatch.setattr(fast, "_seconds", measured)
    monkeypatch.setattr(fast, "_faster", {})
    return times, tried


def residual():
    return Ready(Residual())


def test_a_chain_of_layers_is_not_tried(seconds):
    assert type(best_trainer(federation(SIZES, (6,)), Mlp(hidden=(5,)), WORK)) is FastTrainer
    assert seconds[1] == []


@pytest.mark.parametrize(
    ("by_reference", "taken"), [(0.5, ReferenceTrainer), (0.9, FastTrainer), (2.0, FastTrainer)]
)
def test_other_modules_are_tried_once_and_the_log_says_what_was_taken(
    seconds, caplog, by_reference, taken
):
    times, tried = seconds
    times[ReferenceTrainer] = by_reference
    with caplog.at_level(logging.INFO, "turnout"):
        trainers = [
            best_trainer(federation(SIZES, (6,)), Residual(), WORK, seed) for seed in (1, 2)
        ]
    assert [type(trainer) for trainer in trainers] == [taken] * 2
    assert tried == [FastTrainer, ReferenceTrainer]
    (record,) = caplog.records
    name = "reference" if taken is ReferenceTrainer else "fast"
    assert f"uses the {name}" in record.message
    assert f"the reference {by_reference:.2f} s" in record.message
    assert (record.levelno == logging.WARNING) is (name == "reference")


def test_the_trial_really_trains_with_both(monkeypatch):
    monkeypatch.setattr(fast, "_faster", {})
    best_trainer(federation(SIZES, (6,)), Residual(), WORK)
    assert next(iter(fast._faster.values())) in ("fast", "reference")


def test_a_resumed_run_keeps_the_trainer_of_its_beginning(seconds):
    times, _ = seconds
    data = federation(SIZES, (6,))

    def made(by_reference, model=None):
        times[ReferenceTrainer] = by_reference
        fast._faster.clear()
        training = Training(model=model or residual(), local=WORK)
        return Federation(training, len(SIZES), 3, data=data)

    slow, quick = made(0.1), made(9.0)
    assert type(slow.trainer) is ReferenceTrainer
    assert type(quick.trainer) is FastTrainer
    state = slow.state()
    quick.load_state(state)
    assert type(quick.trainer) is ReferenceTrainer
    assert quick.state().keys() == state.keys()
    clients = np.arange(3)
    ours, theirs = (f.trainer.train(f.weights, clients, 0).weights for f in (quick, slow))
    assert np.array_equal(ours.numpy(), theirs.numpy())
    assert "is_reference" not in made(0.1, Mlp(hidden=(5,))).state()


def test_a_choice_is_for_one_kind_of_work(seconds):
    _, tried = seconds
    data = federation(SIZES, (6,))
    best_trainer(data, Residual(), WORK)
    best_trainer(data, nn.Sequential(Residual(), nn.LayerNorm(4)), WORK)
    best_trainer(data, Residual(), LocalWork(epochs=2, batch_size=8, lr=0.1))
    assert len(tried) == 6
