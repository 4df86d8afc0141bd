from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.core.errors import InvalidInput
from turnout.experiment import Experiment, Shard, run_experiment
from turnout.results.merge import merge


def small(**changes: Any) -> Experiment:
    sizes = {"n_rounds": 10, "seeds": 3, "n_clients": 20, "cohort_size": 4}
    return Experiment(["random", "e3cs"], "grid", world="e3cs", **(sizes | changes))


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_the_shards_are_the_whole_without_overlap(count: int) -> None:
    parts = [Shard(index, count).of(range(7)) for index in range(count)]
    assert sorted(number for part in parts for number in part) == list(range(7))


def test_numbers_go_on_from_grid_to_grid() -> None:
    cells = range(20)
    for n_before in (0, 3, 7):
        rest = cells[n_before:]
        assert Shard(1, 4).after(n_before).of(rest) == [n for n in rest if n % 4 == 1]


def test_a_shard_reads_back() -> None:
    assert Shard.parse(str(Shard(2, 10))) == Shard(2, 10)


@pytest.mark.parametrize(
    "text", ["3/2", "2/2", "0/0", "x", "1", "-1/2", "1/2/3", "1 / 2", "", "²/3"]
)
def test_text_that_is_no_shard_is_one_line(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"shard must be i/n with 0 <= i < n") as raised:
        Shard.parse(text)
    assert raised.value.field == "shard"
    done = CliRunner().invoke(app, ["compare", "random", f"--shard={text}"])
    assert done.exit_code == 2
    assert done.output.count("\n") == 1


def test_shards_joined_are_the_grid(tmp_path: Path) -> None:
    folders = [tmp_path / f"shard-{index}" for index in range(4)]
    grids = [
        run_experiment(small(), folder, n_jobs=1, shard=Shard(index, 4))
        for index, folder in enumerate(folders)
    ]
    assert [len(grid.runs) for grid in grids] == [2, 2, 1, 1]
    merge(tmp_path / "all", folders)
    whole = run_experiment(small(), tmp_path / "all", n_jobs=1)
    assert [cell.status for cell in whole.runs] == ["skipped"] * 6


def test_a_shard_may_be_empty(tmp_path: Path) -> None:
    assert not run_experiment(small(), tmp_path, shard=Shard(8, 9)).runs


def test_the_command_says_how_the_grid_becomes_whole(tmp_path: Path) -> None:
    command = ["compare", "random", "e3cs", "--rounds", "5", "--seeds", "1", "--jobs", "1"]
    command += ["--shard", "1/2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "Shard 1/2: 1 of 1 runs are complete" in " ".join(done.output.split())
    shown = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert shown == {"shard": "1/2", "folder": str(tmp_path), "n_runs": 1, "n_complete": 1}


def test_a_paper_in_shards(tmp_path: Path) -> None:
    paper = ["reproduce", "rbcs-f", "--figure", "2", "--rounds", "3", "--seeds", "1", "--jobs", "1"]
    paper += ["--no-extras"]
    folders = [str(tmp_path / f"shard-{index}") for index in range(2)]
    n_runs = []
    for index, folder in enumerate(folders):
        shard = ["--shard", f"{index}/2", "--out", folder, "--json"]
        n_runs.append(json.loads(CliRunner().invoke(app, [*paper, *shard]).stdout)["n_complete"])
    assert abs(n_runs[0] - n_runs[1]) <= 1
    assert CliRunner().invoke(app, ["merge", str(tmp_path / "all"), *folders]).exit_code == 0
    collected = ["--collect", "--json", "--out", str(tmp_path / "all")]
    shown = json.loads(CliRunner().invoke(app, [*paper, *collected]).stdout)
    seeds = [scheme["seeds"] for part in shown["settings"] for scheme in part["schemes"].values()]
    assert len(seeds) == sum(n_runs)
    assert all(numbers == [0] for numbers in seeds)


def test_a_shard_is_not_collected(tmp_path: Path) -> None:
    command = ["reproduce", "rbcs-f", "--collect", "--shard", "0/2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "--collect and --shard exclude each other" in done.output
