"""The page about updates: its selector passes the contract and runs in training."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "updates.md"
COMMAND = [sys.executable, "-m", "turnout"]


@pytest.fixture
def folder(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "diverse.py").write_text(code, encoding="utf-8")
    assert len(code.splitlines()) < 60
    return tmp_path


def run(folder, *words):
    done = subprocess.run(
        [*COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_selector_passes_every_check_but_the_docstrings(folder):
    _, text = run(folder, "check", "diverse:Diverse")
    failed = [line for line in text.splitlines() if re.search(r"\bfailed\b", line)]
    assert all("docstring" in line for line in failed), text
    assert text.count("passed") >= 16


def test_it_trains(folder):
    short = ["--rounds", "4", "--seeds", "1", "--jobs", "1"]
    code, text = run(folder, "compare", "random", "diverse:Diverse", "--train", *short)
    assert code == 0, text
    assert "Diverse" in text


def test_it_runs_without_training_on_synthetic_updates(folder):
    code, text = run(folder, "simulate", "diverse:Diverse", "--rounds", "3")
    assert code == 0, text
