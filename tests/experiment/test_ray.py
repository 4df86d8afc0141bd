"""A grid on a Ray cluster of two workers, which runs outside this process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from typer.testing import CliRunner

from tests.docs.test_docs import SHORT, commands
from tests.experiment.cluster_parts import HERE, KILLED_ROUNDS, small
from turnout.cli import app
from turnout.core.errors import InvalidInput, MissingExtra
from turnout.experiment import Advance, run_experiment
from turnout.experiment.cell import CellTask
from turnout.experiment.ray_pool import Piece, check_cluster, unpack, work
from turnout.results.files import read_arrays, read_json
from turnout.results.settings import versions

pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]

#: Far more seconds than a grid takes.
PATIENCE_S = 300.0

CLUSTER = """
import ray
options = dict(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray.init(address="local", num_cpus=2, object_store_memory=150_000_000, **options)
print(ray.get_runtime_context().gcs_address, flush=True)
input()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, int]]:
    """The address of a cluster of two workers, and the process that started it."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": paths, "RAY_worker_niceness": "0"}
    command = [sys.executable, "-W", "ignore", "-c", CLUSTER]
    with subprocess.Popen(command, env=environment, cwd=ROOT, **pipes) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
        process.communicate("\n", timeout=60)


@pytest.fixture
def address(cluster: tuple[str, int]) -> str:
    return cluster[0]


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that was computed in a folder: everything but seconds and versions."""
    content: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "summary.json":
            content[name] = {**read_json(path), "seconds": None}
        elif path.name == "progress.npz":
            arrays = read_arrays(path).items()
            content[name] = {key: a.tolist() for key, a in arrays if key != "cell.seconds"}
        elif path.name != "versions.json":
            content[name] = path.read_bytes()
    return content


def test_a_killed_worker_changes_no_number(address: str, tmp_path: Path) -> None:
    mortal = f"mortal=tests.experiment.cluster_parts:Mortal:marker={tmp_path / 'killed'}"
    made = small(mortal, "e3cs")
    shown: list[Advance] = []
    options: dict[str, Any] = {"backend": "ray", "address": address, "checkpoint_every": 10}
    grid = run_experiment(made, tmp_path / "ray", progress=shown.append, **options)
    assert (tmp_path / "killed").exists()
    assert sorted(cell.status for cell in grid.runs) == ["complete"] * 3 + ["resumed"]
    assert shown[-1] == Advance(240, 240, 4, 4)
    run_experiment(made, tmp_path / "local", n_jobs=1, checkpoint_every=10)
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "local")


def workers(starter: int) -> list[psutil.Process]:
    """Return the processes of a cluster that run a cell."""
    found = []
    for process in psutil.Process(starter).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            title = " ".join(process.cmdline())
            if title.startswith("ray::") and ", seed " in title:
                found.append(process)
    return found


def test_kills_at_random_moments_change_no_number(
    cluster: tuple[str, int], tmp_path: Path, n_tries: Callable[[int, int], int]
) -> None:
    """Of workers, and sometimes of the process that they work for, until the grid is complete."""
    address, starter = cluster
    made = small("random", "e3cs", seeds=1, n_rounds=KILLED_ROUNDS)
    run_experiment(made, tmp_path / "local", n_jobs=1)
    expected, folder = outcome(tmp_path / "local"), tmp_path / "ray"
    command = [sys.executable, "-m", "tests.experiment.cluster_parts", str(folder), address]
    rng, n_killed, n_kills = np.random.default_rng(17), 0, n_tries(2, 30)
    caller = subprocess.Popen(command, cwd=ROOT)
    while n_killed < n_kills:
        time.sleep(rng.uniform(0.05, 1.0))
        if caller.poll() is not None:
            if caller.returncode == 0:  # complete; otherwise a cell was given up, and is resumed
                assert outcome(folder) == expected
                shutil.rmtree(folder)
            caller = subprocess.Popen(command, cwd=ROOT)
        alive = workers(starter)
        if not alive:
            continue
        victim = caller if rng.random() < 0.2 else alive[rng.integers(len(alive))]
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            n_killed += 1
    caller.wait(PATIENCE_S)
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S).returncode == 0
    assert outcome(folder) == expected


def test_training_survives_a_worker_and_needs_no_data_on_the_workers(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HERE, "yes")
    training = {"source": "tests.experiment.cluster_parts:OnlyHere", "model": "logistic"}
    mortal = f"mortal=tests.experiment.cluster_parts:Mortal:marker={tmp_path / 'killed'},round=3"
    made = small(mortal, n_rounds=6, training=training)
    options: dict[str, Any] = {"n_jobs": 1, "checkpoint_every": 2}
    grid = run_experiment(made, tmp_path / "ray", backend="ray", address=address, **options)
    assert sorted(cell.status for cell in grid.runs) == ["complete", "resumed"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker has
    run_experiment(made, tmp_path / "local", **options)
    torch.set_num_threads(before)
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "local")


