"""A small form of the benchmark of long and large runs: sums do not drift, files hold all."""

import itertools

import pytest

from tests.docs.test_reliability import loaded

long_runs = loaded("benchmarks", "long_runs")


@pytest.mark.parametrize("name", long_runs.SELECTORS)
def test_sums_do_not_drift_from_those_in_80_bits(name):
    size = long_runs.Size(n_clients=40, cohort_size=8, n_rounds=200)
    figures = long_runs.play(name, size)
    assert figures["drift"] < 1e-11
    assert f"| 40 | 200 | `{name}` |" in long_runs.table({f"long | {name}": figures})
    if name != "rbcs-f":  # its queues tie in one state, and differ in the last bit in the other
        assert figures["same_cohorts"] == 1.0


def test_drift_is_noticed():
    size = long_runs.Size(n_clients=40, cohort_size=8, n_rounds=1)
    selector = long_runs.selector_of("e3cs", size)
    selector.prepare(40)
    wide = long_runs.widened(selector, 40)
    assert long_runs.worst_drift(selector, wide) == ("", 0.0)
    selector.log_weight_[3] += 1e-6
    assert long_runs.worst_drift(selector, wide) == ("log_weight_", pytest.approx(1e-6))


def test_one_client_in_a_hundred_leaves_in_a_round_and_as_many_come_back():
    size = long_runs.Size(n_clients=200, cohort_size=8, n_rounds=3)
    selector = long_runs.selector_of("e3cs", size)
    masks = [ctx.available for ctx in long_runs.contexts(selector, size, range(3))]
    assert [mask.sum() for mask in masks] == [180, 180, 180]
    for before, after in itertools.pairwise(masks):
        assert (before & ~after).sum() == (after & ~before).sum() == 2
