"""The bars of pace's second version: what reaches them, what misses them, what is open."""

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from turnout.experiment.variants import variants_of
from turnout.studies.arena_tables import fedbuff_tables, overlap_table
from turnout.studies.arena_tasks import Arena, Measures, tasks_in, tasks_named
from turnout.studies.bars import bars, bars_of, overlap_bars_of, ratio_to_before
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
    found = bars_of(arena(tasks, random=500.0, pace_3=300.0, pace=400.0, oracle=200.0), tasks)
    assert [bar.is_reached for bar in found] == [True] * 7
    assert found[0].measured.startswith("0.75 (")
    assert found[0].measured.endswith("16 of 16 tasks")


def test_bars_that_are_missed():
    tasks = tasks_named()
    slow = arena(tasks, random=500.0, pace_3=520.0, pace=510.0, oracle=200.0)
    for task in tasks:
        slow.trials(task).schemes[bars()["selector"]].measures[Measures.of(task).least_share][:] = (
            0.4
        )
    found = bars_of(slow, tasks)
    assert [bar.is_reached for bar in found] == [False, False, False, False, False, True, False]
    assert "volatile" in found[4].measured


def test_without_results_and_close_to_the_bar_they_are_open():
    tasks = tasks_named()
    assert {bar.is_reached for bar in bars_of(Arena(), tasks)} == {None}
    close = arena(tasks_named(["reshuffle"]), random=500.0, pace_3=340.0, pace=400.0)
    assert bars_of(close, tasks)[2].is_reached is None  # 0.85 with an interval around it


def test_versions_are_paired_by_seed_and_cut_off_where_random_ended():
    (task,) = tasks_named(["reshuffle"])
    found = arena([task], random=500.0, pace_3=400.0, pace=800.0)
    schemes, names = found.trials(task).schemes, Measures.of(task)
    schemes[bars()["selector"]] = schemes[bars()["selector"]].rows([3, 4, 5])  # seeds 3, 4 and 5
    schemes["pace"].measures[names.time][:] = [math.nan, 1.0, 1.0, 800.0, math.inf, 2000.0]
    schemes[bars()["selector"]].measures[names.time][:] = [400.0, 500.0, 500.0]
    assert ratio_to_before(found, [task])["reshuffle"].value == pytest.approx(0.5)


PLAN = {
    "tasks": [task.plain for task in tasks_in("overlap")],
    "seeds": len(SEEDS),
    "bars": {
        "speedup_over_synchronous_random": 1.5,
        "sooner_than_buffered_random_tasks": 5,
        "lower_tasks": 0,
        "least_share": 0.5,
    },
}


def test_the_plan_of_overlap_has_these_bars():
    path = Path(__file__).parents[2] / "results" / "overlap" / "plan.toml"
    plan = tomllib.loads(path.read_text())
    assert plan["bars"].keys() == PLAN["bars"].keys()
    assert plan["tasks"] == PLAN["tasks"]


def test_bars_of_overlap_that_are_reached():
    buffered = arena(tasks_in("overlap"), random=400.0, pace=300.0)
    synchronous = arena(tasks_in("first"), random=600.0, pace=500.0)
    found = overlap_bars_of(buffered, synchronous, PLAN)
    assert [bar.is_reached for bar in found] == [True] * 4
    assert found[0].measured.startswith("2.00 times (")  # 600 / 300
    text = overlap_table(buffered, synchronous)
    assert len(text.rows) == 9
    assert text.rows[0][-2:] == ("0.50 ▲", "0.75 ▲")


def test_bars_of_overlap_that_are_missed():
    buffered = arena(tasks_in("overlap"), random=400.0, pace=450.0)
    synchronous = arena(tasks_in("first"), random=600.0)
    for task in tasks_in("overlap"):
        measures, names = buffered.trials(task).schemes["pace"].measures, Measures.of(task)
        measures[names.least_share][:] = 0.4
        measures[names.worst_tenth] -= 0.1 + np.linspace(0.0, 0.01, 6)
    found = overlap_bars_of(buffered, synchronous, PLAN)
    assert [bar.is_reached for bar in found] == [False] * 4
    assert "volatile" in found[2].measured


def test_bars_of_overlap_are_open_until_everything_was_run():
    first, others = tasks_in("overlap")[:1], tasks_in("first")
    synchronous = arena(others, random=600.0)
    some = overlap_bars_of(arena(first, random=400.0, pace=300.0), synchronous, PLAN)
    assert {bar.is_reached for bar in some} == {None}
    assert some[0].measured.startswith("2.00 times (")
    everything = arena(tasks_in("overlap"), random=400.0, pace=300.0)
    more_seeds = overlap_bars_of(everything, synchronous, {**PLAN, "seeds": 7})
    assert {bar.is_reached for bar in more_seeds} == {None}
    assert {bar.is_reached for bar in overlap_bars_of(Arena(), synchronous, PLAN)} == {None}
    assert overlap_table(Arena(), synchronous).rows == ()


def _column(table, heading):
    place = table.headings.index(heading)
    return [row[place] for row in table.rows]


def test_claims_of_fedbuff_are_judged_between_its_schedules():
    path = Path(__file__).parents[2] / "results" / "fedbuff" / "plan.toml"
    plan = tomllib.loads(path.read_text(encoding="utf-8")) | {"seeds": 6}
    made = Arena()
    slow, fast, faster = tasks_in("fedbuff")
    made.file.parts |= arena([slow], random=300.0).file.parts
    made.file.parts |= arena([fast], other=1.0, random=100.0).file.parts
    made.file.parts |= arena([faster], other=1.0, another=1.0, random=90.0).file.parts
    schedules, claims = fedbuff_tables(made, plan)
    assert _column(schedules, "updates to it") == ["6,500", "500", "50"]
    assert _column(claims, "verdict") == ["holds", "fails"]
    assert _column(claims, "here")[0].startswith("3.00x (2.9")
    schedules, claims = fedbuff_tables(made, plan | {"seeds": 7})
    assert schedules.rows
    assert not claims.rows  # too few seeds give no verdict
    assert not any(table.rows for table in fedbuff_tables(Arena(), plan))


def test_the_plan_of_fedbuff_has_the_rates_of_its_tasks():
    path = Path(__file__).parents[2] / "results" / "fedbuff" / "plan.toml"
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    for task in tasks_in("fedbuff"):
        training, grid = task.table["training"], plan["grid"][task.label]
        chosen = {"lr": training["local"]["lr"], "server_lr": training.get("server_lr", 1.0)}
        assert chosen == plan["chosen"][task.label]
        assert all(chosen[name] in grid[name] for name in chosen)
