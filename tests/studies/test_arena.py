"""The arena: tasks that run, results that are kept, verdicts that can fail."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from turnout import InvalidInput, names, simulate
from turnout.cli.app import app
from turnout.core.files import DataMissing
from turnout.experiment import run_experiment
from turnout.experiment.codec import encode
from turnout.experiment.variants import variants_of
from turnout.studies import run_arena
from turnout.studies.arena_tables import energy_table, overall_table, page_of, task_table
from turnout.studies.arena_tasks import (
    ENERGY,
    GROUPS,
    Arena,
    Measures,
    task_labels,
    tasks_in,
    tasks_named,
)
from turnout.studies.standings import (
    Side,
    duels_of,
    goals_of,
    overall_of,
    sentence_of,
    share_won,
    standings,
    standings_text,
)
from turnout.studies.trials import Curve, ResultsError, SchemeResults, Trials

SEEDS = range(6)
ROOT = Path(__file__).parents[2]


def kept(**times):
    """Return an arena in which every task has these times, one per seed, in 1,000 s of runs."""
    arena = Arena()
    for task in tasks_in("first"):
        measures = Measures.of(task)
        noise = np.random.default_rng(0).normal(0.0, 0.01, len(SEEDS))
        schemes = {}
        for label, seconds in times.items():
            values = np.asarray(seconds, dtype=float) * np.exp(np.roll(noise, len(label)))
            flat = np.full(len(SEEDS), 0.8) + noise
            numbers = {
                measures.time: values,
                measures.rounds: values,
                measures.length: np.full(len(SEEDS), 1000.0),
                measures.accuracy: flat - 0.1 * (1.0 + noise - noise.mean()) * (label == "oort"),
                measures.worst_tenth: flat,
                measures.least_share: np.full(len(SEEDS), 0.1 if label == "oort" else 0.7),
                measures.wasted: np.zeros(len(SEEDS)),
            }
            schemes[label] = SchemeResults(tuple(SEEDS), 10, numbers, {}, {})
        variants = [variant for label in times for variant in variants_of(label)]
        table = task.experiment(variants, SEEDS).table()
        arena.file.update(task.label, 1, Trials(table, schemes, {}))
    return arena


def test_energy_is_compared_as_time_is_with_joules_for_seconds():
    (task,) = tasks_in("energy")
    arena, names = Arena(), Measures.by_energy(task)
    assert names.length == "energy-j"
    assert not any(other.has_energy for other in tasks_in("first", "harder", "overlap", "tuning"))
    logs, schemes = np.array([-0.1, 0.0, 0.1, 0.0, 0.0, 0.0]), {}
    for label, joules in (("random", np.full(6, 2e6)), ("pace", 1e6 * np.exp(logs))):
        whole = np.full(6, 4e6)
        values = {
            Measures.of(task).time: joules / 1e3,
            Measures.of(task).length: whole / 1e3,
            names.time: joules,
            names.length: whole,
            names.accuracy: np.full(6, 0.8),
            names.least_share: np.full(6, 0.7),
        }
        values |= dict(zip(ENERGY, (np.full(6, 1500.0), np.full(6, 9e4)), strict=True))
        schemes[label] = SchemeResults(tuple(SEEDS), 10, values, {}, {})
    table = task.experiment(["random", "pace"], SEEDS).table()
    arena.file.update(task.label, 1, Trials(table, schemes, {}))
    rows = [
        dict(zip(t.headings, row, strict=True))
        for t in [energy_table(arena, task)]
        for row in t.rows
    ]
    half = 2.5706 * logs.std(ddof=1) / np.sqrt(6)  # Student's t with 5 degrees of freedom
    low, high = 0.5 * np.exp(-half), 0.5 * np.exp(half)
    assert rows[1]["energy / random"] == f"0.50 ({low:.2f} to {high:.2f})"
    assert rows[0]["energy / random"] == "1.00 (1.00 to 1.00)"
    assert rows[0]["energy to 78%, kJ"] == "2,000"
    assert rows[1]["per reply, kJ"] == "1.50 ± 0.00"
    assert rows[1]["most of a client, kJ"] == "90 ± 0"
    assert energy_table(Arena(), task).rows == ()


@pytest.mark.parametrize("label", task_labels())
def test_each_task_is_an_experiment_that_can_be_made(label):
    (task,) = tasks_named([label])
    experiment = task.experiment(["random", "pace"], [0], is_quick=True)
    assert experiment.training is not None
    assert experiment.training.target_accuracy == (task.target,)
    assert experiment.n_rounds == task.table["n_rounds"] // 4


def test_the_first_nine_and_the_harder_ones_report_and_others_only_by_name():
    groups = {group: tasks_in(group) for group in GROUPS}
    assert [len(tasks) for tasks in groups.values()] == [9, 10, 9, 3, 1, 2]
    assert tasks_named() == groups["first"] + groups["harder"]
    assert tasks_named(["tuning: change"]) == groups["tuning"][:1]
    assert tasks_named(["overlap"]) == groups["overlap"]
    assert tasks_named(["liars", "tuning"]) == (*tasks_named(["liars"]), *groups["tuning"])


def test_buffered_tasks_are_the_first_nine_with_as_many_replies_and_evaluations():
    plan = tomllib.loads((ROOT / "results" / "overlap" / "plan.toml").read_text())
    buffered = tasks_in("overlap")
    assert [task.plain for task in buffered] == plan["tasks"]
    for task in buffered:
        (before,) = tasks_named([task.plain])
        own = task.experiment(["random"], [0])
        plain = before.experiment(["random"], [0])
        schedule = own.schedule
        assert schedule.size == max(1, int(plan["buffered"]["size"] * schedule.concurrency))
        assert encode(schedule.staleness) == plan["buffered"]["staleness"]
        n_replies = plain.n_rounds * plain.cohort_size
        assert own.n_rounds * schedule.size == pytest.approx(n_replies, abs=schedule.size)
        for name in ("evaluate_every", "evaluate_clients_every"):
            n_before = plain.n_rounds / getattr(plain.training, name)
            assert own.n_rounds / getattr(own.training, name) == pytest.approx(n_before, rel=0.2)
        assert own.policy.deadline() == plain.policy.deadline()
        assert (task.target, task.is_tuned) == (before.target, before.is_tuned)


def test_buffered_worlds_change_after_as_many_places():
    worlds = {task.plain: task.experiment(["random"], [0]).world for task in tasks_in("overlap")}
    assert worlds["swap"].volatility.at == worlds["swap"].timing.at == 400
    assert worlds["liars"].volatility.at == (500,)
    assert worlds["phones"].availability.round_s == pytest.approx(600.0 / 13)  # 13 are asked
    (plain,) = tasks_named(["mixed"])
    assert worlds["mixed"] == plain.experiment(["random"], [0]).world


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [task for task in tasks_in("overlap") if task.plain != "phones"],  # its traces are not here
    ids=lambda task: task.plain,
)
def test_as_many_clients_are_at_work_as_in_synchronous_rounds_of_random(task):
    (plain,) = tasks_named([task.plain])
    busy = []
    for seed in range(10):
        one = plain.experiment(["random"], [seed])  # whose choices and times no training changes
        run = simulate(
            "random",
            one.environment(seed),
            cohort_size=one.cohort_size,
            n_rounds=one.n_rounds,
            policy=one.policy,
        )
        busy.append(run.spent.sum() / run.length_s.sum())
    assert task.table["schedule"]["concurrency"] == round(np.mean(busy))


def test_an_unknown_task_is_named_with_the_nearest():
    with pytest.raises(InvalidInput, match="contexts"):
        tasks_named(["context"])


def test_records_against_random():
    arena = kept(random=[100.0] * 6, pace=[70.0] * 6, oort=[50.0] * 6, fedcs=[150.0] * 6)
    tasks = tasks_in("first")
    assert [duel.time for duel in duels_of(arena, tasks, "pace")] == [Side.BETTER] * 9
    assert {duel.accuracy for duel in duels_of(arena, tasks, "pace")} == {Side.LEVEL}
    assert sentence_of(duels_of(arena, tasks, "pace")) == (
        "Faster than random in 9 of 9, slower in none; final accuracy lower in none, worst tenth "
        "lower in none; unfair in none."
    )
    oort = sentence_of(duels_of(arena, tasks, "oort"))
    assert "accuracy lower in 9" in oort
    assert "unfair in 9" in oort
    assert "slower in 9" in sentence_of(duels_of(arena, tasks, "fedcs"))
    overall = overall_of(arena, tasks)
    assert list(overall) == ["oort", "pace", "random", "fedcs"]
    assert [own.rank.value for own in overall.values()] == [1.0, 2.0, 3.0, 4.0]
    assert overall["pace"].ratio.value == pytest.approx(0.7, rel=0.02)
    assert overall["pace"].ratio.low < 0.7 < overall["pace"].ratio.high + 0.02
    assert overall["pace"].improvement.value == 1.0
    assert overall["pace"].gain.value == pytest.approx(0.0)
    assert tuple(overall["oort"].gain) == pytest.approx((-0.1, -0.1, -0.1), abs=0.002)
    assert {round(duel.gain, 6) for duel in overall["oort"].duels} == {-0.1}
    assert len(overall_table(overall).rows) == 4


def test_noise_is_level_and_censored_runs_prove_nothing():
    noisy = [60.0, 140.0, 90.0, 110.0, 70.0, 130.0]
    never = [math.inf] * 6
    arena = kept(random=[100.0] * 6, pace=noisy, oort=never)
    tasks = tasks_in("first")
    assert {duel.time for duel in duels_of(arena, tasks, "pace")} == {Side.LEVEL}
    duels = duels_of(arena, tasks, "oort")
    assert {duel.time for duel in duels} == {Side.WORSE}  # at least ten times as long
    assert duels[0].ratio == pytest.approx(10.0, rel=0.05)
    assert duels[0].n_censored == 6
    assert "never" in task_table(arena, tasks[0]).rows[2][3]
    everyone = kept(random=never, pace=[100.0] * 6)
    assert {duel.time for duel in duels_of(everyone, tasks, "pace")} == {Side.BETTER}


def test_short_rounds_do_not_make_a_run_that_never_arrives_look_fast():
    tasks = tasks_named(["contexts"])
    arena = kept(random=[100.0] * 6, fedcs=[math.inf] * 6, oort=[2000.0] * 6)
    measures = arena.trials(tasks[0]).schemes["fedcs"].measures
    measures[Measures.of(tasks[0]).length][:] = 20.0  # its rounds are short, and it did not arrive
    overall = overall_of(arena, tasks)
    assert overall["fedcs"].ratio.value == pytest.approx(10.0, rel=0.02)  # as long as random's run
    assert overall["oort"].ratio.value == pytest.approx(10.0, rel=0.02)  # cut off there too
    assert overall["fedcs"].duels[0].time == Side.WORSE  # the test is of the same numbers
    assert (overall["fedcs"].n_never, overall["fedcs"].n_runs) == (6, 6)
    assert list(overall) == ["random", "fedcs", "oort"]
    row = overall_table(overall).rows[1]
    assert "6 of 6" in row


def with_curves(arena, task, label, times, accuracies):
    scheme = arena.trials(task).schemes[label]
    rounds = np.arange(1, len(times) + 1)
    scheme.curves["time"] = Curve(rounds, np.tile(times, (len(SEEDS), 1)))
    scheme.curves["accuracy"] = Curve(rounds, np.tile(accuracies, (len(SEEDS), 1)))


def test_accuracies_are_compared_when_the_shorter_run_ends():
    (task,) = tasks_named(["contexts"])
    arena = kept(random=[100.0] * 6, pace=[70.0] * 6)
    assert math.isnan(duels_of(arena, [task], "pace")[0].gain_at_time)  # older results
    arena.trials(task).schemes["pace"].measures[Measures.of(task).length][:] = 500.0
    with_curves(arena, task, "pace", [250.0, 500.0], [0.4, 0.7])
    with_curves(arena, task, "random", [400.0, 600.0, 1000.0], [0.5, 0.8, 0.9])
    assert duels_of(arena, [task], "pace")[0].gain_at_time == pytest.approx(0.2)  # 0.7 - 0.5
    early = arena.trials(task).paired_at("pace", "random", "accuracy", np.full(6, 100.0))
    assert [part.tolist() for part in early] == [[0.0] * 6] * 2  # nothing was evaluated yet


def test_what_can_be_won_is_the_lead_of_the_oracle_and_oracles_have_no_rank():
    tasks = tasks_named(["contexts"])
    arena = kept(random=[100.0] * 6, pace=[80.0] * 6)
    arena.trials(tasks[0]).schemes["oracle"] = arena.trials(tasks[0]).schemes["pace"]
    found = overall_of(arena, tasks)
    assert found["pace"].won == pytest.approx(1.0)
    assert math.isnan(found["oracle"].rank.value)
    assert found["pace"].rank.value == 1.0
    assert "oracle" not in json.loads(standings_text(found))
    assert share_won(0.8, 0.6) == 0.5
    assert share_won(1.1, 0.6) < 0.0
    assert math.isnan(share_won(0.8, 0.99))  # there is nothing to win


def test_results_of_older_versions_take_in_more_seeds():
    measures = {"time-to-0.5": np.array([1.0, 2.0])}
    older = SchemeResults((0, 1), 10, measures, {}, {})
    newer = SchemeResults(
        (2, 3),
        10,
        {**measures, "least-answered": np.ones(2)},
        {"time": Curve(np.arange(1, 3), np.ones((2, 2)))},
        {},
    )
    both = older.joined(newer.like(older))
    assert both.seeds == (0, 1, 2, 3)
    assert set(both.measures) == {"time-to-0.5"}
    again = SchemeResults((0, 1, 2), 10, {"least-answered": np.ones(3)}, {}, {})
    assert again.like(older) is again  # it replaces them


def test_the_bar_can_be_cleared_and_missed():
    tasks = tasks_in("first")
    arena = kept(random=[100.0] * 6, pace=[70.0] * 6, oort=[50.0] * 6)
    assert [goal.is_reached for goal in goals_of(arena, tasks, "pace")] == [True] * 7
    missed = {goal.says for goal in goals_of(arena, tasks, "oort") if not goal.is_reached}
    assert len(missed) == 2  # final accuracy and least share; nobody as unfair is faster
    assert "least share at least 0.5 of fair in every task" in missed
    slight = kept(random=[100.0] * 6, pace=[90.0] * 6, fedcs=[80.0] * 6)
    goals = [goal.is_reached for goal in goals_of(slight, tasks, "pace")]
    assert goals == [True, True, True, True, False, False, True]  # fedcs is as fair, not fairer


def test_who_is_faster_and_fairer_dominates_beyond_chance_or_by_the_means():
    tasks = tasks_in("first")
    arena = kept(random=[100.0] * 6, pace=[90.0] * 6, fedcs=[80.0] * 6)
    for task in tasks:
        shares = arena.trials(task).schemes["fedcs"].measures
        shares[Measures.of(task).least_share] += 0.1
    (_, *_, goal) = goals_of(arena, tasks, "pace")
    assert goal.is_reached is False
    assert "beyond chance: fedcs in volatile" in goal.measured
    noise = np.array([60.0, 140.0, 90.0, 60.0, 70.0, 110.0])
    unsure = kept(random=[100.0] * 6, pace=[100.0] * 6, fedcs=noise)
    for task in tasks:
        shares = unsure.trials(task).schemes["fedcs"].measures
        shares[Measures.of(task).least_share] += 0.1
    (_, *_, goal) = goals_of(unsure, tasks, "pace")
    assert goal.is_reached is None
    assert "beyond chance: none" in goal.measured


def test_a_page_has_record_tasks_and_bar():
    arena = kept(random=[100.0] * 6, pace=[70.0] * 6)
    page = page_of(arena, tasks_in("first"), "pace", "front.png")
    assert page.startswith("# pace in the arena\n\nFaster than random in 9 of 9")
    assert page.count("0.70 ▲") >= 1
    assert "![Time against fairness](front.png)" in page


def test_standings_of_the_release_are_of_registered_selectors():
    found = standings()
    assert {"random", "pace", "oort"} <= set(found) <= set(names())
    assert list(found) == sorted(found, key=lambda label: found[label].time[0])


def test_kept_results_of_other_parameters_are_refused(tmp_path):
    arena = kept(random=[100.0] * 6, pace=[70.0] * 6)
    path = tmp_path / "arena.json"
    arena.file.write(path)
    again = Arena.read(path)
    assert again.lacking(tasks_in("first"), variants_of("pace"), SEEDS, tmp_path) == []
    with pytest.raises(ResultsError, match=r"another protocol: pace\.haste is nothing .* and 3"):
        again.lacking(tasks_in("first"), variants_of("pace=pace:haste=3"), SEEDS, tmp_path)


@pytest.fixture
def small(monkeypatch):
    """The first task, on the embedded digits and short."""
    (task,) = tasks_named(["volatile"])
    training = {
        "source": "digits",
        "partition": {"kind": "iid"},
        "model": "logistic",
        "local": {"epochs": 1, "batch_size": 10, "lr": 0.1},
        "evaluate_every": 1,
        "target_accuracy": 0.8,
    }
    table = {**task.table, "n_rounds": 8, "n_clients": 20, "cohort_size": 5, "training": training}
    short = type(task)(task.label, task.title, task.what, table)
    monkeypatch.setattr("turnout.studies.arena.tasks_named", lambda labels: (short,))
    return short


def test_the_command_keeps_what_it_ran_and_takes_a_plug_in(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arena_entry.py").write_text(
        "from turnout.selectors import Random\n\n\nclass Mine(Random):\n    pass\n"
    )
    words = ["arena", "pace", "rbcs-f", "Mine=arena_entry:Mine", "--seeds", "2", "--jobs", "1"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "Mine: Faster than random in none of 1" in result.output
    assert "rbcs-f is left out" in result.output  # this world has no context
    kept_there = json.loads((tmp_path / "runs/arena/arena.json").read_text())
    assert list(kept_there["parts"][0]["schemes"]) == ["random", "pace", "Mine"]
    again = CliRunner().invoke(app, [*words, "--json"])
    content = json.loads(again.stdout)
    assert content["selectors"]["random"]["time_ratio"]["value"] == 1.0
    for figure in ("front", "accuracy", "profile"):
        assert (tmp_path / f"runs/arena/{figure}.png").exists()
    assert (tmp_path / "runs/arena/mine.md").read_text().startswith("# Mine in the arena")


def test_an_oracle_is_told_the_truth_and_its_answers_are_kept(small, tmp_path):
    found = run_arena(["oracle", "unfair-oracle"], seeds=2, out=tmp_path, n_jobs=1)
    assert set(found.overall) == {"random", "oracle", "unfair-oracle"}
    (duel,) = found.overall["unfair-oracle"].duels
    assert duel.least_share == 0.0
    assert 0.0 <= duel.least_answered <= 1.0
    assert not math.isnan(duel.gain_at_time)
    assert found.overall["oracle"].duels[0].is_fair


def test_nothing_kept_is_one_clear_line(small, tmp_path):
    result = CliRunner().invoke(app, ["arena", "--collect", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "run without --collect" in " ".join(result.output.split())


def test_the_python_call_returns_what_the_command_shows(small, tmp_path):
    notes = []
    found = run_arena(["pace", "rbcs-f"], seeds=2, out=tmp_path, n_jobs=1, notify=notes.append)
    assert list(found.arena.trials(small).schemes) == ["random", "pace"]
    assert len(notes) == 1
    assert notes[0].startswith("volatile: rbcs-f is left out")
    assert [len(one.runs) for one in found.ran] == [4]
    assert set(found.overall) == {"random", "pace"}
    assert found.write_pages() == {"pace": tmp_path / "pace.md"}
    again = run_arena(["pace"], seeds=2, out=tmp_path, only_collect=True)
    assert again.ran == []
    assert again.overall["pace"].ratio == found.overall["pace"].ratio


def test_an_interrupted_task_keeps_its_complete_runs(small, tmp_path):
    def interrupted(*arguments, **options):
        run_experiment(*arguments, **options)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_arena(["pace"], seeds=2, out=tmp_path, n_jobs=1, run=interrupted)
    kept_there = Arena.read(tmp_path / "arena.json").trials(small)
    assert list(kept_there.schemes) == ["random", "pace"]


def test_missing_data_are_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))
    words = ["arena", "pace", "--task", "contexts", "--out", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("error: data are missing for contexts: fashion-mnist is not in")
    assert "turnout data get fashion-mnist" in line
    assert not (tmp_path / "runs").exists()


def test_tasks_that_need_no_missing_data_are_run(small, tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))
    (phones,) = tasks_named(["phones"])
    monkeypatch.setattr("turnout.studies.arena.tasks_named", lambda labels: (phones, small))
    notes = []
    found = run_arena(["pace"], seeds=2, out=tmp_path, n_jobs=1, notify=notes.append)
    assert len(notes) == 1
    assert notes[0].startswith("data are missing for phones: ")
    assert found.arena.trials(phones) is None
    assert found.arena.trials(small) is not None
    with pytest.raises(DataMissing, match="data are missing for phones"):
        run_arena(["pace"], tasks=["phones"], seeds=2, out=tmp_path, n_jobs=1)
