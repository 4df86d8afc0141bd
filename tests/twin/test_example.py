"""The recorded Flower deployment of the how-to."""

from __future__ import annotations

from pathlib import Path

import pytest

import turnout
from turnout.twin import check

RECORDS = Path(__file__).parents[2] / "examples" / "flower-records"


def test_the_recorded_deployment_is_fitted():
    world = turnout.fit(RECORDS)
    assert world.names == ("client-000", "client-001", "client-002")
    assert (world.n_rounds, world.cohort_size) == (40, 2)
    assert world.policy.deadline() == 30.0
    # Client 0 fails in 30 % of its rounds, client 1 never; client 1 sleeps in 40 %.
    assert world.success.argmin() == 0
    assert world.seconds.argmax() == 1
    (drift,) = (each for each in world.quantities if each.name == "drift")
    assert drift.value.startswith("-")
    assert turnout.simulate("pace", world.environment, cohort_size=2, n_rounds=20).n_clients == 3


@pytest.mark.parametrize(
    ("name", "verdict"), [("answers", "calibrated"), ("round length", "too sure")]
)
def test_the_check_says_what_the_page_says(name: str, verdict: str):
    found = {each.name: each.verdict for each in check(RECORDS).coverages}
    assert found[name] == verdict
