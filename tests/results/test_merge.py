from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.core.errors import InvalidInput, OutputError
from turnout.experiment import Experiment, run_experiment
from turnout.results import FolderError
from turnout.results.merge import merge


def small(**changes: Any) -> Experiment:
    sizes = {"n_rounds": 20, "seeds": 2, "n_clients": 20, "cohort_size": 4}
    return Experiment(["random", "e3cs"], "grid", world="e3cs", **(sizes | changes))


def everything(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for name, label in (("a", "random"), ("b", "e3cs")):
        run_experiment(small(), folder / name, n_jobs=1, labels=[label])
    return folder


@pytest.fixture
def shards(originals: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of one experiment, each with the runs of one selector."""
    shutil.copytree(originals, tmp_path, dirs_exist_ok=True)
    return tmp_path / "a", tmp_path / "b"


def test_folders_of_one_experiment_are_joined(shards: tuple[Path, Path], tmp_path: Path) -> None:
    merged = merge(tmp_path / "all", shards)
    assert len(merged.added) == 4
    assert not merged.present
    both = everything(shards[0]) | everything(shards[1])
    assert everything(tmp_path / "all") == both
    grid = run_experiment(small(), tmp_path / "all", n_jobs=1)
    assert {cell.status for cell in grid.runs} == {"skipped"}


def test_joining_again_changes_nothing(shards: tuple[Path, Path], tmp_path: Path) -> None:
    merge(tmp_path / "all", shards)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*")}
    merged = merge(tmp_path / "all", [*shards, tmp_path / "all"])
    assert not merged.added
    assert len(merged.present) == 4
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*")} == before


@pytest.mark.slow
def test_a_folder_may_hold_several_experiments(tmp_path: Path) -> None:
    for shard, label in (("a", "random"), ("b", "e3cs")):
        for name, n_rounds in (("short", 10), ("nested/long", 30)):
            made = small(n_rounds=n_rounds)
            run_experiment(made, tmp_path / shard / name, n_jobs=1, labels=[label])
    merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])
    for name, n_rounds in (("short", 10), ("nested/long", 30)):
        grid = run_experiment(small(n_rounds=n_rounds), tmp_path / "all" / name, n_jobs=1)
        assert {cell.status for cell in grid.runs} == {"skipped"}


def test_equal_copies_are_one_even_if_they_took_other_times(
    shards: tuple[Path, Path], tmp_path: Path
) -> None:
    run_experiment(small(), tmp_path / "c", n_jobs=1, labels=["e3cs"])
    merged = merge(tmp_path / "all", [*shards, tmp_path / "c"])
    assert len(merged.added) == 4


def test_another_experiment_is_refused_with_the_difference(
    shards: tuple[Path, Path], tmp_path: Path
) -> None:
    run_experiment(small(n_rounds=21), tmp_path / "other", n_jobs=1, labels=["e3cs"])
    difference = f"n_rounds is 20 in {shards[0]} and 21 in {tmp_path / 'other'}"
    with pytest.raises(FolderError, match=difference):
        merge(tmp_path / "all", [*shards, tmp_path / "other"])
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("name", ["selections.npz", "summary.json", "rounds.jsonl", "state.npz"])
def test_copies_that_differ_are_refused(
    name: str, shards: tuple[Path, Path], tmp_path: Path
) -> None:
    copy, cell = tmp_path / "c", Path("e3cs", "seed-1")
    shutil.copytree(shards[1], copy)
    if name == "summary.json":
        summary = json.loads((copy / cell / name).read_text())
        (copy / cell / name).write_text(json.dumps(summary | {"cep": summary["cep"] + 1}))
    elif name == "rounds.jsonl":
        log = (copy / cell / name).read_text()
        (copy / cell / name).write_text(log.replace('"round": 0,', '"round":  0,', 1))
    else:
        shutil.copy(copy / "e3cs" / "seed-0" / name, copy / cell / name)
    what = "cep is " if name == "summary.json" else f"{name} of "
    with pytest.raises(FolderError, match=f"two copies of a run differ: {what}"):
        merge(tmp_path / "all", [*shards, copy])
    assert not (tmp_path / "all").exists()


def change_versions(cell: Path, **changes: Any) -> None:
    """Change what made a run; None takes an entry away."""
    versions = json.loads((cell / "versions.json").read_text()) | changes
    known = {name: value for name, value in versions.items() if value is not None}
    (cell / "versions.json").write_text(json.dumps(known))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"turnout": "0.0.9"}, r'turnout is ".+" in {first} and "0\.0\.9" in {second}'),
        ({"numpy": "1.0"}, r'numpy is ".+" in {first} and "1\.0" in {second}'),
        ({"torch": "2.0"}, r'torch is "1\.0" in {first} and "2\.0" in {second}'),
        ({"code": {"mine.py": "b"}}, r'code\.mine\.py is "a" in {first} and "b" in {second}'),
        ({"files": {"t.csv": "b"}}, r'files\.t\.csv is "a" in {first} and "b" in {second}'),
    ],
)
def test_runs_of_other_versions_are_refused_with_the_difference(
    changes: dict[str, Any], difference: str, shards: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = shards[0] / "random" / "seed-0", shards[1] / "e3cs" / "seed-1"
    change_versions(first, torch="1.0", code={"mine.py": "a"}, files={"t.csv": "a"})
    change_versions(second, **changes)
    said = difference.format(first=first, second=second)
    with pytest.raises(FolderError, match=rf"{said}\. Use the same version .*--fresh"):
        merge(tmp_path / "all", shards)
    assert not (tmp_path / "all").exists()


def test_runs_of_another_version_than_those_there_are_refused(
    shards: tuple[Path, Path], tmp_path: Path
) -> None:
    merge(tmp_path / "all", shards[:1])
    before = everything(tmp_path / "all")
    change_versions(shards[1] / "e3cs" / "seed-0", numpy="1.0")
    with pytest.raises(FolderError, match="numpy is"):
        merge(tmp_path / "all", shards[1:])
    assert everything(tmp_path / "all") == before


def test_what_an_older_run_does_not_say_is_not_compared(
    shards: tuple[Path, Path], tmp_path: Path
) -> None:
    (shards[0] / "random" / "seed-0" / "versions.json").unlink()
    change_versions(shards[0] / "random" / "seed-1", code=None, files=None, numpy=None)
    change_versions(shards[1] / "e3cs" / "seed-0", platform="another", python="3.99")
    assert len(merge(tmp_path / "all", shards).added) == 4


@pytest.mark.parametrize(
    ("out", "folder", "inner", "outer"),
    [
        ("runs/all", "runs", "runs/all", "runs"),
        ("runs", "runs/shard-0", "runs/shard-0", "runs"),
        ("runs/../runs/all", "runs", "runs/../runs/all", "runs"),
    ],
)
def test_a_folder_inside_of_another_is_refused(
    out: str,
    folder: str,
    inner: str,
    outer: str,
    shards: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shards[0], tmp_path / "runs" / "shard-0")
    before = everything(tmp_path / "runs")
    said = f"{inner} is inside of {outer}, .* Name the shards, .* runs/shard-0 runs/shard-1"
    with pytest.raises(InvalidInput, match=said):
        merge(out, [folder])
    assert everything(tmp_path / "runs") == before


def test_folders_inside_of_one_another_are_refused(
    shards: tuple[Path, Path], tmp_path: Path
) -> None:
    nested = Path(shutil.copytree(shards[1], shards[0] / "nested"))
    with pytest.raises(InvalidInput, match=f"{nested} is inside of {shards[0]}, "):
        merge(tmp_path / "all", [shards[0], nested])
    assert not (tmp_path / "all").exists()


def test_a_damaged_run_is_refused(shards: tuple[Path, Path], tmp_path: Path) -> None:
    (shards[1] / "e3cs" / "seed-0" / "selections.npz").write_bytes(b"PK")
    with pytest.raises(FolderError, match=r"selections\.npz is not a complete \.npz"):
        merge(tmp_path / "all", shards)
    assert not (tmp_path / "all").exists()


def test_incomplete_runs_are_left_out_and_make_room(
    shards: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = shutil.copytree(shards[1], tmp_path / "whole")
    cell = Path("e3cs", "seed-0")
    (shards[1] / cell / "summary.json").unlink()
    merged = merge(tmp_path / "all", shards)
    assert merged.incomplete == (shards[1] / cell,)
    assert not (tmp_path / "all" / cell).exists()
    shutil.copytree(shards[1] / cell, tmp_path / "all" / cell)
    merged = merge(tmp_path / "all", [shards[1], whole])
    assert merged.added == (tmp_path / "all" / cell,)
    assert not merged.incomplete
    assert everything(tmp_path / "all" / cell) == everything(whole / cell)


@pytest.mark.parametrize("name", ["nowhere", "a/random"])
def test_a_folder_without_an_experiment_is_named(
    name: str, shards: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"holds no experiment\.json"):
        merge(tmp_path / "all", [tmp_path / name])


def test_what_cannot_be_written_is_named(shards: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "all").write_text("a file")
    with pytest.raises(OutputError, match="all cannot be written"):
        merge(tmp_path / "all", shards)


def test_what_a_killed_merge_left_is_removed(shards: tuple[Path, Path], tmp_path: Path) -> None:
    merge(tmp_path / "all", shards)
    shutil.copytree(
        shards[0] / "random" / "seed-1", tmp_path / "all" / "random" / ".k3x.tmp" / "new"
    )
    merge(tmp_path / "all", shards)
    assert not list(tmp_path.rglob(".*"))


def test_the_command_tells_what_it_did(shards: tuple[Path, Path], tmp_path: Path) -> None:
    (shards[0] / "random" / "seed-1" / "summary.json").unlink()
    command = ["merge", str(tmp_path / "all"), *map(str, shards)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "3 runs added, 0 already present." in " ".join(done.output.split())
    assert "is not complete and was left out" in " ".join(done.output.split())
    shown = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert [len(shown[name]) for name in ("added", "present", "incomplete")] == [0, 3, 1]
    (tmp_path / "all" / "experiment.json").write_text("{}")
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "different experiments" in refused.output


def test_folders_with_other_seeds_and_selectors_are_joined(tmp_path: Path) -> None:
    for name, selectors, seeds in (("a", ["random"], [0]), ("b", ["random", "e3cs"], [1])):
        experiment = Experiment(
            selectors=selectors, n_clients=6, cohort_size=2, n_rounds=3, seeds=seeds
        )
        run_experiment(experiment, tmp_path / name, n_jobs=1)
    merged = merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])
    assert len(merged.added) == 3
    table = json.loads((tmp_path / "all" / "experiment.json").read_text())
    assert [selector["label"] for selector in table["selectors"]] == ["random", "e3cs"]
    assert table["seeds"] == [0, 1]
    whole = Experiment(
        selectors=["random", "e3cs"], n_clients=6, cohort_size=2, n_rounds=3, seeds=[0, 1]
    )
    grid = run_experiment(whole, tmp_path / "all", n_jobs=1)  # only e3cs with seed 0 is lacking
    assert len(grid.runs) == 4
