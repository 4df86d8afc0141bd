"""Run folders, commands and reports of runs whose rounds overlap."""

from __future__ import annotations

import json

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.experiment import Experiment, run_experiment
from turnout.experiment.config import ConfigError
from turnout.results import files
from turnout.results.metrics import guarantee
from turnout.results.reader import read_cell
from turnout.worlds import Buffered, HingeWeight, SemiSynchronous, Synchronous

BUFFERED = {"kind": "buffered", "size": 4, "concurrency": 10}


def experiment(n_rounds=12, **settings):
    settings = {"world": "volatile", "seeds": 1, "schedule": BUFFERED, **settings}
    return Experiment(["pace"], n_rounds=n_rounds, **settings)


@pytest.mark.parametrize("training", [None, {"evaluate_every": 1}])
def test_a_run_that_goes_on_with_work_in_flight_is_the_same(tmp_path, training):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_experiment(experiment(9, training=training), whole, n_jobs=1)
    run_experiment(experiment(5, training=training), parts, n_jobs=1)
    run_experiment(experiment(9, training=training), parts, n_jobs=1)
    cell = "pace/seed-0"
    for name in (files.SELECTIONS, files.STATE):
        one, two = (files.read_arrays(folder / cell / name) for folder in (whole, parts))
        assert one.keys() == two.keys()
        for key in one.keys() - {"cell.seconds"}:
            if training is not None and key.startswith("measured."):
                continue  # the last round of the short run measures more
            np.testing.assert_array_equal(one[key], two[key], err_msg=key)


def test_a_folder_has_a_row_for_each_aggregation_and_the_metrics(tmp_path):
    results = run_experiment(experiment(), tmp_path / "r", n_jobs=1)
    cell = read_cell(tmp_path / "r" / "pace" / "seed-0")
    summary = cell.summary
    assert summary["cep"] == 12 * 4
    assert summary["at_work"] == pytest.approx(10.0)
    assert summary["idle_places"] == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < summary["wasted_share"] < 1.0
    assert summary["regret"] is None
    run = cell.choices
    assert run is not None
    assert run.overlaps
    assert summary["staleness"] == pytest.approx(run.staleness[run.completed].mean())
    lines = (tmp_path / "r" / "pace" / "seed-0" / files.ROUNDS).read_text().splitlines()
    assert len(lines) == 12
    assert {"staleness", "at_work"} <= json.loads(lines[3]).keys()
    assert run.first(5).staleness.size == run.offsets[5]
    with pytest.raises(InvalidInput, match="overlap"):
        guarantee(run)
    assert not results.failed


def test_a_synchronous_folder_has_nothing_new(tmp_path):
    run_experiment(experiment(4, schedule="synchronous"), tmp_path / "r", n_jobs=1)
    cell = tmp_path / "r" / "pace" / "seed-0"
    assert "schedule" not in json.loads((cell / files.CONFIG).read_text())
    assert "staleness" not in files.read_arrays(cell / files.SELECTIONS)
    assert "staleness" not in json.loads((cell / files.SUMMARY).read_text())


def test_identities_of_synchronous_experiments_are_as_before():
    plain = Experiment(["random"], n_rounds=5)
    assert Experiment(["random"], n_rounds=5, schedule=Synchronous()).digest == plain.digest
    other = Experiment(["random"], n_rounds=5, schedule=Buffered(2, 4))
    assert other.digest != plain.digest
    assert Experiment.from_table(other.table()) == other


@pytest.mark.parametrize(
    "schedule",
    [
        Buffered(3, 9, HingeWeight(1.0, 2.0)),
        Buffered(1, 3, mixes=True),
        SemiSynchronous(4.0),
        Synchronous("use"),
    ],
)
def test_schedules_survive_a_table(schedule):
    made = Experiment(["random"], n_rounds=5, schedule=schedule)
    assert Experiment.from_table(made.table()).schedule == schedule


@pytest.mark.parametrize(
    ("schedule", "key"),
    [
        ({"kind": "buffered", "size": 10, "concurrency": 5}, "schedule.concurrency"),
        ({"kind": "semi-synchronous", "period_s": 0}, "schedule.period_s"),
        ({"kind": "bufferd"}, "schedule.kind"),
        ({"kind": "buffered", "sise": 3}, "schedule.sise"),
    ],
)
def test_a_wrong_table_names_the_key(schedule, key):
    with pytest.raises(ConfigError) as error:
        experiment(schedule=schedule)
    assert error.value.field == key
