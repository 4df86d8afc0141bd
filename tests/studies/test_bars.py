"""The bars of pace's second version: what reaches them, what misses them, what is open."""

import math

import numpy as np
import pytest

from turnout.experiment.variants import variants_of
from turnout.studies.arena_tasks import Arena, Measures, tasks_in, tasks_named
from turnout.studies.bars import bars, bars_of, ratio_to_before
from turnout.studies.trials import SchemeResults, Trials

SEEDS = tuple(range(6))


def arena(tasks, **times):
    """Return results in which every run takes these times, with a little noise, of 1,000 s."""
    made = Arena()
    for task in tasks:
        names, noise = Measures.of(task), np.random.default_rng(0).normal(0.0, 0.01, 6)
        schemes = {}
        for shift, (label, seconds) in enumerate(times.items()):
            label = label.replace("_", "-")
            flat = np.full(6, 0.8)
            measures = {
                names.time: seconds * np.exp(np.roll(noise, shift)),
                names.rounds: np.full(6, 50.0),
                names.length: np.full(6, 1000.0),
                names.accuracy: flat + np.roll(noise, shift),
                names.worst_tenth: flat,
                names.least_share: np.full(6, 0.6),
                names.wasted: np.zeros(6),
            }
            schemes[label] = SchemeResults(SEEDS, 10, measures, {}, {})
        table = task.experiment(variants_of("random"), SEEDS).table()
        made.file.parts[(task.label, 1)] = Trials(table, schemes, {})
    return made


def test_bars_are_about_tasks_and_selectors_that_exist():
    labels = {task.label for task in tasks_named() if task.reports}
    assert set(bars()["in_tasks"]) <= labels
    (ours,) = variants_of(bars()["selector_is"])
    assert ours.label == bars()["selector"]
    tuned = {task.label for task in tasks_named() if not task.reports}
    assert tuned == {"contexts", "scarce labels", "data only"}
    assert not any(task.reports for task in tasks_in("tuning"))


def test_bars_that_are_reached():
    tasks = tasks_named()
    found = bars_of(arena(tasks, random=500.0, pace_2=300.0, pace=400.0, oracle=200.0), tasks)
    assert [bar.is_reached for bar in found] == [True] * 7
    assert found[0].measured.startswith("0.75 (")
    assert found[0].measured.endswith("16 of 16 tasks")


def test_bars_that_are_missed():
    tasks = tasks_named()
    slow = arena(tasks, random=500.0, pace_2=520.0, pace=510.0, oracle=200.0)
    for task in tasks:
        slow.trials(task).schemes["pace-2"].measures[Measures.of(task).least_share][:] = 0.4
    found = bars_of(slow, tasks)
    assert [bar.is_reached for bar in found] == [False, False, False, False, False, True, False]
    assert "volatile" in found[4].measured


def test_without_results_and_close_to_the_bar_they_are_open():
    tasks = tasks_named()
    assert {bar.is_reached for bar in bars_of(Arena(), tasks)} == {None}
    close = arena(tasks_named(["reshuffle"]), random=500.0, pace_2=340.0, pace=400.0)
    assert bars_of(close, tasks)[2].is_reached is None  # 0.85 with an interval around it


def test_versions_are_paired_by_seed_and_cut_off_where_random_ended():
    (task,) = tasks_named(["reshuffle"])
    found = arena([task], random=500.0, pace_2=400.0, pace=800.0)
    schemes, names = found.trials(task).schemes, Measures.of(task)
    schemes["pace-2"] = schemes["pace-2"].rows([3, 4, 5])  # seeds 3, 4 and 5
    schemes["pace"].measures[names.time][:] = [math.nan, 1.0, 1.0, 800.0, math.inf, 2000.0]
    schemes["pace-2"].measures[names.time][:] = [400.0, 500.0, 500.0]
    assert ratio_to_before(found, [task])["reshuffle"].value == pytest.approx(0.5)
