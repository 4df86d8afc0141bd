import json
import shutil

import pytest

import turnout
from tests.report.folders import (
    change_json,
    experiment_of,
    interrupt_folder,
    run_cell,
    run_folder,
)
from turnout.core.errors import InvalidInput
from turnout.experiment import Variant
from turnout.report import write_report
from turnout.results.groups import gather
from turnout.results.reader import read_cells


def test_different_worlds_are_refused_with_the_keys(tmp_path):
    run_cell(tmp_path / "a", "random", n_rounds=6, world="volatile")
    other = {"preset": "volatile", "availability": {"kind": "bernoulli", "rate": 0.5}}
    run_cell(tmp_path / "b", "e3cs-0", n_rounds=5, world=other)
    with pytest.raises(InvalidInput) as caught:
        write_report([tmp_path], tmp_path / "r.html")
    message = str(caught.value)
    assert "2 different worlds" in message
    assert "n_rounds is 6 or 5" in message
    assert "world.availability.rate is 0.9 or 0.5" in message
    assert "volatility" not in message
    assert "--allow-mixed" in message
    assert not (tmp_path / "r.html").exists()


def test_mixed_worlds_get_a_section_each_if_allowed(tmp_path):
    worlds = {"a": experiment_of("random", n_rounds=5), "b": experiment_of("random", n_rounds=6)}
    run_folder(tmp_path / "a", "e3cs-0", "random", seeds=2, n_rounds=5)
    run_cell(tmp_path / "b", "random", n_rounds=6, name="other")
    report = write_report([tmp_path], tmp_path / "r.html", allow_mixed=True)
    page = report.path.read_text(encoding="utf-8")
    assert page.count("<article ") == 2
    assert "<h2>World 1</h2>" in page
    assert "<h2>World 2</h2>" in page
    assert page.count('class="chip"') == 2  # one per selector, not per world
    assert [(world, row.name) for world, row in report.rows] == [
        (worlds["a"].world_id, "e3cs-0"),
        (worlds["a"].world_id, "random"),
        (worlds["b"].world_id, "random"),
    ]
    assert report.problems[0].kind == "mixed"
    assert "n_rounds is 5 or 6" in report.problems[0].message
    assert "<title>demo, other" in page


def test_equal_settings_under_other_ids_do_not_compare_either(tmp_path):
    run_folder(tmp_path, "e3cs-0", "random", seeds=1, n_rounds=5)
    change_json(tmp_path / "e3cs-0" / "seed-0" / "config.json", world_id="ffffffffffff")
    usual = experiment_of("random", n_rounds=5).world_id
    with pytest.raises(InvalidInput, match=f"world_id is ffffffffffff or {usual}"):
        write_report([tmp_path], tmp_path / "r.html")


def test_incomplete_cells_are_left_out_while_others_are_complete(small, tmp_path):
    (small / "random" / "seed-1" / "summary.json").unlink()
    report = write_report([small], tmp_path / "r.html")
    rows = {row.name: row for _, row in report.rows}
    assert (rows["random"].n_seeds, rows["e3cs-0.5"].n_seeds) == (1, 2)
    assert report.n_cells == 3
    kinds = [problem.kind for problem in report.problems]
    assert kinds == ["incomplete", "note"]  # and the seeds are no longer the same
    assert "not paired" in report.problems[1].message


def test_a_running_experiment_is_shown_up_to_the_common_round(tmp_path):
    labels = ("random", "e3cs-0.5", "fedcs")
    done = {("random", 0): 6, ("random", 1): 7, ("e3cs-0.5", 0): 8, ("e3cs-0.5", 1): 9}
    done |= {("fedcs", seed): 0 for seed in (0, 1)}  # not started
    running = interrupt_folder(tmp_path, *labels, seeds=2, n_rounds=12, n_rounds_done=done)
    (running / "random" / "seed-1" / "selections.npz").unlink()  # before its first checkpoint
    worlds, remarks = gather(read_cells([running])[0])
    (world,) = worlds
    assert world.is_partial
    assert world.n_rounds == 6
    assert len(world.cells) == 4
    assert {cell.series["chosen"].size for cell in world.cells} == {6}
    assert "no cell is complete yet" in remarks[-1].message
    report = write_report([running], tmp_path / "r.html")
    rows = {row.name: row for _, row in report.rows}
    assert list(rows) == ["random", "e3cs-0.5"]
    expected = sum(
        json.loads(line)["completed"]
        for seed in (0, 1)
        for line in (running / f"e3cs-0.5/seed-{seed}/rounds.jsonl").read_text().splitlines()[:6]
    )
    assert rows["e3cs-0.5"].estimates["cep"].mean == expected / 2
    assert rows["random"].estimates["jain_of_counts"].n == 1
    assert "up to round 6 of 12" in report.path.read_text(encoding="utf-8")


