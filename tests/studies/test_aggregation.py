"""The study of aggregation: its plan, what it runs, and its verdicts from made-up results."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from turnout.studies.aggregation import (
    MEAN,
    Arm,
    can_run,
    comparisons,
    complete_seeds,
    goals_of_rule,
    judged_runs,
    pays,
    plan,
    rates_of,
    run_missing,
    tuned,
    tuning_runs,
    versus,
)
from turnout.studies.arena_tasks import Arena, Measures, tasks_named
from turnout.studies.trials import SchemeResults, Trials

ROOT = Path(__file__).parents[2]
RULES = tuple(plan()["rules"])


def filled(time, accuracy=lambda one, selector: 0.8, runs=None):
    """Return an arena whose runs have these times and accuracies."""
    arena = Arena()
    for one in runs:
        task = one.arm.task(one.task)
        names, old = Measures.of(task), arena.trials(task)
        schemes = dict(old.schemes) if old else {}
        for selector in one.selectors:
            if not can_run(one.arm.rule, selector):
                continue
            own = {
                names.time: time(one, selector),
                names.rounds: 1.0,
                names.length: 1000.0,
                names.accuracy: accuracy(one, selector),
            }
            before = schemes.get(selector)
            seeds = (*before.seeds, one.seed) if before else (one.seed,)
            values = {
                name: np.append(before.measures[name] if before else [], value)
                for name, value in own.items()
            }
            schemes[selector] = SchemeResults(seeds, 10, values, {}, {})
        arena.file.parts[(task.label, 1)] = Trials({"n_rounds": 120, "selectors": []}, schemes, {})
    return arena


def merged(*arenas):
    both = Arena()
    for arena in arenas:
        both.file.parts |= arena.file.parts
    return both


def test_the_plan_keeps_tuning_and_reporting_apart():
    own, tuning = plan(), plan()["tuning"]
    assert not set(own["tasks"]) & set(tuning["tasks"])
    assert not set(own["seeds"]) & set(tuning["seeds"])
    assert min(tuning["seeds"]) >= 100
    assert all(task.reports for task in tasks_named(own["tasks"]))
    assert not any(task.reports for task in tasks_named(tuning["tasks"]))
    assert own["rules"][MEAN] == {"kind": "mean-returned"}
    assert 1.0 in tuning["rates"]


def test_every_arm_is_a_recipe_of_its_own():
    tables = [
        one.arm.task(one.task).experiment(one.selectors, [one.seed]).table()
        for one in tuning_runs()
    ]
    recipes = {
        (t["name"], str(t["training"]["aggregation"]), t["training"]["server_lr"]) for t in tables
    }
    assert len(recipes) == len(tables)
    assert all(table["n_rounds"] == plan()["rounds"] for table in tables)
    assert not can_run("inverse-probability", "pace")
    assert can_run("inverse-probability", "e3cs")


def test_the_rate_with_the_shortest_time_is_taken():
    best = dict(zip(RULES, (1.5, 2.25, 1.0, 3.4, 1.5), strict=True))

    def time(one, selector):
        return 100.0 if one.arm.rate == best[one.arm.rule] else 200.0

    arena = filled(time, runs=tuning_runs())
    assert rates_of(arena) == best
    assert tuned(arena)["running-rates"][2.25] == pytest.approx(0.5)
    lacking = next(iter(arena.file.parts))
    del arena.file.parts[lacking]
    assert rates_of(arena) is None  # not before every run is there


def test_a_run_that_never_arrives_counts_with_the_length_of_the_others():
    runs = [one for one in judged_runs(dict.fromkeys(RULES, 1.5)) if one.seed == 20]

    def time(one, selector):
        return math.inf if one.arm.rule == "last-updates" else 500.0

    arena = filled(time, runs=runs)
    found = versus(arena, "volatile", "random", Arm("last-updates", 1.5), Arm(MEAN, 1.5), [20])
    assert found.sooner == pytest.approx([math.log(0.5)])
    assert found.never == 1


def results(factor, gain, n_seeds=5):
    """Return comparisons where one rule takes ``factor`` of the time and gains ``gain``."""
    rates = dict.fromkeys(RULES, 1.5)
    rng = np.random.default_rng(0)

    def time(one, selector):
        own = factor if one.arm.rule == "running-rates" else 1.0
        return 500.0 * own * float(np.exp(0.005 * rng.standard_normal()))

    def accuracy(one, selector):
        own = gain if one.arm.rule == "running-rates" else 0.0
        return 0.8 + own + 0.0005 * float(rng.standard_normal())

    some = plan()["seeds"][:n_seeds]
    runs = [one for one in judged_runs(rates) if one.seed in some]
    arena = filled(time, accuracy, runs)
    return arena, rates, comparisons(arena, rates)


@pytest.mark.parametrize(
    ("factor", "gain", "verdict"),
    [
        (0.8, 0.0, True),
        (1.0, 0.02, True),
        (1.0, 0.0, False),
        (0.8, -0.02, False),
        (0.95, 0.0, None),
    ],
)
def test_a_rule_pays_by_the_bars_of_the_plan(factor, gain, verdict):
    _, _, found = results(factor, gain)
    assert pays(goals_of_rule(found, "running-rates")) is verdict
    whole = next(one for one in found if one.rule == "running-rates" and not one.selector)
    assert whole.n_runs == 3 * 2 * 5
    assert whole.time.value == pytest.approx(factor, rel=0.02)
    assert whole.gain.value == pytest.approx(gain, abs=0.002)


def test_only_whole_seeds_are_judged():
    arena, rates, found = results(0.8, 0.0, n_seeds=3)
    assert complete_seeds(arena, rates) == [20, 21, 22]
    del arena.file.parts[(Arm("online-weights", 1.5).task("volatile").label, 1)]
    assert complete_seeds(arena, rates) == []
    assert comparisons(arena, rates) == []
    plain = [one for one in found if one.rule == MEAN]
    assert {one.rate for one in plain} == {1.0}


def test_missing_runs_are_run_and_kept_once(tmp_path, monkeypatch):
    ran = []

    def run(experiment, folder, **options):
        ran.append((experiment.name, tuple(experiment.labels), tuple(experiment.seeds)))

    monkeypatch.setattr("turnout.studies.aggregation.run_experiment", run)
    monkeypatch.setattr("turnout.studies.arena_tasks.unfit", lambda experiment: {})
    runs = list(tuning_runs())[:2]
    run_missing(Arena(), tmp_path / "arena.json", tmp_path / "runs", iter(runs))
    assert ran == [(f"arena: {one.arm.task(one.task).label}", ("random",), (100,)) for one in runs]


def page_builder():
    spec = importlib.util.spec_from_file_location(
        "build_aggregation", ROOT / "docs" / "build_aggregation.py"
    )
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build


def test_the_page_says_what_was_found_and_what_is_missing():
    build = page_builder()
    assert "Not judged yet" in build.page(Arena())
    best = filled(lambda one, _: 100.0 if one.arm.rate == 1.5 else 200.0, runs=tuning_runs())
    judged, _, _ = results(0.8, 0.0)
    text = build.page(merged(best, judged))
    assert "`running-rates`: pays" in text
    assert "5 of 5 planned" in text
    assert "▲" in text
    assert "But with" not in text
    kept = Arena.read(build.RESULTS)
    assert build.PAGE.read_text(encoding="utf-8") == build.page(kept)


def test_the_page_names_the_selector_with_which_a_rule_that_pays_is_slower():
    build = page_builder()
    best = filled(lambda one, _: 100.0 if one.arm.rate == 1.5 else 200.0, runs=tuning_runs())
    rng = np.random.default_rng(0)

    def time(one, selector):
        own = (1.4 if selector == "pace" else 0.6) if one.arm.rule == "last-updates" else 1.0
        return 500.0 * own * float(np.exp(0.005 * rng.standard_normal()))

    judged = filled(time, runs=judged_runs(dict.fromkeys(RULES, 1.5)))
    text = build.page(merged(best, judged))
    assert "But with `pace`, `last-updates` takes 1.40 times as long" in text
    assert "But with `random`" not in text
