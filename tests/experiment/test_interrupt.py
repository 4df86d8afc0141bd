"""Ctrl-C: the run stops after its round and saves a checkpoint, from which it resumes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnout.experiment import Experiment, run_experiment
from turnout.results.files import PROGRESS, ROUNDS, SUMMARY

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

#: Long enough to be interrupted, and no checkpoint falls due by itself.
SIZES = ("--rounds", "4000", "--clients", "100", "--cohort", "10", "--seeds", "1")
COMMAND = ("compare", "random", "e3cs", *SIZES)


def default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's & leaves it ignored


def interrupted(folder: Path, jobs: str) -> tuple[int, str]:
    """Start the command, interrupt it in its first rounds and return its exit code and messages."""
    patch = (
        "import turnout.experiment.cell as cell; cell._MOST_CHECKPOINTS = 1;"
        "from turnout.__main__ import main; main()"
    )
    command = [sys.executable, "-c", patch, *COMMAND, "--jobs", jobs, "--out", str(folder)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupt
    ) as process:
        end = time.monotonic() + 60
        while not any(log.stat().st_size for log in folder.glob(f"random/*/{ROUNDS}")):
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        messages = process.communicate(timeout=60)[1]
    return process.returncode, messages


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_run_resumes_from_where_it_was(jobs: str, tmp_path: Path) -> None:
    code, messages = interrupted(tmp_path / "cut", jobs)
    assert code == 130
    assert "Interrupted. The same command resumes from here." in messages
    cell = tmp_path / "cut" / "random" / "seed-0"
    assert (cell / PROGRESS).exists()
    assert not (cell / SUMMARY).exists()
    sizes = {"n_rounds": 4000, "n_clients": 100, "cohort_size": 10, "seeds": 1}
    made = Experiment(["random", "e3cs"], "compare", **sizes)
    resumed = run_experiment(made, tmp_path / "cut", n_jobs=1)
    assert resumed.runs[0].status == "resumed"
    whole = run_experiment(made, tmp_path / "whole", n_jobs=1)
    for ours, theirs in zip(resumed.runs, whole.runs, strict=True):
        assert (ours.path / ROUNDS).read_bytes() == (theirs.path / ROUNDS).read_bytes()
        same = {key: value for key, value in ours.summary.items() if key != "seconds"}
        assert same == {key: theirs.summary[key] for key in same}
