"""A full or read-only disk, a folder that goes away: one line, and nothing finished is lost.

The disk is a small one of its own where mounting is allowed. Elsewhere the size of files is
limited, and what cannot be written is below a file.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.experiment.dying import ended, forked
from tests.experiment.test_crash_points import cells, saved_session, session
from turnout.cli import app
from turnout.core.errors import OutputError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

SIZES = ("--clients", "12", "--cohort", "3", "--jobs", "1")
VANISHES = """
import shutil
from turnout import Selection, Selector
class Vanishes(Selector):
    def select(self, ctx, rng):
        if ctx.round == 30:
            shutil.rmtree("out")
        return Selection(ctx.round, ctx.pool[: ctx.size])
"""
REPRODUCE = ("reproduce", "rbcs-f", "--figure", "4", "--rounds", "20", "--no-extras", "--jobs", "1")
#: What is done before, and what then fails; both write into the working folder.
COMMANDS = {
    "compare": (
        ("compare", "random", *SIZES, "--rounds", "300", "--seeds", "1", "--out", "out"),
        ("compare", "random", "e3cs", *SIZES, "--rounds", "300", "--seeds", "2", "--out", "out"),
    ),
    "report": (
        ("report", "runs", "--out", "page.html"),
        ("report", "runs", "--out", "page.html"),
    ),
    "reproduce": (
        (*REPRODUCE, "--seeds", "1", "--out", "out", "--results", "results"),
        (*REPRODUCE, "--seeds", "2", "--out", "out", "--results", "results"),
    ),
}


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stderr


def told(folder: Path, work: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """Do something in a child whose working folder is ``folder``; return its code and words."""
    words = folder.parent / "told"

    def write() -> int:
        code, text = work()
        words.write_text(text, encoding="utf-8")
        return code

    words.unlink(missing_ok=True)
    code = ended(forked(write, folder))
    return code, words.read_text(encoding="utf-8") if words.exists() else ""


def live() -> tuple[int, str]:
    """Play a live run; an error that is turnout's own is one line."""
    try:
        return session(), ""
    except OutputError as error:
        return 1, f"error: {error}"


def finished(folder: Path) -> dict[str, object]:
    """Return what is complete in a folder."""
    pages = [*folder.glob("*.html"), *folder.glob("results/*.json")]
    return {str(path): path.read_bytes() for path in pages} | cells(folder)


class Disk:
    """A small disk; without the right to mount one, a limit on the size of files.

    Args:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "turnout-test", str(folder)]
        self.is_mounted = shutil.which("mount") is not None and not _fails(mount)
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Leave room for a page or two."""
        if self.is_mounted:
            free = shutil.disk_usage(self.folder).free
            self._filler.write_bytes(b"x" * (free - 8192))

    def limited(self, work: Callable[[], tuple[int, str]]) -> Callable[[], tuple[int, str]]:
        """Return work that is done on the full disk."""

        def limited() -> tuple[int, str]:
            if not self.is_mounted:
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            return work()

        return limited

    def clear(self) -> None:
        """Make room."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Give it back."""
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody can write, root neither."""
    folder = tmp_path / "locked"
    folder.mkdir()
    mount = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
    remount = ["mount", "-o", "remount,bind,ro", str(folder)]
    is_mounted = shutil.which("mount") is not None and not _fails(mount)
    if is_mounted and not _fails(remount) and not os.access(folder, os.W_OK):
        yield folder
    else:
        file = tmp_path / "file"
        file.write_text("no folder")
        yield file / "below"
    if is_mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fails_to_write(path: Path, content: bytes) -> None:
    raise OSError(errno.EIO, "Input/output error", str(path))


def assert_one_line(code: int, words: str) -> None:
    assert code == 1
    assert "Traceback" not in words
    lines = [
        line for line in words.splitlines() if line.startswith(("error:", "failed:", "damaged"))
    ]
    assert lines, words


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line_and_costs_nothing_that_is_finished(name, disk, tmp_path):
    first, second = COMMANDS[name]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (disk.folder, elsewhere):
        if name == "report":
            made = told(folder, lambda: run(*COMMANDS["compare"][0][:-1], "runs"))
            assert made[0] == 0
        assert told(folder, lambda: run(*first))[0] in (0, 1)
    before = finished(disk.folder)
    assert before
    disk.fill()
    code, words = told(disk.folder, disk.limited(lambda: run(*second)))
    assert_one_line(code, words)
    assert "No space left" in words if disk.is_mounted else "File too large" in words
    after = finished(disk.folder)
    assert {key: after[key] for key in before} == before
    assert not list(disk.folder.rglob("*.tmp"))
    disk.clear()
    code = told(elsewhere, lambda: run(*second))[0]
    assert told(disk.folder, lambda: run(*second))[0] == code
    if name != "report":  # it shows how long the computer took
        assert cells(disk.folder) == cells(elsewhere)


def test_a_live_run_on_a_full_disk_goes_on_from_its_last_checkpoint(disk, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert told(elsewhere, live)[0] == 0
    disk.fill()
    code, words = told(disk.folder, disk.limited(live))
    assert code == 1 or not disk.is_mounted
    assert "Traceback" not in words
    disk.clear()
    assert told(disk.folder, live)[0] == 0
    assert saved_session(disk.folder) == saved_session(elsewhere)


@pytest.mark.parametrize("name", ["simulate", "compare", "report", "reproduce"])
def test_a_place_that_cannot_be_written_is_one_line(name, read_only, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = str(read_only / "out")
    if name == "simulate":
        arguments = ("simulate", "random", "--rounds", "5", "--out", target)
    elif name == "report":
        assert run(*COMMANDS["compare"][0])[0] == 0
        arguments = ("report", "out", "--out", f"{target}.html")
    else:
        whole = COMMANDS[name][0]
        arguments = (*whole[: whole.index("--out")], "--out", target)
    code, words = run(*arguments)
    assert_one_line(code, words)
    assert "out" in words


def test_results_that_cannot_be_written_are_one_line(read_only, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = (*REPRODUCE, "--seeds", "1", "--out", "out", "--results")
    code, words = run(*whole, str(read_only / "r"))
    assert_one_line(code, words)
    assert not cells(tmp_path / "out")  # before anything is run
    Path("kept").mkdir()
    monkeypatch.setattr("turnout.studies.results_file.write_atomically", fails_to_write)
    code, words = run(*whole, "kept")  # the folder is there, so this is seen only after the runs
    assert_one_line(code, words)
    assert len(cells(tmp_path / "out")) > 1  # all runs are kept


def test_a_live_run_that_cannot_be_saved_says_so(read_only, monkeypatch):
    if not read_only.is_dir():
        read_only = Path("/proc")
    monkeypatch.chdir(read_only)
    with pytest.raises(OSError, match="out"):
        session()


def test_a_folder_that_is_removed_meanwhile_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("vanishing.py").write_text(VANISHES, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "vanishing", raising=False)
    command = ("compare", "vanishing:Vanishes", *SIZES, "--rounds", "5000", "--seeds", "1")
    code, words = run(*command, "--out", "out")
    assert_one_line(code, words)
    assert "out" in words


def test_a_report_of_a_folder_that_was_removed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, words = run("report", "gone", "--out", "page.html")
    assert code == 2
    assert "Traceback" not in words
    assert "gone" in words
    assert not Path("page.html").exists()


def test_a_live_run_whose_folder_is_removed_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = shutil.rmtree

    def gone(_: object) -> None:
        plain("out")

    monkeypatch.setattr("turnout.live.driver.HostRun.write", gone)
    with pytest.raises((OSError, ValueError), match="out"):
        session()
