"""The scripts of the tutorial run, and the commands in their text exist."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.docs.test_docs import commands
from turnout.cli import app

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
#: What each script prints, among other lines.
PRINTED = {
    "01_simulate": r"e3cs gets 0\.1\d\d ± 0\.0\d\d more answers",
    "02_train": r"oort +\d\d% in time, accuracy \d\d\.\d%",
    "03_own_selector": r"learns +ok",
    "04_own_data": r"pow-d +loss after 30 rounds: 0\.1\d\d",
    "05_flower": r"e3cs +\d\d% answered, accuracy \d\d\.\d%(?s:.*)buffered accuracy \d\d\.\d%",
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[script.stem], done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_commands_in_the_text_have_these_options(script):
    text = re.sub(r"(?m)^# ?", "", script.read_text(encoding="utf-8"))
    for arguments in commands(text):
        result = CliRunner().invoke(app, [*arguments, "--help"])
        assert result.exit_code == 0, f"{arguments}: {result.output}"


def test_every_step_is_in_the_contents_and_leads_to_the_next():
    contents = (ROOT / "docs" / "tutorial" / "index.md").read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS] == list(PRINTED)
    assert all(f"(../../examples/{script.name})" in contents for script in SCRIPTS)
    for script, following in itertools.pairwise(SCRIPTS):
        assert f"({following.name})" in script.read_text(encoding="utf-8")


def test_links_of_the_scripts_resolve():
    for script in SCRIPTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", script.read_text(encoding="utf-8")):
            assert (script.parent / target).exists(), f"{script.name} -> {target}"
