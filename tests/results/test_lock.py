"""One process at a time writes a run folder, and workers do not outlive who started them."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.experiment import Experiment, Shard, run_experiment
from turnout.results.files import FolderInUse, locked
from turnout.results.merge import merge

#: Takes minutes; both cells run at the same time.
COMMAND = ("compare", "random", "e3cs", "--seeds", "1", "--jobs", "2", "--rounds", "1000000")


def small(n_rounds=5):
    return Experiment(["random", "e3cs"], n_clients=8, cohort_size=2, n_rounds=n_rounds, seeds=1)


def test_the_second_is_told_who_holds_the_folder(tmp_path):
    with locked(tmp_path) as notes:
        assert notes == ()
        with pytest.raises(FolderInUse) as refused:
            run_experiment(small(), tmp_path, n_jobs=1)
        assert os.listdir(tmp_path) == [".turnout.lock"]
    message = str(refused.value)
    assert message.startswith(f"{tmp_path} is in use by process {os.getpid()} on ")
    assert socket.gethostname() in message
    assert time.strftime("since %Y-%m-", time.gmtime()) in message
    assert "pytest" in message
    assert os.listdir(tmp_path) == []
    assert run_experiment(small(), tmp_path, n_jobs=1).notes == ()


def test_the_command_ends_with_exit_code_2(tmp_path):
    with locked(tmp_path):
        result = CliRunner().invoke(app, ["simulate", "random", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert f"process {os.getpid()}" in result.output


def test_nothing_is_left_behind(tmp_path):
    run_experiment(small(), tmp_path / "a", n_jobs=1)
    merge(tmp_path / "all", [tmp_path / "a"])
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".lock")]


def test_a_merge_does_not_write_beside_a_run(tmp_path):
    run_experiment(small(), tmp_path / "a", n_jobs=1)
    with locked(tmp_path / "all"), pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
        merge(tmp_path / "all", [tmp_path / "a"])


def test_a_lock_that_nobody_holds_is_taken_over(tmp_path):
    (tmp_path / ".turnout.lock").write_text("process 1 on elsewhere since then (turnout compare)")
    (tmp_path / ".turnout-0-of-2.lock").write_text("process 2 on elsewhere")
    grid = run_experiment(small(), tmp_path, n_jobs=1)
    assert [note.partition("left behind by ")[2] for note in grid.notes] == [
        "process 1 on elsewhere since then (turnout compare): taken over.",
        "process 2 on elsewhere: taken over.",
    ]
    assert grid.failed == ()
    assert not list(tmp_path.glob(".turnout*"))


def test_shards_of_one_number_share_a_folder(tmp_path):
    with locked(tmp_path, "0/2"):
        assert run_experiment(small(), tmp_path, n_jobs=1, shard=Shard(1, 2)).failed == ()
        for shard in (None, Shard(0, 2), Shard(1, 3)):  # these would write the same cells
            with pytest.raises(FolderInUse, match="in use by process"):
                run_experiment(small(), tmp_path, n_jobs=1, shard=shard)
    with locked(tmp_path), pytest.raises(FolderInUse, match="in use by process"):
        run_experiment(small(), tmp_path, n_jobs=1, shard=Shard(0, 2))


def heed_signals():
    """Undo what nohup and a shell's ``&`` leave behind: children would ignore HUP and INT."""
    for name in (signal.SIGHUP, signal.SIGINT):
        signal.signal(name, signal.SIG_DFL)


@pytest.fixture
def running(tmp_path):
    """A comparison whose two workers are at work, in a process group of its own."""
    command = [sys.executable, "-m", "turnout", *COMMAND, "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, preexec_fn=heed_signals
    )
    try:
        wait_for(lambda: len(list(tmp_path.glob("*/seed-0/rounds.jsonl"))) == 2)
        yield process
    finally:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def members(group):
    """Return the living processes of a group; those that are dead but not waited for are none."""
    listed = subprocess.run(["ps", "-eo", "pid,pgid,stat"], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, of, state, *_ in rows if int(of) == group and state[0] != "Z"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL", "SIGINT"])
def test_workers_end_with_their_parent(name, running, tmp_path):
    assert len(members(running.pid)) >= 3
    os.kill(running.pid, getattr(signal, name))  # to the parent alone
    code = running.wait(20)
    wait_for(lambda: not members(running.pid), 20)
    codes = {"SIGINT": 130, "SIGTERM": 143}
    assert code == codes.get(name, -getattr(signal, name))
    with locked(tmp_path) as notes:
        assert len(notes) == (name not in codes)
        assert all(f"process {running.pid} on" in note for note in notes)
