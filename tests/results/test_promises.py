"""What a selector promises is what it declares, whatever its parameters are called."""

import json
import math

import numpy as np
import pytest

import turnout
from turnout.core.schedules import StepAfter
from turnout.experiment import Experiment, read_cell, run_experiment
from turnout.results import metrics
from turnout.results.files import cell_folder
from turnout.results.writer import REFERENCE_RATE
from turnout.selectors import Random


class Quota(Random):
    """A plug-in whose quota is a number of clients, and nothing that turnout knows about."""

    def __init__(self, *, quota: int = 5, eta: str = "none") -> None:
        self.quota = quota
        self.eta = eta


class Promising(Random):
    def quota_at(self, round: int) -> float:
        return 0.25

    def guaranteed_rate(self) -> float:
        return 0.05

    def regret_bound(self, n_rounds: int, cohort_size: int, n_clients: int) -> np.ndarray:
        return np.arange(n_rounds, dtype=np.float64) * cohort_size * n_clients


def cell_of(folder, selector, **changes):
    sizes = {"world": "e3cs", "n_clients": 12, "cohort_size": 3, "n_rounds": 30, "seeds": 1}
    made = Experiment([f"mine={selector}"], **(sizes | changes))
    grid = run_experiment(made, folder, n_jobs=1)
    assert grid.failed == ()
    return read_cell(cell_folder(folder, "mine", 0))


def test_a_parameter_called_quota_is_no_promise(tmp_path):
    cell = cell_of(tmp_path, f"{__name__}:Quota")
    assert cell.settings.parameters["quota"] == 5
    bare = cell_of(tmp_path / "random", "random")
    np.testing.assert_array_equal(cell.curves["regret"], bare.curves["regret"])
    assert "bound" not in cell.curves
    assert cell.summary["regret_bound"] is None


def test_declared_promises_are_recorded(tmp_path):
    cell = cell_of(tmp_path, f"{__name__}:Promising")
    np.testing.assert_array_equal(cell.curves["bound"], np.arange(30.0) * 36)
    backlog = cell.run.backlog(0.05)
    np.testing.assert_array_equal(cell.curves["backlog_mean"], backlog.mean)
    assert cell.summary["backlog_rate"] == 0.05
    assert cell.summary["backlog_per_round"] == backlog.largest[-1] / 30
    free = cell_of(tmp_path / "random", "random")
    assert cell.curves["regret"][-1] != free.curves["regret"][-1]  # against another best allocation


def test_bounds_are_for_clients_that_are_always_there(tmp_path):
    cell = cell_of(tmp_path, f"{__name__}:Promising", world="volatile")
    assert "bound" not in cell.curves


def test_backlogs_without_a_promise_have_a_reference_rate(tmp_path):
    cell = cell_of(tmp_path, "random")
    assert cell.summary["backlog_rate"] == REFERENCE_RATE == 0.15
    np.testing.assert_array_equal(cell.curves["backlog_max"], cell.run.backlog(0.15).largest)


@pytest.mark.parametrize("rate", [0.15, 0.1])
def test_rbcs_f_is_counted_at_its_own_rate(rate, tmp_path):
    cell = cell_of(tmp_path, f"rbcs-f:rate={rate}", world="rbcs-f")
    assert cell.summary["backlog_rate"] == rate
    queues = json.loads(json.dumps(cell.run.backlog(rate).largest.tolist()))
    assert cell.curves["backlog_max"].tolist() == queues


def test_e3cs_promises_its_quota_and_theorem_1():
    selector = turnout.make("e3cs", quota=StepAfter(3, 0.0, 1.0), eta=0.5)
    assert [selector.quota_at(t) for t in range(5)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    share = [0.0, 0.0, 0.0, 1.0, 1.0]
    expected = metrics.theorem1_bound(share, 5, 3, 12, 0.5)
    np.testing.assert_array_equal(selector.regret_bound(5, 3, 12), expected)
    best = turnout.make("e3cs", eta="theorem-1", horizon=7)
    np.testing.assert_array_equal(
        best.regret_bound(7, 20, 12), metrics.theorem1_bound(0.5, 7, 12, 12)
    )
    assert best.guaranteed_rate() is None


@pytest.mark.parametrize("name", turnout.list_selectors())
def test_promises_are_rare(name):
    selector = turnout.make(name)
    promises = (
        selector.quota_at(0) > 0.0,
        selector.guaranteed_rate() is not None,
        selector.regret_bound(4, 2, 8) is not None,
    )
    expected = {
        "e3cs": (True, False, True),
        "guarded": (True, False, False),
        "rbcs-f": (False, True, False),
    }
    assert promises == expected.get(name, (False, False, False))


def test_the_reference_rate_is_that_of_rbcs_f():
    assert math.isclose(turnout.make("rbcs-f").guaranteed_rate(), REFERENCE_RATE)
