"""Ctrl-C and SIGTERM: the run stops after its round and saves a checkpoint, and resumes there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from turnout.core.selector import Selector
from turnout.core.types import RoundContext, Selection
from turnout.experiment import Experiment, run_experiment
from turnout.results.files import PROGRESS, ROUNDS, SUMMARY, read_arrays

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

#: Long enough to be interrupted, and no checkpoint falls due by itself.
SIZES = ("--rounds", "4000", "--clients", "100", "--cohort", "10", "--seeds", "1")
COMMAND = ("compare", "random", "e3cs", *SIZES)


def default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a shell's & leaves the first ignored


def interrupted(
    folder: Path,
    arguments: tuple[str, ...],
    number: int,
    log: str,
    *,
    to_all: bool = False,
    patch: str = "",
) -> tuple[int, str]:
    """Start a command, interrupt it in its first rounds and return its exit code and messages.

    Args:
        folder: Where it works.
        arguments: The command.
        number: The signal.
        log: A pattern of the log whose first line is waited for.
        to_all: Whether its workers get the signal as well.
        patch: What is executed before the command.
    """
    patch += (
        "import turnout.experiment.cell as cell; cell._MOST_CHECKPOINTS = 1;"
        "cell._CHECKPOINT_SECONDS = 1e9;"
        "from turnout.__main__ import main; main()"
    )
    command = [sys.executable, "-c", patch, *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=default_signals,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 180
        while not any(log.stat().st_size for log in folder.glob(log)):
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        if to_all:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        messages = process.communicate(timeout=180)[1]
    return process.returncode, " ".join(messages.split())


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
BOTH = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)


def round_saved(cell: Path) -> int:
    """Return the round that a checkpoint goes on with."""
    assert not (cell / SUMMARY).exists()
    return int(read_arrays(cell / PROGRESS)["cell.round"])


@BOTH
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_run_resumes_from_where_it_was(
    jobs: str, number: signal.Signals, tmp_path: Path
) -> None:
    command = (*COMMAND, "--jobs", jobs, "--out", "cut")
    code, messages = interrupted(tmp_path, command, number, f"cut/random/*/{ROUNDS}")
    assert code == CODES[number]
    done = round_saved(tmp_path / "cut" / "random" / "seed-0")
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"Stopped by {name} with 0 of 2 runs complete and " in messages
    assert re.search(rf"\b{done:,}\b", messages.partition("saved after round")[2])
    assert "The same command goes on from there." in messages
    sizes = {"n_rounds": 4000, "n_clients": 100, "cohort_size": 10, "seeds": 1}
    made = Experiment(["random", "e3cs"], "compare", **sizes)
    resumed = run_experiment(made, tmp_path / "cut", n_jobs=1)
    assert resumed.runs[0].status == "resumed"
    whole = run_experiment(made, tmp_path / "whole", n_jobs=1)
    for ours, theirs in zip(resumed.runs, whole.runs, strict=True):
        assert (ours.path / ROUNDS).read_bytes() == (theirs.path / ROUNDS).read_bytes()
        same = {key: value for key, value in ours.summary.items() if key != "seconds"}
        assert same == {key: theirs.summary[key] for key in same}


def test_a_signal_to_all_processes_saves_as_well(tmp_path: Path) -> None:
    """As a container engine, systemd and Slurm send it."""
    command = (*COMMAND, "--jobs", "2", "--out", "cut")
    code, messages = interrupted(
        tmp_path, command, signal.SIGTERM, f"cut/random/*/{ROUNDS}", to_all=True
    )
    assert code == 143
    assert round_saved(tmp_path / "cut" / "random" / "seed-0") > 0
    assert "Stopped by SIGTERM" in messages


LONG = "100000"
TRAINED = ("--train", "--data", "digits", "--clients", "12", "--cohort", "3", "--jobs", "1")
FIGURE = ("rbcs-f", "--figure", "4", "--rounds", LONG, "--seeds", "1", "--no-extras")
COMMANDS = {
    "train": ("compare", "random", *TRAINED, "--rounds", LONG, "--seeds", "1", "--out", "out"),
    "simulate": ("simulate", "e3cs", "--rounds", LONG, "--out", "out"),
    "reproduce": ("reproduce", *FIGURE, "--jobs", "1", "--out", "out", "--results", "kept"),
    "arena": ("arena", "random", "--task", "world.toml", "--seeds", "2", "--jobs", "1"),
}


#: Lets the arena train on embedded data.
EMBEDDED = (
    "from turnout.studies.arena_tasks import tasks_named;"
    "tasks_named(['volatile'])[0].table['training'].update("
    "source='digits', partition='iid', local={'batch_size': 10});"
)


@BOTH
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_saves_and_says_so(name: str, number: signal.Signals, tmp_path: Path) -> None:
    command = COMMANDS[name]
    if name == "arena":
        (tmp_path / "world.toml").write_text('volatility = { kind = "reliable" }\n')
        command = (*command, "--out", "out")
    patch = EMBEDDED if name == "arena" else ""
    code, messages = interrupted(tmp_path, command, number, f"out/**/{ROUNDS}", patch=patch)
    assert code == CODES[number]
    (progress,) = tmp_path.glob(f"out/**/{PROGRESS}")
    assert f"one saved after round {round_saved(progress.parent):,}. " in messages
    assert "The same command goes on from there." in messages
    assert "Traceback" not in messages


def test_without_a_folder_nothing_is_kept_and_that_is_said(tmp_path: Path) -> None:
    code, messages = interrupted(
        tmp_path, ("simulate", "e3cs", "--rounds", LONG), signal.SIGTERM, f"**/{ROUNDS}"
    )
    assert code == 143
    assert messages == "Stopped by SIGTERM before the end. Nothing is kept without --out."


def test_fresh_would_start_again_and_that_is_said(tmp_path: Path) -> None:
    command = (*COMMANDS["simulate"], "--fresh")
    _, messages = interrupted(tmp_path, command, signal.SIGTERM, f"out/**/{ROUNDS}")
    assert "The same command without --fresh goes on from there." in messages


def test_a_handler_of_the_program_stays(tmp_path: Path) -> None:
    seen: list[int] = []

    def own(number: int, frame: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, own)
    try:
        made = Experiment(["tests.experiment.test_interrupt:Signalled"], n_rounds=5, seeds=1)
        (run,) = run_experiment(made, tmp_path, n_jobs=1).runs
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (run.status, seen) == ("complete", [signal.SIGTERM])


class Signalled(Selector):
    """Sends SIGTERM to its process in round 2."""

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        if ctx.round == 2:
            signal.raise_signal(signal.SIGTERM)
        return Selection(ctx.round, ctx.pool[: ctx.size])
