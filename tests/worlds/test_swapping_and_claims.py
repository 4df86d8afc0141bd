"""Worlds that change sides half-way, and clients that exaggerate."""

import numpy as np
import pytest

import turnout
from turnout import InvalidInput
from turnout.experiment import Experiment, rounds
from turnout.worlds import (
    ByClass,
    Environment,
    Liars,
    LinearContextual,
    Reliable,
    Swapping,
    SwappingTimes,
)

TIMES = LinearContextual(cold_start_s=0.0)


def test_from_the_swap_on_the_first_fare_like_the_last():
    plain = Environment(8, 3, volatility=ByClass(), timing=TIMES)
    swapped = Environment(
        8, 3, volatility=Swapping(ByClass(), at=5), timing=SwappingTimes(TIMES, at=5)
    )
    workload = np.linspace(0.5, 1.5, 8)
    for t in (4, 5):
        order = slice(None) if t < 5 else slice(None, None, -1)
        before = plain.fate(t, workload=workload[order])
        after = swapped.fate(t, workload=workload)
        assert after.survived.tolist() == before.survived[order].tolist()
        assert after.duration.tolist() == before.duration[order].tolist()
        columns = ("context", "expected_duration", "success_rate")
        known = plain.context(t, 2, columns=columns, workload=workload[order]).columns
        seen = swapped.context(t, 2, columns=columns, workload=workload).columns
        for name in columns:
            assert seen[name].tolist() == known[name][order].tolist()


def test_what_looks_back_cannot_swap():
    with pytest.raises(InvalidInput, match="cold_start_s = 0") as caught:
        SwappingTimes(LinearContextual())
    assert caught.value.field == "inner"


def test_liars_exaggerate_every_loss_and_nobody_else_does():
    honest = Environment(20, 1, volatility=Reliable())
    lying = Environment(20, 1, volatility=Reliable(), claims=Liars(share=0.25, factor=10.0))
    selectors = turnout.make("oort"), turnout.make("oort")
    plays = [
        rounds(selector, world, cohort_size=20, n_rounds=1)
        for selector, world in zip(selectors, (honest, lying), strict=True)
    ]
    (truth,), (claims,) = plays
    ratio = claims.outcome.metric("loss_rms") / truth.outcome.metric("loss_rms")
    factors = dict(zip(*np.unique(np.round(ratio, 9), return_counts=True), strict=True))
    assert factors == {1.0: 15, 10.0: 5}


def test_liars_lie_to_polls_too():
    plain = Environment(10, 2, volatility=Reliable())
    lying = Environment(10, 2, volatility=Reliable(), claims=Liars(share=1.0, factor=3.0))
    asked = [
        next(iter(rounds(turnout.make("pow-d"), world, cohort_size=5, n_rounds=1))).context
        for world in (plain, lying)
    ]
    assert asked[1].polled_loss == pytest.approx(3.0 * asked[0].polled_loss)


def test_honest_worlds_keep_their_identity_and_others_are_read_back():
    before = Experiment(["random"], world="e3cs")
    assert "claims" not in before.table()["world"]
    world = {
        "claims": {"kind": "liars", "share": 0.2},
        "volatility": {"kind": "swapping", "inner": {"kind": "by-class"}, "at": 7},
    }
    experiment = Experiment(["random"], world=world)
    assert Experiment.from_table(experiment.table()).table() == experiment.table()
    assert experiment.world.claims == Liars(share=0.2)