def test_an_interrupted_grid_goes_on_without_ray_and_back(address: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    made = dataclasses.replace(small("e3cs", seeds=1, n_rounds=12000), name="compare")
    command = (
        f"compare e3cs --world e3cs --rounds 12000 --clients 30 --cohort 5 --seeds 1 --out {cut}"
    )
    command += f" --backend ray --address {address}"
    # A shell that starts the tests in the background has SIGINT ignored, and children inherit that.
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "from turnout.__main__ import main; main()"
    turnout = [sys.executable, "-c", start, *command.split()]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(turnout, **pipes) as process:
        for _ in range(3000):  # until the first checkpoint, for a minute at most
            if process.poll() is not None or (cut / "e3cs/seed-0/progress.npz").exists():
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert not (cut / "e3cs" / "seed-0" / "summary.json").exists()
    options: dict[str, Any] = {"backend": "ray", "address": address}
    there = run_experiment(made, tmp_path / "cut", n_jobs=1)
    assert [cell.status for cell in there.runs] == ["resumed"]
    run_experiment(made, tmp_path / "whole", n_jobs=1)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    again = run_experiment(made, tmp_path / "cut", **options)
    assert [cell.status for cell in again.runs] == ["skipped"]


def test_the_commands_of_the_page_run(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", address)  # where "auto" looks first
    printed = commands((ROOT / "docs" / "howto" / "cluster.md").read_text(encoding="utf-8"))
    assert [arguments[0] for arguments in printed] == ["compare"] * 2 + ["merge"] + ["compare"] * 2
    for arguments in printed:
        done = CliRunner().invoke(app, [*arguments, *SHORT.get(arguments[0], [])])
        assert done.exit_code == 0, f"{arguments}: {done.output}"
    assert outcome(tmp_path / "runs" / "all") == outcome(tmp_path / "runs" / "ray")


def test_a_cell_that_kills_every_worker_is_given_up(address: str, tmp_path: Path) -> None:
    made = small("mortal=tests.experiment.cluster_parts:Mortal", "random", seeds=1)
    grid = run_experiment(made, tmp_path, backend="ray", address=address, n_jobs=1)
    assert [cell.status for cell in grid.runs] == ["failed", "complete"]
    assert "its worker was lost 3 times in a row" in grid.runs[0].message


def test_a_paper_comes_out_as_without_ray(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "reproduce rbcs-f --figure 4 --rounds 20 --seeds 1 --no-extras"
    options = {"ray": f"--backend ray --address {address}", "local": "--jobs 1"}
    kept = {}
    for name, more in options.items():
        line = f"{command} --results {name} --out runs/{name} {more}"
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code == 0, done.output
        kept[name] = read_json(tmp_path / name / "rbcs-f.json")["parts"]
    assert kept["ray"] == kept["local"]
    assert [len(part["schemes"]) for part in kept["ray"]] == [7]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--backend", "spark"], "backend must be one of 'local', 'ray', got 'spark'."),
        (["--address", "auto"], "address 'auto' names a Ray cluster, which needs backend='ray'."),
        (["--backend", "ray", "--address", "10001"], "address must be auto or HOST:PORT"),
        (["--backend", "ray", "--address", "ray://h:1"], "address must be auto or HOST:PORT"),
        (
            ["--backend", "ray", "--address", "127.0.0.1:1"],
            "address 127.0.0.1:1 did not answer within 10 s",
        ),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["compare", "random", "--seeds", "1", *arguments])
    assert done.exit_code == 2
    assert line in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_without_a_cluster_of_this_machine_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: Any) -> None:
        assert options["address"] == "auto"
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    command = ["compare", "random", "--seeds", "1", "--backend", "ray", "--address", "auto"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "any running Ray instance. Start a cluster by ray start --head." in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_cluster_of_this_machine_is_looked_for_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("ray.init", lambda **options: calls.append(options["address"]))
    monkeypatch.setattr("ray.shutdown", lambda: calls.append("shutdown"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_cluster("auto")
    assert calls == ["auto", "shutdown"]


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnout\[ray\]'"):
        run_experiment(small("random"), tmp_path / "run", backend="ray")
    assert not (tmp_path / "run").exists()


def test_callbacks_cannot_follow_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="callbacks need backend='local'"):
        run_experiment(small("random"), tmp_path, backend="ray", callbacks=lambda label, seed: [])


def test_pieces_replace_a_file_or_go_on_in_it(tmp_path: Path) -> None:
    unpack([Piece("a", 0, b"abcdef"), Piece("b", 0, b"1")], tmp_path / "cell")
    unpack([Piece("a", 2, b"X")], tmp_path / "cell")
    assert (tmp_path / "cell" / "a").read_bytes() == b"abX"
    assert (tmp_path / "cell" / "b").read_bytes() == b"1"


def test_a_node_with_another_version_refuses(tmp_path: Path) -> None:
    made = small("random")
    task = CellTask(made, made.selectors[0], 0, tmp_path, versions() | {"numpy": "0.1"})
    wanted = r"numpy is \"0\.1\" in the caller's process and .* in that of node .* Install the"
    with pytest.raises(InvalidInput, match=wanted):
        next(work(task, None, {}))


def test_a_worker_names_the_folder_of_the_caller(tmp_path: Path) -> None:
    made = small("random")
    task = CellTask(made, made.selectors[0], 0, tmp_path / "cell", versions())
    *_, last = work(task, None, {"config.json": b"{}"})
    assert last.result is not None
    assert last.result.status == "damaged"
    assert f"{tmp_path / 'cell'} holds another run" in last.result.message


def test_what_the_caller_holds_is_not_sent_back(tmp_path: Path) -> None:
    made = small("random", seeds=1)
    task = CellTask(made, made.selectors[0], 0, tmp_path / "cell", versions(), 10)
    held: dict[str, bytes] = {}
    for parcel in work(task, None, {}):
        held |= {piece.name: piece.content for piece in parcel.pieces if not piece.start}
        if "progress.npz" in held:
            break
    rest = [[piece.name for piece in parcel.pieces] for parcel in work(task, None, held)]
    assert "state.npz" in held
    assert sum("progress.npz" in names for names in rest) == 5  # after rounds 20, 30, 40, 50, 60
    assert all(names[-1] in ("progress.npz", "summary.json") for names in rest)
