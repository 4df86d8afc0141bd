"""Reports of several numbers: one report each, with gaps, wrong lengths and lies."""

import dataclasses
import pickle
from typing import ClassVar

import numpy as np
import pytest

from turnout.core.arrays import LARGEST_REPORT
from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput
from turnout.core.selector import Selector
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.experiment import rounds
from turnout.testing import check_selector
from turnout.worlds import Environment

NAN = float("nan")


class Longest(Selector):
    """Chooses the clients whose last vector was longest; never heard of counts as longest."""

    needs_metrics = frozenset({"loss", "update_sketch"})
    needs_columns = frozenset({"place"})
    check_columns: ClassVar = {"place": 3}

    def __init__(self, *, size: int = 4) -> None:
        self.size = size

    @property
    def metric_sizes(self):
        return {"update_sketch": self.size}

    def reset(self, n_clients):
        super().reset(n_clients)
        self.vector_ = np.zeros((n_clients, self.size))
        self.is_known_ = np.zeros(n_clients, dtype=np.bool_)

    def select(self, ctx, rng):
        assert ctx.column("place").shape == (ctx.n_clients, 3)
        # capped, so that squares of the largest reports stay finite
        length = np.linalg.norm(np.clip(self.vector_, -1e9, 1e9), axis=1)
        length[~self.is_known_] = np.inf
        order = np.lexsort((rng.random(ctx.pool.size), -ctx.of_pool(length)))
        return Selection(ctx.round, np.sort(ctx.pool[order[: ctx.size]]))

    def observe(self, selection, outcome):
        sent = outcome.metric("update_sketch", self.size)
        came = ~np.isnan(sent[:, 0])
        self.vector_[selection.clients[came]] = sent[came]
        self.vector_[selection.clients[~came]] *= 0.5  # whoever stays silent is forgotten
        self.is_known_[selection.clients] = True


def test_a_vector_with_a_gap_counts_as_not_reported():
    sent = [[1.0, 2.0], [NAN, 2.0], [3.0, 4.0]]
    outcome = Outcome(status=[0, 0, 0], duration=[1.0] * 3, metrics={"v": sent})
    assert np.isnan(outcome.metric("v")[1]).all()
    assert outcome.metric("v")[2].tolist() == [3.0, 4.0]


def test_a_missing_vector_has_the_wanted_length():
    outcome = Outcome(status=[0, 0], duration=[1.0, 1.0])
    assert outcome.metric("v", 3).shape == (2, 3)
    assert np.isnan(outcome.metric("v", 3)).all()


@pytest.mark.parametrize(
    "sent",
    [
        [1.0, 2.0],
        [1.0, 2.0, 3.0, 4.0],
        [1.0, NAN, 3.0],
        [1.0, float("inf"), 3.0],
        [1.0, 1e31, 3.0],
        ["1", "2", "3"],
        "abc",
        None,
        1.0,
        [[1.0, 2.0, 3.0]],
        [1.0, [2.0], 3.0],
        {"a": 1},
        [True, False, True],
        [1 + 2j, 0, 0],
    ],
)
def test_what_clients_send_is_a_vector_of_the_right_length_or_nothing(sent):
    reports = {"v": [sent, [1, 2, 3]]}
    found = Outcome.from_reports([0, 0], [1.0, 1.0], reports, {"v": 3}).metric("v")
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [1.0, 2.0, 3.0]


def test_the_constructor_refuses_impossible_vectors():
    with pytest.raises(InvalidInput, match="v must be finite"):
        Outcome(status=[0], duration=[1.0], metrics={"v": [[1.0, np.inf]]})
    with pytest.raises(InvalidInput, match="update_norm must be finite and >= 0"):
        Outcome(status=[0], duration=[1.0], metrics={"update_norm": [-1.0]})
    with pytest.raises(InvalidInput, match="v must be a one-dimensional"):
        Outcome(status=[0], duration=[1.0], metrics={"v": np.zeros((1, 2, 2))})


