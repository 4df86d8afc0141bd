import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from tests.report.folders import RECIPE, run_folder
from turnout.cli import app
from turnout.results import Across, Scores
from turnout.results.catalogue import metric_named
from turnout.results.tables import latex_table

LABELS = ("random", "e3cs-0.5")
SIZES = {"n_rounds": 12, "seeds": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained") / "demo"
    return run_folder(root, *LABELS, training=RECIPE, **SIZES)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("simulated") / "demo", *LABELS, **SIZES)


def export(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def scores_of(**by_label):
    def numbers(values):
        return lambda metric: values.get(metric.key, math.nan)

    return Scores({label: dict(enumerate(map(numbers, runs))) for label, runs in by_label.items()})


def ceps(*values):
    return [{"cep": value} for value in values]


def table_of(scores, *keys, baseline=None):
    return latex_table(scores, [metric_named(key) for key in keys], "A title", baseline=baseline)


# tables ----------------------------------------------------------------------------------------


def test_the_best_is_bold_and_what_is_not_different_has_a_dagger():
    scores = scores_of(a_1=ceps(10.0, 20.0, 30.0), b=ceps(9.0, 21.5, 29.0), c=ceps(9.0, 19.1, 28.9))
    text = table_of(scores, "cep")
    assert r"a\_1 & $\mathbf{20 \pm 25}$ \\" in text
    assert r"b & $20 \pm 25$$^{\dagger}$ \\" in text
    assert r"c & $19 \pm 25$ \\" in text
    assert r"CEP $\uparrow$" in text
    assert r"$\dagger$: not different from the best" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1


def test_differences_that_are_more_than_chance_have_a_star():
    scores = scores_of(a=ceps(1.0, 2.0, 3.0), b=ceps(2.0, 3.1, 4.0), c=ceps(0.0, 3.0, 3.0))
    text = table_of(scores, "cep", baseline="a")
    assert r"b & $+1.0 \pm 0.1$$^{*}$ \\" in text
    assert r"c & $+0.0 \pm 2.5$ \\" in text
    assert "Difference to a, paired by seed" in text


def test_runs_that_did_not_get_there_are_counted():
    there, not_there = {"rounds_to_0.8": 10, "rounds_run": 50}, {"rounds_run": 50}
    text = table_of(scores_of(a=[there, not_there], b=[not_there] * 2), "rounds_to_0.8")
    assert r"a & $\geq 30$ (1 of 2) \\" in text
    assert r"b & -- (0 of 2) \\" in text
    assert "the others count with the length of their run" in text


def has_latex():
    """Return whether LaTeX and the package of the tables are installed."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    asked = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, check=False)
    return asked.returncode == 0


def compiled(table, folder):
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (folder / "page.tex").write_text(rf"{head}{table}\end{{document}}", encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout.decode(errors="replace")


@pytest.mark.skipif(not has_latex(), reason="there is no LaTeX with booktabs here")
def test_latex_can_read_it(tmp_path):
    names = {r"50% & more_#1 {x} ~^\ ≥ <": ceps(1.0, 2.0), "b": ceps(3.0, 3.5)}
    compiled(table_of(scores_of(**names), "cep", "success_ratio"), tmp_path)


#: What a training with two targets shows if nobody says which.
NINE = (
    *("accuracy", "loss", "worst_accuracy", "local_loss", "success_ratio"),
    *("rounds_to_0.8", "time_to_0.8_s", "rounds_to_0.9", "time_to_0.9_s"),
)


def nine_columns():
    rng = np.random.default_rng(0)

    def runs():
        return [
            {key: rng.uniform(1000, 90000) if "_to_" in key else rng.uniform() for key in NINE}
            for _ in range(4)
        ]

    late = runs()
    late[0]["rounds_to_0.9"] = late[0]["time_to_0.9_s"] = math.nan
    return scores_of(**{"power-of-choice": runs(), "guarded e3cs": late, "random": runs()})


def test_many_columns_stand_in_blocks_that_fit_a_line():
    text = table_of(nine_columns(), *NINE)
    blocks = re.findall(r"\\begin\{tabular\}\{l(r+)\}", text)
    assert sum(map(len, blocks)) == 9
    assert 2 <= len(blocks) <= 4
    assert text.count("Selector &") == len(blocks)
    assert text.count(r"\caption") == text.count(r"\label") == 1
    assert len(re.findall("tabular", table_of(nine_columns(), "accuracy", "loss"))) == 2


@pytest.mark.skipif(not has_latex(), reason="there is no LaTeX with booktabs here")
@pytest.mark.parametrize("baseline", [None, "random"])
def test_no_line_is_too_wide(tmp_path, baseline):
    text = table_of(nine_columns(), *NINE, baseline=baseline)
    assert "Overfull" not in compiled(text, tmp_path)


# the command -----------------------------------------------------------------------------------


def test_export_writes_tables_that_can_be_read_back(trained, tmp_path):
    import pandas

    done = export(trained, "--csv", "--parquet", "--out", tmp_path / "new" / "out", "--json")
    assert done.exit_code == 0, done.output
    written = [Path(name) for name in json.loads(done.stdout)]
    assert sorted(path.name for path in written) == [
        f"{table}.{form}" for table in ("cells", "choices", "rounds") for form in ("csv", "parquet")
    ]
    results = turnout.open_runs(trained)
    for path in written:
        read = pandas.read_csv if path.suffix == ".csv" else pandas.read_parquet
        frame, expected = read(path), results.to_frame(path.stem)
        assert frame.shape == expected.shape
        assert list(frame["seed"]) == list(expected["seed"])
    cells = pandas.read_parquet(tmp_path / "new" / "out" / "cells.parquet")
    assert cells["accuracy"].tolist() == results.to_frame()["accuracy"].tolist()
    assert {"rounds_to_0.3", "time_to_0.5_s"} <= set(cells.columns)


def test_export_writes_latex_and_figures(trained, simulated, tmp_path):
    options = ("--metrics", "accuracy", "--baseline", "random", "--out", tmp_path)
    assert export(trained, "--latex", "--pdf", "--width", "one", *options).exit_code == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["curves.pdf", "differences.tex", "table.tex"]
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert "accuracy" in (tmp_path / "table.tex").read_text()
    both = tmp_path / "both"
    assert export(trained, simulated, "--latex", "--pdf", "--out", both).exit_code == 0
    names = sorted(path.name for path in both.iterdir())
    assert names == ["curves.pdf", "table-1.tex", "table-2.tex"]  # no profile of unlike metrics


def test_worlds_judged_by_the_same_metric_have_a_profile(simulated, tmp_path):
    other = run_folder(tmp_path / "other", *LABELS, n_rounds=9, seeds=2)
    assert export(simulated, other, "--pdf", "--out", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "profile.pdf").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to write: give --csv, --parquet, --latex or --pdf"),
        (("--csv", "--metrics", "accuracy,losss"), "Did you mean 'loss'?"),
        (("--pdf", "--width", "three"), "--width must be one of 'one', 'two', got 'three'"),
        (("--latex", "--baseline", "e3cs"), "Did you mean 'e3cs-0.5'?"),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_line(simulated, tmp_path, options, message):
    done = export(simulated, *options, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("package", "option"), [("pandas", "--csv"), ("pyarrow", "--parquet")])
def test_without_a_package_the_message_says_what_to_install(
    simulated, tmp_path, monkeypatch, package, option
):
    monkeypatch.setitem(sys.modules, package, None)
    done = export(simulated, option, "--out", tmp_path)
    assert done.exit_code == 2
    assert "pip install 'turnout[frames]'" in done.stderr


def test_a_file_where_the_folder_should_be(simulated, tmp_path):
    (tmp_path / "file").write_text("")
    done = export(simulated, "--csv", "--out", tmp_path / "file")
    assert done.exit_code == 1
    assert "choose another --out" in done.stderr


def test_compare_draws_its_own_selectors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ("--clients", "10", "--cohort", "3", "--rounds", "5", "--seeds", "1", "--jobs", "1")
    done = CliRunner().invoke(app, ["compare", "random", *sizes, "--figures", "figures"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in Path("figures").iterdir()) == [
        f"curves.{form}" for form in ("pdf", "png", "svg")
    ]


# several worlds --------------------------------------------------------------------------------


def test_over_worlds_the_better_direction_counts():
    easy = scores_of(a=[{"loss": 0.1}, {"loss": 0.2}], b=[{"loss": 0.15}, {"loss": 0.3}])
    hard = scores_of(b=[{"loss": 3.0}, {"loss": 4.0}], a=[{"loss": 1.0}] * 2, c=[{"loss": 1.0}])
    across = Across([easy, hard])
    assert across.labels == ("a", "b")  # c is in one world only
    assert across.interquartile_mean("loss")["a"].value == pytest.approx((0.2 + 1.0) / 2)
    # a is lower in 3 of 4 pairs of the first world, and in all of the second
    better = across.probability_of_improvement("loss", "b")
    assert better.keys() == {"a"}
    assert better["a"].value == pytest.approx((0.75 + 1.0) / 2)
    profile = across.performance_profile("loss", np.array([0.18, 2.0]))
    assert profile["a"].tolist() == [0.25, 1.0]  # the share of runs with a lower loss
    with pytest.raises(turnout.InvalidInput, match="'regret' has no better direction"):
        across.probability_of_improvement("regret", "b")
    with pytest.raises(turnout.InvalidInput, match="'accuracy' has no number for a"):
        across.interquartile_mean("accuracy")
