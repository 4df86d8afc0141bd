"""``turnout new`` and ``turnout worlds``."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.core.names import import_object
from turnout.core.selector import Selector
from turnout.experiment.config import world_of
from turnout.worlds import WORLDS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_a_new_selector_passes_its_own_test(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run("new", "selector", "my-own-method")
    assert "turnout check my_own_method:MyOwnMethod" in printed
    folder = here / "my-own-method"
    monkeypatch.syspath_prepend(str(folder))
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (name, path), *others = project["entry-points"]["turnout.selectors"].items()
    assert name == "my-own-method"
    assert not others
    assert issubclass(import_object(path), Selector)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("My_Method", ["NAME must be lower-case words", "my-method"]),
        ("oort", ["'oort' is taken"]),
        ("json", ["'json' is taken"]),
        ("-x", []),
    ],
)
def test_a_bad_name_is_refused(here: Path, name: str, words: list[str]) -> None:
    result = CliRunner().invoke(app, ["new", "selector", name])
    assert result.exit_code == 2
    assert all(word in result.output for word in words)
    assert not list(here.iterdir())


def test_nothing_is_overwritten(here: Path) -> None:
    run("new", "selector", "another-method", "--to", "mine")
    kept = Path("mine/another_method.py")
    kept.write_text("edited", encoding="utf-8")
    result = CliRunner().invoke(app, ["new", "selector", "another-method", "--to", "mine"])
    assert result.exit_code == 1
    assert "mine cannot be written" in result.output
    assert "--to" in result.output
    assert kept.read_text(encoding="utf-8") == "edited"


def test_worlds_lists_every_name_and_kind() -> None:
    printed = run("worlds")
    assert all(name in printed for name in WORLDS)
    rows = json.loads(run("worlds", "--json"))
    kinds = {row["kind"] for row in rows}
    assert {"bernoulli", "markov", "availability-file", "device-file", "pareto"} <= kinds
    assert all(field["meaning"] for row in rows for field in row["fields"])


def test_worlds_explains_a_kind() -> None:
    printed = run("worlds", "markov")
    assert "stickiness" in printed
    assert "Chance that a client keeps its state" in printed
    result = CliRunner().invoke(app, ["worlds", "markow"])
    assert result.exit_code == 2
    assert "Did you mean 'markov'?" in result.output


@pytest.mark.parametrize("kind", [row["kind"] for row in json.loads(run("worlds", "--json"))])
def test_the_example_of_a_kind_is_a_world(kind: str) -> None:
    line = run("worlds", kind).splitlines()[-1]
    world_of(tomllib.loads(line), n_clients=4)
