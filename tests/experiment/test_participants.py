"""Participants of your own in Python, experiments, resumed runs and on the command line."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import turnout
from turnout.cli.app import app
from turnout.core.errors import InvalidInput
from turnout.experiment import Experiment, read_cell, run_experiment
from turnout.training import Federation, LocalWork, Mlp, Training
from turnout.training.reference import ReferenceTrainer
from turnout.worlds import Environment

LOCAL = LocalWork(epochs=1, batch_size=10, lr=0.05)


class Shy(Federation):
    """Reports a metric of its own, and remembers who was asked how often."""

    def reset(self):
        super().reset()
        self.asked = np.zeros(self.data.n_clients)

    def work(self, selection, is_completed):
        done = super().work(selection, is_completed)
        self.asked[selection.clients] += 1
        return done._replace(metrics={**done.metrics, "asked": self.asked[selection.clients]})

    def state(self):
        return super().state() | {"asked": self.asked.copy()}

    def load_state(self, state):
        super().load_state(state)
        self.asked = np.array(state["asked"])


class SignTrainer(ReferenceTrainer):
    """Local work of its own: one step along the signs of the gradient."""

    def train(self, weights, clients, round):
        updates = super().train(weights, clients, round)
        updates.weights.copy_(weights + 0.001 * torch.sign(updates.weights - weights))
        return updates


class SignSteps(Federation):
    def make_trainer(self, seed):
        recipe = self.training
        return SignTrainer(self.data, recipe.model, recipe.local, seed, recipe.device)


class Watching(turnout.Selector):
    """Takes those that were asked least, as they report it."""

    needs_metrics = frozenset({"asked"})

    def reset(self, n_clients):
        super().reset(n_clients)
        self.asked_ = np.zeros(n_clients)

    def select(self, ctx, rng):
        order = np.lexsort((rng.random(ctx.pool.size), ctx.of_pool(self.asked_)))
        return turnout.Selection(ctx.round, np.sort(ctx.pool[order[: ctx.size]]))

    def observe(self, selection, outcome):
        self.asked_[selection.clients] = np.nan_to_num(outcome.metric("asked"))


def recipe(participants):
    return Training(
        model=Mlp(hidden=(8,)),
        local=LOCAL,
        evaluate_clients_every=1,  # so that a run may go on after any round
        participants=f"{__name__}:{participants}",
    )


def experiment(n_rounds, **changes):
    return Experiment(
        name="own",
        world=Environment(n_clients=8),
        training=recipe("Shy"),
        selectors=[f"{__name__}:Watching"],
        n_clients=8,
        cohort_size=2,
        n_rounds=n_rounds,
        seeds=(0,),
        **changes,
    )


def test_a_selector_learns_from_a_metric_of_ones_own():
    run = turnout.train(Watching(), recipe("Shy"), Environment(8), cohort_size=2, n_rounds=8)
    assert run.counts.tolist() == [2] * 8


def test_local_work_of_ones_own_is_what_trains():
    world = Environment(8)
    run = turnout.train("random", recipe("SignSteps"), world, cohort_size=3, n_rounds=2)
    plain = turnout.train("random", recipe("Shy"), world, cohort_size=3, n_rounds=2)
    assert run.accuracy.tolist() != plain.accuracy.tolist()


def test_experiments_keep_the_name_and_resume(tmp_path):
    (whole,) = run_experiment(experiment(6), tmp_path / "whole", n_jobs=1).runs
    run_experiment(experiment(3), tmp_path / "parts", n_jobs=1)
    (parts,) = run_experiment(experiment(6), tmp_path / "parts", n_jobs=1).runs
    assert parts.status == "resumed", parts.message
    assert "Shy" in next((tmp_path / "whole").rglob("config.json")).read_text()
    first, second = (read_cell(one.path).choices for one in (whole, parts))
    assert first.clients.tolist() == second.clients.tolist()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.such.module:Name", "cannot be imported"),
        ("json:dumps", "must name a subclass of turnout.training.Federation, but json:dumps is"),
        ("a:b:c", "participants must be 'module:Name'"),
    ],
)
def test_bad_paths_are_named(path, message):
    with pytest.raises(InvalidInput, match=message):
        turnout.train(
            "random", Training(participants=path), Environment(8), cohort_size=2, n_rounds=1
        )


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "random",
        "--clients",
        "8",
        "--cohort",
        "2",
        "--rounds",
        "2",
        "--participants",
    ]
    done = CliRunner().invoke(app, [*words, f"{__name__}:Shy"])
    assert done.exit_code == 0, done.output
    bad = CliRunner().invoke(app, [*words, "json:dumps"])
    assert bad.exit_code != 0
