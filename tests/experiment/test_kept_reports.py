"""Reports through experiments: folders keep vectors when asked, what nobody reports is refused."""

from __future__ import annotations

import dataclasses
import json
from types import MappingProxyType

import numpy as np
import pytest

import turnout
from turnout.data import Digits, Shards
from turnout.experiment import Experiment, run_experiment
from turnout.experiment.codec import ConfigError
from turnout.results import files
from turnout.results.reader import read_cell
from turnout.training import Federation, Mlp, Training

SELECTORS = ["random", "divfl:sketch_size=4"]


def experiment(**changes):
    settings = {"selectors": SELECTORS, "world": "volatile", "n_clients": 20, "cohort_size": 5}
    return Experiment(**{**settings, "n_rounds": 12, "seeds": 1, **changes})


def reported(results):
    return {run.label: read_cell(run.path).run.reported for run in results.runs}


def test_vectors_are_kept_when_asked_and_only_then(tmp_path):
    plain = reported(run_experiment(experiment(), tmp_path / "plain", n_jobs=1))
    assert all("update_sketch" not in kept for kept in plain.values())
    asked = experiment(keep=["update_sketch"])
    results = run_experiment(asked, tmp_path / "kept", n_jobs=1)
    kept = reported(results)
    assert "update_sketch" not in kept["random"]  # it asks for none
    sketches = kept["divfl sketch_size=4"]["update_sketch"]
    assert sketches.shape == (60, 4)
    has_gap = np.isnan(sketches)
    assert (has_gap.any(axis=1) == has_gap.all(axis=1)).all()  # a vector is one report
    assert 0 < has_gap.all(axis=1).sum() < 60  # in this world some clients fail
    frame = turnout.open_runs(tmp_path / "kept")
    assert frame.estimate("success_ratio")


def test_a_run_that_goes_on_has_the_vectors_of_an_uninterrupted_one(tmp_path):
    settings = {"selectors": SELECTORS[1:], "keep": ["update_sketch"]}
    longer = experiment(**settings, n_rounds=24)
    whole = reported(run_experiment(longer, tmp_path / "whole", n_jobs=1))
    run_experiment(experiment(**settings), tmp_path / "part", n_jobs=1)
    resumed = reported(run_experiment(longer, tmp_path / "part", n_jobs=1))
    for label, kept in whole.items():
        assert kept["update_sketch"].shape == (120, 4)
        np.testing.assert_array_equal(kept["update_sketch"], resumed[label]["update_sketch"])


def test_what_is_kept_is_part_of_the_folder_and_not_of_the_world(tmp_path):
    plain, asked = experiment(), experiment(keep=["update_sketch"])
    assert plain.world_id == asked.world_id
    assert plain.digest != asked.digest
    assert "keep" not in plain.table()
    again = Experiment.from_table(json.loads(json.dumps(asked.table())))
    assert again.keep == ("update_sketch",)
    run_experiment(plain, tmp_path, n_jobs=1)
    with pytest.raises(turnout.TurnoutError, match="keep"):
        run_experiment(asked, tmp_path, n_jobs=1)


@pytest.mark.parametrize("keep", ["update_sketch", [], [3], ["a", "a"]])
def test_odd_lists_are_refused(keep):
    with pytest.raises(ConfigError, match="keep"):
        experiment(keep=keep)


def test_what_nobody_asks_for_is_refused_before_anything_runs(tmp_path):
    asked = experiment(keep=["update_norm"])
    with pytest.raises(
        turnout.InvalidInput,
        match=r"'update_norm', which no selector .*\. They ask for update_sketch",
    ):
        run_experiment(asked, tmp_path / "none", n_jobs=1)
    with pytest.raises(ConfigError, match=r"keep.*overlap"):
        experiment(
            selectors=["random"],
            keep=["update_sketch"],
            schedule={"kind": "buffered", "size": 3, "concurrency": 6},
        )


class Batteries(turnout.Selector):
    """Learns from something that neither worlds nor training report."""

    needs_metrics = frozenset({"loss", "battery"})

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


class Content(Batteries):
    """Can do without it."""

    optional_metrics = MappingProxyType({"battery": "it takes anyone"})


class Phones(Federation):
    """Reports it."""

    def work(self, selection, is_completed):
        done = super().work(selection, is_completed)
        done.metrics["battery"] = np.ones(is_completed.size)
        return done


RECIPE = Training(Digits(), Shards(per_client=2), model=Mlp((4,)))


@pytest.mark.parametrize("training", [None, RECIPE])
def test_a_metric_that_nobody_reports_is_refused_before_the_first_round(training):
    path = f"{__name__}:Batteries"
    asked = experiment(selectors=[path], training=training, n_rounds=1)
    with pytest.raises(turnout.core.errors.MissingMetric, match="'battery', and here they report"):
        run_experiment(asked, n_jobs=1)
    can_do_without = experiment(selectors=[f"{__name__}:Content"], training=training, n_rounds=1)
    assert not run_experiment(can_do_without, n_jobs=1).failed


def test_participants_with_work_of_their_own_may_report_anything():
    own = dataclasses.replace(RECIPE, participants=f"{__name__}:Phones")
    asked = experiment(
        selectors=[f"{__name__}:Batteries"], training=own, n_rounds=2, keep=["battery"]
    )
    assert not run_experiment(asked, n_jobs=1).failed


def test_a_missing_column_says_how_it_is_filled():
    recipe = dataclasses.replace(RECIPE, label_noise=None)
    for selector, training, words in (
        ("fed-cbs", recipe, r"for data with classes, and label_noise=None leaves it out"),
        ("rbcs-f", None, r"LinearContextual\(\) fills it"),
    ):
        asked = experiment(selectors=[selector], training=training, world="e3cs")
        with pytest.raises(turnout.MissingColumn, match=words):
            run_experiment(asked, n_jobs=1)


def test_damaged_vectors_are_named(tmp_path):
    asked = experiment(keep=["update_sketch"], selectors=SELECTORS[1:])
    (run,) = run_experiment(asked, tmp_path, n_jobs=1).runs
    columns = files.read_arrays(run.path / files.SELECTIONS)
    columns["reported.update_sketch"] = columns["reported.update_sketch"][:-1]
    np.savez(run.path / files.SELECTIONS, **columns)
    with pytest.raises(files.DamagedFile, match=r"reported\.update_sketch"):
        read_cell(run.path)
