"""Sketches of updates from Flower clients: the right ones arrive, others are named."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from tests.live.flower.fake import federation, model
from turnout import Selection, Selector
from turnout.core.errors import InvalidInput
from turnout.core.sketch import sketch
from turnout.live import MissingMetric
from turnout.live.flower import SelectingStrategy
from turnout.live.flower.client import update_report

SIZE = 8


class Biases(Selector):
    """Keeps the change of the last bias of each client."""

    needs_metrics = frozenset({"bias_update"})

    def __init__(self) -> None:
        self.biases = []

    @property
    def metric_sizes(self):
        return {"bias_update": 2}

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: ctx.size])

    def observe(self, selection, outcome):
        self.biases.append(outcome.metric("bias_update", 2))


class Sketches(Selector):
    """Chooses everyone and keeps the reports."""

    needs_metrics = frozenset({"update_norm", "update_sketch"})

    def __init__(self) -> None:
        self.norms, self.sketches = [], []

    @property
    def metric_sizes(self):
        return {"update_sketch": SIZE}

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: ctx.size])

    def observe(self, selection, outcome):
        self.norms.append(outcome.metric("update_norm"))
        self.sketches.append(outcome.metric("update_sketch", SIZE))


def of_client(number, **changes):
    after = [np.full((2, 3), float(number)), np.ones(2)]
    return update_report([np.zeros((2, 3)), np.ones(2)], after, **({"size": SIZE} | changes))


def start(metrics, n_rounds=2, selector=Sketches):
    strategy = SelectingStrategy(FedAvg(), selector(), cohort_size=3, unidentified="node-id")
    strategy.start(federation(3, metrics=metrics), model(), num_rounds=n_rounds)
    return strategy.selector


def test_the_server_sees_the_sketch_of_each_client(ticking):
    selector = start(lambda number, message: {"num-examples": 1, **of_client(number + 1)})
    for numbers, vectors in zip(selector.norms, selector.sketches, strict=True):
        assert vectors.shape == (3, SIZE)
        for norm, vector in zip(numbers, vectors, strict=True):
            number = norm / np.sqrt(6.0)
            update = np.concatenate((np.full(6, number), np.zeros(2)))
            np.testing.assert_allclose(vector, sketch(update, SIZE), atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "sent"), [({"size": 5}, "of seed 0 with 5"), ({"seed": 3}, "of seed 3 with 8")]
)
def test_sketches_of_another_length_or_seed_are_refused_with_both_named(ticking, changes, sent):
    with pytest.raises(MissingMetric) as caught:
        start(lambda number, message: {"num-examples": 1, **of_client(1, **changes)})
    text = str(caught.value)
    assert "'update_sketch' of seed 0 with 8 numbers" in text
    assert f"one has 'update_sketch' {sent} numbers" in text
    assert "update_report(before, after, size=...)" in text


def test_the_server_sees_the_change_of_the_last_bias(ticking):
    def metrics(number, message):
        before, after = [np.zeros((2, 3)), np.ones(2)], [np.ones((2, 3)), np.array([2.0, number])]
        return {"num-examples": 1, **update_report(before, after, bias=True)}

    for biases in start(metrics, selector=Biases).biases:
        assert biases[:, 0].tolist() == [1.0, 1.0, 1.0]
        assert sorted(biases[:, 1]) == [-1.0, 0.0, 1.0]


def test_clients_that_do_not_send_the_bias_are_told_how(ticking):
    with pytest.raises(MissingMetric, match=r"update_report\(before, after, size=..., bias=True\)"):
        start(lambda number, message: {"num-examples": 1, **of_client(1)}, selector=Biases)


def test_a_model_whose_last_array_is_no_bias_is_refused():
    with pytest.raises(InvalidInput, match=r"last array is the bias.*shape \(3, 2\)"):
        update_report([np.zeros((3, 2))], [np.ones((3, 2))], bias=True)


def test_a_seed_that_is_no_number_is_another_seed(ticking):
    def metrics(number, message):
        return {"num-examples": 1, **of_client(1), "update_sketch_seed": [0.0, 1.0]}

    with pytest.raises(MissingMetric, match=r"one has 'update_sketch' with 8 numbers"):
        start(metrics)


def test_one_odd_sketch_among_good_ones_counts_as_missing(ticking):
    def metrics(number, message):
        return {"num-examples": 1, **of_client(1, seed=3 if number == 1 else 0)}

    selector = start(metrics)
    for vectors in selector.sketches:
        assert sorted(np.isnan(vectors).all(axis=1)) == [False, False, True]


def test_clients_that_report_nothing_are_told_what_to_add(ticking):
    with pytest.raises(MissingMetric, match=r"needs 'update_norm' and 'update_sketch'.*update_re"):
        start(lambda number, message: {"num-examples": 1})
