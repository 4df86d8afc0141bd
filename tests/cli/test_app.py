"""The commands as a whole: their headings, their help, and what is imported for one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from turnout.cli import app
from turnout.cli.app import _COMMANDS

NAMES = [name for commands in _COMMANDS.values() for name in commands]
HEAVY = ("fastapi", "matplotlib", "pandas", "plotly", "scipy", "sklearn", "sqlalchemy", "torch")
OTHERS = ("turnout.data", "turnout.experiment", "turnout.report", "turnout.serve", "turnout.worlds")


def test_help_groups_all_commands_under_five_headings() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    places = [shown.stdout.index(f"─ {heading} ─") for heading in _COMMANDS]
    assert list(_COMMANDS) == ["Run", "Look", "Study", "Operate", "Develop"]
    assert places == sorted(places)
    for name in NAMES:
        assert f"│ {name} " in shown.stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_help(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert f"turnout {name}" in shown.stdout.replace("root", "turnout")


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_explains_each_argument_and_option(name: str) -> None:
    commands: Any = get_command(app)
    command = commands.get_command(None, name)
    for each in (command, *getattr(command, "commands", {}).values()):
        assert all(option.help or option.hidden for option in each.params)
        assert "Args:" not in (each.help or "")


def test_an_unknown_command_is_an_error() -> None:
    result = CliRunner().invoke(app, ["simulat"])
    assert result.exit_code == 2
    assert "simulate" in result.stderr


def test_listing_selectors_imports_no_other_command_and_no_heavy_library() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from turnout.cli import app;"
        "assert CliRunner().invoke(app, ['list']).exit_code == 0;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded.intersection([*HEAVY, *OTHERS])
    commands = {name for name in loaded if name.startswith("turnout.cli.")}
    assert commands == {f"turnout.cli.{name}" for name in ("app", "listing", "output")}


def test_warnings_are_sentences_in_worker_processes_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turnout", "compare", "random", "rbcs-f"]
    command += ["--world", "unequal", "--rounds", "40", "--seeds", "1", "--jobs", "2"]
    command += ["--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert any(line.startswith("Warning: penalty = 20") for line in lines)
    assert ".py" not in done.stderr


def test_bench_leaves_out_who_refuses_so_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.cli.develop.list_selectors", lambda: ["random", "fedcor"])
    few = ["--clients", "10001", "--cohort", "5", "--repeats", "1"]
    result = CliRunner().invoke(app, ["bench", *few])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "fedcor is left out: n_clients must be at most 10000" in words
    assert "random" in words
    named = CliRunner().invoke(app, ["bench", "fedcor", *few])
    assert named.exit_code == 2
