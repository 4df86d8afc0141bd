import json

import pytest
from typer.testing import CliRunner

from tests.report.folders import run_folder
from turnout.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_it_ends_by_naming_the_file(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(small)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "2 selectors, 4 cells."
    assert result.stdout.splitlines()[-1].startswith(f"Wrote {small / 'report.html'} (")
    assert result.stderr == ""
    assert (small / "report.html").exists()
    assert not (tmp_path / "report.html").exists()


def test_the_page_of_several_folders_is_in_the_working_directory(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(small / "random", small / "e3cs-0.5")
    assert result.stdout.splitlines()[-1].startswith("Wrote report.html (")
    assert (tmp_path / "report.html").exists()


def test_the_page_of_a_single_cell_is_not_one_of_its_files(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (cell, *_) = sorted(path.parent for path in small.rglob("config.json"))
    before = sorted(cell.iterdir())
    assert run(cell).exit_code == 0
    assert sorted(cell.iterdir()) == before
    assert (tmp_path / "report.html").exists()


def test_json_holds_rows_and_the_path(small, tmp_path):
    out = tmp_path / "out.html"
    result = run(small, "--out", out, "--json")
    assert result.exit_code == 0
    written = json.loads(result.stdout)
    assert written["report"] == str(out)
    assert written["n_cells"] == 4
    assert [row["selector"] for row in written["rows"]] == ["e3cs-0.5", "random"]
    summaries = [
        json.loads((small / "random" / f"seed-{seed}" / "summary.json").read_text())
        for seed in (0, 1)
    ]
    row = written["rows"][1]
    assert row["cep"]["mean"] == pytest.approx(sum(one["cep"] for one in summaries) / 2)
    assert row["n_seeds"] == 2
    assert written["problems"] == []


def test_a_single_seed_has_no_interval(small, tmp_path):
    result = run(small / "random" / "seed-0", "--out", tmp_path / "out.html", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    assert row["cep"]["half_width"] is None


def test_damage_goes_to_stderr_and_the_rest_is_shown(small, tmp_path):
    (small / "random" / "seed-0" / "selections.npz").write_bytes(b"")
    result = run(small, "--out", tmp_path / "out.html")
    assert result.exit_code == 0
    assert "warning: damaged: " in result.stderr
    assert "selections.npz is not a complete .npz" in result.stderr
    assert "3 cells" in result.stdout
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "selections.npz is not a complete .npz" in page


@pytest.mark.parametrize("what", ["missing", "empty", "mixed"])
def test_errors_have_exit_code_2_and_the_fix(what, small, tmp_path):
    (tmp_path / "empty").mkdir()
    run_folder(tmp_path / "mixed", "random", n_rounds=5, seeds=1)
    given = {
        "missing": [tmp_path / "nowhere"],
        "empty": [tmp_path / "empty"],
        "mixed": [small, tmp_path / "mixed"],
    }
    fix = {"missing": "give a run folder", "empty": "as an experiment", "mixed": "--allow-mixed"}
    result = run(*given[what], "--out", tmp_path / "out.html")
    assert result.exit_code == 2
    assert fix[what] in " ".join(result.stderr.split())
    assert not (tmp_path / "out.html").exists()


def test_a_file_that_cannot_be_written_is_one_line_and_exit_code_1(small, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(small, "--out", tmp_path / "file" / "r.html")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'file' / 'r.html'} cannot be written (")
    assert line.endswith("choose another file with --out.")


def test_mixed_worlds_can_be_allowed(small, tmp_path):
    run_folder(tmp_path / "mixed", "random", n_rounds=5, seeds=1)
    result = run(small, tmp_path / "mixed", "--allow-mixed", "--out", tmp_path / "out.html")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "2 selectors in 2 worlds, 5 cells."
    assert "2 worlds" in result.stderr


def test_help_has_an_example():
    result = run("--help")
    assert result.exit_code == 0
    assert "turnout report runs/demo --out demo.html" in " ".join(result.stdout.split())