def test_the_same_cell_twice_counts_once(small, tmp_path):
    shutil.copytree(small / "random", tmp_path / "copy" / "random")
    report = write_report([small, tmp_path / "copy"], tmp_path / "r.html")
    rows = {row.name: row for _, row in report.rows}
    assert rows["random"].n_seeds == 2
    assert [problem.kind for problem in report.problems] == ["duplicate"] * 2


def test_one_label_with_two_meanings_is_told_apart(small, tmp_path):
    tuned = Variant("e3cs", "random", {"quota": 0.1})
    run_cell(tmp_path / "tuned", tuned, n_rounds=12, name="tuned")
    report = write_report([small, tmp_path / "tuned"], tmp_path / "r.html")
    assert [row.name for _, row in report.rows] == ["e3cs-0.5", "random (demo)", "random (tuned)"]


def test_a_selector_may_have_a_cohort_size_of_its_own(small, tmp_path):
    run_folder(tmp_path / "more", Variant("fedcs", cohort_size=20), seeds=2, n_rounds=12)
    report = write_report([small, tmp_path / "more"], tmp_path / "r.html")
    assert report.n_cells == 6
    (problem,) = report.problems
    assert problem.message == (
        "the selectors ask for different numbers of clients per round "
        "(e3cs-0.5, random: 8; fedcs: 20)."
    )
    assert "8 to 20 wanted in each of 12 rounds" in report.path.read_text(encoding="utf-8")


def test_versions_that_differ_are_remarked(small, tmp_path):
    (small / "random" / "seed-0" / "versions.json").write_text('{"turnout": "0.0.9"}')
    report = write_report([small], tmp_path / "r.html")
    assert [problem.message for problem in report.problems] == [
        f"the cells were written by different versions of turnout: 0.0.9, {turnout.__version__}."
    ]


def names_in(*folders):
    report = write_report(folders, folders[0] / "r.html")
    return [row.name for _, row in report.rows]


def test_selectors_stand_as_the_experiments_list_them(tmp_path):
    labels = ["pow-d-10", "pow-d-9", "Alpha"]
    root = tmp_path / "runs"
    variants = [Variant("random", label) for label in labels]
    run_folder(root, *variants, seeds=1, n_rounds=3)
    assert names_in(root) == labels
    assert names_in(root / "alpha", root / "pow-d-10") == ["pow-d-10", "Alpha"]
    more = [Variant("random", "Zeta"), Variant("random", "Alpha", cohort_size=5)]
    run_folder(tmp_path / "more", *more, seeds=1, n_rounds=3, name="more")
    everyone = [*labels[:2], "Alpha (demo)", "Alpha (more)", "Zeta"]
    assert names_in(root, tmp_path / "more") == everyone


@pytest.mark.parametrize("content", [None, "{", "[]", '{"selectors": 3}', '{"selectors": [1, {}]}'])
def test_names_are_ordered_with_their_numbers_by_size_else(content, tmp_path):
    variants = [Variant("random", label) for label in ("pow-d-10", "pow-d-9", "Alpha")]
    run_folder(tmp_path, *variants, seeds=1, n_rounds=3)
    (tmp_path / "experiment.json").unlink()
    if content is not None:
        (tmp_path / "experiment.json").write_text(content)
    assert names_in(tmp_path) == ["Alpha", "pow-d-9", "pow-d-10"]


def test_nothing_readable_is_an_error_with_the_reason(small, tmp_path):
    with pytest.raises(InvalidInput, match=r"no run folder was given"):
        write_report([], tmp_path / "r.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"no run was found under .*empty"):
        write_report([tmp_path / "empty"], tmp_path / "r.html")
    for path in small.glob("*/*/config.json"):
        path.write_text("{")
    with pytest.raises(InvalidInput, match=r"(?s)can be shown.*damaged: .*config.json"):
        write_report([small], tmp_path / "r.html")
