"""What a command tells while it runs, and when a selector of one's own breaks."""

import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout.cli import app, options
from turnout.core.names import NO_PLUGINS_VARIABLE

SMALL = ("--rounds", "5", "--clients", "20", "--cohort", "4")
BREAKS = """
from turnout import Selector
class Breaks(Selector):
    def reset(self, n_clients):
        self.n_clients_ = n_clients
    def select(self, ctx, rng):
        return {}["lost client"]
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> str:
    Path("breaking.py").write_text(BREAKS, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "breaking", raising=False)
    return "breaking:Breaks"


def test_the_traceback_of_a_plug_in_is_in_a_file_that_is_named(breaks: str) -> None:
    compare = ("compare", "random", breaks, *SMALL, "--seeds", "1", "--jobs", "1", "--out", "a")
    result = run(*compare)
    assert result.exit_code == 1
    assert "KeyError" in result.stderr
    (file,) = Path("a").rglob("error.txt")
    assert f"traceback: {file}" in result.stderr
    assert 'return {}["lost client"]' in file.read_text(encoding="utf-8")
    assert 'return {}["lost client"]' not in result.stderr
    shown = run("--debug", *compare)
    assert 'return {}["lost client"]' in shown.stderr
    assert 'breaking.py", line' in shown.stderr


def test_a_run_that_succeeds_later_keeps_no_old_traceback(breaks: str) -> None:
    run("simulate", "random", *SMALL, "--out", "a")
    (cell,) = Path("a").glob("*/seed-0")
    (cell / "summary.json").unlink()
    (cell / "error.txt").write_text("old", encoding="utf-8")
    assert run("simulate", "random", *SMALL, "--out", "a").exit_code == 0
    assert not (cell / "error.txt").exists()


def test_simulate_keeps_the_traceback_though_it_keeps_no_run(
    breaks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = run("simulate", breaks, *SMALL)
    file = re.search(r"traceback: (\S+)", result.stderr)
    assert file is not None
    assert "lost client" in Path(file[1]).read_text(encoding="utf-8")


def test_debug_shows_where_an_error_of_turnout_came_from() -> None:
    assert "Traceback" not in run("simulate", "randm").stderr
    assert "Traceback" in run("--debug", "simulate", "randm").stderr


def test_without_a_terminal_progress_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "rounds" not in run("simulate", "random", *SMALL).stderr  # too short for a line
    monkeypatch.setattr(options, "SECONDS_PER_LINE", 0.0)
    result = run("simulate", "random", *SMALL)
    assert "simulate: 5 of 5 rounds, 1 of 1 runs" in result.stderr.splitlines()
    assert "rounds" not in run("simulate", "random", *SMALL, "--json").stderr


def test_every_run_of_a_comparison_may_be_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    stub = SimpleNamespace(
        set_experiment=lambda name: None,
        start_run=lambda run_name: logged.append(run_name),
        log_params=lambda given: None,
        log_metrics=lambda values, step: logged.append(step),
        end_run=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "mlflow", stub)  # type: ignore[arg-type]
    compare = ("compare", "random", "e3cs", *SMALL, "--seeds", "2", "--track", "mlflow")
    assert run(*compare, "--out", "a").exit_code == 0
    names = [f"{label}, seed {seed} in a" for label in ("random", "e3cs") for seed in (0, 1)]
    assert sorted(entry for entry in logged if isinstance(entry, str)) == sorted(names)
    assert logged.count(4) == 4  # the last round of each
    refused = run(*compare, "--jobs", "2", "--out", "b")
    assert refused.exit_code == 2
    assert "--track follows one run at a time" in refused.stderr
    assert not Path("b").exists()


CONFIGURATION = """
name = "{name}"
n_clients = 10
cohort_size = 2
n_rounds = 3
seeds = 1
selectors = ["{selector}"]
"""


def test_no_plug_in_is_imported_if_that_is_asked_for(
    breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_PLUGINS_VARIABLE, "")  # what the option sets is undone
    text = CONFIGURATION.format(name="x", selector=breaks)
    Path("a.toml").write_text(text, encoding="utf-8")
    for command in (("compare", "--config", "a.toml"), ("simulate", breaks), ("check", breaks)):
        result = run("--no-plugins", *command)
        assert result.exit_code == 2
        assert "--no-plugins" in result.stderr
        assert "breaking" not in sys.modules
    assert run("--no-plugins", "simulate", "random", *SMALL, "--out", "b").exit_code == 0
    assert "a configuration is a program" in " ".join(run("--help").stdout.replace("│", "").split())


@pytest.mark.parametrize("name", ["../up", "/etc/x", "..", ".hidden", "a/b", "a\\\\b"])
def test_the_name_of_an_experiment_does_not_lead_out_of_the_folder(name: str) -> None:
    Path("a.toml").write_text(CONFIGURATION.format(name=name, selector="random"), encoding="utf-8")
    result = run("compare", "--config", "a.toml")
    assert result.exit_code == 2
    assert "must be a name and not a path" in " ".join(result.stderr.split())
    assert [path.name for path in Path().iterdir()] == ["a.toml"]
