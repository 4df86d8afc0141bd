"""One entry of the catalogue is enough: a made-up metric shows up everywhere."""

import importlib.util
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.cli.output import console
from turnout.experiment import read_cell
from turnout.report import write_report
from turnout.results import catalogue
from turnout.results.metric import Facts, Metric
from turnout.studies.measures import measure_named

ROOT = Path(__file__).parents[2]
MADE_UP = Metric(
    key="idle_share",
    title="Idle share",
    heading="idle",
    meaning="Share of the clients that were never chosen.",
    group="fairness",
    better="lower",
    decimals=2,
    tables=frozenset({"simulate", "compare", "report"}),
    compute=lambda facts: math.nan if facts.counts is None else float(np.mean(facts.counts == 0)),
)
SMALL = ("--rounds", "4", "--clients", "12", "--cohort", "2")


@pytest.fixture
def _one_more(monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "PARTICIPATION", (*catalogue.PARTICIPATION, MADE_UP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 200)  # COLUMNS may have been read before


def printed(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def build_pages():
    spec = importlib.util.spec_from_file_location("build_pages", ROOT / "docs" / "build_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts(**changes):
    nothing = np.zeros(0)
    known = {"n_rounds": 3, "chosen": nothing, "completed": nothing, "length_s": nothing}
    return Facts(**known | {"wasted_s": 0.0} | changes)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_more")
def test_a_metric_is_one_entry():
    compare = ("compare", "random", "fedcs", *SMALL, "--seeds", "2", "--jobs", "1", "--out", "r")
    assert re.search(r"┃ +idle ┃", printed(*compare))
    cell = read_cell("r/fedcs/seed-0")
    assert 0.0 < cell.summary["idle_share"] == np.mean(cell.run.counts == 0)
    (row, _) = json.loads(printed(*compare, "--json"))
    assert row["metrics"]["idle_share"]["n"] == 2
    single = printed("simulate", "random", *SMALL)
    assert re.search(r"│ Idle share +│ +0\.\d\d │ Share of the clients that were never", single)
    report = write_report(["r"], "r.html")
    assert "idle_share" in report.rows[0][1].estimates
    page = report.path.read_text(encoding="utf-8")
    assert ">Idle share<" in page  # a column of the summary
    assert MADE_UP.meaning in page
    assert '"idle"' in page  # a bar among the indices of fairness
    measure = measure_named("idle-share")
    assert measure.compute(cell) == cell.summary["idle_share"]
    assert (measure.title, measure.form) == ("Idle share", ".2f")
    line = next(line for line in build_pages().glossary().splitlines() if "idle_share" in line)
    assert line == f"| `idle_share` | Idle share | {MADE_UP.meaning} | - | lower |"


def test_an_old_run_without_a_newer_number_is_still_shown(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 200)  # all columns fit
    printed("compare", "random", "fedcs", *SMALL, "--seeds", "1", "--jobs", "1", "--out", "r")
    assert "idle_share" not in read_cell("r/fedcs/seed-0").summary
    monkeypatch.setattr(catalogue, "PARTICIPATION", (*catalogue.PARTICIPATION, MADE_UP))
    again = ("compare", "random", "fedcs", *SMALL, "--seeds", "1", "--jobs", "1", "--out", "r")
    measure = measure_named("idle-share")
    computed = measure.compute(read_cell("r/fedcs/seed-0"))
    assert computed > 0.0
    assert re.search(rf"│ fedcs .* {computed:.2f}[ ≈]*│", printed(*again))
    (_, random), (_, fedcs) = write_report(["r"], "r.html").rows
    assert random.estimates["idle_share"].n == fedcs.estimates["idle_share"].n == 1


def test_entries_are_complete():
    metrics = catalogue.all_metrics([0.5, 0.9])
    assert len({metric.key for metric in metrics}) == len(metrics)
    assert {metric.group for metric in metrics} == catalogue.GROUPS.keys()
    for metric in metrics:
        assert metric.meaning.endswith("."), metric.key
        assert metric.meaning.count(". ") == 0, metric.key  # one sentence
        assert len(metric.meaning) <= 90, metric.key
        assert catalogue.find(metric.key).title == metric.title
    assert catalogue.find("elegance") is None


def test_entries_with_a_parameter_are_there_for_each_target():
    keys = [metric.key for metric in catalogue.all_metrics([0.9])]
    assert keys[keys.index("best_accuracy") + 1 :][:2] == ["rounds_to_0.9", "time_to_0.9_s"]
    accuracy = np.array([0.1, np.nan, 0.6])
    known = facts(
        length_s=np.array([2.0, 3.0, 5.0]),
        curves={"accuracy": accuracy},
        targets=(0.5, 0.9),
        has={"training"},
    )
    summary = catalogue.summarize(known)
    assert (summary["rounds_to_0.5"], summary["time_to_0.5_s"]) == (3.0, 10.0)
    assert math.isnan(summary["rounds_to_0.9"])
    assert "holdout_accuracy" not in summary


def test_a_simulation_has_no_numbers_of_learning():
    keys = catalogue.summarize(facts()).keys()
    assert {"success_ratio", "regret_bound"} <= keys
    assert not {"accuracy", "rounds_run", "broken_answers"} & keys


@pytest.mark.parametrize(
    ("longest", "unit"), [(0, "s"), (100, "s"), (500, "min"), (20_000, "h"), (1e6, "days")]
)
def test_units_of_time_are_readable(longest, unit):
    time = catalogue.find("total_time_s")
    scale = time.scale([longest, math.nan])
    assert scale.unit == unit
    assert time.titled(scale) == f"Total time ({unit})"
    assert catalogue.find("cep").scale([longest]).unit == ""


def test_energy_and_carbon_are_shown_with_their_unit():
    energy, carbon = catalogue.find("energy_j"), catalogue.find("co2_g")
    assert [energy.written(joules) for joules in (850.0, 28106.4, 7.2e6)] == [
        "850 J", "28.11 kJ", "7.20 MJ",
    ]  # fmt: skip
    assert [carbon.written(grams) for grams in (12.34, 4100.0)] == ["12.3 g", "4.10 kg"]
    assert energy.titled(energy.scale([28106.4]), short=True) == "energy (kJ)"


def test_numbers_are_written_as_the_entry_says():
    assert catalogue.find("accuracy").written(0.81234) == "0.8123"
    assert catalogue.find("total_time_s").written(7_200.0) == "120.00 min"
    assert catalogue.find("rounds_to_0.9").written(None) == "not reached"
    assert catalogue.find("regret_bound").written(None) == "-"
    assert catalogue.find("stopped_at_target").written(True) == "yes"


def test_who_is_best_follows_the_direction():
    means = {"a": 1.0, "b": 2.0, "c": 2.0}
    assert catalogue.find("cep").leaders(means) == ["b", "c"]
    assert catalogue.find("loss").leaders(means) == ["a"]
    assert catalogue.find("regret").leaders(means) == []
    assert catalogue.find("cep").leaders({"a": 1.0, "b": 1.0}) == []
    assert catalogue.find("cep").leaders({"a": 1.0}) == []
