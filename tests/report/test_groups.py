import json
import shutil

import pytest

from tests.report.folders import WORLD, config_of, write_cell, write_experiment
from turnout.errors import InvalidInput
from turnout.report import write_report
from turnout.report.groups import gather
from turnout.report.reading import read_cells


def test_different_worlds_are_refused_with_the_keys(tmp_path):
    write_cell(tmp_path, config_of("random", 0, n_rounds=5))
    other = WORLD | {"availability": {"kind": "bernoulli", "rate": 0.5}}
    config = config_of("e3cs-0", 0, n_rounds=6, world=other, world_id="ffffffffffff")
    write_cell(tmp_path, config)
    with pytest.raises(InvalidInput) as caught:
        write_report([tmp_path], tmp_path / "r.html")
    message = str(caught.value)
    assert "2 different worlds" in message
    assert "n_rounds is 6 or 5" in message
    assert "world.availability.rate is 0.5 or 0.9" in message
    assert "volatility" not in message
    assert "--allow-mixed" in message
    assert not (tmp_path / "r.html").exists()


def test_mixed_worlds_get_a_section_each_if_allowed(tmp_path):
    write_experiment(tmp_path / "a", ("random", "e3cs-0"), (0, 1), n_rounds=5)
    write_experiment(
        tmp_path / "b", ("random",), (0,), n_rounds=6, world_id="ffffffffffff", experiment="other"
    )
    report = write_report([tmp_path], tmp_path / "r.html", allow_mixed=True)
    page = report.path.read_text(encoding="utf-8")
    assert page.count("<article ") == 2
    assert "<h2>World 1</h2>" in page
    assert "<h2>World 2</h2>" in page
    assert page.count('class="chip"') == 2  # one per selector, not per world
    assert [(world, row.name) for world, row in report.rows] == [
        ("0123456789ab", "e3cs-0"),
        ("0123456789ab", "random"),
        ("ffffffffffff", "random"),
    ]
    assert report.problems[0].kind == "mixed"
    assert "n_rounds is 5 or 6" in report.problems[0].message
    assert "<title>demo, other" in page


def test_equal_settings_under_other_ids_do_not_compare_either(tmp_path):
    write_cell(tmp_path, config_of("random", 0, n_rounds=5))
    write_cell(tmp_path, config_of("e3cs-0", 0, n_rounds=5, world_id="ffffffffffff"))
    with pytest.raises(InvalidInput, match="world_id is ffffffffffff or 0123456789ab"):
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


def test_a_running_experiment_is_shown_up_to_the_common_round(small, tmp_path):
    for number, folder in enumerate(sorted(small.glob("*/seed-*"))):
        (folder / "summary.json").unlink()
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        (folder / "rounds.jsonl").write_text("\n".join(lines[: 6 + number]))
    (small / "random" / "seed-1" / "selections.npz").unlink()  # before its first checkpoint
    write_cell(small, config_of("fedcs", 0, n_rounds=12), complete=False)
    (small / "fedcs" / "seed-0" / "rounds.jsonl").write_text("")  # not started
    worlds, remarks = gather(read_cells([small])[0])
    (world,) = worlds
    assert world.is_partial
    assert world.n_rounds == 6
    assert len(world.cells) == 4
    assert {cell.series["chosen"].size for cell in world.cells} == {6}
    assert "no cell is complete yet" in remarks[-1].message
    report = write_report([small], tmp_path / "r.html")
    rows = {row.name: row for _, row in report.rows}
    expected = sum(
        json.loads(line)["completed"]
        for seed in (0, 1)
        for line in (small / f"e3cs-0.5/seed-{seed}/rounds.jsonl").read_text().splitlines()[:6]
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
    config = config_of(
        "random", 0, n_rounds=12, experiment="tuned", selector="e3cs", parameters={"quota": 0.1}
    )
    write_cell(tmp_path / "tuned", config)
    report = write_report([small, tmp_path / "tuned"], tmp_path / "r.html")
    assert [row.name for _, row in report.rows] == ["e3cs-0.5", "random (demo)", "random (tuned)"]


def test_a_selector_may_have_a_cohort_size_of_its_own(small, tmp_path):
    write_cell(small, config_of("fedcs", 0, n_rounds=12, cohort_size=20))
    write_cell(small, config_of("fedcs", 1, n_rounds=12, cohort_size=20))
    report = write_report([small], tmp_path / "r.html")
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
        "the cells were written by different versions of turnout: 0.0.9, 0.1.0."
    ]


def test_names_are_ordered_with_their_numbers_by_size(tmp_path):
    for label in ("pow-d-10", "pow-d-9", "Alpha"):
        write_cell(tmp_path, config_of(label, 0, n_rounds=3))
    report = write_report([tmp_path], tmp_path / "r.html")
    assert [row.name for _, row in report.rows] == ["Alpha", "pow-d-9", "pow-d-10"]


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
