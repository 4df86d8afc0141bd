"""``turnout.compare``: in Python what the command does, and the results of runs that just ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from turnout.cli import app
from turnout.core.errors import InvalidInput
from turnout.experiment import Experiment, run_experiment
from turnout.results import Results

SIZES: dict[str, Any] = {"n_rounds": 10, "n_clients": 20, "cohort_size": 4, "seeds": 2, "n_jobs": 1}
OPTIONS = [
    "--rounds",
    "10",
    "--clients",
    "20",
    "--cohort",
    "4",
    "--seeds",
    "2",
    "--jobs",
    "1",
    "--json",
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["compare", *arguments, *OPTIONS])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_it_computes_what_the_command_computes() -> None:
    rows = command("random", "e3cs:quota=0.8", "--world", "e3cs", "--deadline", "5", "--out", "a")
    results = turnout.compare(["random", "e3cs:quota=0.8"], "e3cs", deadline=5.0, out="b", **SIZES)
    assert isinstance(results, Results)
    assert results.labels == ("random", "e3cs quota=0.8")
    for row in rows:
        assert row["metrics"]["cep"]["mean"] == results.estimate("cep")[row["label"]].mean
    step = results.difference("cep", "random")["e3cs quota=0.8"]
    assert rows[1]["difference"]["cep"]["mean"] == step.estimate.mean
    kept = (Path(name, "experiment.json").read_bytes() for name in "ab")
    assert len(set(kept)) == 1


def test_a_folder_is_resumed_and_grows() -> None:
    first = turnout.compare(["random"], out="a", **SIZES)
    assert [run.status for run in first.runs] == ["complete"] * 2
    more = turnout.compare(["random", "fedcs"], out="a", **SIZES)
    assert [run.status for run in more.runs] == ["skipped"] * 2 + ["complete"] * 2
    assert more.notes == ("2 cells reused.",)
    assert more.folder == Path("a")


def test_without_a_folder_nothing_is_written_and_everything_is_there() -> None:
    results = turnout.compare(["random", "e3cs"], "e3cs", **SIZES)
    assert not list(Path().iterdir())
    assert results.folder is None
    assert not any(run.path.exists() for run in results.runs)
    assert len(results.to_frame("rounds")) == 4 * 10
    assert results.worlds[0].cells[0].run.n_rounds == 10
    assert "random: success" in repr(results)
    same = turnout.compare(["random", "e3cs"], "e3cs", out="a", **SIZES)
    assert same.estimate("cep") == results.estimate("cep")
    read = turnout.open_runs("a")
    for metric in results.metrics:
        if metric != "seconds":
            np.testing.assert_equal(read.estimate(metric), results.estimate(metric))


def test_several_worlds_and_a_sweep_are_one_object() -> None:
    results = turnout.compare(["random", "e3cs"], ["e3cs", "volatile"], **SIZES)
    assert len(results.worlds) == 2
    assert results.across.labels == ("random", "e3cs")
    with pytest.raises(InvalidInput, match="2 different worlds"):
        results.estimate("cep")
    swept = turnout.compare(["random"], sweep={"cohort_size": [4, 6]}, **SIZES)
    assert [world.settings.cohort_size for world in swept.worlds] == [4, 6]


def test_targets_need_training() -> None:
    with pytest.raises(InvalidInput, match="give training=True"):
        turnout.compare(["random"], targets=[0.5], **SIZES)


def test_a_metric_that_no_summary_has_is_computed_from_the_rounds() -> None:
    training = {"source": "digits", "local": {"epochs": 1}}
    options = SIZES | {"seeds": 1, "n_rounds": 3}
    results = turnout.compare(["random"], training=training, targets=[0.01], **options)
    assert results.estimate("rounds_to_0.01")["random"].mean == 1.0
    assert "rounds_to_0.02" not in (results.runs[0].summary or {})
    assert results.estimate("rounds_to_0.02")["random"].mean == 1.0


def test_a_selector_whose_runs_all_failed_has_no_numbers() -> None:
    Path("odd.py").write_text(
        "from turnout import Selector\n"
        "class Odd(Selector):\n"
        "    def reset(self, n_clients): self.n_clients_ = n_clients\n"
        "    def select(self, ctx, rng): raise RuntimeError('odd')\n"
    )
    sizes = {name: SIZES[name] for name in ("n_rounds", "n_clients", "cohort_size", "seeds")}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path.cwd())
        results = run_experiment(Experiment(["random", "odd:Odd"], **sizes), "a", n_jobs=1)
    assert [run.label for run in results.failed] == ["Odd", "Odd"]
    assert results.labels == ("random", "Odd")
    assert results.estimate("cep")["Odd"].n == 0
    assert "2 of 4 runs complete" in repr(results)
