import json
import shutil
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from tests.report.folders import change_json, interrupt_folder, run_cell, run_folder
from turnout.cli import app
from turnout.cli.output import console
from turnout.core.errors import InvalidInput, MissingExtra
from turnout.results.reader import read_cell


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("runs") / "demo", "random", "e3cs-0.5", n_rounds=12)


@pytest.fixture
def results(folder):
    return turnout.open_runs(folder)


def show(*arguments, width=80):
    console.width = width
    return CliRunner().invoke(app, ["show", *map(str, arguments)])


def test_results_hold_what_the_folder_says(folder, results):
    assert results.labels == ("random", "e3cs-0.5")
    assert len(results.cells) == 6
    assert "cep" in results.metrics
    ceps = [read_cell(folder / "random" / f"seed-{seed}").summary["cep"] for seed in range(3)]
    assert results.estimate("cep")["random"].mean == pytest.approx(np.mean(ceps))
    assert results.difference("cep", "random").keys() == {"e3cs-0.5"}


def test_repr_is_a_few_lines(results):
    lines = repr(results).splitlines()
    assert lines[0] == "Results: 6 of 6 runs complete"
    assert lines[1].endswith(": 12 rounds, 8 of 40 clients, 3 seeds")
    assert [line.split(":")[0] for line in lines[2:]] == ["    random", "    e3cs-0.5"]


def test_frames_are_tidy(results):
    cells, rounds, choices = (results.to_frame(name) for name in ("cells", "rounds", "choices"))
    assert len(cells) == 6
    assert set(cells["label"]) == {"random", "e3cs-0.5"}
    assert cells["parameter.quota"].dropna().tolist() == [0.5] * 3
    means = cells.groupby("label")["cep"].mean()
    assert means["random"] == pytest.approx(results.estimate("cep")["random"].mean)
    assert len(rounds) == 6 * 12
    last = rounds[(rounds["round"] == 11) & (rounds["label"] == "random")]
    totals = cells[cells["label"] == "random"]["total_time_s"]
    assert last["clock_s"].tolist() == pytest.approx(totals.tolist())
    assert len(choices) == rounds["chosen"].sum()
    n_completed = (choices["status"] == "completed").sum()
    assert n_completed == cells["cep"].sum()
    assert choices["clients"].between(0, 39).all()


def test_a_table_that_does_not_exist(results):
    with pytest.raises(InvalidInput, match=r"unknown table 'round'.*mean 'rounds'"):
        results.to_frame("round")


