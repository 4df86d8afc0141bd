import math
import pickle

import numpy as np
import pytest

import turnout
from turnout.core.errors import InvalidInput
from turnout.experiment import rounds
from turnout.worlds import (
    Adversary,
    Bernoulli,
    ByClass,
    DeviceTimes,
    Diurnal,
    Environment,
    FixedTime,
    HeavyTail,
    History,
    LinearContextual,
    LogNormal,
    Markov,
    Outages,
    Reliable,
    Shifting,
    e3cs_world,
    rbcs_f_world,
)

WORLDS = {
    "e3cs": e3cs_world(40, seed=5),
    "markov": Environment(40, 5, Diurnal(), Markov(), DeviceTimes()),
    "outages": Environment(
        40, 5, Bernoulli(0.7), Outages(Shifting(at=(5,)), n_groups=4), HeavyTail()
    ),
    "everything": Environment(
        40,
        5,
        Bernoulli(0.9),
        Shifting(Outages(Markov((0.4, 0.9), 0.5)), at=(3, 9)),
        HeavyTail(HeavyTail(DeviceTimes(), LogNormal())),
    ),
}


def snapshot(world, t, history=None):
    ctx = world.context(t, 5, history, columns=world.columns)
    fate = world.fate(t, history)
    columns = [ctx.columns[name] for name in sorted(ctx.columns)]
    reports = [world.metrics(t)[name] for name in ("loss", "loss_std", "loss_rms")]
    return [ctx.available, *columns, fate.survived, fate.duration, *reports]


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", WORLDS)
def test_the_world_is_the_same_whoever_selects(name):
    world = WORLDS[name]
    assert not world.uses_history
    seen = {}
    for chooser, m in [("random", 5), ("e3cs", 9), ("oort", 20)]:
        records = rounds(turnout.make(chooser), world, cohort_size=m, n_rounds=15, seed=m)
        seen[chooser] = [(r.context.available, r.fate.survived, r.fate.duration) for r in records]
    for t in range(15):
        for chooser in ("e3cs", "oort"):
            assert_same(seen["random"][t], seen[chooser][t])


@pytest.mark.parametrize("name", WORLDS)
def test_the_order_of_questions_is_irrelevant(name):
    world = WORLDS[name]
    far = snapshot(world, 500)
    forward = [snapshot(world, t) for t in range(12)]
    for t in (7, 0, 11, 3):
        assert_same(snapshot(world, t), forward[t])
    assert_same(snapshot(world, 500), far)


def test_the_seed_fixes_everything_and_matters():
    for world in WORLDS.values():
        again = Environment(**{f: getattr(world, f) for f in world.__dataclass_fields__})
        assert_same(snapshot(world, 4), snapshot(again, 4))
        other = Environment(40, 6, world.availability, world.volatility, world.timing)
        assert any(
            (a != b).any() for a, b in zip(snapshot(world, 4), snapshot(other, 4), strict=True)
        )


def test_worlds_travel_to_other_processes():
    for world in (*WORLDS.values(), rbcs_f_world(40, seed=5)):
        snapshot(world, 2)
        copy = pickle.loads(pickle.dumps(world))
        assert copy == world
        assert hash(copy) == hash(world)
        assert_same(snapshot(copy, 4), snapshot(world, 4))


def test_exchanging_one_model_does_not_shift_another():
    base = Environment(60, 9, Bernoulli(0.8), ByClass(), LinearContextual())
    swaps = {
        "availability": Environment(60, 9, Diurnal(), ByClass(), LinearContextual()),
        "volatility": Environment(60, 9, Bernoulli(0.8), Outages(Markov()), LinearContextual()),
        "timing": Environment(60, 9, Bernoulli(0.8), ByClass(), HeavyTail(DeviceTimes())),
    }
    for t in range(5):
        ctx, fate = base.context(t, 5), base.fate(t)
        for swapped, world in swaps.items():
            if swapped != "availability":
                np.testing.assert_array_equal(world.context(t, 5).available, ctx.available)
            if swapped != "volatility":
                np.testing.assert_array_equal(world.fate(t).survived, fate.survived)
            if swapped != "timing":
                np.testing.assert_array_equal(world.fate(t).duration, fate.duration)
            np.testing.assert_array_equal(world.metrics(t)["loss"], base.metrics(t)["loss"])


