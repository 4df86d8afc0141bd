"""What training reports of updates and labels, and only when a selector asks for it."""

from typing import ClassVar

import numpy as np
import pytest

import turnout
from turnout.core.errors import InvalidInput, MissingColumn, MissingMetric
from turnout.core.selector import Selector
from turnout.core.sketch import sketch
from turnout.core.types import Selection
from turnout.data import PrimaryLabel
from turnout.experiment import rounds
from turnout.training import Federation, LocalWork, Mlp, Training
from turnout.worlds import Environment

N_CLIENTS, SIZE = 8, 16


def recipe(**changes):
    settings = {
        "partition": PrimaryLabel(0.8, samples=40),
        "model": Mlp(hidden=(12,)),
        "local": LocalWork(epochs=1, batch_size=10, lr=0.05),
    }
    return Training(**(settings | changes))


class Asking(Selector):
    """Chooses at random and keeps what it is told."""

    def __init__(self, *, classes: int = 10, columns: tuple[str, ...] = ()) -> None:
        self.classes = classes
        self.columns = columns
        self.seen, self.contexts = [], []

    needs_metrics = frozenset({"loss", "update_norm", "update_sketch", "bias_update"})

    @property
    def needs_columns(self):
        return frozenset(self.columns)

    @property
    def metric_sizes(self):
        return {"update_sketch": SIZE, "bias_update": self.classes}

    def select(self, ctx, rng):
        self.contexts.append(ctx)
        return Selection(ctx.round, np.sort(rng.choice(ctx.pool, ctx.size, replace=False)))

    def observe(self, selection, outcome):
        self.seen.append((selection, outcome))


def played(selector, training, n_rounds=3, **world):
    federation = Federation(training, N_CLIENTS, 1)
    before = []
    made = rounds(
        selector,
        Environment(n_clients=N_CLIENTS, seed=1, **world),
        cohort_size=3,
        n_rounds=n_rounds,
        participants=federation,
    )
    weights = federation.weights.clone()
    for _ in made:
        before.append(weights)
        weights = federation.weights.clone()
    return federation, before


@pytest.mark.parametrize("trainer", ["fast", "reference"])
def test_norm_sketch_and_bias_are_those_of_the_update(trainer):
    selector, training = Asking(), recipe(trainer=trainer)
    federation, before = played(selector, training)
    assert len(selector.seen) == 3
    for weights, (selection, outcome) in zip(before, selector.seen, strict=True):
        done = outcome.completed
        assert done.any()
        trained = federation.trainer.train(weights, selection.clients[done], selection.round)
        update = (trained.weights - weights).double().numpy()
        norm = outcome.metric("update_norm")
        np.testing.assert_allclose(norm[done], np.linalg.norm(update, axis=1), rtol=1e-5)
        expected = np.array([sketch(one, SIZE) for one in update])
        found = outcome.metric("update_sketch", SIZE)
        np.testing.assert_allclose(found[done], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(outcome.metric("bias_update")[done], update[:, -10:], rtol=1e-5)
        assert np.isnan(norm[~done]).all()
        assert np.isnan(found[~done]).all()


def test_models_are_looked_at_a_few_at_a_time_with_the_same_result(monkeypatch):
    whole, parts = Asking(), Asking()
    played(whole, recipe())
    monkeypatch.setattr("turnout.training.reference._NUMBERS", 1)
    played(parts, recipe())
    for (_, one), (_, other) in zip(whole.seen, parts.seen, strict=True):
        for name in ("update_norm", "update_sketch", "bias_update"):
            np.testing.assert_allclose(one.metric(name), other.metric(name), rtol=1e-6)


def test_nothing_is_computed_when_nobody_asks(monkeypatch):
    monkeypatch.setattr("turnout.training.reference.signs", None)
    run = turnout.train(
        "random", recipe(), Environment(n_clients=N_CLIENTS), cohort_size=3, n_rounds=2
    )
    assert run.n_rounds == 2


def test_a_run_does_not_depend_on_what_is_asked():
    asked, plain = Asking(), Asking()
    plain.__class__ = type("Plain", (Asking,), {"needs_metrics": frozenset(), "metric_sizes": {}})
    first, second = played(asked, recipe())[0], played(plain, recipe())[0]
    assert (first.weights == second.weights).all()


def test_a_bias_of_another_length_is_refused_before_the_first_round():
    with pytest.raises(MissingMetric, match=r"'bias_update' of 7 numbers.*has 10"):
        played(Asking(classes=7), recipe())


def test_a_vector_without_a_length_is_refused():
    class Unsized(Asking):
        metric_sizes: ClassVar = {"bias_update": 10}

    with pytest.raises(InvalidInput, match=r"metric_sizes.*'update_sketch': None"):
        played(Unsized(), recipe())


def test_label_counts_are_the_true_ones():
    selector = Asking(columns=("label_counts",))
    federation, _ = played(selector, recipe())
    counts = selector.contexts[0].column("label_counts")
    data = federation.data
    for client in range(N_CLIENTS):
        own = data.y[data.offsets[client] : data.offsets[client + 1]]
        assert counts[client].tolist() == np.bincount(own, minlength=10).tolist()


def test_label_counts_may_be_noisy_or_absent():
    selector = Asking(columns=("label_counts",))
    played(selector, recipe(label_noise=2.0))
    noisy = selector.contexts[0].column("label_counts")
    exact = Federation(recipe(), N_CLIENTS, 1).columns["label_counts"]
    assert (noisy >= 0).all()
    assert not np.array_equal(noisy, exact)
    moved = np.abs(noisy - exact)[exact > 20]
    assert 0.5 < moved.mean() < 5.0
    again = Federation(recipe(label_noise=2.0), N_CLIENTS, 1).columns["label_counts"]
    assert np.array_equal(noisy, again)
    with pytest.raises(MissingColumn, match="label_counts"):
        played(selector, recipe(label_noise=None))


def test_the_context_has_the_scores_of_the_last_evaluation_also_after_a_resume():
    selector, training = Asking(), recipe(evaluate_every=2)
    federation, _ = played(selector, training, n_rounds=4)
    seen = [dict(ctx.evaluated) for ctx in selector.contexts]
    assert seen[0] == seen[1] == {}
    assert seen[2] == seen[3]
    assert set(seen[2]) == {"accuracy", "loss"}
    other = Federation(training, N_CLIENTS, 1)
    other.load_state(federation.state())
    assert other.evaluated == federation.evaluated != {}
    old = {name: array for name, array in federation.state().items() if name != "evaluated"}
    other.load_state(old)  # a checkpoint of version 0.1
    assert other.evaluated == {}