def test_without_pandas_the_message_says_what_to_install(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnout\[frames\]'"):
        results.to_frame()


def test_half_finished_folders_are_shown_as_far_as_they_are(tmp_path):
    rounds_done = {("random", 0): 4, ("e3cs-0.5", 0): 3}
    interrupt_folder(
        tmp_path, "random", "e3cs-0.5", n_rounds_done=rounds_done, seeds=1, n_rounds=12
    )
    results = turnout.open_runs(tmp_path)
    assert "0 of 2 runs complete" in repr(results)
    assert results.estimate("cep")["random"].n == 1
    assert results.to_frame("cells")["is_complete"].tolist() == [False, False]
    assert set(results.to_frame("cells")["rounds_done"]) <= {3, 4}
    shown = show(tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "no cell is complete yet" in shown.stderr


def test_cells_that_failed_in_their_first_round_are_rows_without_numbers(tmp_path):
    rounds_done = {("random", 0): 12, ("e3cs-0.5", 0): 0}
    interrupt_folder(
        tmp_path, "random", "e3cs-0.5", n_rounds_done=rounds_done, seeds=1, n_rounds=12
    )
    (tmp_path / "e3cs-0.5" / "seed-0" / "rounds.jsonl").unlink()
    results = turnout.open_runs(tmp_path)
    cells, rounds, choices = (results.to_frame(name) for name in ("cells", "rounds", "choices"))
    assert dict(zip(cells["label"], cells["rounds_done"], strict=True)) == {
        "random": 12,
        "e3cs-0.5": 0,
    }
    numbers = cells.set_index("label")["success_ratio"]
    assert numbers["random"] > 0
    assert np.isnan(numbers["e3cs-0.5"])
    assert set(rounds["label"]) == set(choices["label"]) == {"random"}
    out = tmp_path / "paper"
    exported = CliRunner().invoke(app, ["export", str(tmp_path), "--csv", "--out", str(out)])
    assert exported.exit_code == 0, exported.output


def test_a_cell_shows_itself_in_one_line(folder, results):
    assert repr(results.cells[0]) == (
        f"Cell {results.cells[0].settings.label}, seed 0: 12 of 12 rounds, complete, "
        f"in {results.cells[0].path}"
    )


def test_only_some_selectors(results):
    assert results.only(["random"]).labels == ("random",)
    with pytest.raises(InvalidInput, match=r"unknown label 'randm'\. Did you mean 'random'"):
        results.only(["randm", "e3cs-0.5"])


def test_worlds_are_kept_apart(folder, tmp_path):
    run_cell(tmp_path, "random", n_rounds=5)
    results = turnout.open_runs(folder, tmp_path)
    assert len(results.worlds) == 2
    with pytest.raises(InvalidInput, match=r"2 different worlds.*n_rounds is 12 or 5"):
        results.estimate("cep")
    assert results.worlds[1].scores.estimate("cep")["random"].n == 1
    shown = show(folder, tmp_path)
    assert "12 rounds, 8 of 40 clients, 3 seeds" in shown.stdout
    assert "5 rounds, 8 of 40 clients, 1 seed" in shown.stdout
    assert "The worlds differ: n_rounds is 12 or 5." in shown.stdout
    assert "Over 2 worlds" in shown.stdout
    assert "success, IQM" in shown.stdout


def test_show_fits_the_terminal_and_explains_itself(folder):
    narrow, wide = show(folder), show(folder, width=200)
    assert narrow.exit_code == wide.exit_code == 0
    assert max(len(line) for line in narrow.stdout.splitlines()) <= 80
    assert narrow.stdout.count("┏") == wide.stdout.count("┏") == 1
    assert "Not shown: CEP; Jain; min rate. Widen the terminal, or give --metrics." in narrow.stdout
    assert "┃ min rate" in wide.stdout or " min rate ┃" in wide.stdout
    assert "…" not in narrow.stdout
    assert "Only 3 seeds" in narrow.stdout  # a caution is no explanation
    assert "Difference to random" not in narrow.stdout
    explained = show(folder, "--explain").stdout
    for text in ("Difference to random", "success: Share of the chosen", "Only 3 seeds"):
        assert text in explained


def test_show_takes_metrics_and_baseline(folder):
    shown = show(folder, "--metrics", "gini_of_counts,cep", "--baseline", "e3cs-0.5", "--explain")
    assert "Difference to e3cs-0.5" in shown.stdout
    assert "Gini" in shown.stdout
    assert "Jain" not in shown.stdout
    rows = json.loads(show(folder, "--metrics", "cep", "--baseline", "e3cs-0.5", "--json").stdout)
    assert [row["label"] for row in rows] == ["random", "e3cs-0.5"]
    assert rows[0]["difference"]["cep"]["n"] == 3
    assert rows[1]["difference"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--metrics", "acuracy"), "Did you mean 'accuracy'?"),
        (("--baseline", "randm"), "Did you mean 'random'?"),
    ],
)
def test_show_names_the_nearest(folder, options, message):
    shown = show(folder, *options)
    assert shown.exit_code == 2
    assert message in shown.stderr


def test_bad_folders_get_one_line(folder, tmp_path):
    file = folder / "random" / "seed-0" / "config.json"
    assert "config.json is a file: give a run folder" in show(file).stderr
    assert "does not exist: give a run folder" in show(tmp_path / "absent").stderr
    assert "no run was found" in show(tmp_path).stderr
    old = shutil.copytree(folder, tmp_path / "old")
    for config in old.rglob("config.json"):
        change_json(config, world_id=None)  # as before there were worlds
    shown = show(old)
    assert shown.exit_code == 2
    assert "world_id must be text, got nothing" in shown.stderr
    assert "run the experiment again" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1