def test_models_are_independent_of_each_other():
    world = Environment(
        200, 2, Bernoulli(0.5), ByClass((0.5,)), HeavyTail(FixedTime(), LogNormal())
    )
    drawn = [(world.context(t, 5).available, *world.fate(t)[:2]) for t in range(100)]
    there, survived, duration = (np.concatenate(column) for column in zip(*drawn, strict=True))
    for a, b in [(there, survived), (there, duration > 1.0), (survived, duration > 1.0)]:
        assert abs(np.corrcoef(a, b)[0, 1]) <= 5.0 / math.sqrt(a.size)


def test_only_the_columns_asked_for_are_made():
    world = rbcs_f_world(8, seed=1)
    assert world.columns == {
        "availability_forecast", "context", "expected_duration", "features", "label_counts",
        "num_samples", "success_rate",
    }  # fmt: skip
    assert not world.context(0, 2).columns
    ctx = world.context(0, 2, columns={"context", "num_samples", "no_such_column"})
    assert ctx.columns.keys() == {"context", "num_samples"}
    assert ctx.columns["context"].shape == (8, 3)
    assert "context" not in e3cs_world().columns


def test_context_carries_size_deadline_and_round():
    ctx = e3cs_world(8).context(3, 2, deadline=4.5)
    assert (ctx.round, ctx.cohort_size, ctx.deadline, ctx.n_clients) == (3, 2, 4.5, 8)


def test_classes_come_from_volatility_or_timing():
    np.testing.assert_array_equal(e3cs_world(8).classes, [0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(rbcs_f_world(8).classes, [0, 0, 1, 1, 2, 2, 3, 3])
    assert not Environment(8, volatility=Reliable()).classes.any()


def test_history_dependent_worlds_say_so():
    assert rbcs_f_world().uses_history
    assert Environment(8, volatility=Adversary()).uses_history
    assert not e3cs_world().uses_history


def test_paper_worlds():
    e3cs = e3cs_world()
    assert e3cs.n_clients == 100
    assert e3cs.context(0, 20).available.all()
    assert (e3cs.fate(0).duration == 1.0).all()
    rate = e3cs.context(0, 20, columns={"success_rate"}).columns["success_rate"]
    np.testing.assert_array_equal(rate, np.repeat([0.1, 0.3, 0.6, 0.9], 25))
    rbcs = rbcs_f_world()
    assert rbcs.n_clients == 40
    assert rbcs.fate(0).survived.all()
    there = np.array([rbcs.context(t, 8).available for t in range(200)])
    assert abs(there.mean() - 0.8) <= 5.0 * math.sqrt(0.16 / there.size)


def test_bad_worlds_are_refused():
    with pytest.raises(InvalidInput, match="n_clients"):
        Environment(0)
    with pytest.raises(InvalidInput, match="seed"):
        Environment(5, seed=-1)
    with pytest.raises(InvalidInput, match="history must be of 5 clients, got 4"):
        Environment(5).fate(0, History.fresh(4))


def test_history_records_and_resumes():
    history = History.fresh(4)
    history.record(np.array([0, 2]))
    history.record(np.array([2, 3]))
    np.testing.assert_array_equal(history.n_chosen_, [1, 0, 2, 1])
    np.testing.assert_array_equal(history.took_part_, [False, False, True, True])
    other = History.fresh(4)
    other.load_state(history.state())
    np.testing.assert_array_equal(other.n_chosen_, history.n_chosen_)