def test_observe_refuses_vectors_of_another_length_and_changes_nothing():
    selector = Longest()
    selector.reset(3)
    before = selector.state()
    outcome = Outcome(status=[0], duration=[1.0], metrics={"update_sketch": [[1.0, 2.0]]})
    with pytest.raises(InvalidInput, match=r"vectors of 4 numbers for Longest, got 2 numbers"):
        selector.observe(Selection(0, [1]), outcome)
    scalar = Outcome(status=[0], duration=[1.0], metrics={"update_sketch": [1.0]})
    with pytest.raises(InvalidInput, match=r"vectors of 4 numbers for Longest, got single"):
        selector.observe(Selection(0, [1]), scalar)
    assert all(np.array_equal(before[name], selector.state()[name]) for name in before)


def test_a_selector_on_vectors_and_a_column_of_its_own_passes_the_contract():
    failed = {r.name: r.message for r in check_selector(Longest, effort=0.3) if not r.passed}
    # a selector of a test: its docstring has no headings
    assert failed.keys() <= {"docstring"}, failed


def test_bounds_shorten_a_vector_that_is_too_long_and_keep_its_direction():
    bounds = Bounds()
    bounds.reset(8)
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((8, 4))
    honest /= np.linalg.norm(honest, axis=1, keepdims=True)
    sent = honest.copy()
    sent[2] *= 1e6
    sent[5] = NAN
    selection = Selection(0, np.arange(8))
    outcome = Outcome(np.zeros(8, dtype=np.int8), np.ones(8), {"update_sketch": sent})
    bounded = bounds.outcome(selection, outcome).metric("update_sketch")
    np.testing.assert_allclose(bounded[2], honest[2], rtol=1e-9)
    assert np.isnan(bounded[5]).all()
    rest = [0, 1, 3, 4, 6, 7]
    assert np.array_equal(bounded[rest], sent[rest])  # bit for bit


def test_bounds_survive_the_largest_vectors():
    bounds = Bounds()
    bounds.reset(6)
    sent = np.full((6, 3), LARGEST_REPORT)
    outcome = Outcome(np.zeros(6, dtype=np.int8), np.ones(6), {"bias_update": sent})
    bounded = bounds.outcome(Selection(0, np.arange(6)), outcome).metric("bias_update")
    assert np.isfinite(bounded).all()
    bounds.load_state(bounds.state())


def test_old_states_of_bounds_still_load():
    bounds = Bounds()
    bounds.reset(4)
    state = bounds.state()
    del state["norms_"]
    bounds.load_state(state)
    assert np.isnan(bounds.norms_).all()


def test_a_world_without_training_has_synthetic_updates():
    class Seeing(Longest):
        needs_columns = frozenset()
        needs_metrics = frozenset({"loss", "update_norm", "update_sketch", "mine"})
        optional_metrics: ClassVar = {"mine": "it learns from the others"}
        seen: ClassVar = []

        def select(self, ctx, rng):
            return Selection(ctx.round, ctx.pool[: ctx.size])

        def observe(self, selection, outcome):
            self.seen.append((selection.clients, outcome))

    selector = Seeing(size=64)
    list(rounds(selector, Environment(n_clients=6, seed=3), cohort_size=6, n_rounds=4))
    directions = {}
    for clients, outcome in selector.seen:
        loss, vectors = outcome.metric("loss"), outcome.metric("update_sketch", 64)
        np.testing.assert_array_equal(outcome.metric("update_norm"), loss)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), loss)
        assert "mine" not in outcome.metrics
        for client, vector, length in zip(clients, vectors, loss, strict=True):
            if length > 0.0:
                known = directions.setdefault(int(client), vector / length)
                np.testing.assert_allclose(vector / length, known)  # the same in every round
    units = np.array(list(directions.values()))
    angles = units @ units.T - np.eye(len(units))
    assert len(units) >= 5
    assert 0.0 < np.abs(angles).max() < 0.6  # and unlike those of the others


def test_scores_of_the_model_travel_with_the_context():
    ctx = RoundContext(0, 1, [True], evaluated={"accuracy": 0.5})
    assert pickle.loads(pickle.dumps(ctx)).evaluated == {"accuracy": 0.5}
    assert dataclasses.replace(ctx, round=1).evaluated == {"accuracy": 0.5}
    assert RoundContext(0, 1, [True]).evaluated == {}
    with pytest.raises(InvalidInput, match="evaluated must map"):
        RoundContext(0, 1, [True], evaluated=0.5)
