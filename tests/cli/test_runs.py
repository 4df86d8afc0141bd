from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from turnout import Bounds
from turnout.cli import app
from turnout.cli.compare import compare
from turnout.cli.options import run_shown
from turnout.cli.output import console
from turnout.cli.reproduce import reproduce
from turnout.cli.simulate import simulate
from turnout.results.catalogue import shown_in
from turnout.results.files import SUMMARY, cell_folder, slug
from turnout.studies import Claim, Preset, load_preset
from turnout.studies.presets import Setting


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 100)  # COLUMNS may have been read before


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str, exit_code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def example(command: Any) -> list[str]:
    found = re.search(r"Example: \[bold\]turnout (.+?)\[/\]", command.__doc__)
    assert found is not None
    return found.group(1).split()


SMALL = ("--rounds", "30", "--clients", "12", "--cohort", "3")


# simulate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["simulate", "compare", "reproduce"])
def test_help_has_an_example(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"turnout {name}" in result.stdout
    assert "--json" in result.stdout


def test_the_examples_in_help_work() -> None:
    assert run(*example(simulate)).exit_code == 0
    assert run(*example(compare), "--jobs", "1").exit_code == 0
    assert example(reproduce) == ["reproduce", "rbcs-f", "--figure", "2", "3", "4"]


def test_simulate_prints_a_summary_and_keeps_nothing() -> None:
    result = run("simulate", "e3cs", *SMALL)
    assert result.exit_code == 0
    for metric in shown_in("simulate"):
        has_row = f"│ {metric.title} " in result.stdout
        assert has_row == (metric.needs not in {"energy", "overlap"})  # this run has neither
    assert "Share of the chosen clients that" in result.stdout
    assert list(Path().iterdir()) == []


def test_simulate_takes_parameters_and_a_seed() -> None:
    plain = run_json("simulate", "e3cs", "--param", "quota=1.0", "--seed", "3", *SMALL)[0]
    same = run_json("simulate", "e3cs:quota=1.0", "--seed", "3", *SMALL)[0]
    other = run_json("simulate", "e3cs:quota=1.0", "--seed", "4", *SMALL)[0]
    del plain["seconds"], same["seconds"]
    assert plain == same
    assert plain["label"] == "e3cs quota=1.0"
    assert (plain["n_rounds"], plain["n_clients"], plain["seed"]) == (30, 12, 3)
    assert plain["wasted_s"] != other["wasted_s"]


def test_simulate_keeps_the_run_if_told() -> None:
    result = run("simulate", "random", "--out", "kept", *SMALL)
    assert result.exit_code == 0
    assert (Path("kept") / "random" / "seed-0" / "summary.json").exists()
    assert "kept" in result.stdout


def test_simulate_in_a_world_from_a_file() -> None:
    Path("world.toml").write_text('volatility = "reliable"\n', encoding="utf-8")
    row = run_json("simulate", "random", "--world", "world.toml", *SMALL)[0]
    assert row["success_ratio"] == 1.0
    Path("nested.toml").write_text('[world]\nvolatility = "reliable"\n', encoding="utf-8")
    assert run_json("simulate", "random", "--world", "nested.toml", *SMALL)[0] == {
        **row,
        "seconds": pytest.approx(row["seconds"], abs=60.0),
    }


def test_bounds_go_into_the_configuration_of_a_run() -> None:
    run("simulate", "random", "--bounds", "--out", "bounded", *SMALL)
    (config,) = Path("bounded").rglob("config.json")
    assert json.loads(config.read_text())["bounds"] == Bounds().parameters


def test_a_deadline_makes_clients_late() -> None:
    free = run_json("simulate", "random", *SMALL)[0]
    tight = run_json("simulate", "random", "--deadline", "3", *SMALL)[0]
    assert tight["round_time_s"] <= 3.0 < free["round_time_s"]
    assert tight["success_ratio"] < free["success_ratio"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("simulate", "e3cz"), ["unknown selector", "'e3cs'"]),
        (("simulate", "e3cs", "--param", "quotta=1"), ["quotta", "'quota'"]),
        (("simulate", "e3cs", "--param", "quota"), ["quota", "key=value"]),
        (("simulate", "e3cs", "--param", "quota=2.0"), ["quota", "2.0"]),
        (("simulate", "rbcs-f", "--world", "e3cs"), ["context"]),
        (("simulate", "random", "--world", "mars"), ["mars", "volatile"]),
        (("simulate", "random", "--world", "mars.toml"), ["mars.toml", "cannot be read"]),
        (("simulate", "random", "--deadline", "-1"), ["seconds", "-1"]),
        (("compare",), ["give selectors"]),
        (("compare", "random", "random"), ["label of its own"]),
        (("compare", "random", "--config", "x.toml"), ["exclude each other"]),
        (("compare", "--config", "x.toml"), ["x.toml cannot be read"]),
        (("reproduce", "e3cs"), ["unknown paper", "e3cs-arxiv"]),
        (("reproduce", "rbcs-f", "--figure", "9"), ["no figure 9", "2, 3, 4"]),
    ],
)
def test_bad_input_is_exit_code_2(arguments: tuple[str, ...], parts: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    message = " ".join(result.output.split())
    for part in parts:
        assert part in message
    assert "Traceback" not in result.output
    assert list(Path().iterdir()) == []


# compare ---------------------------------------------------------------------------------------

COMPARED = ("compare", "random", "E3CS-0=e3cs:quota=0.0", "--world", "e3cs", "--seeds", "3", *SMALL)


def test_compare_prints_means_intervals_and_differences() -> None:
    result = run(*COMPARED, "--jobs", "1", "--explain")
    assert result.exit_code == 0
    assert "30 rounds, 3 of 12 clients, 3 seeds" in result.stdout
    assert "Difference to random" in result.stdout
    assert "±" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 100


def test_compare_writes_a_folder_named_after_its_settings_and_resumes() -> None:
    rows = run_json(*COMPARED, "--jobs", "1")
    folder = Path(rows[0]["folder"])
    assert folder.parent == Path("runs")
    before = (cell_folder(folder, "E3CS-0", 2) / "summary.json").stat().st_mtime_ns
    assert run_json(*COMPARED, "--jobs", "1") == rows
    assert (cell_folder(folder, "E3CS-0", 2) / "summary.json").stat().st_mtime_ns == before
    other = run_json(*COMPARED, "--jobs", "1", "--deadline", "5")
    assert other[0]["folder"] != rows[0]["folder"]


def test_compare_as_json_is_what_the_cells_say() -> None:
    rows = run_json(*COMPARED, "--jobs", "1")
    assert [row["label"] for row in rows] == ["random", "E3CS-0"]
    folder = Path(rows[0]["folder"])
    ceps = {
        label: [
            json.loads((cell_folder(folder, label, seed) / "summary.json").read_text())["cep"]
            for seed in range(3)
        ]
        for label in ("random", "E3CS-0")
    }
    assert rows[1]["metrics"]["cep"]["mean"] == pytest.approx(sum(ceps["E3CS-0"]) / 3)
    steps = [a - b for a, b in zip(ceps["E3CS-0"], ceps["random"], strict=True)]
    assert rows[1]["difference"]["cep"]["mean"] == pytest.approx(sum(steps) / 3)
    assert rows[0]["difference"] == {}
    assert rows[0]["metrics"]["regret_bound"]["mean"] is None


def test_compare_from_a_file() -> None:
    Path("mine.toml").write_text(
        'world = "e3cs"\nn_clients = 8\ncohort_size = 2\nn_rounds = 10\nseeds = 2\n'
        'selectors = ["random", "round-robin"]\n',
        encoding="utf-8",
    )
    rows = run_json("compare", "--config", "mine.toml", "--jobs", "1")
    assert rows[0]["folder"].startswith("runs/mine-")
    fewer = run_json("compare", "--config", "mine.toml", "--rounds", "4", "--seeds", "1")
    config = json.loads(
        (cell_folder(Path(fewer[0]["folder"]), "random", 0) / "config.json").read_text()
    )
    assert (config["n_rounds"], config["n_clients"], fewer[0]["metrics"]["cep"]["n"]) == (4, 8, 1)
    for option in (("--world", "e3cs"), ("--deadline", "3")):
        refused = run("compare", "--config", "mine.toml", *option)
        assert refused.exit_code == 2
        assert "go into the file" in refused.output
    Path("mine.toml").write_text('selectors = ["random"]\nroundz = 3\n', encoding="utf-8")
    result = run("compare", "--config", "mine.toml")
    assert result.exit_code == 2
    assert "mine.toml, line 2: roundz" in " ".join(result.output.split())


def test_a_damaged_cell_is_exit_code_1_and_the_rest_is_shown() -> None:
    folder = Path(run_json(*COMPARED, "--jobs", "1")[0]["folder"])
    (cell_folder(folder, "random", 1) / "summary.json").write_text("{", encoding="utf-8")
    result = run(*COMPARED, "--jobs", "1")
    assert result.exit_code == 1
    assert "damaged" in result.output
    assert "random, seed 1" in result.output
    assert "E3CS-0" in result.output


# reproduce -------------------------------------------------------------------------------------


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figures, which take longer than the runs of these tests."""
    monkeypatch.setattr("turnout.studies.reproduction.draw", lambda *_, **__: [])


@pytest.mark.filterwarnings("ignore:penalty = 50:UserWarning")  # the paper's V
def test_reproduce_prints_claims_and_draws_figures() -> None:
    arguments = ("reproduce", "rbcs-f", "--figure", "3", "4", "--rounds", "60", "--seeds", "2")
    result = run(*arguments, "--jobs", "1")
    assert result.exit_code in (0, 1)
    assert "Claims" in result.stdout
    assert "The queues flatten" not in result.stdout  # a claim about figure 2
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    folder = Path("runs/rbcs-f-60")
    drawn = {path.name for path in folder.glob("figure-*")}
    forms = ("pdf", "svg", "png")
    assert drawn == {f"figure-{number}.{form}" for number in (3, 4) for form in forms}
    content = run_json(*arguments, "--jobs", "1", exit_code=result.exit_code)
    verdicts = [claim["verdict_alone"] for claim in content["claims"]]
    assert len(verdicts) == 3
    assert (result.exit_code == 1) == ("fails" in verdicts)
    (setting,) = content["settings"]
    assert setting["schemes"].keys() >= {"RBCS-F(50)", "FedCS(3)", "random"}
    assert "regret" not in setting["schemes"]["random"]  # E3CS's, and not this paper's
    assert Path("runs/rbcs-f.json").exists()


@pytest.mark.usefixtures("undrawn")
def test_results_are_kept_and_judged_without_running_again() -> None:
    arguments = ("reproduce", "rbcs-f", "--figure", "4", "--rounds", "30", "--seeds", "2")
    kept = Path("kept/rbcs-f.json")
    first = run(*arguments, "--jobs", "1", "--results", "kept")
    content = kept.read_bytes()
    again = run(*arguments, "--collect", "--results", "kept")
    assert (again.exit_code, again.stdout) == (first.exit_code, first.stdout)
    assert kept.read_bytes() == content
    more = run(*arguments[:-1], "3", "--jobs", "1", "--results", "kept")
    assert more.exit_code in (0, 1)
    seeds = {path.parent.name for path in Path("runs/rbcs-f-30").rglob(SUMMARY)}
    assert seeds == {"seed-0", "seed-1", "seed-2"}
    content = kept.read_bytes()
    other = run("reproduce", "rbcs-f", "--rounds", "31", "--seeds", "2", "--results", "kept")
    assert other.exit_code == 2
    assert "another protocol: n_rounds" in other.output
    assert kept.read_bytes() == content


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("when", "kept_lengths"), [("before", [1]), ("after", [1, 4])])
def test_an_interruption_keeps_the_results_of_what_is_complete(
    monkeypatch: pytest.MonkeyPatch, when: str, kept_lengths: list[int]
) -> None:
    n_calls = 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2 and when == "before":
            raise typer.Exit(130)
        grid = run_shown(*arguments, **options)
        if n_calls == 2:
            raise typer.Exit(130)
        return grid

    monkeypatch.setattr("turnout.cli.reproduce.run_shown", interrupted)
    arguments = ("reproduce", "rbcs-f", "--figure", "2", "--rounds", "3", "--seeds", "1")
    assert run(*arguments, "--jobs", "1", "--results", "kept").exit_code == 130
    assert n_calls == 2
    parts = json.loads(Path("kept/rbcs-f.json").read_text())["parts"]
    assert [part["times"] for part in parts] == kept_lengths
    assert all(part["schemes"] for part in parts)


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_run_is_named_and_the_others_are_run_and_kept() -> None:
    arguments = ("reproduce", "rbcs-f", "--figure", "2", "--rounds", "3", "--seeds", "1")
    arguments += ("--jobs", "1", "--no-extras")
    run(*arguments, "--results", "kept")
    whole = json.loads(Path("kept/rbcs-f.json").read_text())["parts"]
    shutil.rmtree("kept")
    (cell_folder(Path("runs/rbcs-f-3"), "RBCS-F(5)", 0) / "selections.npz").write_bytes(b"PK")
    shutil.rmtree("runs/rbcs-f-12")
    result = run(*arguments, "--results", "kept")
    assert result.exit_code == 1
    assert "damaged: RBCS-F(5), seed 0" in result.output
    short, long = json.loads(Path("kept/rbcs-f.json").read_text())["parts"]
    assert set(whole[0]["schemes"]) - set(short["schemes"]) == {"RBCS-F(5)"}
    assert long == whole[1]
    collected = run(*arguments, "--collect", "--results", "other")
    assert (collected.exit_code, "selections.npz" in collected.output) == (2, True)


def test_no_run_that_never_got_there_is_dropped_from_json() -> None:
    kept = Path(__file__).parents[2] / "results"
    label = "Letters features, non-iid, FedAvg, keep-global"
    arguments = ("reproduce", "e3cs-letters", "--setting", label, "--collect")
    content = run_json(*arguments, "--results", str(kept))
    part = next(part for part in content["settings"] if part["setting"] == label)
    found = part["schemes"]["FedCS"]["rounds-to-hold-out-0.65"]
    assert found == {"median": None, "never": 3, "diverged": 0, "seeds": 5}
    cep = part["schemes"]["FedCS"]["cep"]
    assert (cep["n"], cep["diverged"], cep["seeds"]) == (5, 0, 5)
    assert {claim["verdict_alone"] for claim in content["claims"]} >= {"holds", "not reached"}


def test_one_setting_can_be_chosen() -> None:
    arguments = ("reproduce", "ucb-cs-fmnist", "--setting", "alpha = 7")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "no setting 'alpha = 7'" in result.output


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("differs", "exit_code"), [("", 1), ("another rule", 0)])
def test_a_claim_that_fails_in_the_papers_own_setting_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, differs: str, exit_code: int
) -> None:
    wrong = Claim(3, "FedCS(3) is slowest", "order", "total-time", order="FedCS(3) > random")

    def with_a_wrong_claim(name: str, **sizes: int) -> Preset:
        settings = (Setting(differs=differs),)
        return dataclasses.replace(load_preset(name, **sizes), claims=(wrong,), settings=settings)

    monkeypatch.setattr("turnout.studies.reproduction.load_preset", with_a_wrong_claim)
    arguments = ("reproduce", "rbcs-f", "--figure", "3", "--rounds", "20", "--seeds", "3")
    result = run(*arguments, "--jobs", "1")
    assert result.exit_code == exit_code
    assert "fails" in result.stdout
    content = run_json(*arguments, "--jobs", "1", exit_code=exit_code)
    assert [claim["verdict_alone"] for claim in content["claims"]] == ["fails"]


@pytest.mark.usefixtures("undrawn")
def test_extras_show_the_published_forms_and_regret() -> None:
    arguments = ("reproduce", "e3cs-journal", "--figure", "4", "--rounds", "12", "--seeds", "2")
    result = run(*arguments, "--jobs", "1")
    assert result.exit_code in (0, 1)
    for text in ("Cost of the published draw", "Regret after T rounds", "as published", "pow-d"):
        assert text in result.stdout


def test_data_dir_must_be_a_folder_and_reaches_the_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_DATA", "elsewhere")
    missing = CliRunner().invoke(app, ["--data-dir", str(tmp_path / "no"), "list"])
    assert missing.exit_code == 2
    given = CliRunner().invoke(app, ["--data-dir", str(tmp_path), "list"])
    assert given.exit_code == 0
    assert os.environ["TURNOUT_DATA"] == str(tmp_path)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore:penalty = 50:UserWarning")  # the paper's V
def test_a_scheme_that_has_a_seed_does_not_run_it_again() -> None:
    arguments = ("reproduce", "rbcs-f", "--rounds", "30", "--results", "kept", "--jobs", "1")
    run(*arguments, "--figure", "3", "--seeds", "1")
    kept = json.loads(Path("kept/rbcs-f.json").read_text())
    part = next(part for part in kept["parts"] if part["times"] == 1)
    del part["schemes"]["random"]  # as if it had not been run
    Path("kept/rbcs-f.json").write_text(json.dumps(kept))
    shutil.rmtree("runs")
    run(*arguments, "--figure", "3", "--seeds", "2")
    folder = Path("runs/rbcs-f-30")
    made = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob(SUMMARY))
    schemes = sorted(part["schemes"])
    expected = [f"{slug(label)}/seed-1" for label in schemes] + ["random/seed-0", "random/seed-1"]
    assert made == sorted(expected)
