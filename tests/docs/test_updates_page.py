"""The page about updates: its commands, one after the other, with its selector."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "updates.md"
COMMAND = [sys.executable, "-m", "turnout"]


def run(folder, *words):
    done = subprocess.run(
        [*COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The package that the page starts with, with the selector of the page in it."""
    parent = tmp_path_factory.mktemp("page")
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) < 60
    assert "turnout new selector diverse\ncd diverse\n" in text
    code_of_new, output = run(parent, "new", "selector", "diverse")
    assert code_of_new == 0, output
    file = parent / "diverse" / "diverse.py"
    kept = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")), clean=False)
    file.write_text(f'"""{kept}"""\n\n{code}', encoding="utf-8")
    return parent / "diverse"


def test_the_selector_passes_every_check(folder):
    assert "turnout check diverse:Diverse" in PAGE.read_text(encoding="utf-8")
    code, text = run(folder, "check", "diverse:Diverse")
    assert code == 0, text
    assert text.count("passed") == 17


def test_the_test_of_the_package_passes(folder):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_it_trains(folder):
    (line,) = re.findall(r"turnout (compare .*)", PAGE.read_text(encoding="utf-8"))
    words = line.replace("--rounds 30", "--rounds 4").replace("--seeds 3", "--seeds 1").split()
    code, text = run(folder, *words, "--jobs", "1")
    assert code == 0, text
    assert "Diverse" in text


def test_it_runs_without_training_on_synthetic_updates(folder):
    code, text = run(folder, "simulate", "diverse:Diverse", "--rounds", "3")
    assert code == 0, text
