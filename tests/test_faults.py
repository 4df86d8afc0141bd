"""A disk that is full, a folder that goes away, a process that is killed: nothing finished is lost.

Runs are children of this process, made by a fork, so that they can really die.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.runs.files import read_arrays

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

SIZES = ("--clients", "20", "--cohort", "4", "--jobs", "1")
#: A run of each command that writes a folder.
COMMANDS = {
    "compare": ("compare", "random", "e3cs", *SIZES, "--rounds", "300", "--seeds", "2"),
    "train": (
        "compare",
        "random",
        "--train",
        "--data",
        "digits",
        "--rounds",
        "3",
        "--seeds",
        "1",
        *SIZES,
    ),
}
VANISHES = """
import shutil
from turnout import Selection, Selector
class Vanishes(Selector):
    def select(self, ctx, rng):
        if ctx.round == 30:
            shutil.rmtree("out")
        return Selection(ctx.round, ctx.pool[: ctx.size])
"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stderr


def forked(*arguments: str, before: Callable[[], None] = lambda: None) -> int:
    """Start a command in a child, which ends with the command's exit code; return its id."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            before()
            code, told = run(*arguments)
            Path(f"told-{os.getpid()}").write_text(told, encoding="utf-8")
        finally:
            os._exit(code)
    return child


def ended(child: int) -> tuple[int, str]:
    """Wait for a child, and return its exit code and what it told."""
    _, status = os.waitpid(child, 0)
    told = Path(f"told-{child}")
    return os.waitstatus_to_exitcode(status), told.read_text() if told.exists() else ""


def numbers(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return all choices of a folder, by cell."""
    return {
        str(path.parent.relative_to(folder)): {
            name: np.asarray(values).tobytes() for name, values in read_arrays(path).items()
        }
        for path in sorted(folder.rglob("selections.npz"))
    }


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_full_disk_is_one_line_and_costs_no_finished_cell():
    whole = COMMANDS["compare"]
    assert run(*whole, "--out", "whole")[0] == 0
    sizes = [path.stat().st_size for path in Path("whole").rglob("rounds.jsonl")]

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (min(sizes) // 2, resource.RLIM_INFINITY))

    first = ("compare", "random", *SIZES, "--rounds", "100", "--seeds", "1", "--out", "out")
    assert run(*first)[0] == 0
    finished = numbers(Path("out"))
    code, told = ended(forked(*whole, "--out", "full", before=fill))
    assert code == 1
    assert "File too large" in told
    assert "Traceback" not in told
    assert not list(Path("full").rglob("*.tmp"))
    assert numbers(Path("out")) == finished
    assert run(*whole, "--out", "full")[0] == 0
    assert numbers(Path("full")) == numbers(Path("whole"))


@pytest.mark.parametrize("target", ["/proc/turnout", "file/out"])
def test_a_place_that_cannot_be_written_is_one_line(target):
    Path("file").write_text("no folder")
    for command in (("simulate", "random", "--rounds", "5"), COMMANDS["compare"]):
        code, told = run(*command, "--out", target)
        assert code == 1
        assert "cannot be written" in " ".join(told.split())
        assert "Traceback" not in told


def test_a_folder_that_is_removed_meanwhile_is_one_line(monkeypatch):
    Path("vanishing.py").write_text(VANISHES, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "vanishing", raising=False)
    command = ("compare", "vanishing:Vanishes", *SIZES, "--rounds", "5000", "--seeds", "1")
    code, told = run(*command, "--out", "out")
    assert code == 1
    assert "Traceback" not in told
    assert "out" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_kills_at_random_moments_change_no_number(name, n_tries):
    command = COMMANDS[name]
    started = time.monotonic()
    assert ended(forked(*command, "--out", "whole"))[0] == 0
    seconds = time.monotonic() - started
    expected, rng = numbers(Path("whole")), np.random.default_rng(13)
    n_killed = 0
    for _ in range(n_tries(10 if name == "compare" else 2, 100)):
        child = forked(*command, "--out", "out")
        time.sleep(rng.uniform(0.05, 0.9) * seconds)
        os.kill(child, signal.SIGKILL)
        n_killed += ended(child)[0] == -signal.SIGKILL
        if rng.random() < 0.3 or not n_killed:
            shutil.rmtree("out", ignore_errors=True)
    assert run(*command, "--out", "out")[0] == 0
    assert numbers(Path("out")) == expected
    assert not list(Path("out").rglob(".*")) + list(Path("out").rglob("previous-*"))
    assert n_killed > 0
