"""Run folders written before ``turnout.results`` existed are read, reported and resumed.

The folders in ``old_format`` were written at commit 4b97097, two of them interrupted after two
thirds of their rounds.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from turnout.data import Shards
from turnout.experiment import Experiment, read_cell, run_experiment
from turnout.report import write_report
from turnout.results.files import read_arrays
from turnout.results.reader import read_cells
from turnout.results.run import REPORTED
from turnout.training import LocalWork, Logistic, Training

OLD = Path(__file__).with_name("old_format")
LOCAL = LocalWork(epochs=1, batch_size=20, lr=0.1)
RECIPE = Training(
    partition=Shards(2),
    model=Logistic(),
    local=LOCAL,
    evaluate_clients_every=3,
    target_accuracy=(0.3, 0.99),
)
SIZES = {"world": "e3cs", "n_clients": 12, "cohort_size": 3, "seeds": 1}


def experiment(name):
    if name.endswith("training"):
        return Experiment(["e3cs"], name=f"old-{name}", training=RECIPE, n_rounds=6, **SIZES)
    return Experiment(["e3cs:quota=0.8"], name=f"old-{name}", n_rounds=12, **SIZES)


@pytest.mark.parametrize(
    ("cell", "kind", "n_rounds"),
    [
        ("simulation/e3cs-quota-0.8/seed-0", "simulation", 12),
        ("training/e3cs/seed-0", "training", 6),
        ("flower/e3cs/seed-2", "flower", 6),
    ],
)
def test_a_complete_old_cell_is_read(cell, kind, n_rounds):
    back = read_cell(str(OLD / cell))
    assert (back.settings.kind, back.run.n_rounds) == (kind, n_rounds)
    assert back.summary["cep"] == back.run.cep[-1]
    assert back.summary["wasted_s"] == pytest.approx(back.run.wasted_s)
    assert back.series["completed"].sum() == back.run.cep[-1]
    assert ("regret" in back.curves) == (kind != "flower")
    assert ("loss" in back.scores) == (kind == "training")
    if kind == "training":
        assert back.run.accuracy[-1] == back.summary["accuracy"]


@pytest.mark.slow
def test_all_old_folders_are_reported(tmp_path):
    cells, problems = read_cells([OLD])
    assert len(cells) == 5
    assert [problem.kind for problem in problems] == ["incomplete"] * 2
    for name in ("simulation", "training", "flower", "interrupted", "interrupted-training"):
        write_report([OLD / name], tmp_path / f"{name}.html")
        assert "e3cs" in (tmp_path / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["simulation", "training"])
def test_a_complete_old_folder_is_not_run_again(name, tmp_path):
    shutil.copytree(OLD / name, tmp_path / name)
    grid = run_experiment(experiment(name), tmp_path / name, n_jobs=1)
    assert [cell.status for cell in grid.runs] == ["skipped"]
    (path,) = (OLD / name).glob("*/seed-0")
    assert grid.runs[0].summary == json.loads((path / "summary.json").read_text())


@pytest.mark.parametrize("name", ["interrupted", "interrupted-training"])
def test_an_interrupted_old_folder_goes_on(name, tmp_path):
    """The rest is what the old code would have run: the complete folder beside it has it.

    A model that is trained on another kind of processor differs in its last digits.
    """
    shutil.copytree(OLD / name, tmp_path / name)
    grid = run_experiment(experiment(name), tmp_path / name, n_jobs=1)
    assert [cell.status for cell in grid.runs] == ["resumed"]
    (whole,) = (OLD / ("training" if "training" in name else "simulation")).glob("*/seed-0")
    (resumed,) = (tmp_path / name).glob("*/seed-0")
    rtol = 1e-6 if "training" in name else 0.0
    before, after = (
        [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        for path in (whole, resumed)
    )
    assert after == [pytest.approx(row, rel=rtol, abs=0.0, nan_ok=True) for row in before]
    before, after = (read_arrays(path / "selections.npz") for path in (whole, resumed))
    assert before.keys() == {name for name in after if not name.startswith(REPORTED)}
    for column, values in before.items():
        np.testing.assert_allclose(after[column], values, rtol, err_msg=column)
